"""How many scenarios a second are judged, and what of it is the tool's own time: `python benchmarks/speed.py`.

Draws scenarios as a campaign does, and judges each for one candidate: reference, enclosure, journal and the sampled
reference-free checks included. Milliseconds a scenario: draw, materialise (its tensors), prepare and kernel (the
candidate), reference (enclosures), compare (judging), checks (what the reference-free checks do besides asking, as the
copies of the inputs), and the rest, which is the tool's overhead: handing over, the journal, outcomes, bookkeeping. "of
rest" is its share of the time outside of the kernel and the reference. Run it on a quiet machine: its clock is the
wall's.

With --isolate, or for a candidate on a GPU, cases are judged in worker processes while the next are drawn, as in a
campaign. The columns are then what one worker spends on a scenario, and overhead has this process's own besides:
driver, processor time of this process, which draws, hands over and takes the outcomes, less what it draws. driver
bounds scenarios/s, which is of all processes together.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import torch
from hypothesis.strategies import SearchStrategy
from measuring import asked, show
from rich.table import Table

from difftest.engine import Engine, Executor, Pending
from difftest.isolation.executors import Isolation
from difftest.journal import Journal
from difftest.judging.guard import PHASES
from difftest.judging.outcome import Verdict
from difftest.preflight import Missing, check_device
from difftest.stream import Stream
from strategies import scenarios
from strategies.scenario import Scenario

COLUMNS = ("draw", *PHASES, "overhead")

_WARM = 20
"""Scenarios for each process before the clock starts: what is loaded and cached once is no cost of a scenario."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """rate: scenarios a second. spent: milliseconds a scenario, by what they are spent on. driver: milliseconds of this
    process's processor time a scenario. findings: scenarios that show one."""

    rate: float
    spent: dict[str, float]
    driver: float
    findings: int

    @property
    def overhead_share(self) -> float:
        """The overhead as a share of all time outside of the kernel and the reference."""
        return self.spent["overhead"] / sum(self.spent[name] for name in COLUMNS if name not in ("kernel", "reference"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidate", action="append", help="an oracle [default: grouped-mm and ggml]")
    parser.add_argument("--examples", type=int, default=1000, help="scenarios [default: 1000]")
    parser.add_argument("--profile", default="quick", help="how large they are [default: quick]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="[default: where the candidate runs]")
    parser.add_argument("--isolate", action="store_true", help="use worker processes for CPU candidates too")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[1], help="processes for each isolated candidate [default: 1]"
    )
    options = parser.parse_args()
    if options.examples < 1:
        parser.error(f"--examples {options.examples}: must be at least 1")
    try:
        check_device(options.device)
    except Missing as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    table = Table("candidate", "workers", "scenarios/s", *COLUMNS, "of rest", "driver", "findings")
    table.title = f"ms a scenario, profile {options.profile}"
    for name in options.candidate or ["grouped-mm", "ggml"]:
        for workers in options.workers:
            isolation = Isolation(all=options.isolate, device=options.device, workers=workers)
            with asked(name, isolation) as executor:
                warm = _WARM * workers if executor.isolated else _WARM
                speed = measure(executor, options.examples, options.profile, options.seed, warm)
            table.add_row(
                name,
                str(workers) if executor.isolated else "-",
                f"{speed.rate:.1f}",
                *(f"{speed.spent[column]:.2f}" for column in COLUMNS),
                f"{speed.overhead_share:.0%}",
                f"{speed.driver:.2f}",
                str(speed.findings),
            )
    show(table)


def measure(executor: Executor, examples: int, profile: str, seed: int, warm: int) -> Speed:
    """Judge the scenarios of `seed`, after `warm` others."""
    judged(executor, Stream(_strategy(executor, profile), base_seed=seed, shard=1, count=warm))
    stream = Stream(_strategy(executor, profile), base_seed=seed, shard=0, count=examples)
    drawn: list[Scenario] = []
    clock = time.process_time if executor.isolated else time.perf_counter
    start = clock()
    stream.each(drawn.append)
    draw = clock() - start
    executor.spans.clear()
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        start, busy = time.perf_counter(), time.process_time()
        verdicts = judged(executor, stream, journal)
        whole, busy = time.perf_counter() - start, time.process_time() - busy
    seconds = {"draw": draw, **executor.spans.seconds}
    # Elsewhere a case runs while this process does its own part; here all of it is one after the other.
    judging = seconds["total"] + busy if executor.isolated else whole
    seconds["overhead"] = judging - draw - sum(seconds[phase] for phase in PHASES)
    count = len(drawn)
    return Speed(
        rate=count / whole,
        spent={column: 1000 * seconds[column] / count for column in COLUMNS},
        driver=1000 * busy / count,
        findings=count - verdicts[Verdict.AGREES] - verdicts[Verdict.UNSUPPORTED],
    )


def judged(executor: Executor, stream: Stream, journal: Journal | None = None) -> Counter[Verdict]:
    """The verdicts on the scenarios of a stream, judged as a campaign does: later ones are handed over meanwhile."""
    engine = Engine(executor.candidate, executor=executor, journal=journal)
    verdicts: Counter[Verdict] = Counter()
    running: deque[Pending] = deque()

    def visit(scenario: Scenario) -> None:
        running.append(engine.submit(scenario))
        while len(running) > executor.ahead:
            verdicts[running.popleft().result().verdict] += 1

    stream.each(visit)
    verdicts.update(pending.result().verdict for pending in running)
    return verdicts


def _strategy(executor: Executor, profile: str) -> SearchStrategy[Scenario]:
    return scenarios(executor.introduction.capability, profile=profile)


if __name__ == "__main__":
    main()
