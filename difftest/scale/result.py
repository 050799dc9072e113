"""What some shards of a campaign came to, as a file that is joined with the others. No torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from difftest.findings import Summary
from difftest.ledger.cases import Case, InvalidCase
from difftest.scale.identity import Identity

FORMAT_VERSION = 1
"""Version of the file's form. A reader refuses every other one: what it counts may have changed its meaning."""


class InvalidResult(ValueError):
    """A result cannot be read. The message is one line that says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """identity: of the campaign. shards: scenarios that were judged, by shard in the order of their run. summary: of
    these shards alone. cases: of the summary's findings, in their order."""

    identity: Identity
    shards: Mapping[int, int]
    summary: Summary
    cases: tuple[Case, ...]

    def __post_init__(self) -> None:
        """Raises `InvalidResult` when the parts do not fit together."""
        if sum(self.shards.values()) != self.summary.scenarios:
            raise InvalidResult(f"its shards have {sum(self.shards.values())} scenarios, not {self.summary.scenarios}")
        if [case.bucket for case in self.cases] != [finding.bucket for finding in self.summary.findings]:
            raise InvalidResult("its cases are not those of its findings")

    def encode(self) -> bytes:
        """The content of the file: JSON, with the SHA-256 of all else that is in it."""
        data = {
            "version": FORMAT_VERSION,
            "campaign": self.identity.to_json(),
            "shards": {str(shard): scenarios for shard, scenarios in self.shards.items()},
            "summary": self.summary.to_json(),
            "cases": [case.to_json() for case in self.cases],
        }
        data = json.loads(json.dumps(data))  # as a reader has it, so that both count the same bytes
        return json.dumps({"sha256": _digest(data), **data}, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Read `encode`'s form. Raises `InvalidResult` when it is damaged, or of another version."""
        try:
            data = json.loads(content)
            version, digest = data["version"], data.pop("sha256")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise InvalidResult("is no result of `--shard`, or is cut off") from None
        if version != FORMAT_VERSION:
            raise InvalidResult(f"version = {version!r}: this difftest joins results of version {FORMAT_VERSION}")
        if digest != _digest(data):
            raise InvalidResult("is damaged: its content is not what was written (sha256)")
        try:
            return cls(
                identity=Identity.from_json(data["campaign"]),
                shards={int(shard): scenarios for shard, scenarios in data["shards"].items()},
                summary=Summary.from_json(data["summary"]),
                cases=tuple(map(Case.from_json, data["cases"])),
            )
        except InvalidResult:
            raise
        except InvalidCase as error:
            raise InvalidResult(f"cases: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidResult(f"does not have the fields of a result ({type(error).__name__}: {error})") from None


def load(path: Path) -> Result:
    """Read a result's file. Raises `InvalidResult`, naming it."""
    try:
        return Result.decode(path.read_bytes())
    except OSError as error:
        raise InvalidResult(f"{path}: cannot be read: {error.strerror}; name the file that --shard wrote") from None
    except InvalidResult as error:
        raise InvalidResult(f"{path}: {error}") from None


def _digest(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
