"""Sets of kinds against IEEE arithmetic itself, on numbers that represent each class."""

from __future__ import annotations

import itertools

import pytest
import torch

from oracles import kinds
from oracles.ball import kinds_of
from oracles.enclosure import ANY, FINITE, NAN, NEG_INF, POS_INF

_EXAMPLES = {FINITE: (0.0, 2.5, -2.5), POS_INF: (torch.inf,), NEG_INF: (-torch.inf,), NAN: (torch.nan,)}


def bit(value: float) -> int:
    return int(kinds_of(torch.tensor(value, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("rule", "operation"), [(kinds.product_of, lambda a, b: a * b), (kinds.sum_of, lambda a, b: a + b)]
)
def test_rules_are_what_arithmetic_does(rule: kinds.Rule, operation: object) -> None:
    """No more and no less: each rule is the union over the examples."""
    for a, b in itertools.product(_EXAMPLES, repeat=2):
        results = {bit(operation(x, y)) for x in _EXAMPLES[a] for y in _EXAMPLES[b]}  # type: ignore[operator]
        assert rule(a, b) == sum(results)


def test_sets_are_unions() -> None:
    a = torch.tensor([FINITE | POS_INF, ANY, FINITE], dtype=torch.uint8)
    b = torch.tensor([NEG_INF, FINITE, FINITE], dtype=torch.uint8)
    assert kinds.combine(kinds.sum_of, a, b).tolist() == [NEG_INF | NAN, ANY, FINITE]


_VALUES: dict[str, tuple[tuple[float, float], int | None, tuple[float, ...]]] = {
    # the interval and kind of a factor, and numbers that it may be
    "zero": ((0.0, 0.0), None, (0.0, -0.0)),
    "positive": ((1.0, 3.0), None, (1.0, 3.0)),
    "negative": ((-3.0, -1.0), None, (-2.0,)),
    "either sign": ((-1.0, 1.0), None, (-1.0, 0.0, 1.0)),
    "may be zero": ((0.0, 2.0), None, (0.0, 2.0)),
    "infinite": ((0.0, 0.0), POS_INF, (torch.inf,)),
    "minus infinite": ((0.0, 0.0), NEG_INF, (-torch.inf,)),
    "nan": ((0.0, 0.0), NAN, (torch.nan,)),
    "not finite": ((0.0, 0.0), ANY & ~FINITE, (torch.inf, -torch.inf, torch.nan)),
    "unknown": ((0.0, 0.0), ANY, (torch.inf, -torch.inf, torch.nan, 0.0, 1.0, -1.0)),
    "may be infinite": ((0.0, 0.0), FINITE | POS_INF, (torch.inf, 0.0, 1.0, -1.0)),
}


def operand(*names: str) -> torch.Tensor:
    ends = torch.tensor([_VALUES[name][0] for name in names], dtype=torch.float64)
    sets = torch.tensor([_VALUES[name][1] or FINITE for name in names], dtype=torch.uint8)
    return kinds.of_operand(ends[None, None, :, 0], ends[None, None, :, 1], sets[None, None], flush_to_zero=False)


def of_dot(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    plain = torch.full((1, 1, 1), FINITE, dtype=torch.uint8)
    return int(kinds.of_matmul(operand(*left), operand(*right), plain))


def possible(left: tuple[str, ...], right: tuple[str, ...]) -> int:
    found = 0
    for x in itertools.product(*(_VALUES[name][2] for name in left)):
        for w in itertools.product(*(_VALUES[name][2] for name in right)):
            found |= bit(sum(a * b for a, b in zip(x, w, strict=True)))
    return found


@pytest.mark.parametrize("left", _VALUES)
@pytest.mark.parametrize("right", _VALUES)
def test_one_product(left: str, right: str) -> None:
    """All that may come out is in the set, and finite is in it only where it may come out."""
    answer, truth = of_dot((left,), (right,)), possible((left,), (right,))
    assert truth & ~answer == 0
    assert (answer & FINITE) == (truth & FINITE)


def test_two_products() -> None:
    names = tuple(_VALUES)
    for left in itertools.product(names, repeat=2):
        for right in itertools.product(("zero", "positive", "negative", "infinite", "minus infinite", "nan"), repeat=2):
            answer, truth = of_dot(left, right), possible(left, right)
            assert truth & ~answer == 0, (left, right)
            assert (answer & FINITE) == (truth & FINITE), (left, right)


def test_what_may_overflow_may_cancel_an_infinity() -> None:
    plain = torch.full((1, 1, 1), ANY, dtype=torch.uint8)
    assert int(kinds.of_matmul(operand("positive"), operand("infinite"), plain)) == POS_INF | NAN


@pytest.mark.parametrize(("flush", "answer"), [(False, POS_INF), (True, ANY & ~FINITE)])
def test_a_subnormal_may_be_read_as_zero(flush: bool, answer: int) -> None:
    tiny = torch.full((1, 1, 1), 2.0**-130, dtype=torch.float64)
    x = kinds.of_operand(tiny, tiny, None, flush_to_zero=flush)
    assert int(kinds.of_matmul(x, operand("infinite"), torch.full((1, 1, 1), FINITE, dtype=torch.uint8))) == answer


@pytest.mark.parametrize(("left", "right"), list(itertools.product(_VALUES, repeat=2)))
def test_a_product_has_the_kinds_of_its_factors_and_their_signs(left: str, right: str) -> None:
    found = int(kinds.of_factors(operand(left), operand(right)))
    possible = {bit(a * b) for a in _VALUES[left][2] for b in _VALUES[right][2]}
    assert found & sum(possible) == sum(possible)
    if {left, right} <= {"positive", "negative", "infinite", "minus infinite", "nan"}:
        assert found == sum(possible)
