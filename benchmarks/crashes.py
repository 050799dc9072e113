"""What it costs that a candidate ends its process: `python benchmarks/crashes.py --workers 2`.

The candidate as it is, then one that ends its process on one of 50 scenarios: scenarios a second. Then one that does so
whenever nine tokens come with two slots: the seconds to reduce the first scenario of a campaign that shows it, once a
new process was seen to show it too.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Collection
from typing import Any

import torch
from measuring import PROFILE, asked, drawn, show
from rich.table import Table
from speed import judged

from difftest.engine import Engine
from difftest.isolation.executors import Isolation
from difftest.judging.outcome import Outcome, Verdict
from difftest.shrinking.shrink import Shrinker
from difftest.stream import Stream
from oracles.cutlass import Cutlass
from oracles.grouped_mm import GroupedMM
from strategies import scenarios
from strategies.plain import AnyScenario

ONE_IN = 50
CANDIDATES = {"grouped-mm": "GroupedMM", "cutlass": "Cutlass"}
_WARM = 20


class _Sometimes:
    """Ends the process on one scenario of `ONE_IN`."""

    def __call__(self, prepared: Any) -> torch.Tensor:
        _end_if(int(prepared.problem.scenario.digest, 16) % ONE_IN == 0)
        return super().__call__(prepared)


class _Often:
    """Ends the process on nine tokens and two slots, or more."""

    def __call__(self, prepared: Any) -> torch.Tensor:
        tokens, slots = prepared.problem.topk_ids.shape
        _end_if(tokens >= 9 and slots >= 2)
        return super().__call__(prepared)


def _end_if(wanted: bool) -> None:
    if wanted:
        os.kill(os.getpid(), signal.SIGKILL)


class SometimesGroupedMM(_Sometimes, GroupedMM):
    pass


class OftenGroupedMM(_Often, GroupedMM):
    pass


class SometimesCutlass(_Sometimes, Cutlass):
    pass


class OftenCutlass(_Often, Cutlass):
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--candidate", default="grouped-mm", help="grouped-mm or cutlass, or that of a build: cutlass@VERSION"
    )
    parser.add_argument("--workers", type=int, default=2, help="its processes [default: %(default)s]")
    parser.add_argument("--examples", type=int, default=1000, help="scenarios [default: %(default)s]")
    options = parser.parse_args()
    oracle, _, build = options.candidate.partition("@")
    if oracle not in CANDIDATES:
        parser.error(f"--candidate {options.candidate}: must be one of {', '.join(CANDIDATES)}, or of its builds")
    torch.set_num_threads(1)

    def spec(how: str) -> str:
        name = f"{__file__}:{how}{CANDIDATES[oracle]}" if how else oracle
        return f"{name}@{build}" if build else name

    isolation = Isolation(all=True, workers=options.workers)
    table = Table("", "scenarios", "processes ended", "seconds", "scenarios/s")
    table.title = f"{options.candidate}, {PROFILE}, {options.workers} workers"
    for how, told in (("", "as it is"), ("Sometimes", f"ends on one of {ONE_IN}")):
        count, ended, seconds = campaign(spec(how), isolation, options.examples)
        table.add_row(told, str(count), str(ended), f"{seconds:.1f}", f"{count / seconds:.1f}")
    count, ended, seconds = shrinking(spec("Often"), isolation)
    table.add_row("shrinking one that ends", str(count), str(ended), f"{seconds:.1f}", f"{count / seconds:.1f}")
    show(table)


def campaign(spec: str, isolation: Isolation, examples: int) -> tuple[int, int, float]:
    """Scenarios, those that ended their process, and seconds."""
    with asked(spec, isolation) as executor:
        strategy = scenarios(executor.introduction.capability, profile=PROFILE)
        judged(executor, Stream(strategy, base_seed=0, shard=1, count=_WARM * isolation.workers))
        start = time.perf_counter()
        verdicts = judged(executor, Stream(strategy, base_seed=0, shard=0, count=examples))
        return verdicts.total(), verdicts[Verdict.CRASHED], time.perf_counter() - start


def shrinking(spec: str, isolation: Isolation) -> tuple[int, int, float]:
    """Scenarios that are run, those that end their process, and seconds."""
    with asked(spec, isolation) as executor:
        engine = _Counting(spec, executor=executor)
        outcomes = (engine.check(scenario, checks=()) for scenario in drawn(executor.introduction, 0, 100))
        found = next(outcome for outcome in outcomes if outcome.verdict is Verdict.CRASHED)
        runs, ended, start = engine.runs, engine.ended, time.perf_counter()
        engine.run_afresh((), found.scenario, ())
        Shrinker(engine, found, lambda *_: None).shrink(None)
        return engine.runs - runs, engine.ended - ended + 1, time.perf_counter() - start


class _Counting(Engine):
    """ended: cases that ended their process."""

    ended = 0

    def check(self, scenario: AnyScenario, *, checks: Collection[str] | None = None) -> Outcome:
        before, outcome = self.runs, super().check(scenario, checks=checks)
        self.ended += self.runs > before and outcome.verdict is Verdict.CRASHED
        return outcome


if __name__ == "__main__":
    main()
