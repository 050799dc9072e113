"""Where the time of a whole `difftest run -n auto` goes: `python benchmarks/whole.py --candidate cutlass@0.7.0`.

Seconds from the start of the run, imports not counted: until all is introduced, until the first shard is over, until
the last is, and to the end. in the middle: scenarios a second from the end of the first quarter of the shards to that
of the third. known: sightings of what the ledger knows, which are asked about further. Nothing is saved.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from measuring import show
from rich.table import Table

from difftest.options import Options
from difftest.output.events import Event, RunStarted, ShardFinished
from difftest.preflight import one_line
from difftest.scale import processes
from oracles.base import OracleNotFound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidate", default="grouped-mm", help="an oracle [default: grouped-mm]")
    parser.add_argument("--examples", type=int, default=3000, help="scenarios [default: 3000]")
    parser.add_argument("--profile", default="quick", help="how large they are [default: quick]")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("-n", type=int, help="processes [default: as many as -n auto]")
    parser.add_argument("--isolate", action="store_true", help="also what runs on the CPU")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options = Options(
            candidates=(given.candidate,),
            profile=given.profile,
            examples=given.examples,
            seed=given.seed,
            isolate=given.isolate,
            cases=Path(folder),
        )
        count = given.n or processes.most_useful(options)
        started = time.monotonic()
        introduced = 0.0
        shards: list[tuple[float, int]] = []

        def emit(event: Event) -> None:
            nonlocal introduced
            if isinstance(event, RunStarted):
                introduced = time.monotonic() - started
            elif isinstance(event, ShardFinished):
                shards.append((time.monotonic() - started, event.scenarios))

        try:
            summary = processes.run(options, emit, count)
        except OracleNotFound as error:
            sys.exit(f"--candidate {given.candidate}: {one_line(error)}")
        end = time.monotonic() - started
    if summary.missing:
        sys.exit(f"--candidate {given.candidate}: {summary.missing[given.candidate]}")
    table = Table(
        "processes", "introduced", "first shard", "last shard", "end", "scenarios/s", "in the middle", "known"
    )
    table.title = (
        f"{given.candidate}, {given.profile}, {summary.scenarios} scenarios, {len(summary.findings)} new findings"
    )
    table.add_row(
        str(count),
        f"{introduced:.1f}",
        f"{shards[0][0]:.1f}",
        f"{shards[-1][0]:.1f}",
        f"{end:.1f}",
        f"{summary.scenarios / end:.1f}",
        f"{middle(shards):.1f}",
        str(sum(summary.known.values())),
    )
    show(table)


def middle(shards: list[tuple[float, int]]) -> float:
    """Scenarios a second of the two middle quarters. shards: when each was over, and its scenarios."""
    first, last = len(shards) // 4, max(len(shards) // 4 + 1, 3 * len(shards) // 4)
    seconds = shards[min(last, len(shards) - 1)][0] - shards[first][0]
    return sum(count for _, count in shards[first + 1 : last + 1]) / seconds if seconds else float("nan")


if __name__ == "__main__":
    main()
