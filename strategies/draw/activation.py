"""The activation and its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypothesis.strategies import SearchStrategy

from strategies.capability import Capability
from strategies.draw.weighted import weighted
from strategies.scenario import Activation, Situ, Swiglu, SwigluOai


def activations(capability: Capability) -> SearchStrategy[Activation]:
    """One that `capability` has, each kind as often as the others.

    Gates are of order 3 (see `values`), so the usual limit of 7 is reached, and those below it often.
    """
    uniform = [choice for choice in _uniform() if choice[0].kind in capability.activations]
    if not capability.per_expert_activation:
        return weighted(*uniform)
    return weighted(*(choice for activation, weight in uniform for choice in _with_per_expert(activation, weight)))


def _uniform() -> Iterator[tuple[Activation, int]]:
    yield Swiglu(), 24
    yield SwigluOai(), 10  # gpt-oss
    yield SwigluOai(limit=1.0), 4
    yield SwigluOai(alpha=1.0, beta=0.0, limit=10.0), 4  # DeepSeek-V4's clamped SwiGLU
    yield SwigluOai(alpha=1.0, beta=0.25, limit=0.25), 2
    yield SwigluOai(alpha=0.5, beta=0.0, limit=math.inf), 2
    yield Situ(), 10  # Kimi-K3
    yield Situ(beta=1.0, linear_beta=4.0), 6
    yield Situ(beta=0.5, linear_beta=1.0), 4
    yield Situ(beta=8.0, linear_beta=100.0), 4


def _with_per_expert(activation: Activation, weight: int) -> Iterator[tuple[Activation, int]]:
    match activation:
        case SwigluOai(alpha=alpha, beta=beta, limit=limit):
            yield activation, weight
            yield SwigluOai(alpha=alpha, beta=beta, limit=limit, per_expert=True), weight // 2
        case Situ(beta=beta, linear_beta=linear_beta):
            yield activation, weight
            yield Situ(beta=beta, linear_beta=linear_beta, per_expert=True), weight // 2
        case Swiglu():
            yield activation, weight
