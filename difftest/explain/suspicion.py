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

_BY_CHECK = {
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

_ORDER = ("execution", "memory", "non-finite", "activation", "numerics", "routing")
"""Of two classes that a scenario's needs point to, the one that says more: most mistakes need some routing."""


@dataclass(frozen=True, kw_only=True)
class Clues:
    """What is known of a finding. needed: by its smallest scenario. mine: what the candidate said to that.

    related: how the wrong values relate to the right ones. nan_padding: it is right where the rows that pad the batch
    hold no NaN. some_columns: a range of columns is wrong, and others are right.
    """

    needed: list[Need]
    mine: Answers | None = None
    related: Relation | None = None
    nan_padding: bool = False
    some_columns: bool = False


def suspect(finding: Outcome, clues: Clues) -> str:
    """One of `CLASSES` for the finding."""
    if finding.verdict is Verdict.NONDETERMINISTIC or finding.verdict is Verdict.HUNG:
        return "execution"
    if finding.verdict is Verdict.CRASHED:
        return "memory"
    if clues.related is not None and clues.related.kind == "memory":
        return "memory"
    if finding.check in _BY_CHECK:
        return _BY_CHECK[finding.check]
    if finding.verdict is Verdict.REJECTED:
        return next((need.kind for need in clues.needed if need.kind), "execution")
    kinds = {need.kind for need in clues.needed}
    pointed = [kind for kind in _ORDER if kind in kinds]
    if finding.kind in ("must_be_finite", "must_be_nonfinite"):
        return pointed[0] if pointed and pointed[0] in ("execution", "memory") else "non-finite"
    if clues.nan_padding:
        return "non-finite"
    if pointed and pointed[0] not in ("numerics", "routing"):
        return pointed[0]
    if clues.some_columns:
        return "memory"
    if pointed and pointed[0] == "numerics":
        return pointed[0]
    if clues.mine is not None and clues.mine.exchanges and _largest_error(clues.mine) <= SMALL:
        return "numerics"
    if clues.related is not None:
        return clues.related.kind
    return pointed[0] if pointed else "layout"


def _largest_error(mine: Answers) -> float:
    """The largest error as a share of its row's largest right value; infinite where there is none."""
    right, output, bad = mine.enclosed(0), mine.exchanges[0].output.double(), mine.wrong(0)
    size = torch.where(right.center.isfinite(), right.center.abs(), 0.0).amax(1, keepdim=True).expand_as(output)
    share = ((output - right.center).abs() / size)[bad]
    return float(share.nan_to_num(torch.inf, torch.inf).max()) if share.numel() else torch.inf
