"""Faults of the activation: another function, or other parameters."""

from __future__ import annotations

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import Twin


@fault("activation", "flashinfer#4597: SiTU is not in the C++ table, SwiGLU runs instead")
class SwigluForSitu(Twin):
    """SwiGLU runs in the place of SiTU."""

    def situ(self, gate: torch.Tensor, up: torch.Tensor, beta: torch.Tensor, linear_beta: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return self.swiglu(gate, up)


@fault("activation", "vllm#41935, sglang#39939: the clamp is dropped on one backend")
class ClampMissing(Twin):
    """Gate and up are not clamped."""

    def swiglu_oai(
        self, gate: torch.Tensor, up: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor, limit: torch.Tensor
    ) -> torch.Tensor:
        return super().swiglu_oai(gate, up, alpha, beta, torch.full_like(limit, torch.inf))
