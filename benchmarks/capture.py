"""What a CUDA graph of each scenario costs, by the way in which it is captured: `python benchmarks/capture.py`.

On one GPU, with flashinfer-python. Each process prepares, calls and encloses the same scenarios of `cutlass-graph` in
each way, all processes at once; the ways are in turn, forth and back. Milliseconds of a scenario:

- torch.cuda.graph: which gives up device memory that is not used, and pinned memory.
- in a thread: begun in `prepare`, while the main thread encloses; nothing is given up.
- in its turn: at the call; nothing is given up.
- as it is: in its turn; device memory is given up.

reserved: MiB that torch holds in the end, of the process that has most.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.synchronize import Barrier

import torch
from measuring import drawn, installed, show, side_by_side
from rich.table import Table

from oracles import base, reference
from oracles.cutlass_graph import Captured
from oracles.problem import build
from strategies.scenario import Scenario

_WARM = 12
_AS_IT_IS = Captured._capture

Row = tuple[float, float, float, float]
"""Seconds: in all, of `prepare`, of the call with what it waits for, of the enclosure."""
Result = tuple[str, list[Row], int]
"""A way, its scenarios, bytes reserved."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 14], help="at once [default: 1 14]")
    parser.add_argument("--examples", type=int, default=60, help="scenarios of each process [default: 60]")
    options = parser.parse_args()
    installed("cutlass-graph")
    table = Table("processes", "way", "scenarios", "in all", "prepare", "call", "enclose", "reserved")
    for count in options.processes:
        results = [result for part in side_by_side(work, count, options.examples) for result in part]
        for way in WAYS:
            rows = [row for name, mine, _ in results if name == way for row in mine]
            told = [f"{1000 * statistics.mean(column):.1f}" for column in zip(*rows, strict=True)]
            reserved = max(number for name, _, number in results if name == way) >> 20
            table.add_row(str(count), way, str(len(rows)), *told, f"{reserved:,}")
    show(table)


@torch.no_grad()
def work(number: int, begin: Barrier, examples: int) -> list[Result]:
    torch.set_num_threads(1)
    oracle = base.get("cutlass-graph")
    mine = drawn(oracle, number, examples)
    for way in WAYS:
        for scenario in mine[:_WARM]:
            one(scenario, way)
    found: list[Result] = []
    for ways in (list(WAYS), list(WAYS)[::-1]):
        for way in ways:
            torch.cuda.empty_cache()
            begin.wait()
            rows = [row for row in (one(scenario, way) for scenario in mine) if row is not None]
            found.append((way, rows, torch.cuda.memory_reserved()))
    return found


def one(scenario: Scenario, way: str) -> Row | None:
    """None where the oracle does not take the scenario, or the kernel refuses it (M = 0)."""
    oracle = base.get("cutlass-graph")
    if oracle.unsupported(scenario) is not None:
        return None
    problem = build(scenario)
    Captured._capture = WAYS[way]
    enclosing = calling = 0.0
    start = time.perf_counter()
    try:
        prepared = oracle.prepare(problem)
        ready = time.perf_counter()
        if way == "in a thread":
            graph = _THREAD.submit(_in_a_thread, prepared)
            enclosing = timed(lambda: reference.enclose(problem, oracle.numerics))
            calling = timed(lambda: _call_with(prepared, graph, oracle))
        else:
            calling = timed(lambda: oracle(prepared))
            enclosing = timed(lambda: reference.enclose(problem, oracle.numerics))
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
        return None
    return time.perf_counter() - start, ready - start, calling, enclosing


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


_THREAD = ThreadPoolExecutor(1)


def _call_with(prepared: Captured, graph: Future[torch.cuda.CUDAGraph], oracle: base.Oracle) -> None:
    prepared._graph = graph.result()
    oracle(prepared)


@torch.no_grad()  # which each thread has of its own
def _in_a_thread(captured: Captured) -> torch.cuda.CUDAGraph:
    return _plain(captured, "thread_local")


def _plain(captured: Captured, mode: str = "global") -> torch.cuda.CUDAGraph:
    """As `Captured._capture`, but that no memory is given up."""
    captured.mask()
    with torch.cuda.device(captured.output.device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            captured._call.poison()
            captured._call.launch(captured.output)
            graph.capture_begin(capture_error_mode=mode)
            try:
                captured._call.launch(captured.output)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
    return graph


def _by_torch(captured: Captured) -> torch.cuda.CUDAGraph:
    """As torch's documentation has it."""
    captured.mask()
    with torch.cuda.device(captured.output.device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            captured._call.poison()
            captured._call.launch(captured.output)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured._call.launch(captured.output)
    return graph


WAYS: dict[str, Callable[[Captured], torch.cuda.CUDAGraph]] = {
    "torch.cuda.graph": _by_torch,
    "in a thread": _plain,  # not called: the graph is there
    "in its turn": _plain,
    "as it is": _AS_IT_IS,
}


if __name__ == "__main__":
    main()
