"""What a campaign is asked to do: one definition for the command line and for pytest. No torch."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import random
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

REFERENCE = "reference"
SHARDS = 64
"""Fixed, so that a seed gives the same scenarios whatever number of processes shares them out."""

SHARD_MINIMUM = 8
"""A shard of fewer scenarios is not worth its start: a small budget uses fewer shards instead."""

SEED_LIMIT = 2**32

TIMEOUT = 120
"""Seconds: a kernel that is compiled at its first call is to be built before, or needs more."""

DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A named budget. `shapes` is the profile of `strategies.scenarios` that it draws from."""

    name: str
    shapes: str
    examples: int
    summary: str


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="quick", shapes="quick", examples=300, summary="small shapes, seconds"),
        Profile(name="default", shapes="default", examples=1000, summary="all axes, minutes"),
        Profile(name="real", shapes="real", examples=100, summary="the shapes of real models"),
        Profile(name="nightly", shapes="default", examples=20_000, summary="all axes, hours"),
    )
}


@dataclass(frozen=True, kw_only=True)
class OptionSpec:
    """One option as the user meets it: `flag` on the command line of `difftest` and of pytest alike.

    metavar: "" for a switch, which takes no value.
    """

    name: str
    flag: str
    metavar: str
    help: str
    repeatable: bool = False

    @property
    def is_switch(self) -> bool:
        return not self.metavar


OPTIONS = (
    OptionSpec(
        name="candidate",
        flag="--candidate",
        metavar="ORACLE",
        repeatable=True,
        help="Oracle to test: a name, module:attribute or file.py:attribute; with @VERSION[+PATCH] in a build of its "
        "package, with @/PATH/TO/PYTHON in another interpreter. Repeatable. [default: all installed]",
    ),
    OptionSpec(
        name="reference",
        flag="--reference",
        metavar="ORACLE",
        help=f"Oracle to compare with. [default: {REFERENCE}]",
    ),
    OptionSpec(
        name="activation",
        flag="--activation",
        metavar="KIND",
        repeatable=True,
        help="Draw only layers with this activation, such as swiglu. Repeatable. [default: all]",
    ),
    OptionSpec(
        name="profile",
        flag="--profile",
        metavar="NAME",
        help="Shapes and budget: "
        + "; ".join(f"{p.name} ({p.examples} scenarios, {p.summary})" for p in PROFILES.values())
        + ". [default: default]",
    ),
    OptionSpec(
        name="examples",
        flag="--examples",
        metavar="N",
        help="Scenarios to draw in all, each judged for every candidate. [default: the profile's]",
    ),
    OptionSpec(
        name="seed",
        flag="--seed",
        metavar="N",
        help="Base seed: the same seed gives the same scenarios. [default: random, always printed]",
    ),
    OptionSpec(
        name="require",
        flag="--require",
        metavar="ORACLE",
        repeatable=True,
        help="Fail unless this candidate can run here. Repeatable.",
    ),
    OptionSpec(
        name="cases",
        flag="--cases",
        metavar="DIR",
        help="Folder of *.case.json: known cases are read from it, new ones saved in it. [default: cases]",
    ),
    OptionSpec(
        name="device",
        flag="--device",
        metavar="NAME",
        help="Where tensors are made and the reference computes: cpu or cuda. [default: where the candidate runs, but "
        "small scenarios on the CPU]",
    ),
    OptionSpec(
        name="isolate",
        flag="--isolate",
        metavar="",
        help="Run every candidate in processes of its own, which a crash or a hang does not take from the others. "
        "[default: those that run on a GPU, in another environment, or are known to crash]",
    ),
    OptionSpec(
        name="workers",
        flag="--workers",
        metavar="N",
        help="Processes for each isolated candidate. "
        "[default: one for each core but the driver's, at most 16, over all of pytest's]",
    ),
    OptionSpec(
        name="timeout",
        flag="--timeout",
        metavar="SECONDS",
        help=f"An isolated candidate hangs when a scenario takes longer. [default: {TIMEOUT}]",
    ),
    OptionSpec(
        name="json",
        flag="--json",
        metavar="FILE",
        help="Write every event to this file, one JSON object a line.",
    ),
    OptionSpec(
        name="html",
        flag="--html",
        metavar="FILE",
        help="Write a report of the run to this file: one page that needs no network.",
    ),
    OptionSpec(
        name="summary",
        flag="--summary",
        metavar="FILE",
        help="Append the end of the run to this file, as Markdown. [default: $GITHUB_STEP_SUMMARY, where it is set]",
    ),
)


_PATHS = ("cases", "json", "html", "summary", "imported")


class InvalidOption(ValueError):
    """An option's value is not allowed. The message is one line that names the option, the value and what is."""


def integer(flag: str, value: str | int, low: int, high: int | None = None) -> int:
    """An option's integer in [low, high]. Raises `InvalidOption`."""
    allowed = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    try:
        number = int(value)
    except ValueError:
        raise InvalidOption(f"{flag} {value}: must be {allowed}") from None
    if number < low or (high is not None and number > high):
        raise InvalidOption(f"{flag} {value}: must be {allowed}")
    return number


def _device(name: str | None) -> str | None:
    if name is not None and name not in DEVICES:
        raise InvalidOption(f"--device {name}: must be one of {', '.join(DEVICES)}")
    return name


def installed_candidates() -> tuple[str, ...]:
    """Names of the installed oracles but the reference, sorted; read from package metadata, nothing is imported."""
    entries = importlib.metadata.entry_points(group="difftest.oracles")
    return tuple(sorted({entry.name for entry in entries} - {REFERENCE}))


@dataclass(frozen=True, kw_only=True)
class Options:
    """A validated set of options. `parse` makes one from what a user typed.

    candidates, reference: specs for `oracles.get`. activations: kinds that are drawn, none for all. profile: a key of
    `PROFILES`. examples: scenarios drawn in all, each judged for every candidate. seed: the base seed of all shards.
    require: candidates that must run. cases: the ledger's folder. device, isolate, workers, timeout: see
    `difftest.isolation.executors.Isolation`. json, html, summary: where events, the page and the step's
    summary are written, or None. imported: the recorded call that is judged instead of drawn scenarios.
    Raises `InvalidOption`.
    """

    candidates: tuple[str, ...]
    reference: str = REFERENCE
    activations: tuple[str, ...] = ()
    profile: str = "default"
    examples: int
    seed: int
    require: tuple[str, ...] = ()
    cases: Path = Path("cases")
    device: str | None = None
    isolate: bool = False
    workers: int | None = None
    timeout: int = TIMEOUT
    json: Path | None = None
    html: Path | None = None
    summary: Path | None = None
    imported: Path | None = None

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InvalidOption("--candidate: no oracle is installed besides the reference; name one")
        for name in self.candidates:
            if name == self.reference:
                raise InvalidOption(f"--candidate {name}: is the --reference too; an oracle always agrees with itself")
        for kind in self.activations:
            from strategies.scenario import ACTIVATIONS  # not for every pytest run that loads the plugin

            if kind not in ACTIVATIONS:
                raise InvalidOption(f"--activation {kind}: must be one of {', '.join(ACTIVATIONS)}")
        if self.profile not in PROFILES:
            raise InvalidOption(f"--profile {self.profile}: must be one of {', '.join(PROFILES)}")
        integer("--examples", self.examples, 1)
        integer("--seed", self.seed, 0, SEED_LIMIT - 1)
        for name in self.require:
            if name not in self.candidates:
                known = ", ".join(self.candidates)
                raise InvalidOption(f"--require {name}: is not among the candidates ({known}); add --candidate {name}")
        if self.cases.exists() and not self.cases.is_dir():
            raise InvalidOption(f"--cases {self.cases}: is a file; must be a folder, made when the first case is saved")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Self:
        """Options from the values of `OPTIONS` by name, as typed (str, or an iterable of str where repeatable).

        None or an empty iterable means not given. The base seed is made here, once, when there is none.
        """
        values = {spec.name: given.get(spec.name) for spec in OPTIONS}
        profile = values["profile"] or "default"
        if profile not in PROFILES:
            raise InvalidOption(f"--profile {profile}: must be one of {', '.join(PROFILES)}")
        examples, seed = values["examples"], values["seed"]
        return cls(
            candidates=_distinct(values["candidate"]) or installed_candidates(),
            reference=values["reference"] or REFERENCE,
            activations=_distinct(values["activation"]),
            profile=profile,
            examples=PROFILES[profile].examples if examples is None else integer("--examples", examples, 1),
            seed=fresh_seed() if seed is None else integer("--seed", seed, 0, SEED_LIMIT - 1),
            require=_distinct(values["require"]),
            cases=Path(values["cases"] or "cases"),
            device=_device(values["device"]),
            isolate=bool(values["isolate"]),
            workers=None if values["workers"] is None else integer("--workers", values["workers"], 1),
            timeout=TIMEOUT if values["timeout"] is None else integer("--timeout", values["timeout"], 1),
            json=Path(values["json"]) if values["json"] else None,
            html=Path(values["html"]) if values["html"] else None,
            summary=Path(values["summary"]) if values["summary"] else None,
        )

    def command(self) -> str:
        """The shell command that runs the same again."""
        words = ["difftest", "run"] if self.imported is None else ["difftest", "import", str(self.imported)]
        for name in self.candidates:
            words += ["--candidate", name]
        if self.reference != REFERENCE:
            words += ["--reference", self.reference]
        for kind in self.activations:
            words += ["--activation", kind]
        if self.device is not None:
            words += ["--device", self.device]
        if self.isolate:
            words.append("--isolate")
        if self.timeout != TIMEOUT:
            words += ["--timeout", str(self.timeout)]
        if self.imported is None:
            words += ["--profile", self.profile, "--examples", str(self.examples), "--seed", str(self.seed)]
        return shlex.join(words)

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dict, for other processes and for reports."""
        data = dataclasses.asdict(self)
        paths = {name: getattr(self, name) for name in _PATHS}
        return data | {name: None if path is None else str(path) for name, path in paths.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read `to_json`'s form."""
        paths = {name: None if data[name] is None else Path(data[name]) for name in _PATHS}
        sequences = {name: tuple(data[name]) for name in ("candidates", "activations", "require")}
        return cls(**{**data, **paths, **sequences})


def processes_of(text: str) -> int | None:
    """The value of `-n`: an integer >= 1, or None for auto. Raises `InvalidOption`."""
    if text == "auto":
        return None
    try:
        return integer("-n", text, 1)
    except InvalidOption:
        raise InvalidOption(f"-n {text}: must be an integer >= 1, or auto") from None


def fresh_seed() -> int:
    """A base seed from the operating system."""
    return random.SystemRandom().randrange(SEED_LIMIT)


def _distinct(names: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names or ()))


def shards_of(examples: int) -> int:
    """How many of the `SHARDS` have work: at least `SHARD_MINIMUM` scenarios each, by `examples` alone."""
    return max(1, min(SHARDS, examples // SHARD_MINIMUM))


def share_of(examples: int, shard: int) -> int:
    """Scenarios that `shard` runs; the shares of a campaign's shards sum to `examples`. A campaign by time goes on with
    further shards of such shares."""
    active = shards_of(examples)
    return examples // active + (shard % active < examples % active)
