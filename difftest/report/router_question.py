"""The questions of a router's case as plain data; see `difftest.report.question`."""

from __future__ import annotations

import torch

from difftest.judging.guard import Guarded, Spans
from difftest.report.question import Inquiry, Packed, Question, difference
from difftest.router.subject import ROUTER_CHECKS, RouterSubject
from oracles.base import RouterOracle
from oracles.router_problem import RouterProblem, RoutingTable
from oracles.router_reference import RoutingEnclosure, enclose


def router_inquiry(problem: RouterProblem, oracle: RouterOracle, check: str) -> Inquiry:
    """What the `check` asks of `oracle` about `problem`, and judges by."""
    problems = _asked(problem, oracle, check)
    questions = [_question(problems[0])]
    questions += [difference(_question(other), questions[0]) for other in problems[1:]]
    judged = [] if check in ("determinism", "isolation") else problems
    return Inquiry(questions, bounds=[_bounds(enclose(each, oracle.numerics)) for each in judged])


def _question(problem: RouterProblem) -> Question:
    shape, scores = problem.scenario.shape, problem.scenario.scores
    tensors = [Packed.of("logits", problem.logits)]
    if problem.bias is not None:
        tensors.append(Packed.of("bias", problem.bias))
    return Question(
        tensors=tensors,
        values={
            "bias": None,
            "top_k": shape.top_k,
            "groups": shape.groups,
            "topk_groups": shape.topk_groups,
            "scoring": scores.scoring,
            "renormalise": scores.renormalise,
            "routed_scaling_factor": scores.routed_scaling_factor,
        },
    )


def _asked(problem: RouterProblem, oracle: RouterOracle, check: str) -> list[RouterProblem]:
    """The problem, and those that the check asks about beside it."""
    asker = _Asker(problem, oracle)
    if check in ROUTER_CHECKS and check != "determinism":
        ROUTER_CHECKS[check].run(asker)
    return [problem, *asker.asked]


class _Asker(RouterSubject):
    """A subject that only notes what it is asked, and answers with the first experts."""

    def __init__(self, problem: RouterProblem, oracle: RouterOracle) -> None:
        spans = Spans()
        super().__init__(Guarded(oracle, oracle.name, spans), problem, None, _stand_in(problem), spans)
        self.asked: list[RouterProblem] = []

    def ask(self, problem: RouterProblem) -> RoutingTable:
        self.asked.append(problem)
        return _stand_in(problem)


def _stand_in(problem: RouterProblem) -> RoutingTable:
    top_k = problem.scenario.shape.top_k
    ids = torch.arange(top_k, dtype=torch.int32).expand(problem.tokens, top_k)
    return RoutingTable(ids, torch.zeros(problem.tokens, top_k))


def _bounds(enclosure: RoutingEnclosure) -> list[Packed]:
    """See `oracles.reproductions.routing_claims`."""
    group_low, group_high = enclosure.group_scores
    low, high = enclosure.low, enclosure.high
    if not enclosure.scenario.scores.renormalise:  # then a weight does not depend on the other choices of its token
        each = torch.arange(low.shape[1], device=low.device).expand_as(low)
        weight = enclosure.weights(each)
        low, high = weight.center - weight.hard, weight.center + weight.hard
    tensors = {
        "choice_low": enclosure.choice_low,
        "choice_high": enclosure.choice_high,
        "group_low": group_low,
        "group_high": group_high,
        "low": low,
        "high": high,
        "nan": enclosure.nan,
        **{name: torch.tensor([value], dtype=torch.float64) for name, value in enclosure.arithmetic.items()},
    }
    return [Packed.of(name, tensor) for name, tensor in tensors.items()]
