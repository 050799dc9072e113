"""How many scenarios a second one core does, and what of it is the tool's own time: `python benchmarks/speed.py`.

Draws scenarios as a campaign does, and judges each for one candidate: reference, enclosure, journal and the sampled
reference-free checks included. own: judging, checking and bookkeeping, all that is not drawing, making tensors, the
candidate or the reference. Run it on a quiet machine: its clock is the wall's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import oracles
from difftest.engine import Engine
from difftest.journal import Journal
from difftest.stream import Stream
from strategies import scenarios
from strategies.scenario import Scenario

COLUMNS = ("draw", "materialise", "prepare", "kernel", "reference", "own", "all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidate", action="append", help="an oracle [default: grouped-mm and ggml]")
    parser.add_argument("--examples", type=int, default=1000, help="scenarios [default: 1000]")
    parser.add_argument("--profile", default="quick", help="how large they are [default: quick]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("candidate", "scenarios/s", *COLUMNS, title=f"ms a scenario, profile {options.profile}, one core")
    for name in options.candidate or ["grouped-mm", "ggml"]:
        spent = measure(name, options.examples, options.profile, options.seed)
        table.add_row(name, f"{1000 / spent['all']:.1f}", *(f"{spent[column]:.2f}" for column in COLUMNS))
    Console().print(table)


def measure(name: str, examples: int, profile: str, seed: int) -> dict[str, float]:
    """Milliseconds a scenario, by what they are spent on."""
    oracle = oracles.get(name)
    drawn: list[Scenario] = []
    strategy = scenarios(oracles.capability_of(oracle), profile=profile)
    start = time.perf_counter()
    Stream(strategy, base_seed=seed, shard=0, count=examples).each(drawn.append)
    draw = time.perf_counter() - start
    for scenario in drawn[:20]:  # what is loaded and cached once is no cost of a scenario
        Engine(oracle).check(scenario)
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder)) as journal:
        engine = Engine(oracle, journal=journal)
        start = time.perf_counter()
        for scenario in drawn:
            engine.check(scenario)
        judged = time.perf_counter() - start
    spans = engine.spans
    asked = sum(spans.seconds[span] for span in ("materialise", "prepare", "kernel", "reference"))
    seconds = {"draw": draw, **spans.seconds, "own": judged - asked, "all": draw + judged}
    return {column: 1000 * seconds[column] / len(drawn) for column in COLUMNS}


if __name__ == "__main__":
    main()
