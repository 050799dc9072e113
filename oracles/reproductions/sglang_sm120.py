"""SGLang's MXFP4 layer for SM120 on any machine: its weight processor and its runner, told that the platform is SM120.

What they call of FlashInfer is stood in for. The kernel answers by the definition of the layer, from the tensors and
arguments that SGLang hands to it, and prints what these are where a checkpoint or a model says something else.
"""

from __future__ import annotations

import contextlib
import enum
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt.layers.moe.moe_runner import flashinfer_cutlass

from oracles.reproductions.expected import expected, mxfp8_codes
from oracles.reproductions.sglang_path import run
from oracles.reproductions.sglang_serving import served


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
