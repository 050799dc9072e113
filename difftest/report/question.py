"""The questions of a case as plain data: what a script asks a kernel, and what it judges the answers by."""

from __future__ import annotations

import base64
import textwrap
import zlib
from dataclasses import dataclass, field
from typing import Any

import torch

from difftest.judging import variants
from difftest.judging.checks import CHECKS, Subject
from difftest.judging.compare import ROUNDED
from difftest.judging.guard import Declined, Guarded, Spans
from oracles import captures
from oracles.base import Oracle
from oracles.enclosure import FINITE, Enclosure
from oracles.problem import Problem
from oracles.reference import enclose

_TENSORS = (
    "hidden_states",
    "hidden_q",
    "hidden_scale",
    "topk_ids",
    "topk_weights",
    "w13",
    "w13_scale",
    "w2",
    "w2_scale",
    "w13_bias",
    "w2_bias",
)
_PARAMETERS = ("alpha", "beta", "limit", "linear_beta")
SETTINGS = ("poison", "pdl", "fused_finalize", "tactic")
"""Fields of a scenario's execution that a kernel is told."""
BY_DEFINITION = ("prepare", "call", "process", "no_local_expert", "reference", "replay")
"""Checks that compare an answer with what the layer's definition says; the others compare answers with each other."""
_SAME_ARITHMETIC = ("poison", "guard", "masked_weight", "absent", "isolation", "pdl", "replay_eager")
"""Checks whose answers are bit-equal where the oracle is deterministic; the rest need a promise of batch invariance."""


@dataclass(frozen=True)
class Packed:
    """A tensor as text. dtype: torch's name. text: zlib-compressed bytes in base 85, in lines."""

    name: str
    dtype: str
    shape: list[int]
    text: str

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Packed:
        data = tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        text = base64.b85encode(zlib.compress(data, 9)).decode()
        return cls(
            name,
            str(tensor.dtype).removeprefix("torch."),
            list(tensor.shape),
            "\n".join(textwrap.wrap(text, 100, break_on_hyphens=False)),
        )


@dataclass(frozen=True)
class Question:
    """What one question has that the first has not: tensors and plain values; of the first, all."""

    tensors: list[Packed]
    values: dict[str, Any]


@dataclass(frozen=True)
class Inquiry:
    """All that a script asks, in order, and judges by.

    bounds: of each answer that is judged on its own: low, high (float64) and kinds (uint8), all [M, H]. slack: how far
    two answers may be apart, float64 [M, H] with NaN where nothing is claimed; None: equal to the bit.
    """

    questions: list[Question]
    bounds: list[list[Packed]] = field(default_factory=list)
    slack: Packed | None = None


def inquiry(problem: Problem, oracle: Oracle, check: str, *, sharp: bool) -> Inquiry:
    """What the `check` asks of `oracle` about `problem`, and judges by. sharp: by the sharp radius.

    The questions come from the check itself, which runs on a stand-in: no kernel is needed.
    """
    problems = _asked(problem, oracle, check)
    questions = [question(problems[0])]
    questions += [difference(question(other), questions[0]) for other in problems[1:]]
    if check in BY_DEFINITION:
        bounds = [_bounds(enclose(each, oracle.numerics), sharp=sharp) for each in problems]
        return Inquiry(questions, bounds=bounds)
    return Inquiry(questions, slack=_slack(problems, oracle, check, sharp=sharp))


def question(problem: Problem) -> Question:
    """All of `problem`, by the names of `oracles.reproductions`."""
    inputs = {name: getattr(problem, name) for name in _TENSORS}
    inputs |= {f"parameters.{name}": getattr(problem.activation, name) for name in _PARAMETERS}
    layer, execution = problem.scenario.layer, problem.scenario.execution
    return Question(
        tensors=[Packed.of(name, tensor) for name, tensor in inputs.items() if tensor is not None],
        values={
            **{name: None for name, tensor in inputs.items() if tensor is None and "." not in name},
            "activation": problem.activation.kind,
            "first_expert": problem.first_expert,
            "num_experts": problem.num_experts,
            "ep_size": problem.ep_size,
            "ep_rank": problem.ep_rank,
            "moe_tp_size": layer.moe_tp_size,
            "moe_tp_rank": layer.moe_tp_rank,
            "routed_scaling_factor": problem.routed_scaling_factor,
            **{name: getattr(execution, name) for name in SETTINGS},
        },
    )


def difference(other: Question, first: Question) -> Question:
    """What `other` has that `first` has not."""
    return Question(
        tensors=[packed for packed in other.tensors if packed not in first.tensors],
        values={name: value for name, value in other.values.items() if value != first.values[name]},
    )


def _asked(problem: Problem, oracle: Oracle, check: str) -> list[Problem]:
    """The problem, and those that the check asks about beside it."""
    byte = problem.scenario.execution.poison
    match check:
        case "poison" | "guard":
            return [variants.with_poison(problem, fill) for fill in (byte, byte ^ 0xFF)]
        case "replay" | "replay_eager":
            changes = enumerate(problem.scenario.execution.replays, 1)
            return [problem, *(variants.replayed(problem, change, number) for number, change in changes)]
    asker = _Asker(problem, oracle)
    if check in CHECKS and check != "determinism":
        CHECKS[check].run(asker)
    return [problem, *asker.asked]


class _Asker(Subject):
    """A subject that only notes what it is asked. Every answer is 0, and none is objected to."""

    def __init__(self, problem: Problem, oracle: Oracle) -> None:
        spans = Spans()
        output = problem.hidden_states.new_zeros(problem.hidden_states.shape, dtype=problem.output_dtype)
        super().__init__(Guarded(oracle, oracle.name, spans), None, problem, None, output, spans)
        self.asked: list[Problem] = []

    def ask(self, problem: Problem) -> torch.Tensor:
        reason = self.candidate.oracle.unsupported(captures.described(problem.scenario))
        if reason is not None:
            raise Declined(reason)
        self.asked.append(problem)
        return self.output.new_zeros(problem.hidden_states.shape)

    def same_arithmetic(self, got: torch.Tensor) -> None:  # noqa: ARG002
        return None

    def same_value(self, got: torch.Tensor) -> None:  # noqa: ARG002
        return None


def _bounds(enclosure: Enclosure, *, sharp: bool) -> list[Packed]:
    radius = enclosure.sharp if sharp else enclosure.hard
    bounds = {"low": enclosure.center - radius, "high": enclosure.center + radius, "kinds": enclosure.kinds}
    return [Packed.of(name, tensor) for name, tensor in bounds.items()]


def _slack(problems: list[Problem], oracle: Oracle, check: str, *, sharp: bool) -> Packed | None:
    """See `Inquiry`; as `difftest.judging.checks` has it."""
    promised = getattr(oracle, "batch_invariant", False) or check in _SAME_ARITHMETIC
    if check in ("inputs", "empty", "determinism"):
        return None
    if check != "ep_sum" and promised and getattr(oracle, "deterministic", True):
        return None
    enclosures = [enclose(each, oracle.numerics) for each in problems]
    if check == "ep_sum":
        return Packed.of("slack", _rank_slack(enclosures))
    # Of a replay's answer two runs, of any other check's two answers to what the first question asks.
    judged = enclosures if check == "replay_eager" else enclosures[:1]
    slack = [2 * (each.sharp if sharp else each.hard) * ROUNDED for each in judged]
    claimed = [torch.where(each.kinds == FINITE, radius, torch.nan) for each, radius in zip(judged, slack, strict=True)]
    return Packed.of("slack", torch.stack(claimed) if check == "replay_eager" else claimed[0])


def _rank_slack(enclosures: list[Enclosure]) -> torch.Tensor:
    """|sum y_r - y| <= sum radius_r + radius + |sum center_r - center|, and the rounding of a sum in float64."""
    mine, whole, *others = enclosures
    ranks = (mine, *others)
    center = sum((rank.center for rank in others), mine.center)
    hard = sum((rank.hard for rank in others), mine.hard)
    largest = sum((rank.center.abs() + rank.hard for rank in others), mine.center.abs() + mine.hard)
    kinds = whole.kinds
    for rank in ranks:
        kinds = kinds | rank.kinds
    slack = (hard + whole.hard + (center - whole.center).abs() + 2.0**-48 * largest) * ROUNDED
    return torch.where(kinds == FINITE, slack, torch.nan)
