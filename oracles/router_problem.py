"""A router's scenario made into tensors, the same bits on every device, and what a router answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from oracles import formats, hashing
from strategies.router import RouterScenario, SetBias, SetLogit, SetRow, TieExperts

# Streams of the hash; `oracles.content` and `oracles.routing` have the others.
_LOGIT, _BIAS = 200, 201


class RoutingTable(NamedTuple):
    """What a router answers. topk_ids: int32 [M, K], distinct experts of a token in any order. topk_weights: float32
    [M, K], routed_scaling_factor multiplied in."""

    topk_ids: torch.Tensor
    topk_weights: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class RouterProblem:
    """The canonical tensors. logits: [M, E] in the scenario's dtype. bias: float32 [E], None where there is none."""

    scenario: RouterScenario
    logits: torch.Tensor
    bias: torch.Tensor | None

    @property
    def tokens(self) -> int:
        return self.logits.shape[0]

    @property
    def experts(self) -> int:
        return self.logits.shape[1]


def build(scenario: RouterScenario, device: torch.device | str = "cpu") -> RouterProblem:
    """Make the tensors of `scenario` on `device`.

    Logits: normal, of standard deviation 2; levels, one of four values; equal, all 0; negative, from -96 to -40, where
    every sigmoid is far below 1e-20 or no normal number; wide, normal times 2**-8 ... 2**8. The bias: normal, of
    standard deviation 1/2; levels, -1/4, 0 or 1/4; large, normal times 64, beside which scores lose their last bits.
    """
    device = torch.device(device)
    experts = torch.arange(scenario.shape.experts, dtype=torch.int64, device=device)
    tokens = torch.arange(scenario.shape.tokens, dtype=torch.int64, device=device)[:, None]
    seed = scenario.logits.seed
    logits = _logits(scenario, hashing.hashed(hashing.key(seed, _LOGIT), experts, tokens))
    bias = _bias(scenario, hashing.hashed(hashing.key(seed, _BIAS), experts))
    for edit in scenario.logits.edits:
        match edit:
            case SetLogit(token=token, expert=expert, value=value):
                logits[token, expert] = value
            case SetRow(token=token, value=value):
                logits[token] = value
            case TieExperts(token=token, expert=expert, source=source):
                logits[token, expert] = logits[token, source].clone()
                if bias is not None:
                    bias[expert] = bias[source].clone()
            case SetBias(expert=expert, value=value):
                if bias is not None:
                    bias[expert] = value
    dtype: torch.dtype = getattr(torch, scenario.logits.dtype)
    return RouterProblem(scenario=scenario, logits=logits.to(dtype), bias=bias)


def _logits(scenario: RouterScenario, hashed: torch.Tensor) -> torch.Tensor:
    """float32 [M, E]."""
    match scenario.logits.rule:
        case "levels":
            return hashing.below(hashed, 4, shift=16).float() * 0.5 - 1.0
        case "equal":
            return torch.zeros_like(hashed, dtype=torch.float32)
        case "negative":
            return -40.0 - hashing.below(hashed, 57, shift=16).float()
        case "wide":
            exponent = hashing.below(hashed, 17, shift=32) - 8
            return hashing.normal(hashed) * formats.exp2(exponent).float()
    return hashing.normal(hashed) * 2.0


def _bias(scenario: RouterScenario, hashed: torch.Tensor) -> torch.Tensor | None:
    """float32 [E]."""
    match scenario.scores.bias:
        case "none":
            return None
        case "zero":
            return torch.zeros_like(hashed, dtype=torch.float32)
        case "levels":
            return hashing.below(hashed, 3, shift=16).float() * 0.25 - 0.25
        case "large":
            return hashing.normal(hashed) * 64.0
    return hashing.normal(hashed) * 0.5
