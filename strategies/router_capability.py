"""What a router accepts, as data: it shapes what is drawn, and explains what is not run."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass

from strategies.router import LogitsDtype, RouterScenario, Scoring, SetLogit, SetRow

_KNOWN: dict[str, frozenset[str]] = {
    "scorings": frozenset(typing.get_args(Scoring)),
    "dtypes": frozenset(typing.get_args(LogitsDtype)),
}


@dataclass(frozen=True, kw_only=True)
class RouterCapability:
    """The scenarios that a router promises to answer. The default promises all of them.

    scorings, dtypes: of the logits. biased: scorings for which a correction bias is promised. ungrouped, grouped:
    without and with group limits. most_experts, most_top_k: the largest E and K.
    Raises ValueError, naming the field, for a value that promises nothing sensible.
    """

    scorings: frozenset[str] = _KNOWN["scorings"]
    biased: frozenset[str] = _KNOWN["scorings"]
    unbiased: frozenset[str] = _KNOWN["scorings"]
    dtypes: frozenset[str] = _KNOWN["dtypes"]
    grouped: bool = True
    routed_scaling_factor: bool = True
    non_finite: bool = True
    empty_batch: bool = True
    most_experts: int = 1024
    most_top_k: int = 32

    def __post_init__(self) -> None:
        for name, known in (
            ("scorings", "scorings"),
            ("biased", "scorings"),
            ("unbiased", "scorings"),
            ("dtypes",) * 2,
        ):
            value = getattr(self, name)
            if not isinstance(value, frozenset) or not value <= _KNOWN[known] or (name == known and not value):
                raise ValueError(f"{name} = {value!r}: must be a frozenset of {', '.join(sorted(_KNOWN[known]))}")
        for name in ("most_experts", "most_top_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be at least 1")

    def objection(self, scenario: RouterScenario) -> str | None:
        """Why this router does not promise `scenario`, in a few words that group well; None when it does."""
        return next(self._objections(scenario), None)

    def _objections(self, scenario: RouterScenario) -> Iterator[str]:
        shape, scores, logits = scenario.shape, scenario.scores, scenario.logits
        if scores.scoring not in self.scorings:
            yield f"scoring {scores.scoring}"
        if scores.bias != "none" and scores.scoring not in self.biased:
            yield f"a correction bias with {scores.scoring}"
        if scores.bias == "none" and scores.scoring not in self.unbiased:
            yield f"no correction bias with {scores.scoring}"
        if logits.dtype not in self.dtypes:
            yield f"logits of {logits.dtype}"
        if shape.groups > 1 and not self.grouped:
            yield "group limits"
        if scores.routed_scaling_factor != 1.0 and not self.routed_scaling_factor:
            yield "routed_scaling_factor"
        if shape.experts > self.most_experts:
            yield f"more than {self.most_experts} experts"
        if shape.top_k > self.most_top_k:
            yield f"top_k above {self.most_top_k}"
        if not self.non_finite and has_non_finite(scenario):
            yield "NaN or infinity in the logits"
        if shape.tokens == 0 and not self.empty_batch:
            yield "M = 0"

    def union(self, other: RouterCapability) -> RouterCapability:
        """A capability that holds what either promises, and no more than its fields can tell apart."""

        def either(name: str) -> bool:
            return bool(getattr(self, name) or getattr(other, name))

        return RouterCapability(
            scorings=self.scorings | other.scorings,
            biased=self.biased | other.biased,
            unbiased=self.unbiased | other.unbiased,
            dtypes=self.dtypes | other.dtypes,
            most_experts=max(self.most_experts, other.most_experts),
            most_top_k=max(self.most_top_k, other.most_top_k),
            **{name: either(name) for name in ("grouped", "routed_scaling_factor", "non_finite", "empty_batch")},
        )


def has_non_finite(scenario: RouterScenario) -> bool:
    """Whether an edit sets a logit to NaN or an infinity."""
    edits = (edit for edit in scenario.logits.edits if isinstance(edit, SetLogit | SetRow))
    return any(not math.isfinite(edit.value) for edit in edits)
