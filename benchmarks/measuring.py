"""What the benchmarks share: who is asked, a campaign's scenarios, answers computed once, results that are kept."""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

from difftest.engine import Executor
from difftest.isolation.environment import EnvironmentNotFound, WorkerFailed
from difftest.isolation.executors import Executors, Isolation
from difftest.judging import checks, trial, variants
from difftest.options import shards_of, share_of
from difftest.preflight import one_line
from difftest.stream import Enough, Stream
from oracles import base
from oracles.enclosure import Enclosure
from oracles.faults import Twin
from oracles.problem import Problem, build
from oracles.reference import enclose
from strategies import Scenario, scenarios

_T = TypeVar("_T")

PROFILE = "quick"
KEPT = 512
"""Enclosures that are remembered at a time."""


def wall() -> float:
    """The wall's clock, once all that was begun on a GPU is over."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


@contextlib.contextmanager
def asked(spec: str, isolation: Isolation) -> Iterator[Executor]:
    """Whoever runs the oracle's cases. Exits with one line where it cannot: what it says then is no measurement."""
    with Executors([spec], isolation) as executors:
        try:
            executor = executors.of(spec, "reference")
        except (base.OracleNotFound, EnvironmentNotFound, WorkerFailed) as error:
            sys.exit(f"--candidate {spec}: {one_line(error)}")
        if executor.introduction.missing is not None:
            sys.exit(f"--candidate {spec}: {executor.introduction.missing}")
        yield executor


def installed(spec: str) -> Any:
    """The oracle, in this process. Exits as `asked` does."""
    try:
        found = base.get(spec)
    except base.OracleNotFound as error:
        sys.exit(f"--candidate {spec}: {one_line(error)}")
    reason = base.missing_of(found)
    if reason is not None:
        sys.exit(f"--candidate {spec}: {reason}")
    return found


def show(table: Table) -> None:
    """As wide as the terminal; in a file as wide as it is."""
    Console(width=None if sys.stdout.isatty() else 200).print(table)


class Shared:
    """The tensors and enclosures of the scenario that runs now, made once for all candidates."""

    def __init__(self) -> None:
        self._problem = functools.lru_cache(1)(build)
        self._enclosures: dict[tuple[Any, ...], Enclosure] = {}

    def build(self, scenario: Scenario, device: torch.device | str = "cpu") -> Problem:
        """A copy: a fault may write to its inputs."""
        problem = self._problem(scenario, torch.device(device))
        return variants.with_tensors(problem, variants.clone_tensors(problem))

    def enclose(self, problem: Problem, numerics: Any, *_: object) -> Enclosure:
        """`oracles.reference.enclose`, remembered by all that goes into it."""
        given = variants.tensors(problem)
        key = (numerics, problem.scenario, *(zlib.crc32(_bytes(tensor)) for tensor in given.values()))
        if key not in self._enclosures:
            if len(self._enclosures) == KEPT:
                self.forget()
            self._enclosures[key] = enclose(problem, numerics)
        return self._enclosures[key]

    def forget(self) -> None:
        self._enclosures.clear()


def _bytes(tensor: torch.Tensor) -> Any:
    # A clone: a dimension of one element counts as contiguous with any stride, and cannot be viewed as bytes.
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()


@contextlib.contextmanager
def shared_answers() -> Iterator[Shared]:
    """While it lasts, every engine of this process takes tensors and enclosures from the one that is given."""
    shared = Shared()
    with (
        mock.patch.object(trial, "build", shared.build),
        mock.patch.object(checks, "enclose", shared.enclose),
        torch.no_grad(),
    ):
        yield shared


def drawn(oracle: Any, shard: int, count: int) -> list[Scenario]:
    """So many scenarios of a campaign that asks the oracle."""
    found: list[Scenario] = []
    strategy = scenarios(base.capability_of(oracle), profile=PROFILE)
    Stream(strategy, base_seed=3, shard=shard, count=count).each(found.append)
    return found


def each(seed: int, budget: int, visit: Callable[[Scenario], bool]) -> None:
    """Call `visit` on the scenarios of a campaign with `budget` examples until it returns False."""
    strategy = scenarios(Twin.capability, profile=PROFILE)
    more = True

    def visited(scenario: Scenario) -> None:
        nonlocal more
        more = visit(scenario)
        if not more:
            raise Enough

    for shard in range(shards_of(budget)):
        Stream(strategy, base_seed=seed, shard=shard, count=share_of(budget, shard)).each(visited)
        if not more:
            return


def answer(candidate: Any, problem: Problem) -> torch.Tensor | None:
    """The candidate's answer to a copy of the problem; None when it raises."""
    copy = variants.with_tensors(problem, variants.clone_tensors(problem))
    try:
        output: torch.Tensor = candidate(candidate.prepare(copy))
    except (RuntimeError, ValueError):
        return None
    return output


class Results:
    """A JSON file: what was measured, part by part."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self._path = path
        self._data: dict[str, Any] = {"about": about}
        if path.exists():
            self._data = json.loads(path.read_text())
            if self._data["about"] != about:
                sys.exit(f"{path}: holds results of {self._data['about']}, not of {about}: name another --results")

    def of(self, part: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._data.get(part, {})
        return found

    def add(self, part: str, content: Mapping[str, Any]) -> None:
        self._data[part] = {**self.of(part), **content}
        with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
            json.dump(self._data, file)
        os.replace(file.name, self._path)


def side_by_side(work: Callable[..., _T], count: int, *arguments: Any) -> list[_T]:
    """What `work(number, begin, *arguments)` returns in each of `count` new processes. begin: a barrier of them all.

    Exits when one of them ends without that: the others would wait for it.
    """
    context = multiprocessing.get_context("spawn")
    begin = context.Barrier(count)
    processes, waiting, results = [], {}, {}
    for number in range(count):
        end, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_part, args=(theirs, work, number, begin, *arguments))
        process.start()
        theirs.close()  # so that the end of the process is the end of what can be read
        processes.append(process)
        waiting[end] = number
    try:
        while waiting:
            for end in connection.wait(list(waiting)):
                results[waiting.pop(end)] = end.recv()
    except EOFError:
        sys.exit("a process ended before it had done its part")
    finally:
        for process in processes:
            process.terminate()
            process.join()
    return [results[number] for number in range(count)]


def _part(end: connection.Connection, work: Callable[..., Any], number: int, begin: Barrier, *arguments: Any) -> None:
    end.send(work(number, begin, *arguments))


def spread(
    function: Callable[..., Any], jobs: Mapping[Any, tuple[Any, ...]], processes: int
) -> Iterator[tuple[Any, Any]]:
    """(key, result) of each job, as they end."""
    if processes == 1:
        yield from ((key, function(*arguments)) for key, arguments in jobs.items())
        return
    with ProcessPoolExecutor(processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        running = {pool.submit(function, *arguments): key for key, arguments in jobs.items()}
        for done in as_completed(running):
            yield running[done], done.result()
