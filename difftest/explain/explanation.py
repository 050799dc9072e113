"""What explains a finding, as data. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

Source = Literal["recipe", "fault"]

CLASSES = ("layout", "activation", "routing", "numerics", "non-finite", "memory", "execution")
"""Classes of mistakes, as in `oracles.faults`."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """A hypothesis whose answers hold the candidate's.

    name: of the fault, or of the recipe ("intermediate=float32"). source: "recipe", a rounding that the candidate does
    not declare, or "fault", a mistake of `oracles.faults`. kind: its class. summary: a fault in one sentence, a
    recipe in words that go on after "agrees if". predicts: the right answer is outside of it too, where the candidate
    is wrong; False for a recipe that only leaves so much room. changed: elements of the smallest scenario's answer
    that it takes outside of what is right. confirmed, contradicted: further scenarios in which the candidate was asked
    and gave this hypothesis's answer, or not; those count in which either is wrong.
    """

    name: str
    source: Source
    kind: str
    summary: str
    predicts: bool
    changed: int
    confirmed: int = 0
    contradicted: int = 0

    def __str__(self) -> str:
        return f"{self.source} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What a finding is due to.

    matches: hypotheses that fit the case and all else that the candidate was asked, the likeliest first; several
    could not be told apart. bad_set: where the breach is, and what that has in common, in a few words.
    needs: what the smallest scenario cannot do without. suspected: the class of mistake; that of the first match where
    there is one. refuted: hypotheses that fit the case alone. asked: further scenarios that the candidate was asked.
    reproduced: the candidate showed the finding again.
    """

    matches: tuple[Match, ...] = ()
    bad_set: str = ""
    needs: tuple[str, ...] = ()
    suspected: str
    refuted: tuple[str, ...] = ()
    asked: int = 0
    reproduced: bool = True

    @property
    def headline(self) -> str:
        """What it is, in one line."""
        if not self.reproduced:
            return "not seen again"
        if not self.matches:
            return f"nothing known matches; suspected class: {self.suspected}"
        first, *others = self.matches
        text = _told(first)
        if first.confirmed + first.contradicted:
            text += f"; so in {first.confirmed} of {first.confirmed + first.contradicted} further scenarios"
        if others:
            text += f"; not told apart from {', '.join(map(str, others))}"
        return text

    def __str__(self) -> str:
        """The explanation as a short paragraph."""
        parts = [f"{self.headline}.", f"Wrong: {self.bad_set}." if self.bad_set else ""]
        if self.needs and not self.matches:
            parts.append(f"The smallest scenario needs {', '.join(self.needs)}.")
        return " ".join(part for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        return data | {"matches": list(data["matches"]), "needs": list(self.needs), "refuted": list(self.refuted)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read `to_json`'s form."""
        lists = {name: tuple(data[name]) for name in ("needs", "refuted")}
        return cls(**{**data, **lists, "matches": tuple(Match(**match) for match in data["matches"])})


def _told(match: Match) -> str:
    if match.source == "fault":
        return f"does what fault {match.name} does ({match.kind}): {match.summary.rstrip('.')}"
    verb = "agrees" if match.predicts else "would be allowed"
    return f"{verb} if {match.summary} (recipe {match.name})"
