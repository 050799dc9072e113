"""The activation between the GEMMs on intervals: the range over the argument's interval, widened by what float32
arithmetic and the declared library functions may add.

Sources: CUDA C++ Programming Guide, table "Single-Precision Mathematical Standard Library Functions" (1 / x errs by 1
ulp under -prec-div=false, x / y by 2) and the intrinsics __expf (2 + floor(|1.173 x|) ulp) and __fdividef (2 ulp; 0 for
denominators above 2**126).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch

from oracles import formats, kernels, kinds
from oracles.ball import BIAS, HARD, SHARP, Ball, exponent_of, finite_kinds, is_set, settle
from oracles.enclosure import ANY, FINITE, NAN, NEG_INF, POS_INF
from oracles.numerics import Float, Transcendental
from oracles.problem import ActivationParams

U = 2.0**-24
ULP = 2.0**-23  # of a float32 relative to its value, at most
TINY = 2.0**-126
_SMALLEST = 2.0**-149
LARGEST_ARGUMENT = 200.0  # of exp in a sigmoid, which float32 cannot tell from infinity
_HUGE = 2.0**800  # in place of an infinity: over any beta, times any alpha it is still finite
_CALLS = {"cpu": 1 << 13, "cuda": 1 << 20}
"""Elements below which further calls cost more than a third radius everywhere."""

Interval = tuple[torch.Tensor, torch.Tensor]


def apply(params: ActivationParams, gate: Ball, up: Ball, accuracy: Transcendental) -> Ball:
    """act(gate, up) for [C, T, I] of the experts C that the parameters are of, before any rounding."""

    def parameter(vector: torch.Tensor | None) -> torch.Tensor:
        assert vector is not None  # the kind says which parameters there are
        return vector.double()[:, None, None]

    parameters: dict[str, torch.Tensor] = {}
    rule: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    match params.kind:
        case "swiglu":
            rule = _swiglu_kinds
        case "swiglu_oai":
            alpha, beta, limit = parameter(params.alpha), parameter(params.beta), parameter(params.limit)
            parameters = {"alpha": alpha, "beta": beta, "limit": limit}
            rule = functools.partial(_swiglu_oai_kinds, alpha=alpha, limit=limit)
            if accuracy.clamp_nan == "limit":
                gate, up = _limited(gate, limit, both=False), _limited(up, limit, both=True)
        case "situ":
            parameters = {"beta": parameter(params.beta), "linear_beta": parameter(params.linear_beta)}
            rule = _situ_kinds
        case _:
            raise ValueError(f"activation.kind = {params.kind!r}: must be one of swiglu, swiglu_oai, situ")
    out = None
    if gate.kinds is not None or up.kinds is not None:
        g = finite_kinds(gate.center) if gate.kinds is None else gate.kinds
        u = finite_kinds(up.center) if up.kinds is None else up.kinds
        out = rule(g, u)
    result = _ranged(params.kind, parameters, gate, up, accuracy, out)
    if params.kind != "situ" and accuracy.activated != "float32":
        # The bias stays where the ends round to one number (see `oracles.ball.rounded`).
        unrounded = dataclasses.replace(accuracy, activated="float32")
        result.radius[BIAS] = _ranged(params.kind, parameters, gate, up, unrounded, out).radius[BIAS]
    return result


def _ranged(
    kind: str,
    parameters: dict[str, torch.Tensor],
    gate: Ball,
    up: Ball,
    accuracy: Transcendental,
    out: torch.Tensor | None,
) -> Ball:
    """The value of the function of that kind, and its range over the arguments. out: the kinds of the value."""
    if out is None and kernels.worth(gate.center):
        from oracles import activations_triton  # of a package that comes with torch for CUDA alone

        return activations_triton.ranged(kind, parameters, gate, up, accuracy)
    function = _FUNCTIONS[kind]
    if kind != "situ":
        function = functools.partial(function, activated=accuracy.activated)
    g, u = gate.center.clamp(-_HUGE, _HUGE), up.center.clamp(-_HUGE, _HUGE)
    center, _ = function((g, g), (u, u), None, **parameters)

    def radius(planes: slice, places: torch.Tensor | None = None) -> torch.Tensor:
        """Those of some planes of `Ball.radius`, everywhere or at some places of the flattened tensor."""
        first, second = (_opened(x, planes, places, flush_to_zero=accuracy.flush_to_zero) for x in (gate, up))
        here, around = parameters, center
        if places is not None:
            here = {name: value.expand_as(center).flatten()[places] for name, value in parameters.items()}
            around = center.flatten()[places]
        low, high = function(first, second, accuracy, **here)
        return torch.maximum(high - around, around - low).clamp_(min=0.0)

    if center.numel() < _CALLS[center.device.type]:
        return settle(center, radius(slice(None)), out)
    # Where both arguments are known exactly the hard radius is the sharp one: mostly.
    open_ = (gate.radius[HARD] + up.radius[HARD]).flatten().nonzero().squeeze(1)
    if 4 * len(open_) > center.numel():
        return settle(center, radius(slice(None)), out)
    hard, bias = radius(slice(None, None, BIAS))
    sharp = hard.clone()
    sharp.view(-1)[open_] = radius(slice(SHARP, SHARP + 1), open_)[0]
    return settle(center, torch.stack((hard, sharp, bias)), out)


def _opened(x: Ball, planes: slice, places: torch.Tensor | None, *, flush_to_zero: bool) -> Interval:
    """The ends [planes, ...] without an infinity: one is a number too large to matter, and where the value may be
    finite or not the ends are that far apart. flush_to_zero: a subnormal argument may be read as 0."""
    center, radius, own = x.center, x.radius[planes], x.kinds
    if places is not None:
        center, radius = center.flatten()[places], radius.flatten(1)[:, places]
        own = None if own is None else own.flatten()[places]
    center = center.clamp(-_HUGE, _HUGE)
    if own is not None:
        radius = torch.where(is_set(own), _HUGE, radius)
    low, high = center - radius, center + radius
    if flush_to_zero and min(formats.smallest(low), formats.smallest(high)) < TINY:
        low = torch.where((low > 0) & (low < TINY), 0.0, low)
        high = torch.where((high < 0) & (high > -TINY), 0.0, high)
    return low, high


def _limited(x: Ball, limit: torch.Tensor, *, both: bool) -> Ball:
    """fminf(NaN, limit) = limit: what a CUDA kernel's clamp makes of a NaN. A clamp to +-limit gives one of `both`,
    which one depends on the order of its fminf and fmaxf."""
    if x.kinds is None:
        return x
    nan = torch.where(limit.isinf(), POS_INF | NEG_INF if both else POS_INF, FINITE)
    out = torch.where((x.kinds & NAN) != 0, (x.kinds & ~NAN) | nan, x.kinds).to(torch.uint8)
    lost, unknown = x.kinds == NAN, is_set(x.kinds)
    center = torch.where(lost, 0.0 if both else limit, x.center)
    radius = torch.where(lost, limit.clamp(max=_HUGE) if both else 0.0, torch.where(unknown, _HUGE, x.radius))
    return Ball(center=center, radius=radius, kinds=out)


def _swiglu(gate: Interval, up: Interval, accuracy: Transcendental | None, *, activated: Float) -> Interval:
    return _times(_activated(_times(gate, _sigmoid(gate, 0, accuracy), accuracy), activated), up, accuracy)


def _swiglu_oai(
    gate: Interval,
    up: Interval,
    accuracy: Transcendental | None,
    *,
    alpha: torch.Tensor,
    beta: torch.Tensor,
    limit: torch.Tensor,
    activated: Float,
) -> Interval:
    g = torch.minimum(gate[0], limit), torch.minimum(gate[1], limit)
    u = up[0].clamp(-limit, limit), up[1].clamp(-limit, limit)
    swish = _activated(_times(g, _sigmoid(_scaled(g, alpha), 1, accuracy), accuracy), activated)
    return _times(swish, _widen((u[0] + beta, u[1] + beta), accuracy), accuracy)


def _activated(x: Interval, dtype: Float) -> Interval:
    """The activated gate, rounded: a monotone function. It is no larger than the gate, and so none overflows."""
    if dtype == "float32":
        return x  # each operation rounded to that
    return formats.round_to(x[0], dtype), formats.round_to(x[1], dtype)


def _situ(
    gate: Interval,
    up: Interval,
    accuracy: Transcendental | None,
    *,
    beta: torch.Tensor,
    linear_beta: torch.Tensor,
) -> Interval:
    if accuracy is not None and accuracy.sigmoid == "tanh":
        sigmoid = _half_tanh(gate, accuracy)
    else:
        sigmoid = _sigmoid(gate, 0, accuracy)
    capped = _times(_tanh(gate, beta, accuracy), sigmoid, accuracy)
    linear = _widen(_scaled(_tanh(up, linear_beta, accuracy), linear_beta), accuracy)
    return _times(_widen(_scaled(capped, beta), accuracy), linear, accuracy)


_FUNCTIONS: dict[str, Callable[..., Interval]] = {"swiglu": _swiglu, "swiglu_oai": _swiglu_oai, "situ": _situ}


def _sigmoid(x: Interval, argument_roundings: int, accuracy: Transcendental | None) -> Interval:
    """1 / (1 + exp(-x)), a monotone function, widened at both ends.

    Relative error: that of exp, damped by exp(-x) / (1 + exp(-x)); one addition; one division. A rounded argument
    (alpha * x) adds |x| u to exp's. Below -87 exp overflows, or the fast division's denominator passes 2**126: 0.
    """
    low, high = torch.sigmoid(x[0]), torch.sigmoid(x[1])
    if accuracy is None:
        return low, high
    # Of all arguments in between the largest has the most ulp.
    size = torch.maximum(x[0].abs(), x[1].abs()).clamp(max=LARGEST_ARGUMENT)
    low = low * (1 - _sigmoid_error(size, low, argument_roundings, accuracy))
    high = high * (1 + _sigmoid_error(size, high, argument_roundings, accuracy))
    if formats.least(x[0]) >= -87:
        return low, high
    return torch.where(x[0] < -87, 0.0, low), torch.where(x[1] < -87, high + quantum(accuracy), high)


def _half_tanh(x: Interval, accuracy: Transcendental) -> Interval:
    """(1 + tanh(x / 2)) / 2, operation by operation as in `_two_sigmoid`: near -1 what tanh may be off is absolute, and
    where x is negative most of 1 + tanh cancels. Both halves are exact."""
    low, high = (torch.tanh(end / 2) for end in x)
    ends = low - accuracy.tanh_ulps * _last_place(low), high + accuracy.tanh_ulps * _last_place(high)
    return formats.round_to(1 + ends[0], "float32") / 2, formats.round_to(1 + ends[1], "float32") / 2


def _last_place(value: torch.Tensor) -> torch.Tensor:
    """An ulp of float32 there."""
    return formats.exp2(exponent_of(value).clamp(min=-126) - 23)


def _sigmoid_error(
    size: torch.Tensor, value: torch.Tensor, argument_roundings: int, accuracy: Transcendental
) -> torch.Tensor:
    exp_error = _exp_ulps(size, accuracy) * ULP + argument_roundings * size * U
    error = (1 - value) * exp_error + U + division(accuracy)
    return error * (1 + 2 * error)  # the products of these errors, and 1 / (1 - e) < 1 + e + 2 e^2


def _exp_ulps(size: torch.Tensor, accuracy: Transcendental) -> torch.Tensor:
    """Error of exp for arguments of at most this size."""
    return 2 + (1.173 * size).floor() if accuracy.exp == "fast" else torch.full_like(size, accuracy.exp_ulps)


def division(accuracy: Transcendental) -> float:
    """Relative error of one division."""
    return 2 * ULP if accuracy.divide == "fast" else U


def _tanh(x: Interval, beta: torch.Tensor, accuracy: Transcendental | None) -> Interval:
    """tanh(x / beta)."""
    z = _scaled(x, 1 / beta)
    if accuracy is None:
        return torch.tanh(z[0]), torch.tanh(z[1])
    z = _widen(z, accuracy, relative=division(accuracy))
    if accuracy.tanh == "precise":
        return _widen((torch.tanh(z[0]), torch.tanh(z[1])), accuracy, relative=accuracy.tanh_ulps * ULP)
    return _two_sigmoid(z, accuracy)


def _two_sigmoid(z: Interval, accuracy: Transcendental) -> Interval:
    """2 / (1 + exp(-2 z)) - 1, operation by operation.

    The error is absolute, and of the order of an ulp of 1/2 or 1/4: where tanh is small, relative bounds of each
    operation make it three times as large. So both ends go through the operations, each of which is monotone and gives
    a float32 number: 1 + e and 2 s - 1 are rounded (the latter never where s is in [1/4, 1]), and what exp and the
    reciprocal give is one of the few numbers that are no further than their error from the exact value.
    """
    first, last = (-2 * end.clamp(-LARGEST_ARGUMENT, LARGEST_ARGUMENT) for end in (z[1], z[0]))
    size = torch.maximum(first.abs(), last.abs())
    e = _within(first.exp(), last.exp(), _exp_ulps(size, accuracy))
    d = formats.round_to(1 + e[0], "float32"), formats.round_to(1 + e[1], "float32")
    s = 1 / d[1], 1 / d[0]
    if accuracy.divide == "fast":
        s = _within(*s, accuracy.reciprocal_ulps)
    else:
        s = formats.round_to(s[0], "float32"), formats.round_to(s[1], "float32")
    return formats.round_to(2 * s[0] - 1, "float32"), formats.round_to(2 * s[1] - 1, "float32")


def _within(low: torch.Tensor, high: torch.Tensor, ulps: torch.Tensor | float) -> Interval:
    """The float32 numbers that are so many ulp from a value in [low, high], which is not negative: their ends."""
    # Both ends take the larger one's ulp, as the value may be anywhere between. The slack is for their own rounding.
    error = ulps * (1 + 2.0**-20) * _last_place(high)
    below = _on_grid((low - error).clamp_(min=0.0), torch.Tensor.ceil_)
    above = _on_grid(high + error, torch.Tensor.floor_)
    return below, above.clamp_(max=formats.MAX_FINITE["float32"])


def _on_grid(value: torch.Tensor, integer: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The float32 number at or next to each finite one that is not negative; changes it. An infinity is 2**128 or more
    here."""
    ulp = formats.exp2(exponent_of(value).clamp_(min=-126) - 23)
    return integer(value.div_(ulp)).mul_(ulp)


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


def quantum(accuracy: Transcendental) -> float:
    """How far a result below the smallest normal number may be off: all of it, or the ulp of any one operation."""
    return TINY if accuracy.flush_to_zero else _SMALLEST * max(2.0, accuracy.exp_ulps, accuracy.tanh_ulps)


def _widen(x: Interval, accuracy: Transcendental | None, relative: float = U) -> Interval:
    """One float32 result. One that may be subnormal has an absolute error, or is flushed; an exact 0 stays."""
    if accuracy is None:
        return x
    low, high = x
    lowest, highest = low - low.abs() * relative, high + high.abs() * relative
    beside = torch.maximum(low, -high)  # how far from 0 all of the interval is; negative when 0 is inside
    if formats.least(beside) >= TINY:
        return lowest, highest
    near = (beside < TINY) & ((low != 0) | (high != 0))
    floor = torch.where(near, quantum(accuracy), 0.0)
    return lowest - floor, highest + floor


# --- what may come out where an argument is not finite ---------------------------------------------------------------


def _silu(gate: int) -> int:
    """-inf times the sigmoid's 0 is NaN, or 0 where a kernel guards against it: either."""
    return NAN | FINITE if gate == NEG_INF else gate


def _silu_times(gate: int, up: int) -> int:
    return kinds.over_bits(kinds.product_of, _silu(gate), up)


def _limited_silu_times(gate: int, up: int) -> int:
    """With gate and up clamped: finite but for a NaN, and for a gate of -inf."""
    return NAN if NAN in (gate, up) else _silu(gate) if gate == NEG_INF else FINITE


def _any_if_infinite(gate: int, up: int) -> int:
    """For alpha <= 0: the sigmoid of an infinite gate is then 0, 1 or NaN."""
    return NAN if NAN in (gate, up) else FINITE if gate == up == FINITE else ANY


def _capped_times(gate: int, up: int) -> int:
    """tanh and sigmoid are bounded."""
    return NAN if NAN in (gate, up) else FINITE


def _swiglu_kinds(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return kinds.combine(_silu_times, gate, up)


def _situ_kinds(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return kinds.combine(_capped_times, gate, up)


def _swiglu_oai_kinds(
    gate: torch.Tensor, up: torch.Tensor, *, alpha: torch.Tensor, limit: torch.Tensor
) -> torch.Tensor:
    clamped, free = kinds.combine(_limited_silu_times, gate, up), kinds.combine(_silu_times, gate, up)
    out = torch.where(limit.isinf(), free, clamped)
    return torch.where(alpha > 0, out, kinds.combine(_any_if_infinite, gate, up))
