"""The activation between the GEMMs on intervals: the range over the argument's interval, widened by what float32
arithmetic and the declared library functions may add.

Sources: CUDA C++ Programming Guide, table "Single-Precision Mathematical Standard Library Functions" and the
intrinsics __expf (2 + floor(|1.173 x|) ulp) and __fdividef (2 ulp; 0 for denominators above 2**126).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from oracles.ball import Ball, from_ends, settle
from oracles.enclosure import ANY, FINITE, NAN, NEG_INF, POS_INF
from oracles.numerics import Transcendental
from oracles.problem import ActivationParams

_U = 2.0**-24
_ULP = 2.0**-23  # of a float32 relative to its value, at most
_TINY = 2.0**-126

Interval = tuple[torch.Tensor, torch.Tensor]


def apply(params: ActivationParams, experts: torch.Tensor, gate: Ball, up: Ball, accuracy: Transcendental) -> Ball:
    """act(gate, up) for [C, T, I] of the experts [C] (local ids, for per-expert parameters), before any rounding."""

    def parameter(vector: torch.Tensor | None) -> torch.Tensor:
        assert vector is not None  # the kind says which parameters there are
        return vector[experts].double()[:, None, None]

    function: Callable[[Interval, Interval, Transcendental | None], Interval]
    unlimited = False
    match params.kind:
        case "swiglu":
            function = _swiglu
        case "swiglu_oai":
            alpha, beta, limit = parameter(params.alpha), parameter(params.beta), parameter(params.limit)
            unlimited = bool(limit.isinf().any())
            function = functools.partial(_swiglu_oai, alpha=alpha, beta=beta, limit=limit)
            if accuracy.clamp_nan == "limit":
                gate, up = _limit_instead_of_nan(gate, limit), _limit_instead_of_nan(up, limit)
        case "situ":
            beta, linear = parameter(params.beta), parameter(params.linear_beta)
            function = functools.partial(_situ, beta=beta, linear_beta=linear)
        case _:
            raise ValueError(f"activation.kind = {params.kind!r}: must be one of swiglu, swiglu_oai, situ")
    low, high = function(gate.ends, up.ends, accuracy)
    center, _ = function((gate.center, gate.center), (up.center, up.center), None)
    return settle(from_ends(center, low, high, _kinds(params.kind, unlimited, gate, up)))


def _limit_instead_of_nan(x: Ball, limit: torch.Tensor) -> Ball:
    """fminf(NaN, limit) = limit: what a CUDA kernel's clamp makes of a NaN."""
    if x.kinds is None:
        return x
    limit_kind = torch.where(limit.isinf(), POS_INF, FINITE)
    lost = x.kinds == NAN
    possible = (x.kinds & NAN) != 0
    kinds = torch.where(possible, (x.kinds & ~NAN) | limit_kind, x.kinds).to(torch.uint8)
    return Ball(center=torch.where(lost, limit, x.center), radius=torch.where(lost, 0.0, x.radius), kinds=kinds)


def _swiglu(gate: Interval, up: Interval, accuracy: Transcendental | None) -> Interval:
    return _times(_times(gate, _sigmoid(gate, 0, accuracy), accuracy), up, accuracy)


def _swiglu_oai(
    gate: Interval,
    up: Interval,
    accuracy: Transcendental | None,
    *,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    limit: torch.Tensor,
) -> Interval:
    g = torch.minimum(gate[0], limit), torch.minimum(gate[1], limit)
    u = up[0].clamp(-limit, limit), up[1].clamp(-limit, limit)
    swish = _times(g, _sigmoid(_scaled(g, alpha), 1, accuracy), accuracy)
    return _times(swish, _widen((u[0] + beta, u[1] + beta), accuracy), accuracy)


def _situ(
    gate: Interval,
    up: Interval,
    accuracy: Transcendental | None,
    *,
    beta: torch.Tensor,
    linear_beta: torch.Tensor,
) -> Interval:
    capped = _times(_tanh(_scaled(gate, 1 / beta), accuracy), _sigmoid(gate, 0, accuracy), accuracy)
    linear = _widen(_scaled(_tanh(_scaled(up, 1 / linear_beta), accuracy), linear_beta), accuracy)
    return _times(_widen(_scaled(capped, beta), accuracy), linear, accuracy)


def _sigmoid(x: Interval, argument_roundings: int, accuracy: Transcendental | None) -> Interval:
    """1 / (1 + exp(-x)), a monotone function, widened at both ends.

    Relative error: that of exp, damped by exp(-x) / (1 + exp(-x)); one addition; one division. A rounded argument
    (alpha * x) adds |x| u to exp's. Below -87 exp overflows, or the fast division's denominator passes 2**126: 0.
    """
    low, high = torch.sigmoid(x[0]), torch.sigmoid(x[1])
    if accuracy is None:
        return low, high
    low = low * (1 - _sigmoid_error(x[0], low, argument_roundings, accuracy))
    high = high * (1 + _sigmoid_error(x[1], high, argument_roundings, accuracy))
    return torch.where(x[0] < -87, 0.0, low), high


def _sigmoid_error(
    x: torch.Tensor, value: torch.Tensor, argument_roundings: int, accuracy: Transcendental
) -> torch.Tensor:
    size = x.abs().clamp(max=200.0)
    ulps = 2 + (1.173 * size).floor() if accuracy.exp == "fast" else torch.full_like(x, accuracy.exp_ulps)
    exp_error = ulps * _ULP + argument_roundings * size * _U
    return (1 - value) * exp_error + _U + (2 * _ULP if accuracy.divide == "fast" else _U)


def _tanh(x: Interval, accuracy: Transcendental | None) -> Interval:
    """tanh of an argument that was divided once: its relative error carries over at most once (z sech^2 <= tanh)."""
    low, high = torch.tanh(x[0]), torch.tanh(x[1])
    if accuracy is None:
        return low, high
    divided = 2 * _ULP if accuracy.divide == "fast" else _U
    if accuracy.tanh == "precise":
        relative = accuracy.tanh_ulps * _ULP + divided
        low, high = low - low.abs() * relative, high + high.abs() * relative
    else:  # 2 sigmoid(2 z) - 1: the error of the sigmoid is absolute here; 2 z carries the division's
        roundings = round(divided / _U)
        doubled = _sigmoid((2 * x[0], 2 * x[1]), roundings, accuracy)
        low, high = 2 * doubled[0] - 1 - _U, 2 * doubled[1] - 1 + _U
    return low.clamp(min=-1 - 4 * _U), high.clamp(max=1 + 4 * _U)


def _scaled(x: Interval, factor: torch.Tensor) -> Interval:
    first, second = x[0] * factor, x[1] * factor
    return torch.minimum(first, second), torch.maximum(first, second)


def _times(a: Interval, b: Interval, accuracy: Transcendental | None) -> Interval:
    """One float32 product of two intervals."""
    if accuracy is None:
        product = a[0] * b[0]
        return product, product
    products = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
    low = torch.minimum(torch.minimum(products[0], products[1]), torch.minimum(products[2], products[3]))
    high = torch.maximum(torch.maximum(products[0], products[1]), torch.maximum(products[2], products[3]))
    return _widen((low, high), accuracy)


def _widen(x: Interval, accuracy: Transcendental | None) -> Interval:
    """One float32 rounding. A result that may be subnormal has an absolute error, or is flushed; an exact 0 stays."""
    if accuracy is None:
        return x
    low, high = x
    quantum = _TINY if accuracy.flush_to_zero else 2.0**-149
    near = ((low < _TINY) & (high > -_TINY)) & ((low != 0) | (high != 0))
    floor = torch.where(near, quantum, 0.0)
    return low - low.abs() * _U - floor, high + high.abs() * _U + floor


# --- what may come out where an argument is not finite ---------------------------------------------------------------


def _multiply(a: int, b: int) -> int:
    """Kinds of a product, for one bit each; a finite factor may be 0 or of either sign."""
    if NAN in (a, b):
        return NAN
    if a == b == FINITE:
        return FINITE
    if FINITE in (a, b):
        return ANY & ~FINITE
    return POS_INF if a == b else NEG_INF


def _add(a: int, b: int) -> int:
    if NAN in (a, b) or {a, b} == {POS_INF, NEG_INF}:
        return NAN
    return a if b == FINITE else b


def _activate(kind: str, unlimited: bool, gate: int, up: int) -> int:
    """Kinds of act(gate, up), for one bit each. -inf times the sigmoid's 0 is NaN, or 0 where g / (1 + exp(-g)) is
    guarded: either."""
    if NAN in (gate, up):
        return NAN
    if kind == "situ":
        return FINITE  # tanh and sigmoid are bounded
    if kind == "swiglu_oai" and not unlimited:
        return NAN | FINITE if gate == NEG_INF else FINITE
    swish = NAN | FINITE if gate == NEG_INF else gate
    return _over_bits(_multiply, swish, up)


def _over_bits(function: Callable[[int, int], int], a: int, b: int) -> int:
    """The union of `function` over the bits of two sets."""
    bits = (FINITE, POS_INF, NEG_INF, NAN)
    return functools.reduce(int.__or__, (function(x, y) for x in bits if a & x for y in bits if b & y), 0)


@functools.cache
def _table(function: Callable[[int, int], int], device: torch.device) -> torch.Tensor:
    """uint8 [16, 16]: `function` on sets."""
    rows = [[_over_bits(function, a, b) for b in range(16)] for a in range(16)]
    return torch.tensor(rows, dtype=torch.uint8, device=device)


@functools.cache
def _activation_rule(kind: str, unlimited: bool) -> Callable[[int, int], int]:
    return functools.partial(_activate, kind, unlimited)


def add_kinds(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What a sum may be, of what its terms may be (uint8 sets)."""
    return _table(_add, a.device)[a.long(), b.long()]


def multiply_kinds(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What a product may be, of what its factors may be (uint8 sets)."""
    return _table(_multiply, a.device)[a.long(), b.long()]


def _kinds(kind: str, unlimited: bool, gate: Ball, up: Ball) -> torch.Tensor | None:
    if gate.kinds is None and up.kinds is None:
        return None
    finite = torch.full(gate.center.shape, FINITE, dtype=torch.uint8, device=gate.center.device)
    g = finite if gate.kinds is None else gate.kinds
    u = finite if up.kinds is None else up.kinds
    return _table(_activation_rule(kind, unlimited), g.device)[g.long(), u.long()]
