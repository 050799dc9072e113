"""A campaign whose scenarios somebody else draws: each of them is judged when it comes, as one test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difftest.options import Options

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from difftest.campaign import Questions
    from strategies.plain import AnyScenario

_asked: tuple[Options, Sequence[Path]]
_questions: Questions | None = None


def begin(options: Options, known: Sequence[Path]) -> None:
    """What the user of this process asked for. Nothing is loaded before the first scenario is drawn."""
    global _asked, _questions  # the test is called with a scenario and nothing else
    _asked, _questions = (options, known), None


def strategy() -> SearchStrategy[Any]:
    """Scenarios for the candidates that can run."""
    return _campaign().strategy


def judge(scenario: AnyScenario) -> None:
    """Raises AssertionError for a finding that no known case explains. The first of its bucket is shrunk and saved."""
    from difftest.output import describe

    __tracebackhide__ = True
    new = _campaign().new_findings(scenario)
    if new:
        raise AssertionError("\n".join(map(describe.outcome_line, new)))


def _campaign() -> Questions:
    global _questions  # see `begin`
    if _questions is None:
        from difftest.campaign import Questions  # imports torch
        from difftest.ledger.claims import Claims

        # A fuzzer's processes have one parent: a bucket is shrunk and saved by one of them.
        folder = Path(tempfile.gettempdir()) / f"difftest-{os.getuid()}" / "fuzzed" / _parent()
        folder.mkdir(parents=True, exist_ok=True)
        _questions = Questions(*_asked, Claims(folder))
    return _questions


def _parent() -> str:
    """The parent, by its number and when it started: a number comes again, in a container soon."""
    pid = os.getppid()
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        started = ""
    return f"{pid}-{started}"
