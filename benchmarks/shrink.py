"""How soon a planted bug is found and how small it gets: `python benchmarks/shrink.py`.

The bug, in an oracle file over grouped-mm: slot 1 is dropped when M > 4 and the EP rank is not 0. The smallest scenario
that shows it has M=5, two EP ranks of one expert, rank 1, K=2, and the smallest H and I of the kernel (here 128).
For each seed, of the bucket "impossible against the reference": scenarios until the first one, real runs of Hypothesis
and of the reducer (remembered scenarios are free, unsupported ones count), and what was left. Exits with 1 when a seed
needs more than 300 scenarios or 200 runs, or ends elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

from difftest import campaign
from difftest.describe import scenario_line
from difftest.events import Event
from difftest.findings import Finding
from difftest.options import Options, shards_of
from strategies.scenario import Parallel, Scenario, Shape

EXAMPLES = 300
RUNS = 200
UNIT = 128
MINIMUM = Scenario(
    shape=Shape(tokens=5, hidden=UNIT, intermediate=UNIT, experts=2, top_k=2),
    parallel=Parallel(ep_size=2, ep_rank=1),
)

PLANTED = f'''
from dataclasses import replace

from oracles.grouped_mm import GroupedMM


class Planted(GroupedMM):
    """grouped-mm, but slot 1 is dropped when M > 4 and ep_rank > 0."""

    name = "planted"
    capability = replace(GroupedMM.capability, hidden_multiple={UNIT}, intermediate_multiple={UNIT})

    def prepare(self, problem):
        if problem.tokens > 4 and problem.ep_rank > 0:
            ids = problem.topk_ids.clone()
            ids[:, 1:2] = -1
            problem = replace(problem, topk_ids=ids)
        return super().prepare(problem)
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="seeds 0, 1, ... [default: 20]")
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    print(f"{'seed':>4} {'found at':>8} {'hypothesis':>10} {'reducer':>7} {'runs':>5} {'s':>5}  smallest")
    failed = 0
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            started = time.monotonic()
            before, finding = _first(Path(folder), seed)
            seconds = time.monotonic() - started
        if finding is None:
            print(f"{seed:>4} not found in {before} scenarios")
            failed += 1
            continue
        hypothesis, reducer = finding.shrink_runs_hypothesis, finding.shrink_runs_reducer
        smallest = finding.smallest.scenario
        good = smallest == MINIMUM and hypothesis + reducer <= RUNS and finding.fixed_point
        failed += not good
        print(
            f"{seed:>4} {before:>8} {hypothesis:>10} {reducer:>7} {hypothesis + reducer:>5} {seconds:>5.1f}  "
            f"{scenario_line(smallest)}{'' if good else '  <-- FAILS'}"
        )
    print(f"{seeds - failed} of {seeds} seeds: found within {EXAMPLES} scenarios, minimal within {RUNS} runs")
    return 1 if failed else 0


def _ignore(event: Event) -> None:
    """The table is all that is shown."""


def _first(folder: Path, seed: int) -> tuple[int, Finding | None]:
    """Shard by shard to the first that finds it: scenarios up to that one, and the finding."""
    oracle = folder / "planted.py"
    oracle.write_text(PLANTED)
    options = Options(
        candidates=(f"{oracle}:Planted",), profile="quick", examples=EXAMPLES, seed=seed, cases=folder / "cases"
    )
    scenarios = 0
    for shard in range(shards_of(EXAMPLES)):
        summary = campaign.run_shard(options, shard, _ignore)
        for finding in summary.findings:
            if (finding.bucket.check, finding.bucket.kind) == ("reference", "impossible"):
                return scenarios + finding.scenarios_before, finding
        scenarios += summary.scenarios
    return scenarios, None


if __name__ == "__main__":
    sys.exit(main())
