"""Roundings that a candidate may do and does not declare: "agrees if the intermediate is not rounded"."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from oracles.ball import Ball, rounded
from oracles.enclosure import Enclosure
from oracles.numerics import Accumulator, Numerics
from oracles.problem import Problem
from oracles.reference import enclose
from strategies.scenario import OutputDtype

_Enclose = Callable[[Problem, Numerics], Enclosure]


@dataclass(frozen=True)
class Recipe:
    """Numerics that differ from the declared ones in one respect.

    name: in the words of `Numerics`. summary: what is done, to go on after "agrees if". kind: its class of mistake.
    enclose: what an implementation may answer that does it, all else as it declares.
    """

    name: str
    summary: str
    enclose: _Enclose
    kind: str = "numerics"


def recipes(problem: Problem, declared: Numerics) -> Iterator[Recipe]:
    """The recipes that ask something else of `problem` than the declared one."""
    seen = {declared}
    for name, summary, numerics in _variants(declared):
        if numerics not in seen:
            seen.add(numerics)
            kind = "non-finite" if name == "activation.clamp_nan" else "numerics"
            yield Recipe(name, summary, _with(numerics), kind)
    for dtype in ("bfloat16", "float16"):
        yield Recipe(f"topk_weights={dtype}", f"router weights are rounded to {dtype}", _with_router_weights(dtype))
    other: OutputDtype = "float16" if problem.scenario.output_dtype == "bfloat16" else "bfloat16"
    yield Recipe(f"output={other}", f"the output is rounded twice, to {other} first", _with_output_via(other))


_STEPS = {
    "weights": "weights",
    "gemm1_output": "the first GEMM's result",
    "intermediate": "the intermediate",
    "gemm2_output": "the second GEMM's result",
}
_INPUTS = {"hidden_quantizer": "the input", "intermediate_quantizer": "the intermediate"}
_UNROUNDED = ("gemm1_output", "intermediate", "gemm2_output")
_ACCUMULATORS = {"gemm1": "the first GEMM", "gemm2": "the second GEMM"}
_WIDTHS = {"in bfloat16": 8, "in float16": 11, "with 14 bits, as Hopper's FP8 tensor cores do": 14}
"""Bits of the significand; u = 2**-bits."""


def _variants(declared: Numerics) -> Iterator[tuple[str, str, Numerics]]:
    """(name, summary, numerics): each field of the closed set at each of its other values, and a few together."""
    hints = typing.get_type_hints(Numerics)
    for name, what in _STEPS.items():
        for value in _choices(hints[name]):
            exact = value in ("float32", "exact")
            verb = "are" if name == "weights" else "is"
            summary = f"{what} {verb} not rounded" if exact else f"{what} {verb} rounded to {value}"
            yield f"{name}={value}", summary, _with_field(declared, name, value)
    for first, *others in (_UNROUNDED[:2], _UNROUNDED[1:], _UNROUNDED[::2], _UNROUNDED):
        names = (first, *others)
        summary = " and ".join(_STEPS[name] for name in names) + " are not rounded"
        yield f"{'='.join(names)}=float32", summary, functools.reduce(_unrounded, names, declared)
    for name, what in _INPUTS.items():
        for value in _choices(hints[name]):
            summary = f"{what} is not quantised" if value == "none" else f"{what} is quantised to {value}"
            yield f"{name}={value}", summary, _with_field(declared, name, value)
    when = "after" if declared.bias_before_rounding else "before"
    bias = replace(declared, bias_before_rounding=not declared.bias_before_rounding)
    yield "bias_before_rounding", f"a bias is added {when} the GEMM's result is rounded", bias
    yield from _activations(declared)
    for name, what in _ACCUMULATORS.items():
        accumulator: Accumulator = getattr(declared, name)
        changes = [
            ("rounding=truncate", "truncates its sums", replace(accumulator, rounding="truncate")),
            ("flush_to_zero", "flushes subnormals", replace(accumulator, flush_to_zero=True)),
        ]
        for words, bits in _WIDTHS.items():
            narrow = replace(accumulator, unit_roundoff=2.0**-bits, exact_bits=bits, chain=None)
            if narrow.unit_roundoff > accumulator.unit_roundoff:
                changes.append((f"unit_roundoff=2**-{bits}", f"adds {words}", narrow))
        for field, does, changed in changes:
            yield f"{name}.{field}", f"{what} {does}", _with_field(declared, name, changed)


def _activations(declared: Numerics) -> Iterator[tuple[str, str, Numerics]]:
    accuracy = declared.activation

    def changed(**fields: Any) -> Numerics:
        return replace(declared, activation=replace(accuracy, **fields))

    yield "activation.exp=fast", "the activation uses the fast exp", changed(exp="fast")
    yield "activation.fast", "the activation uses the fast exp and division", changed(exp="fast", divide="fast")
    yield (
        "activation.tanh=two_sigmoid",
        "tanh is computed as 2 sigmoid(2 z) - 1",
        changed(tanh="two_sigmoid"),
    )
    other = "limit" if accuracy.clamp_nan == "keeps" else "keeps"
    words = "a clamp makes its limit of a NaN" if other == "limit" else "a clamp keeps a NaN"
    yield "activation.clamp_nan", words, changed(clamp_nan=other)
    yield "activation.flush_to_zero", "the activation flushes subnormals", changed(flush_to_zero=True)


def _choices(hint: typing.Any) -> list[str]:
    """The values of a Literal, or of a union of some."""
    values: list[str] = []
    for argument in typing.get_args(hint):
        values += [argument] if isinstance(argument, str) else _choices(argument)
    return values


def _with_field(part: Any, name: str, value: Any) -> Any:
    """The Numerics, or part of it, with one field changed."""
    return replace(part, **{name: value})


def _unrounded(numerics: Numerics, name: str) -> Numerics:
    changed: Numerics = _with_field(numerics, name, "float32")
    return changed


def _with(numerics: Numerics) -> _Enclose:
    return lambda problem, _declared: enclose(problem, numerics)


def _with_router_weights(dtype: str) -> _Enclose:
    def enclosed(problem: Problem, declared: Numerics) -> Enclosure:
        weights = problem.topk_weights.to(getattr(torch, dtype)).float()
        return enclose(replace(problem, topk_weights=weights), declared)

    return enclosed


def _with_output_via(dtype: OutputDtype) -> _Enclose:
    def enclosed(problem: Problem, declared: Numerics) -> Enclosure:
        final = problem.scenario.output_dtype
        first = enclose(replace(problem, scenario=replace(problem.scenario, output_dtype=dtype)), declared)
        radius = torch.stack((first.hard, first.sharp, torch.zeros_like(first.sharp)))
        ball = rounded(Ball(center=first.center, radius=radius, kinds=first.kinds), final)
        assert ball.kinds is not None  # it had some
        return Enclosure(center=ball.center, hard=ball.radius[0], sharp=ball.radius[1], kinds=ball.kinds)

    return enclosed
