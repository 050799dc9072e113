"""The class of a mistake that no hypothesis gives: from how it shows, and what it needs to show."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from difftest.explain.answers import Answers
from difftest.explain.needs import Need
from difftest.explain.relation import Relation
from difftest.judging.outcome import Outcome, Verdict

SMALL = 2.0**-5
"""Errors of this share of a row's largest value, or less, are a matter of roundings: four ulps of bfloat16."""

CONFUSED = ("must_be_finite", "must_be_nonfinite")
"""Kinds of findings in which a value is finite that must not be, or the other way round."""

BY_CHECK = {
    "poison": "memory",
    "guard": "memory",
    "inputs": "memory",
    "isolation": "non-finite",
    "absent": "non-finite",
    "masked_weight": "non-finite",
    "determinism": "execution",
    "foreign": "routing",
    "no_local_expert": "routing",
    "ep_sum": "routing",
    "split": "execution",
    "permute": "execution",
    "pad": "execution",
    "pdl": "execution",
    "replay": "execution",
    "replay_eager": "execution",
}
"""What each check is about. That of weights of absent experts, and of masked slots, fills them with NaN."""

_ORDER = ("memory", "activation", "execution", "non-finite", "numerics", "routing")
"""Of two classes that a scenario's needs point to, the one that says more: what memory holds may matter to no kernel,
one kernel of several may have an activation wrong, and most mistakes need some routing."""


@dataclass(frozen=True, kw_only=True)
class Clues:
    """What is known of a finding.

    needed: by its smallest scenario. mine: what the candidate said to that. related: how the wrong values relate to the
    right ones. nan_padding: it is right where the rows that pad the batch hold no NaN. some_columns: a range of columns
    is wrong, and others are right. changes: asked again, it answers otherwise. alone: a later question of the check is
    answered wrongly by itself too, eagerly and first; `needed` and `mine` are then of that question. ordinary: so are
    questions like it whose values are finite and of ordinary size; likewise.
    """

    needed: list[Need]
    mine: Answers | None = None
    related: Relation | None = None
    nan_padding: bool = False
    some_columns: bool = False
    alone: bool = False
    changes: bool = False
    ordinary: bool = False


def suspect(finding: Outcome, clues: Clues) -> str:
    """One of `CLASSES` for the finding."""
    if finding.verdict is Verdict.NONDETERMINISTIC or finding.verdict is Verdict.HUNG or clues.changes:
        return "execution"
    if finding.verdict is Verdict.CRASHED:
        return "memory"
    kinds = {need.kind for need in clues.needed}
    pointed = [kind for kind in _ORDER if kind in kinds]
    if "memory" in kinds or (clues.related is not None and clues.related.kind == "memory"):
        return "memory"
    by_check = BY_CHECK.get(finding.check, "")
    elsewhere_too = {"execution": clues.alone, "non-finite": clues.ordinary}
    if by_check and not elsewhere_too.get(by_check, False):
        return by_check
    if finding.verdict is Verdict.REJECTED:
        return next((need.kind for need in clues.needed if need.kind), "execution")
    if clues.mine is not None and _is_of_rows_without_experts(clues.mine):
        return "routing"
    if finding.kind in CONFUSED and not clues.ordinary and not _overflows(clues, kinds):
        return "execution" if "execution" in kinds else "non-finite"
    if clues.nan_padding:
        return "non-finite"
    if "activation" in kinds:
        return "activation"
    if clues.mine is not None and clues.mine.exchanges and _largest_error(clues.mine) <= SMALL:
        return "numerics"
    if pointed and pointed[0] != "routing":
        return pointed[0]
    if clues.some_columns:
        return "memory"
    if clues.related is not None:
        return clues.related.kind
    return pointed[0] if pointed else "layout"


def _is_of_rows_without_experts(mine: Answers) -> bool:
    """Whether what is wrong is that rows without an expert of this rank are not 0."""
    return bool(mine.exchanges) and not bool(mine.wrong(0).any()) and mine.fills_lonely_rows(0)


def _overflows(clues: Clues, kinds: set[str]) -> bool:
    """Whether what must not be finite is so by overflow alone, and is not what saturates: it is a number as any other
    then, and too small."""
    if "non-finite" in kinds or not kinds or clues.mine is None or not clues.mine.exchanges:
        return False
    exchange = clues.mine.exchanges[0]
    got, bad = exchange.output, clues.mine.wrong(0)
    return bool((got[bad].isfinite() & (got[bad].abs() < torch.finfo(got.dtype).max)).all())


def _largest_error(mine: Answers) -> float:
    """The largest error as a share of its row's largest right value; infinite where there is none."""
    right, output, bad = mine.enclosed(0), mine.exchanges[0].output.double(), mine.wrong(0)
    size = torch.where(right.center.isfinite(), right.center.abs(), 0.0).amax(1, keepdim=True).expand_as(output)
    share = ((output - right.center).abs() / size)[bad]
    return float(share.nan_to_num(torch.inf, torch.inf).max()) if share.numel() else torch.inf
