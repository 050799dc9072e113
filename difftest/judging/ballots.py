"""Ballots: what a candidate answered to a scenario and what it might have answered, and the comparison of several.

A ballot is a file, so that candidates in processes and environments of their own vote alike: each writes its own, and
no tensor is pickled. It is written only where a finding asks for it.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

import numpy as np
import torch

from difftest.judging.compare import ROUNDED, hidden, kind_of, one_kind
from difftest.judging.outcome import Bucket, Outcome
from difftest.judging.votes import AGREE, DIFFER, UNASKED, Pairs, Votes, answered, outside
from oracles.enclosure import FINITE, Enclosure
from strategies.plain import AnyScenario

PER_BUCKET = 32
"""Findings of one bucket whose scenario all candidates are asked again; more of the same say the same."""

Caster = Callable[[AnyScenario, Path], bool]
"""Writes a candidate's ballot on the scenario to the path; False when it does not answer it."""


@dataclass(frozen=True, kw_only=True)
class Ballot:
    """All [M, H], on the CPU. output: float64. The others: see `Enclosure`."""

    output: torch.Tensor
    center: torch.Tensor
    hard: torch.Tensor
    sharp: torch.Tensor
    kinds: torch.Tensor

    @classmethod
    def of(cls, output: torch.Tensor, enclosure: Enclosure) -> Self:
        return cls(output=output.double().cpu(), **{name: value.cpu() for name, value in vars(enclosure).items()})

    def save(self, path: Path) -> None:
        """Write it whole or not at all."""
        beside = path.with_suffix(".part")
        with beside.open("wb") as file:
            np.savez(file, **{name: value.numpy() for name, value in vars(self).items()})
        os.replace(beside, path)

    @classmethod
    def load(cls, path: Path) -> Self:
        with np.load(path) as stored:
            return cls(**{spec.name: torch.from_numpy(stored[spec.name]) for spec in fields(cls)})

    def radius(self, kind: str) -> torch.Tensor:
        """The radius that a finding of this kind is about."""
        return self.sharp if kind == "implausible" else self.hard

    def is_right(self, kind: str) -> bool:
        """Whether the output is inside the enclosure, by the radius of this kind of finding."""
        inside = (self.output - self.center).abs() <= self.radius(kind)
        return bool((torch.where(self.kinds == FINITE, inside, True) & ~hidden(self.output, self.kinds)).all())

    def agrees(self, other: Ballot, kind: str) -> bool:
        """Whether both can be right: |a - b| <= r_a + r_b + |ref_a - ref_b| where both must be finite; where neither
        may be, both finite or neither, and the same of NaN and the infinities where that is certain of both."""
        apart = (self.center - other.center).abs()
        allowed = (self.radius(kind) + other.radius(kind) + apart) * ROUNDED
        near = (self.output - other.output).abs() <= allowed
        near |= (self.output == other.output) | (self.output.isnan() & other.output.isnan())
        both = (self.kinds == FINITE) & (other.kinds == FINITE)
        neither = (self.kinds & FINITE == 0) & (other.kinds & FINITE == 0)
        certain = (self.kinds == other.kinds) & one_kind(self.kinds)
        alike = self.output.isfinite() == other.output.isfinite()
        alike &= ~certain | (kind_of(self.output) == kind_of(other.output))
        return bool((torch.where(both, near, True) & torch.where(neither, alike, True)).all())


class Poll:
    """Asks the candidates of a run for their ballots, and counts how they agree.

    pairs: over all scenarios so far.
    """

    def __init__(self, casters: Mapping[str, Caster]) -> None:
        """casters: by candidate, in their order."""
        self._casters = casters
        self._asked: Counter[Bucket] = Counter()
        self.pairs = Pairs()

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Take in what the candidates made of one scenario."""
        if len(self._casters) < 2:
            return
        found = {outcome.candidate: outside(outcome) for outcome in outcomes}
        ballots: Mapping[str, Ballot] | None = None
        for first, second in answered(outcomes):
            finding = found[first.candidate] or found[second.candidate]
            result = AGREE
            if finding is not None:
                if ballots is None:
                    ballots = self._ballots(finding)
                result = _compared(ballots, first.candidate, second.candidate, finding)
            self.pairs.add(first.candidate, second.candidate, result)

    def votes(self, finding: Outcome) -> Votes | None:
        """What the others say of a finding; None when there is none, or the finding is not about an answer."""
        if len(self._casters) < 2 or finding.check != "reference" or finding.stats is None:
            return None
        ballots, places = self._cast(finding.scenario), {}
        own = ballots.get(finding.candidate)
        for name in self._casters:
            if name == finding.candidate:
                continue
            if own is None or name not in ballots:
                places[name] = "silent"
            else:
                places[name] = _place(own, ballots[name], finding.kind)
        by_place = {spec.name: tuple(n for n, place in places.items() if place == spec.name) for spec in fields(Votes)}
        return Votes(**by_place)

    def _ballots(self, finding: Outcome) -> Mapping[str, Ballot]:
        self._asked[finding.bucket] += 1
        return self._cast(finding.scenario) if self._asked[finding.bucket] <= PER_BUCKET else {}

    def _cast(self, scenario: AnyScenario) -> dict[str, Ballot]:
        """The ballots of those that answer."""
        with tempfile.TemporaryDirectory(prefix="difftest-ballots-") as folder:
            found = {}
            for number, (name, cast) in enumerate(self._casters.items()):
                path = Path(folder) / f"{number}.npz"
                if cast(scenario, path):
                    found[name] = Ballot.load(path)
            return found


def _compared(ballots: Mapping[str, Ballot], first: str, second: str, finding: Outcome) -> str:
    if first not in ballots or second not in ballots:
        return UNASKED
    return AGREE if ballots[first].agrees(ballots[second], finding.kind) else DIFFER


def _place(own: Ballot, other: Ballot, kind: str) -> str:
    """The field of `Votes` that the other's ballot belongs in."""
    with_reference, with_candidate = other.is_right(kind), other.agrees(own, kind)
    if with_reference:
        return "undecided" if with_candidate else "against"
    return "beside" if with_candidate else "apart"
