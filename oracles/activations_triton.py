"""`oracles.activations` in one pass over memory, by a kernel of Triton: the same functions by the same names, which say
there what they bound and why. An `Interval` is a pair here too, and `accuracy` None for the value itself.

The bits are those that torch gives on the same GPU. Its exp and tanh of float64 are CUDA's libdevice, as here, and its
sigmoid is made of exp. `enable_fp_fusion=False`: else the compiler makes one fma, which is rounded once, of a product
and the addition after it, which torch rounds in two passes.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from oracles import activations, formats
from oracles.ball import Ball
from oracles.formats_triton import rounded
from oracles.numerics import Transcendental

_BLOCK = 128
"""Elements, one for each thread: an interval takes most of the registers that a thread has."""

_U = tl.constexpr(activations.U)
_ULP = tl.constexpr(activations.ULP)
_TINY = tl.constexpr(activations.TINY)
_LARGEST_ARGUMENT = tl.constexpr(activations.LARGEST_ARGUMENT)
_LARGEST = tl.constexpr(formats.MAX_FINITE["float32"])
_quantum = triton.constexpr_function(activations.quantum)
_division = triton.constexpr_function(activations.division)


def ranged(kind: str, parameters: dict[str, torch.Tensor], gate: Ball, up: Ball, accuracy: Transcendental) -> Ball:
    """The activation `kind` of gate and up [C, T, I] without kinds, columns of one tensor or not. parameters: float64
    [C, 1, 1] each, in the order in which the kind's function takes them."""
    experts, tokens, columns = gate.center.shape
    # Rows, of the same length apart as the balls are columns of one: a view.
    given = [tensor.flatten(-3, -2) for tensor in (gate.center, gate.radius, up.center, up.radius)]
    given = [tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in given]
    center = gate.center.new_empty(gate.center.shape)
    radius = gate.radius.new_empty(gate.radius.shape)
    values = torch.cat([center.new_empty(0), *(value.flatten() for value in parameters.values())])
    _ranged[(experts * tokens, triton.cdiv(columns, _BLOCK))](
        *given,
        values,
        center,
        radius,
        *(tensor.stride(-2) for tensor in given),
        given[1].stride(0),
        given[3].stride(0),
        experts,
        tokens,
        columns,
        kind=kind,
        accuracy=accuracy,
        activated=accuracy.activated,
        block=_BLOCK,
        enable_fp_fusion=False,
    )
    return Ball(center=center, radius=radius)


@triton.jit(do_not_specialize=range(16))  # one kernel, whatever the numbers and where the tensors begin
def _ranged(
    gate: tl.tensor,
    gate_radius: tl.tensor,
    up: tl.tensor,
    up_radius: tl.tensor,
    parameters: tl.tensor,
    center: tl.tensor,
    radius: tl.tensor,
    gate_row: tl.tensor,
    gate_radius_row: tl.tensor,
    up_row: tl.tensor,
    up_radius_row: tl.tensor,
    gate_plane: tl.tensor,
    up_plane: tl.tensor,
    experts: tl.tensor,
    tokens: tl.tensor,
    columns: tl.tensor,
    kind: tl.constexpr,
    accuracy: tl.constexpr,
    activated: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < columns
    parameters += row // tokens
    g = tl.load(gate + row * gate_row + column, mask=inside, other=0.0)
    u = tl.load(up + row * up_row + column, mask=inside, other=0.0)
    value, _ = _activation((g, g), (u, u), parameters, experts, kind, None, activated)
    at = row * columns + column
    tl.store(center + at, value, mask=inside)
    gate_radius += row * gate_radius_row + column
    up_radius += row * up_radius_row + column
    radius += at
    for _ in range(3):
        opened = _opened(g, tl.load(gate_radius, mask=inside, other=0.0), accuracy)
        other = _opened(u, tl.load(up_radius, mask=inside, other=0.0), accuracy)
        low, high = _activation(opened, other, parameters, experts, kind, accuracy, activated)
        tl.store(radius, tl.maximum(tl.maximum(high - value, value - low), 0.0), mask=inside)
        gate_radius += gate_plane
        up_radius += up_plane
        radius += tl.num_programs(0).to(tl.int64) * columns


@triton.jit
def _opened(center: tl.tensor, radius: tl.tensor, accuracy: tl.constexpr) -> Any:
    low, high = center - radius, center + radius
    if accuracy.flush_to_zero:
        low = tl.where((low > 0) & (low < _TINY), 0.0, low)
        high = tl.where((high < 0) & (high > -_TINY), 0.0, high)
    return low, high


@triton.jit
def _activation(
    gate: tl.tuple,
    up: tl.tuple,
    parameters: tl.tensor,
    experts: tl.tensor,
    kind: tl.constexpr,
    accuracy: tl.constexpr,
    activated: tl.constexpr,
) -> Any:
    if kind == "swiglu":
        out = _times(_activated(_times(gate, _sigmoid(gate, 0, accuracy), accuracy), activated), up, accuracy)
    elif kind == "swiglu_oai":
        alpha, beta, limit = tl.load(parameters), tl.load(parameters + experts), tl.load(parameters + 2 * experts)
        out = _swiglu_oai(gate, up, alpha, beta, limit, accuracy, activated)
    else:
        out = _situ(gate, up, tl.load(parameters), tl.load(parameters + experts), accuracy)
    return out


@triton.jit
def _swiglu_oai(
    gate: tl.tuple,
    up: tl.tuple,
    alpha: tl.tensor,
    beta: tl.tensor,
    limit: tl.tensor,
    accuracy: tl.constexpr,
    activated: tl.constexpr,
) -> Any:
    g = tl.minimum(gate[0], limit), tl.minimum(gate[1], limit)
    u = tl.minimum(tl.maximum(up[0], -limit), limit), tl.minimum(tl.maximum(up[1], -limit), limit)
    swish = _activated(_times(g, _sigmoid(_scaled(g, alpha), 1, accuracy), accuracy), activated)
    return _times(swish, _widen((u[0] + beta, u[1] + beta), accuracy, _U), accuracy)


@triton.jit
def _activated(x: tl.tuple, dtype: tl.constexpr) -> Any:
    low, high = x
    if dtype != "float32":
        low, high = rounded(low, dtype), rounded(high, dtype)
    return low, high


@triton.jit
def _situ(gate: tl.tuple, up: tl.tuple, beta: tl.tensor, linear_beta: tl.tensor, accuracy: tl.constexpr) -> Any:
    if accuracy is None:
        sigmoid = _sigmoid(gate, 0, accuracy)
    elif accuracy.sigmoid == "tanh":
        sigmoid = _half_tanh(gate, accuracy)
    else:
        sigmoid = _sigmoid(gate, 0, accuracy)
    capped = _times(_tanh(gate, beta, accuracy), sigmoid, accuracy)
    linear = _widen(_scaled(_tanh(up, linear_beta, accuracy), linear_beta), accuracy, _U)
    return _times(_widen(_scaled(capped, beta), accuracy, _U), linear, accuracy)


@triton.jit
def _sigmoid(x: tl.tuple, argument_roundings: tl.constexpr, accuracy: tl.constexpr) -> Any:
    low, high = 1 / (1 + tl.exp(-x[0])), 1 / (1 + tl.exp(-x[1]))
    if accuracy is not None:
        size = tl.minimum(tl.maximum(tl.abs(x[0]), tl.abs(x[1])), _LARGEST_ARGUMENT)
        low = low * (1 - _sigmoid_error(size, low, argument_roundings, accuracy))
        high = high * (1 + _sigmoid_error(size, high, argument_roundings, accuracy))
        low = tl.where(x[0] < -87, 0.0, low)
        high = tl.where(x[1] < -87, high + _quantum(accuracy), high)
    return low, high


@triton.jit
def _half_tanh(x: tl.tuple, accuracy: tl.constexpr) -> Any:
    low, high = libdevice.tanh(x[0] / 2), libdevice.tanh(x[1] / 2)
    low, high = low - accuracy.tanh_ulps * _last_place(low), high + accuracy.tanh_ulps * _last_place(high)
    return rounded(1 + low, "float32") / 2, rounded(1 + high, "float32") / 2


@triton.jit
def _exponent(value: tl.tensor) -> Any:
    """Of the last place that float32 has there: int64."""
    return tl.maximum((value.to(tl.int64, bitcast=True) >> 52 & 0x7FF) - 1023, -126) - 23


@triton.jit
def _exp2(exponent: tl.tensor) -> Any:
    return (exponent + 1023 << 52).to(tl.float64, bitcast=True)


@triton.jit
def _last_place(value: tl.tensor) -> Any:
    return _exp2(_exponent(value))


@triton.jit
def _sigmoid_error(size: tl.tensor, value: tl.tensor, argument_roundings: tl.constexpr, accuracy: tl.constexpr) -> Any:
    exp_error = _exp_ulps(size, accuracy) * _ULP + argument_roundings * size * _U
    error = (1 - value) * exp_error + _U + _division(accuracy)
    return error * (1 + 2 * error)


@triton.jit
def _exp_ulps(size: tl.tensor, accuracy: tl.constexpr) -> Any:
    return 2 + tl.floor(1.173 * size) if accuracy.exp == "fast" else tl.zeros_like(size) + accuracy.exp_ulps


@triton.jit
def _tanh(x: tl.tuple, beta: tl.tensor, accuracy: tl.constexpr) -> Any:
    z = _scaled(x, 1 / beta)
    if accuracy is None:
        out = libdevice.tanh(z[0]), libdevice.tanh(z[1])
    else:
        z = _widen(z, accuracy, _division(accuracy))
        if accuracy.tanh == "precise":
            out = _widen((libdevice.tanh(z[0]), libdevice.tanh(z[1])), accuracy, accuracy.tanh_ulps * _ULP)
        else:
            out = _two_sigmoid(z, accuracy)
    return out


@triton.jit
def _two_sigmoid(z: tl.tuple, accuracy: tl.constexpr) -> Any:
    first = -2 * tl.minimum(tl.maximum(z[1], -_LARGEST_ARGUMENT), _LARGEST_ARGUMENT)
    last = -2 * tl.minimum(tl.maximum(z[0], -_LARGEST_ARGUMENT), _LARGEST_ARGUMENT)
    size = tl.maximum(tl.abs(first), tl.abs(last))
    e = _within(tl.exp(first), tl.exp(last), _exp_ulps(size, accuracy))
    low, high = 1 / rounded(1 + e[1], "float32"), 1 / rounded(1 + e[0], "float32")
    if accuracy.divide == "fast":
        ulps: tl.constexpr = accuracy.reciprocal_ulps
        low, high = _within(low, high, ulps)
    else:
        low, high = rounded(low, "float32"), rounded(high, "float32")
    return rounded(2 * low - 1, "float32"), rounded(2 * high - 1, "float32")


@triton.jit
def _within(low: tl.tensor, high: tl.tensor, ulps: tl.tensor) -> Any:
    error = ulps * (1 + 2.0**-20) * _last_place(high)
    below, above = tl.maximum(low - error, 0.0), high + error
    # To divide by a power of two is to multiply by its inverse.
    down, up = _exponent(below), _exponent(above)
    below = tl.ceil(below * _exp2(-down)) * _exp2(down)
    above = tl.floor(above * _exp2(-up)) * _exp2(up)
    return below, tl.minimum(above, _LARGEST)


@triton.jit
def _scaled(x: tl.tuple, factor: tl.tensor) -> Any:
    low, high = x[0] * factor, x[1] * factor
    return tl.minimum(low, high), tl.maximum(low, high)


@triton.jit
def _times(a: tl.tuple, b: tl.tuple, accuracy: tl.constexpr) -> Any:
    if accuracy is None:
        product = a[0] * b[0]
        out = product, product
    else:
        first, second, third, fourth = a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]
        low = tl.minimum(tl.minimum(first, second), tl.minimum(third, fourth))
        high = tl.maximum(tl.maximum(first, second), tl.maximum(third, fourth))
        out = _widen((low, high), accuracy, _U)
    return out


@triton.jit
def _widen(x: tl.tuple, accuracy: tl.constexpr, relative: tl.constexpr) -> Any:
    low, high = x
    if accuracy is not None:
        near = (tl.maximum(low, -high) < _TINY) & ((low != 0) | (high != 0))
        floor = tl.where(near, _quantum(accuracy), 0.0)
        low, high = low - tl.abs(low) * relative - floor, high + tl.abs(high) * relative + floor
    return low, high
