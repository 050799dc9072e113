"""Faults of the activation: another function, or other parameters."""

from __future__ import annotations

from dataclasses import replace

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import Call, Twin
from oracles.problem import ActivationParams

Tensor = torch.Tensor


@fault("activation", "flashinfer#4597: SiTU is not in the C++ table, SwiGLU runs instead")
class SwigluForSitu(Twin):
    """SwiGLU runs in the place of SiTU."""

    def situ(self, gate: Tensor, up: Tensor, beta: Tensor, linear_beta: Tensor) -> Tensor:
        return self.swiglu(gate, up)


@fault("activation", "SiTU caps the gate by tanh and takes the sigmoid of the uncapped one")
class SituSigmoidOfCapped(Twin):
    """The sigmoid of SiTU is taken of the capped gate."""

    def situ(self, gate: Tensor, up: Tensor, beta: Tensor, linear_beta: Tensor) -> Tensor:
        capped = beta * torch.tanh(gate / beta)
        return capped * torch.sigmoid(capped) * (linear_beta * torch.tanh(up / linear_beta))


@fault("activation", "SGLang's Marlin path: SiTU without a limit leaves up linear, FlashInfer's default is 25")
class SituUpLinear(Twin):
    """Up is not capped by SiTU."""

    def situ(self, gate: Tensor, up: Tensor, beta: Tensor, linear_beta: Tensor) -> Tensor:
        return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * up


@fault("activation", "SiTU's two parameters have one type and one shape")
class SituParametersExchanged(Twin):
    """beta and linear_beta of SiTU are exchanged."""

    def situ(self, gate: Tensor, up: Tensor, beta: Tensor, linear_beta: Tensor) -> Tensor:
        return super().situ(gate, up, linear_beta, beta)


@fault("activation", "FlashInfer 0.7: situ_beta and situ_linear_beta that are not passed are 4 and 25")
class SituParametersDropped(Twin):
    """SiTU's parameters are always 4 and 25."""

    def situ(self, gate: Tensor, up: Tensor, beta: Tensor, linear_beta: Tensor) -> Tensor:
        return super().situ(gate, up, torch.full_like(beta, 4.0), torch.full_like(linear_beta, 25.0))


@fault("activation", "vllm#41935, sglang#39939: the clamp is dropped on one backend")
class ClampMissing(Twin):
    """Gate and up are not clamped."""

    def swiglu_oai(self, gate: Tensor, up: Tensor, alpha: Tensor, beta: Tensor, limit: Tensor) -> Tensor:
        return super().swiglu_oai(gate, up, alpha, beta, torch.full_like(limit, torch.inf))


@fault("activation", "SwigluBias clamps up to +-limit, the gate from above alone")
class UpClampedOneSided(Twin):
    """Up is clamped from above alone."""

    def swiglu_oai(self, gate: Tensor, up: Tensor, alpha: Tensor, beta: Tensor, limit: Tensor) -> Tensor:
        gate, up = torch.minimum(gate, limit), torch.minimum(up, limit)
        return gate * torch.sigmoid(alpha * gate) * (up + beta)


@fault("activation", "SwigluBias clamps up to +-limit, the gate from above alone")
class GateClampedBothSides(Twin):
    """The gate is clamped from below too."""

    def swiglu_oai(self, gate: Tensor, up: Tensor, alpha: Tensor, beta: Tensor, limit: Tensor) -> Tensor:
        return super().swiglu_oai(torch.maximum(gate, -limit), up, alpha, beta, limit)


@fault("activation", "SwigluStep: min(silu(gate), limit) * clamp(up)")
class ClampAfterGate(Twin):
    """The gate is clamped after its sigmoid was applied."""

    def swiglu_oai(self, gate: Tensor, up: Tensor, alpha: Tensor, beta: Tensor, limit: Tensor) -> Tensor:
        return torch.minimum(gate * torch.sigmoid(alpha * gate), limit) * (torch.clamp(up, -limit, limit) + beta)


@fault("activation", "SwigluBias: clamp first, then + beta")
class ClampAfterBeta(Twin):
    """beta is added to up before the clamp."""

    def swiglu_oai(self, gate: Tensor, up: Tensor, alpha: Tensor, beta: Tensor, limit: Tensor) -> Tensor:
        gate, up = torch.minimum(gate, limit), torch.clamp(up + beta, -limit, limit)
        return gate * torch.sigmoid(alpha * gate) * up


@fault("activation", "vllm#49070: alpha and beta are not passed, the limit is")
class AlphaBetaIgnored(Twin):
    """alpha is 1 and beta is 0."""

    def swiglu_oai(self, gate: Tensor, up: Tensor, alpha: Tensor, beta: Tensor, limit: Tensor) -> Tensor:
        return super().swiglu_oai(gate, up, torch.ones_like(alpha), torch.zeros_like(beta), limit)


@fault("activation", "SGLang's `gemm1_alpha or 1.702`: a parameter of 0 counts as not given")
class ZeroBetaIsUnset(Twin):
    """A beta of 0 counts as not given, and is 1."""

    def swiglu_oai(self, gate: Tensor, up: Tensor, alpha: Tensor, beta: Tensor, limit: Tensor) -> Tensor:
        return super().swiglu_oai(gate, up, alpha, torch.where(beta == 0, 1.0, beta), limit)


@fault("activation", "SGLang's `gemm1_clamp_limit or 7.0`: no limit means the default one")
class NoLimitIsDefault(Twin):
    """An infinite limit is 7."""

    def swiglu_oai(self, gate: Tensor, up: Tensor, alpha: Tensor, beta: Tensor, limit: Tensor) -> Tensor:
        return super().swiglu_oai(gate, up, alpha, beta, torch.where(limit.isinf(), 7.0, limit))


@fault("activation", "FlashInfer indexes activation parameters by local expert")
class ParametersByGlobalId(Twin):
    """An expert's parameters are looked up by its global id, as far as there are so many."""

    def parameter(self, call: Call, vector: Tensor | None) -> Tensor:
        assert vector is not None
        return vector[(call.expert + call.problem.first_expert).clamp(max=len(vector) - 1)].unsqueeze(1)


@fault("activation", "an activation parameter is one number in most models")
class ParametersOfFirstExpert(Twin):
    """Every expert uses the first one's parameters."""

    def parameter(self, call: Call, vector: Tensor | None) -> Tensor:
        assert vector is not None
        return vector[:1].unsqueeze(1)


@fault("activation", "flashinfer#4597: a path without SiTU in its table", meets=("M = 1", "SiTU"))
class SwigluForSituInDecode(Twin):
    """For a single row SwiGLU runs in the place of SiTU."""

    def activate(self, call: Call, params: ActivationParams, gate: Tensor, up: Tensor) -> Tensor:
        if call.problem.tokens == 1 and params.kind == "situ":
            return self.swiglu(gate, up)
        return super().activate(call, params, gate, up)


@fault("activation", "flashinfer#3197: a tactic computes wrong results")
class TacticIgnoresSmallLimit(Twin):
    """Tactics 6 to 8 clamp to no less than 2."""

    def activate(self, call: Call, params: ActivationParams, gate: Tensor, up: Tensor) -> Tensor:
        if call.tactic in (6, 7, 8) and params.limit is not None:
            params = replace(params, limit=params.limit.clamp(min=2.0))
        return super().activate(call, params, gate, up)


@fault(
    "activation", "a decode path for a single row is a second implementation; vllm#49070", meets=("M = 1", "SwiGLU-OAI")
)
class DecodeIgnoresAlphaBeta(Twin):
    """For a single row alpha is 1 and beta is 0."""

    def activate(self, call: Call, params: ActivationParams, gate: Tensor, up: Tensor) -> Tensor:
        if call.problem.tokens == 1 and params.alpha is not None and params.kind == "swiglu_oai":
            params = replace(params, alpha=torch.ones_like(params.alpha), beta=torch.zeros_like(params.alpha))
        return super().activate(call, params, gate, up)


@fault(
    "activation", "a decode path for a single row is a second implementation", meets=("M = 1", "parameters per expert")
)
class DecodeUsesFirstParameters(Twin):
    """For a single row every expert uses the first one's parameters."""

    def parameter(self, call: Call, vector: Tensor | None) -> Tensor:
        assert vector is not None
        return vector[:1].unsqueeze(1) if call.problem.tokens == 1 else super().parameter(call, vector)
