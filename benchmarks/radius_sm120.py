"""How sharp the enclosure of MXFP8 x MXFP4 is at Kimi-K3's size: python benchmarks/radius_sm120.py [--tokens M ...].

The radius of the sum over the slots, before it is rounded to the output dtype, in units of rms(y), for one rank of
Kimi-K3 (EP32, 28 experts). No oracle runs: it is a property of the recipe, once with accumulators of float32
(u = 2**-24), once with those that are assumed of SM120 as long as nobody has measured a card (14 bits, cut), and once
with these where `difftest calibrate` has seen 24 bits that are cut.

A fixed tolerance of 0.2 rms(y) is what such kernels are held to elsewhere. Exit code 1: a median sharp radius is above
1/25 of that, but for 14 bits, where no card was measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from sharpness import kimi

from oracles import cutlass_sm120, reference
from oracles.ball import HARD, SHARP, Ball
from oracles.numerics import Accumulator, Numerics
from oracles.problem import build
from oracles.reference import enclose
from strategies.scenario import Activation, Situ, Swiglu

TOLERANCE = 0.2
SHARE = 25
FLOAT32 = Accumulator(group=32)
"""As `emulated-sm120` adds: a group of 32 exactly, groups in order."""
LEAST = 118
"""Lowest scale byte of five: gates of 2.8 rms at this width."""


def before_rounding(problem: Any, numerics: Numerics) -> Ball:
    """The sum over the slots that `enclose` rounds last."""
    seen: list[Ball] = []
    rounded = reference.rounded

    def spy(ball: Ball, *arguments: Any, **keywords: Any) -> Ball:
        seen[:] = [ball]
        return rounded(ball, *arguments, **keywords)

    with mock.patch.object(reference, "rounded", spy):
        enclose(problem, numerics)
    return seen[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 32, 128], help="batches")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", type=torch.device)
    arguments = parser.parse_args()
    declared = cutlass_sm120.path((0, 7, 0)).numerics
    seen = replace(declared.gemm1, measured=replace(declared.gemm1, unit_roundoff=2.0**-24, exact_bits=24))
    recipes = {
        "u = 2**-24": replace(declared, gemm1=FLOAT32, gemm2=FLOAT32),
        "14 bits, cut": declared,
        "24 measured": replace(declared, gemm1=seen, gemm2=seen),
    }
    activations: tuple[Activation, ...] = (Swiglu(), Situ())
    limit, broken = TOLERANCE / SHARE, 0
    print(f"radius in units of rms(y); limit {limit:.1e}, {SHARE} times below {TOLERANCE}")
    print(
        f"{'recipe':14} {'activation':10} {'M':>4} {'rows':>5} {'median':>9} {'mean':>9} {'largest':>9} {'hard':>9}  s"
    )
    for name, numerics in recipes.items():
        for activation in activations:
            for tokens in arguments.tokens:
                start = time.perf_counter()
                radii, hard, rows, squares = [], [], 0, 0.0
                for seed in range(arguments.seeds):
                    scenario = replace(kimi(tokens, activation, LEAST, seed), precision="mxfp8xmxfp4")
                    problem = build(scenario, arguments.device)
                    ball = before_rounding(problem, numerics)
                    local = (problem.local_ids >= 0).any(1)  # a row without an expert is exactly 0
                    rows += int(local.sum())
                    squares += float(ball.center[local].square().sum())
                    radii.append(ball.radius[SHARP][local].flatten())
                    hard.append(ball.radius[HARD][local].flatten())
                if not rows:
                    print(f"{name:14} {activation.kind:10} {tokens:4} {rows:5}  no row has an expert of this rank")
                    continue
                rms = (squares / (rows * ball.center.shape[1])) ** 0.5
                sharp, widest = torch.cat(radii) / rms, torch.cat(hard) / rms
                median = float(sharp.median())
                print(
                    f"{name:14} {activation.kind:10} {tokens:4} {rows:5} {median:9.2e} {float(sharp.mean()):9.2e} "
                    f"{float(sharp.max()):9.2e} {float(widest.median()):9.2e}  {time.perf_counter() - start:.1f}",
                    flush=True,
                )
                broken += numerics is not declared and median > limit
    print("the promise is kept" if not broken else f"{broken} lines above the limit")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
