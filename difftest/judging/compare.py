"""Judges an output by an enclosure. Pure functions on tensors; no tolerance anywhere.

Per element, from the gravest: non-finite where the value must be finite, finite where it must not be; outside the hard
radius, which is *impossible* under the declared Numerics; outside the sharp one only, which is *implausible*.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from difftest.judging.heat import heat
from difftest.judging.outcome import Agreement, Rate, Worst
from oracles.base import AnyNumerics
from oracles.enclosure import ANY, FINITE, LAMBDA, NAN, NEG_INF, POS_INF, RADIUS_MODEL, Enclosure

# Half an ulp of float64 for each of a radius's terms: |a - b| <= r_a + r_b holds for the exact numbers, and both
# sides are rounded when they are computed. A radius of 0 stays 0.
ROUNDED = 1 + 2.0**-50


@dataclass(frozen=True, kw_only=True)
class Breach:
    """One way in which an output is wrong.

    kind: see `Outcome.kind`. detail: one line. worst, heat: for kinds of values. rate: when it does not happen every
    time.
    """

    kind: str
    detail: str
    worst: Worst | None = None
    rate: Rate | None = None
    heat: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """breaches: from the gravest, at most one of each kind; "implausible" only when nothing is impossible."""

    breaches: tuple[Breach, ...]
    stats: Agreement


def malformed(output: object, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Breach | None:
    """What is wrong with the type, shape, dtype or device of `output`; None when it is as promised."""
    expected = f"{list(shape)} {dtype} on {device.type}"
    if not isinstance(output, torch.Tensor):
        got = type(output).__name__
    elif output.layout != torch.strided or output.device.type != device.type:
        got = f"a {output.layout} tensor on {output.device.type}"
    elif tuple(output.shape) != shape or output.dtype != dtype:
        got = f"{list(output.shape)} {output.dtype}"
    else:
        return None
    return Breach(kind="shape_or_dtype", detail=f"returned {got}, must be {expected}")


def judge(output: torch.Tensor, enclosure: Enclosure, numerics: AnyNumerics) -> Judgement:
    """Compare `output` [M, H] with what `enclosure` allows. numerics: what the enclosure was made with, for the record.

    The worst element of a kind is the one with the largest error minus radius.
    """
    got = output.double()
    compared, error, outside, lost, kept = _outside(got, enclosure)
    sharp = torch.where(compared, enclosure.sharp, torch.inf)
    impossible = compared & (error > enclosure.hard)
    stats, (n_outside, n_impossible, n_lost, n_kept) = _measure(
        enclosure, compared, error, sharp, [outside, impossible, lost, kept], numerics
    )
    breaches = []
    if n_lost:
        breaches.append(_breach("must_be_finite", lost, n_lost, lost.double(), got, enclosure, stats))
    if n_kept:
        breaches.append(_breach("must_be_nonfinite", kept, n_kept, kept.double(), got, enclosure, stats))
    if n_impossible:
        excess = torch.where(impossible, error - enclosure.hard, -1.0)
        breaches.append(_breach("impossible", impossible, n_impossible, excess, got, enclosure, stats))
    elif n_outside:
        excess = torch.where(outside, error - sharp, -1.0)
        breaches.append(_breach("implausible", outside, n_outside, excess, got, enclosure, stats))
    return Judgement(breaches=tuple(breaches), stats=stats)


def wrong(output: torch.Tensor, enclosure: Enclosure) -> torch.Tensor:
    """bool [M, H]: elements of `output` that `enclosure` does not allow, its sharp radius included."""
    _, _, outside, lost, kept = _outside(output.double(), enclosure)
    return outside | lost | kept


def _outside(got: torch.Tensor, enclosure: Enclosure) -> tuple[torch.Tensor, ...]:
    """(compared, error, outside, lost, kept), each [M, H]: where numbers are compared, by how much they are off (0
    elsewhere), which are outside of the sharp radius, which are not finite and must be, and the other way round."""
    kinds, finite = enclosure.kinds, got.isfinite()
    must_be_finite = kinds == FINITE
    compared = must_be_finite & finite
    error = torch.where(compared, (got - enclosure.center).abs(), 0.0)
    outside = compared & (error > enclosure.sharp)
    lost = must_be_finite & ~finite
    return compared, error, outside, lost, hidden(got, kinds)


def hidden(output: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
    """bool [M, H]: where a value is certainly not finite, and `output` has a finite one, or NaN or infinity where it is
    certain which one. kinds: see `Enclosure`."""
    return (kinds & FINITE == 0) & (kinds & kind_of(output) == 0) & (output.isfinite() | one_kind(kinds))


def one_kind(kinds: torch.Tensor) -> torch.Tensor:
    """bool [M, H]: where a single bit is set."""
    return kinds & (kinds - 1) == 0


def pair(first: Enclosure, output: torch.Tensor, second: Enclosure) -> Enclosure:
    """What a candidate enclosed by `first` may answer when another one, enclosed by `second`, answered `output`.

    Each is within its own radius of its own recipe's value, so that |a - b| <= r_a + r_b + |ref_a - ref_b|. Where
    either may be non-finite, or `output` is, nothing is compared; but what is certain of the candidate, on its own
    account, stays demanded.
    """
    allowed = _around(first, output, second)
    certain = first.kinds & FINITE == 0
    return Enclosure(
        center=torch.where(certain, first.center, allowed.center),
        hard=allowed.hard,
        sharp=allowed.sharp,
        kinds=torch.where(certain, first.kinds, allowed.kinds),
    )


def twice(enclosure: Enclosure, output: torch.Tensor) -> Enclosure:
    """What a second run may answer to the same question when the first one answered `output`: 2 radii from it.

    It says nothing of values that are not finite: those are the first run's to answer for.
    """
    return _around(enclosure, output, enclosure)


def _around(first: Enclosure, output: torch.Tensor, second: Enclosure) -> Enclosure:
    other = output.double()
    apart = (first.center - second.center).abs()
    comparable = (first.kinds == FINITE) & (second.kinds == FINITE) & other.isfinite()
    return Enclosure(
        center=other,
        hard=torch.where(comparable, (first.hard + second.hard + apart) * ROUNDED, 0.0),
        sharp=torch.where(comparable, (first.sharp + second.sharp + apart) * ROUNDED, 0.0),
        kinds=torch.where(comparable, FINITE, ANY).to(torch.uint8),
    )


def not_equal(got: torch.Tensor, expected: torch.Tensor, *, signed_zero: bool = False) -> Breach | None:
    """The first element that differs between two outputs [M, H] of one dtype; None when they are the same.

    Any NaN equals any NaN: which payload comes out of an operation on two NaNs depends on the order of operands in
    the compiled code. signed_zero: whether +0 and -0 differ.
    """
    different = (got != expected) & ~(got.isnan() & expected.isnan())
    if signed_zero:
        different |= (got == 0) & (expected == 0) & (got.signbit() != expected.signbit())
    count = int(different.sum())
    if not count:
        return None
    token, column = divmod(int(different.flatten().byte().argmax()), got.shape[1])
    value, center = float(got[token, column]), float(expected[token, column])
    return Breach(
        kind="not_bit_equal",
        detail=f"{count} of {got.numel()} elements differ, first [{token}, {column}]: {value!r} instead of {center!r}",
        worst=Worst(
            token=token,
            column=column,
            got=value,
            center=center,
            hard=(center, center),
            sharp=(center, center),
            radius=0.0,
        ),
        heat=heat(different, (got.double() - expected.double()).abs(), _rms(expected)),
    )


def _rms(values: torch.Tensor) -> float:
    finite = values.double().nan_to_num(0.0, 0.0, 0.0)
    return float(finite.square().mean().sqrt())


def kind_of(value: torch.Tensor) -> torch.Tensor:
    """uint8: the one bit of `oracles.enclosure` that each value is."""
    kind = torch.where(value > 0, POS_INF, NEG_INF)
    return torch.where(value.isfinite(), FINITE, torch.where(value.isnan(), NAN, kind)).to(torch.uint8)


def _measure(
    enclosure: Enclosure,
    compared: torch.Tensor,
    error: torch.Tensor,
    sharp: torch.Tensor,
    masks: list[torch.Tensor],
    numerics: AnyNumerics,
) -> tuple[Agreement, list[int]]:
    """The statistics, and how many are set in each of `masks`, with one transfer from the device."""
    exact = compared & (sharp == 0)
    open_ = compared & (sharp > 0)
    ratio = (error / sharp)[open_]
    ratio_hard = (error / enclosure.hard)[compared & (enclosure.hard > 0)]
    zero = error.new_zeros(())
    square = torch.where(enclosure.kinds == FINITE, enclosure.center, 0.0).square().sum()
    sums = (compared.sum(), exact.sum(), (exact & (error > 0)).sum(), *(mask.sum() for mask in masks))
    some, some_hard = ratio.numel() > 0, ratio_hard.numel() > 0
    numbers = torch.stack(
        [
            *(value.double() for value in sums),
            ratio.median() if some else zero,
            ratio.max() if some else zero,
            ratio_hard.median() if some_hard else zero,
            ratio_hard.max() if some_hard else zero,
            square / (enclosure.kinds == FINITE).sum().clamp(min=1),
            torch.where(open_, sharp, 0.0).sum() / compared.sum().clamp(min=1),
        ]
    ).tolist()
    n_compared, n_exact, mismatches, *counts = (int(number) for number in numbers[:-6])
    median, largest, median_hard, largest_hard, mean_square, mean_radius = numbers[-6:]
    stats = Agreement(
        elements=error.numel(),
        compared=n_compared,
        exact=n_exact,
        mismatches=mismatches,
        median_ratio=median if some else None,
        max_ratio=largest if some else None,
        median_ratio_hard=median_hard if some_hard else None,
        max_ratio_hard=largest_hard if some_hard else None,
        rms=mean_square**0.5,
        mean_radius=mean_radius,
        radius_model=RADIUS_MODEL,
        lam=LAMBDA,
        unit_roundoffs=numerics.unit_roundoffs,
        calibrated=numerics.calibrated,
    )
    return stats, counts


_NAMES = {NAN: "NaN", POS_INF: "inf", NEG_INF: "-inf"}


def _breach(
    kind: str,
    where: torch.Tensor,
    count: int,
    excess: torch.Tensor,
    got: torch.Tensor,
    enclosure: Enclosure,
    stats: Agreement,
) -> Breach:
    """The breach of `kind` at the elements `where`, told by the one with the largest `excess`."""
    token, column = divmod(int(excess.argmax()), got.shape[1])
    value, center, hard, sharp, kinds = (
        float(tensor[token, column])
        for tensor in (got, enclosure.center, enclosure.hard, enclosure.sharp, enclosure.kinds)
    )
    worst = Worst(
        token=token,
        column=column,
        got=value,
        center=center,
        hard=(center - hard, center + hard),
        sharp=(center - sharp, center + sharp),
        radius=sharp if kind == "implausible" else hard,
    )
    beyond = (got - enclosure.center).abs() - (enclosure.sharp if kind == "implausible" else enclosure.hard)
    picture = heat(where, torch.full_like(beyond, torch.inf) if kind == "must_be_nonfinite" else beyond, stats.rms)
    some = f"{count} of {where.numel()} elements in {int(where.any(1).sum())} of {len(where)} rows"
    at = f"[{token}, {column}] = {value:.9g}"
    match kind:
        case "must_be_finite":
            detail = f"{some} are not finite: {at}, expected {center:.9g}"
            return Breach(kind=kind, detail=detail, worst=worst, heat=picture)
        case "must_be_nonfinite":
            expected = _NAMES.get(int(kinds), "NaN or infinity")
            detail = f"{some} hide a non-finite value: {at}, expected {expected}"
            return Breach(kind=kind, detail=detail, worst=worst, heat=picture)
    share = f" ({worst.error / stats.rms:.3g} of rms)" if stats.rms > 0 else ""
    if worst.radius == 0:
        off = f"expected exactly {center:.9g}, off by {worst.error:.3g}{share}"
    else:
        off = f"expected {center:.9g} +- {worst.radius:.3g}, off by {worst.error:.3g}{share}, {worst.ratio:.3g} radii"
    if kind == "implausible" and not stats.calibrated:
        off += ", not calibrated"  # the sharp radius is what the oracle declares
    return Breach(kind=kind, detail=f"{some} are {kind}: {at}, {off}", worst=worst, heat=picture)
