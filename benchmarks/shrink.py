"""How small a finding gets and how soon: `python benchmarks/shrink.py`.

For each fault with a minimum that was worked out by hand (tests/quality/minima.py) and each seed: scenarios until it is
found, real runs of Hypothesis and of the reducer (remembered scenarios are free, unsupported ones count), and whether
it ends in the minimum. Exits with 1 when one ends elsewhere, or the median of runs is above 150. Results are kept as
they come, and a run goes on from there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch

from difftest.output.describe import scenario_line

sys.path.append(str(Path(__file__).parents[1] / "tests" / "quality"))
from measuring import Results, spread
from minima import BUDGET, MINIMA, hunt

RUNS = 150


def hunted(name: str, seed: int) -> tuple[int, int, int, str | None]:
    """Scenarios until it was found, runs of Hypothesis and of the reducer, and where it ended if not in its minimum."""
    found_at, shrunk, _ = hunt(name, seed)
    smallest = shrunk.smallest.scenario
    elsewhere = None if smallest == MINIMA[name].scenario else scenario_line(smallest)
    return found_at, shrunk.runs_hypothesis, shrunk.runs_reducer, elsewhere


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="seeds 0, 1, ... [default: 20]")
    parser.add_argument(
        "--fault", action="append", choices=sorted(MINIMA), metavar="NAME", help="this one only; may be given again"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("shrink.json"), help="[default: %(default)s]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.fault or list(MINIMA)
    seeds = range(options.seeds)
    results = Results(options.results, {"budget": BUDGET})
    jobs = {(name, seed): (name, seed) for name in names for seed in seeds if str(seed) not in results.of(name)}
    for (name, seed), result in spread(hunted, jobs, options.processes):
        results.add(name, {str(seed): result})
    rows = {name: [results.of(name)[str(seed)] for seed in seeds] for name in names}
    print(f"{'fault':<38} {'exact':>7} {'found at':>8} {'hypothesis':>10} {'reducer':>7} {'runs':>5} {'most':>5}")
    for name in names:
        for seed, (*_, elsewhere) in zip(seeds, rows[name], strict=True):
            if elsewhere is not None:
                print(f"{name}, seed {seed}: ends in {elsewhere}")
        print(_row(name, rows[name]), flush=True)
    every = [result for found in rows.values() for result in found]
    print(_row(f"all {len(names)}", every))
    exact = all(result[3] is None for result in every)
    return 0 if exact and statistics.median(_runs(every)) <= RUNS else 1


def _runs(results: list[tuple[int, int, int, str | None]]) -> list[int]:
    return [hypothesis + reducer for _, hypothesis, reducer, _ in results]


def _row(name: str, results: list[tuple[int, int, int, str | None]]) -> str:
    """Medians, and the most runs."""
    exact = sum(elsewhere is None for *_, elsewhere in results)
    found, hypothesis, reducer = (statistics.median(column) for column in list(zip(*results, strict=True))[:3])
    runs = _runs(results)
    return (
        f"{name:<38} {exact:>3}/{len(results):<3} {found:>8.4g} {hypothesis:>10.4g} {reducer:>7.4g} "
        f"{statistics.median(runs):>5.4g} {max(runs):>5}"
    )


if __name__ == "__main__":
    sys.exit(main())
