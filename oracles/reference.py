"""The reference: dequantise exactly, follow the declared recipe in float64, carry the radius of what that leaves open.

The mathematics is told in docs/enclosures.md. One expert's dequantised weights are held at a time (several, when they
are small).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from oracles import activations, formats, kernels, kinds, quantizers
from oracles.accumulation import SMALLEST_NORMAL
from oracles.ball import HARD, SHARP, Ball, exact, finite_kinds, kinds_of, rounded, settle, splits
from oracles.enclosure import ANY, FINITE, NAN, Enclosure
from oracles.inherited import Correlation
from oracles.kept import Kept
from oracles.matmul import Undecided, matmul
from oracles.numerics import Accumulator, Float, Numerics
from oracles.problem import ActivationParams, Problem, on_gpu
from oracles.weight import Weight
from strategies.capability import Capability
from strategies.scenario import OutputDtype, Scenario

_U = 2.0**-24
"""Unit roundoff of float32."""
_CACHED = 1 << 21
"""Elements of w13 that are dequantised together on a CPU: what stays in a cache."""
_BYTES = 192
"""On a GPU: of its memory for each of them, all that is made of them included, with half of it to spare."""


@torch.inference_mode()  # a tenth of the time on a CPU; a candidate's tensors are no such ones
def enclose(
    problem: Problem, numerics: Numerics, kept: Kept | None = None, device: torch.device | None = None
) -> Enclosure:
    """What an implementation with `numerics` may answer to `problem`. See `Enclosure`; it is where the problem is.

    kept: where the experts' answers to the same rows are looked for, of problems that differ in what comes after them.
    device: where these are computed, a GPU for a problem of the CPU; None, where the problem is.
    """
    routes, device = _Routes(problem), device or problem.hidden_states.device
    answers = [_answers(problem, numerics, part, kept, device) for part in routes.parts(problem, device)]
    return _finalize(problem, numerics, routes, answers)


class Reference:
    """The recipe itself, as an oracle: bfloat16 between the steps, all else in float64."""

    name = "reference"
    capability = Capability(
        precisions=frozenset({"bf16xmxfp4", "mxfp8xmxfp4"}),
        output_dtypes=frozenset({"bfloat16", "float16"}),
        stray_ids=True,
    )
    numerics = Numerics()

    def unsupported(self, scenario: Scenario) -> str | None:
        return self.capability.objection(scenario)

    def prepare(self, problem: Problem) -> Problem:
        return problem

    def __call__(self, prepared: Problem) -> torch.Tensor:
        enclosure = enclose(prepared, self.numerics)
        undecided = ((enclosure.kinds & FINITE) == 0) & enclosure.center.isfinite()  # some non-finite value
        return torch.where(undecided, torch.nan, enclosure.center).to(prepared.output_dtype)


@dataclass(frozen=True)
class _Part:
    """Some experts and their (token, slot) pairs, padded to one length T.

    experts: int64 [C], local ids. tokens: int64 [C, T], an expert's last one repeated. live: bool [C, T], no repeat.
    """

    experts: torch.Tensor
    live: torch.Tensor
    tokens: torch.Tensor


class _Routes:
    """The live (token, slot) pairs, sorted by local expert; a masked or foreign slot is no pair."""

    def __init__(self, problem: Problem) -> None:
        local = problem.local_ids
        token, slot = (local >= 0).nonzero(as_tuple=True)
        expert = local[token, slot]
        order = expert.argsort(stable=True)
        self.token, self.slot, self.expert = token[order], slot[order], expert[order]
        self.weight = problem.router_weights[self.token, self.slot]
        self.counts = torch.bincount(self.expert)

    def parts(self, problem: Problem, computed: torch.device) -> Iterator[_Part]:
        """computed: where the experts' answers will be."""
        counts = self.counts.tolist()
        starts = (self.counts.cumsum(0) - self.counts).tolist()
        active = [expert for expert, count in enumerate(counts) if count]
        device = problem.hidden_states.device
        step = max(1, _together(computed) // (2 * problem.intermediate * problem.hidden))
        for first in range(0, len(active), step):
            experts = active[first : first + step]
            length = max(counts[expert] for expert in experts)
            offset = torch.arange(length, device=device)
            count = torch.tensor([[counts[expert]] for expert in experts], device=device)
            start = torch.tensor([[starts[expert]] for expert in experts], device=device)
            yield _Part(
                experts=torch.tensor(experts, device=device),
                live=offset < count,
                tokens=self.token[start + torch.minimum(offset, count - 1)],
            )


def _together(device: torch.device) -> int:
    """Elements of a large tensor to work on at a time. A GPU is kept busy by as many as this process's share of it
    holds: up to some hundred tokens the calls are what takes time, however much each of them does."""
    if device.type == "cpu":
        return _CACHED
    whole = torch.cuda.get_device_properties(device).total_memory
    return int(whole * torch.cuda.get_per_process_memory_fraction(device.index)) // _BYTES


@dataclass(frozen=True, kw_only=True)
class _Experts:
    """Some experts C and their tokens, and all that their answers depend on besides the Numerics; copies, all of it.

    x: [C, T, H]. w13, w2 and biases as in `Problem`, of these experts; activation likewise. finite: whether all of x
    is. w13_bytes, w2_bytes: the lowest and the highest scale byte.
    """

    x: torch.Tensor
    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    w13_bias: torch.Tensor | None
    w2_bias: torch.Tensor | None
    activation: ActivationParams
    output_dtype: OutputDtype
    finite: bool
    w13_bytes: tuple[int, int]
    w2_bytes: tuple[int, int]

    @classmethod
    def of(cls, problem: Problem, part: _Part) -> _Experts:
        def own(tensors: object, *names: str) -> dict[str, Any]:
            found = ((name, getattr(tensors, name)) for name in names)
            return {name: None if tensor is None else tensor[part.experts] for name, tensor in found}

        parameters = own(problem.activation, "alpha", "beta", "limit", "linear_beta")
        layer = own(problem, "w13", "w13_scale", "w2", "w2_scale", "w13_bias", "w2_bias")
        x = problem.hidden_states[part.tokens]
        ends = (end for scale in (layer["w13_scale"], layer["w2_scale"]) for end in (scale.min(), scale.max()))
        # A GPU is waited for once; where it is to compute what follows from a problem of the CPU, not at all.
        finite, *byte = torch.stack((x.isfinite().all().to(torch.uint8), *ends)).tolist()
        return cls(
            x=x,
            **layer,
            finite=bool(finite),
            w13_bytes=(byte[0], byte[1]),
            w2_bytes=(byte[2], byte[3]),
            activation=ActivationParams(kind=problem.activation.kind, **parameters),
            output_dtype=problem.scenario.output_dtype,
        )

    @property
    def tensors(self) -> list[torch.Tensor | None]:
        parts = (*vars(self).values(), *vars(self.activation).values())
        return [part for part in parts if part is None or isinstance(part, torch.Tensor)]


def _answers(problem: Problem, numerics: Numerics, part: _Part, kept: Kept | None, device: torch.device) -> Ball:
    """The experts' answers to their pairs, [pairs, H], as they enter the final sum."""
    experts, live = _Experts.of(problem, part), part.live

    def answered() -> Ball:
        if device.type == experts.x.device.type:
            ball = _answered(experts, numerics)
        else:
            ball = _answered(on_gpu(experts, device), numerics).to(experts.x.device)
        return Ball(
            center=ball.center[live],
            radius=ball.radius[:, live],
            kinds=None if ball.kinds is None else ball.kinds[live],
        )

    if kept is None:
        return answered()
    # By their shapes other rows and experts are told apart sooner than by their bits.
    key = (numerics, experts.output_dtype, experts.activation.kind, experts.x.shape, experts.w2.shape)
    return kept.of("experts", key, (*experts.tensors, live), answered)


def _answered(experts: _Experts, numerics: Numerics) -> Ball:
    """Both GEMMs, and what is between them: [C, T, H]."""
    steps = (numerics.gemm1_output, numerics.intermediate, numerics.gemm2_output)
    first, between, second = (experts.output_dtype if step == "output" else step for step in steps)
    x = exact(experts.x.double(), finite=experts.finite)
    x = quantizers.apply(x, numerics.hidden_quantizer)
    w13 = _dequantized(experts.w13, experts.w13_scale, experts.w13_bytes, numerics)
    raw = matmul(x, w13, numerics.gemm1, undecided=_undecided(experts.w13_bias, numerics, first))
    h = _biased_and_rounded(raw, experts.w13_bias, numerics, numerics.gemm1, first)
    inner = h.center.shape[-1] // 2
    gate, up = _columns(h, slice(0, inner)), _columns(h, slice(inner, None))
    a = activations.apply(experts.activation, gate, up, numerics.activation)
    a = rounded(a, between, flush_to_zero=numerics.activation.flush_to_zero)
    a = quantizers.apply(a, numerics.intermediate_quantizer)
    w2 = _dequantized(experts.w2, experts.w2_scale, experts.w2_bytes, numerics)
    block = 1 if numerics.intermediate_quantizer == "none" else formats.GROUP
    correlated = Correlation(repeated=_repeated(raw, a), block=block)
    y = matmul(a, w2, numerics.gemm2, correlated, _undecided(experts.w2_bias, numerics, second))
    return _biased_and_rounded(y, experts.w2_bias, numerics, numerics.gemm2, second)


def _columns(ball: Ball, columns: slice) -> Ball:
    return Ball(
        center=ball.center[..., columns],
        radius=ball.radius[..., columns],
        kinds=None if ball.kinds is None else ball.kinds[..., columns],
    )


def _dequantized(packed: torch.Tensor, scale: torch.Tensor, ends: tuple[int, int], numerics: Numerics) -> Weight:
    """Exact weights of [C, N, K/2] codes and [C, N, K/32] scale bytes, in the dtype that the kernel holds them in.

    ends: the lowest and the highest scale byte.
    """
    (low, high), special, runs = ends, None, None
    if high < 253:
        held, runs = formats.mxfp4_with_runs(packed, scale)
    else:  # under it the largest code overflows
        value = formats.mxfp4_dequantize(packed, scale)
        value = value if numerics.weights == "exact" else formats.round_to(value, numerics.weights)
        special = kinds_of(value)
        held = torch.where(special == FINITE, value, 0.0)
    return Weight(
        held=held,
        unit=formats.exp2(scale.amin(-1).to(torch.int64) - 128),  # every code is a multiple of 1/2
        spread=high - low > 12,  # codes other than 0 differ by a factor of 12 at most
        subnormal=low < 2,  # half of 2**(1 - 127) is one
        kinds=special,
        scale=formats.exp2(scale.to(torch.int64) - 127) if numerics.weights == "exact" else None,
        runs=runs,
    )


def _biased_and_rounded(
    ball: Ball, bias: torch.Tensor | None, numerics: Numerics, acc: Accumulator, dtype: Float
) -> Ball:
    """Add the experts' bias [C, N] in float32, and round a GEMM's result to `dtype`, in the declared order."""

    def biased(ball: Ball, dtype: Float) -> Ball:
        """One addition is monotone: it can be applied to both ends."""
        if bias is None:
            return ball
        term = bias.double().unsqueeze(1)
        shifted = Ball(center=ball.center + term, radius=ball.radius, kinds=ball.kinds)
        return rounded(shifted, dtype, flush_to_zero=numerics.activation.flush_to_zero)

    if numerics.bias_before_rounding:
        ball = biased(ball, "float32")
    if dtype != "float32":  # the accumulator is float32 already
        ball = rounded(ball, dtype, flush_to_zero=acc.flush_to_zero)
    return ball if numerics.bias_before_rounding else biased(ball, numerics.biased)


def _undecided(bias: torch.Tensor | None, numerics: Numerics, dtype: Float) -> Undecided | None:
    """Whether `_biased_and_rounded` gives one value only, as it mostly does."""
    if dtype == "float32":
        return None

    def undecided(center: torch.Tensor, hard: torch.Tensor) -> torch.Tensor:
        if bias is not None and numerics.bias_before_rounding:
            center = center + bias.double().unsqueeze(1)
        return splits(center, hard, dtype)

    return undecided


_KEY_BITS = 26
"""Of a significand: enough that two different sums hardly ever share them, few enough that the reference's own rounding
hardly ever tells equal ones apart."""


def _repeated(raw: Ball, a: Ball) -> torch.Tensor:
    """bool [C, T, I]: uncertain elements of `a` [C, T, I] whose gate or up comes from the same sum as another one's.

    raw: the result of the first GEMM, [C, T, 2I]. Identical rows of w13 err alike, whatever the cause; so do rows that
    differ in sign or by a power of two, and sums that are equal by chance (small integers). Significands tell.
    """
    uncertain = a.radius[HARD] > 0
    if kernels.look_first(uncertain) and not bool(uncertain.any()):
        return uncertain
    # In 32 bits, which are sorted in half the time: the lower ones are what is asked for.
    key = (raw.center.view(torch.int64) >> (52 - _KEY_BITS)).to(torch.int32) & ((1 << _KEY_BITS) - 1)
    gate, up = key.chunk(2, dim=-1)
    return uncertain & (_shared(gate) | _shared(up))


def _shared(key: torch.Tensor) -> torch.Tensor:
    """bool: the value occurs more than once along the last axis."""
    ordered, order = key.sort(-1)
    same = ordered[..., 1:] == ordered[..., :-1]
    edge = same.new_zeros((*same.shape[:-1], 1))
    shared = torch.cat((same, edge), -1) | torch.cat((edge, same), -1)
    return torch.zeros_like(shared).scatter(-1, order, shared)


def _finalize(problem: Problem, numerics: Numerics, routes: _Routes, answers: list[Ball]) -> Enclosure:
    """The sum over each token's slots, rounded to the output dtype; of several ranks, what an all-reduce gives."""
    nothing = problem.hidden_states.new_zeros(0, problem.hidden, dtype=torch.float64)
    pairs = _joined(answers) if answers else exact(nothing)
    order = (routes.token * problem.topk_ids.shape[1] + routes.slot).argsort()
    if numerics.ranks == 1:
        result = _summed(problem, numerics, routes, pairs, order)
    else:
        rank = routes.expert[order] // (problem.experts_local // numerics.ranks)
        own = [order[rank == number] for number in range(numerics.ranks)]
        result = _all_reduced([_summed(problem, numerics, routes, pairs, part) for part in own], problem)
    return Enclosure(
        center=result.center,
        hard=result.radius[HARD],
        sharp=result.radius[SHARP],
        kinds=finite_kinds(result.center) if result.kinds is None else result.kinds,
    )


def _all_reduced(partials: list[Ball], problem: Problem) -> Ball:
    """The sum of what the ranks answer, each addition rounded to the output dtype, in any order.

    n partial sums that are not 0 take n - 1 additions. The last one's rounding is monotone: it is applied to both ends.
    Each of the others errs by u of its result, in any tree (1 + u)^(n - 2) - 1 of the sum of magnitudes, and by less in
    a wider dtype. With so few that is below lambda times their L2 norm: both radii take it. Rounding to float32 first
    changes no sum of two: it has 2 p + 2 bits for the p of either dtype (Figueroa, 1995).
    """
    dtype = problem.scenario.output_dtype
    center = torch.stack([partial.center for partial in partials])
    radius = torch.stack([partial.radius for partial in partials])
    adds = center.abs() + radius[:, HARD] > 0  # adding 0 rounds nothing
    out = None
    if any(partial.kinds is not None for partial in partials):
        each = torch.stack([finite_kinds(ball.center) if ball.kinds is None else ball.kinds for ball in partials])
        center = torch.where(each == FINITE, center, 0.0)
        adds |= each != FINITE
        out = functools.reduce(functools.partial(kinds.combine, kinds.sum_of), each)
    inner = (adds.sum(0) - 2).clamp(min=0)
    magnitude = (center.abs() + radius[:, HARD]).sum(0)
    grown = torch.expm1(inner * math.log1p(formats.UNIT_ROUNDOFF[dtype])) * magnitude * (1 + 2.0**-30)  # float64's own
    over = (inner > 0) & (magnitude + grown > formats.MAX_FINITE[dtype])
    if bool(over.any()):
        out = finite_kinds(magnitude) if out is None else out
        out = torch.where(over & (out != NAN), ANY, out)
    return rounded(Ball(center=center.sum(0), radius=radius.sum(0) + grown, kinds=out), dtype)


def _summed(problem: Problem, numerics: Numerics, routes: _Routes, pairs: Ball, order: torch.Tensor) -> Ball:
    """Sum router weight times answer over each token's slots, in slot order, and round to the output dtype.

    order: int64 [P], the pairs that take part, by token and slot.
    Products may or may not be fused into the additions: each addition errs by u of its partial sum, each product by u
    of its own. With few slots the sum of these is below lambda times their L2 norm: both radii take it. Products that
    are rounded to another dtype are balls of their own.
    """
    tokens, hidden = problem.hidden_states.shape
    slots, flush_to_zero = problem.topk_ids.shape[1], numerics.activation.flush_to_zero
    weights = formats.round_to(routes.weight.double(), numerics.router_weight)
    fused = numerics.weighted == "float32"

    def products() -> Ball:
        weight = weights[order].unsqueeze(1)
        special = pairs.kinds is not None or not bool(weight.isfinite().all())
        terms = _weighted(pairs, order, weight, special, flush_to_zero=flush_to_zero)
        return terms if fused else rounded(terms, numerics.weighted, flush_to_zero=numerics.gemm2.flush_to_zero)

    counts = torch.bincount(routes.token[order], minlength=tokens)
    slot = torch.arange(max(1, int(counts.max())) if tokens else 1, device=counts.device)
    place = (counts.cumsum(0) - counts).unsqueeze(1) + slot
    place = torch.where(slot < counts.unsqueeze(1), place, len(order))  # one beyond the last: nothing is there
    smallest = SMALLEST_NORMAL if flush_to_zero else 2.0**-149
    if fused:
        row = torch.cat((order, order.new_full((1,), len(pairs.center))))[place]
        whole = _in_one_pass(pairs, weights, row, fused, slots, smallest)
    else:
        terms = products()
        whole = _in_one_pass(terms, torch.ones_like(weights), place, fused, slots, smallest)
    if whole is None:
        terms = products() if fused else terms
        if terms.kinds is not None:
            finite = torch.where(terms.kinds == FINITE, terms.center, 0.0)
            terms = Ball(center=finite, radius=terms.radius, kinds=terms.kinds)
        step = max(1, _together(counts.device) // (len(slot) * hidden))
        whole = _joined([_in_order(terms, part, fused, slots, smallest) for part in torch.split(place, step)])
    return rounded(whole, problem.scenario.output_dtype, flush_to_zero=flush_to_zero)


def _in_one_pass(
    terms: Ball, weights: torch.Tensor, place: torch.Tensor, fused: bool, slots: int, smallest: float
) -> Ball | None:
    """`_in_order` of weights [P] times `terms` [P, H] by a kernel; None where these are few or may not be finite."""
    if terms.kinds is not None or not kernels.worth(terms.center):
        return None
    from oracles import reference_triton  # of a package that comes with torch for CUDA alone

    made = reference_triton.in_order(terms.center, terms.radius, weights, place, fused, slots, smallest)
    return None if made is None else Ball(center=made[0], radius=made[1])


def _in_order(terms: Ball, place: torch.Tensor, fused: bool, slots: int, smallest: float) -> Ball:
    """The sums [T, H] of `terms` [P, H], those of token t at place[t] [S], in order; at P there is nothing.

    smallest: float32 number that is not flushed.
    """

    def of(values: torch.Tensor) -> torch.Tensor:
        return torch.cat((values, values.new_zeros(1, values.shape[1])))[place]

    product = of(terms.center)
    partial = product.cumsum(1)
    spread = torch.stack((of(terms.radius[HARD]), of(terms.radius[SHARP])))
    radius, size = spread.sum(2), product.abs()
    is_exact = _is_float32(product, smallest) & _is_float32(partial, smallest) & (spread[HARD] == 0)
    adds = (place < len(terms.center)).double()
    adds[:, 0] = 0.0
    rounding = _U * ((size.sum(1) if fused else 0.0) + (partial.abs() * adds.unsqueeze(2)).sum(1))
    # Each rounding is relative to a sum that is itself off by what is inherited, and by the roundings before.
    inexact = radius * (1 + 4 * slots * _U) + 2 * rounding + 2 * slots * smallest
    over = (size.sum(1) + radius[HARD]) * (1 + 4 * slots * _U)
    center, out = partial[:, -1] + 0.0, None  # a sum that begins with 0 is never -0
    if terms.kinds is not None:
        own = of(terms.kinds - FINITE) + FINITE
        out = functools.reduce(functools.partial(kinds.combine, kinds.sum_of), own.unbind(1))
    if not formats.within(over, formats.MAX_FINITE["float32"]):
        out = finite_kinds(center) if out is None else out
        # What overflows is an infinity of its own sign: it may meet one of the other that is certain.
        out = torch.where((over > formats.MAX_FINITE["float32"]) & (out != NAN), ANY, out)
    radius = torch.where(is_exact.all(1), 0.0, inexact)
    return Ball(center=center, radius=torch.cat((radius, torch.zeros_like(radius[:1]))), kinds=out)


def _weighted(pairs: Ball, pair: torch.Tensor, weight: torch.Tensor, special: bool, *, flush_to_zero: bool) -> Ball:
    """weight [P, 1] times the answers [P, H] of some pairs. special: something may not be finite.

    flush_to_zero: a subnormal weight may be read as 0, whatever it is multiplied with. (An answer that may be subnormal
    has 0 among its values already, by its own rounding.)
    """
    center, radius = pairs.center[pair], pairs.radius[:, pair]
    out = None
    if special:
        own = finite_kinds(center) if pairs.kinds is None else pairs.kinds[pair]
        answers = kinds.of_operand(center - radius[HARD], center + radius[HARD], own, flush_to_zero=flush_to_zero)
        factor = kinds.of_operand(weight, weight, kinds_of(weight), flush_to_zero=flush_to_zero)
        out = kinds.of_factors(answers, factor.expand_as(own))
    center, radius = weight * center, weight.abs() * radius
    if flush_to_zero:
        lost = torch.where(weight.abs() < SMALLEST_NORMAL, center.abs(), 0.0)
        radius = torch.maximum(radius, lost)
    return settle(center, radius, out)


def _is_float32(value: torch.Tensor, smallest: float) -> torch.Tensor:
    """bool: a float32 number holds the float64 `value`, and if it is flushed below `smallest` too."""
    return (value.float() == value) & ((value.abs() >= smallest) | (value == 0))


def _joined(answers: list[Ball]) -> Ball:
    """The experts' answers in the order of the sorted pairs, [pairs, H]."""
    if len(answers) == 1:
        return answers[0]
    if all(ball.kinds is None for ball in answers):
        out = None
    else:
        out = torch.cat([finite_kinds(ball.center) if ball.kinds is None else ball.kinds for ball in answers])
    return Ball(
        center=torch.cat([ball.center for ball in answers]),
        radius=torch.cat([ball.radius for ball in answers], dim=1),
        kinds=out,
    )
