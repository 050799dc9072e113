#!/usr/bin/env python3
"""sglang-emulated-sm120: wrong output with SwiGLU-OAI

A fused MoE layer with MXFP4 experts, computed by sglang-emulated-sm120, where the kernel is emulated: 32 of 32 elements in 1 of 1 rows are impossible: [0, 23] = -0.0180664062, expected exactly -0.134765625, off by 0.117 (2.7 of rms).

Run it with python: it needs torch and sglang. It exits 1 when the kernel's answer is wrong as reported, 0 when it
is right, and 2 when the kernel could not be asked. The inputs are at the end of the file.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import importlib.metadata
import sys
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from sglang.srt import runtime_context
from sglang.srt.layers.moe.moe_runner import flashinfer_cutlass
from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
from sglang.srt.layers.moe.topk import StandardTopKOutput
from sglang.srt.layers.moe.utils import MoeRunnerBackend
from sglang.srt.layers.quantization.mxfp4 import Mxfp4MoEMethod

ROUNDING = {'input': 'mxfp8', 'intermediate_quantizer': 'mxfp8', 'weights': 'none', 'gemm1': 'output', 'bias': 'after', 'biased': 'float32', 'intermediate': 'output', 'gemm2': 'output', 'router_weight': 'float32', 'weighted': 'float32'}
"""Where the kernel rounds, for the layer below."""
DEVICE = "cpu"


# --- by definition ---------------------------------------------------------------------------------------------------


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def dequantize(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """MXFP4 [..., K/2] and E8M0 [..., K/32] -> float64 [..., K]. The low nibble is the even column."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
    factor = torch.where(scale == 255, torch.nan, torch.exp2(scale.double() - 127))
    value: torch.Tensor = E2M1.double()[codes] * factor.repeat_interleave(32, -1)
    return value


def q8_0(x: torch.Tensor) -> torch.Tensor:
    """ggml's Q8_0: int8 per 32 values, with a float16 scale."""
    blocks = x.float().reshape(*x.shape[:-1], -1, 32)
    amax = blocks.abs().amax(-1, keepdim=True)
    codes = (blocks * torch.where(amax > 0, 127 / amax, 0.0)).round()
    return (codes.double() * (amax / 127).half().double()).flatten(-2)


def mxfp8_codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashInfer's MXFP8 of [..., K]: E4M3 codes, float64 [..., K/32, 32], and E8M0 bytes [..., K/32].

    The scale is the power of two at or above amax / 448. NaN is passed over by the maximum and saturates; a block of
    nothing else is NaN. Under the bytes 0 and 254 finite values become 0.
    """
    blocks = x.double().reshape(*x.shape[:-1], -1, 32)
    amax = blocks.abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(-1)
    significand, exponent = torch.frexp(amax.clamp(max=2.0**200) / 448)
    byte = torch.where(amax == 0, 0, exponent - (significand == 0.5).int() + 127).clamp(0, 254)
    inverse = torch.where((byte == 0) | (byte == 254), 0.0, torch.exp2(127 - byte.double()))
    scaled = (blocks * inverse[..., None]).nan_to_num(nan=448.0).clamp(-448, 448)
    byte = torch.where(blocks.isnan().all(-1), 255, byte).to(torch.uint8)
    return scaled.float().to(torch.float8_e4m3fn).double(), byte


def mxfp8(x: torch.Tensor) -> torch.Tensor:
    """The values that `mxfp8_codes` stands for."""
    codes, byte = mxfp8_codes(x)
    factor = torch.where(byte == 255, torch.nan, torch.exp2(byte.double() - 127))
    return (codes * factor[..., None]).flatten(-2)


def activate(p: SimpleNamespace, expert: int, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    value = {name: float(vector[expert]) for name, vector in p.parameters.items()}
    if p.activation == "swiglu":
        return gate * torch.sigmoid(gate) * up
    if p.activation == "swiglu_oai":
        gate, up = gate.clamp(max=value["limit"]), up.clamp(-value["limit"], value["limit"])
        return gate * torch.sigmoid(value["alpha"] * gate) * (up + value["beta"])
    beta, linear_beta = value["beta"], value["linear_beta"]  # SiTU
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * linear_beta * torch.tanh(up / linear_beta)


def expected(p: SimpleNamespace, rounding: dict[str, str]) -> torch.Tensor:
    """float64 [M, H]. rounding: by step, the dtype that the kernel's value has there ("output": that of the answer),
    "q8_0", "mxfp8", or "none"; and whether a bias is added "before" the GEMM's result is rounded or "after"."""

    def rounded(x: torch.Tensor, step: str) -> torch.Tensor:
        if rounding[step] == "none":
            return x
        if rounding[step] in ("q8_0", "mxfp8"):
            return q8_0(x) if rounding[step] == "q8_0" else mxfp8(x)
        dtype = p.output_dtype if rounding[step] == "output" else getattr(torch, rounding[step])
        return x.to(dtype).double()

    def biased(y: torch.Tensor, bias: torch.Tensor | None, expert: int, step: str) -> torch.Tensor:
        if bias is None:
            return rounded(y, step)
        term = bias[expert].double()
        if rounding["bias"] == "before":
            return rounded(y + term, step)
        return rounded(rounded(y, step) + term, "biased")

    def weight(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return rounded(dequantize(packed, scale), "weights")

    factor = torch.tensor(p.routed_scaling_factor, dtype=torch.float32)
    router_weights = rounded((p.topk_weights.cpu() * factor).double(), "router_weight")
    out = torch.zeros(p.hidden_states.shape, dtype=torch.float64)
    experts = len(p.w13)
    for token in range(len(out)):
        x = rounded(p.hidden_states[token].double(), "input")
        for slot, global_id in enumerate(p.topk_ids[token].tolist()):
            expert = global_id - p.first_expert
            if global_id < 0 or not 0 <= expert < experts:
                continue  # masked, or another rank's
            h = biased(weight(p.w13[expert], p.w13_scale[expert]) @ x, p.w13_bias, expert, "gemm1")
            a = rounded(rounded(activate(p, expert, *h.chunk(2)), "intermediate"), "intermediate_quantizer")
            y = biased(weight(p.w2[expert], p.w2_scale[expert]) @ a, p.w2_bias, expert, "gemm2")
            out[token] += rounded(router_weights[token, slot] * y, "weighted")
    return out.to(p.output_dtype).double()


def run(p: SimpleNamespace, hidden_unit: int, *, interleaved: bool = False) -> torch.Tensor:
    """hidden_unit: of what H is padded to a multiple. interleaved: w13 has the rows of gate and up in turn."""
    hidden, inner, local = p.hidden_states.shape[1], 2 * p.w2.shape[2], len(p.w13)
    padded = -(-hidden // hidden_unit) * hidden_unit
    sizes: dict[str, Any] = {
        "num_experts": p.num_experts,
        "num_local_experts": local,
        "hidden_size": padded,
        "intermediate_size_per_partition": inner,
        "params_dtype": torch.bfloat16,
    }
    layer: Any = torch.nn.Module()
    for name, value in sizes.items():
        setattr(layer, name, value)
    layer.hidden_size_unpadded, layer.orig_dtype = hidden, torch.bfloat16
    layer.moe_ep_size, layer.moe_ep_rank = p.ep_size, p.ep_rank
    layer.moe_tp_size, layer.moe_tp_rank = p.moe_tp_size, p.moe_tp_rank
    layer.moe_runner_config = MoeRunnerConfig(
        **sizes,
        layer_id=0,
        top_k=p.topk_ids.shape[1],
        inplace=False,
        routed_scaling_factor=p.routed_scaling_factor,
        gate_up_interleaved=interleaved,
        layer=layer,
        **activation(p),
    )
    method = Mxfp4MoEMethod(prefix="experts")
    with torch.device(p.hidden_states.device):
        method.create_weights(
            layer=layer,
            num_experts=local,
            hidden_size=padded,
            intermediate_size_per_partition=inner,
            params_dtype=torch.bfloat16,
            with_bias=p.w13_bias is not None,
        )
    load(layer, p)
    method.create_moe_runner(layer, layer.moe_runner_config)
    method.process_weights_after_loading(layer)
    output: torch.Tensor = method.apply(layer, dispatched(layer, p)).hidden_states
    return output[:, :hidden].contiguous()


def activation(p: SimpleNamespace) -> dict[str, Any]:
    value = {name: float(vector[0]) for name, vector in p.parameters.items()}
    if p.activation == "situ":
        return {"activation": "situ", "gemm1_alpha": value["beta"], "gemm1_clamp_limit": value["linear_beta"]}
    if p.activation == "swiglu_oai":
        return {"activation": "silu", "gemm1_alpha": value["alpha"], "gemm1_clamp_limit": value["limit"]}
    return {"activation": "silu"}


def load(layer: Any, p: SimpleNamespace) -> None:
    """The checkpoint's tensors, as the loader leaves them: each half of w13 at the start of its own."""
    pairs = [(layer.w13_weight, p.w13), (layer.w13_weight_scale, p.w13_scale)]
    if p.w13_bias is not None:
        pairs.append((layer.w13_weight_bias, p.w13_bias))
    for parameter, source in pairs:
        half, rows = parameter.shape[1] // 2, source.shape[1] // 2
        for into, start in ((0, 0), (half, rows)):
            place = parameter.data[:, into : into + rows]
            (place if source.ndim == 2 else place[:, :, : source.shape[2]]).copy_(source[:, start : start + rows])
    for parameter, source in ((layer.w2_weight, p.w2), (layer.w2_weight_scale, p.w2_scale)):
        parameter.data[:, : source.shape[1], : source.shape[2]] = source
    if p.w2_bias is not None and p.moe_tp_rank == 0:
        layer.w2_weight_bias.data[:, : p.w2_bias.shape[1]] = p.w2_bias


def dispatched(layer: Any, p: SimpleNamespace) -> Any:
    """What the dispatcher hands to the layer: ids stay global for FlashInfer, and become the rank's own for Marlin."""
    from sglang.srt.layers.moe.token_dispatcher import standard
    from sglang.srt.layers.moe.utils import get_moe_runner_backend

    ids, mapping, device = p.topk_ids.clone(), None, p.topk_ids.device
    if p.ep_size > 1 and not standard._keeps_global_expert_ids(get_moe_runner_backend()):
        mapping = torch.full((p.num_experts,), -1, dtype=torch.int32, device=device)
        mine = torch.arange(len(p.w13), dtype=torch.int32, device=device)
        mapping[p.first_expert : p.first_expert + len(p.w13)] = mine
        ids = standard._map_topk_ids_to_local_experts(ids, mapping)
    vars(layer)["dispatcher"] = SimpleNamespace(local_expert_mapping=mapping, num_experts=p.num_experts)
    logits = torch.zeros(len(ids), p.num_experts, device=device)
    return StandardDispatchOutput(
        hidden_states=p.hidden_states.clone(),
        hidden_states_scale=None,
        topk_output=StandardTopKOutput(p.topk_weights.clone(), ids, logits),
    )


@contextlib.contextmanager
def served(backend: str, **facts: bool) -> Iterator[None]:
    """What a server started with `--moe-runner-backend BACKEND` publishes, as far as these layers ask.

    facts: of the platform, in the place of the machine's own.
    """
    whole = runtime_context.get_context()
    before = whole._config_bags
    whole._config_bags = {
        "exec": SimpleNamespace(
            moe=SimpleNamespace(flashinfer_mxfp4_moe_precision="default"), comm=SimpleNamespace(enable_symm_mem=False)
        ),
        "disagg": SimpleNamespace(disaggregation_mode="decode"),
    }
    flags = runtime_context.get_flags().moe.override(runner_backend=MoeRunnerBackend(backend))
    parallel = runtime_context.get_parallel().override(tp_group=SimpleNamespace(world_size=1))
    try:
        with flags, parallel, runtime_context.override_platform(**facts), torch.no_grad():
            yield
    finally:
        whole._config_bags = before


# --- the kernel ------------------------------------------------------------------------------------------------------


def halves(p: SimpleNamespace) -> torch.Tensor:
    """w13 in the checkpoint as all of gate, then all of up, and gate_up_interleaved=False, as Kimi-K3."""
    with on_sm120(p):
        return run(p, 256)


def interleaved(p: SimpleNamespace) -> torch.Tensor:
    """w13 in the checkpoint as gate 0, up 0, gate 1, up 1, ..., and gate_up_interleaved=True, as GPT-OSS."""
    names = [name for name in ("w13", "w13_scale", "w13_bias") if getattr(p, name) is not None]
    in_turn = {name: torch.stack(getattr(p, name).chunk(2, 1), 2).flatten(1, 2) for name in names}
    with on_sm120(p):
        return run(SimpleNamespace(**vars(p) | in_turn), 256, interleaved=True)


@contextlib.contextmanager
def on_sm120(p: SimpleNamespace) -> Iterator[None]:
    """SGLang believes that it is on SM120 and that FlashInfer is installed. p: the layer as it is meant, [gate; up]."""
    contents: dict[str, dict[str, Any]] = {
        "flashinfer": {"block_scale_interleave": tiled, "mxfp8_quantize": mxfp8_quantize},
        "flashinfer.fused_moe": {"cutlass_fused_moe": kernel_of(p)},
        "flashinfer.fused_moe.core": {"ActivationType": ActivationType},
    }
    before = {name: sys.modules.get(name) for name in contents}
    for name, content in contents.items():
        made = ModuleType(name)
        vars(made).update(content, __path__=[])
        sys.modules[name] = made
    available = mock.patch.object(flashinfer_cutlass, "is_flashinfer_available", return_value=True)
    try:
        with available, served("flashinfer_mxfp4", is_sm90=False, is_sm100=False, is_sm120=True):
            yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


# In the place of FlashInfer.


class ActivationType(enum.IntEnum):
    Swiglu = 3
    SwigluBias = 5
    SwigluStep = 7
    Situ = 10


AS_THE_KERNEL = {
    "input": "none",
    "intermediate_quantizer": "mxfp8",
    "weights": "none",
    "gemm1": "output",
    "bias": "after",
    "biased": "float32",
    "intermediate": "output",
    "gemm2": "output",
    "router_weight": "float32",
    "weighted": "float32",
}
"""Where the kernel rounds; x is quantised when it gets it."""


def tiled(scale: torch.Tensor) -> torch.Tensor:
    """Scales [..., N, G] -> flat, matrix by matrix in tiles of 128 rows by 4 groups. A tile is 32 lines of the rows r,
    r + 32, r + 64 and r + 96."""
    padded = torch.nn.functional.pad(scale, (0, -scale.shape[-1] % 4, 0, -scale.shape[-2] % 128))
    return padded.view(-1, padded.shape[-2] // 128, 4, 32, padded.shape[-1] // 4, 4).permute(0, 1, 4, 3, 2, 5).flatten()


def untiled(flat: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    """Inverse of `tiled`: [E, rows, groups]."""
    down, across = -(-rows // 128), -(-groups // 4)
    tiles = flat.contiguous().view(torch.uint8).view(-1, down, across, 32, 4, 4).permute(0, 1, 4, 3, 2, 5)
    return tiles.reshape(-1, 128 * down, 4 * across)[:, :rows, :groups]


def mxfp8_quantize(
    x: torch.Tensor, is_sf_swizzled_layout: bool = True, alignment: int = 32
) -> tuple[torch.Tensor, torch.Tensor]:
    assert is_sf_swizzled_layout
    codes, byte = mxfp8_codes(torch.nn.functional.pad(x, (0, -x.shape[-1] % alignment)))
    return codes.flatten(-2).to(torch.float8_e4m3fn), tiled(byte)


def kernel_of(p: SimpleNamespace) -> Callable[..., None]:
    def cutlass_fused_moe(**call: Any) -> None:
        q = handed(call)
        tell_rows(p, q)
        tell_activation(p, q, call)
        call["output"].copy_(expected(q, AS_THE_KERNEL))

    return cutlass_fused_moe


def handed(call: dict[str, Any]) -> SimpleNamespace:
    """The layer that the kernel is handed, w13 as [gate; up] again."""

    def gate_up(rows: torch.Tensor) -> torch.Tensor:
        """The kernel takes [up; gate]."""
        return torch.cat(tuple(reversed(rows.chunk(2, 1))), 1)

    assert call["use_mxfp8_act_scaling"]
    w13, w2 = (call[name].view(torch.uint8) for name in ("fc1_expert_weights", "fc2_expert_weights"))
    (experts, hidden, half), tokens = w2.shape, len(call["input"])
    fc1, _, fc2, _ = call["quant_scales"]  # the others, global ones, are not read
    x_scale = untiled(call["input_sf"], tokens, hidden // 32)[0]
    factor = torch.where(x_scale == 255, torch.nan, torch.exp2(x_scale.double() - 127))
    kind, parameters = computed(call, experts)
    w13_bias, w2_bias = call["fc1_expert_biases"], call["fc2_expert_biases"]
    return SimpleNamespace(
        hidden_states=call["input"].double() * factor.repeat_interleave(32, 1),
        topk_ids=call["token_selected_experts"],
        topk_weights=call["token_final_scales"],
        routed_scaling_factor=1.0,
        first_expert=call["ep_rank"] * experts,
        w13=gate_up(w13),
        w13_scale=gate_up(untiled(fc1, w13.shape[1], hidden // 32)),
        w13_bias=None if w13_bias is None else gate_up(w13_bias),
        w2=w2,
        w2_scale=untiled(fc2, hidden, half // 16),
        w2_bias=w2_bias if call["tp_rank"] == 0 else None,
        activation=kind,
        parameters=parameters,
        output_dtype=call["output_dtype"],
    )


def computed(call: dict[str, Any], experts: int) -> tuple[str, dict[str, torch.Tensor]]:
    """The activation. Any of SwiGLU's parameters makes SwigluBias of Swiglu, in FlashInfer's binding."""
    kind, prefix, defaults = {
        "Swiglu": ("swiglu_oai", "swiglu_", {"alpha": 1.0, "beta": 0.0, "limit": torch.inf}),
        "SwigluBias": ("swiglu_oai", "swiglu_", {"alpha": 1.0, "beta": 0.0, "limit": torch.inf}),
        "Situ": ("situ", "situ_", {"beta": 4.0, "linear_beta": 25.0}),
    }[call["activation_type"].name]
    given = {name: call.get(prefix + name) for name in defaults}
    if call["activation_type"].name == "Swiglu" and all(vector is None for vector in given.values()):
        return "swiglu", {}
    full = {name: torch.full((experts,), value) for name, value in defaults.items()}
    return kind, full | {name: vector for name, vector in given.items() if vector is not None}


def tell_rows(p: SimpleNamespace, q: SimpleNamespace) -> None:
    """Which rows of the checkpoint the first expert's w13 has, where they are others than it should have."""
    inner, width = p.w13.shape[1] // 2, p.w13.shape[2]
    meant = p.w13[0]
    got = torch.cat([half[:inner, :width] for half in q.w13[0].chunk(2)])
    names = [f"{half} {row}" for half in ("gate", "up") for row in range(inner)]
    wrong = (got != meant).any(1).nonzero().flatten().tolist()
    for row in wrong[:: max(1, len(wrong) // 4)][:4]:
        found = (meant == got[row]).all(1).nonzero().flatten().tolist()
        print(f"w13 of expert 0: for {names[row]} the kernel gets {names[found[0]] if found else 'no row there is'}")
    print(f"w13 of expert 0: {len(wrong)} of {2 * inner} rows are not the checkpoint's")


def tell_activation(p: SimpleNamespace, q: SimpleNamespace, call: dict[str, Any]) -> None:
    """What the model asks for and what the kernel is asked for, of the first expert."""
    asked, got = (
        ", ".join([one.activation, *(f"{name} {float(vector[0]):.6g}" for name, vector in one.parameters.items())])
        for one in (p, q)
    )
    print(f"the model asks for {asked}; ActivationType.{call['activation_type'].name} with what is passed is {got}")


# --- what a right answer keeps ---------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """Of an answer `got` [M, N]: where it is `wrong`, what it should be (`want`), and in which interval."""

    what: str
    got: torch.Tensor
    want: torch.Tensor
    wrong: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def inside(what: str, got: torch.Tensor, want: torch.Tensor, bounds: dict[str, torch.Tensor]) -> Claim:
    """Each value is one that a right kernel may give."""
    value, low, high, kinds = got.double(), bounds["low"], bounds["high"], bounds["kinds"]
    kind = torch.where(value.isfinite(), 1, torch.where(value.isnan(), 8, torch.where(value > 0, 2, 4)))
    within = value.isfinite() & (value >= low) & (value <= high)
    hidden = (kinds & 1 == 0) & (kinds & kind == 0) & (value.isfinite() | (kinds & (kinds - 1) == 0))
    return Claim(what, got, want, torch.where(kinds == 1, ~within, hidden), low, high)


def reference(given: SimpleNamespace) -> Iterator[Claim]:
    """The answer is what the definition of the layer says, up to the roundings of the kernel."""
    yield inside("the answer", given.kernel(given.questions[0]), given.want[0], given.bounds[0])


# --- asking ----------------------------------------------------------------------------------------------------------


class NoAnswer(Exception):
    """The kernel raised, or returned what is no answer. reported: as the report says."""

    def __init__(self, text: str, reported: bool) -> None:
        super().__init__(text)
        self.reported = reported


def unpacked(data: dict) -> dict:
    """Tensors from (dtype, shape, zlib-compressed bytes in base 85)."""
    out = {}
    for name, (dtype, shape, text) in data.items():
        content = zlib.decompress(base64.b85decode("".join(text.split())))
        raw = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        out[name] = raw.view(getattr(torch, dtype)).view(shape)
    return out


def questions_on(device: str) -> list[SimpleNamespace]:
    """The first question, and the others, which differ from it in some tensors and values."""
    first: dict = {}
    found = []
    for values, data in QUESTIONS:
        first = first or dict(values)
        tensors = {name: tensor.to(device) for name, tensor in unpacked(data).items()}
        if not found:
            first.update(tensors)
        fields = {**first, **values, **tensors}
        p = SimpleNamespace(**{name: value for name, value in fields.items() if "." not in name})
        p.parameters = {name.partition(".")[2]: value for name, value in fields.items() if "." in name}
        p.output_dtype = torch.bfloat16
        found.append(p)
    return found


def asked(function: Any, *arguments: Any) -> Any:
    try:
        answer = function(*arguments)
        return answer
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
        raise NoAnswer(f"REJECTED: {text}", False) from error


def formed(answer: Any, p: SimpleNamespace) -> Any:
    """The answer on the CPU."""
    parts = answer if isinstance(answer, tuple) else (answer,)
    for part, (shape, dtype) in zip(parts, [(p.hidden_states.shape, p.output_dtype)]):
        if tuple(part.shape) != tuple(shape) or part.dtype != dtype:
            raise NoAnswer(f"MALFORMED: {tuple(part.shape)} {part.dtype}, must be {tuple(shape)} {dtype}", True)
    parts = tuple(part.cpu() for part in parts)
    return parts if isinstance(answer, tuple) else parts[0]


def answered(function: Any, p: SimpleNamespace) -> Any:
    return formed(asked(function, p), p)


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of no known version"


def told(claim: Claim) -> int:
    """How much of an answer is wrong, the first elements in full."""
    for row, column in claim.wrong.nonzero()[:8].tolist():
        got, low, high = (float(part[row, column]) for part in (claim.got, claim.low, claim.high))
        want = float(claim.want[row, column])
        right = "NaN or infinity" if low != low else f"exactly {low:.9g}" if low == high else f"[{low:.9g}, {high:.9g}]"
        plain = "" if want in (low, high) or want != want else f"; plain: {want:.9g}"
        print(f"{claim.what}, row {row} column {column}: got {got:.9g}, expected {right}{plain}")
    return int(claim.wrong.sum())


def main() -> int:
    print("python", sys.version.split()[0], "torch", torch.__version__, "sglang", version("sglang"))
    questions = questions_on("cpu")
    given = SimpleNamespace(
        kernel=lambda p: answered(halves, p),
        want=[expected(p, ROUNDING) for p in questions],
        bounds=[unpacked(entry) for entry in BOUNDS],
    )
    given.questions = questions_on(DEVICE)
    wrong = claims = 0
    try:
        for claim in reference(given):
            claims += 1
            count = told(claim)
            if count or claims == 1:
                rows = int(claim.wrong.any(1).sum())
                print(f"{claim.what}: {count} of {claim.wrong.numel()} values are wrong, in {rows} of {len(claim.wrong)} rows")
            wrong += count
    except NoAnswer as error:
        print(error)
        return 1 if error.reported else 2
    return int(wrong > 0)


# --- the inputs ------------------------------------------------------------------------------------------------------

QUESTIONS = [
    (
        {'w13_bias': None, 'w2_bias': None, 'activation': 'swiglu_oai', 'first_expert': 0, 'num_experts': 1, 'ep_size': 1, 'ep_rank': 0, 'moe_tp_size': 1, 'moe_tp_rank': 0, 'routed_scaling_factor': 1.0, 'poison': 0, 'pdl': None, 'fused_finalize': None, 'tactic': None},
        {
            "hidden_states": (
                "bfloat16",
                [1, 32],
                """
c-jF#0KfkrzCgavz3@H|z_7o-y^y|OKVZKwzfiwWJ^()uKLEd=zA!xyKXAZczOcW*J`h0AKd?WLzYx8EJ+MEpK5#$vKOMm
""",
            ),
            "hidden_q": (
                "float8_e4m3fn",
                [1, 32],
                """
c-jFV0N?-8)XiV<>&)3^=Hum6U}50eLt*#U>s)bdYw5vAYg=b-6BJk
""",
            ),
            "hidden_scale": (
                "uint8",
                [1, 1],
                """
c-pH3004RbdH
""",
            ),
            "topk_ids": (
                "int32",
                [1, 1],
                """
c-muNU|;|M00aO5
""",
            ),
            "topk_weights": (
                "float32",
                [1, 1],
                """
c-muNXs`zW0Yd=5
""",
            ),
            "w13": (
                "uint8",
                [1, 64, 16],
                """
c-jE~1poV-qU+;eF-KU7;}i2aDSsse7gVWvdsNv+4P5}NlR|5w7A#II{xtklv&jdH`<zwJ#q_Fe`{V!$vQ9-(Ld3W5#!nv7`^wKq
-pM!F&c0k~YG^}W`AW%-GpYBVU-|3G%Np)~TI<kktUP>@x%A)GiN+u1a`-|_Y6Mk#T&r%EzW+_?NLZAEe~a?vPrZ2`hY5`5*!;J|
f`57<37Ezlk->*#Pt4d^(?H%v|7$CzQCLYW<+=M|0}oLCP|N1LoXv~3ueX4}C~O!^)mJe5^E@%)daF+-21%^qS1Jren>e6!9$r@-
;s<A2n?~szsZVjObj(ko+<PjM|K>CHvN;P(fyFY~rM1DTU#4%*!W=R6PNVm7>v+i9r9+JJXsAxV;J_yNe)u8K2*M8_QJeJbu`s4R
(bYaH@!ci%qmNO()4|6Gihq$uO2D4I!I_HYhr8Bo{OM|<XC9zK`x)ApKl#PyD)aJNZ{85}@!{(l>p4^qqYkGmPHd4<$hJxmzXx**
B`Y4h_|I-SuQ5dV;2NhAvpD#+2+AOaVm-)Ess1X=3V*T@QLlsu*LA<)_D*cSBax2cATuWwUBk+Jee+zE!}a&y?o>fK2XxRbWP_GL
gjbl047ZAI#uz^OCoP**VVJj8NDg~?L9lY&_PH+&8)0GnNhAMqZn2(D<v%#(9DtM;OjX;4=g;*zZVZf(<n4yKm26xx0a$na-r@ma
LtE?0Tdbkiylicl;?+q>xC^4u&iy9vN`@GcexclQJ;uMItC`o6a`@xs!Uy&?xtI!Phc_lScjNWKf4<C<GQ!QR+K8QUvFU&UsWqYk
uLoqjZ1qX1_1E+ln8XX|4rXl7I?WPF=!ph*guy0g)@epghy#5t_0uJmAbbwBsB*jNR(my}zJ<VQ?+y1YWz+%kJh$~&J_Fbj6hUai
#97e~NB$X`dn>TT-5;J8a`35JS#4X;n{!qU<sE|}7#!KB)8-E_cEC@;jNscE?(lJFNA++C;?SUO&y<5ZQUc41(xMZcJni@Am9g_*
8LSp>F{G4&)r8o1R1%k~x60_k|5i&g(&}11ETSw)nd>eeKQ>^9MxKlSA;=oh@(Y6pzoz2PEsR^oOX=;N-tzpBu!vYo7$jX#q^AD^
@q2uX<Qe`nu-DzMij1I}+Zbr)s3Td6EfQUOUCmKOC?ayPOLCHwJ;*kf&{<PCy$B=Suz+%A(K0)55|>DPGH6*C2T4fK{+qT&zvZ1M
3Ku-JgE=Aat*#hZIyIfaeT9MCOp|dLKt;eX)|C!%2JmHjU9x^wOb(xdl-WEhfD+bdd-D@8!EWr=mEQX>{=z`>sQE}wC=g}
""",
            ),
            "w13_scale": (
                "uint8",
                [1, 64, 1],
                """
c-j?;u?+wK41&HE_4-y9BB5-pk%<t-NtD6uqpy`uNGLn3Tz1Y49rF
""",
            ),
            "w2": (
                "uint8",
                [1, 32, 16],
                """
c-jE~0{{J#R``#+Y*k2bz$Pc<sy-isTd40VGqV`2o5)bOwY^5t!Epco;lZ`S1`8-2fO&2*yAM^Lbti7@r2x*b*Z(LAUVy;siW8?!
_wqsBQtK!x3y;O*j<){mk*6L=U!>m^&5UJRLtt|<E?v424tgy8H>&8yNOvLbJkKm_TV8~D!KvV2xWb@8>#Oo<H+tn+gF+a<<dCJ+
d!qDxRM;|>)&G1DcSFy|SA7(GDT+9);;P20vtD_9$|bl)U_yJWkP~M%Nh*m|@_=+YFCo_nin@W0a3xDP<Ga!JAFx*JLeb&t!43ZK
c3!H!c!KYP1p#t*wz-h;L)YGrjAa$241z<z=V|@i$ELTa5n?1`2jLMhn{cc3-R4$uN`27)fmfM7CcWA!LZV-+Xydl@$azOgT`0R-
dHCdAFNq9q$w85v()+(L*dGq7<1`W+=&B$5q@*9-5h<*5H9Lu!FV>Cu`iSK`hCe3}@B;F?+DqhKC~+;YM!nWVR#phkQc?lXqW}Hc
ohW4~7S026Q9;>w@WSpT<plqC_F&)D==U>Tal?KEacjueRbLa*1||Bc%rzzniv?fo#v5LE4XR$$ErwV8ceBss_QTkfPb^irFkh(w
!uoiaZW{HeiI+JTzn<B}V<VcSX8pgE3#Z2l?19;ZkVo3~7WV2{G6{?
""",
            ),
            "w2_scale": (
                "uint8",
                [1, 32, 1],
                """
c-jrdu?+wK48pLlL*V*$v8)nP$TDm{{_1!S_Wut2
""",
            ),
            "parameters.alpha": (
                "float32",
                [1],
                """
c-m9GebXKQ1rh=m
""",
            ),
            "parameters.beta": (
                "float32",
                [1],
                """
c-muNXs`zW0Yd=5
""",
            ),
            "parameters.limit": (
                "float32",
                [1],
                """
c-muNc;Em40t5je
""",
            ),
        },
    ),
]
BOUNDS = [
    {
        "low": (
            "float64",
            [1, 32],
            """
c-muN00M_8_8^Kup$|ekB<}~)3tS+4hIS}F2TG?x)h&nc4-`OXg>(p=&<l}o*aa0Ygwk6ev_k+?z8h-Zbf`H~q589+=C?uk4|YT4
>!I=`Q2B#U{f<z&0V4ijCe%NhAasH&RNoX-^B1hN2LR5zFNy
""",
        ),
        "high": (
            "float64",
            [1, 32],
            """
c-muN00M_8_8^Kup$|ekB<}~)3tS+4hIS}F2TG?x)h&nc4-`OXg>(p=&<l}o*aa0Ygwk6ev_k+?z8h-Zbf`H~q589+=C?uk4|YT4
>!I=`Q2B#U{f<z&0V4ijCe%NhAasH&RNoX-^B1hN2LR5zFNy
""",
        ),
        "kinds": (
            "uint8",
            [1, 32],
            """
c-muR#18-hFaRL
""",
        ),
    },
]

if __name__ == "__main__":
    sys.exit(main())
