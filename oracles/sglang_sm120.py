"""SGLang's serving path for SM120 on any machine: its own processor and runner, with FlashInfer's kernel emulated.

`flashinfer_mxfp4` on SM120 makes the weights ready for the MXFP8 x MXFP4 kernel, quantises x to MXFP8 and calls
`cutlass_fused_moe`. All that is SGLang's runs as released, told that the platform is SM120; what it calls of FlashInfer
is `oracles.emulated_flashinfer`, which answers from the tensors and arguments that it is handed. So a finding here is
about what SGLang hands over, and an agreement is none about the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import torch

from oracles import emulated_flashinfer, sglang_layers, sglang_package
from oracles.emulated_sm120 import EmulatedSm120
from oracles.problem import Problem
from oracles.sglang_path import SglangPath
from strategies.capability import Capability


class SglangEmulatedSm120(SglangPath):
    """Oracle "sglang-emulated-sm120": a checkpoint whose w13 has the rows [gate; up], as Kimi-K3's, and a configuration
    that says so (gate_up_interleaved=False).

    Scenarios of MXFP8 activations: the layer gets their exact value in bfloat16, and quantises it.
    """

    name = "sglang-emulated-sm120"
    numerics = replace(EmulatedSm120.numerics, hidden_quantizer="mxfp8")
    packages = ("sglang",)
    reproduction = "reproductions/sglang_sm120.py:halves"
    capability = Capability(
        precisions=frozenset({"mxfp8xmxfp4"}),
        activations=frozenset({"swiglu_oai", "situ"}),
        per_expert_activation=False,
    )
    _backend = "flashinfer_mxfp4"
    _hidden_unit = 256

    def _kernels_missing(self) -> str | None:
        return sglang_package.missing_release()

    def _device(self, problem: Problem) -> torch.device:
        return problem.hidden_states.device

    @contextmanager
    def _serving(self, device: torch.device) -> Iterator[None]:
        del device
        runner = sglang_layers.module("srt.layers.moe.moe_runner.flashinfer_cutlass")
        available = mock.patch.object(runner, "is_flashinfer_available", return_value=True)
        platform = {"is_sm90": False, "is_sm100": False, "is_sm120": True}
        with emulated_flashinfer.imported(), available, sglang_layers.served(self._backend, **platform):
            yield


class SglangEmulatedSm120Interleaved(SglangEmulatedSm120):
    """Oracle "sglang-emulated-sm120-interleaved": the same layer from a checkpoint whose w13 has the rows of gate and
    up in turn, as GPT-OSS's, and gate_up_interleaved=True."""

    name = "sglang-emulated-sm120-interleaved"
    reproduction = "reproductions/sglang_sm120.py:interleaved"
    _interleaved = True
