"""What the gate of SM120 sees of the mistakes that only that path can have: python benchmarks/sm120_faults.py.

Each fault of `oracles/faults/sm120.py` takes the place of the emulation. named: so many of the gate's named scenarios
show it, by the reference alone, those of a real model's size left out; with the first of them. drawn: the first of the
drawn scenarios that shows it. Exit code 1: the named scenarios see fewer than `LEAST` faults, or neither sees one.
"""

from __future__ import annotations

import argparse
import sys

import torch

from difftest.engine import Engine
from difftest.gate.target import TARGETS
from difftest.stream import Enough, Stream
from oracles.faults import SM120_FAULTS
from strategies import Scenario, scenarios
from strategies.gate import group_of

LEAST = 12
DRAWN = 600


def named(engine: Engine) -> list[str]:
    """The named scenarios that show it."""
    plan = TARGETS["sm120"].emulated().plan()
    return [
        name
        for name, scenario in plan.items()
        if group_of(name) != "kimi-k3" and engine.check(scenario, checks=()).is_finding
    ]


def drawn(engine: Engine, capability: object, count: int) -> int | None:
    """The number of the first drawn scenario that shows it, of `count`."""
    seen = 0
    found: list[int] = []

    def visit(scenario: Scenario) -> None:
        nonlocal seen
        seen += 1
        if engine.check(scenario, checks=()).is_finding:
            found.append(seen)
            raise Enough

    Stream(scenarios(capability, profile="quick"), base_seed=1, shard=0, count=count).each(visit)
    return next(iter(found), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drawn", type=int, default=DRAWN, help="scenarios that are drawn for each fault at most")
    parser.add_argument("--fault", action="append", choices=sorted(SM120_FAULTS), help="only these")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    by_names = unseen = 0
    print(f"{'fault':34} {'named':>6} {'drawn':>6}  first named scenario")
    for name in arguments.fault or sorted(SM120_FAULTS):
        engine = Engine(f"fault:{name}")
        shown = named(engine)
        capability = SM120_FAULTS[name].oracle().capability
        first = drawn(engine, capability, arguments.drawn)
        by_names += bool(shown)
        unseen += not shown and first is None
        where = "-" if first is None else str(first)
        print(f"{name:34} {len(shown):6} {where:>6}  {shown[0] if shown else '-'}", flush=True)
    print(f"{by_names} faults are seen by a named scenario, {unseen} by neither")
    return int(unseen > 0 or (by_names < LEAST and arguments.fault is None))


if __name__ == "__main__":
    sys.exit(main())
