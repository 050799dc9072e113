"""A recorded call of the layer: a safetensors file with the canonical names, read and checked.

docs/formats.md has the format.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from strategies import recordings
from strategies.capture import AXES, Capture
from strategies.scenario import (
    ACTIVATIONS,
    GROUP,
    Activation,
    InvalidScenario,
    Layer,
    Parallel,
    Scenario,
    Shape,
    Swiglu,
)

VERSION = "1"
"""Of the format. A reader refuses any other one."""

TENSORS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "hidden_states": ("bfloat16", ("M", "H")),
    "topk_ids": ("int32", ("M", "K")),
    "topk_weights": ("float32", ("M", "K")),
    "w13": ("uint8", ("E_local", "2I", "H/2")),
    "w13_scale": ("uint8", ("E_local", "2I", "H/32")),
    "w2": ("uint8", ("E_local", "H", "I/2")),
    "w2_scale": ("uint8", ("E_local", "H", "I/32")),
    "w13_bias": ("bfloat16", ("E_local", "2I")),
    "w2_bias": ("bfloat16", ("E_local", "H")),
}
"""dtype and shape by name, as in `oracles.problem.Problem`. I is the rank's own."""

TOGETHER = (("w13", "w13_scale"), ("w2", "w2_scale"))

MISSING = {"M": 1, "K": 1, "H": 128, "I": 128}
"""Sizes that no tensor and no metadata gives."""

_SIZES = {"tokens": "M", "top_k": "K", "hidden": "H", "intermediate": "I"}
_NUMBERS = ("num_experts", "ep_size", "ep_rank", "moe_tp_size", "moe_tp_rank", *_SIZES)
_NAMES = ("version", "format", "activation", "output_dtype", "precision", "routed_scaling_factor", *_NUMBERS)
_PARAMETERS = ("alpha", "beta", "limit", "linear_beta")


class InvalidRecording(ValueError):
    """A file is no recording of a call. The message is one line that names the file, what is wrong and what is
    allowed."""


@dataclass(frozen=True)
class Recording:
    """tensors: by canonical name. scenario: of the whole call, without a capture. output: [M, H] as it was observed, or
    None."""

    path: Path
    tensors: Mapping[str, torch.Tensor]
    scenario: Scenario
    output: torch.Tensor | None

    def whole(self, digest: str) -> Scenario:
        """The scenario that takes all there is from the recording, whose file has this digest."""
        scenario = self.scenario
        sizes = scenario.capture_sizes
        first = scenario.first_expert
        capture = Capture(
            digest=digest,
            tensors=tuple(name for name in AXES if name in self.tensors),
            tokens=tuple(range(sizes["tokens"])),
            slots=tuple(range(sizes["slots"])),
            experts=tuple(range(first, first + sizes["experts"])),
            hidden=tuple(range(sizes["hidden"])),
            intermediate=tuple(range(sizes["intermediate"])),
        )
        return dataclasses.replace(scenario, capture=capture.using(capture.tensors))


def load(path: Path) -> Recording:
    """Read and check a file. Raises `InvalidRecording`."""
    import safetensors  # here: of a worker's environment it is asked only for a recorded call

    if path.suffix != recordings.SUFFIX:
        raise InvalidRecording(f"{path}: must be a file *{recordings.SUFFIX}, as docs/formats.md has it")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except OSError as error:
        raise InvalidRecording(f"{path}: {error.strerror or 'there is no such file'}") from None
    except safetensors.SafetensorError as error:
        raise InvalidRecording(f"{path}: is no safetensors file, or is cut off: {error}") from None
    try:
        output = tensors.pop("output", None)
        return Recording(path, tensors, _scenario(tensors, output, metadata), output)
    except (InvalidRecording, InvalidScenario) as error:
        raise InvalidRecording(f"{path}: {error}") from None


def _scenario(tensors: Mapping[str, torch.Tensor], output: torch.Tensor | None, metadata: dict[str, str]) -> Scenario:
    _check_metadata(metadata)
    _check_names(tensors)
    numbers = {name: _integer(name, metadata[name]) for name in _NUMBERS if name in metadata}
    sizes = _sizes(tensors, {_SIZES[name]: numbers[name] for name in _SIZES if name in numbers})
    ep_size, moe_tp_size = numbers.get("ep_size", 1), numbers.get("moe_tp_size", 1)
    if ep_size < 1:
        raise InvalidRecording(f"metadata ep_size = {ep_size}: must be an integer >= 1")
    experts = numbers.get("num_experts") or _experts(tensors, sizes, ep_size)
    activation = _activation(metadata)
    biased = "w13_bias" in tensors
    layer = Layer(
        biases="per_expert" if biased else "none",
        moe_tp_size=moe_tp_size,
        moe_tp_rank=numbers.get("moe_tp_rank", 0),
        routed_scaling_factor=_float("routed_scaling_factor", metadata.get("routed_scaling_factor", "1")),
    )
    if biased and layer.moe_tp_rank == 0 and "w2_bias" not in tensors:
        raise InvalidRecording("w2_bias: is missing; w13_bias is there: give both, zeros where the layer has none")
    if "w2_bias" in tensors and (not biased or layer.moe_tp_rank > 0):
        raise InvalidRecording("w2_bias: must come with w13_bias, and be left out on moe_tp ranks above 0")
    scenario = Scenario(
        shape=Shape(
            tokens=sizes["M"],
            hidden=sizes["H"],
            intermediate=sizes["I"] * moe_tp_size,
            experts=experts,
            top_k=sizes["K"],
        ),
        parallel=Parallel(ep_size=ep_size, ep_rank=numbers.get("ep_rank", 0)),
        activation=activation,
        precision=metadata.get("precision", "bf16xmxfp4"),  # type: ignore[arg-type]  # a Scenario checks it
        output_dtype=metadata.get("output_dtype", "bfloat16"),  # type: ignore[arg-type]
        layer=layer,
    )
    if sizes.get("E_local", scenario.experts_local) != scenario.experts_local:
        raise InvalidRecording(
            f"w13, w2: {sizes['E_local']} experts: must be num_experts / ep_size = {experts} / {ep_size}"
        )
    if "topk_ids" in tensors:
        _check_ids(tensors["topk_ids"], experts)
    if output is not None:
        _check_tensor("output", output, (scenario.output_dtype, ("M", "H")), sizes)
    return scenario


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if metadata.get("version", VERSION) != VERSION:
        raise InvalidRecording(f"metadata version = {metadata['version']!r}: must be {VERSION!r}, or left out")
    for name, value in metadata.items():
        if name not in (*_NAMES, *_PARAMETERS):
            raise InvalidRecording(
                f"metadata {name} = {value!r:.40}: must be left out; the names are {', '.join((*_NAMES, *_PARAMETERS))}"
            )


def _check_names(tensors: Iterable[str]) -> None:
    known = ", ".join((*TENSORS, "output"))
    for name in tensors:
        if name not in TENSORS:
            raise InvalidRecording(f"{name}: must be left out; the names are {known}")
    if not any(name in TENSORS for name in tensors):
        raise InvalidRecording(f"holds no tensor of a call: give some of {known}")
    for pair in TOGETHER:
        for name, other in (pair, pair[::-1]):
            if name in tensors and other not in tensors:
                raise InvalidRecording(f"{other}: is missing, and {name} is there; codes and scales come together")


def _sizes(tensors: Mapping[str, torch.Tensor], given: Mapping[str, int]) -> dict[str, int]:
    """M, K, H, I and, of weights, E_local: as the first tensor that has one says, which the others must agree to."""
    sizes = dict(given)
    for name, (dtype, dims) in TENSORS.items():
        if name in tensors:
            _check_tensor(name, tensors[name], (dtype, dims), sizes)
    return MISSING | sizes


def _check_tensor(
    name: str, tensor: torch.Tensor, expected: tuple[str, tuple[str, ...]], sizes: dict[str, int]
) -> None:
    """Raises `InvalidRecording` unless the tensor is as expected; adds the sizes that it is the first to tell."""
    dtype, dims = expected
    known = dict(sizes)
    ok = str(tensor.dtype) == f"torch.{dtype}" and tensor.dim() == len(dims)
    if ok:
        for dim, size in zip(dims, tensor.shape, strict=True):
            times, symbol, over = re.fullmatch(r"(\d*)([A-Za-z_]+)/?(\d*)", dim).groups()  # type: ignore[union-attr]
            wanted = known.setdefault(symbol, size * int(over or 1) // int(times or 1))
            ok = ok and size * int(over or 1) == wanted * int(times or 1)
    if not ok:
        told = ", ".join(f"{symbol} = {size}" for symbol, size in sizes.items() if any(symbol in dim for dim in dims))
        raise InvalidRecording(
            f"{name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}: must be {dtype} "
            f"[{', '.join(dims)}]"
            + (", global ids in [-1, num_experts)," if name == "topk_ids" else "")
            + (f" with {told}" if told else "")
        )
    for symbol in ("H", "I"):
        if any(symbol in dim for dim in dims) and known[symbol] % GROUP:
            raise InvalidRecording(f"{name}: {list(tensor.shape)}: {symbol} = {known[symbol]} must be a multiple of 32")
    sizes |= known


def _experts(tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int], ep_size: int) -> int:
    """All ranks' experts, where the metadata do not say: those of the weights, or as many as the ids need."""
    if "E_local" in sizes:
        return sizes["E_local"] * ep_size
    ids = tensors.get("topk_ids")
    named = 0 if ids is None or not ids.numel() else int(ids.max()) + 1
    return max(1, -(-max(named, sizes["K"]) // ep_size)) * ep_size


def _check_ids(ids: torch.Tensor, experts: int) -> None:
    if ids.numel() and not -1 <= int(ids.min()) <= int(ids.max()) < experts:
        raise InvalidRecording(
            f"topk_ids: int32 {list(ids.shape)} from {int(ids.min())} to {int(ids.max())}: "
            f"must be global ids in [-1, num_experts = {experts}), -1 for a masked slot"
        )


def _activation(metadata: Mapping[str, str]) -> Activation:
    kind = metadata.get("activation", Swiglu.kind)
    if kind not in ACTIVATIONS:
        raise InvalidRecording(f"metadata activation = {kind!r}: must be one of {', '.join(ACTIVATIONS)}")
    names = [spec.name for spec in dataclasses.fields(ACTIVATIONS[kind])]
    given: dict[str, Any] = {name: _float(name, metadata[name]) for name in _PARAMETERS if name in metadata}
    for name in given:
        if name not in names:
            raise InvalidRecording(f"metadata {name}: must be left out; {kind} has no such parameter")
    return ACTIVATIONS[kind](**given)


def _integer(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise InvalidRecording(f"metadata {name} = {text!r:.40}: must be an integer >= 0")
    return int(text)


def _float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidRecording(f"metadata {name} = {text!r:.40}: must be a number") from None
