"""Which cases a core should enclose, and which the GPU: `python benchmarks/enclosing.py`.

On one GPU, with flashinfer-python. Each process runs the same cases of `cutlass`, without the checks that need no
reference, all processes at once, with each limit of `trial.SMALL` in turn, forth and back. Milliseconds of a case, and
of an enclosure by the products of an expert's first GEMM; those above the limit are made on the GPU.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from multiprocessing.synchronize import Barrier

import torch
from measuring import drawn, installed, show, side_by_side
from rich.table import Table

from difftest.judging import trial
from difftest.judging.trial import InProcess
from oracles import base

CANDIDATE = "cutlass"
EDGES = (0, 18, 19, 20, 21, 22, 40)
"""Binary logarithms of products."""
_WARM = 40

Row = tuple[int, float, float]
"""Products of a case; seconds of it, and of its enclosures."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 14], help="at once [default: 1 14]")
    parser.add_argument("--limits", type=int, nargs="+", default=[19, 20, 21, 22], help="logarithms [19 20 21 22]")
    parser.add_argument("--examples", type=int, default=100, help="scenarios of each process [default: 100]")
    options = parser.parse_args()
    installed(CANDIDATE)
    columns = [f"2^{low} to 2^{high}" for low, high in itertools.pairwise(EDGES)]
    table = Table("processes", "limit", "cases", "a case", *columns)
    for count in options.processes:
        parts = side_by_side(work, count, options.examples, options.limits)
        for limit in options.limits:
            rows = [row for part in parts for row in part[limit]]
            table.add_row(str(count), f"2^{limit}", str(len(rows)), _mean([row[1] for row in rows]), *_by_size(rows))
    show(table)


def _by_size(rows: list[Row]) -> list[str]:
    return [
        _mean([enclosing for products, _, enclosing in rows if 1 << low < products <= 1 << high])
        for low, high in itertools.pairwise(EDGES)
    ]


def _mean(seconds: list[float]) -> str:
    return f"{1000 * statistics.mean(seconds):.1f}" if seconds else "-"


def work(number: int, begin: Barrier, examples: int, limits: list[int]) -> dict[int, list[Row]]:
    torch.set_num_threads(1)
    process = InProcess(CANDIDATE, "reference", device="cuda", by_size=True)
    mine = drawn(base.get(CANDIDATE), number, examples)
    for limit in limits:
        trial.SMALL = 1 << limit
        for scenario in mine[:_WARM]:
            process.run(scenario, ())
    found: dict[int, list[Row]] = {limit: [] for limit in limits}
    for limit in (*limits, *reversed(limits)):
        trial.SMALL = 1 << limit
        begin.wait()
        for scenario in mine:
            before, start = process.spans.seconds["reference"], time.perf_counter()
            process.run(scenario, ())
            row = time.perf_counter() - start, process.spans.seconds["reference"] - before
            found[limit].append((trial.products(scenario), *row))
    return found


if __name__ == "__main__":
    main()
