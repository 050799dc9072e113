"""What one differential test came to: a verdict with the fields that it requires, as data. No torch."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Self

from strategies.plain import AnyScenario, InvalidScenario
from strategies.reading import read


class Verdict(StrEnum):
    """The classes of an outcome. All but AGREES and UNSUPPORTED are findings."""

    AGREES = "agrees"
    DIVERGES = "diverges"
    REJECTED = "rejected"
    UNSUPPORTED = "unsupported"
    CRASHED = "crashed"
    HUNG = "hung"
    NONDETERMINISTIC = "nondeterministic"


ENDS_PROCESS = frozenset({Verdict.CRASHED, Verdict.HUNG})
NOT_FINDINGS = frozenset({Verdict.AGREES, Verdict.UNSUPPORTED})


class InvalidOutcome(ValueError):
    """An outcome, or its JSON form, breaks a rule. The message names the field, the value and what is allowed."""


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise InvalidOutcome(f"{name} = {value!r}: must be {allowed}")


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """What makes two findings the same finding: who, in which check, with what verdict, of what kind."""

    oracle: str
    check: str
    verdict: Verdict
    kind: str

    def __str__(self) -> str:
        """A slug of at most 80 characters, fit for a file name; two buckets never share one."""
        parts = (PurePath(self.oracle).name, self.check, str(self.verdict), self.kind)
        text = ".".join(re.sub(r"[^a-z0-9_-]+", "-", part.lower()).strip("-") for part in parts)
        if len(text) <= 80 and parts == (self.oracle, self.check, self.verdict, self.kind) and text == ".".join(parts):
            return text
        digest = hashlib.sha256("\0".join((self.oracle, *parts[1:])).encode()).hexdigest()[:8]
        return f"{text[:71].rstrip('-.')}.{digest}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Worst:
    """The element that is furthest outside of what it may be. A NaN in it equals itself.

    token, column: its place in the [M, H] output of a layer, or in the [M, K] table of a router.
    got: the candidate's value. center: the expected value.
    hard, sharp: the ends (low, high) of the intervals a right implementation stays in; equal to center where no
    rounding is left open. radius: half of the interval that was left (0: the value had to be exact).
    """

    token: int
    column: int
    got: float
    center: float
    hard: tuple[float, float]
    sharp: tuple[float, float]
    radius: float

    def __post_init__(self) -> None:
        _require(self.token >= 0, "worst.token", self.token, "an integer >= 0")
        _require(self.column >= 0, "worst.column", self.column, "an integer >= 0")
        _require(not self.radius < 0, "worst.radius", self.radius, "a float >= 0")

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other) if isinstance(other, Worst) else NotImplemented

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def error(self) -> float:
        """|got - center|; NaN when either is NaN."""
        return abs(self.got - self.center)

    @property
    def ratio(self) -> float | None:
        """error / radius, or None where the value had to be exact or is not finite."""
        return self.error / self.radius if self.radius > 0 and math.isfinite(self.error) else None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How the output compares with the reference, element by element, and the bound that it was judged by.

    elements: M * H. compared: those with a value to compare (finite, and demanded or allowed to be). exact: of
    these, how many had radius 0. mismatches: of the exact, how many differ. median_ratio, max_ratio: error / sharp
    radius over the others, None when there are none. rms: of the reference's finite values. mean_radius: of the sharp
    radius, over the compared. median_ratio_hard, max_ratio_hard: error / hard radius. one_offs: sharp-only breaches
    that three redraws did not repeat (no finding).
    radius_model, lam, unit_roundoffs: version of the radius model, its lambda, and u of the two GEMMs' accumulators,
    so that a replay judges alike. calibrated: whether the sharp radius follows what `difftest calibrate` measured here,
    and not only what the oracle declares.
    """

    elements: int
    compared: int
    exact: int
    mismatches: int
    median_ratio: float | None
    max_ratio: float | None
    rms: float
    mean_radius: float
    median_ratio_hard: float | None = None
    max_ratio_hard: float | None = None
    one_offs: int = 0
    radius_model: int
    lam: float
    unit_roundoffs: tuple[float, float]
    calibrated: bool = False

    def __post_init__(self) -> None:
        counts = (self.mismatches, self.exact, self.compared, self.elements)
        _require(counts[0] >= 0 and list(counts) == sorted(counts), "stats", counts, "counts that contain each other")
        _require(self.one_offs >= 0, "stats.one_offs", self.one_offs, "an integer >= 0")


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How often something happened: `failures` of `runs`."""

    failures: int
    runs: int

    def __post_init__(self) -> None:
        _require(self.runs >= 1, "rate.runs", self.runs, "an integer >= 1")
        _require(0 <= self.failures <= self.runs, "rate.failures", self.failures, f"an integer in [0, {self.runs}]")

    def __float__(self) -> float:
        return self.failures / self.runs

    def __str__(self) -> str:
        return f"{self.failures} of {self.runs} runs"


ROUTING_KINDS = frozenset({"invalid_expert", "repeated_expert", "wrong_expert"})
"""Kinds of DIVERGES that are about the choice of one expert: `worst` then has ids of experts for values."""

VALUE_KINDS = ROUTING_KINDS | {"impossible", "implausible", "must_be_finite", "must_be_nonfinite", "not_bit_equal"}
"""Kinds of DIVERGES that are about one element, which `worst` then names."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One scenario, one candidate, one reference, and what came of it.

    candidate, reference: what `oracles.get` takes, or the oracle's name when it was given as an object.
    check: where a finding arose: "reference", a reference-free check of `difftest.judging.checks` ("determinism",
    "poison", "split", ...), or the step that raised ("unsupported", "prepare", "call"). Empty when there is no finding.
    kind: for DIVERGES "impossible", "implausible", "must_be_finite", "must_be_nonfinite", "not_bit_equal" (all with
    `worst`), or "shape_or_dtype", "inputs_changed", "guard_band"; for REJECTED the exception's type and its first
    line with the digits out; for CRASHED and HUNG the signal, exit status or deadline. Empty without a finding.
    detail: one line for people. traceback: of a rejection.
    reason: the oracle's words, UNSUPPORTED only. rate: how often it failed, NONDETERMINISTIC only.
    heat: where the output is wrong and how much, a line of characters for each row (`difftest.judging.heat`).
    stats: comparison with the reference, where the output could be compared; always there when it AGREES.
    other_findings: further buckets found in the same scenario, each without other findings of its own.
    Raises `InvalidOutcome` when a verdict lacks a field, or has one that is not its own.
    """

    verdict: Verdict
    scenario: AnyScenario
    candidate: str
    reference: str
    check: str = ""
    kind: str = ""
    detail: str = ""
    worst: Worst | None = None
    heat: tuple[str, ...] = ()
    reason: str | None = None
    rate: Rate | None = None
    stats: Agreement | None = None
    traceback: str = ""
    other_findings: tuple[Outcome, ...] = ()

    def __post_init__(self) -> None:
        verdict = self.verdict
        _require(bool(self.candidate), "candidate", self.candidate, "given")
        _require(bool(self.reference), "reference", self.reference, "given")
        for name in ("check", "kind", "detail"):
            value = getattr(self, name)
            if self.is_finding:
                _require(bool(value), name, value, f"given for {verdict}")
            else:
                _require(not value, name, value, f"empty for {verdict}")
        self._own("reason", verdict is Verdict.UNSUPPORTED)
        self._own("rate", verdict is Verdict.NONDETERMINISTIC)
        if verdict is Verdict.AGREES:
            _require(self.stats is not None, "stats", self.stats, "given for agrees")
        about_element = verdict is Verdict.DIVERGES and self.kind in VALUE_KINDS
        if verdict is not Verdict.NONDETERMINISTIC:  # which may know an element that it saw differ
            has_worst = "given" if about_element else "left out"
            _require((self.worst is not None) == about_element, "worst", self.worst, f"{has_worst} for {self._class}")
        _require(not self.traceback or verdict is Verdict.REJECTED, "traceback", self.traceback, "left out")
        seen = {self.bucket} if self.is_finding else set()
        for position, other in enumerate(self.other_findings):
            where = f"other_findings[{position}]"
            _require(self.is_finding and other.is_finding, where, str(other.verdict), "a finding beside a finding")
            _require(not other.other_findings, f"{where}.other_findings", len(other.other_findings), "empty")
            _require(other.scenario == self.scenario, f"{where}.scenario", other.scenario.digest, "the same scenario")
            _require(other.bucket not in seen, f"{where}.bucket", str(other.bucket), "a bucket not listed before")
            seen.add(other.bucket)

    def _own(self, name: str, required: bool) -> None:
        value = getattr(self, name)
        _require(bool(value) if required else value is None, name, value, "given" if required else "left out")

    @property
    def _class(self) -> str:
        return f"{self.verdict} {self.kind}".rstrip()

    @property
    def is_finding(self) -> bool:
        return self.verdict not in NOT_FINDINGS

    @property
    def bucket(self) -> Bucket:
        """Which finding this is. For AGREES and UNSUPPORTED check and kind are empty."""
        return Bucket(oracle=self.candidate, check=self.check, verdict=self.verdict, kind=self.kind)

    @property
    def findings(self) -> tuple[Outcome, ...]:
        """This outcome and its `other_findings`, each on its own; empty when it is no finding."""
        if not self.is_finding:
            return ()
        return (dataclasses.replace(self, other_findings=()), *self.other_findings)

    def __str__(self) -> str:
        """One line for people."""
        who = f"{self.scenario.digest} {self.candidate} {self.verdict}"
        match self.verdict:
            case Verdict.AGREES:
                assert self.stats is not None  # __post_init__
                exact = f"{self.stats.exact} of {self.stats.compared} exact"
                ratio = "" if self.stats.max_ratio is None else f", error/radius at most {self.stats.max_ratio:.3g}"
                return f"{who} with {self.reference}: {exact}{ratio}"
            case Verdict.UNSUPPORTED:
                return f"{who}: {self.reason}"
            case _:
                more = f" (and {len(self.other_findings)} more)" if self.other_findings else ""
                return f"{who} in {self.check}: {self.detail}{more}"

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dict; NaN and infinities as strings. Fields at their default are left out."""
        data: dict[str, Any] = _encode(self)
        return data

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read `to_json`'s form. Raises `InvalidOutcome`, naming the field, for anything else."""
        return typing.cast(Self, _decode(cls, data, ""))


def _encode(value: Any) -> Any:
    if isinstance(value, AnyScenario):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        fields = ((spec, getattr(value, spec.name)) for spec in dataclasses.fields(value))
        return {spec.name: _encode(content) for spec, content in fields if content != spec.default}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, Verdict) else value


def _decode(hint: Any, data: Any, where: str) -> Any:
    """Read `data` as `hint`; `where` is the dotted name of the field, for messages."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:  # every union here is "something or None"
        return None if data is None else _decode(arguments[0], data, where)
    if origin is tuple:
        _require(isinstance(data, list), where, data, "a list")
        if arguments[-1] is Ellipsis:
            arguments = (arguments[0],) * len(data)
        _require(len(data) == len(arguments), where, data, f"a list of {len(arguments)}")
        return tuple(_decode(a, item, f"{where}[{n}]") for n, (a, item) in enumerate(zip(arguments, data, strict=True)))
    if hint is AnyScenario:
        try:
            return read(data)
        except InvalidScenario as error:
            raise InvalidOutcome(f"{where}.{error}") from None
    if hint is Verdict:
        _require(data in list(Verdict), where, data, f"one of {', '.join(Verdict)}")
        return Verdict(data)
    if hint is float:
        known = isinstance(data, int | float) and not isinstance(data, bool)
        _require(known or data in ("nan", "inf", "-inf"), where, data, 'a number, or one of "nan", "inf", "-inf"')
        return float(data)
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, data, where)
    _require(type(data) is hint, where, data, {int: "an integer", str: "a string", bool: "true or false"}[hint])
    return data


def _decode_dataclass(cls: Any, data: Any, where: str) -> Any:
    _require(isinstance(data, Mapping), where or "outcome", data, "a JSON object")
    prefix = f"{where}." if where else ""
    specs = {spec.name: spec for spec in dataclasses.fields(cls)}
    for name in data:
        _require(name in specs, f"{prefix}{name}", data[name], f"left out: the fields are {', '.join(specs)}")
    for name, spec in specs.items():
        _require(name in data or spec.default is not dataclasses.MISSING, f"{prefix}{name}", None, "given")
    hints = typing.get_type_hints(cls)
    return cls(**{name: _decode(hints[name], content, f"{prefix}{name}") for name, content in data.items()})
