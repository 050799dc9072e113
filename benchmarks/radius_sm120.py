"""How sharp the enclosure of MXFP8 x MXFP4 is at Kimi-K3's size: python benchmarks/radius_sm120.py [--tokens M ...].

The sum over the slots, before it is rounded to the output dtype, in units of rms(y), for one rank of Kimi-K3 (EP32, 28
experts). No oracle runs: it is a property of the recipe.

u = 2**-24      accumulators of float32
14, running     instructions of 32 columns that keep 13 bits below their largest addend, the sum so far among them, as
                `difftest calibrate` recognises them: the reference follows them bit by bit
14, apart       the same, but each adds to 0, and then that to a sum in float32
24, running     24 bits seen by `difftest calibrate`, and not recognised
14, unknown     declared of SM120 as long as nobody has measured a card: any of these, or finer, cut to either side

radius          sharp: median, mean and largest; the median of the hard one
error           how far what such a kernel computes is from what accumulators of float32 do: median and root mean
                square. A bound that allows for both is half of that at least; one that allows for whatever may be
                cut, but takes it for random, is lambda = 9 times its root mean square

A fixed tolerance of 0.2 rms(y) is what such kernels are held to elsewhere. Exit code 1: a median sharp radius is above
1/25 of that, but where nobody knows what the accumulator does.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from measuring import wall
from sharpness import kimi

from oracles import cutlass_sm120, reference
from oracles.ball import HARD, SHARP, Ball
from oracles.numerics import Accumulator, Numerics
from oracles.problem import Problem, build
from oracles.reference import enclose
from strategies.scenario import Activation, Situ, Swiglu

TOLERANCE = 0.2
SHARE = 25
FLOAT32 = Accumulator(group=32)
"""As `emulated-sm120` adds: a group of 32 exactly, groups in order."""
UNKNOWN = "14, unknown"
LEAST = 118
"""Lowest scale byte of five: gates of 2.8 rms at this width."""


def recipes() -> dict[str, Numerics]:
    """The first is what the others' errors are told against."""
    declared = cutlass_sm120.path((0, 7, 0)).numerics
    gemm, core = declared.gemm1, declared.gemm1.chain
    assert core is not None
    known, finer = replace(core, exactly=True), replace(core, alignment=2.0**-23, result=2.0**-23)
    found = {
        "u = 2**-24": FLOAT32,
        "14, running": replace(gemm, measured=replace(gemm, chain=known)),
        "14, apart": replace(gemm, measured=replace(FLOAT32, inside=known, flush_to_zero=True)),
        "24, running": replace(gemm, measured=replace(gemm, chain=finer)),
        UNKNOWN: gemm,
    }
    return {name: replace(declared, gemm1=acc, gemm2=acc) for name, acc in found.items()}


def before_rounding(problem: Problem, numerics: Numerics) -> Ball:
    """The sum over the slots that `enclose` rounds last."""
    seen: list[Ball] = []
    rounded = reference.rounded

    def spy(ball: Ball, *arguments: Any, **keywords: Any) -> Ball:
        seen[:] = [ball]
        return rounded(ball, *arguments, **keywords)

    with mock.patch.object(reference, "rounded", spy):
        enclose(problem, numerics)
    return seen[0]


@dataclass
class Line:
    """One recipe, over some seeds."""

    sharp: list[torch.Tensor] = field(default_factory=list)
    hard: list[torch.Tensor] = field(default_factory=list)
    off: list[torch.Tensor] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, ball: Ball, right: torch.Tensor, local: torch.Tensor) -> None:
        """right: the centers of the first recipe. local: bool [M], rows that have an expert; others are exactly 0."""
        self.sharp.append(ball.radius[SHARP][local].flatten())
        self.hard.append(ball.radius[HARD][local].flatten())
        self.off.append((ball.center - right)[local].abs().flatten())

    def figures(self, rms: float) -> list[float]:
        """Median, mean and largest sharp radius, median hard one, median and root mean square of the error."""
        sharp, hard, off = (torch.cat(each) / rms for each in (self.sharp, self.hard, self.off))
        figures = (sharp.median(), sharp.mean(), sharp.max(), hard.median(), off.median(), off.square().mean().sqrt())
        return [float(figure) for figure in figures]


def measured(
    tokens: int, activation: Activation, seeds: int, device: torch.device
) -> tuple[dict[str, Line], int, float]:
    """(lines by recipe, rows that have an expert, rms of y)."""
    lines = {name: Line() for name in recipes()}
    rows, squares, columns = 0, 0.0, 1
    for seed in range(seeds):
        problem = build(replace(kimi(tokens, activation, LEAST, seed), precision="mxfp8xmxfp4"), device)
        local = (problem.local_ids >= 0).any(1)
        if not bool(local.any()):
            continue
        right: torch.Tensor | None = None
        for name, numerics in recipes().items():
            start = wall()
            ball = before_rounding(problem, numerics)
            right = ball.center if right is None else right
            lines[name].add(ball, right, local)
            lines[name].seconds += wall() - start
        assert right is not None
        rows, columns = rows + int(local.sum()), right.shape[1]
        squares += float(right[local].square().sum())
    return lines, rows, (squares / max(1, rows * columns)) ** 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 32, 128], help="batches")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=torch.device)
    arguments = parser.parse_args()
    activations: tuple[Activation, ...] = (Swiglu(), Situ())
    limit, broken = TOLERANCE / SHARE, 0
    print(f"in units of rms(y); limit of the median radius {limit:.1e}, {SHARE} times below {TOLERANCE}")
    print(f"{'':39} {'radius':39} {'error':19}")
    heads = ("median", "mean", "largest", "hard", "median", "rms")
    print(f"{'recipe':14} {'activation':10} {'M':>4} {'rows':>5}", *(f"{head:>9}" for head in heads), "  s")
    for activation, tokens in itertools.product(activations, arguments.tokens):
        lines, rows, rms = measured(tokens, activation, arguments.seeds, arguments.device)
        if not rows:
            print(f"{'':14} {activation.kind:10} {tokens:4} {rows:5}  no row has an expert of this rank")
            continue
        for name, line in lines.items():
            figures = line.figures(rms)
            broken += name != UNKNOWN and figures[0] > limit
            print(
                f"{name:14} {activation.kind:10} {tokens:4} {rows:5}",
                *(f"{figure:9.2e}" for figure in figures),
                f"{line.seconds:5.1f}",
                flush=True,
            )
    print("the promise is kept" if not broken else f"{broken} lines above the limit")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
