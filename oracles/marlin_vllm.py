"""Marlin's MXFP4 MoE as vLLM has it: its weight preparation, and `fused_marlin_moe` with the activation's parameters.

Ids stay global, with a map of the rank's experts where there is expert parallelism. A masked slot needs a map too: the
package leaves it out of both GEMMs, and without a map its sum over the slots takes what is in that row all the same. I
is padded with zeros to a multiple of 64, as the package does for a layer. Which rows make a thread block is vLLM's
choice. An empty batch is not promised: the package's own layer answers it without a call. A limit of SwiGLU-OAI is
taken for a bfloat16, as those of models are: a clamped gate is rounded to one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
from typing import Any

import torch

from oracles import machine
from oracles import marlin_layouts as layouts
from oracles.problem import ActivationParams, Problem

INSTALL = "pip install vllm"
_LAYERS = "vllm.model_executor.layers"
_PLACES = (f"{_LAYERS}.fused_moe.experts.marlin_moe", f"{_LAYERS}.fused_moe.fused_marlin_moe")
"""Where `fused_marlin_moe` is, the newer first."""


def installed() -> bool:
    """Whether there is a vllm, which is not imported for that."""
    return importlib.util.find_spec("vllm") is not None


def missing() -> str | None:
    """What the machine lacks to run the kernels, with the command that brings it; None when nothing does."""
    if not installed():
        return f"not installed: {INSTALL}"
    lacking = machine.missing_for_marlin()
    if lacking is not None:
        return lacking
    try:
        call = _fused_marlin_moe()
    except (ImportError, OSError, AttributeError) as error:
        return f"vllm cannot be imported ({error}): {INSTALL} --force-reinstall"
    if "activation_config" not in inspect.signature(call).parameters:
        return f"vllm's fused_marlin_moe takes no activation_config yet: {INSTALL} --upgrade"
    if not _has_kernels():
        return f"vllm's kernels cannot be loaded, by another torch or CUDA than its own: {INSTALL} --force-reinstall"
    return None


def _has_kernels() -> bool:
    """Whether its libraries are in the process: an import goes through without them."""
    return hasattr(torch.ops._moe_C, "moe_wna16_marlin_gemm") and hasattr(torch.ops._C, "gptq_marlin_repack")


def _fused_marlin_moe() -> Any:
    for place in _PLACES[:-1]:
        try:
            return importlib.import_module(place).fused_marlin_moe
        except ModuleNotFoundError:
            continue
    return importlib.import_module(_PLACES[-1]).fused_marlin_moe


def weights(operands: layouts.Operands) -> tuple[torch.Tensor | None, ...]:
    """w13, w2, their scales and their biases as the package prepares them: the layouts of `oracles.marlin_layouts`."""
    layer = torch.nn.Module()
    vars(layer)["params_dtype"] = torch.bfloat16
    prepare = importlib.import_module(f"{_LAYERS}.quantization.utils.marlin_utils_fp4")
    made: tuple[torch.Tensor | None, ...] = prepare.prepare_moe_mxfp4_layer_for_marlin(
        layer=layer,
        w13=operands.w13,
        w2=operands.w2.contiguous(),
        w13_scale=operands.w13_scale,
        w2_scale=operands.w2_scale.contiguous(),
        w13_bias=None if operands.w13_bias is None else operands.w13_bias.bfloat16(),
        w2_bias=None if operands.w2_bias is None else operands.w2_bias.bfloat16(),
    )
    return made


class Prepared:
    """A problem's operands on the device, its output [M, H], and the memory that a call works in."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.problem = problem

        def there(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device).contiguous()

        operands = layouts.Operands.of(problem, there)
        inner = operands.intermediate
        w13, w2, w13_scale, w2_scale, bias1, bias2 = weights(operands)
        scalars = importlib.import_module("vllm.scalar_type").scalar_types
        tokens, slots = problem.topk_ids.shape

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device=device)

        self.output = empty(tokens, problem.hidden)
        self._buffers = {
            "intermediate_cache13": empty(tokens * slots * max(2 * inner, problem.hidden)),
            "intermediate_cache2": empty(tokens * slots, inner),
        }
        self._arguments = {
            "hidden_states": there(problem.hidden_states),
            "w1": w13,
            "w2": w2,
            "bias1": bias1,
            "bias2": bias2,
            "w1_scale": w13_scale,
            "w2_scale": w2_scale,
            "topk_weights": there(problem.router_weights),
            "topk_ids": there(problem.topk_ids),
            "quant_type_id": scalars.float4_e2m1f.id,
            "global_num_experts": problem.num_experts,
            "expert_map": _expert_map(problem, device) if _needs_map(problem) else None,
            **_activation(problem.activation),
        }

    def poison(self) -> None:
        """Fill output and workspace with the scenario's poison byte."""
        byte = self.problem.scenario.execution.poison
        for buffer in (*self._buffers.values(), self.output):
            buffer.view(torch.uint8).fill_(byte)

    def launch(self, output: torch.Tensor) -> None:
        """The layer, on the current stream; the result in `output` [M, H]."""
        _fused_marlin_moe()(**self._arguments, **self._buffers, output=output)


def _needs_map(problem: Problem) -> bool:
    return problem.ep_size > 1 or bool((problem.topk_ids < 0).any())


def _expert_map(problem: Problem, device: torch.device) -> torch.Tensor:
    """int32 [E]: the rank's own number of each expert, -1 for those of other ranks."""
    mapping = torch.full((problem.num_experts,), -1, dtype=torch.int32, device=device)
    mine = torch.arange(problem.experts_local, dtype=torch.int32, device=device)
    mapping[problem.first_expert : problem.first_expert + problem.experts_local] = mine
    return mapping


def _activation(params: ActivationParams) -> dict[str, Any]:
    """The activation by vLLM's name, for rows [gate; up], and its parameters."""
    module = importlib.import_module(f"{_LAYERS}.fused_moe.activation")

    def first(vector: torch.Tensor | None) -> float:
        assert vector is not None  # the kind says which parameters there are
        return float(vector[0])

    match params.kind:
        case "swiglu":
            name, config = "SILU", {}
        case "swiglu_oai":
            name = "SWIGLUOAI_UNINTERLEAVE"
            config = {"alpha": first(params.alpha), "beta": first(params.beta), "clamp_limit": first(params.limit)}
        case "situ":
            name = "SITU"
            config = {
                "activation_situ_beta": first(params.beta),
                "activation_situ_linear_beta": first(params.linear_beta),
            }
        case kind:
            raise ValueError(f"activation {kind!r}: must be one of swiglu, swiglu_oai, situ")
    return {
        "activation": getattr(module.MoEActivation, name),
        "activation_config": module.ApplyMoEActivationConfig(**config),
    }
