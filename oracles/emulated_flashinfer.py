"""In the place of the package flashinfer, for a caller of its SM120 path: what it calls there, in plain torch.

The caller's own code decides what is called with which arguments, and `cutlass_fused_moe` answers from these alone:
weights, swizzled scales, ids, parameters and the type of activation, as the kernel reads them. The arithmetic is that
of `oracles.emulated_sm120`: an emulation, which proves nothing about the kernel. A keyword that it does not know is a
TypeError, as in a release that does not have it.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from oracles.emulated_sm120 import Call, EmulatedSm120, quantize, swizzle
from oracles.problem import ActivationParams

_UNIT = 128
"""Of what H and I have to be multiples, and the rows of a tile of swizzled scales."""
_ACCEPTED = (torch.float8_e4m3fn, torch.int64, torch.int32)


class ActivationType(enum.IntEnum):
    """Those of the package that this emulation can tell apart, by their numbers there."""

    Swiglu = 3
    SwigluBias = 5
    SwigluStep = 7
    Situ = 10


def block_scale_interleave(scale: torch.Tensor) -> torch.Tensor:
    """uint8 [N, G] or [E, N, G] -> a flat buffer, matrix by matrix in the 128x4 layout."""
    return torch.cat([swizzle(matrix) for matrix in scale.reshape(-1, *scale.shape[-2:])])


def mxfp8_quantize(
    input: torch.Tensor, is_sf_swizzled_layout: bool = True, alignment: int = 32
) -> tuple[torch.Tensor, torch.Tensor]:
    """bfloat16 or float16 [M, K] -> (float8_e4m3fn [M, K padded to `alignment`], its scales, flat)."""
    codes, scale = quantize(torch.nn.functional.pad(input, (0, -input.shape[-1] % alignment)))
    return codes, swizzle(scale) if is_sf_swizzled_layout else scale.flatten()


def cutlass_fused_moe(
    *,
    input: torch.Tensor,
    token_selected_experts: torch.Tensor,
    token_final_scales: torch.Tensor,
    fc1_expert_weights: torch.Tensor,
    fc2_expert_weights: torch.Tensor,
    output_dtype: torch.dtype,
    quant_scales: Sequence[torch.Tensor],
    input_sf: torch.Tensor,
    fc1_expert_biases: torch.Tensor | None = None,
    fc2_expert_biases: torch.Tensor | None = None,
    swiglu_alpha: torch.Tensor | None = None,
    swiglu_beta: torch.Tensor | None = None,
    swiglu_limit: torch.Tensor | None = None,
    situ_beta: torch.Tensor | None = None,
    situ_linear_beta: torch.Tensor | None = None,
    tp_size: int = 1,
    tp_rank: int = 0,
    ep_size: int = 1,
    ep_rank: int = 0,
    output: torch.Tensor | None = None,
    swizzled_input_sf: bool = True,
    use_w4_group_scaling: bool = False,
    use_mxfp8_act_scaling: bool = False,
    tune_max_num_tokens: int = 8192,
    enable_pdl: bool | None = None,
    use_fused_finalize: bool = True,
    activation_type: ActivationType = ActivationType.Swiglu,
) -> list[torch.Tensor]:
    """[the layer's output [M, H]], also in `output`. Raises ValueError for what the kernel refuses, and for what is not
    of the path that is emulated.

    The second GEMM's bias is that of tp_rank 0. The global scales in quant_scales[1] and [3] are not read, as there.
    """
    del tp_size, ep_size, tune_max_num_tokens, enable_pdl, use_fused_finalize  # they choose how, not what
    if use_w4_group_scaling or not use_mxfp8_act_scaling:
        raise ValueError("cutlass_fused_moe: only use_mxfp8_act_scaling is emulated, MXFP8 x MXFP4")
    dtypes = (input.dtype, fc1_expert_weights.dtype, quant_scales[0].dtype)
    if dtypes != _ACCEPTED:
        raise ValueError(f"cutlass_fused_moe: dtypes of input, weights and scales are {dtypes}, must be {_ACCEPTED}")
    w13, w2 = fc1_expert_weights.view(torch.uint8), fc2_expert_weights.view(torch.uint8)
    experts, hidden, inner = len(w2), w2.shape[1], 2 * w2.shape[2]
    if hidden % _UNIT or inner % _UNIT:
        raise ValueError(f"cutlass_fused_moe: H = {hidden}, I = {inner}: must be multiples of {_UNIT}")
    if w13.shape != (experts, 2 * inner, hidden // 2):
        raise ValueError(
            f"cutlass_fused_moe: fc1_expert_weights has {list(w13.shape)} bytes, must have "
            f"{[experts, 2 * inner, hidden // 2]} by those of fc2_expert_weights"
        )
    call = Call(
        x=input,
        input_sf=input_sf if swizzled_input_sf else swizzle(input_sf.view(len(input), -1)),
        token_selected_experts=token_selected_experts,
        token_final_scales=token_final_scales,
        w13=w13,
        w13_scale=_scales("quant_scales[0]", quant_scales[0], experts, 2 * inner, hidden),
        w2=w2,
        w2_scale=_scales("quant_scales[2]", quant_scales[2], experts, hidden, inner),
        activation=_activation(
            activation_type,
            experts,
            swiglu={"alpha": swiglu_alpha, "beta": swiglu_beta, "limit": swiglu_limit},
            situ={"beta": situ_beta, "linear_beta": situ_linear_beta},
        ),
        first_expert=ep_rank * experts,
        output_dtype=output_dtype,
        w13_bias=fc1_expert_biases,
        w2_bias=fc2_expert_biases if tp_rank == 0 else None,
    )
    answer = EmulatedSm120()(call)
    return [answer if output is None else output.copy_(answer)]


def _scales(name: str, scales: torch.Tensor, experts: int, rows: int, columns: int) -> torch.Tensor:
    """uint8 [E, 128x4 of [rows, columns / 32]], rows and columns being multiples of 128."""
    size = experts * rows * (columns // 32)
    if scales.nbytes != size:
        raise ValueError(f"cutlass_fused_moe: {name} has {scales.nbytes} bytes, must be {size}: a swizzled scale each")
    return scales.contiguous().view(torch.uint8).view(experts, -1)


def _activation(
    kind: ActivationType,
    experts: int,
    *,
    swiglu: dict[str, torch.Tensor | None],
    situ: dict[str, torch.Tensor | None],
) -> ActivationParams:
    """Any of SwiGLU's parameters makes it SwigluBias, as in the package's binding. The rest is at its default."""

    def filled(given: dict[str, torch.Tensor | None], **defaults: float) -> dict[str, Any]:
        return {
            name: torch.full((experts,), default) if given[name] is None else given[name]
            for name, default in defaults.items()
        }

    if kind == ActivationType.Swiglu and all(vector is None for vector in swiglu.values()):
        return ActivationParams(kind="swiglu")
    if kind in (ActivationType.Swiglu, ActivationType.SwigluBias):
        return ActivationParams(kind="swiglu_oai", **filled(swiglu, alpha=1.0, beta=0.0, limit=torch.inf))
    if kind == ActivationType.Situ:
        return ActivationParams(kind="situ", **filled(situ, beta=4.0, linear_beta=25.0))
    raise ValueError(f"cutlass_fused_moe: activation_type = {kind!r}: emulated are Swiglu, SwigluBias and Situ")


@contextmanager
def imported() -> Iterator[None]:
    """While it lasts, `import flashinfer` and its `fused_moe` bring what is here, whether the package is installed or
    not. Modules that have imported from it before keep what they have."""
    contents: dict[str, dict[str, Any]] = {
        "flashinfer": {"block_scale_interleave": block_scale_interleave, "mxfp8_quantize": mxfp8_quantize},
        "flashinfer.fused_moe": {"cutlass_fused_moe": cutlass_fused_moe, "ActivationType": ActivationType},
        "flashinfer.fused_moe.core": {"ActivationType": ActivationType},
    }
    before = {name: sys.modules.get(name) for name in contents}
    for name, content in contents.items():
        made = ModuleType(name)
        vars(made).update(content, __path__=[])
        sys.modules[name] = made
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
