"""Does the same call always give the same bits? `python benchmarks/race.py` on a Hopper GPU with FlashInfer.

The race of flashinfer#5438: up to 0.6.17 but for 0.6.16, a tile of bfloat16 x MXFP4 is computed with the scales of the
next expert, once in thousands of calls. Calls are queued back to back; each output is compared with the first one on
the device, and nothing is read back before the last: with PDL and without, alone and with another stream beside. Seen
on an H200 with 0.6.17 (tile 128x16x128): 3 of 10,000 calls with a stream beside, none of 10,000 alone. With one step
along K (--tokens 512 --intermediate 128) each of 12,606 calls differs from the first, alone. --inject N makes one call
in N wrong in one tile of 16 rows and 128 columns: the detector has to count exactly these. --engine asks the
determinism check of difftest the same question.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from measuring import installed, wall
from rich.console import Console
from rich.table import Table

from difftest.engine import Engine
from oracles import busy
from oracles import flashinfer_package as package
from oracles.cutlass import Cutlass, Prepared
from oracles.problem import Problem, build
from strategies.scenario import Execution, Scenario, Shape

SHAPE = Shape(tokens=8192, hidden=4096, intermediate=256, experts=256, top_k=6)
TILE = (16, 128)
WARM_UP = 3


@dataclass(frozen=True)
class Races:
    """calls: compared with the first one. wrong: how many differ. first: the first that does, -1 for none.
    elements: that differ in it. rows, columns: [first, last] of these."""

    calls: int
    wrong: int
    first: int
    elements: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    seconds: float


def races(launch: Callable[[torch.Tensor, int], object], output: torch.Tensor, calls: int) -> Races:
    """Queue `launch(output, number)` for 0 to `calls` and compare each output with that of 0, on the device."""
    launch(output, 0)
    want = output.clone()
    bits, right = output.view(torch.int16), want.view(torch.int16)
    kept = want.clone()
    wrong = torch.zeros((), dtype=torch.int64, device=output.device)
    first = torch.full_like(wrong, -1)
    start = wall()
    for number in range(1, calls + 1):
        output.fill_(-1.0)  # what a call leaves unwritten must not be the last one's
        launch(output, number)
        bad = (bits != right).any()
        fresh = bad & (first < 0)
        torch.where(fresh, output, kept, out=kept)
        first = torch.where(fresh, number, first)
        wrong += bad
    seconds = wall() - start
    rows, columns = (kept.view(torch.int16) != right).nonzero(as_tuple=True)

    def span(places: torch.Tensor) -> tuple[int, int]:
        return (int(places.min()), int(places.max())) if len(places) else (-1, -1)

    return Races(calls, int(wrong), int(first), len(rows), span(rows), span(columns), seconds)


def injected(launch: Callable[[torch.Tensor, int], object], every: int) -> Callable[[torch.Tensor, int], object]:
    """`launch`, wrong in one tile in one call of `every`; nothing is wrong for 0."""
    if not every:
        return launch

    def run(output: torch.Tensor, number: int) -> None:
        launch(output, number)
        if number % every == every // 2:
            row, column = (number * 7919) % (len(output) // TILE[0]), (number * 104729) % (output.shape[1] // TILE[1])
            tile = output[row * TILE[0] :, column * TILE[1] :][: TILE[0], : TILE[1]]
            tile.mul_(1.25)

    return run


def kernel(problem: Problem) -> Callable[[torch.Tensor, int], object]:
    """One call of the package, of whatever version: it gets those arguments that it has, and its own workspace."""
    call = package.module("fused_moe").cutlass_fused_moe
    known = inspect.signature(call).parameters
    arguments = {name: value for name, value in Cutlass().arguments(problem).items() if name in known}
    return lambda output, _: call(**arguments, output=output)


def beside(launch: Callable[[torch.Tensor, int], object]) -> Callable[[torch.Tensor, int], object]:
    def run(output: torch.Tensor, number: int) -> None:
        busy.on(output.device).queue()
        launch(output, number)

    return run


class Injected(Cutlass):
    """`cutlass`, wrong in one tile in one call of `every`."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every, self._calls = every, 0

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        self._calls += 1
        output = super().__call__(prepared)
        injected(lambda *_: None, self._every)(output, self._calls)
        return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000, help="in all, shared out evenly [default: 20000]")
    parser.add_argument("--tactic", type=int, action="append", help="besides the default one; repeatable")
    parser.add_argument("--inject", type=int, default=0, metavar="N", help="one call in N is wrong [default: none]")
    parser.add_argument("--engine", type=int, default=0, metavar="N", help="repeats of the determinism check")
    parser.add_argument("--tokens", type=int, default=SHAPE.tokens)
    parser.add_argument("--intermediate", type=int, default=SHAPE.intermediate)
    options = parser.parse_args()
    installed("cutlass")
    shape = dataclasses.replace(SHAPE, tokens=options.tokens, intermediate=options.intermediate)
    base = Scenario(shape=shape)
    print(f"flashinfer {package.version()}, {torch.cuda.get_device_name()}, {base.shape}")
    table = Table("tactic", "PDL", "beside", "calls", "wrong", "first", "elements", "rows", "columns", "ms a call")
    settings = [(t, p, b) for t in (None, *(options.tactic or ())) for p in (True, False) for b in (True, False)]
    problem = build(base, "cuda")
    output = torch.empty_like(problem.hidden_states)
    for tactic, pdl, crowded in settings:
        execution = Execution(tactic=tactic, pdl=pdl)
        launch = kernel(dataclasses.replace(problem, scenario=dataclasses.replace(base, execution=execution)))
        for number in range(WARM_UP):
            launch(output, number)
        launch = injected(launch, options.inject)
        if crowded:
            launch = beside(launch)
        found = races(launch, output, options.calls // len(settings))
        where: list[Any] = [tactic, pdl, "busy" if crowded else "-"]
        seen = [found.calls, found.wrong, found.first, found.elements, found.rows, found.columns]
        milliseconds = f"{1000 * found.seconds / found.calls:.2f}"
        table.add_row(*map(str, (*where, *seen, milliseconds)))
    Console(width=150).print(table)
    if options.engine:
        scenario = dataclasses.replace(base, execution=Execution(repeats=options.engine, busy=True))
        engine = Engine(Injected(options.inject), device="cuda")
        outcome = engine.check(scenario, checks={"determinism"})
        print(f"determinism check, {options.engine} repeats: {outcome}")


if __name__ == "__main__":
    main()
