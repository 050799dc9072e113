"""The scenarios of one shard, drawn by Hypothesis: the same ones for the same seed in any process.

This is the only module that runs Hypothesis, and it uses one thing that is not public: see `_no_constants`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator
from unittest import mock

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.errors import Unsatisfiable, UnsatisfiedAssumption
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.strategies import SearchStrategy

from strategies.plain import AnyScenario


class Enough(Exception):
    """Raised by a callback of `Stream`: end here."""


class _Leave(BaseException):
    """Leaves Hypothesis from inside a test: it handles an Exception as a failure of the test."""


class _Fails(Exception):
    """The scenario shows what is shrunk. One class, raised at one place: to Hypothesis all failures are one."""


ROUND = 9
"""Scenarios that one run of Hypothesis draws. From 10 on it would spend some of them on small ones that are much the
same for every seed; and what fails is drawn again, to be shrunk, from the start of its round alone."""


def round_seed(base_seed: int, shard: int, number: int) -> int:
    """The seed of a shard's round: 64 bits of a hash, so that none is shared, whatever the base seeds."""
    return int.from_bytes(hashlib.sha256(f"{base_seed} {shard} {number}".encode()).digest()[:8])


class Stream:
    """`count` distinct scenarios of one shard, less when there are no more.

    The first that Hypothesis tries is the same for every seed: only the first round of shard 0 counts it.
    """

    def __init__(self, strategy: SearchStrategy[AnyScenario], *, base_seed: int, shard: int, count: int) -> None:
        self._strategy = strategy
        self._base_seed = base_seed
        self._shard = shard
        self._count = count

    def each(self, visit: Callable[[AnyScenario], None]) -> None:
        """Call `visit` on each scenario. It may raise `Enough`; what else it raises comes out of here."""
        fresh = _Fresh()

        def test(scenario: AnyScenario) -> None:
            hypothesis.assume(fresh.admits(scenario))
            visit(scenario)

        for number in itertools.count():
            if not self._round(number, fresh, test, (Phase.generate,)):
                return

    def shrink(self, fails: Callable[[AnyScenario], bool]) -> None:
        """Draw the same scenarios up to the first that `fails`, then call it on ever simpler ones.

        `fails` must answer alike for equal scenarios, and keeps what it wants of them. It may raise `Enough`; what
        else it raises comes out of here.
        """
        fresh = _Fresh()
        failed = False

        def test(scenario: AnyScenario) -> None:
            nonlocal failed
            hypothesis.assume(failed or fresh.admits(scenario))
            if fails(scenario):
                failed = True
                raise _Fails

        for number in itertools.count():
            if not self._round(number, fresh, test, (Phase.generate, Phase.shrink)) or failed:
                return

    def _round(
        self, number: int, fresh: _Fresh, test: Callable[[AnyScenario], None], phases: tuple[Phase, ...]
    ) -> bool:
        """Run Hypothesis once; whether there may be more."""
        before = fresh.admitted
        fresh.skips_next = (self._shard, number) != (0, 0)
        enough = self._run(number, min(ROUND, self._count - before), test, phases)
        return not enough and before < fresh.admitted < self._count

    def _run(self, number: int, count: int, test: Callable[[AnyScenario], None], phases: tuple[Phase, ...]) -> bool:
        """Whether `Enough` was raised."""
        left_by: Exception | None = None

        def guarded(scenario: AnyScenario) -> None:
            nonlocal left_by
            try:
                test(scenario)
            except (UnsatisfiedAssumption, _Fails):
                raise
            except Exception as error:
                left_by = error
            if left_by is not None:
                raise _Leave

        # Every setting that a profile of the user or of a CI service may change is given.
        settings = hypothesis.settings(
            max_examples=count,
            phases=phases,
            database=None,
            deadline=None,
            derandomize=False,
            report_multiple_bugs=False,
            print_blob=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
            backend="hypothesis",
        )
        seed = hypothesis.seed(round_seed(self._base_seed, self._shard, number))
        run = seed(settings(hypothesis.given(self._strategy)(guarded)))
        # Unsatisfiable: there is nothing that was not drawn before.
        with _no_constants(), contextlib.suppress(_Leave, _Fails, Unsatisfiable):
            run()
        if left_by is not None and not isinstance(left_by, Enough):
            raise left_by
        return left_by is not None


class _Fresh:
    """Admits each scenario once, and not the next where that is another round's."""

    def __init__(self) -> None:
        self.skips_next = False
        self.admitted = 0
        self._seen: set[AnyScenario] = set()

    def admits(self, scenario: AnyScenario) -> bool:
        skipped, self.skips_next = self.skips_next, False
        new = scenario not in self._seen and not skipped
        self._seen.add(scenario)
        self.admitted += new
        return new


def _no_constant(*_args: object, **_kwargs: object) -> None:
    """Stands in for the provider's own method."""


@contextlib.contextmanager
def _no_constants() -> Iterator[None]:
    """Hypothesis draws one integer in twenty from the constants in the source of the modules that are loaded. Without
    that the draws depend on the seed alone, not on which process imported what before."""
    with mock.patch.object(HypothesisProvider, "_maybe_draw_constant", _no_constant):
        yield
