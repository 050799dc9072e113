"""An oracle with its mistakes caught: nothing that an oracle raises or returns gets past `Guarded` unseen."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import torch

from difftest.judging.compare import Breach, malformed
from difftest.judging.outcome import Verdict
from difftest.router.judge import malformed_table
from oracles import captures
from oracles.base import AnyOracle, ProcessEnded, missing_of, runs_on
from oracles.problem import Problem
from oracles.router_problem import RouterProblem, RoutingTable
from strategies.plain import AnyScenario
from strategies.scenario import Scenario

_T = TypeVar("_T")

_KIND_LENGTH = 100
_TRACEBACK_FRAMES = 20

PHASES = ("materialise", "prepare", "kernel", "reference", "compare", "checks")
"""What a case's time goes into, see `Spans`."""


class Rejected(Exception):
    """The oracle raised. step: "unsupported", "prepare" or "call". kind, detail, traceback: see `Outcome`.

    ended: the verdict, CRASHED or HUNG, where a process that it computes in ended or did not answer; else None.
    """

    def __init__(self, step: str, error: BaseException, who: str = "") -> None:
        name, text = type(error).__name__, first_line(error)
        self.step = step
        # Which allocation failed, and what was free then, is no part of the mistake.
        cause = "out of memory" if isinstance(error, torch.OutOfMemoryError) else f"{name}: {without_digits(text)}"
        self.kind = f"{who}{cause}"[:_KIND_LENGTH].rstrip(": ")
        self.detail = f"{who}{name}: {text}".rstrip(": ")
        self.traceback = "".join(traceback.format_exception(error, limit=-_TRACEBACK_FRAMES))
        self.ended: Verdict | None = None
        if isinstance(error, ProcessEnded):
            self.ended = Verdict.HUNG if error.how is None else Verdict.CRASHED
            self.kind, self.detail, self.traceback = error.how or "timeout", f"{who}{text}", ""
        super().__init__(self.detail)


class Malformed(Exception):
    """The oracle returned what is no answer: the wrong type, shape, dtype or device."""

    def __init__(self, breach: Breach) -> None:
        self.breach = breach
        super().__init__(breach.detail)


class Declined(Exception):
    """The oracle does not promise to answer this. reason: its words."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def first_line(error: BaseException) -> str:
    """The first line of the message that is not blank; "" when there is none, or when making it fails in turn."""
    try:
        lines = str(error).splitlines()
    except Exception:
        return ""
    return next((line.strip() for line in lines if line.strip()), "")


def without_digits(text: str) -> str:
    """`text` with each path, number, address and list of numbers as "#": one cause has one text at every size, and
    wherever the kernel was built."""
    text = re.sub(r"(?:[\w.+-]*/){2,}[\w.+-]*(:\d+)?", "#", text)
    text = re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?", "#", text)
    return re.sub(r"#(,\s*-?#)+", "#", text)


class Spans:
    """Where the time of the runs went, in seconds, exclusive of each other.

    materialise: scenario -> tensors. prepare, kernel: the oracles, the reference-free checks' runs included.
    reference: enclosures. compare: judging. checks: what those checks do themselves, as the copies of the inputs.
    total: all of these, and the tool's overhead.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Set all to 0."""
        self.seconds = dict.fromkeys(("total", *PHASES), 0.0)
        self._inside = 0.0
        """Of the block that is measured now: seconds that belong to blocks in it."""

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the block to `name`, but for that of blocks in it."""
        start, around = time.perf_counter(), self._inside
        self._inside = 0.0
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[name] += took if name == "total" else took - self._inside
            self._inside = around + took

    @property
    def overhead(self) -> float:
        """Seconds that none of the phases explains: what the tool does for itself."""
        return self.seconds["total"] - sum(self.seconds[name] for name in PHASES)


class Guarded:
    """An oracle whose exceptions become `Rejected`, whose answers are checked, and whose time is measured.

    role: "" for the candidate, "reference" for the other oracle, whose mistakes are told as such. deterministic,
    batch_invariant: what it declares (see `difftest.judging.checks`). numerics: what it declares, narrowed by what
    was measured here (see `difftest.calibration`).
    """

    def __init__(self, oracle: Any, name: str, spans: Spans, role: str = "") -> None:
        self.oracle = oracle
        self.name = name
        self.numerics: Any = oracle.numerics
        self.deterministic = bool(getattr(oracle, "deterministic", True))
        self.batch_invariant = bool(getattr(oracle, "batch_invariant", False))
        self._spans = spans
        self._role = role
        self._who = f"{role} {name}: " if role else ""
        self._missing: str | None = None
        self._looked = False

    def home(self, problem: Problem) -> torch.device:
        """Where the oracle works on `problem`: on the problem's device, or on a GPU that it brings the tensors to."""
        states = problem.hidden_states
        elsewhere = not states.is_cuda and runs_on(self.oracle) == "cuda" and torch.cuda.is_available()
        return torch.device("cuda") if elsewhere else states.device

    def require(self, scenario: AnyScenario) -> None:
        """Raise `Declined` when the oracle cannot run here, or does not promise to answer `scenario`."""
        if not self._looked:
            self._missing = self._caught("unsupported", missing_of, self.oracle)
            self._looked = True
        if isinstance(scenario, Scenario):
            scenario = captures.described(scenario)
        reason = self._missing or self._caught("unsupported", self._reason, scenario)
        if reason is not None:
            raise Declined(self._who + reason)

    def _reason(self, scenario: AnyScenario) -> str | None:
        reason = self.oracle.unsupported(scenario)
        if reason is not None and not (isinstance(reason, str) and reason.strip()):
            raise TypeError(f"unsupported returned {reason!r}, must be None or a reason")
        return reason

    def prepare(self, problem: Problem | RouterProblem) -> Any:
        with self._spans.measure("prepare"):
            return self._caught("prepare", self.oracle.prepare, problem)

    def call(self, prepared: Any, problem: Problem | RouterProblem) -> Any:
        """[M, H] of a layer, or a router's table; a copy: the oracle may answer in one buffer every time.

        Raises `Rejected` or `Malformed`.
        """
        with self._spans.measure("kernel"):
            output = self._caught("call", self.oracle, prepared)
        return self._checked(output, problem)

    def _checked(self, output: Any, problem: Problem | RouterProblem) -> Any:
        if isinstance(problem, RouterProblem):
            breach = malformed_table(output, problem)
        else:
            states = problem.hidden_states
            breach = malformed(output, tuple(states.shape), problem.output_dtype, states.device)
        if breach is not None:
            raise Malformed(replace(breach, detail=self._who + breach.detail))
        if isinstance(problem, RouterProblem):
            return RoutingTable(*(tensor.clone() for tensor in output))
        return output.clone()

    @property
    def run_into(self) -> Callable[[Any, torch.Tensor], object] | None:
        """The optional `run_into(prepared, output)` of an oracle that can write into the caller's output."""
        found = getattr(self.oracle, "run_into", None)
        if found is None:
            return None

        def run(prepared: Any, output: torch.Tensor) -> object:
            with self._spans.measure("kernel"):
                return self._caught("call", found, prepared, output)

        return run

    @property
    def replay(self) -> Callable[[Any, Problem], torch.Tensor] | None:
        """The optional `replay(prepared, problem)` of an oracle that captures its call; answers as `call` does."""
        found = getattr(self.oracle, "replay", None)
        if found is None:
            return None

        def run(prepared: Any, problem: Problem) -> torch.Tensor:
            with self._spans.measure("kernel"):
                output = self._caught("call", found, prepared, problem)
            answer: torch.Tensor = self._checked(output, problem)
            return answer

        return run

    @cached_property
    def eager(self) -> Guarded | None:
        """The optional `eager` of an oracle that captures its call: the same call without a capture."""
        found: AnyOracle | None = getattr(self.oracle, "eager", None)
        return None if found is None else Guarded(found, found.name, self._spans, self._role)

    def _caught(self, step: str, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call `function`. SystemExit and the like are the oracle's mistake too; only the user's interrupt passes."""
        try:
            return function(*arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise Rejected(self._role or step, error, self._who) from None
