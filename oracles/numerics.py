"""Numerics: the roundings that a right implementation declares. A closed set, not a loophole.

The reference follows these in float64 and encloses what they leave open (the order of additions, the last ulps of
exp). What an implementation does that is *not* a rounding (a scale byte read as another number, a slot lost) is a
deviation and has no place here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Float = Literal["float32", "bfloat16", "float16"]
Step = Float | Literal["output"]
"""A dtype, or that of the scenario's output."""
Quantizer = Literal["none", "q8_0", "q8_0_portable", "mxfp8", "mxfp8_flushed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorCore:
    """How one matrix instruction adds `columns` products, exact ones, to the sum so far.

    Each of these addends is cut, towards 0, at `alignment` times the power of two of the largest. They are added
    exactly, and the result is cut at `result` times its own power of two. NVIDIA documents none of it: no unit for
    bfloat16 that has been looked at aligns more coarsely than 2**-23 (Fasi et al., Numerical behavior of NVIDIA tensor
    cores, 2021); those for E4M3 are said to keep 13 bits below the largest.
    exactly: that is what it does, bit by bit, and not the coarsest that it may do: the reference follows it, and
    nothing is left open. Only of what was measured.
    """

    columns: int = 16
    alignment: float = 2.0**-23
    result: float = 2.0**-23
    exactly: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Stripes:
    """K shared by thread blocks (stream-K), and in each of them by warps.

    columns: K may be cut at any multiple of so many, or of a turn of the warps where that is more; each range is added
    from 0, and their sums in order, to nearest.
    lanes: in a range so many warps, any of these numbers, take the columns of `run` instructions of `core` in turn;
    their sums are joined to nearest. Raises `ValueError` when a range holds no whole turn of them.
    """

    columns: int
    lanes: tuple[int, ...]
    run: int = 1
    core: TensorCore = TensorCore()

    def __post_init__(self) -> None:
        part = self.run * self.core.columns
        if any(self.cuts(count) % (count * part) or self.cuts(count) % self.columns for count in self.lanes):
            raise ValueError(f"columns = {self.columns}: must be a multiple of lanes times {part}, or divide it")

    def cuts(self, lanes: int) -> int:
        """Columns at whose multiples K may be cut, with so many warps."""
        return max(self.columns, lanes * self.run * self.core.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulator:
    """How the products of one dot product are added.

    unit_roundoff: u of one addition. rounding: "nearest", or "truncate" (tensor cores; the error is then one-sided).
    A unit that truncates aligns up to 32 products and the sum so far to the largest of them, and cuts there.
    exact_bits: products that are multiples of q and sum in magnitude below 2**exact_bits * q are added exactly.
    product_roundings: roundings, of `unit_roundoff` each, that a product passes before it is added (0 when products
    are exact: bfloat16 times E2M1 is).
    group: consecutive products that are added on their own, and their sum then to that of the groups before; else 1.
    inside: how those of a group are added. None: exactly (an integer dot product). A tensor core: without their block
    scale, which is multiplied to the group's sum when that is added (fused).
    lanes, splits: the declared families of orders that the sharp radius covers. `lanes` L: L interleaved partial
    accumulators, group by group, that meet in a balanced tree (1: in order); groups that do not fill all lanes follow
    in order. 2 lanes may also add each 32 columns from 0, and then add that sum (AMX). `splits` S: K cut into S equal
    ranges, each added in order, and their sums in order.
    stripes: a family of orders of its own, in place of these, for a unit that truncates.
    chain: all products, scaled, are added by one instruction after the other: each to the sum so far, or to 0 and that
    then to the sum in float32; cut towards 0, or down. In place of all the above but `unit_roundoff` and `exact_bits`,
    which tell its width.
    flush_to_zero: a subnormal operand may be read as 0, and a subnormal partial sum become 0.
    measured: what calibration saw on the machine at hand, in all but this the declared accumulator or a finer one. It
    narrows the sharp radius only. None: not calibrated.

    Raises `ValueError` for stripes or a chain that do not truncate, or that cut more coarsely than `unit_roundoff`.
    """

    unit_roundoff: float = 2.0**-24
    rounding: Literal["nearest", "truncate"] = "nearest"
    exact_bits: int = 24
    product_roundings: int = 0
    group: int = 1
    inside: TensorCore | None = None
    lanes: tuple[int, ...] = (1,)
    splits: tuple[int, ...] = (1,)
    stripes: Stripes | None = None
    chain: TensorCore | None = None
    flush_to_zero: bool = False
    measured: Accumulator | None = None

    def __post_init__(self) -> None:
        core = self.chain if self.stripes is None else self.stripes.core
        if core is None:
            return
        if self.rounding != "truncate":
            raise ValueError(f'rounding = {self.rounding!r}: must be "truncate" with stripes or a chain')
        coarsest = max(core.alignment, core.result)
        if coarsest > 2 * self.unit_roundoff:
            raise ValueError(f"unit_roundoff = {self.unit_roundoff}: must be at least half of the core's {coarsest}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcendental:
    """Accuracy of the activation's float32 arithmetic.

    exp: "precise" (a libm, `exp_ulps` ulp) or "fast" (ex2.approx of x * log2 e; CUDA C++ Programming Guide, intrinsic
    functions: 2 + floor(|1.173 x|) ulp). divide: "precise" or "fast" (2 ulp, 0 for denominators above 2**126; a
    reciprocal that is an instruction of its own errs by `reciprocal_ulps`, 1 for rcp.approx). tanh: "precise" (a libm,
    `tanh_ulps` ulp) or "two_sigmoid" (2 s - 1, s being the reciprocal of 1 + exp(-2 z): an absolute quantum).
    sigmoid: SiTU's, as 1 / (1 + exp(-x)) ("exp") or (1 + tanh(x / 2)) / 2 ("tanh", which is then "precise": an absolute
    quantum, 0 below -18).
    clamp_nan: what min(NaN, limit) is: torch.clamp keeps the NaN, fminf gives the limit.
    activated: dtype that the activated gate of SwiGLU and SwiGLU-OAI is rounded to before it is multiplied by up.
    flush_to_zero: a subnormal operand may be read as 0, and a subnormal result of any operation become 0. That goes
    for the bias and the final sum too, which are float32 arithmetic like this.
    """

    exp: Literal["precise", "fast"] = "precise"
    exp_ulps: float = 2.0
    divide: Literal["precise", "fast"] = "precise"
    reciprocal_ulps: float = 2.0
    tanh: Literal["precise", "two_sigmoid"] = "precise"
    tanh_ulps: float = 2.0
    sigmoid: Literal["exp", "tanh"] = "exp"
    clamp_nan: Literal["keeps", "limit"] = "keeps"
    activated: Float = "float32"
    flush_to_zero: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """The recipe, in the order of the computation.

    weights: dtype that holds a dequantised weight (4 and 6 under the top scale bytes overflow), or "exact" where none
    is ever held (integers that are scaled after they were added).
    hidden_quantizer, intermediate_quantizer: what the input of the GEMM passes first (`oracles.quantizers`): "none",
    "q8_0" (ggml's int8 per 32 with an fp16 scale, as its AVX code rounds) or "q8_0_portable" (as any of its codes may),
    "mxfp8" (FlashInfer's E4M3 per 32 with an E8M0 scale) or "mxfp8_flushed" (compiled with subnormals flushed).
    gemm1_output, gemm2_output: dtype that the GEMM's result is rounded to. A bias is added in float32 before that
    rounding when `bias_before_rounding`, else after it; `biased` is the dtype of that later sum.
    intermediate: dtype of the activation's result.
    router_weight: dtype that the router weight (routed_scaling_factor multiplied in, float32) is rounded to. weighted:
    dtype of its product with that result ("float32": the product may also be fused into the sum). Products are summed
    over the slots in slot order in float32, and the sum is rounded to the scenario's output dtype once.
    ranks: so many hold an equal share of the experts each, in the order of their ids. Each makes that sum over its own
    experts' slots, rounded, and an all-reduce adds these in the output dtype or a wider one, in any order.
    """

    weights: Float | Literal["exact"] = "float32"
    hidden_quantizer: Quantizer = "none"
    gemm1: Accumulator = Accumulator()
    gemm1_output: Step = "bfloat16"
    bias_before_rounding: bool = True
    biased: Float = "float32"
    activation: Transcendental = Transcendental()
    intermediate: Step = "bfloat16"
    intermediate_quantizer: Quantizer = "none"
    gemm2: Accumulator = Accumulator()
    gemm2_output: Step = "bfloat16"
    router_weight: Float = "float32"
    weighted: Float = "float32"
    ranks: int = 1

    @property
    def unit_roundoffs(self) -> tuple[float, float]:
        """u of the two GEMMs' accumulators."""
        return (self.gemm1.unit_roundoff, self.gemm2.unit_roundoff)

    @property
    def calibrated(self) -> bool:
        """Whether the sharp radius follows what was measured, and not only what is declared."""
        return self.gemm1.measured is not None and self.gemm2.measured is not None
