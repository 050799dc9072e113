"""A router of our own on plain torch operations, one maximum after the other: no sort, no top-k, and no code
of the reference."""

from __future__ import annotations

import torch

from oracles.numerics import Transcendental
from oracles.router_numerics import RouterNumerics
from oracles.router_problem import RouterProblem, RoutingTable
from strategies.router import RouterScenario
from strategies.router_capability import RouterCapability


class RouterTorch:
    """Oracle "router-torch": float32 from the first step. Of equal experts, and of equal groups, the first are taken;
    a NaN score ranks behind every number."""

    name = "router-torch"
    capability = RouterCapability()
    # exp of torch's CPU and GPU kernels is within 1 ulp; CUDA divides to nearest unless told otherwise.
    numerics = RouterNumerics(scores="float32", transcendental=Transcendental(exp_ulps=2.0), nan="last")
    packages = ("torch",)

    def unsupported(self, scenario: RouterScenario) -> str | None:
        return self.capability.objection(scenario)

    def prepare(self, problem: RouterProblem) -> RouterProblem:
        return problem

    def __call__(self, prepared: RouterProblem) -> RoutingTable:
        shape, scores = prepared.scenario.shape, self.scores(prepared)
        allowed = self.allowed(prepared, self.ranked_by(prepared, scores))
        ids = self.best(torch.where(allowed, self.ranked_by(prepared, scores), -torch.inf), allowed, shape.top_k)
        return RoutingTable(ids.to(torch.int32), self.weights(prepared, scores.gather(1, ids)))

    def scores(self, problem: RouterProblem) -> torch.Tensor:
        """float32 [M, E]."""
        x = problem.logits.float()
        if problem.scenario.scores.scoring == "sigmoid":
            return 1.0 / (1.0 + torch.exp(-x))
        raised = torch.exp(x - x.amax(1, keepdim=True))
        return raised / raised.sum(1, keepdim=True)

    def ranked_by(self, problem: RouterProblem, scores: torch.Tensor) -> torch.Tensor:
        """float32 [M, E]: what experts are chosen by, -inf for NaN."""
        choice = scores if problem.bias is None else scores + problem.bias
        return torch.where(choice.isnan(), -torch.inf, choice)

    def allowed(self, problem: RouterProblem, choice: torch.Tensor) -> torch.Tensor:
        """bool [M, E]: experts of the best groups."""
        shape = problem.scenario.shape
        grouped = choice.view(len(choice), shape.groups, shape.experts_per_group)
        score = grouped.amax(2)
        if problem.bias is not None and shape.experts_per_group > 1:
            first = grouped.argmax(2, keepdim=True)
            score = score + grouped.scatter(2, first, -torch.inf).amax(2)
        kept = self.best(score, torch.ones_like(score, dtype=torch.bool), shape.topk_groups)
        mask = torch.zeros_like(score, dtype=torch.bool).scatter_(1, kept, True)
        return mask.repeat_interleave(shape.experts_per_group, dim=1)

    def best(self, value: torch.Tensor, allowed: torch.Tensor, count: int) -> torch.Tensor:
        """int64 [M, count]: the allowed columns of the largest values, the first of equal ones, one after the other."""
        left, found = allowed.clone(), []
        for _ in range(count):
            largest = torch.where(left, value, -torch.inf).amax(1, keepdim=True)
            first = (left & (value == largest)).byte().argmax(1, keepdim=True)
            left.scatter_(1, first, False)
            found.append(first)
        return torch.cat(found, dim=1)

    def weights(self, problem: RouterProblem, chosen: torch.Tensor) -> torch.Tensor:
        """float32 [M, K] of the chosen scores."""
        scores = problem.scenario.scores
        if scores.renormalise:
            chosen = chosen / (chosen.sum(1, keepdim=True) + 1e-20)
        return chosen * torch.tensor(scores.routed_scaling_factor, dtype=torch.float32, device=chosen.device)
