"""A campaign in a store: what it is, its ledger, the results of its shards, and the cases that they come to. No torch.

campaign.json           its options, and a digest of its ledger; written last of what a start writes
ledger/*.case.json      the known cases as they were at its start, and their recordings
shards/shard-00003.json the result of a shard
cases/*.case.json       what all results so far come to
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from difftest.files import write_whole
from difftest.ledger import cases
from difftest.options import OPTIONS, InvalidOption, Options
from difftest.scale.identity import flag, ledger_digest, shared
from difftest.scale.result import InvalidResult, Result
from difftest.scale.store import Store

FORMAT_VERSION = 1
_ABOUT = "campaign.json"


class Stored:
    """The campaign in `store`."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def options(self) -> dict[str, Any] | None:
        """Of the campaign that was started here (`shared`); None when none was. Raises `InvalidOption`."""
        content = self.store.read(_ABOUT)
        if content is None:
            return None
        try:
            about = json.loads(content)
            version, options = about["version"], dict(about.get("options", ()))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InvalidOption(f"{self.store.url}: its {_ABOUT} is no campaign's; name another folder") from None
        if version != FORMAT_VERSION:
            raise InvalidOption(
                f"{self.store.url}: holds a campaign of version {version}; this difftest runs version {FORMAT_VERSION}"
            )
        return options

    def key(self) -> str:
        """What its tasks keep on a node is named by: another campaign that is stored here later has another one. Raises
        `InvalidOption` when none was started here."""
        about = self.store.read(_ABOUT)
        if about is None:
            raise InvalidOption(
                f"{self.store.url}: has no {_ABOUT} here; the store must be a folder that all nodes share, or one of "
                "objects"
            )
        return hashlib.sha256(self.store.url.encode() + b"\0" + about).hexdigest()[:16]

    def start(self, options: Options) -> None:
        """Make it the campaign of `options`, with the ledger as it is now; go on where it is. Raises `InvalidOption`
        where another one is."""
        stored, given = self.options(), shared(options)
        if stored is not None:
            for name, value in given.items():
                if value != stored.get(name):
                    raise InvalidOption(
                        f"{self.store.url}: holds a campaign with another {flag(name)}; leave the option out to go on "
                        "with it, or name another folder"
                    )
            return
        known = cases.known(options.cases, options.candidates)
        for name, path in _named(known).items():
            recording = cases.recording_path(path)
            if recording.exists():
                self.store.write(f"ledger/{cases.recording_path(Path(name)).name}", recording.read_bytes())
            self.store.write(f"ledger/{name}", path.read_bytes())
        about = {"version": FORMAT_VERSION, "options": given, "ledger": ledger_digest(known)}
        self.store.write(_ABOUT, json.dumps(about, indent=1).encode() + b"\n")

    def ledger(self, folder: Path) -> list[Path]:
        """The known cases, brought into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.store.names("ledger"):
            content, path = self.store.read(name), folder / Path(name).name
            if content is not None and not path.exists():
                write_whole(path, content)
        return cases.paths(folder)

    def shards(self) -> list[int]:
        """Those that have a result, as far as names tell."""
        stems = [Path(name).stem.removeprefix("shard-") for name in self.store.names("shards")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def result(self, shard: int) -> Result | None:
        """The shard's result; None when there is none. Raises `InvalidResult`."""
        content = self.store.read(result_name(shard))
        if content is None:
            return None
        result = Result.decode(content)
        if list(result.shards) != [shard]:
            raise InvalidResult(f"is of other shards: {', '.join(map(str, result.shards))}")
        return result

    def write_result(self, shard: int, result: Result) -> None:
        """Raises OSError."""
        self.store.write(result_name(shard), result.encode())

    def write_cases(self, found: Iterable[cases.Case]) -> None:
        """Put what the results come to beside them. Raises OSError."""
        for case in found:
            name = f"cases/{case.bucket}-{case.scenario.digest}{cases.SUFFIX}"
            self.store.write(name, json.dumps(case.to_json(), indent=1).encode() + b"\n")


def given_or_stored(given: Mapping[str, Any], stored: Mapping[str, Any] | None) -> dict[str, Any]:
    """The values of `OPTIONS` as typed; those of the stored campaign where nothing was."""
    names, stored = {"candidate": "candidates", "activation": "activations"}, stored or {}
    return {spec.name: given.get(spec.name) or stored.get(names.get(spec.name, spec.name)) for spec in OPTIONS}


def result_name(shard: int) -> str:
    return f"shards/shard-{shard:05}.json"


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    """By a name that no other one has: the shipped ledger's and the user's may share some."""
    named: dict[str, Path] = {}
    for path in paths:
        stem, number = path.name.removesuffix(cases.SUFFIX), 1
        name = path.name
        while name in named:
            number += 1
            name = f"{stem}-{number}{cases.SUFFIX}"
        named[name] = path
    return named
