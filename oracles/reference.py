"""The reference: dequantise exactly, follow the declared recipe in float64, and carry the radius of what it leaves open.

The mathematics is told in docs/enclosures.md. One expert's dequantised weights are held at a time (several, when they
are small).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from oracles import activations, formats, quantizers
from oracles.ball import Ball, Correlation, Weight, exact, kinds_of, lsb, matmul, rounded, settle
from oracles.enclosure import ANY, FINITE, Enclosure
from oracles.numerics import Float, Numerics
from oracles.problem import Problem
from strategies.capability import Capability
from strategies.scenario import Scenario

F32 = 2.0**-24
_CHUNK = 1 << 21
"""Elements of w13 that are dequantised together."""


def enclose(problem: Problem, numerics: Numerics) -> Enclosure:
    """What an implementation with `numerics` may answer to `problem`. See `Enclosure`."""
    routes = _Routes(problem)
    parts = [_experts(problem, numerics, part) for part in routes.parts(problem)]
    return _finalize(problem, numerics, routes, parts)


class Reference:
    """The recipe itself, as an oracle: bfloat16 between the steps, all else in float64."""

    name = "reference"
    capability = Capability(precisions=frozenset({"bf16xmxfp4", "mxfp8xmxfp4"}), output_dtypes=frozenset({"bfloat16", "float16"}))
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

    experts: int64 [C], local ids. pairs: int64 [C, T], index into the sorted pairs, clamped. live: bool [C, T].
    """

    experts: torch.Tensor
    pairs: torch.Tensor
    live: torch.Tensor
    tokens: torch.Tensor
    weights: torch.Tensor


class _Routes:
    """The live (token, slot) pairs, sorted by local expert; a masked or foreign slot is no pair."""

    def __init__(self, problem: Problem) -> None:
        local = problem.local_ids
        token, slot = (local >= 0).nonzero(as_tuple=True)
        expert = local[token, slot]
        order = expert.argsort(stable=True)
        self.token, self.slot, self.expert = token[order], slot[order], expert[order]
        self.weight = problem.router_weights[self.token, self.slot]
        self.counts = torch.bincount(self.expert, minlength=problem.experts_local)

    def parts(self, problem: Problem) -> Iterator[_Part]:
        counts = self.counts.tolist()
        starts = (self.counts.cumsum(0) - self.counts).tolist()
        active = [expert for expert, count in enumerate(counts) if count]
        step = max(1, _CHUNK // (2 * problem.intermediate * problem.hidden))
        device = problem.hidden_states.device
        for first in range(0, len(active), step):
            experts = active[first : first + step]
            length = max(counts[expert] for expert in experts)
            offset = torch.arange(length, device=device)
            count = torch.tensor([[counts[expert]] for expert in experts], device=device)
            start = torch.tensor([[starts[expert]] for expert in experts], device=device)
            pairs = start + torch.minimum(offset, count - 1)
            yield _Part(
                experts=torch.tensor(experts, device=device),
                pairs=pairs,
                live=offset < count,
                tokens=self.token[pairs],
                weights=self.weight[pairs].double(),
            )


def _experts(problem: Problem, numerics: Numerics, part: _Part) -> tuple[_Part, Ball]:
    """The experts' answers to their pairs, [C, T, H], as they enter the final sum."""
    x = exact(problem.hidden_states[part.tokens].double())
    x = quantizers.apply(x, numerics.hidden_quantizer)
    w13 = _dequantized(problem.w13[part.experts], problem.w13_scale[part.experts], numerics)
    h = matmul(x, w13, numerics.gemm1)
    h = _biased_and_rounded(h, problem.w13_bias, part, numerics, numerics.gemm1_output)
    inner = h.center.shape[-1] // 2
    gate, up = _half(h, slice(0, inner)), _half(h, slice(inner, None))
    a = activations.apply(problem.activation, part.experts, gate, up, numerics.activation)
    a = rounded(a, numerics.intermediate, flush_to_zero=numerics.activation.flush_to_zero)
    repeated = _repeated(gate, up, a)
    a = quantizers.apply(a, numerics.intermediate_quantizer)
    w2 = _dequantized(problem.w2[part.experts], problem.w2_scale[part.experts], numerics)
    block = 1 if numerics.intermediate_quantizer == "none" else formats.GROUP
    y = matmul(a, w2, numerics.gemm2, Correlation(repeated=repeated, block=block))
    return part, _biased_and_rounded(y, problem.w2_bias, part, numerics, numerics.gemm2_output)


def _half(ball: Ball, columns: slice) -> Ball:
    kinds = None if ball.kinds is None else ball.kinds[..., columns]
    return Ball(center=ball.center[..., columns], radius=ball.radius[..., columns], kinds=kinds)


def _dequantized(packed: torch.Tensor, scale: torch.Tensor, numerics: Numerics) -> Weight:
    """Exact weights of [C, N, K/2] codes and [C, N, K/32] scale bytes, in the dtype that the kernel holds them in."""
    value = formats.mxfp4_dequantize(packed, scale)
    # Every code is a multiple of 1/2. A byte of 253 is the first whose largest code overflows.
    least = scale.amin(-1)
    unit = formats.exp2(least.to(torch.int64) - 128)
    low, high = int(least.min()), int(scale.max())
    kinds = None
    if high >= 253:
        value = value if numerics.weights == "exact" else formats.round_to(value, numerics.weights)
        kinds = kinds_of(value)
        value = torch.where(kinds == FINITE, value, 0.0)
    # Codes other than 0 differ by 12 at most, and half of 2**(1 - 127) is the last normal.
    scales = formats.exp2(scale.to(torch.int64) - 127) if high > 240 else None
    return Weight(
        value=value, unit=unit, spread=high - low > 12, subnormal=low < 2, special=kinds, large_scales=scales
    )


def _biased_and_rounded(
    ball: Ball, bias: torch.Tensor | None, part: _Part, numerics: Numerics, dtype: Float
) -> Ball:
    """Add the experts' bias [E_local, N] in float32, and round a GEMM's result to `dtype`, in the declared order."""
    if bias is not None and numerics.bias_before_rounding:
        ball = _plus(ball, bias[part.experts].double().unsqueeze(1))
    if dtype != "float32":  # the accumulator is float32 already
        ball = rounded(ball, dtype, flush_to_zero=numerics.gemm1.flush_to_zero)
    if bias is not None and not numerics.bias_before_rounding:
        ball = _plus(ball, bias[part.experts].double().unsqueeze(1))
    return ball


def _plus(ball: Ball, term: torch.Tensor) -> Ball:
    """One float32 addition of finite, exact numbers."""
    center = ball.center + term
    radius = ball.radius + F32 * (center.abs() + ball.radius)
    return settle(Ball(center=center, radius=radius, kinds=ball.kinds))


def _repeated(gate: Ball, up: Ball, a: Ball) -> torch.Tensor:
    """bool [C, T, I]: uncertain elements whose (gate, |up|) another one of the row shares.

    Equal arguments err alike, whatever the cause: identical rows of w13, or integer data. Values are compared after
    rounding to bfloat16, which merges more than needed and never less.
    """
    uncertain = a.radius[1] > 0
    if not bool(uncertain.any()):
        return uncertain
    columns = torch.arange(uncertain.shape[-1], device=uncertain.device)
    g = gate.center.to(torch.bfloat16).view(torch.int16).long()
    u = up.center.abs().to(torch.bfloat16).view(torch.int16).long()
    key = torch.where(uncertain, (g & 0xFFFF) << 16 | (u & 0xFFFF), -1 - columns)
    ordered, order = key.sort(-1)
    same = ordered[..., 1:] == ordered[..., :-1]
    edge = same.new_zeros((*same.shape[:-1], 1))
    repeated = torch.cat((same, edge), -1) | torch.cat((edge, same), -1)
    return torch.zeros_like(uncertain).scatter(-1, order, repeated)


def _finalize(problem: Problem, numerics: Numerics, routes: _Routes, parts: list[tuple[_Part, Ball]]) -> Enclosure:
    """Sum router weight times answer over each token's slots, in slot order, and round to the output dtype.

    Products may or may not be fused into the additions: each addition errs by u of its partial sum, each product by u
    of its own. With 16 slots at most, the sum of these is below lambda times their L2 norm: both radii take it.
    """
    tokens, hidden = problem.hidden_states.shape
    device = problem.hidden_states.device
    pairs = _by_pair(parts, len(routes.token), hidden, device)
    order = (routes.token * problem.topk_ids.shape[1] + routes.slot).argsort()
    token = routes.token[order]
    counts = torch.bincount(token, minlength=tokens)
    starts = counts.cumsum(0) - counts
    center = torch.zeros(tokens, hidden, dtype=torch.float64, device=device)
    radius = center.new_zeros(2, tokens, hidden)
    rounding, magnitude = torch.zeros_like(center), torch.zeros_like(center)
    unit = torch.full_like(center, torch.inf)
    kinds = None if pairs.kinds is None and bool(routes.weight.isfinite().all()) else _finite_kinds(center)
    for position in range(int(counts.max()) if tokens else 0):
        rows = (counts > position).nonzero().squeeze(1)
        pair = order[starts[rows] + position]
        weight = routes.weight[pair].double().unsqueeze(1)
        value, spread = pairs.center[pair], pairs.radius[:, pair]
        if kinds is not None:
            own = _finite_kinds(value) if pairs.kinds is None else pairs.kinds[pair]
            kinds[rows] = activations.add_kinds(kinds[rows], activations.multiply_kinds(own, kinds_of(weight)))
            value, weight = torch.where(own == FINITE, value, 0.0), weight.nan_to_num(0.0, 0.0, 0.0)
        product = weight * value
        center[rows] += product
        radius[:, rows] += weight.abs() * spread
        magnitude[rows] += product.abs() + (weight.abs() * spread)[0]
        rounding[rows] += F32 * (product.abs() + center[rows].abs() * (position > 0))
        unit[rows] = torch.minimum(unit[rows], lsb(product))
    is_exact = (magnitude < 2.0**24 * unit) & (unit >= 2.0**-149) & (radius[0] == 0)
    top = formats.MAX_FINITE["float32"]
    if bool((magnitude > top).any()):
        kinds = _finite_kinds(center) if kinds is None else kinds
        kinds = torch.where((magnitude > top) & (kinds == FINITE), ANY, kinds)
    # Twice: the rounding of a partial sum is relative to the sum with its error.
    radius = torch.where(is_exact, 0.0, radius * (1 + 2.0**-20) + 2 * rounding + 2.0**-148 * (magnitude > 0))
    result = rounded(Ball(center=center, radius=radius, kinds=kinds), problem.scenario.output_dtype)
    final = _finite_kinds(center) if result.kinds is None else result.kinds
    return Enclosure(center=result.center, hard=result.radius[0], sharp=result.radius[1], kinds=final)


def _finite_kinds(like: torch.Tensor) -> torch.Tensor:
    return torch.full(like.shape, FINITE, dtype=torch.uint8, device=like.device)


def _by_pair(parts: list[tuple[_Part, Ball]], count: int, hidden: int, device: torch.device) -> Ball:
    """The experts' answers in the order of the sorted pairs, [pairs, H]."""
    center = torch.zeros(count, hidden, dtype=torch.float64, device=device)
    radius = center.new_zeros(2, count, hidden)
    kinds = None if all(ball.kinds is None for _, ball in parts) else _finite_kinds(center)
    for part, ball in parts:
        where = part.pairs[part.live]
        center[where] = ball.center[part.live]
        radius[:, where] = ball.radius[:, part.live]
        if kinds is not None and ball.kinds is not None:
            kinds[where] = ball.kinds[part.live]
    return Ball(center=center, radius=radius, kinds=kinds)
