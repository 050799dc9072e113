"""Recognises what one instruction of a tensor core does, by sums that are nothing but what it cuts.

Half of the columns have the x of the other half, and in every other row its weights with the other sign: exactly 0 is
the sum, and what comes out was cut on the way. The other rows tell what becomes of a result. The reference follows
every instruction that fits what `difftest.probe` saw, bit by bit; the one of which an oracle gives all the answers is
what it does. Of several that do only the coarsest is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from difftest import probe
from difftest.probe import Addition
from oracles import formats
from oracles.base import Oracle, capability_of
from oracles.numerics import Accumulator, Numerics, TensorCore
from oracles.problem import Problem
from oracles.reference import enclose

Gemm = Literal["gemm1", "gemm2"]
_TOKENS = 128
_SCALES = (118, 122)
"""Of weights, the bytes."""
_LAST = 6
"""Of the other rows' last block, above these: where a sum grows, its result is cut."""
_ENOUGH = 0.25
"""Least share of the sums that have to be known exactly, and not 0."""
_NOTHING = 2.0**-40
"""An alignment that cuts nothing of E4M3 and E2M1."""
_FINER = 3
"""Bits by which an alignment may be finer than a result that hides it (Hopper's: two)."""


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One that adds so many columns. alignment, result, exactly: as in `TensorCore`. running: the sum so far is among
    its addends; otherwise its sum is added to a sum in float32, to nearest."""

    columns: int
    alignment: float
    result: float
    running: bool
    exactly: bool = True

    def accumulator(self, declared: Accumulator) -> Accumulator:
        """One that adds so, for a chain that is declared."""
        core = TensorCore(columns=self.columns, alignment=self.alignment, result=self.result, exactly=self.exactly)
        if self.running:
            return dataclasses.replace(declared, chain=core, measured=None)
        return Accumulator(group=formats.GROUP, inside=core, flush_to_zero=declared.flush_to_zero)

    def __str__(self) -> str:
        where = "the sum so far among them" if self.running else "and its result added to a sum in float32"
        how = "recognised" if self.exactly else "no worse than"
        cut = f"cut at {self.alignment:g} of the largest addend, {where}; a result at {self.result:g}"
        return f"{how}: {self.columns} columns at a time, {cut}"


def recognise(oracle: Oracle, seen: Mapping[Gemm, Sequence[Addition]], device: torch.device) -> dict[Gemm, Instruction]:
    """By GEMM, for those that declare a chain. What MXFP8 hides behind the first GEMM the second one tells: both run
    the same instruction, if there is one that fits both."""
    agreeing: dict[Gemm, list[Instruction]] = {}
    for gemm, additions in seen.items():
        declared: Accumulator = getattr(oracle.numerics, gemm)
        fitting = [] if declared.chain is None else list(candidates(declared.chain, additions))
        if not fitting:
            continue
        problem = crafted(gemm, device, oracle)
        answer = oracle(oracle.prepare(problem)).double()
        agreeing[gemm] = [one for one in fitting if _explains(one, problem, answer, oracle.numerics)]
    common = [one for one in agreeing.get("gemm1", ()) if one in agreeing.get("gemm2", ())]
    return {gemm: _coarsest(common or own) for gemm, own in agreeing.items() if own}


def _coarsest(instructions: Sequence[Instruction]) -> Instruction:
    """Of several that give the same answers, with the most columns; these come first."""
    first = instructions[0]
    if len(instructions) == 1:
        return first
    alike = [one for one in instructions if one.columns == first.columns]
    alignment, result = max(one.alignment for one in alike), max(one.result for one in alike)
    return dataclasses.replace(first, alignment=alignment, result=result, exactly=False)


def candidates(declared: TensorCore, seen: Sequence[Addition]) -> Iterator[Instruction]:
    """What may add as was seen: what is coarser hides the other, and half the columns may be one instruction."""
    beyond = [one for one in seen if one.distance >= declared.columns and one.bits is not None]
    if not beyond or any(one.rounding == "other" for one in beyond):
        return
    running = all(one.rounding == "truncate" for one in beyond)
    within = [one for one in seen if one.distance < declared.columns]
    shown = beyond if running else [one for one in within if one.bits in probe.VISIBLE]
    widths = [one.bits for one in shown if one.bits is not None]
    if widths:
        cut = 2.0 ** (1 - min(widths))
        pairs = [(cut, cut), (cut, 2.0**-23), *((cut * 2.0**-more, cut) for more in range(1, _FINER + 1))]
    else:
        pairs = [(2.0**-23, 2.0**-23), (2.0**-25, 2.0**-23), (_NOTHING, _NOTHING)]
    for columns in (declared.columns, declared.columns // 2):
        for alignment, result in dict.fromkeys(pairs):
            yield Instruction(columns=columns, alignment=alignment, result=result, running=running)


def _explains(instruction: Instruction, problem: Problem, answer: torch.Tensor, numerics: Numerics) -> bool:
    """The GEMM that only copies has one product in each sum: no instruction cuts that."""
    gemm1, gemm2 = (
        dataclasses.replace(acc, measured=instruction.accumulator(acc)) for acc in (numerics.gemm1, numerics.gemm2)
    )
    enclosure = enclose(problem, dataclasses.replace(numerics, gemm1=gemm1, gemm2=gemm2))
    if bool(((answer - enclosure.center).abs() > enclosure.sharp).any()):
        return False
    telling = (enclosure.sharp == 0) & (enclosure.center != 0)
    return int(telling.sum()) >= _ENOUGH * problem.tokens * problem.intermediate


def crafted(gemm: Gemm, device: torch.device, oracle: Oracle) -> Problem:
    """A layer of one expert. One GEMM adds sums that are 0, the other copies. Gates are `probe.GATE`."""
    generator = torch.Generator().manual_seed(1 if gemm == "gemm1" else 2)
    base = probe.plainest(capability_of(oracle), _TOKENS, device)
    hidden, inner = base.hidden, base.intermediate
    # In the first GEMM the gate's column comes first: an instruction after the last sum would cut its result again.
    gate_column, begin, width = (0, formats.GROUP, hidden) if gemm == "gemm1" else (hidden - 1, 0, inner)
    half = (width - begin) // (2 * formats.GROUP) * formats.GROUP
    first, second = slice(begin, begin + half), slice(begin + half, begin + 2 * half)
    used = slice(begin, width)

    x = torch.zeros(_TOKENS, hidden, dtype=torch.float64)
    spread = torch.randint(-2, 3, (_TOKENS, width - begin), generator=generator).double().exp2()
    values = torch.randn(_TOKENS, width - begin, generator=generator, dtype=torch.float64) * spread
    x[:, used] = formats.mxfp8_dequantize(*formats.mxfp8_quantize(values))
    x[:, second] = _reversed(x[:, first])
    gate, up = (torch.zeros(inner, hidden, dtype=torch.float64) for _ in range(2))
    down = torch.zeros(hidden, inner, dtype=torch.float64)
    x[:, gate_column], gate[:, gate_column] = probe.GATE, 1.0
    adding, copying = (up, down) if gemm == "gemm1" else (down, up)
    copying.fill_diagonal_(1.0)
    codes = torch.randint(0, 16, (len(adding), width - begin), generator=generator).to(torch.uint8)
    adding[:, used] = formats.e2m1_decode(codes)
    scale = torch.randint(
        _SCALES[0], _SCALES[1] + 1, (len(adding), adding.shape[1] // formats.GROUP), generator=generator
    )
    adding[::2, begin + 2 * half :] = 0.0
    adding[::2, second] = -_reversed(adding[::2, first])
    one, other = (slice(part.start // formats.GROUP, part.stop // formats.GROUP) for part in (first, second))
    scale[:, other] = scale[:, one].flip(1)
    scale[1::2, -1] += _LAST
    problem = probe.layer(base, x, torch.cat((gate, up)), down)
    name = "w13_scale" if gemm == "gemm1" else "w2_scale"
    scales = getattr(problem, name).clone()
    scales[0, -len(adding) :] = scale.to(device)
    return dataclasses.replace(problem, **{name: scales})


def _reversed(value: torch.Tensor) -> torch.Tensor:
    """Blocks [..., K] in the other order, each as it is."""
    return formats.grouped(value, formats.GROUP).flip(-2).flatten(-2)
