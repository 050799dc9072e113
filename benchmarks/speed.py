"""How many scenarios a second are judged, and what of it is the tool's own time: `python benchmarks/speed.py`.

Draws scenarios as a campaign does, and judges each for one candidate: reference, enclosure, journal and the sampled
reference-free checks included. own: judging, checking and bookkeeping, all that is not drawing, making tensors, the
candidate or the reference. Run it on a quiet machine: its clock is the wall's.

With --isolate, or for a candidate on a GPU, cases are judged in worker processes while the next are drawn, as in a
campaign. The columns are then what one worker spends on a scenario, and scenarios/s is of all of them together.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter, deque
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from difftest.engine import Engine, Executor, Pending
from difftest.isolation.executors import Executors, Isolation
from difftest.journal import Journal
from difftest.judging.outcome import Verdict
from difftest.stream import Stream
from strategies import scenarios
from strategies.scenario import Scenario

COLUMNS = ("draw", "materialise", "prepare", "kernel", "reference", "own")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidate", action="append", help="an oracle [default: grouped-mm and ggml]")
    parser.add_argument("--examples", type=int, default=1000, help="scenarios [default: 1000]")
    parser.add_argument("--profile", default="quick", help="how large they are [default: quick]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="[default: where the candidate runs]")
    parser.add_argument("--isolate", action="store_true", help="use worker processes for CPU candidates too")
    parser.add_argument("--workers", type=int, default=1, help="processes for each isolated candidate [default: 1]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    isolation = Isolation(all=options.isolate, device=options.device, workers=options.workers)
    table = Table("candidate", "workers", "scenarios/s", *COLUMNS, "findings")
    table.title = f"ms a scenario, profile {options.profile}"
    for name in options.candidate or ["grouped-mm", "ggml"]:
        with Executors([name], isolation) as executors:
            executor = executors.of(name, "reference")
            rate, spent, findings = measure(executor, options.examples, options.profile, options.seed)
        workers = str(options.workers) if executor.isolated else "-"
        table.add_row(name, workers, f"{rate:.1f}", *(f"{spent[column]:.2f}" for column in COLUMNS), str(findings))
    Console().print(table)


def measure(executor: Executor, examples: int, profile: str, seed: int) -> tuple[float, dict[str, float], int]:
    """Scenarios a second, milliseconds a scenario by what they are spent on, and how many scenarios show a finding."""
    drawn: list[Scenario] = []
    stream = Stream(
        scenarios(executor.introduction.capability, profile=profile), base_seed=seed, shard=0, count=examples
    )
    start = time.perf_counter()
    stream.each(drawn.append)
    draw = time.perf_counter() - start
    warm = [Engine(executor.candidate, executor=executor) for _ in range(executor.ahead or 1)]
    for pending in [engine.submit(scenario) for scenario in drawn[:20] for engine in warm]:
        pending.result()  # what is loaded and cached once is no cost of a scenario
    executor.spans.clear()
    verdicts: Counter[Verdict] = Counter()
    running: deque[Pending] = deque()

    def visit(scenario: Scenario) -> None:
        running.append(engine.submit(scenario))
        while len(running) > executor.ahead:
            verdicts[running.popleft().result().verdict] += 1

    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        engine = Engine(executor.candidate, executor=executor, journal=journal)
        start = time.perf_counter()
        stream.each(visit)
        verdicts.update(pending.result().verdict for pending in running)
        whole = time.perf_counter() - start
    seconds = {"draw": draw, **executor.spans.seconds}
    asked = sum(seconds[span] for span in ("materialise", "prepare", "kernel", "reference"))
    seconds["own"] = (seconds["total"] if executor.isolated else whole - draw) - asked
    findings = len(drawn) - verdicts[Verdict.AGREES] - verdicts[Verdict.UNSUPPORTED]
    return len(drawn) / whole, {column: 1000 * seconds[column] / len(drawn) for column in COLUMNS}, findings


if __name__ == "__main__":
    main()
