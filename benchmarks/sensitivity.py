"""How small an error is caught, and whether a right implementation ever is.

python benchmarks/sensitivity.py curve     one element of the twin's answer, of the intermediate or of the first
    GEMM's accumulator is off by a known amount: how often that is seen, by its size, and what fixed tolerances see.
    Exits with 1 unless one ulp is always caught on an output that must be exact, and an error of twice the radius
    on every other one.
python benchmarks/sensitivity.py alarms    scenarios on the twin without a fault, each with the checks of a
    campaign. Every finding is a false alarm, and the exit code is then 1. Results go to a JSON file as they come;
    when it is run again, it goes on from there.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from measuring import Results, each, spread
from tolerances import TOLERANCES, passed

from difftest.engine import Engine
from difftest.judging.compare import judge
from oracles.enclosure import FINITE, Enclosure
from oracles.faults import Twin
from oracles.faults.twin import Call, Prepared
from oracles.problem import Problem, build
from oracles.reference import enclose
from strategies import Scenario

SIZES = tuple(2.0**-exponent for exponent in range(12, -3, -2))
PLACES = ("output", "intermediate", "accumulator")
CHUNK = 500


def chosen(scenario: Scenario, where: torch.Tensor) -> tuple[int, int] | None:
    """One element of bool `where` [M, N], the scenario's own; None when there is none."""
    found = where.nonzero()
    if not len(found):
        return None
    row, column = found[int(scenario.digest, 16) % len(found)].tolist()
    return row, column


# --- one known error --------------------------------------------------------------------------------------------------


class Off(Twin):
    """The twin with one element of one step off by a share `size` of itself. moved: whether there was one to move."""

    def __init__(self, place: str, size: float) -> None:
        self._place, self._size = place, size
        self.moved = False

    def _moved(self, call: Call, place: str, value: torch.Tensor) -> torch.Tensor:
        if place != self._place:
            return value
        element = chosen(call.problem.scenario, value.isfinite() & (value != 0))
        if element is not None:
            value = value.clone()
            value[element] *= 1 + self._size
            self.moved = True
        return value

    def intermediate(self, call: Call, a: torch.Tensor) -> torch.Tensor:
        return super().intermediate(call, self._moved(call, "intermediate", a))

    def gemm1(self, call: Call, x: torch.Tensor) -> torch.Tensor:
        summed = self._moved(call, "accumulator", self.dot(call, x, call.prepared.w13))
        return self.biased(call, self.rounded(summed), call.problem.w13_bias)

    def store(self, call: Call, total: torch.Tensor, output: torch.Tensor) -> None:
        super().store(call, self._moved(call, "output", total), output)


class OffByRadii(Twin):
    """The twin with one element of its answer two sharp radii off; in a redraw that leaves none open, one ulp."""

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        output, enclosure = super().__call__(prepared), enclose(prepared.problem, self.numerics)
        element = _open_element(prepared.problem.scenario, enclosure)
        if element is not None:
            output[element] = _at_least(enclosure.center[element] + 2 * enclosure.sharp[element], output.dtype)
        elif (closed := chosen(prepared.problem.scenario, enclosure.kinds == FINITE)) is not None:
            output[closed] = torch.nextafter(output[closed], output.new_tensor(math.inf))
        return output


def _open_element(scenario: Scenario, enclosure: Enclosure) -> tuple[int, int] | None:
    return chosen(scenario, (enclosure.kinds == FINITE) & (enclosure.sharp > 0))


def _at_least(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The least number of `dtype` that is not below `value`."""
    near = value.to(dtype)
    return near if near >= value else torch.nextafter(near, near.new_tensor(math.inf))


# --- curve ------------------------------------------------------------------------------------------------------------


def measure(seed: int, count: int) -> dict[str, Any]:
    """Shares as [caught, of], for one ulp, two radii, and each place and size by each judge."""
    ulps, radii = [0, 0], [0, 0]
    curve: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    engine = Engine(OffByRadii())
    number = 0

    def visit(scenario: Scenario) -> bool:
        nonlocal number
        number += 1
        problem = build(scenario)
        enclosure = enclose(problem, Twin.numerics)
        right = Twin()(Twin().prepare(problem))
        exact = chosen(scenario, (enclosure.kinds == FINITE) & (enclosure.hard == 0))
        if exact is not None:
            wrong = right.clone()
            wrong[exact] = torch.nextafter(right[exact], right.new_tensor(math.inf))
            ulps[0] += bool(judge(wrong, enclosure, Twin.numerics).breaches)
            ulps[1] += 1
        if _open_element(scenario, enclosure) is not None:
            radii[0] += engine.check(scenario, checks=()).is_finding
            radii[1] += 1
        _sizes(problem, enclosure, right)
        return number < count

    def _sizes(problem: Problem, enclosure: Enclosure, right: torch.Tensor) -> None:
        usual = passed(right, enclosure)
        for place in PLACES:
            for size in SIZES:
                off = Off(place, size)
                got = off(off.prepare(problem))
                if not off.moved:
                    continue
                seen = TOLERANCES.keys() - passed(got, enclosure) if usual == TOLERANCES.keys() else None
                judges = {"enclosure": bool(judge(got, enclosure, Twin.numerics).breaches)}
                judges |= {} if seen is None else {name: name in seen for name in TOLERANCES}
                for name, caught in judges.items():
                    curve[f"{place} {size} {name}"][0] += caught
                    curve[f"{place} {size} {name}"][1] += 1

    with torch.no_grad():
        each(seed, 20 * count, visit)
    return {"ulp": ulps, "radii": radii, "curve": dict(curve)}


def curve(options: argparse.Namespace) -> int:
    parts = 8
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for _, found in spread(measure, {s: (s, options.count // parts) for s in range(parts)}, options.processes):
        for name, (caught, of) in {"ulp": found["ulp"], "radii": found["radii"], **found["curve"]}.items():
            total[name][0] += caught
            total[name][1] += of
    print(f"one ulp on an output that must be exact: {_share(total['ulp'])}")
    print(f"twice the sharp radius on any other: {_share(total['radii'])}")
    judges = ("enclosure", *TOLERANCES)
    for place in PLACES:
        print(f"\none element of the {place} off by this share of itself, caught by")
        print(f"{'size':>10} " + " ".join(f"{name:>10}" for name in judges))
        for size in SIZES:
            shares = (total[f"{place} {size} {name}"] for name in judges)
            print(f"{size:>10.4g} " + " ".join(f"{caught / max(1, of):>10.1%}" for caught, of in shares))
    return 0 if all(total[name][0] == total[name][1] > 0 for name in ("ulp", "radii")) else 1


def _share(counts: list[int]) -> str:
    caught, of = counts
    return f"{caught} of {of} caught ({caught / max(1, of):.2%})"


# --- alarms -----------------------------------------------------------------------------------------------------------


def alarms_of(seed: int) -> dict[str, Any]:
    """Findings on the twin in the scenarios of one seed."""
    engine = Engine(Twin())
    findings: list[str] = []
    number = one_offs = 0

    def visit(scenario: Scenario) -> bool:
        nonlocal number, one_offs
        number += 1
        outcome = engine.check(scenario)
        one_offs += outcome.stats.one_offs if outcome.stats is not None else 0
        findings.extend(f"{scenario.digest} {found.check}: {found.detail}" for found in outcome.findings)
        return number < CHUNK

    each(seed, 4 * CHUNK, visit)
    return {"scenarios": number, "one_offs": one_offs, "findings": findings}


def alarms(options: argparse.Namespace) -> int:
    results = Results(options.results, {"of": "alarms"})
    seeds = range(1000, 1000 + -(-options.count // CHUNK))  # apart from those of the detection benchmark
    todo = {seed: (seed,) for seed in seeds if not results.of(f"seed {seed}")}
    for seed, found in spread(alarms_of, todo, options.processes):
        results.add(f"seed {seed}", found)
        print(f"seed {seed}: {found['scenarios']} scenarios, {len(found['findings'])} findings", flush=True)
    parts = [results.of(f"seed {seed}") for seed in seeds]
    findings = [line for part in parts for line in part["findings"]]
    print(*findings[:20], sep="\n")
    one_offs = sum(part["one_offs"] for part in parts)
    print(f"{sum(part['scenarios'] for part in parts)} scenarios: {len(findings)} false alarms, {one_offs} one-offs")
    return 1 if findings else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    modes = parser.add_subparsers(required=True, metavar="MODE")
    sizes = modes.add_parser("curve", help="how small an error is caught")
    sizes.add_argument("--count", type=int, default=400, help="scenarios [default: 400]")
    sizes.set_defaults(run=curve)
    right = modes.add_parser("alarms", help="findings on the faultless twin")
    right.add_argument("--count", type=int, default=20000, help="scenarios [default: 20000]")
    right.add_argument("--results", type=Path, default=Path("alarms.json"), help="[default: alarms.json]")
    right.set_defaults(run=alarms)
    options = parser.parse_args()
    torch.set_num_threads(1)
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
