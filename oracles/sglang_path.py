"""SGLang's serving path as a layer: its weight processor for a backend, its runner with the layer's configuration.

The layer gets what a model gives it: tensors in the checkpoint's order, as the loader leaves them ([gate; up], rows not
interleaved), and the configuration that Kimi-K3's model code passes: the activation by its name, `gemm1_alpha` and
`gemm1_clamp_limit` for its parameters, `gate_up_interleaved`, `routed_scaling_factor`. What becomes of them is
the released package's to decide: an activation that is not computed, rows in the wrong order, a parameter that is
dropped are findings. So nothing is declined but what the configuration cannot say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from oracles import cutlass_sm90, flashinfer_package, marlin, sglang_layers, sglang_package
from oracles.numerics import Numerics
from oracles.problem import ActivationParams, Problem
from strategies.capability import Capability
from strategies.scenario import Scenario, SwigluOai


class SglangPath:
    """The layer of a server that was started with `--moe-runner-backend BACKEND`. Subclasses name the backend."""

    name: str
    numerics: Numerics
    packages: tuple[str, ...]
    reproduction_enter = "oracles.sglang_layers:enter"
    _backend: str
    _hidden_unit: int
    _interleaved = False
    """Whether the checkpoint has the rows of gate and up in turn, and the configuration says so."""
    capability: Capability

    def missing(self) -> str | None:
        """What the machine lacks, with the command that brings it."""
        reason = self._kernels_missing()
        if reason is not None:
            return reason
        try:
            sglang_layers.module("srt.layers.quantization.mxfp4")
        except (ImportError, OSError, AttributeError) as error:
            return f"sglang's layers cannot be imported ({error}): {sglang_package.INSTALL}"
        return None

    def _kernels_missing(self) -> str | None:
        raise NotImplementedError

    def unsupported(self, scenario: Scenario) -> str | None:
        """What is outside `capability`, in a few words; None otherwise."""
        activation = scenario.activation
        if isinstance(activation, SwigluOai) and activation.beta != 1.0:
            return "SwiGLU-OAI with a beta: the configuration has none, it is 1"
        return self.capability.objection(scenario)

    def prepare(self, problem: Problem) -> Prepared:
        """Give the layer its tensors and let it process them, on the problem's CUDA device or else the current one."""
        device = self._device(problem)
        with self._serving(device):
            return Prepared.of(problem, device, self._hidden_unit, interleaved=self._interleaved)

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        with self._serving(prepared.device):
            return prepared.run()

    def _device(self, problem: Problem) -> torch.device:
        return flashinfer_package.device_for(problem.hidden_states)

    @contextmanager
    def _serving(self, device: torch.device) -> Iterator[None]:
        """What the layer finds around it while it is made and called."""
        with flashinfer_package.current(device), sglang_layers.served(self._backend):
            yield


class SglangFlashinfer(SglangPath):
    """Oracle "sglang-flashinfer": `flashinfer_mxfp4`, which is FlashInfer's CUTLASS kernel on SM90.

    A SwiGLU without parameters is not promised: no alpha is taken for GPT-OSS's activation there.
    """

    name = "sglang-flashinfer"
    numerics = cutlass_sm90.PATH.numerics
    packages = ("sglang", "flashinfer-python")
    reproduction = "reproductions/sglang_path.py:flashinfer"
    capability = Capability(activations=frozenset({"swiglu_oai", "situ"}), per_expert_activation=False)
    _backend = "flashinfer_mxfp4"
    _hidden_unit = 256

    def _kernels_missing(self) -> str | None:
        if sglang_package.version() is None:
            return f"not installed: {sglang_package.INSTALL}"
        return flashinfer_package.missing()


class SglangMarlin(SglangPath):
    """Oracle "sglang-marlin": `marlin`, sglang's own W4A16 kernels. With expert parallelism it sorts the pairs by a
    kernel of sgl_kernel's, and that is promised only where this is installed."""

    name = "sglang-marlin"
    numerics = marlin.NUMERICS
    packages = ("sglang", "apache-tvm-ffi", "triton")
    reproduction = "reproductions/sglang_path.py:marlin"
    capability = Capability(per_expert_activation=False, expert_parallel=sglang_layers.has_kernels())
    _backend = "marlin"
    _hidden_unit = 1

    def _kernels_missing(self) -> str | None:
        return sglang_package.missing()


@dataclass(frozen=True)
class Prepared:
    """A processed layer, its quantisation method, and what the dispatcher hands to them."""

    problem: Problem
    device: torch.device
    layer: torch.nn.Module
    method: Any
    dispatched: Any

    @classmethod
    def of(cls, problem: Problem, device: torch.device, hidden_unit: int, *, interleaved: bool = False) -> Prepared:
        mxfp4 = sglang_layers.module("srt.layers.quantization.mxfp4")
        layer = new_layer(problem, hidden_unit, interleaved=interleaved)
        method = mxfp4.Mxfp4MoEMethod(prefix="experts")
        with torch.device(device):
            method.create_weights(
                layer=layer,
                num_experts=problem.experts_local,
                hidden_size=layer.hidden_size,
                intermediate_size_per_partition=problem.intermediate,
                params_dtype=torch.bfloat16,
                with_bias=problem.w13_bias is not None,
            )
        load(layer, with_rows_in_turn(problem) if interleaved else problem)
        method.create_moe_runner(layer, layer.moe_runner_config)
        method.process_weights_after_loading(layer)
        return cls(problem, device, layer, method, _dispatched(problem, device, layer))

    def run(self) -> torch.Tensor:
        """[M, H] on the problem's device."""
        output: torch.Tensor = self.method.apply(self.layer, self.dispatched).hidden_states
        states = self.problem.hidden_states
        return output[:, : states.shape[1]].to(states.device, copy=True).contiguous()


def new_layer(problem: Problem, hidden_unit: int, *, interleaved: bool = False) -> torch.nn.Module:
    """The layer as its constructor leaves it for the weight processor: sizes, placement and configuration."""
    layer = torch.nn.Module()
    scenario = problem.scenario
    hidden = -(-problem.hidden // hidden_unit) * hidden_unit
    for name, value in {
        "num_experts": problem.num_experts,
        "num_local_experts": problem.experts_local,
        "hidden_size": hidden,
        "hidden_size_unpadded": problem.hidden,
        "intermediate_size_per_partition": problem.intermediate,
        "moe_ep_size": problem.ep_size,
        "moe_ep_rank": problem.ep_rank,
        "moe_tp_size": scenario.layer.moe_tp_size,
        "moe_tp_rank": scenario.layer.moe_tp_rank,
        "params_dtype": torch.bfloat16,
        "orig_dtype": torch.bfloat16,
    }.items():
        setattr(layer, name, value)
    config = sglang_layers.module("srt.layers.moe.moe_runner.base").MoeRunnerConfig
    layer.moe_runner_config = config(
        num_experts=problem.num_experts,
        num_local_experts=problem.experts_local,
        hidden_size=hidden,
        intermediate_size_per_partition=problem.intermediate,
        layer_id=0,
        top_k=problem.topk_ids.shape[1],
        params_dtype=torch.bfloat16,
        inplace=False,
        routed_scaling_factor=problem.routed_scaling_factor,
        gate_up_interleaved=interleaved,
        layer=layer,
        **activation_config(problem.activation),
    )
    return layer


def activation_config(params: ActivationParams) -> dict[str, Any]:
    """The activation as the models' code passes it (kimi_k3.py, gpt_oss.py)."""

    def first(vector: torch.Tensor | None) -> float:
        assert vector is not None  # the kind says which parameters there are
        return float(vector[0])

    match params.kind:
        case "swiglu":
            return {"activation": "silu"}
        case "swiglu_oai":
            return {"activation": "silu", "gemm1_alpha": first(params.alpha), "gemm1_clamp_limit": first(params.limit)}
        case "situ":
            return {
                "activation": "situ",
                "gemm1_alpha": first(params.beta),
                "gemm1_clamp_limit": first(params.linear_beta),
            }
    raise ValueError(f"activation {params.kind!r}: must be one of swiglu, swiglu_oai, situ")


def with_rows_in_turn(problem: Problem) -> Problem:
    """[gate; up] -> gate 0, up 0, gate 1, up 1, ... in w13, its scales and its bias: as a checkpoint of GPT-OSS."""

    def in_turn(rows: torch.Tensor) -> torch.Tensor:
        return torch.stack(rows.chunk(2, dim=1), dim=2).flatten(1, 2)

    bias = None if problem.w13_bias is None else in_turn(problem.w13_bias)
    return replace(problem, w13=in_turn(problem.w13), w13_scale=in_turn(problem.w13_scale), w13_bias=bias)


def load(layer: Any, problem: Problem) -> None:
    """Copy the checkpoint's tensors into the parameters, as the loader does: each half of w13 to the start of its own,
    the rest of a parameter that is wider as it was made."""
    for name, source in (("w13_weight", problem.w13), ("w13_weight_scale", problem.w13_scale)):
        parameter = getattr(layer, name).data
        half, rows = parameter.shape[1] // 2, source.shape[1] // 2
        for into, start in ((0, 0), (half, rows)):
            parameter[:, into : into + rows, : source.shape[2]] = source[:, start : start + rows]
    for name, source in (("w2_weight", problem.w2), ("w2_weight_scale", problem.w2_scale)):
        getattr(layer, name).data[:, : source.shape[1], : source.shape[2]] = source
    if problem.w13_bias is not None:
        parameter = layer.w13_weight_bias.data
        half, rows = parameter.shape[1] // 2, problem.w13_bias.shape[1] // 2
        parameter[:, :rows], parameter[:, half : half + rows] = problem.w13_bias[:, :rows], problem.w13_bias[:, rows:]
    if problem.w2_bias is not None and problem.scenario.layer.moe_tp_rank == 0:
        layer.w2_weight_bias.data[:, : problem.hidden] = problem.w2_bias


def _dispatched(problem: Problem, device: torch.device, layer: torch.nn.Module) -> Any:
    """What the dispatcher hands to the layer: ids stay global for FlashInfer, and become the rank's own for Marlin."""
    standard = sglang_layers.module("srt.layers.moe.token_dispatcher.standard")
    topk = sglang_layers.module("srt.layers.moe.topk")
    backend = sglang_layers.module("srt.layers.moe.utils").get_moe_runner_backend()
    ids = problem.topk_ids.to(device, copy=True)
    mapping = None
    if problem.ep_size > 1 and not standard._keeps_global_expert_ids(backend):
        mapping = torch.full((problem.num_experts,), -1, dtype=torch.int32, device=device)
        mine = torch.arange(problem.experts_local, dtype=torch.int32, device=device)
        mapping[problem.first_expert : problem.first_expert + problem.experts_local] = mine
        ids = standard._map_topk_ids_to_local_experts(ids, mapping)
    # Not a module: the layer asks it for the rank's own numbering.
    vars(layer)["dispatcher"] = _Dispatcher(mapping, problem.num_experts)
    weights = problem.topk_weights.to(device, copy=True)
    logits = torch.zeros(problem.tokens, problem.num_experts, device=device)
    return standard.StandardDispatchOutput(
        hidden_states=problem.hidden_states.to(device, copy=True).contiguous(),
        hidden_states_scale=None,
        topk_output=topk.StandardTopKOutput(weights, ids, logits),
    )


@dataclass(frozen=True)
class _Dispatcher:
    local_expert_mapping: torch.Tensor | None
    num_experts: int
