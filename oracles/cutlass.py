"""FlashInfer's `cutlass_fused_moe` with bfloat16 activations and MXFP4 weights on SM90 (`use_w4_group_scaling`).

flashinfer-python 0.6.18 and later. The adapter around it: [gate; up] becomes [up; gate], weights and scales go through
the package's own interleave helpers (`oracles.cutlass_layouts` says what they must do), ids stay global, and output and
workspace are the caller's, filled with the scenario's poison byte before each call.

What is known to go wrong is promised all the same, and so is a finding: an expert twice in a row, M = 0, and the scale
bytes 0x00 (read as 0) and 0xFF (read as infinity).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oracles import flashinfer_package as package
from oracles.cutlass_layouts import swap_halves
from oracles.numerics import Accumulator, Numerics, TensorCore, Transcendental
from oracles.problem import ActivationParams, Problem
from strategies.capability import Capability
from strategies.scenario import Scenario

# bfloat16 times E2M1 is exact. The scale of a group of 32 is applied to its sum, by a fused multiply-add to nearest.
_GEMM = Accumulator(group=32, inside=TensorCore(), flush_to_zero=True)

NUMERICS = Numerics(
    weights="exact",
    gemm1=_GEMM,
    bias_before_rounding=False,
    # Built with -use_fast_math: ex2.approx, rcp.approx, subnormals flushed. Clamps are fminf and fmaxf.
    activation=Transcendental(
        exp="fast", divide="fast", reciprocal_ulps=1.0, tanh="two_sigmoid", clamp_nan="limit", flush_to_zero=True
    ),
    gemm2=_GEMM,
)
"""GEMM1 -> bfloat16 (+ bias in float32) -> activation in float32 -> bfloat16 -> GEMM2 -> bfloat16 (+ bias) -> sum over
the slots in float32."""


class Adapter:
    """What the eager and the graph oracle share: how a problem becomes the arguments of one call.

    tactics: whether scenarios may choose among the GEMM tactics that the package says fit their shape; else only its
    default runs. The package lists SiTU in its `ActivationType` from 0.6.18 on, and so it is promised: stock 0.6.18
    takes it for an activation that is not gated, and refuses weights of 2I rows.
    """

    name: str
    numerics = NUMERICS
    packages = ("flashinfer-python",)
    runs_on = "cuda"
    _mode: str

    def __init__(self, *, tactics: bool = False) -> None:
        self.capability = Capability(
            hidden_multiple=128,
            intermediate_multiple=128,
            modes=frozenset({self._mode}),
            stray_ids=True,
            tactics=package.Tactics.load().count if tactics and self.missing() is None else 0,
            pdl=True,
            fused_finalize=True,
        )

    def missing(self) -> str | None:
        """What the machine lacks, with the command that brings it."""
        return package.missing()

    def unsupported(self, scenario: Scenario) -> str | None:
        """What is outside `capability`, in a few words; None otherwise."""
        return self.capability.objection(scenario)

    def prepare_call(self, problem: Problem) -> Prepared:
        """Convert the weights and collect the arguments, on the problem's CUDA device or else the current one."""
        device = package.device_for(problem.hidden_states)
        with package.current(device):
            return Prepared(problem, self.arguments(problem, device))

    def arguments(self, problem: Problem, device: torch.device) -> dict[str, Any]:
        """Keywords of `cutlass_fused_moe`, but for output and workspace."""
        fused_moe = package.module("fused_moe")

        def there(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device).contiguous()

        def weight(packed: torch.Tensor) -> torch.Tensor:
            interleaved: torch.Tensor = fused_moe.interleave_moe_weights_for_sm90_mixed_gemm(packed, "fp4")
            return interleaved

        def scale(scales: torch.Tensor) -> torch.Tensor:
            folded: torch.Tensor = fused_moe.interleave_moe_scales_for_sm90_mixed_gemm(scales)
            return folded.view(torch.int32)

        layer, execution = problem.scenario.layer, problem.scenario.execution
        arguments: dict[str, Any] = {
            # The graph oracle writes to these three between replays, and a problem is never modified.
            "input": problem.hidden_states.to(device, copy=True).contiguous(),
            "token_selected_experts": problem.topk_ids.to(device, copy=True).contiguous(),
            "token_final_scales": there(problem.router_weights),
            "fc1_expert_weights": weight(swap_halves(there(problem.w13))),
            "fc2_expert_weights": weight(there(problem.w2)),
            "output_dtype": problem.output_dtype,
            "quant_scales": [scale(swap_halves(there(problem.w13_scale))), scale(there(problem.w2_scale))],
            "tp_size": layer.moe_tp_size,
            "tp_rank": layer.moe_tp_rank,
            "ep_size": problem.ep_size,
            "ep_rank": problem.ep_rank,
            "use_w4_group_scaling": True,
            "enable_pdl": execution.pdl,  # None: on
            "use_fused_finalize": execution.fused_finalize is not False,  # without effect on this path
        }
        if execution.tactic is not None:
            chosen = package.Tactics.load().choose(execution.tactic, problem.hidden, problem.intermediate)
            arguments["profile_ids"] = chosen
        if problem.w13_bias is not None:
            # Both or neither. The second GEMM's belongs to moe_tp_rank 0, and the kernel knows the rank.
            w2_bias = problem.w2_bias
            if w2_bias is None:
                w2_bias = problem.w13_bias.new_zeros(problem.experts_local, problem.hidden)
            arguments["fc1_expert_biases"] = there(swap_halves(problem.w13_bias).to(problem.output_dtype))
            arguments["fc2_expert_biases"] = there(w2_bias.to(problem.output_dtype))
        return arguments | self._activation(problem.activation, there)

    def _activation(self, params: ActivationParams, there: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        kinds = package.module("fused_moe").ActivationType
        match params.kind:
            case "swiglu":
                return {"activation_type": kinds.Swiglu}
            case "swiglu_oai":
                found = {"swiglu_alpha": params.alpha, "swiglu_beta": params.beta, "swiglu_limit": params.limit}
                kind = kinds.SwigluBias
            case "situ":
                found = {"situ_beta": params.beta, "situ_linear_beta": params.linear_beta}
                if not package.has_situ_parameters():
                    found = {}
                kind = kinds.Situ
            case _:
                raise ValueError(f"activation {params.kind!r}: must be one of swiglu, swiglu_oai, situ")
        vectors = {name: there(vector) for name, vector in found.items() if vector is not None}
        return {"activation_type": kind} | vectors


class Cutlass(Adapter):
    """Oracle "cutlass": one eager call. Its arguments are those of `Adapter`."""

    name = "cutlass"
    reproduction = "reproductions/cutlass.py:eager"
    _mode = "eager"

    def prepare(self, problem: Problem) -> Prepared:
        return self.prepare_call(problem)

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        prepared.poison()
        prepared.launch(prepared.output)
        return prepared.output.to(prepared.problem.hidden_states.device, copy=True)

    def run_into(self, prepared: Prepared, output: torch.Tensor) -> None:
        """As a call, with the result in the caller's contiguous `output` [M, H], which is not poisoned first."""
        prepared.poison()
        if output.device == prepared.output.device:
            prepared.launch(output)
        else:
            prepared.launch(prepared.output)
            output.copy_(prepared.output)


class Prepared:
    """A problem's arguments, its output [M, H] on the device, and the workspace.

    arguments: keywords of `cutlass_fused_moe`, but for output and workspace.
    """

    def __init__(self, problem: Problem, arguments: dict[str, Any]) -> None:
        self.problem = problem
        self.arguments = arguments
        states = arguments["input"]
        self.output = torch.empty(states.shape, dtype=problem.output_dtype, device=states.device)
        self._workspace = torch.empty(_workspace_bytes(problem, arguments), dtype=torch.uint8, device=states.device)

    def poison(self) -> None:
        """Fill output and workspace with the scenario's poison byte."""
        byte = self.problem.scenario.execution.poison
        self.output.view(torch.uint8).fill_(byte)
        self._workspace.fill_(byte)

    def launch(self, output: torch.Tensor) -> None:
        """Compute into `output`, on the current stream."""
        call = package.module("fused_moe").cutlass_fused_moe
        call(**self.arguments, output=output, workspace_buffer=self._workspace)


_WORKSPACE_KEYWORDS = (
    "output_dtype",
    "activation_type",
    "tp_size",
    "tp_rank",
    "ep_size",
    "ep_rank",
    "use_w4_group_scaling",
    "use_fused_finalize",
)


def _workspace_bytes(problem: Problem, arguments: dict[str, Any]) -> int:
    """What the package asks for. It has no answer for M = 0, where the call itself is to give one."""
    size: int = package.module("fused_moe").cutlass_fused_moe_workspace_size(
        max(1, problem.tokens),
        problem.hidden,
        problem.intermediate,
        problem.num_experts,
        problem.topk_ids.shape[1],
        x_dtype=torch.bfloat16,
        weight_dtype=torch.uint8,
        device=arguments["input"].device,
        **{name: arguments[name] for name in _WORKSPACE_KEYWORDS},
    )
    return size
