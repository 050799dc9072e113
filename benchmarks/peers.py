"""difftest beside other ways to test the same kernel, on the same planted faults.

    python benchmarks/peers.py find       for each fault, how many scenarios and how much time until it is found: by a
        campaign of the quick profile, and by each of `recreations.py`. A right implementation goes through all of them
        too, and fails none. --all takes the whole library of faults; by default two of each class.
    python benchmarks/peers.py speed      scenarios a second on a right implementation, and where the time goes.
        --candidate names another kernel, --real takes the sizes as upstream has them (for a GPU).

`find` tells the time of the process, with one thread; `speed` that of the wall: run it on a quiet machine. Tables are
Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from measuring import PROFILE, Results, each, installed, spread, wall
from recreations import REAL, SMALL, Peer, Sizes, expected, peers

from difftest.engine import Engine
from difftest.judging import variants
from difftest.judging.trial import InProcess
from difftest.stream import Enough, Stream
from oracles import base
from oracles.faults import FAULTS, KINDS, Twin
from oracles.problem import Problem, build
from strategies import Scenario, scenarios

CAMPAIGN = "difftest"
BUDGET = 600
RIGHT = "a right one"
NAMED = (
    "gate-up-swapped",
    "next-expert-tail-scale",
    "alpha-beta-ignored",
    "parameters-of-first-expert",
    "ep-offset-twice",
    "duplicate-lost",
    "odd-tail-dropped",
    "accumulator-in-bfloat16",
    "infinity-sign-lost",
    "rows-times-zero",
    "idle-rows-unwritten",
    "split-adds-to-workspace",
    "tactic-doubles-half",
    "graph-replays-routing",
)
"""Two of each class."""
PHASES = ("draw", "materialise", "prepare", "kernel", "reference", "compare", "other")


class Clock:
    """Seconds by phase, of the process or by another clock."""

    def __init__(self, now: Callable[[], float] = time.process_time) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.now = now

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = self.now()
        try:
            yield
        finally:
            self.seconds[phase] += self.now() - start

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


class Asking:
    """Asks a candidate about copies of problems, which it may write to. See `recreations.Ask`."""

    def __init__(self, candidate: Any, clock: Clock) -> None:
        self._candidate = candidate
        self._clock = clock

    def __call__(self, problem: Problem, calls: int) -> list[torch.Tensor]:
        copy = variants.with_tensors(problem, variants.clone_tensors(problem))
        with self._clock.measure("prepare"):
            prepared = self._candidate.prepare(copy)
        outputs = []
        for _ in range(calls):
            with self._clock.measure("kernel"):
                output = self._candidate(prepared)
            outputs.append(output.float().clone())
        return outputs


def judged(peer: Peer, candidate: Any, problem: Problem, right: torch.Tensor, clock: Clock) -> bool:
    """Whether the peer's test would fail on this problem. Its own judging counts as compare."""
    start, before = clock.now(), clock.total
    try:
        found = peer.found(Asking(candidate, clock), problem, right)
    except Exception as error:
        found = not any(words in str(error).lower() for words in peer.skips)
    clock.seconds["compare"] += clock.now() - start - (clock.total - before)
    return found


def made(peer: Peer, sizes: Sizes, clock: Clock, device: str = "cpu") -> Iterator[tuple[Problem, torch.Tensor]]:
    """The problems of a run with the values that are expected of them."""
    cases = peer.cases(0, sizes)
    while True:
        with clock.measure("draw"):
            scenario = next(cases, None)
        if scenario is None:
            return
        with clock.measure("materialise"):
            problem = peer.contents(build(scenario, device))
        with clock.measure("reference"):
            right = expected(problem)
        yield problem, right


# --- how soon faults are found ---------------------------------------------------------------------------------------


def candidate_of(name: str) -> Any:
    return Twin() if name == RIGHT else FAULTS[name].oracle()


def found_by_peer(number: int, names: list[str]) -> dict[str, Any]:
    """By fault (scenarios, seconds) until one of a run fails, or None. Tensors and expected values are made once for
    all faults, and count for each of them."""
    peer = peers(Twin.capability.tactics)[number]
    found: dict[str, Any] = dict.fromkeys(names)
    shared, own = Clock(), {name: Clock() for name in names}
    oracles = {name: candidate_of(name) for name in names}
    with torch.no_grad():
        for count, (problem, right) in enumerate(made(peer, SMALL, shared), 1):
            for name in [name for name in names if found[name] is None]:
                if judged(peer, oracles[name], problem, right, own[name]):
                    found[name] = (count, shared.total + own[name].total)
    return found


def found_by_campaign(seed: int, names: list[str]) -> dict[str, Any]:
    """The same by a campaign of `BUDGET` scenarios, all of its parts in this process."""
    found: dict[str, Any] = dict.fromkeys(names)
    for name in names:
        oracle = candidate_of(name)
        engine = Engine(oracle, executor=InProcess(oracle, "reference"))
        count, start = 0, time.process_time()

        def visit(scenario: Scenario, name: str = name, engine: Engine = engine) -> bool:
            nonlocal count
            count += 1
            if engine.check(scenario).is_finding:
                found[name] = (count, time.process_time() - start)  # noqa: B023  # visited before the next begins
            return found[name] is None

        each(seed, BUDGET, visit)
    return found


def find(options: argparse.Namespace) -> int:
    names = [RIGHT, *(options.fault or (FAULTS if options.all else NAMED))]
    results = Results(options.results, {"budget": BUDGET, "sizes": str(SMALL)})
    jobs: dict[Any, tuple[Any, ...]] = {}
    runs: list[tuple[str, Any, int]] = [(peer.name, found_by_peer, number) for number, peer in enumerate(peers(0))]
    runs += [(f"{CAMPAIGN} {seed}", found_by_campaign, seed) for seed in range(options.seeds)]
    for part, function, number in runs:  # the longest first
        todo = [name for name in names if name not in results.of(part)]
        for first in range(0, len(todo), options.chunk):
            chunk = todo[first : first + options.chunk]
            jobs[part, first] = (function, number, chunk)
    for (part, _), found in spread(_called, jobs, options.processes):
        results.add(part, found)
        print(f"{part}: {', '.join(f'{name} {result[0] if result else None}' for name, result in found.items())}")
    return report(names[1:], results, options.seeds)


def _called(function: Any, *arguments: Any) -> Any:
    torch.set_num_threads(1)
    return function(*arguments)


def report(names: list[str], results: Results, seeds: int) -> int:
    """Prints the tables. Returns 1 when a right implementation fails somewhere."""
    columns: dict[str, dict[str, Any]] = {CAMPAIGN: {}}
    campaigns = [results.of(f"{CAMPAIGN} {seed}") for seed in range(seeds)]
    for name in [RIGHT, *names]:
        known = [campaign[name] for campaign in campaigns]
        everywhere = all(result is not None for result in known)
        columns[CAMPAIGN][name] = [statistics.median(part) for part in zip(*known, strict=True)] if everywhere else None
        if name == RIGHT and any(result is not None for result in known):
            columns[CAMPAIGN][name] = next(result for result in known if result is not None)
    for peer in peers(0):
        columns[peer.name] = dict(results.of(peer.name))
    print(f"\n| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    kinds = [kind for kind in KINDS if any(FAULTS[name].kind == kind for name in names)]
    for kind in kinds:
        chosen = [name for name in names if FAULTS[name].kind == kind]
        counts = [sum(column[name] is not None for name in chosen) for column in columns.values()]
        print(f"| {kind}, {len(chosen)} faults | {' | '.join(map(str, counts))} |")
    got = {title: [column[name] for name in names if column[name] is not None] for title, column in columns.items()}
    shares = [f"{len(found)} ({len(found) / len(names):.0%})" for found in got.values()]
    print(f"| **all {len(names)}** | {' | '.join(shares)} |")
    for title, part, form in (("scenarios", 0, "{:.3g}"), ("seconds", 1, "{:.2g}")):
        medians = [form.format(statistics.median(r[part] for r in found)) if found else "-" for found in got.values()]
        print(f"| {title} to the first finding, median | {' | '.join(medians)} |")
    common = [name for name in names if all(column[name] is not None for column in columns.values())]
    for title, part, form in (("scenarios", 0, "{:.3g}"), ("seconds", 1, "{:.2g}")):
        medians = [
            form.format(statistics.median(column[name][part] for name in common)) if common else "-"
            for column in columns.values()
        ]
        print(f"| {title}, of the {len(common)} that all find | {' | '.join(medians)} |")
    alarms = [title for title, column in columns.items() if column[RIGHT] is not None]
    print(f"\na right implementation fails: {', '.join(alarms) or 'nowhere'}")
    alone = {title: sum(_alone(columns, title, name) for name in names) for title in columns}
    print("found by one alone: " + ", ".join(f"{title} {count}" for title, count in alone.items()))
    return 1 if alarms else 0


def _alone(columns: dict[str, dict[str, Any]], title: str, name: str) -> bool:
    return [other for other, column in columns.items() if column[name] is not None] == [title]


# --- how fast --------------------------------------------------------------------------------------------------------


def speed(options: argparse.Namespace) -> int:
    candidate: Any = installed(options.candidate) if options.candidate else Twin()
    capability = base.capability_of(candidate)
    device = "cuda" if options.real else "cpu"
    torch.set_num_threads(1)
    rows = {CAMPAIGN: campaign_speed(candidate, capability, options.seconds, device)}
    for peer in peers(getattr(capability, "tactics", 0)):
        rows[peer.name] = peer_speed(peer, candidate, REAL if options.real else SMALL, options.seconds, device)
    print(f"\n| {options.candidate or 'the twin'}, ms a scenario | scenarios/s | {' | '.join(PHASES)} |")
    print(f"|---|---|{'---|' * len(PHASES)}")
    for title, (count, seconds) in rows.items():
        cells = " | ".join(f"{1000 * seconds.get(phase, 0.0) / count:.2f}" for phase in PHASES)
        print(f"| {title} | {count / sum(seconds.values()):.1f} | {cells} |")
    return 0


def peer_speed(peer: Peer, candidate: Any, sizes: Sizes, limit: float, device: str) -> tuple[int, dict[str, float]]:
    """(scenarios, seconds by phase), of as many as there are or as `limit` seconds have."""
    with torch.no_grad():
        for problem, right in islice(made(peer, sizes, Clock(), device), 3):
            judged(peer, candidate, problem, right, Clock())  # what is loaded once is no cost of a scenario
        count, clock = 0, Clock(wall)
        for problem, right in made(peer, sizes, clock, device):
            judged(peer, candidate, problem, right, clock)
            count += 1
            if clock.total > limit:
                break
    return count, dict(clock.seconds)


def campaign_speed(candidate: Any, capability: Any, limit: float, device: str) -> tuple[int, dict[str, float]]:
    """The same of a campaign, checks, confirmation and engine included, in this process."""
    count = 0
    executor = InProcess(candidate, "reference", device=device, by_size=device == "cuda")
    engine = Engine(candidate, executor=executor)
    judging = start = 0.0

    def visit(scenario: Scenario) -> bool:
        nonlocal count, judging, start
        if count == 20:  # the first ones warm it
            executor.spans.clear()
            judging, start = 0.0, wall()
        begun = wall()
        engine.check(scenario)
        judging += wall() - begun
        count += 1
        return count <= 20 or wall() - start < limit

    def stop(scenario: Scenario) -> None:
        if not visit(scenario):
            raise Enough

    Stream(scenarios(capability, profile=PROFILE), base_seed=0, shard=0, count=5000).each(stop)
    whole = wall() - start
    seconds = {phase: executor.spans.seconds[phase] for phase in PHASES if phase in executor.spans.seconds}
    seconds["compare"] += executor.spans.seconds["checks"]
    return count - 20, seconds | {"draw": whole - judging, "other": judging - sum(seconds.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    finding = commands.add_parser("find", help="scenarios and time to the first finding")
    finding.add_argument("--fault", action="append", choices=sorted(FAULTS), metavar="NAME", help="repeatable")
    finding.add_argument("--all", action="store_true", help="every fault of the library")
    finding.add_argument("--seeds", type=int, default=3, help="campaigns [default: 3]")
    finding.add_argument("--processes", type=int, default=1)
    finding.add_argument("--chunk", type=int, default=8, help="faults of a job [default: 8]")
    finding.add_argument("--results", type=Path, default=Path("peers.json"))
    finding.set_defaults(run=find)
    fast = commands.add_parser("speed", help="scenarios a second, and their parts")
    fast.add_argument("--candidate", metavar="ORACLE", help="[default: the twin]")
    fast.add_argument("--real", action="store_true", help="upstream's own sizes, on a GPU")
    fast.add_argument("--seconds", type=float, default=15.0, help="for each [default: 15]")
    fast.set_defaults(run=speed)
    options = parser.parse_args()
    result: int = options.run(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
