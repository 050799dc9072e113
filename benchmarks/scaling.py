"""How many times as fast more processes are: `python benchmarks/scaling.py --drivers 1 2`.

A driver is a process that draws and judges a part of a campaign, as each of `pytest difftest -n N` does. One of a CPU
oracle asks it itself. One of an oracle on a GPU has worker processes and a device of its own: run it on as many devices
as drivers, or several on each. All begin at once, warm; scenarios/s is of all together, until the last has ended.
driver: milliseconds of a driver's processor time for a scenario. busy: the part of the time in which its workers run a
case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from speed import judged

from difftest.isolation.executors import Executors, Isolation
from difftest.journal import Journal
from difftest.stream import Stream
from strategies import scenarios

_WARM = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidate", default="grouped-mm", help="an oracle [default: grouped-mm]")
    parser.add_argument("--drivers", type=int, nargs="+", default=[1, 2], help="processes [default: 1 2]")
    parser.add_argument("--workers", type=int, default=1, help="of each driver, where cases are isolated [default: 1]")
    parser.add_argument("--examples", type=int, default=400, help="scenarios of each driver [default: 400]")
    parser.add_argument("--profile", default="quick", help="how large they are [default: quick]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    columns = ("drivers", "workers", "scenarios/s", "times the first", "driver", "busy")
    table = Table(*columns, title=f"{options.candidate}, {options.profile}")
    first = 0.0
    for drivers in options.drivers:
        shares = measure(options.candidate, drivers, options.workers, options.examples, options.profile, options.seed)
        wall = max(share.end for share in shares) - min(share.start for share in shares)
        rate = drivers * options.examples / wall
        first = first or rate
        table.add_row(
            str(drivers),
            str(options.workers),
            f"{rate:.1f}",
            f"{rate / first:.2f}",
            f"{1000 * sum(share.driver for share in shares) / (drivers * options.examples):.2f}",
            f"{sum(share.judging for share in shares) / (drivers * options.workers * wall):.0%}",
        )
    Console().print(table)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one driver did. start, end: on the monotonic clock. driver: seconds of its processor time. judging: seconds
    in which cases ran, of all its workers."""

    start: float
    end: float
    driver: float
    judging: float


def measure(candidate: str, drivers: int, workers: int, examples: int, profile: str, seed: int) -> list[Share]:
    """So many drivers, the shards of one campaign."""
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(drivers)
    ends: multiprocessing.SimpleQueue[Share] = context.SimpleQueue()
    processes = [
        context.Process(
            target=drive,
            args=(candidate, shard, drivers, workers, examples, profile, seed, begin, ends),
        )
        for shard in range(drivers)
    ]
    for process in processes:
        process.start()
    shares = [ends.get() for _ in processes]
    for process in processes:
        process.join()
    return shares


def drive(
    candidate: str,
    shard: int,
    drivers: int,
    workers: int,
    examples: int,
    profile: str,
    seed: int,
    begin: Barrier,
    ends: multiprocessing.SimpleQueue[Share],
) -> None:
    """One driver. Its devices are chosen before anything asks for them."""
    devices = max(1, torch.cuda.device_count())
    if devices > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))).split(
            ","
        )
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[shard % len(visible)]
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(Path(folder)) as journal,
        Executors([candidate], Isolation(workers=workers, drivers=-(-drivers // devices))) as executors,
    ):
        executor = executors.of(candidate, "reference")
        strategy = scenarios(executor.introduction.capability, profile=profile)
        judged(executor, Stream(strategy, base_seed=seed, shard=drivers + shard, count=_WARM * workers))
        executor.spans.clear()
        begin.wait()
        start, busy = time.monotonic(), time.process_time()
        judged(executor, Stream(strategy, base_seed=seed, shard=shard, count=examples), journal)
        end, busy = time.monotonic(), time.process_time() - busy
        ends.put(Share(start=start, end=end, driver=busy, judging=executor.spans.seconds["total"]))


if __name__ == "__main__":
    main()
