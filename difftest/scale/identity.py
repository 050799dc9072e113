"""What makes two results parts of one campaign: the same scenarios, judged alike. No torch until one is taken."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from difftest.fingerprint import Fingerprint
from difftest.options import OPTIONS, Options

_OWN = ("cases", "json", "html", "summary", "imported", "workers", "isolate")
"""Options that each machine may choose: they change no scenario and no verdict."""

_DRAWN_BY = ("difftest", "hypothesis", "torch")
"""Distributions of which another version may draw or judge otherwise."""

_ABSENT = "absent"


@dataclass(frozen=True, kw_only=True)
class Identity:
    """options: those that decide what is drawn and how it is judged, as `Options.to_json` has them. versions: of what
    draws and judges. candidates: by spec of each that could run, what it is made of there; what is drawn follows from
    what those can do. ledger: a digest of the known cases."""

    options: Mapping[str, Any]
    versions: Mapping[str, str]
    candidates: Mapping[str, Mapping[str, str]]
    ledger: str

    @classmethod
    def take(cls, options: Options, ledger: Iterable[Path], fingerprints: Mapping[str, Fingerprint]) -> Self:
        """Of a campaign in this process. fingerprints: of the candidates that can run."""
        return cls(
            options=shared(options),
            versions={name: importlib.metadata.version(name) for name in _DRAWN_BY},
            candidates={spec: _made_of(found) for spec, found in fingerprints.items()},
            ledger=ledger_digest(ledger),
        )

    def difference(self, other: Identity) -> str | None:
        """How `other` is of another campaign, as "WHAT is X, not Y"; None when it is of this one."""
        for what, mine, theirs in (
            *_values(self.options, other.options, flag),
            *_values(self.versions, other.versions, "{}'s version".format),
        ):
            if mine != theirs:
                return f"{what} is {theirs}, not {mine}"
        for spec in dict.fromkeys((*self.candidates, *other.candidates)):
            if spec not in other.candidates or spec not in self.candidates:
                could, has = ("could not", "could") if spec not in other.candidates else ("could", "could not")
                return f"{spec} {could} run where it was made, and {has} elsewhere"
            for what, mine, theirs in _values(self.candidates[spec], other.candidates[spec], f"{spec}: {{}}".format):
                if mine != theirs:
                    return f"{what} is {theirs}, not {mine}"
        return None if self.ledger == other.ledger else "its known cases are others"

    def to_json(self) -> dict[str, Any]:
        return {
            "options": dict(self.options),
            "versions": dict(self.versions),
            "candidates": {spec: dict(made_of) for spec, made_of in self.candidates.items()},
            "ledger": self.ledger,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            options=data["options"],
            versions=data["versions"],
            candidates=data["candidates"],
            ledger=data["ledger"],
        )

    def whole(self, **own: Any) -> Options:
        """The campaign's options, with those in `own` (as `Options.to_json` has them) for this machine."""
        neutral = {"json": None, "html": None, "summary": None, "imported": None, "workers": None, "isolate": False}
        return Options.from_json({**self.options, **neutral, **own})


def shared(options: Options) -> dict[str, Any]:
    """The options that all parts of a campaign have in common; JSON-able, sequences as lists."""
    data = {name: value for name, value in options.to_json().items() if name not in _OWN}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}


def ledger_digest(paths: Iterable[Path]) -> str:
    """SHA-256 over what the known cases say, wherever they lie: not over the day on which a replay saw each last."""
    contents = sorted(hashlib.sha256(_said(path.read_bytes())).hexdigest() for path in paths)
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()


def _said(content: bytes) -> bytes:
    try:
        case = json.loads(content)
        for name in ("seen", "version"):  # which is the lowest that has all of its fields
            case.pop(name, None)
    except (ValueError, AttributeError, RecursionError):  # unreadable, which is told elsewhere
        return content
    return json.dumps(case, sort_keys=True).encode()


def _made_of(found: Fingerprint) -> dict[str, str]:
    """What may change its answers: versions, a private build, the architecture, the model of the radius."""
    return {
        "architecture": found.arch,
        "torch": found.torch,
        "radius model": str(found.radius_model),
        **found.packages,
        **{f"build {name}": value for name, value in found.build.items()},
    }


def flag(name: str) -> str:
    """The flag of an option, by its field of `Options`."""
    plain = {"candidates": "candidate", "activations": "activation"}.get(name, name)
    return next((spec.flag for spec in OPTIONS if spec.name == plain), name)


def _values(mine: Mapping[str, Any], theirs: Mapping[str, Any], named: Any) -> list[tuple[str, str, str]]:
    """(what, here, there) of each value; `_ABSENT` where there is none."""
    return [(named(name), _word(mine.get(name)), _word(theirs.get(name))) for name in dict.fromkeys((*mine, *theirs))]


def _word(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or _ABSENT
    return _ABSENT if value is None else str(value)
