"""SGLang's router, `select_experts`, configured as its models configure it.

Groups, or a bias with sigmoid scores, go through `use_grouped_topk` (DeepSeek-V3, Kimi-K3: one group); all else not.
`routed_scaling_factor` is applied to the weights. On a CUDA device that is one of several kernels by shape, on a CPU
plain torch.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any
from unittest import mock

import torch

from oracles import sglang_layers, sglang_package
from oracles.numerics import Transcendental
from oracles.router_numerics import RouterNumerics
from oracles.router_problem import RouterProblem, RoutingTable
from strategies.router import RouterScenario
from strategies.router_capability import RouterCapability

_HIDDEN = 8
"""Columns of the hidden states, of which only the number of rows is looked at."""


class SglangRouter:
    """Oracle "sglang-router": the kernels that serve on a CUDA device."""

    name = "sglang-router"
    # Triton and CUDA: ex2.approx, approximate division; plain torch for groups without a bias, in the logits' dtype.
    numerics = RouterNumerics(
        scores="either", transcendental=Transcendental(exp="fast", divide="fast", flush_to_zero=True), nan="any"
    )
    packages = ("sglang", "triton")
    reproduction = "reproductions/sglang_router.py:cuda"
    reproduction_enter = "oracles.sglang_layers:enter"
    capability = RouterCapability()
    _cuda = True
    _native = False

    def _machine(self) -> contextlib.AbstractContextManager[object]:
        """What the router is told of the machine, where that is not the machine's own."""
        return contextlib.nullcontext()

    def missing(self) -> str | None:
        """What the machine lacks, with the command that brings it."""
        if sglang_package.version() is None:
            return f"not installed: {sglang_package.INSTALL}"
        if self._cuda and not torch.cuda.is_available():
            return "no CUDA device"
        try:
            sglang_layers.module("srt.layers.moe.topk")
        except (ImportError, OSError, AttributeError) as error:
            return f"sglang's layers cannot be imported ({error}): {sglang_package.INSTALL}"
        return None

    def unsupported(self, scenario: RouterScenario) -> str | None:
        """What its configuration cannot say: with groups and a bias the scores are sigmoids, and a group has two best
        experts; without groups a sigmoid comes with a bias, be it of zeros."""
        scores = scenario.scores
        if scores.scoring == "softmax" and scores.bias != "none" and scenario.shape.groups > 1:
            return "softmax with group limits and a bias"
        if scores.scoring == "sigmoid" and scores.bias != "none" and scenario.shape.experts_per_group == 1:
            return "a bias with groups of one expert"
        if scores.scoring == "sigmoid" and scores.bias == "none" and scenario.shape.groups == 1:
            return "sigmoid without a bias or group limits"
        return self.capability.objection(scenario)

    def prepare(self, problem: RouterProblem) -> Any:
        device = problem.logits.device
        if self._cuda and device.type != "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        shape, scores = problem.scenario.shape, problem.scenario.scores
        grouped = shape.groups > 1 or (scores.scoring == "sigmoid" and scores.bias != "none")
        config = sglang_layers.module("srt.layers.moe.topk").TopKConfig(
            top_k=shape.top_k,
            use_grouped_topk=grouped,
            num_expert_group=shape.groups if grouped else None,
            topk_group=shape.topk_groups if grouped else None,
            renormalize=scores.renormalise,
            correction_bias=None if problem.bias is None else problem.bias.to(device, copy=True),
            torch_native=self._native,
            routed_scaling_factor=scores.routed_scaling_factor,
            apply_routed_scaling_factor_on_output=True,
            scoring_func=scores.scoring,
        )
        logits = problem.logits.to(device, copy=True).contiguous()
        return problem, logits.new_zeros(problem.tokens, _HIDDEN), logits, config

    def __call__(self, prepared: Any) -> RoutingTable:
        problem, states, logits, config = prepared
        backend = "auto" if self._native else "flashinfer_mxfp4"
        # Compiled for each shape anew, which is no other arithmetic: run as it is written.
        with sglang_layers.served(backend), torch.compiler.set_stance("force_eager"), self._machine():
            topk = sglang_layers.module("srt.layers.moe.topk")
            output = topk.select_experts(states, logits, config)
        device = problem.logits.device
        ids, weights = output.topk_ids.to(device), output.topk_weights.to(device)
        return RoutingTable(ids.to(torch.int32), weights.float())


class SglangRouterNative(SglangRouter):
    """Oracle "sglang-router-native": the same in plain torch, as on a CPU."""

    name = "sglang-router-native"
    numerics = RouterNumerics(scores="either", nan="any")
    packages = ("sglang", "torch")
    reproduction = "reproductions/sglang_router.py:native"
    _cuda = False
    _native = True


class SglangRouterInterpreted(SglangRouter):
    """Oracle "sglang-router-interpreted": the Triton kernels of a CUDA device, run by Triton's interpreter on a CPU.

    Needs TRITON_INTERPRET=1 in the environment before Triton is imported. The kernels that are no Triton (FlashInfer's,
    and sglang's for Kimi-K3's very shape) leave their place to the Triton router, as where they do not apply.
    """

    name = "sglang-router-interpreted"
    reproduction = "reproductions/sglang_router.py:interpreted"
    _cuda = False

    def missing(self) -> str | None:
        """What the machine lacks, with the command that brings it."""
        if os.environ.get("TRITON_INTERPRET") != "1":
            return "Triton's interpreter is off: run with TRITON_INTERPRET=1"
        return super().missing()

    def _machine(self) -> contextlib.AbstractContextManager[object]:
        topk = sglang_layers.module("srt.layers.moe.topk")
        gate = sglang_layers.module("kernels.ops.moe.moe_fused_gate")
        told = contextlib.ExitStack()
        told.enter_context(mock.patch.multiple(topk, _is_cuda=True, _is_cpu=False))
        told.enter_context(mock.patch.object(topk, "fused_topk_deepseek", None, create=True))
        told.enter_context(mock.patch.object(gate, "is_arch_support_pdl", return_value=False))
        told.enter_context(mock.patch.object(gate.moe_route_radix, "covered", return_value=False))
        return told
