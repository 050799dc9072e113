"""The class of a mistake that no hypothesis gives: from how it shows, and what it needs to show."""

from __future__ import annotations

import torch

from difftest.explain.answers import Answers
from difftest.explain.needs import Need
from difftest.outcome import Outcome, Verdict

SMALL = 2.0**-5
"""Errors of this share of a row's largest value, or less, are a matter of roundings: four ulps of bfloat16."""

_BY_CHECK = {
    "poison": "memory",
    "guard": "memory",
    "inputs": "memory",
    "isolation": "non-finite",
    "determinism": "execution",
    "foreign": "routing",
    "masked_weight": "routing",
    "no_local_expert": "routing",
    "ep_sum": "routing",
    "split": "execution",
    "permute": "execution",
    "pad": "execution",
    "absent": "memory",
}
_ORDER = ("execution", "memory", "non-finite", "activation", "numerics", "routing")
"""Of two classes that a scenario's needs point to, the one that says more: most mistakes need some routing."""


def suspect(finding: Outcome, mine: Answers | None, needed: list[Need]) -> str:
    """One of `CLASSES` for the finding. mine: what the candidate said of its smallest scenario, None if not asked."""
    if finding.verdict is Verdict.NONDETERMINISTIC or finding.verdict is Verdict.HUNG:
        return "execution"
    if finding.verdict is Verdict.CRASHED:
        return "memory"
    if finding.check in _BY_CHECK:
        return _BY_CHECK[finding.check]
    if finding.verdict is Verdict.REJECTED:
        return next((kind for need in needed if (kind := need.kind)), "execution")
    kinds = {need.kind for need in needed}
    pointed = [kind for kind in _ORDER if kind in kinds]
    if finding.kind in ("must_be_finite", "must_be_nonfinite"):
        return pointed[0] if pointed and pointed[0] in ("execution", "memory") else "non-finite"
    if pointed and pointed[0] != "routing":
        return pointed[0]
    if mine is not None and mine.exchanges and _largest_error(mine) <= SMALL:
        return "numerics"
    return pointed[0] if pointed else "layout"


def _largest_error(mine: Answers) -> float:
    """The largest error as a share of its row's largest right value; infinite where there is none."""
    right, output, bad = mine.enclosed(0), mine.exchanges[0].output.double(), mine.wrong(0)
    size = torch.where(right.center.isfinite(), right.center.abs(), 0.0).amax(1, keepdim=True).expand_as(output)
    share = ((output - right.center).abs() / size)[bad]
    return float(share.nan_to_num(torch.inf, torch.inf).max()) if share.numel() else torch.inf
