"""What follows the products of a large GEMM on a GPU: the radius of each of its elements, in one pass over memory.

`oracles.matmul`, `oracles.accumulation` and `oracles.tensor_core` are the definition, in some 300 passes; the kernel of
Triton computes the same, operation by operation, in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oracles import accumulation, partial_sums, tensor_core
from oracles.accumulation import Grid, Stagnation
from oracles.ball import F64
from oracles.inherited import Inherited
from oracles.numerics import Accumulator, TensorCore
from oracles.one_pass import Sums
from oracles.weight import Weight


@dataclass(frozen=True, kw_only=True, slots=True)
class Elements:
    """What is known of each element, float64 [C, T, N].

    inherited, looked: of x times the weight. aligned: a bound on the largest products, summed over all instructions.
    flushed: what is lost where subnormal operands are read as 0; [], where that is nothing.
    """

    inherited: Inherited
    looked: Sums
    aligned: torch.Tensor
    flushed: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """What is known of each row of x [C, T, K] and of the weight [C, N, K].

    top: [C, T], the largest magnitude of a row of x. independent: bool [C, T, 1]. unit: [C, N].
    """

    grid: Grid
    stagnation: Stagnation
    top: torch.Tensor
    independent: torch.Tensor
    unit: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Factors in what a tensor core cuts: of the sums of its largest addends and of its results, and how many bits."""

    alignment: float
    result: float
    bits: int

    @classmethod
    def of(cls, core: TensorCore) -> Cut:
        alignment = core.alignment * (core.columns + 1)
        return cls(alignment=alignment, result=core.result, bits=tensor_core.quantum_bits(core))


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """Numbers that are the same for all elements.

    Of what is declared: bits of a sum, what sums grow by, what of the sum of magnitudes is the reference's own error,
    what is lost to underflow, what is cut and the factor that sums grow by there, and instructions of a group. Of what
    was measured, or of the same: what is cut, bits of a sum, the unit roundoff u, u with what sums grow by, and the
    root of the number of additions.
    """

    bits: int
    growth: float
    own: float
    underflow: float
    cut: Cut
    cut_growth: float
    instructions: int
    seen_cut: Cut
    seen_bits: int
    seen_roundoff: float
    seen_error: float
    roots: float

    @classmethod
    def of(cls, columns: int, acc: Accumulator) -> Factors:
        """For K = `columns`."""
        assert acc.inside is not None
        seen = acc.measured or acc
        growth = accumulation.growth(columns, acc)
        core, seen_core = tensor_core.cores(acc)
        return cls(
            bits=acc.exact_bits,
            growth=growth,
            own=(columns + 4) * F64,
            underflow=accumulation.underflow(columns, acc),
            cut=Cut.of(core),
            cut_growth=(1 + 2.0**-16) * (1 + growth),
            instructions=acc.group // acc.inside.columns,
            seen_cut=Cut.of(seen_core),
            seen_bits=seen.exact_bits,
            seen_roundoff=seen.unit_roundoff,
            seen_error=seen.unit_roundoff * (1 + accumulation.growth(columns, seen)),
            roots=partial_sums.additions(columns, seen) ** 0.5,
        )


def applies(acc: Accumulator) -> bool:
    """Whether it is for the accumulator: groups of exact products in a tensor core, added to nearest, not followed."""
    seen = acc.measured or acc
    nearest = all(each.rounding == "nearest" and not each.product_roundings for each in (acc, seen))
    return nearest and acc.inside is not None and acc.chain is None and not tensor_core.is_followed(seen)


def radius(
    x: torch.Tensor,
    weight: Weight,
    acc: Accumulator,
    inherited: Inherited,
    grid: Grid,
    flushed: torch.Tensor,
    looked: Sums,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(radius [3, C, T, N], largest sums of magnitudes, each of some elements) for x [C, T, K] times weight.value^T.

    flushed: [C, T, N], what is lost where subnormal operands are read as 0; [], where that is nothing.
    """
    from oracles import epilogue_triton  # of a package that comes with torch for CUDA alone

    assert acc.inside is not None
    aligned, top = tensor_core.tops(x, weight, acc.inside.columns)
    stagnation = Stagnation(x, weight)
    independent = accumulation.is_independent(x, stagnation.ordered, (acc.measured or acc).group)
    return epilogue_triton.launch(
        Elements(inherited=inherited, looked=looked, aligned=aligned, flushed=flushed),
        Tables(grid=grid, stagnation=stagnation, top=top, independent=independent, unit=weight.unit),
        Factors.of(x.shape[-1], acc),
    )
