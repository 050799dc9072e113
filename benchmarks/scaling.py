"""How many times as fast more processes are: `python benchmarks/scaling.py --drivers 1 2 --repeats 5`.

A driver is a process that draws and judges a part of a campaign, as each of `pytest difftest -n N` does. One of a CPU
oracle asks it itself. One of an oracle on a GPU has worker processes, and a device of its own or with --per-device a
part of one. The campaign is the same for each number of drivers, in as many shards as the largest of them, and these
are shared out. All begin at once, warm; scenarios/s is of all together, until the last has ended. With --cores a driver
and its workers have so many cores of their own, and so a driver alone has no more of the machine than it has beside
others. Times is against the first number of drivers, run just before: the speed of a shared machine changes meanwhile.
All figures are medians of the repeats, with the lowest and the highest.
driver: milliseconds of a driver's processor time for a scenario. busy: the part of the time in which its workers run a
case.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import torch
from measuring import asked, show, side_by_side
from rich.table import Table
from speed import judged

from difftest.isolation.executors import Isolation
from difftest.journal import Journal
from difftest.stream import Stream
from strategies import scenarios

_WARM = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidate", default="grouped-mm", help="an oracle [default: grouped-mm]")
    parser.add_argument("--drivers", type=int, nargs="+", default=[1, 2], help="processes [default: 1 2]")
    parser.add_argument("--workers", type=int, default=1, help="of each driver, where cases are isolated [default: 1]")
    parser.add_argument("--examples", type=int, default=400, help="scenarios of a shard [default: 400]")
    parser.add_argument("--profile", default="quick", help="how large they are [default: quick]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, help="of each driver and its workers [default: all of the machine]")
    parser.add_argument("--per-device", type=int, default=1, help="drivers on each GPU [default: 1]")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each number of drivers, in turn [default: 1]")
    options = parser.parse_args()
    if min(options.drivers) < 1:
        parser.error(f"--drivers {min(options.drivers)}: must be at least 1")
    shards, cores = max(options.drivers), len(os.sched_getaffinity(0))
    if options.cores is not None and not 1 <= options.cores <= cores // shards:
        parser.error(
            f"--cores {options.cores}: must be from 1 to {cores // shards}, for {shards} drivers on {cores} cores"
        )
    if any(shards % drivers for drivers in options.drivers):
        parser.error(f"--drivers {options.drivers}: each must divide the largest, so that all have the same share")
    plan = Plan(
        candidate=options.candidate,
        workers=options.workers,
        shards=shards,
        examples=options.examples,
        profile=options.profile,
        seed=options.seed,
        cores=options.cores,
        per_device=options.per_device,
    )
    with asked(plan.candidate, Isolation(workers=1)):
        pass  # what cannot run is told once, not by each driver
    runs = [[measure(plan, drivers) for drivers in options.drivers] for _ in range(options.repeats)]
    table = Table("drivers", "workers", "scenarios/s", "times the first", "driver", "busy")
    table.title = f"{options.candidate}, {options.profile}"
    for number, drivers in enumerate(options.drivers):
        mine = [run[number] for run in runs]
        table.add_row(
            str(drivers),
            str(options.workers),
            told([each.rate for each in mine], ".1f"),
            told([run[number].rate / run[0].rate for run in runs], ".2f"),
            f"{statistics.median(each.driver for each in mine):.2f}",
            f"{statistics.median(each.busy for each in mine):.0%}",
        )
    show(table)


def told(values: list[float], form: str) -> str:
    """The median, and the range where there is one."""
    middle = format(statistics.median(values), form)
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}-{max(values):{form}})"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A campaign, and what a driver has. See the options."""

    candidate: str
    workers: int
    shards: int
    examples: int
    profile: str
    seed: int
    cores: int | None
    per_device: int


@dataclass(frozen=True, kw_only=True)
class Run:
    """rate: scenarios a second. driver: milliseconds of a driver's processor time for each. busy: of the workers."""

    rate: float
    driver: float
    busy: float


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one driver did. start, end: on the monotonic clock. driver: seconds of its processor time. judging: seconds
    in which cases ran, of all its workers."""

    start: float
    end: float
    driver: float
    judging: float


def measure(plan: Plan, drivers: int) -> Run:
    """The campaign by so many drivers."""
    shares = side_by_side(drive, drivers, plan, drivers)
    wall = max(share.end for share in shares) - min(share.start for share in shares)
    count = plan.shards * plan.examples
    return Run(
        rate=count / wall,
        driver=1000 * sum(share.driver for share in shares) / count,
        busy=sum(share.judging for share in shares) / (drivers * plan.workers * wall),
    )


def drive(number: int, begin: Barrier, plan: Plan, drivers: int) -> Share:
    """One driver. Its cores and devices are chosen before anything asks for them."""
    if plan.cores is not None:
        os.sched_setaffinity(0, by_core()[number * plan.cores : (number + 1) * plan.cores])
    devices = torch.cuda.device_count()
    if devices > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(devices)))).split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[number // plan.per_device % devices]
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        Journal(Path(folder)) as journal,
        asked(plan.candidate, Isolation(workers=plan.workers, drivers=plan.per_device)) as executor,
    ):
        strategy = scenarios(executor.introduction.capability, profile=plan.profile)
        judged(
            executor,
            Stream(strategy, base_seed=plan.seed, shard=plan.shards + number, count=_WARM * plan.workers),
        )
        executor.spans.clear()
        begin.wait()
        start, busy = time.monotonic(), time.process_time()
        for shard in range(number, plan.shards, drivers):
            stream = Stream(strategy, base_seed=plan.seed, shard=shard, count=plan.examples)
            judged(executor, stream, journal)
        end, busy = time.monotonic(), time.process_time() - busy
        return Share(start=start, end=end, driver=busy, judging=executor.spans.seconds["total"])


def by_core() -> list[int]:
    """Those that this process may use, as the system counts them. The threads of a physical one are beside each other:
    who has a part of the list shares none with others."""

    def first_thread(core: int) -> int:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        return int(re.split("[,-]", siblings.read_text())[0]) if siblings.exists() else core

    return sorted(os.sched_getaffinity(0), key=lambda core: (first_thread(core), core))


if __name__ == "__main__":
    main()
