"""Keeps one call of a kernel for `difftest import`. Needs torch and safetensors, and runs inside a serving engine."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from safetensors.torch import save

from difftest.files import write_whole
from oracles.cutlass_layouts import deinterleave_weight, swap_halves, unfold_scale
from oracles.recording import TENSORS, VERSION

_P = ParamSpec("_P")
_R = TypeVar("_R")

_TENSORS = {"input": "hidden_states", "token_selected_experts": "topk_ids", "token_final_scales": "topk_weights"}
_NUMBERS = {"ep_size": "ep_size", "ep_rank": "ep_rank", "tp_size": "moe_tp_size", "tp_rank": "moe_tp_rank"}
_ACTIVATIONS = {"Swiglu": "swiglu", "SwigluBias": "swiglu_oai", "Situ": "situ"}
_PARAMETERS = {
    "swiglu_alpha": "alpha",
    "swiglu_beta": "beta",
    "swiglu_limit": "limit",
    "situ_beta": "beta",
    "situ_linear_beta": "linear_beta",
}
"""Keywords of FlashInfer's cutlass_fused_moe by what they are called in a recording."""


class NotRecorded(ValueError):
    """The arguments of a call cannot be told in a recording. The message is one line that names the argument."""


def record(
    call: Callable[_P, _R], path: Path | str, *, when: Callable[[_R], bool] | None = None, **given: Any
) -> Callable[_P, _R]:
    """`call`, which saves the first of its calls to `path`, whole or not at all, and is itself otherwise.

    call: FlashInfer's cutlass_fused_moe, whose weights in the layout of SM90 are brought back to the checkpoint's, or
    any function whose parameters have the names of a recording (docs/formats.md). when: only a call whose result it
    says True of is saved. given: tensors and metadata by these names, where the call has none or others, such as
    `w13=weight, w13_scale=scale, activation="situ"`.
    What happens while a CUDA graph is captured is not saved. Raises `NotRecorded`, and OSError.
    """
    signature = inspect.signature(call)
    saved = False

    @functools.wraps(call)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        nonlocal saved
        result = call(*args, **kwargs)
        if saved or _is_capturing() or (when is not None and not when(result)):
            return result
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if value is not None}
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= arguments.pop(parameter.name, {})
        _save(Path(path), arguments, result, given)
        saved = True
        return result

    return wrapper


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _save(path: Path, arguments: Mapping[str, Any], result: Any, given: Mapping[str, Any]) -> None:
    found = {**_canonical(arguments), **given}
    output = arguments.get("output", result[0] if isinstance(result, list | tuple) and result else result)
    if isinstance(output, torch.Tensor):
        found.setdefault("output", output)
        found.setdefault("output_dtype", output.dtype)
    tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    if not tensors.keys() & TENSORS.keys():
        raise NotRecorded(f"record: {', '.join(arguments) or 'no argument'}: must be some of {', '.join(TENSORS)}")
    metadata = {name: _text(value) for name, value in found.items() if name not in tensors}
    # Copies: two arguments may be one memory, which the format does not have.
    content = save({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}, metadata)
    write_whole(path, content)


def _text(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _canonical(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of a recording."""
    found: dict[str, Any] = {"version": VERSION}
    found |= {name: arguments[name] for name in TENSORS if name in arguments}
    for names in (_TENSORS, _NUMBERS):
        found |= {own: arguments[name] for name, own in names.items() if name in arguments}
    if "activation_type" in arguments:
        kind = getattr(arguments["activation_type"], "name", str(arguments["activation_type"]))
        if kind not in _ACTIVATIONS:
            raise NotRecorded(f"record: activation_type = {kind}: must be one of {', '.join(_ACTIVATIONS)}")
        found["activation"] = _ACTIVATIONS[kind]
    for name, own in _PARAMETERS.items():
        if name in arguments:
            found[own] = _one_value(name, arguments[name])
    return found | _weights(arguments) | _biases(arguments)


def _one_value(name: str, value: Any) -> float:
    distinct = set(torch.as_tensor(value).flatten().tolist())
    if len(distinct) != 1:
        raise NotRecorded(f"record: {name}: must be the same for all experts, has {len(distinct)} values")
    return float(distinct.pop())


def _weights(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Those of SM90's bfloat16 x MXFP4, which are told by their flag. Of others a rule draws some, unless given."""
    if not arguments.get("use_w4_group_scaling") or "fc1_expert_weights" not in arguments:
        return {}
    first, second = (unfold_scale(scale.view(torch.uint8)) for scale in arguments["quant_scales"][:2])
    return {
        "w13": swap_halves(deinterleave_weight(arguments["fc1_expert_weights"].view(torch.uint8))),
        "w13_scale": swap_halves(first),
        "w2": deinterleave_weight(arguments["fc2_expert_weights"].view(torch.uint8)),
        "w2_scale": second,
    }


def _biases(arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    if "fc1_expert_biases" not in arguments:
        return {}
    found = {"w13_bias": swap_halves(arguments["fc1_expert_biases"])}
    if arguments.get("tp_rank", 0) == 0:
        found["w2_bias"] = arguments["fc2_expert_biases"]
    return found
