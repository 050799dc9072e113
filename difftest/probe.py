"""Measures how an oracle adds up the products of its GEMMs, by what is left of a small number between two large ones.

In a dot product 2**e comes in column 0, a small number in column d, and -2**e in column 2 d: exactly the small number
is the sum. What an oracle makes of it, as e grows, says how many bits the sum had that it was added to, and how that
was rounded. Small distances stay inside one instruction of a tensor core, or fall into different lanes; large ones do
not. In MXFP8 a block of 32 columns holds 1 beside 2**17 and no more.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from oracles import formats
from oracles.base import AnyCapability, Oracle, capability_of
from oracles.problem import Problem, build
from strategies.capability import Capability
from strategies.scenario import Execution, Scenario, Shape

DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128)
EXPONENTS = range(2, 31)
SMALL = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -3.0)
"""Weights of the small number, which is 1: the codes of E2M1."""
VISIBLE = range(1, 18)
"""Widths that show within a block of 32 of MXFP8."""
GATE = 16.0
"""silu(16) is 16 to eight digits."""
_HIDDEN, _INNER = 512, 384
_ROWS = formats.GROUP
"""Rows apart that two distances' answers are, so that no block scale has both."""


@dataclass(frozen=True, kw_only=True)
class Addition:
    """What adding over `distance` columns was seen to do.

    bits: of the sum, None when nothing was rounded up to `up_to`, the largest e: then the three are not added to each
    other in that order, or the sum is wider. rounding: of what lies below; "other" is none of the two.
    """

    distance: int
    bits: int | None
    rounding: Literal["nearest", "truncate", "other"] | None
    up_to: int

    def __post_init__(self) -> None:
        if self.rounding not in ("nearest", "truncate", "other", None):
            raise ValueError(f"rounding = {self.rounding!r}: must be nearest, truncate, other or null")
        if (self.bits is None) != (self.rounding is None):
            raise ValueError(
                f"rounding = {self.rounding!r}: must be given exactly when bits are, which are {self.bits}"
            )

    def __str__(self) -> str:
        if self.bits is None:
            return f"{self.distance:4} columns apart: nothing rounded up to 2**{self.up_to}"
        how = {"nearest": "to nearest", "truncate": "towards 0", "other": "in another way"}[str(self.rounding)]
        return f"{self.distance:4} columns apart: {self.bits} bits, {how}"


class Unmeasurable(RuntimeError):
    """The oracle declines the probe, or does not answer it. The message says why in one line."""


def measure(oracle: Oracle, device: torch.device) -> dict[Literal["gemm1", "gemm2"], tuple[Addition, ...]]:
    """Of each GEMM, for each of `DISTANCES`. Raises `Unmeasurable`."""
    return {gemm: _measure(oracle, gemm, device) for gemm in ("gemm1", "gemm2")}


def _measure(oracle: Oracle, gemm: Literal["gemm1", "gemm2"], device: torch.device) -> tuple[Addition, ...]:
    problem = crafted(gemm, plainest(capability_of(oracle), len(DISTANCES) * len(EXPONENTS), device))
    reason = oracle.unsupported(problem.scenario)
    if reason is not None:
        raise Unmeasurable(f"the probe is not supported: {reason}")
    output = oracle(oracle.prepare(problem)).double().cpu()
    left = output / GATE  # [distances * exponents, H]
    states = problem.hidden_states.double().cpu()
    found = []
    for position, distance in enumerate(DISTANCES):
        tokens = slice(position * len(EXPONENTS), (position + 1) * len(EXPONENTS))
        rows = slice(position * _ROWS, position * _ROWS + len(SMALL))
        found.append(_read(distance, left[tokens, rows], states[tokens, distance] == 1))
    return tuple(found)


def plainest(capability: AnyCapability, tokens: int, device: torch.device) -> Problem:
    """A layer to be filled, one expert, in the first precision and mode that an oracle has."""
    promised = capability if isinstance(capability, Capability) else Capability()
    shape = Shape(tokens=tokens, hidden=_HIDDEN, intermediate=_INNER, experts=1, top_k=1)
    scenario = Scenario(
        shape=shape,
        precision="bf16xmxfp4" if "bf16xmxfp4" in promised.precisions else "mxfp8xmxfp4",
        execution=Execution(mode="eager" if "eager" in promised.modes else "graph"),
    )
    return build(scenario, device)


def _read(distance: int, left: torch.Tensor, there: torch.Tensor) -> Addition:
    """left: [exponents, SMALL], what came out. Anything up to a quarter off is a rounding somewhere else. there: bool
    [exponents], the small number is what it is meant to be."""
    small = torch.tensor(SMALL, dtype=torch.float64)
    for exponent, row, is_there in zip(EXPONENTS, left, there, strict=True):
        if not bool(is_there & row.isfinite().all()):  # out of the range of a block scale, say
            return Addition(distance=distance, bits=None, rounding=None, up_to=exponent - 1)
        if bool(((row - small).abs() >= 0.25).any()):
            # The last place is 1 now. 1/2 and 3/2 are ties.
            half, three = (round(2 * float(row[SMALL.index(value)])) / 2 for value in (0.5, 1.5))
            rounding = {(0.0, 2.0): "nearest", (0.0, 1.0): "truncate"}.get((half, three), "other")
            return Addition(distance=distance, bits=exponent + 1, rounding=rounding, up_to=exponent)  # type: ignore[arg-type]
    return Addition(distance=distance, bits=None, rounding=None, up_to=EXPONENTS[-1])


def crafted(gemm: Literal["gemm1", "gemm2"], base: Problem) -> Problem:
    """A layer of one expert with a token for each distance and exponent. One GEMM adds, the other copies.

    Row `_ROWS` * i + k of the adding GEMM has 1, SMALL[k], -1 in columns 0, d, 2 d of the i-th distance. Gates are 16.
    """
    x = torch.zeros(base.tokens, _HIDDEN, dtype=torch.float64)
    gate, up = (torch.zeros(_INNER, _HIDDEN, dtype=torch.float64) for _ in range(2))
    down = torch.zeros(_HIDDEN, _INNER, dtype=torch.float64)
    x[:, -1], gate[:, -1] = GATE, 1.0
    adding, copying = (up, down) if gemm == "gemm1" else (down, up)
    copying.fill_diagonal_(1.0)
    for position, distance in enumerate(DISTANCES):
        rows = torch.arange(len(SMALL)) + position * _ROWS
        adding[rows, 0], adding[rows, 2 * distance] = 1.0, -1.0
        adding[rows, distance] = torch.tensor(SMALL, dtype=torch.float64)
        for offset, exponent in enumerate(EXPONENTS):
            token = position * len(EXPONENTS) + offset
            x[token, 0] = x[token, 2 * distance] = 2.0**exponent
            x[token, distance] = 1.0
    return layer(base, x, torch.cat((gate, up)), down)


def layer(base: Problem, x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor) -> Problem:
    """`base` with these x [M, H] and weights w13 [2I, H], w2 [H, I] of its only expert, float64, under scales of 1."""
    device = base.hidden_states.device
    states = x.to(torch.bfloat16)
    if base.hidden_q is not None:
        payload, block_scale = formats.mxfp8_quantize(x)
        states = formats.mxfp8_dequantize(payload, block_scale).to(torch.bfloat16)
        base = dataclasses.replace(
            base, hidden_q=payload.view(torch.float8_e4m3fn).to(device), hidden_scale=block_scale.to(device)
        )
    return dataclasses.replace(
        base,
        hidden_states=states.to(device),
        topk_ids=torch.zeros_like(base.topk_ids),
        topk_weights=torch.ones_like(base.topk_weights),
        w13=formats.pack(formats.e2m1_encode(w13))[None].to(device),
        w2=formats.pack(formats.e2m1_encode(w2))[None].to(device),
        w13_scale=torch.full_like(base.w13_scale, 127),
        w2_scale=torch.full_like(base.w2_scale, 127),
    )
