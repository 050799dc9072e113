"""FlashInfer's `cutlass_fused_moe` with MXFP4 weights: bfloat16 activations on SM90, MXFP8 ones on SM120.

flashinfer-python 0.6.18 and later. The adapter around it: [gate; up] becomes [up; gate], weights, scales and x take the
form of the card's path (`oracles.cutlass_sm90`, `oracles.cutlass_sm120`), ids stay global, and output and workspace are
the caller's, filled with the scenario's poison byte before each call.

What is known to go wrong is promised all the same, and so is a finding: an expert twice in a row, M = 0, and the scale
bytes 0x00 (read as 0) and 0xFF (read as infinity).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oracles import busy, cutlass_sm90, cutlass_sm120
from oracles import flashinfer_package as package
from oracles.cutlass_layouts import swap_halves
from oracles.cutlass_path import Path
from oracles.problem import ActivationParams, Problem, on_gpu
from strategies.capability import Capability
from strategies.scenario import Scenario


def _path_here() -> Path:
    """The path of this machine's card; that of SM90 where there is none."""
    major, _ = package.compute_capability() or (9, 0)
    return cutlass_sm120.path(package.version() or package.OLDEST) if major == 12 else cutlass_sm90.PATH


def _activations_here() -> frozenset[str]:
    every = Capability().activations
    return every if (package.version() or package.LISTS_SITU) >= package.LISTS_SITU else every - {"situ"}


class Adapter:
    """What the eager and the graph oracle share: how a problem becomes the arguments of one call.

    tactics: whether scenarios may choose among the GEMM tactics that the package says fit their shape; else only its
    default runs. The package lists SiTU in its `ActivationType` from 0.6.18 on, and so it is promised: stock 0.6.18
    takes it for an activation that is not gated, and refuses weights of 2I rows.
    """

    name: str
    packages = ("flashinfer-python",)
    runs_on = "cuda"
    _mode: str

    def __init__(self, *, tactics: bool = False) -> None:
        self.path = _path_here()
        self.numerics = self.path.numerics
        self.capability = Capability(
            hidden_multiple=128,
            intermediate_multiple=128,
            precisions=frozenset({self.path.precision}),
            output_dtypes=self.path.output_dtypes,
            activations=_activations_here(),
            modes=frozenset({self._mode}),
            stray_ids=True,
            tactics=package.Tactics.number() if tactics and self.missing() is None else 0,
            pdl=True,
            fused_finalize=True,
            busy=True,
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
            there = problem if problem.hidden_states.device == device else on_gpu(problem, device)
            return Prepared(problem, self.path, self.arguments(there, own=there is not problem))

    def arguments(self, problem: Problem, *, own: bool = False) -> dict[str, Any]:
        """Keywords of `cutlass_fused_moe`, but for output and workspace. own: the problem is a copy to dispose of."""

        def there(tensor: torch.Tensor) -> torch.Tensor:
            # The graph oracle writes to some of these between replays, and a problem is never modified.
            return tensor.contiguous() if own else tensor.clone(memory_format=torch.contiguous_format)

        layer, execution = problem.scenario.layer, problem.scenario.execution
        arguments: dict[str, Any] = {
            **self.path.states(problem, there),
            **self.path.layer(problem, there),
            "token_selected_experts": there(problem.topk_ids),
            "token_final_scales": there(problem.router_weights),
            "output_dtype": problem.output_dtype,
            "tp_size": layer.moe_tp_size,
            "tp_rank": layer.moe_tp_rank,
            "ep_size": problem.ep_size,
            "ep_rank": problem.ep_rank,
            **self.path.flags,
            "enable_pdl": execution.pdl,  # None: on
            "use_fused_finalize": execution.fused_finalize is not False,  # without effect on SM90
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
        prepared.surround()
        prepared.launch(prepared.output)
        return prepared.output.to(prepared.problem.hidden_states.device, copy=True)

    def launch(self, prepared: Prepared) -> None:
        """The kernel's own work of a call, into `prepared.output`."""
        prepared.launch(prepared.output)

    def run_into(self, prepared: Prepared, output: torch.Tensor) -> None:
        """As a call, with the result in the caller's contiguous `output` [M, H], which is not poisoned first."""
        prepared.poison()
        prepared.surround()
        if output.device == prepared.output.device:
            prepared.launch(output)
        else:
            prepared.launch(prepared.output)
            output.copy_(prepared.output)


class Prepared:
    """A problem's arguments, its output [M, H] on the device, and the workspace.

    arguments: keywords of `cutlass_fused_moe`, but for output and workspace.
    """

    def __init__(self, problem: Problem, path: Path, arguments: dict[str, Any]) -> None:
        self.problem = problem
        self.path = path
        self.arguments = arguments
        states = arguments["input"]
        self.output = torch.empty(states.shape, dtype=problem.output_dtype, device=states.device)
        self._workspace = torch.empty(
            _workspace_bytes(problem, path, arguments), dtype=torch.uint8, device=states.device
        )

    def poison(self) -> None:
        """Fill output and workspace with the scenario's poison byte."""
        byte = self.problem.scenario.execution.poison
        self.output.view(torch.uint8).fill_(byte)
        self._workspace.fill_(byte)

    def surround(self) -> None:
        """Give the device work on another stream where the scenario says so; before `launch`, and no part of it."""
        if self.problem.scenario.execution.busy:
            busy.on(self.output.device).queue()

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
    "use_fused_finalize",
)


def _workspace_bytes(problem: Problem, path: Path, arguments: dict[str, Any]) -> int:
    """What the package asks for. It has no answer for M = 0, where the call itself is to give one."""
    size: int = package.module("fused_moe").cutlass_fused_moe_workspace_size(
        max(1, problem.tokens),
        problem.hidden,
        problem.intermediate,
        problem.num_experts,
        problem.topk_ids.shape[1],
        x_dtype=path.x_dtype,
        weight_dtype=path.weight_dtype,
        device=arguments["input"].device,
        **path.flags,
        **{name: arguments[name] for name in _WORKSPACE_KEYWORDS},
    )
    return size
