"""FlashInfer's `cutlass_fused_moe` with bfloat16 activations and MXFP4 weights on SM90 (`use_w4_group_scaling`).

flashinfer-python 0.6.18 and later; what differs between versions is in `_Interface`. Nothing of the package is imported
before it is used. The adapter around it: [gate; up] becomes [up; gate], weights and scales go through the package's own
interleave helpers (`oracles.cutlass_layouts` says what they must do), ids stay global, and output and workspace are the
caller's, filled with the scenario's poison byte before each call.

What is known to go wrong is promised all the same, and so is a finding: an expert twice in a row, M = 0, and the scale
bytes 0x00 (read as 0) and 0xFF (read as infinity).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from oracles.cutlass_layouts import swap_halves
from oracles.numerics import Accumulator, Numerics, Transcendental
from oracles.problem import ActivationParams, Problem
from strategies.capability import Capability
from strategies.scenario import Scenario

INSTALL = "pip install 'difftest[flashinfer]'"
OLDEST = (0, 6, 18)

# bfloat16 times E2M1 is exact. The tensor core adds 16 columns and its accumulator at a time, each addend cut below the
# last place of the largest: no rounding to nearest. The unit is float32's, and not a wider one that Hopper may have.
# The scale of a group of 32 is applied to its sum, by a fused multiply-add to nearest into the running one.
_GEMM = Accumulator(rounding="truncate", flush_to_zero=True)

NUMERICS = Numerics(
    weights="exact",
    gemm1=_GEMM,
    bias_before_rounding=False,
    # Built with -use_fast_math: ex2.approx, div.approx, subnormals flushed. Clamps are fminf and fmaxf.
    activation=Transcendental(
        exp="fast", divide="fast", tanh="two_sigmoid", clamp_nan="limit", flush_to_zero=True
    ),
    gemm2=_GEMM,
)
"""GEMM1 -> bfloat16 (+ bias in float32) -> activation in float32 -> bfloat16 -> GEMM2 -> bfloat16 (+ bias) -> sum over the
slots in float32."""


@dataclass(frozen=True, kw_only=True)
class _Interface:
    """What a version of the package takes. situ: SiTU with `situ_beta` and `situ_linear_beta`, since 0.7.0."""

    situ: bool

    @classmethod
    def of(cls, version: tuple[int, ...]) -> _Interface:
        return cls(situ=version >= (0, 7, 0))


class Cutlass:
    """Oracle "cutlass".

    tactics: whether scenarios may choose among the GEMM tactics that the package says fit their shape, counted round;
    else only the package's default runs. pdl: programmatic dependent launch (None: the package's choice, on).
    fused_finalize: `use_fused_finalize`, without effect on this path. activations: what is promised, instead of what
    the installed version documents.
    """

    name = "cutlass"
    numerics = NUMERICS
    _modes: frozenset[str] = frozenset({"eager"})

    def __init__(
        self,
        *,
        name: str | None = None,
        tactics: bool = False,
        pdl: bool | None = None,
        fused_finalize: bool = True,
        activations: frozenset[str] | None = None,
    ) -> None:
        self.name = name or self.name
        self._interface = _Interface.of(_installed() or OLDEST)
        self._options = {"enable_pdl": pdl, "use_fused_finalize": fused_finalize}
        if activations is None:
            activations = frozenset({"swiglu", "swiglu_oai"} | ({"situ"} if self._interface.situ else set()))
        self.capability = Capability(
            hidden_multiple=128,
            intermediate_multiple=128,
            activations=activations,
            modes=self._modes,
            tactics=_Tactics.load().count if tactics and self.missing() is None else 0,
        )

    def missing(self) -> str | None:
        """What the machine lacks, with the command that brings it."""
        version = _installed()
        if version is None:
            return f"not installed: {INSTALL}"
        if version < OLDEST:
            return f"flashinfer-python is older than {_dotted(OLDEST)}: {INSTALL} --upgrade"
        if not torch.cuda.is_available():
            return "no CUDA device"
        major, minor = torch.cuda.get_device_capability()
        if (major, minor) != (9, 0):
            return f"bf16 x MXFP4 needs a device of SM90, and this one is SM{major}{minor}"
        try:
            importlib.import_module("flashinfer.fused_moe")
        except (ImportError, OSError, RuntimeError) as error:  # its version guard raises RuntimeError
            return f"flashinfer cannot be imported ({error}): {INSTALL} --force-reinstall"
        return None if _is_built() or _has_compiler() else "its SM90 kernels are not built, and there is no nvcc"

    def unsupported(self, scenario: Scenario) -> str | None:
        """What is outside `capability`, in a few words; None otherwise."""
        return self.capability.objection(scenario)

    def prepare(self, problem: Problem) -> Prepared:
        """Convert the weights and collect the arguments of the call, on the problem's CUDA device or the current one."""
        device = problem.hidden_states.device
        return Prepared(problem, self._arguments(problem, device if device.type == "cuda" else torch.device("cuda")))

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        prepared.run(prepared.output)
        return prepared.output.to(prepared.problem.hidden_states.device, copy=True)

    def run_into(self, prepared: Prepared, output: torch.Tensor) -> None:
        """As a call, with the result in the caller's contiguous `output` [M, H]."""
        if output.is_cuda:
            prepared.run(output)
        else:
            output.copy_(self(prepared))

    def _arguments(self, problem: Problem, device: torch.device) -> dict[str, Any]:
        """Keywords of `cutlass_fused_moe`, but for output and workspace."""
        fused_moe = importlib.import_module("flashinfer.fused_moe")

        def there(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device).contiguous()

        def weight(packed: torch.Tensor) -> torch.Tensor:
            with torch.cuda.device(device):
                return fused_moe.interleave_moe_weights_for_sm90_mixed_gemm(packed, "fp4")  # type: ignore[no-any-return]

        def scale(scales: torch.Tensor) -> torch.Tensor:
            folded: torch.Tensor = fused_moe.interleave_moe_scales_for_sm90_mixed_gemm(scales)
            return folded.view(torch.int32)

        layer = problem.scenario.layer
        arguments: dict[str, Any] = {
            "input": there(problem.hidden_states),
            "token_selected_experts": there(problem.topk_ids),
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
            "profile_ids": _Tactics.load().choose(problem) if problem.scenario.execution.tactic is not None else None,
        }
        if problem.w13_bias is not None:
            # Both or neither. The second GEMM's belongs to moe_tp_rank 0, and the kernel knows the rank.
            w2_bias = problem.w2_bias
            if w2_bias is None:
                w2_bias = problem.w13_bias.new_zeros(problem.experts_local, problem.hidden)
            arguments["fc1_expert_biases"] = there(swap_halves(problem.w13_bias)).to(problem.output_dtype)
            arguments["fc2_expert_biases"] = there(w2_bias).to(problem.output_dtype)
        return arguments | self._activation(problem.activation, there) | self._options

    def _activation(
        self, params: ActivationParams, there: Callable[[torch.Tensor], torch.Tensor]
    ) -> dict[str, Any]:
        kinds = importlib.import_module("flashinfer.fused_moe").ActivationType
        match params.kind:
            case "swiglu":
                return {"activation_type": kinds.Swiglu}
            case "swiglu_oai":
                assert params.alpha is not None
                assert params.beta is not None
                assert params.limit is not None
                return {
                    "activation_type": kinds.SwigluBias,
                    "swiglu_alpha": there(params.alpha),
                    "swiglu_beta": there(params.beta),
                    "swiglu_limit": there(params.limit),
                }
            case "situ" if not self._interface.situ:
                return {"activation_type": kinds.Situ}
            case "situ":
                assert params.beta is not None
                assert params.linear_beta is not None
                return {
                    "activation_type": kinds.Situ,
                    "situ_beta": there(params.beta),
                    "situ_linear_beta": there(params.linear_beta),
                }
        raise ValueError(f"activation {params.kind!r}: must be one of swiglu, swiglu_oai, situ")


class CutlassGraph(Cutlass):
    """Oracle "cutlass-graph": the same call captured once in a CUDA graph and replayed.

    The graph is captured after a warm-up, as serving does, on contents that are nobody's: x = 0 and every slot masked.
    A replay reads x, ids and router weights that were written to the captured tensors since.
    """

    name = "cutlass-graph"
    _modes = frozenset({"graph"})

    def prepare(self, problem: Problem) -> Captured:
        return Captured(super().prepare(problem))

    def __call__(self, prepared: Captured) -> torch.Tensor:  # type: ignore[override]  # what its own prepare made
        return self.replay(prepared, prepared.problem)

    def replay(self, prepared: Captured, problem: Problem) -> torch.Tensor:
        """The answer to `problem`, which shares sizes, weights and activation with the one prepared."""
        prepared.write(problem)
        prepared.replay()
        return prepared.output.to(problem.hidden_states.device, copy=True)

    def run_into(self, prepared: Captured, output: torch.Tensor) -> None:  # type: ignore[override]
        """As a call, with the result in the caller's contiguous `output` [M, H]: a graph of its own."""
        aimed = Captured(prepared, output) if output.is_cuda else prepared
        result = self.replay(aimed, prepared.problem)
        if not output.is_cuda:
            output.copy_(result)


class Prepared:
    """A problem's arguments, and its output and workspace.

    output: [M, H] on the device. arguments: of `cutlass_fused_moe`, but for these two.
    """

    def __init__(self, problem: Problem, arguments: dict[str, Any]) -> None:
        self.problem = problem
        self.arguments = arguments
        states = arguments["input"]
        self.output = torch.empty(states.shape, dtype=problem.output_dtype, device=states.device)
        self._workspace = torch.empty(_workspace_bytes(problem, arguments), dtype=torch.uint8, device=states.device)

    def run(self, output: torch.Tensor) -> None:
        """Poison `output` and the workspace, and compute into `output`."""
        self.poison(output)
        self.launch(output)

    def poison(self, output: torch.Tensor) -> None:
        byte = self.problem.scenario.execution.poison
        output.view(torch.uint8).fill_(byte)
        self._workspace.fill_(byte)

    def launch(self, output: torch.Tensor) -> None:
        call = importlib.import_module("flashinfer.fused_moe").cutlass_fused_moe
        call(**self.arguments, output=output, workspace_buffer=self._workspace)


class Captured:
    """A graph of one call, captured when it is first needed, and the tensors that it reads and writes."""

    def __init__(self, prepared: Prepared | Captured, output: torch.Tensor | None = None) -> None:
        self._call = prepared._call if isinstance(prepared, Captured) else prepared
        self.problem = self._call.problem
        self.output = self._call.output if output is None else output
        self._graph: torch.cuda.CUDAGraph | None = None

    def write(self, problem: Problem) -> None:
        """Change what the next replay reads. Captures the graph first when that was not done yet."""
        if self._graph is None:
            self._graph = self._capture()
        arguments = self._call.arguments
        arguments["input"].copy_(problem.hidden_states)
        arguments["token_selected_experts"].copy_(problem.topk_ids)
        arguments["token_final_scales"].copy_(problem.router_weights)

    def replay(self) -> None:
        assert self._graph is not None  # `write` captured it
        self._call.poison(self.output)
        self._graph.replay()

    def _capture(self) -> torch.cuda.CUDAGraph:
        arguments = self._call.arguments
        arguments["input"].zero_()
        arguments["token_selected_experts"].fill_(-1)
        arguments["token_final_scales"].zero_()
        with torch.cuda.device(self.output.device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._call.run(self.output)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._call.launch(self.output)
        return graph


@dataclass(frozen=True)
class _Tactics:
    """The package's list of GEMM tactics for this path: those of GEMM1, then those of GEMM2."""

    runner: Any
    count: int
    """Tactics of GEMM1."""

    @staticmethod
    def load() -> _Tactics:
        core = importlib.import_module("flashinfer.fused_moe.core")
        module = core.get_cutlass_fused_moe_module("90").MoERunner
        runner = module(
            x_dtype=torch.bfloat16,
            weight_dtype=torch.uint8,
            output_dtype=torch.bfloat16,
            top_k=1,
            tp_size=1,
            tp_rank=0,
            ep_size=1,
            ep_rank=0,
            cluster_size=1,
            cluster_rank=0,
            enable_alltoall=False,
            use_deepseek_fp8_block_scale=False,
            use_w4_group_scaling=True,
            use_mxfp8_act_scaling=False,
            min_latency_mode=False,
            enable_pdl=False,
            activation_type=importlib.import_module("flashinfer.fused_moe").ActivationType.Swiglu,
            use_packed_weights=False,
            use_fused_finalize=True,
            use_wfp4afp8_humming=False,
        ).fused_moe_runner
        return _Tactics(runner=runner, count=int(runner.get_gemm1_tactic_count()))

    def choose(self, problem: Problem) -> list[int]:
        """[GEMM1's, GEMM2's] tactic of the scenario: counted round in the list of those that fit the shape."""
        tactic = problem.scenario.execution.tactic
        assert tactic is not None
        first = self.runner.get_valid_tactics_for_shape(1, 2 * problem.intermediate, problem.hidden)
        second = self.runner.get_valid_tactics_for_shape(2, problem.hidden, problem.intermediate)
        return [int(first[tactic % len(first)]), int(second[tactic % len(second)])]


def _workspace_bytes(problem: Problem, arguments: dict[str, Any]) -> int:
    """What the package asks for. It has no answer for M = 0, where the call itself is to give one."""
    size: int = importlib.import_module("flashinfer.fused_moe").cutlass_fused_moe_workspace_size(
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


def _installed() -> tuple[int, ...] | None:
    """The installed version, None without one. A suffix does not count: 0.7.0rc1 is 0.7.0."""
    if importlib.util.find_spec("flashinfer") is None:
        return None
    try:
        version = importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _is_built() -> bool:
    """Whether FlashInfer has the SM90 module, prebuilt or in its cache."""
    env = importlib.import_module("flashinfer.jit.env")
    folders = (env.FLASHINFER_AOT_DIR, env.FLASHINFER_JIT_DIR)
    return any((Path(folder) / "fused_moe_90" / "fused_moe_90.so").is_file() for folder in folders)


def _has_compiler() -> bool:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") is not None or (Path(home) / "bin" / "nvcc").is_file()
