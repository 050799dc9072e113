"""`*.case.json`: a finding as a file, which is a regression test today and an upstream report tomorrow. No torch."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from difftest.files import copy_whole, write_whole
from difftest.fingerprint import Fingerprint
from difftest.isolation import environment
from difftest.isolation.sequence import Step
from difftest.judging.outcome import Bucket, InvalidOutcome, Outcome
from difftest.ledger.triggers import Trigger
from strategies import recordings
from strategies.plain import AnyScenario, InvalidScenario
from strategies.reading import read
from strategies.scenario import Scenario

FORMAT_VERSION = 4
"""Version of the file's form. A reader refuses newer ones. Version 2 has `sequence`, version 3 `seen`, version 4
`trigger` and `sightings`; a case without them is written as the version that older readers know."""

_SINCE = {"sequence": 2, "seen": 3, "trigger": 4, "sightings": 4}

_OF_GPUS = ("device", "build")
"""Fields of the environment that a case of a CPU oracle does not have."""

SUFFIX = ".case.json"
SHIPPED = Path(__file__).parents[1] / "suite" / "cases"
"""The ledger of the oracles that come with difftest."""


class InvalidCase(ValueError):
    """A case file cannot be read. The message is one line that names the file, the field, and what is allowed."""


class CaseNotWritten(OSError):
    """A case file cannot be written. The message is one line that names the file and the reason."""


class Status(StrEnum):
    """What the ledger expects of a replay: that it still diverges, or that it agrees."""

    OPEN = "open"
    FIXED = "fixed"


@dataclass(frozen=True, kw_only=True)
class AppliesTo:
    """Where the case says anything; elsewhere its replay is not applicable.

    packages: version specifiers (PEP 440) by distribution of the candidate. arch: machine architectures, none for any.
    """

    packages: Mapping[str, str] = field(default_factory=dict)
    arch: tuple[str, ...] = ()

    def objection(self, here: Fingerprint) -> str | None:
        """Why the case says nothing here; None when it applies."""
        if self.arch and here.arch not in self.arch:
            return f"it is about {', '.join(self.arch)}, this machine is {here.arch}"
        for name, versions in self.packages.items():
            installed = _with_patches(here.packages.get(name), here.build.get("name", ""))
            if installed is None:
                return f"it is about {name}, which the candidate does not come from here"
            if not SpecifierSet(versions).contains(installed, prereleases=True):
                return f"it is about {name} {versions}, installed is {installed}"
        return None


@dataclass(frozen=True)
class Found:
    """How the case came up: base seed, shard, and the command that runs that campaign again."""

    seed: int
    shard: int
    command: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """One finding, kept.

    outcome: of the smallest scenario; a replay runs this one. worst: the outcome with the largest error seen, of the
    same bucket. environment: where `outcome` was seen. found: None for a case that no campaign drew. upstream: link
    to the report of an open case. deviation: the name of what the kernel does otherwise, one for all cases of one
    cause. explanation: what the mistake is, in the words of whoever looked into it. trigger: what shows the finding
    wherever a scenario has it, set by hand once that is understood; None where all of the scenario may be needed.
    sequence: what a new process must run before the scenario, where that alone does not show it. sightings: digests of
    scenarios that it was saved for although they have not all that its own has. seen: the day, as 2026-11-30, on which
    it was last seen; None where nobody noted it.
    Raises `InvalidCase` when the parts do not fit together.
    """

    outcome: Outcome
    worst: Outcome
    environment: Fingerprint
    applies_to: AppliesTo = AppliesTo()
    status: Status = Status.OPEN
    upstream: str | None = None
    deviation: str | None = None
    explanation: str | None = None
    found: Found | None = None
    trigger: Trigger | None = None
    sequence: tuple[Step, ...] = ()
    sightings: tuple[str, ...] = ()
    seen: str | None = None

    def __post_init__(self) -> None:
        if not self.outcome.is_finding:
            raise InvalidCase(f"outcome.verdict = {str(self.outcome.verdict)!r}: must be a finding's")
        if self.worst.bucket != self.bucket or self.worst.other_findings or self.outcome.other_findings:
            raise InvalidCase(
                f"worst = {self.worst.bucket}: must be one finding, of the outcome's bucket {self.bucket}"
            )
        if len(self._recordings) > 1:
            raise InvalidCase(f"worst.scenario.capture.digest: must be {self.recording}, that of the outcome")
        if self.seen is not None and not _is_day(self.seen):
            raise InvalidCase(f"seen = {self.seen!r:.60}: must be a day, as '2026-11-30'")
        for name, versions in self.applies_to.packages.items():
            try:
                SpecifierSet(versions)
            except InvalidSpecifier:
                raise InvalidCase(
                    f"applies_to.packages.{name} = {versions!r}: must be a version specifier, as '>=1.2,<2'"
                ) from None

    @property
    def scenario(self) -> AnyScenario:
        return self.outcome.scenario

    @property
    def candidate(self) -> str:
        return self.outcome.candidate

    @property
    def bucket(self) -> Bucket:
        return self.outcome.bucket

    @property
    def _recordings(self) -> list[str]:
        scenarios = [self.scenario, self.worst.scenario, *(step.scenario for step in self.sequence)]
        digests = [scenario.capture.digest for scenario in scenarios if isinstance(scenario, Scenario)]
        return list(dict.fromkeys(filter(None, digests)))

    @property
    def recording(self) -> str | None:
        """The digest of the recorded call that its scenarios take tensors from; None where they take none."""
        return next(iter(self._recordings), None)

    def seen_today(self) -> Case:
        """This case, seen again."""
        return dataclasses.replace(self, seen=today())

    def marked(self, status: Status | None, upstream: str | None) -> Case:
        """This case with another status or link; None leaves what is there."""
        return dataclasses.replace(self, status=status or self.status, upstream=upstream or self.upstream)

    def to_json(self) -> dict[str, Any]:
        """The content of the file. `bucket` is there for people and for search; a reader checks that it is right."""
        version = max((since for name, since in _SINCE.items() if getattr(self, name)), default=1)
        data: dict[str, Any] = {"version": version, "bucket": str(self.bucket), "status": str(self.status)}
        for name in ("upstream", "deviation", "explanation", "trigger", "seen"):
            if getattr(self, name) is not None:
                data[name] = str(getattr(self, name))
        data["applies_to"] = {"packages": dict(self.applies_to.packages), "arch": list(self.applies_to.arch)}
        data["outcome"] = self.outcome.to_json()
        data["worst"] = self.worst.to_json()
        if self.sequence:
            data["sequence"] = [step.to_json() for step in self.sequence]
        if self.sightings:
            data["sightings"] = list(self.sightings)
        if self.found is not None:
            data["found"] = dataclasses.asdict(self.found)
        data["environment"] = {
            name: value for name, value in dataclasses.asdict(self.environment).items() if value != ""
        }
        return data

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read `to_json`'s form. Raises `InvalidCase`, naming the field, for anything else."""
        top = _object("case", data)
        version = top.get("version")
        if type(version) is int and version > FORMAT_VERSION:
            raise InvalidCase(f"version = {version}: written by a newer difftest; this one reads {FORMAT_VERSION}")
        if type(version) is not int or version < 1:
            raise InvalidCase(f"version = {version!r}: must be an integer in [1, {FORMAT_VERSION}]")
        required = ("bucket", "status", "outcome", "worst", "environment")
        optional = ("version", "upstream", "deviation", "explanation", "applies_to", "found")
        _fields("", top, required, optional + tuple(name for name, since in _SINCE.items() if since <= version))
        case = cls(
            outcome=_outcome("outcome", top["outcome"]),
            worst=_outcome("worst", top["worst"]),
            environment=_environment(top["environment"]),
            applies_to=_applies_to(top.get("applies_to", {})),
            status=Status(_choice("status", top["status"], [str(status) for status in Status])),
            upstream=_string("upstream", top["upstream"]) if "upstream" in top else None,
            deviation=_string("deviation", top["deviation"]) if "deviation" in top else None,
            explanation=_string("explanation", top["explanation"]) if "explanation" in top else None,
            found=_found(top["found"]) if "found" in top else None,
            trigger=Trigger(_choice("trigger", top["trigger"], list(Trigger))) if "trigger" in top else None,
            sequence=_sequence(top.get("sequence", [])),
            sightings=_texts("sightings", top.get("sightings", [])),
            seen=_string("seen", top["seen"]) if "seen" in top else None,
        )
        if top["bucket"] != str(case.bucket):
            raise InvalidCase(f"bucket = {top['bucket']!r}: must be {str(case.bucket)!r}, that of the outcome")
        return case


def today() -> str:
    """The day by UTC, as 2026-11-30."""
    return datetime.now(UTC).date().isoformat()


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def load(path: Path) -> Case:
    """Read a case file; a recording that it needs is looked for beside it. Raises `InvalidCase`, naming file and field,
    when it is damaged, newer or not a case."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise InvalidCase(f"{path}: {reason}") from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        what = "is empty" if not text.strip() else f"is not JSON, or is cut off, at line {error.lineno}: {error.msg}"
        raise InvalidCase(f"{path}: {what}") from None
    except RecursionError:
        raise InvalidCase(f"{path}: is no case: it is nested too deeply") from None
    try:
        case = Case.from_json(data)
    except InvalidCase as error:
        raise InvalidCase(f"{path}: {error}") from None
    if case.recording is not None:
        recordings.add_folder(path.parent)
    return case


def paths(folder: Path) -> list[Path]:
    """The case files in `folder`, sorted by name; none when there is no such folder."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def about(case: Case, candidates: Iterable[str]) -> list[str]:
    """Those of `candidates` that the case is about: its own, and the same oracle in other environments."""
    return [spec for spec in candidates if case.candidate in (spec, environment.split(spec)[0])]


def known(folder: Path, candidates: Collection[str]) -> list[Path]:
    """The ledger of a campaign: the shipped cases about its candidates, and all in `folder`."""
    return [path for path in paths(SHIPPED) if about(load(path), candidates)] + paths(folder)


def new_path(folder: Path, case: Case) -> Path:
    """A name in `folder` that no file has: the bucket's slug and the digest of the scenario."""
    stem = f"{case.bucket}-{case.scenario.digest}"
    path, number = folder / f"{stem}{SUFFIX}", 1
    while path.exists() or recording_path(path).exists():
        number += 1
        path = folder / f"{stem}-{number}{SUFFIX}"
    return path


def save(case: Case, path: Path) -> None:
    """Write `case` to `path`, whole or not at all: beside it first, flushed, then renamed. Before that its recording is
    copied beside it, as NAME.safetensors.

    Raises `CaseNotWritten`, and leaves what was at `path`.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if case.recording is not None:
            _keep(case.recording, recording_path(path))
        write_whole(path, json.dumps(case.to_json(), indent=1) + "\n")
    except CaseNotWritten:
        raise
    except OSError as error:
        raise CaseNotWritten(f"{path}: cannot be written: {error.strerror}") from error


def recording_path(path: Path) -> Path:
    """Where the recording of the case at `path` is kept."""
    return path.with_name(path.name.removesuffix(SUFFIX) + recordings.SUFFIX)


def _keep(digest: str, path: Path) -> None:
    if path.is_file() and recordings.digest_of(path) == digest:
        return
    try:
        source = recordings.find(digest)
    except recordings.RecordingNotFound as error:
        raise CaseNotWritten(f"{path}: cannot be written: {error}") from error
    copy_whole(source, path)


def _with_patches(installed: str | None, build: str) -> str | None:
    """The version with the patches of a private build as its local part: ===0.6.18 is stock, ==0.6.18 is any."""
    if installed is None or not build.startswith(f"{installed}+"):
        return installed
    return f"{installed}+{re.sub('[^0-9A-Za-z]+', '.', build.removeprefix(installed)).strip('.')}"


def _object(where: str, data: object) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise InvalidCase(f"{where} = {data!r:.60}: must be a JSON object")
    return data


def _fields(where: str, data: Mapping[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    for name in required:
        if name not in data:
            raise InvalidCase(f"{where}{name}: must be given")
    for name in data:
        if name not in required and name not in optional:
            known = ", ".join(sorted(required + optional))
            raise InvalidCase(f"{where}{name} = {data[name]!r:.60}: must be left out; the fields are {known}")


def _choice(where: str, value: object, allowed: list[str]) -> str:
    if value not in allowed:
        raise InvalidCase(f"{where} = {value!r:.60}: must be one of {', '.join(allowed)}")
    return str(value)


def _string(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidCase(f"{where} = {value!r:.60}: must be a string")
    return value


def _integer(where: str, value: object) -> int:
    if type(value) is not int or value < 0:
        raise InvalidCase(f"{where} = {value!r:.60}: must be an integer >= 0")
    return value


def _strings(where: str, data: object) -> dict[str, str]:
    return {name: _string(f"{where}.{name}", value) for name, value in _object(where, data).items()}


def _texts(where: str, data: object) -> tuple[str, ...]:
    if not isinstance(data, list):
        raise InvalidCase(f"{where} = {data!r:.60}: must be a list of strings")
    return tuple(_string(where, text) for text in data)


def _outcome(where: str, data: object) -> Outcome:
    try:
        return Outcome.from_json(data)
    except InvalidOutcome as error:
        raise InvalidCase(f"{where}.{error}") from None


def _found(data: object) -> Found:
    found = _object("found", data)
    _fields("found.", found, ("seed", "shard", "command"))
    return Found(
        seed=_integer("found.seed", found["seed"]),
        shard=_integer("found.shard", found["shard"]),
        command=_string("found.command", found["command"]),
    )


def _sequence(data: object) -> tuple[Step, ...]:
    if not isinstance(data, list):
        raise InvalidCase(f"sequence = {data!r:.60}: must be a list of cases")
    steps = []
    for number, item in enumerate(data):
        where = f"sequence[{number}]"
        _fields(f"{where}.", _object(where, item), ("scenario", "checks"))
        if not isinstance(item["checks"], list):
            raise InvalidCase(f"{where}.checks = {item['checks']!r:.60}: must be a list of names")
        try:
            scenario = read(item["scenario"])
        except InvalidScenario as error:
            raise InvalidCase(f"{where}.scenario.{error}") from None
        steps.append(Step(scenario, tuple(_string(f"{where}.checks", name) for name in item["checks"])))
    return tuple(steps)


def _applies_to(data: object) -> AppliesTo:
    applies_to = _object("applies_to", data)
    _fields("applies_to.", applies_to, (), ("packages", "arch"))
    return AppliesTo(
        packages=_strings("applies_to.packages", applies_to.get("packages", {})),
        arch=_texts("applies_to.arch", applies_to.get("arch", [])),
    )


def _environment(data: object) -> Fingerprint:
    environment = _object("environment", data)
    texts = ("difftest", "python", "torch", "platform", "arch", "cpu", "isa")
    _fields("environment.", environment, (*texts, "packages", "radius_model", "lam"), _OF_GPUS)
    lam = environment["lam"]
    if not isinstance(lam, int | float) or isinstance(lam, bool) or not lam > 0:
        raise InvalidCase(f"environment.lam = {lam!r:.60}: must be a positive number")
    return Fingerprint(
        **{name: _string(f"environment.{name}", environment[name]) for name in texts},
        packages=_strings("environment.packages", environment["packages"]),
        radius_model=_integer("environment.radius_model", environment["radius_model"]),
        lam=float(lam),
        device=_string("environment.device", environment.get("device", "")),
        build=_strings("environment.build", environment.get("build", {})),
    )
