"""How sharp the enclosures are: python benchmarks/sharpness.py [--no-kimi] [--oracle NAME --device DEVICE].

Two tables of grouped-mm on this machine against its own recipe, pooled over seeds:

must be exact   share of the outputs whose sharp radius is 0
are exact       of those, the share that is bit-equal to the recipe's value
radius, hard    mean sharp and hard radius in units of rms(y)
error           RMS difference from the recipe, in the same units
ratio           mean sharp radius over it, or how many outputs are off at all where they are too few to tell
e/r             median and maximum of error over sharp radius, where the radius is not 0
hard e/r        the same of the hard radius

The second has one rank of Kimi-K3 (EP32), and what it takes in time and memory. Another oracle has only this one, at
every M of `BATCHES`, for SwiGLU and SiTU and two ranges of scales, with the seconds of a case once all is warm. Seeds
and batches of one activation are pooled in a line of their own, which is what must keep the promises: in a single case
few outputs or none may be off. Exit code 1: a promise of `PROMISES` is not kept.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from measuring import installed, wall

from difftest import calibration
from difftest.judging.compare import judge
from oracles.enclosure import Enclosure
from oracles.grouped_mm import GroupedMM
from oracles.problem import build
from oracles.reference import enclose
from strategies.models import MODELS
from strategies.scenario import Activation, Parallel, Routing, Scenario, Shape, Situ, Swiglu, Values

SIZES = (128, 256, 512)
ACTIVATIONS: tuple[Activation, ...] = (Swiglu(), Situ())
TOP_K = (1, 4)
PROMISES = {"normal": (0.7, 0.001), "integer": (1.0, 0.0), "kimi": (0.0, 0.007)}
"""Rule: least share of outputs that must be exact, largest mean radius in units of rms(y)."""
BATCHES = (1, 8, 32, 128)
SEEDS = 4
SCALES = (118, 114)
"""Lowest scale byte of five: gates of 2.8 and of 0.18 rms at the width of Kimi-K3."""
RATIO = 30.0
"""Largest mean radius in units of the RMS error, where there were enough errors to know it."""

_ENOUGH = 10  # outputs off, for the RMS error to be known to about a third
_MOST_OUTPUTS = 600_000


@dataclass
class Cell:
    """One line of a table."""

    name: str
    rule: str
    outputs: int = 0
    exact: int = 0
    equal: int = 0
    off: int = 0
    radius: float = 0.0
    hard: float = 0.0
    squares: float = 0.0
    errors: float = 0.0
    ratios: list[torch.Tensor] = field(default_factory=list)
    hard_ratios: list[torch.Tensor] = field(default_factory=list)

    def add(self, enclosure: Enclosure, y: torch.Tensor) -> None:
        """Count the outputs y [M, H] of one scenario."""
        error = (y.double() - enclosure.center).abs()
        if bool((error > enclosure.sharp).any()):
            raise AssertionError(f"{self.name}: an output is outside its radius")
        must = enclosure.sharp == 0
        self.outputs += y.numel()
        self.exact += int(must.sum())
        self.equal += int((error[must] == 0).sum())
        self.off += int((error > 0).sum())
        self.radius += float(enclosure.sharp.sum())
        self.hard += float(enclosure.hard.sum())
        self.squares += float(y.double().square().sum())
        self.errors += float(error.square().sum())
        self.ratios.append((error / enclosure.sharp)[~must].cpu())
        self.hard_ratios.append((error / enclosure.hard)[enclosure.hard > 0].cpu())

    @property
    def rms(self) -> float:
        return (self.squares / self.outputs) ** 0.5

    @property
    def rms_error(self) -> float:
        return (self.errors / self.outputs) ** 0.5

    def broken(self) -> list[str]:
        """The promises that this cell does not keep."""
        exact, mean = PROMISES[self.rule]
        found = []
        if self.exact < exact * self.outputs:
            found.append(f"{self.exact / self.outputs:.1%} must be exact, not {exact:.0%}")
        if self.equal < self.exact:
            found.append(f"{self.exact - self.equal} outputs that must be exact are not")
        if self.radius > mean * self.rms * self.outputs:
            found.append(f"mean radius {self.radius / self.outputs / self.rms:.2%} of rms(y), above {mean:.1%}")
        if self.off >= _ENOUGH and self.radius > RATIO * self.rms_error * self.outputs:
            found.append(f"mean radius {self.radius / self.outputs / self.rms_error:.0f} times the RMS error")
        return found

    def line(self) -> str:
        mean = self.radius / self.outputs
        ratio = f"{mean / self.rms_error:.1f}" if self.off >= _ENOUGH else f"{self.off} off"
        return (
            f"{self.name:32} {self.outputs:8} {self.exact / self.outputs:8.2%} {self.equal / max(self.exact, 1):8.2%} "
            f"{mean / self.rms:9.2e} {self.hard / self.outputs / self.rms:9.2e} {self.rms_error / self.rms:9.2e} "
            f"{ratio:>7} {_spread(self.ratios):>9} {_spread(self.hard_ratios):>9}"
        )


def _spread(ratios: list[torch.Tensor]) -> str:
    """Median and maximum."""
    every = torch.cat(ratios)
    return f"{every.median():.2f} {every.max():.2f}" if every.numel() else "-"


HEADER = (
    f"{'scenario':32} {'outputs':>8} {'must be':>8} {'are':>8} {'radius':>9} {'hard':>9} {'error':>9} {'ratio':>7} "
    f"{'e/r':>9} {'hard e/r':>9}"
)


def measured(name: str, rule: str, scenarios: Iterable[Scenario]) -> Cell:
    """Pool scenarios until enough outputs are off to know the RMS error."""
    oracle, cell = GroupedMM(), Cell(name, rule)
    for scenario in scenarios:
        problem = build(scenario)
        cell.add(enclose(problem, oracle.numerics), oracle(oracle.prepare(problem)))
        if cell.off >= _ENOUGH or cell.outputs >= _MOST_OUTPUTS or (rule == "integer" and cell.outputs >= 1 << 15):
            break
    return cell


def scenarios(hidden: int, inner: int, activation: Activation, top_k: int, rule: str) -> Iterator[Scenario]:
    """The same layer with other seeds."""
    shape = Shape(tokens=32, hidden=hidden, intermediate=inner, experts=8, top_k=top_k)
    for seed in itertools.count():
        values = Values(rule=rule, seed=seed)  # type: ignore[arg-type]
        yield Scenario(shape=shape, activation=activation, values=values, routing=Routing(seed=seed))


def kimi(tokens: int = 128, activation: Activation | None = None, low: int = 118, seed: int = 0) -> Scenario:
    """Rank 7 of 32 of one layer of Kimi-K3: 28 of 896 experts."""
    return Scenario(
        shape=MODELS["kimi-k3"].shape(tokens),
        parallel=Parallel(ep_size=32, ep_rank=7),
        activation=activation or Situ(),
        values=Values(seed=seed, scale_low=low, scale_high=low + 4),
        routing=Routing(seed=seed),
    )


def kimi_ranks(name: str, device: torch.device) -> list[Cell]:
    """The table of one oracle at Kimi-K3's rank shape; its pooled lines."""
    oracle = installed(name)
    known = calibration.find(oracle, name, device)
    numerics = oracle.numerics if known is None else known.applied(oracle.numerics)
    print(f"{name} on {device}, {'not calibrated' if known is None else f'calibrated {known.taken}'}")
    print(HEADER + "  seconds: problem kernel enclosure comparison all")
    pooled = []
    kinds = [one for one in ACTIVATIONS if oracle.unsupported(kimi(activation=one)) is None]
    for activation, low in itertools.product(kinds, SCALES):
        pool = Cell(f"{activation.kind} scales {low}, all", "kimi")
        for tokens in BATCHES:
            cell = Cell(f"{activation.kind} scales {low}, M={tokens}", "kimi")
            spent: list[float] = []
            for seed in (0, *range(SEEDS)):  # the first is warmed up
                marks = [wall()]
                problem = build(kimi(tokens, activation, low, seed), device)
                marks.append(wall())
                y = oracle(oracle.prepare(problem))
                marks.append(wall())
                enclosure = enclose(problem, numerics)
                marks.append(wall())
                judge(y, enclosure, numerics)
                marks.append(wall())
                if not spent:
                    spent = [0.0] * 4
                    continue
                spent = [
                    was + (end - start) / SEEDS
                    for was, (start, end) in zip(spent, itertools.pairwise(marks), strict=True)
                ]
                cell.add(enclosure, y)
                pool.add(enclosure, y)
            print(cell.line(), " ", " ".join(f"{one:.3f}" for one in (*spent, sum(spent))), flush=True)
        print(pool.line(), flush=True)
        pooled.append(pool)
    return pooled


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-kimi", action="store_true", help="leave out the Kimi-K3 rank (a minute, 3 GiB)")
    parser.add_argument("--oracle", help="another oracle, at the shape of a Kimi-K3 rank only")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=torch.device)
    arguments = parser.parse_args()
    if arguments.oracle is not None:
        return _ended(kimi_ranks(arguments.oracle, arguments.device))
    cells = []
    print(HEADER)
    for rule in ("normal", "integer"):
        for hidden, inner, activation, top_k in itertools.product(SIZES, SIZES, ACTIVATIONS, TOP_K):
            name = f"{rule} H={hidden} I={inner} {activation.kind} K={top_k}"
            cells.append(measured(name, rule, scenarios(hidden, inner, activation, top_k, rule)))
            print(cells[-1].line(), flush=True)
    if not arguments.no_kimi:
        before, start = _peak(), wall()
        problem = build(kimi())
        built = wall()
        enclosure = enclose(problem, GroupedMM.numerics)
        enclosed = wall()
        oracle = GroupedMM()
        cells.append(Cell("Kimi-K3 rank 7 of 32, M=128", "kimi"))
        cells[-1].add(enclosure, oracle(oracle.prepare(problem)))
        print(cells[-1].line())
        print(
            f"  problem {built - start:.1f} s, enclosure {enclosed - built:.1f} s; "
            f"peak memory {_peak():.2f} GiB, {before:.2f} before it"
        )
    return _ended(cells)


def _ended(cells: list[Cell]) -> int:
    broken = [f"{cell.name}: {reason}" for cell in cells for reason in cell.broken()]
    print(*(broken or ["every promise is kept"]), sep="\n")
    return 1 if broken else 0


def _peak() -> float:
    """Largest resident set so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


if __name__ == "__main__":
    sys.exit(main())
