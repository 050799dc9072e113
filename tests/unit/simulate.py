"""A right implementation, simulated: the whole layer in the arithmetic that a `Numerics` declares.

It shares the problem and the words of `Numerics` with the reference, and no arithmetic: number formats, roundings,
quantisers and functions are its own. What the recipe leaves open is decided by `Choices`, as unkindly as it permits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from oracles.numerics import Accumulator, Float, Numerics, TensorCore, Transcendental
from oracles.problem import ActivationParams, Problem

TINY = 2.0**-126
Tensor = torch.Tensor
Order = Callable[[Tensor, "Adder"], Tensor]
"""Adds products [K, T, N] over K in some order, as an `Adder` adds two: [T, N]."""
Reduce = Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a recipe leaves open.

    order: of additions in both GEMMs. errors: +1, -1 or 0, the library functions' errors are at their limit upwards,
    downwards, or of random sign. fused: products are not rounded before they are added. divides: silu is one division
    instead of the product with a sigmoid. flush: subnormals are flushed where that is allowed. away: ties of a
    portable quantiser round away from 0, and its inverse is that of the rounded scale. reduces: the all-reduce adds the
    ranks' answers [ranks, M, H], each addition rounded by the function that it is given.
    """

    order: Order
    errors: int = 0
    fused: bool = True
    divides: bool = False
    flush: bool = True
    away: bool = False
    seed: int = 0
    reduces: Reduce | None = None


def simulate(problem: Problem, numerics: Numerics, choices: Choices) -> Tensor:
    """The layer's output, float64 [M, H]."""
    layer = _Layer(problem, numerics, choices)
    terms = torch.zeros(*problem.topk_ids.shape, problem.hidden, dtype=torch.float64)
    live = problem.local_ids
    for expert in live[live >= 0].unique().tolist():
        token, slot = (live == expert).nonzero(as_tuple=True)
        terms[token, slot] = layer.answer(expert, problem.hidden_states[token])

    def rounded(value: Tensor) -> Tensor:
        return value.to(problem.output_dtype).double()

    share = problem.experts_local // numerics.ranks
    sums = [_slots_summed(layer, terms, (live >= 0) & (live // share == rank)) for rank in range(numerics.ranks)]
    partials = torch.stack([rounded(total) for total in sums])
    if numerics.ranks == 1:
        return partials[0]
    assert choices.reduces is not None
    return choices.reduces(partials, rounded)


def _slots_summed(layer: _Layer, terms: Tensor, live: Tensor) -> Tensor:
    """float64 [M, H]: the weighted sum of terms [M, K, H] over the slots that are live, bool [M, K]."""
    problem, numerics, choices, flush = layer.problem, layer.numerics, layer.choices, layer.flush
    total = torch.zeros(problem.tokens, problem.hidden, dtype=torch.float64)
    weights = problem.topk_weights * torch.tensor(problem.routed_scaling_factor)
    weights = weights.to(getattr(torch, numerics.router_weight)).double()
    for slot in range(live.shape[1]):
        product = weights[:, slot, None] * terms[:, slot]
        if numerics.weighted != "float32" or not choices.fused:
            product = flush(product.float().to(getattr(torch, numerics.weighted)).double())
        added = flush(f32(total + product))
        total = torch.where(live[:, slot, None], added, total)
    return total


def f32(value: Tensor) -> Tensor:
    """Rounded to float32, kept as float64."""
    return value.float().double()


class _Layer:
    def __init__(self, problem: Problem, numerics: Numerics, choices: Choices) -> None:
        self.problem, self.numerics, self.choices = problem, numerics, choices

    def flush(self, value: Tensor) -> Tensor:
        return flushed(value) if self.numerics.activation.flush_to_zero and self.choices.flush else value

    def answer(self, expert: int, x: Tensor) -> Tensor:
        """float64 [T, H] for x [T, H]."""
        problem, numerics = self.problem, self.numerics
        x = quantized(x.double(), numerics.hidden_quantizer, away=self.choices.away)
        w13 = dequantized(problem.w13[expert], problem.w13_scale[expert], numerics.weights)
        scale = problem.w13_scale[expert]
        h = self._gemm(x, w13, scale, numerics.gemm1, numerics.gemm1_output, problem.w13_bias, expert)
        gate, up = h.chunk(2, dim=-1)
        activation = Activation(problem.activation, expert, numerics.activation, self.choices)
        a = self._round(activation(gate, up), numerics.intermediate, flush=numerics.activation.flush_to_zero)
        a = quantized(a, numerics.intermediate_quantizer, away=self.choices.away)
        w2 = dequantized(problem.w2[expert], problem.w2_scale[expert], numerics.weights)
        scale = problem.w2_scale[expert]
        return self._gemm(a, w2, scale, numerics.gemm2, numerics.gemm2_output, problem.w2_bias, expert)

    def _gemm(
        self, x: Tensor, w: Tensor, scale: Tensor, acc: Accumulator, dtype: Float, bias: Tensor | None, expert: int
    ) -> Tensor:
        y = multiply(x, w, acc, self.choices, scale)
        if bias is not None and self.numerics.bias_before_rounding:
            y = self.flush(f32(y + bias[expert].double()))
        y = self._round(y, dtype, flush=acc.flush_to_zero)
        if bias is not None and not self.numerics.bias_before_rounding:
            y = self._round(
                y + bias[expert].double(), self.numerics.biased, flush=self.numerics.activation.flush_to_zero
            )
        return y

    def _round(self, value: Tensor, dtype: Float, *, flush: bool) -> Tensor:
        value = value.float().to(getattr(torch, dtype)).double()
        return flushed(value) if flush and self.choices.flush else value


# --- number formats --------------------------------------------------------------------------------------------------

_CODES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def dequantized(packed: Tensor, scale: Tensor, dtype: str) -> Tensor:
    """float64 [N, K] of codes [N, K/2] and scale bytes [N, K/32]."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    power = torch.exp2(scale.double() - 127)
    power = torch.where(scale == 255, torch.nan, power)
    value = _CODES[codes.int()] * power.repeat_interleave(32, dim=-1)
    return value if dtype == "exact" else value.to(getattr(torch, dtype)).double()


def flushed(value: Tensor) -> Tensor:
    return torch.where(value.abs() < TINY, 0.0, value)


def quantized(x: Tensor, quantizer: str, *, away: bool) -> Tensor:
    """ggml's Q8_0, in float32 throughout, or MXFP8; and back to float64."""
    if quantizer == "none":
        return x
    if quantizer == "mxfp8":
        return mxfp8(x)
    blocks = x.float().unflatten(-1, (-1, 32))
    amax = blocks.abs().amax(-1, keepdim=True)
    step = amax / 127
    inverse = torch.full_like(amax, 127) / amax  # a number over a tensor would be rounded twice
    if quantizer == "q8_0_portable" and away:
        inverse = step.reciprocal()
    scaled = blocks * torch.where(amax == 0, 0.0, inverse)
    if quantizer == "q8_0_portable" and away:
        codes = torch.copysign((scaled.abs().double() + 0.5).floor(), scaled.double())
    else:
        codes = scaled.round().double()
    # Where the inverse is infinite the step is 0, and whatever integer the conversion gives is multiplied by it.
    return (codes.nan_to_num().clamp(-128, 127) * step.half().double()).flatten(-2)


def mxfp8(x: Tensor) -> Tensor:
    """E4M3 per 32 under the power of two at or above amax / 448, of finite x; a block under a scale of byte 0 is 0."""
    blocks = x.unflatten(-1, (-1, 32))
    significand, exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True) / 448)
    exponent = (exponent - (significand == 0.5).int()).clamp(-127, 127)
    scale = torch.exp2(exponent.double())
    codes = (blocks / scale).clamp(-448, 448).float().to(torch.float8_e4m3fn).double()
    return torch.where(exponent == -127, 0.0, codes * scale).flatten(-2)


# --- GEMM ------------------------------------------------------------------------------------------------------------


def multiply(x: Tensor, w: Tensor, acc: Accumulator, choices: Choices, scale: Tensor | None = None) -> Tensor:
    """float64 [T, N] = x [T, K] times w [N, K], with the accumulator `acc`. scale: w's block scale bytes [N, K/32], for
    an accumulator that applies them to sums."""
    acc = acc.measured or acc
    if acc.chain is not None:
        return chained(x, w, acc, choices)
    if acc.inside is not None:
        assert scale is not None
        return scaled_groups(x, w, torch.exp2(scale.double() - 127), acc, choices)
    if acc.flush_to_zero and choices.flush:
        x, w = flushed(x), flushed(w)
    adder = Adder.of(acc, choices)
    if adder.native and acc.group == 1 and not acc.product_roundings and bool((x.bfloat16() == x).all()):
        x, w = x.float(), w.float()  # products of bfloat16 and E2M1 are exact in float32
    products = x.mT.unsqueeze(-1) * w.mT.unsqueeze(-2)
    if acc.group > 1:  # integers: exact
        products = products.unflatten(0, (-1, acc.group)).sum(1)
    if acc.product_roundings and not choices.fused:
        products = adder.round(products)
    return choices.order(products, adder).double()


def scaled_groups(x: Tensor, w: Tensor, scale: Tensor, acc: Accumulator, choices: Choices) -> Tensor:
    """Groups are added by a tensor core without their scale [N, K/32], which a fused multiply-add then applies."""
    assert acc.inside is not None
    flush = flushed if acc.flush_to_zero and choices.flush else torch.clone
    codes = w / scale.repeat_interleave(32, dim=-1)
    products = flush(x).mT.unsqueeze(-1) * codes.mT.unsqueeze(-2)
    total = torch.zeros_like(products[0])
    for column, group in enumerate(products.split(acc.group)):
        inner = torch.zeros_like(total)
        for step in group.split(acc.inside.columns):
            inner = flush(instruction(torch.cat((step, inner[None])), acc.inside, choices))
        total = flush(f32(inner * scale[:, column // (32 // acc.group)] + total))
    return total


def chained(x: Tensor, w: Tensor, acc: Accumulator, choices: Choices) -> Tensor:
    """Instructions in order: each adds to the sum so far, or to 0 and then to a sum in float32, where that is open."""
    assert acc.chain is not None
    flush = flushed if acc.flush_to_zero and choices.flush else torch.clone
    products = flush(x).mT.unsqueeze(-1) * flush(w).mT.unsqueeze(-2)
    total = torch.zeros_like(products[0])
    for step in products.split(acc.chain.columns):
        if acc.chain.exactly or choices.divides:
            total = flush(instruction(torch.cat((step, total[None])), acc.chain, choices, down=choices.errors < 0))
        else:
            total = flush(f32(total + flush(instruction(step, acc.chain, choices, down=choices.errors < 0))))
    return total


def instruction(addends: Tensor, core: TensorCore, choices: Choices, *, down: bool = False) -> Tensor:
    """One matrix instruction: the addends [K, T, N] cut at their largest, added, and the sum cut. down: and not towards
    0."""
    finer = 1.0 if choices.seed % 2 or core.exactly else 0.25  # as cards do that align better than is declared
    cuts = torch.floor if down and not core.exactly else torch.trunc

    def truncated(value: Tensor, like: Tensor, quantum: float) -> Tensor:
        step = torch.exp2((torch.frexp(like).exponent - 1).double()) * quantum
        return cuts(value / step) * step

    cut = truncated(addends, addends.abs().amax(0), core.alignment * finer)
    return f32(truncated(cut.sum(0), cut.sum(0), core.result))


@dataclass(frozen=True)
class Adder:
    """Adds two partial sums as the accumulator does: float32 tensors where that is its arithmetic, else float64."""

    bits: int
    truncates: bool
    flush: bool

    @classmethod
    def of(cls, acc: Accumulator, choices: Choices) -> Adder:
        return cls(acc.exact_bits, acc.rounding == "truncate", acc.flush_to_zero and choices.flush)

    @property
    def native(self) -> bool:
        return self.bits == 24 and not self.truncates

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        total = a + b
        if total.dtype == torch.float32:
            return torch.where(total.abs() < TINY, 0.0, total) if self.flush else total
        return self.round(total)

    def start(self, product: Tensor) -> Tensor:
        """A product added to an empty sum."""
        return self(torch.zeros_like(product), product)

    def round(self, value: Tensor) -> Tensor:
        if self.native:
            value = f32(value)
        else:
            drop = 53 - self.bits
            raw = value.view(torch.int64)
            half = 0 if self.truncates else (1 << (drop - 1)) - 1 + ((raw >> drop) & 1)
            value = ((raw + half) & ~((1 << drop) - 1)).view(torch.float64)
        return flushed(value) if self.flush else value


def in_order(products: Tensor, add: Adder) -> Tensor:
    total = add.start(products[0])
    for product in products[1:]:
        total = add(total, product)
    return total


def backwards(products: Tensor, add: Adder) -> Tensor:
    return in_order(products.flip(0), add)


def shuffled(products: Tensor, add: Adder) -> Tensor:
    order = torch.randperm(len(products), generator=torch.Generator().manual_seed(len(products)))
    return in_order(products[order], add)


def pairwise(products: Tensor, add: Adder) -> Tensor:
    """A balanced tree."""
    while len(products) > 1:
        half = len(products) // 2
        rest = products[2 * half :]
        products = torch.cat((add(products[0 : 2 * half : 2], products[1 : 2 * half : 2]), rest))
    return add.start(products[0])


def lanes(count: int) -> Order:
    """Interleaved partial sums that meet in a balanced tree; what does not fill all lanes follows in order."""

    def order(products: Tensor, add: Adder) -> Tensor:
        main = len(products) - len(products) % count
        parts = [add.start(products[main])] if main == 0 else []
        if main:
            parts = [pairwise(in_order(products[:main].unflatten(0, (-1, count)), add), add)]
        total = parts[0]
        for product in products[main or 1 :]:
            total = add(total, product)
        return total

    return order


def splits(count: int) -> Order:
    """Equal ranges, in order, and their sums in order."""

    def order(products: Tensor, add: Adder) -> Tensor:
        return in_order(in_order(products.unflatten(0, (count, -1)).transpose(0, 1), add), add)

    return order


def tiles(columns: int, count: int) -> Order:
    """Each tile from 0, in interleaved lanes that are joined, then added to the sum so far (AMX: 32 columns, 2)."""

    def order(products: Tensor, add: Adder) -> Tensor:
        inner = lanes(count)
        return in_order(torch.stack([inner(tile, add) for tile in products.split(columns)]), add)

    return order


def striped(cuts: int, lanes: int, core: TensorCore | None = None, run: int = 1) -> Order:
    """K cut every so many columns. In each range tensor cores take the columns of `run` instructions in turn; their
    sums are joined in a tree, and those of the ranges in order, all to nearest."""
    unit = core or TensorCore()

    def warp(blocks: tuple[Tensor, ...], flush: bool) -> Tensor:
        total = torch.zeros_like(blocks[0][0])
        for block in blocks:
            total = instruction(torch.cat((block, total[None])), unit, Choices(order=in_order, seed=1))
            total = flushed(total) if flush else total
        return total

    def order(products: Tensor, add: Adder) -> Tensor:
        joint = Adder(24, False, add.flush)
        ranges = []
        for part in products.split(cuts):
            turns = part.split(run * unit.columns)
            taken = [turns[lane::lanes] for lane in range(min(lanes, len(turns)))]
            inner = [warp(torch.cat(own).split(unit.columns), add.flush) for own in taken]
            ranges.append(pairwise(torch.stack(inner), joint))
        return in_order(torch.stack(ranges), joint)

    return order


def aligned(columns: int) -> Order:
    """A tensor core that truncates: products and the sum so far are cut at the last place of the largest of them, added
    exactly, and the result is cut."""

    def order(products: Tensor, add: Adder) -> Tensor:
        total = torch.zeros_like(products[0])
        for tile in products.split(columns):
            addends = torch.cat((tile, total[None]))
            largest = addends.abs().amax(0)
            quantum = torch.exp2((torch.frexp(largest).exponent - add.bits).double())
            cut = torch.trunc(addends / quantum) * quantum
            total = add.start(cut.sum(0))
        return total

    return order


# --- activation ------------------------------------------------------------------------------------------------------


class Activation:
    """float32 arithmetic with library functions that err as far as they may."""

    def __init__(self, params: ActivationParams, expert: int, accuracy: Transcendental, choices: Choices) -> None:
        self.kind, self.accuracy, self.choices = params.kind, accuracy, choices
        self.generator = torch.Generator().manual_seed(choices.seed)
        for name in ("alpha", "beta", "limit", "linear_beta"):
            vector = getattr(params, name)
            setattr(self, name, None if vector is None else vector[expert].double())

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = self._flush(gate), self._flush(up)
        if self.kind == "swiglu":
            return self._op(self._silu(gate, gate), up)
        if self.kind == "swiglu_oai":
            limit = torch.as_tensor(self.limit)
            if self.accuracy.clamp_nan == "limit":
                gate, up = torch.fmin(gate, limit), torch.fmax(torch.fmin(up, limit), -limit)
            else:
                gate, up = torch.minimum(gate, limit), up.clamp(-limit, limit)
            swish = self._silu(gate, self._op(torch.as_tensor(self.alpha), gate))
            return self._op(swish, self._rounded(up + self.beta))
        capped = self._op(torch.as_tensor(self.beta), self._tanh(self._divide(gate, torch.as_tensor(self.beta))))
        linear = self._tanh(self._divide(up, torch.as_tensor(self.linear_beta)))
        linear = self._op(torch.as_tensor(self.linear_beta), linear)
        half = self._rounded(1 + self._tanh(gate / 2)) / 2 if self.accuracy.sigmoid == "tanh" else self._sigmoid(gate)
        return self._op(self._op(capped, half), linear)

    def _flush(self, value: Tensor) -> Tensor:
        return flushed(value) if self.accuracy.flush_to_zero and self.choices.flush else value

    def _rounded(self, value: Tensor) -> Tensor:
        return self._flush(f32(value))

    def _op(self, a: Tensor, b: Tensor) -> Tensor:
        return self._rounded(a * b)

    def _silu(self, gate: Tensor, argument: Tensor) -> Tensor:
        if self.choices.divides:
            silu = self._divide(gate, self._rounded(1 + self._exp(-argument)))
        else:
            silu = self._op(gate, self._sigmoid(argument))
        return silu.to(getattr(torch, self.accuracy.activated)).double()

    def _sigmoid(self, argument: Tensor) -> Tensor:
        return self._divide(torch.ones_like(argument), self._rounded(1 + self._exp(-argument)))

    def _off(self, value: Tensor, ulps: Tensor | float) -> Tensor:
        """`value`, an exact result, off by up to so many ulp of float32."""
        sign: Tensor | int = self.choices.errors
        if sign == 0:
            sign = torch.rand(value.shape, generator=self.generator, dtype=torch.float64) * 2 - 1
        exponent = torch.frexp(value).exponent.clamp(min=-125)
        ulp = torch.where(value == 0, 0.0, torch.exp2((exponent - 24).double()))
        off = value + sign * ulps * ulp
        nearest = off.float()
        back = torch.nextafter(nearest, value.float())  # a float32 number, and no further off than that
        off = torch.where((nearest.double() - value).abs() > ulps * ulp, back, nearest).double()
        return self._flush(torch.where(value.abs() > 3.4028234663852886e38, torch.inf * value.sign(), off))

    def _exp(self, z: Tensor) -> Tensor:
        value = torch.exp(z)
        fast = self.accuracy.exp == "fast"
        ulps = 2 + (1.173 * z.abs()).floor().clamp(max=300) if fast else self.accuracy.exp_ulps
        return torch.where(z.isfinite(), self._off(value, ulps), value).clamp(min=0)

    def _divide(self, a: Tensor, b: Tensor) -> Tensor:
        if self.accuracy.divide == "precise":
            return self._rounded(a / b)
        value = self._off(a / b, 2.0)
        return torch.where((b.abs() > 2.0**126) & ~b.isnan(), torch.where(a.isinf() & b.isinf(), torch.nan, 0.0), value)

    def _reciprocal(self, b: Tensor) -> Tensor:
        if self.accuracy.divide == "precise":
            return self._rounded(1 / b)
        return torch.where(b.abs() > 2.0**126, 0.0, self._off(1 / b, self.accuracy.reciprocal_ulps))

    def _tanh(self, z: Tensor) -> Tensor:
        if self.accuracy.tanh == "precise":
            return self._off(torch.tanh(z), self.accuracy.tanh_ulps)
        return self._rounded(2 * self._reciprocal(self._rounded(1 + self._exp(-2 * z))) - 1)
