"""One pytest run that concerns difftest, as each of its processes knows it. No torch."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from difftest.options import OPTIONS, InvalidOption, Options

SUFFIX = ".case.json"
"""`difftest.ledger.cases.SUFFIX`, which is not imported here: this module is loaded in every pytest run."""

CASES_INI = "difftest_cases"
SUITE = Path(__file__).resolve().parent.parent / "suite"
"""The properties that `pytest difftest` runs."""

_WORKERINPUT = "difftest"


def dest(name: str) -> str:
    """Where pytest keeps the value of the option `name`."""
    return f"difftest_{name}"


class Session:
    """A run that concerns difftest.

    options: as given, with the base seed. known: the ledger's case files when the run began; a case that a shard saves
    later is not a test of the same run. claims: a folder that all processes of the run share, see
    `difftest.ledger.claims`.
    """

    def __init__(self, options: Options, known: Iterable[Path], claims: Path) -> None:
        self.options = options
        self.known = tuple(known)
        self.claims = claims
        self._cases_given = False

    @classmethod
    def enter(cls, config: pytest.Config) -> bool:
        """Make the session of this process, if the run concerns difftest. Raises UsageError for a wrong option."""
        workerinput = getattr(config, "workerinput", None)
        if workerinput is not None:
            session = cls._taken_over(workerinput.get(_WORKERINPUT))
        else:
            session = cls._begun(config) if _is_concerned(config) else None
        if session is not None:
            session._cases_given = config.getoption(dest("cases")) is not None
        config.stash[_KEY] = session
        return session is not None

    @classmethod
    def _begun(cls, config: pytest.Config) -> Session:
        from difftest import preflight
        from difftest.ledger import cases

        given = _given(config)
        try:
            options = Options.parse(given)
            preflight.check_cases(options.cases)
            if given["candidate"] or given["reference"] or given["require"] or given["device"]:
                preflight.check(options)  # looks up the oracles, which imports torch: only where the user named any
        except (InvalidOption, preflight.Missing) as error:
            raise pytest.UsageError(str(error)) from None
        known = cases.known(options.cases, options.candidates)
        return cls(options, known, Path(tempfile.mkdtemp(prefix="difftest-")))

    @classmethod
    def _taken_over(cls, text: str | None) -> Session | None:
        if text is None:
            return None
        data = json.loads(text)
        return cls(Options.from_json(data["options"]), map(Path, data["known"]), Path(data["claims"]))

    def hand_to(self, workerinput: MutableMapping[str, Any]) -> None:
        """Let a worker enter this session."""
        data = {
            "options": self.options.to_json(),
            "known": [str(path) for path in self.known],
            "claims": str(self.claims),
        }
        workerinput[_WORKERINPUT] = json.dumps(data)

    def leave(self) -> None:
        """Remove what the processes shared. Not for a worker."""
        shutil.rmtree(self.claims, ignore_errors=True)

    def collects(self, path: Path, *, named: bool, everywhere: bool) -> bool:
        """Whether the case file is a test of this run. named: on the command line. everywhere: by configuration."""
        inside = self.options.cases.resolve() in path.resolve().parents
        if not (named or everywhere or (inside and self._cases_given)):
            return False
        # A worker of xdist that replaces another one must collect the same as all others did.
        return not inside or path.resolve() in {known.resolve() for known in self.known}


_KEY = pytest.StashKey[Session | None]()


def session_of(config: pytest.Config) -> Session | None:
    """The session of this process; None when the run does not concern difftest."""
    return config.stash.get(_KEY, None)


def _given(config: pytest.Config) -> dict[str, Any]:
    return {spec.name: config.getoption(dest(spec.name)) for spec in OPTIONS}


def _is_concerned(config: pytest.Config) -> bool:
    """Whether the user asked for difftest: by an option, by configuration, or by naming a case, the suite or a folder
    around it."""
    if config.getini(CASES_INI) or any(value is not None for value in _given(config).values()):
        return True
    return any(_names_difftest(config, str(arg).split("::")[0]) for arg in config.args)


def _names_difftest(config: pytest.Config, arg: str) -> bool:
    if arg.endswith(SUFFIX) or (config.option.pyargs and arg.split(".")[0] == "difftest"):
        return True
    path = (config.invocation_params.dir / arg).resolve()
    if SUITE.is_relative_to(path):
        return "site-packages" not in SUITE.relative_to(path).parts  # an environment inside of somebody's project
    return path.is_relative_to(SUITE)
