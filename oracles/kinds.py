"""Which results may be finite, infinite or NaN: arithmetic on sets of kinds (`oracles.enclosure`), as bits of uint8."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from oracles.enclosure import ANY, FINITE, NAN, NEG_INF, POS_INF

Rule = Callable[[int, int], int]
"""Of one bit each, what an operation may give."""


def product_of(a: int, b: int) -> int:
    """A finite factor may be 0 or of either sign."""
    if NAN in (a, b):
        return NAN
    if a == b == FINITE:
        return FINITE
    if FINITE in (a, b):
        return ANY & ~FINITE
    return POS_INF if a == b else NEG_INF


def sum_of(a: int, b: int) -> int:
    if NAN in (a, b) or {a, b} == {POS_INF, NEG_INF}:
        return NAN
    return a if b == FINITE else b


def over_bits(rule: Rule, a: int, b: int) -> int:
    """The union of `rule` over the bits of two sets."""
    bits = (FINITE, POS_INF, NEG_INF, NAN)
    return functools.reduce(int.__or__, (rule(x, y) for x in bits if a & x for y in bits if b & y), 0)


@functools.cache
def _table(rule: Rule, device: torch.device) -> torch.Tensor:
    """uint8 [16, 16]: `rule` on sets."""
    rows = [[over_bits(rule, a, b) for b in range(16)] for a in range(16)]
    return torch.tensor(rows, dtype=torch.uint8, device=device)


def combine(rule: Rule, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`rule`, a function of the module level, on sets of kinds, element by element."""
    return _table(rule, a.device)[a.long(), b.long()]


def of_matmul(x: torch.Tensor, w: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """uint8 [C, T, N]: what x times w^T may be.

    x [C, T, K], w [C, N, K]: uint8 classes of `of_operand`. plain [C, T, N]: what the finite products alone give.
    """

    xs, ws = _present(x), _present(w)

    def meet(result: int) -> torch.Tensor:
        """bool [C, T, N]: some product is a `result`."""
        found = torch.zeros(plain.shape, dtype=torch.bool, device=plain.device)
        for left in xs:
            rights = tuple(right for right in ws if _of_product(left, right) == result)
            if rights:
                found |= (x == left).float() @ _among(w, rights).float().mT > 0
        return found

    nan, positive, negative, not_finite, unknown = map(meet, (NAN, POS_INF, NEG_INF, ANY & ~FINITE, ANY))
    doubt = unknown | (plain != FINITE)  # what is added to an infinity may itself be the other one
    out = torch.where(unknown, ANY, plain)
    out = torch.where(positive, torch.where(doubt, POS_INF | NAN, POS_INF), out)
    out = torch.where(negative, torch.where(doubt, NEG_INF | NAN, NEG_INF), out)
    out = torch.where(not_finite, ANY & ~FINITE, out)
    return torch.where(nan | (positive & negative), NAN, out).to(torch.uint8)


# Classes of a factor: what the kind of a product depends on.
_ZERO, _POSITIVE, _NEGATIVE, _ANY_SIGN, _PLUS, _MINUS, _NAN, _NOT_FINITE, _UNKNOWN = range(9)


def of_operand(
    low: torch.Tensor, high: torch.Tensor, kinds: torch.Tensor | None, *, flush_to_zero: bool
) -> torch.Tensor:
    """uint8: the class of each factor that lies in [low, high] where its kind is FINITE."""
    tiny = 2.0**-126 if flush_to_zero else 0.0  # an operand below may be read as 0
    out = torch.where(low > tiny, _POSITIVE, torch.where(high < -tiny, _NEGATIVE, _ANY_SIGN))
    out = torch.where((low == 0) & (high == 0), _ZERO, out)
    if kinds is not None:
        special = torch.where((kinds & FINITE) != 0, _UNKNOWN, _NOT_FINITE)
        for bit, cls in ((POS_INF, _PLUS), (NEG_INF, _MINUS), (NAN, _NAN)):
            special = torch.where(kinds == bit, cls, special)
        out = torch.where(kinds == FINITE, out, special)
    return out.to(torch.uint8)


def is_nan(classes: torch.Tensor) -> torch.Tensor:
    """bool: factors that are certainly NaN, by their classes (`of_operand`); so is every product with one."""
    return classes == _NAN


def is_special(classes: torch.Tensor) -> torch.Tensor:
    """bool: factors that may be no finite number."""
    return classes >= _PLUS


_SIGNS = {_POSITIVE: 1, _NEGATIVE: -1, _PLUS: 1, _MINUS: -1}


def _of_product(a: int, b: int) -> int:
    """The set of kinds of one product, by the classes of its factors."""
    if _NAN in (a, b):
        return NAN
    finite = (_ZERO, _POSITIVE, _NEGATIVE, _ANY_SIGN)
    if a in finite and b in finite:
        return FINITE
    if _ZERO in (a, b) and (_PLUS in (a, b) or _MINUS in (a, b)):
        return NAN
    if a in _SIGNS and b in _SIGNS:
        return POS_INF if _SIGNS[a] == _SIGNS[b] else NEG_INF
    certain = (_PLUS, _MINUS, _NOT_FINITE)
    return ANY & ~FINITE if a in certain or b in certain else ANY


def of_factors(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """uint8: what the product of two factors may be, by their classes (`of_operand`), element by element."""
    return _factor_table(a.device)[a.long(), b.long()]


@functools.cache
def _factor_table(device: torch.device) -> torch.Tensor:
    """uint8 [classes, classes]."""
    classes = range(_UNKNOWN + 1)
    return torch.tensor([[_of_product(a, b) for b in classes] for a in classes], dtype=torch.uint8, device=device)


def _present(classes: torch.Tensor) -> list[int]:
    """Those that occur."""
    counts = torch.bincount(classes.flatten(), minlength=_UNKNOWN + 1).tolist()
    return [cls for cls, count in enumerate(counts) if count]


def _among(classes: torch.Tensor, wanted: tuple[int, ...]) -> torch.Tensor:
    member = torch.tensor([cls in wanted for cls in range(_UNKNOWN + 1)], device=classes.device)
    return member[classes.long()]
