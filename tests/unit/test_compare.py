from __future__ import annotations

import math
import re

import pytest
import torch

from difftest.judging.compare import Judgement, judge, malformed, not_equal, pair, twice, wrong
from difftest.judging.outcome import Worst
from oracles.enclosure import ANY, FINITE, LAMBDA, NAN, NEG_INF, POS_INF, RADIUS_MODEL, Enclosure
from oracles.numerics import Accumulator, Numerics

NUMERICS = Numerics(gemm1=Accumulator(unit_roundoff=2.0**-14))


def enclosure(
    center: list[list[float]],
    hard: list[list[float]] | float = 0.0,
    sharp: list[list[float]] | float = 0.0,
    kinds: list[list[int]] | int = FINITE,
) -> Enclosure:
    middle = torch.tensor(center, dtype=torch.float64)

    def full(value: object, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(value, dtype=dtype).expand(middle.shape).clone()

    return Enclosure(
        center=middle,
        hard=full(hard, torch.float64),
        sharp=full(sharp, torch.float64),
        kinds=full(kinds, torch.uint8),
    )


def judged(output: list[list[float]], allowed: Enclosure) -> Judgement:
    return judge(torch.tensor(output, dtype=torch.bfloat16), allowed, NUMERICS)


def kinds_of(judgement: Judgement) -> list[str]:
    return [breach.kind for breach in judgement.breaches]


def test_a_radius_of_zero_demands_equality() -> None:
    assert kinds_of(judged([[1.0, 2.0]], enclosure([[1.0, 2.0]]))) == []
    one_ulp = 2.0 + 2.0**-6
    judgement = judged([[1.0, one_ulp]], enclosure([[1.0, 2.0]]))
    assert kinds_of(judgement) == ["impossible"]
    worst = judgement.breaches[0].worst
    assert worst is not None
    assert (worst.token, worst.column, worst.got, worst.center, worst.radius) == (0, 1, one_ulp, 2.0, 0.0)
    assert (judgement.stats.exact, judgement.stats.mismatches, judgement.stats.max_ratio) == (2, 1, None)
    assert "1 of 2 elements in 1 of 1 rows are impossible" in judgement.breaches[0].detail


def test_the_sign_of_zero_is_no_difference() -> None:
    assert kinds_of(judged([[-0.0]], enclosure([[0.0]]))) == []


def test_the_ends_of_a_radius_belong_to_it() -> None:
    allowed = enclosure([[1.0, 1.0]], hard=0.5, sharp=0.5)
    assert kinds_of(judged([[1.5, 0.5]], allowed)) == []
    assert kinds_of(judged([[1.5, 0.498]], allowed)) == ["impossible"]


def test_outside_the_sharp_radius_only_is_implausible() -> None:
    judgement = judged([[1.25, 1.0]], enclosure([[1.0, 1.0]], hard=0.5, sharp=0.125))
    assert kinds_of(judgement) == ["implausible"]
    worst = judgement.breaches[0].worst
    assert worst is not None
    assert (worst.radius, worst.ratio, worst.hard, worst.sharp) == (0.125, 2.0, (0.5, 1.5), (0.875, 1.125))


def test_an_implausible_value_says_whether_the_machine_was_measured() -> None:
    allowed = enclosure([[1.0]], hard=0.5, sharp=0.125)
    measured = Accumulator(measured=Accumulator())
    for numerics, calibrated in ((NUMERICS, False), (Numerics(gemm1=measured, gemm2=measured), True)):
        judgement = judge(torch.tensor([[1.25]], dtype=torch.bfloat16), allowed, numerics)
        assert judgement.stats.calibrated is calibrated
        assert judgement.breaches[0].detail.endswith("2 radii" if calibrated else "2 radii, not calibrated")


def test_impossible_hides_implausible() -> None:
    assert kinds_of(judged([[1.25, 3.0]], enclosure([[1.0, 1.0]], hard=0.5, sharp=0.125))) == ["impossible"]


def test_worst_is_the_largest_error_beyond_the_radius() -> None:
    # Errors 1, 3, 4 with radii 0, 1, 3.5: 3 - 1 is the largest excess, though 1 / 0 is the largest ratio.
    radii = [[0.0, 1.0, 3.5]]
    worst = judged([[1.0, 3.0, 4.0]], enclosure([[0.0, 0.0, 0.0]], hard=radii, sharp=radii)).breaches[0].worst
    assert worst is not None
    assert worst.column == 1


def test_must_be_finite() -> None:
    judgement = judged([[1.0, math.nan], [math.inf, 2.0]], enclosure([[1.0, 1.0], [1.0, 1.0]]))
    assert kinds_of(judgement) == ["must_be_finite", "impossible"]
    worst = judgement.breaches[0].worst
    assert worst is not None
    assert (worst.token, worst.column) == (0, 1)
    assert math.isnan(worst.got)
    assert "2 of 4 elements in 2 of 2 rows" in judgement.breaches[0].detail


@pytest.mark.parametrize(
    ("value", "kinds", "found"),
    [
        (1.0, NAN, ["must_be_nonfinite"]),
        (1.0, NAN | POS_INF, ["must_be_nonfinite"]),
        (math.inf, NAN | POS_INF, []),
        (-math.inf, NAN | POS_INF, []),  # which one it is matters only where there is one
        (math.nan, NAN, []),
        (math.inf, NAN, ["must_be_nonfinite"]),
        (math.nan, POS_INF, ["must_be_nonfinite"]),
        (-math.inf, NEG_INF, []),
        (-math.inf, POS_INF, ["must_be_nonfinite"]),
        (7.0, FINITE | NAN, []),
        (math.nan, FINITE | NAN, []),
        (7.0, ANY, []),
        (math.inf, FINITE | NAN, []),
    ],
)
def test_non_finite_values_are_three_valued(value: float, kinds: int, found: list[str]) -> None:
    center = 1.0 if kinds & FINITE else math.nan
    assert kinds_of(judged([[value]], enclosure([[center]], kinds=kinds))) == found


def test_statistics() -> None:
    allowed = enclosure(
        [[3.0, 3.0, 3.0, math.nan, 3.0]],
        hard=[[0.0, 2.0, 2.0, 0.0, 0.0]],
        sharp=[[0.0, 2.0, 1.0, 0.0, 0.0]],
        kinds=[[FINITE, FINITE, FINITE, NAN, ANY]],
    )
    stats = judged([[3.0, 4.0, 3.25, math.nan, 9.0]], allowed).stats
    assert (stats.elements, stats.compared, stats.exact, stats.mismatches) == (5, 3, 1, 0)
    assert (stats.median_ratio, stats.max_ratio) == (0.25, 0.5)
    assert (stats.median_ratio_hard, stats.max_ratio_hard) == (0.125, 0.5)
    assert (stats.rms, stats.mean_radius) == (3.0, 1.0)
    assert (stats.radius_model, stats.lam) == (RADIUS_MODEL, LAMBDA)
    assert stats.unit_roundoffs == (2.0**-14, 2.0**-24)


def test_no_rows_agree() -> None:
    empty = torch.empty(0, 32, dtype=torch.float64)
    allowed = Enclosure(center=empty, hard=empty, sharp=empty, kinds=empty.to(torch.uint8))
    judgement = judge(torch.empty(0, 32, dtype=torch.bfloat16), allowed, NUMERICS)
    assert judgement.breaches == ()
    assert (judgement.stats.elements, judgement.stats.rms) == (0, 0.0)


def test_an_infinite_radius_holds_every_finite_value() -> None:
    assert kinds_of(judged([[1e30]], enclosure([[0.0]], hard=math.inf, sharp=math.inf))) == []


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (None, "returned NoneType"),
        ((1, 2), "returned tuple"),
        (torch.zeros(2, 3, dtype=torch.bfloat16), r"returned \[2, 3\] torch.bfloat16, must be \[2, 4\]"),
        (torch.zeros(2, 4), r"returned \[2, 4\] torch.float32, must be \[2, 4\] torch.bfloat16 on cpu"),
        (torch.zeros(8, dtype=torch.bfloat16), r"returned \[8\]"),
        (torch.zeros(2, 4, dtype=torch.bfloat16, device="meta"), "tensor on meta"),
        (torch.zeros(2, 4, dtype=torch.bfloat16).to_sparse(), "sparse"),
    ],
)
def test_malformed(output: object, words: str) -> None:
    breach = malformed(output, (2, 4), torch.bfloat16, torch.device("cpu"))
    assert breach is not None
    assert breach.kind == "shape_or_dtype"
    assert re.search(words, breach.detail)


def test_well_formed() -> None:
    assert malformed(torch.zeros(2, 4, dtype=torch.bfloat16), (2, 4), torch.bfloat16, torch.device("cpu")) is None


def test_two_candidates_are_apart_by_their_radii_and_their_recipes() -> None:
    first = enclosure([[1.0, 1.0]], hard=0.5, sharp=0.25)
    second = enclosure([[2.0, 2.0]], hard=0.25, sharp=0.125)
    answer = torch.tensor([[2.0, 2.0]], dtype=torch.bfloat16)
    allowed = pair(first, answer, second)
    assert kinds_of(judged([[2.0 + 1.375, 2.0 - 1.375]], allowed)) == []
    assert kinds_of(judged([[2.0 + 1.75, 2.0]], allowed)) == ["implausible"]
    assert kinds_of(judged([[2.0, 2.0 - 1.7656]], allowed)) == ["impossible"]


def test_two_exact_candidates_of_one_recipe_must_be_equal() -> None:
    same = enclosure([[1.0]])
    answer = torch.tensor([[1.0]], dtype=torch.bfloat16)
    assert kinds_of(judged([[1.0 + 2.0**-7]], pair(same, answer, same))) == ["impossible"]


def test_two_candidates_and_values_that_are_not_finite() -> None:
    finite, nan = enclosure([[1.0]]), enclosure([[math.nan]], kinds=NAN)
    number = torch.tensor([[1.0]], dtype=torch.bfloat16)
    lost = torch.tensor([[math.nan]], dtype=torch.bfloat16)
    # What the reference oracle got wrong is not the candidate's mistake.
    assert kinds_of(judged([[5.0]], pair(finite, lost, finite))) == []
    # What is certain of the candidate is demanded whatever the other one says.
    assert kinds_of(judged([[1.0]], pair(nan, number, finite))) == ["must_be_nonfinite"]
    assert kinds_of(judged([[math.nan]], pair(nan, number, finite))) == []
    # What its own recipe bounds, and the other's does not, cannot be compared.
    assert kinds_of(judged([[5.0]], pair(finite, lost, nan))) == []
    # A candidate against itself: only where both are finite.
    assert kinds_of(judged([[1.0]], twice(nan, lost))) == []
    assert kinds_of(judged([[math.nan]], twice(finite, number))) == ["must_be_finite"]


def test_rounding_of_the_sum_of_radii_is_no_finding() -> None:
    # 0.1 + 0.2 in float64: neither the radii nor the difference are exact.
    first, second = enclosure([[0.0]], hard=0.1, sharp=0.1), enclosure([[0.3]], hard=0.2, sharp=0.2)
    answer = torch.tensor([[0.3 + 0.2]], dtype=torch.float64)
    allowed = pair(first, answer, second)
    assert judge(torch.tensor([[-0.1]], dtype=torch.float64), allowed, NUMERICS).breaches == ()


def test_bit_equality() -> None:
    def difference(got: list[float], expected: list[float], *, signed_zero: bool = False) -> str | None:
        first, second = (torch.tensor([values], dtype=torch.bfloat16) for values in (got, expected))
        breach = not_equal(first, second, signed_zero=signed_zero)
        return None if breach is None else breach.detail

    assert difference([1.0, math.nan, -0.0, math.inf], [1.0, math.nan, 0.0, math.inf]) is None
    assert difference([0.0], [-0.0], signed_zero=True) == ("1 of 1 elements differ, first [0, 0]: 0.0 instead of -0.0")
    assert difference([1.0, 2.0, 3.0], [1.0, 2.5, 4.0]) == ("2 of 3 elements differ, first [0, 1]: 2.0 instead of 2.5")
    assert difference([math.nan], [1.0]) is not None
    assert difference([math.inf], [-math.inf]) is not None
    assert difference([1.0], [1.0]) is None


def bits(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.bfloat16)


def test_what_is_told_of_bits_that_differ() -> None:
    breach = not_equal(bits(1.0, 2.0, 4.0), bits(1.0, 3.0, 2.0))
    assert breach is not None
    assert (breach.kind, breach.rate) == ("not_bit_equal", None)
    assert breach.detail == "2 of 3 elements differ, first [0, 1]: 2.0 instead of 3.0"
    assert breach.worst == Worst(token=0, column=1, got=2.0, center=3.0, hard=(3.0, 3.0), sharp=(3.0, 3.0), radius=0.0)
    assert breach.heat is not None


def test_the_sign_of_a_zero_counts_on_request_alone() -> None:
    plus, minus = bits(0.0, 1.0), bits(-0.0, 1.0)
    assert not_equal(plus, minus) is None
    assert not_equal(plus, minus, signed_zero=True) is not None
    assert not_equal(plus, plus, signed_zero=True) is None
    assert not_equal(bits(0.0, 2.0), bits(0.0, 3.0), signed_zero=True) is not None  # other differences still count


def test_a_nan_of_another_sign_is_the_same_nan() -> None:
    one = torch.tensor([[0x7FC0]], dtype=torch.int16).view(torch.bfloat16)
    other = torch.tensor([[-0x0040]], dtype=torch.int16).view(torch.bfloat16)
    assert other.isnan().all()
    assert not_equal(one, other, signed_zero=True) is None


def test_what_is_not_comparable_allows_anything_with_a_radius_of_zero() -> None:
    """Of two answers: the second one not finite, the first one's value not certain, the second one's not."""
    first = enclosure([[1.0, 1.0, 1.0, 1.0]], hard=0.5, sharp=0.25, kinds=[[FINITE, ANY, FINITE, FINITE]])
    second = enclosure([[1.0, 1.0, 1.0, 1.0]], hard=0.5, sharp=0.25, kinds=[[FINITE, FINITE, ANY, FINITE]])
    allowed = pair(first, bits(math.nan, 1.0, 1.0, 1.0), second)
    assert allowed.kinds.tolist() == [[ANY, ANY, ANY, FINITE]]
    assert allowed.kinds.dtype == torch.uint8
    assert allowed.hard[0, :3].tolist() == allowed.sharp[0, :3].tolist() == [0.0] * 3
    assert allowed.hard[0, 3] >= 1.0
    assert 0.5 <= allowed.sharp[0, 3] < 0.6


def test_wrong_elements_are_those_of_all_breaches() -> None:
    allowed = enclosure(
        [[1.0, 1.0, 1.0, 1.0, 0.0, 1.0]],
        hard=0.5,
        sharp=0.25,
        kinds=[[FINITE, FINITE, FINITE, FINITE, NAN, ANY]],
    )
    output = bits(1.25, 1.375, 2.0, math.inf, 0.0, 9.0)  # inside, implausible, impossible, lost, kept, anything
    assert wrong(output, allowed).tolist() == [[False, True, True, True, True, False]]


@pytest.mark.parametrize(
    ("output", "allowed", "kind", "detail", "radius", "heat"),
    [
        (
            [[math.nan, 4.0], [4.0, 4.0]],
            enclosure([[4.0, 4.0], [4.0, 4.0]]),
            "must_be_finite",
            "1 of 4 elements in 1 of 2 rows are not finite: [0, 0] = nan, expected 4",
            0.0,
            ("#.", ".."),
        ),
        (
            [[4.0, 4.0]],
            enclosure([[0.0, 4.0]], kinds=[[POS_INF | NEG_INF, FINITE]]),
            "must_be_nonfinite",
            "1 of 2 elements in 1 of 1 rows hide a non-finite value: [0, 0] = 4, expected NaN or infinity",
            0.0,
            ("#.",),
        ),
        (
            [[4.0, 4.0]],
            enclosure([[0.0, 4.0]], kinds=[[NAN, FINITE]]),
            "must_be_nonfinite",
            "1 of 2 elements in 1 of 1 rows hide a non-finite value: [0, 0] = 4, expected NaN",
            0.0,
            ("#.",),
        ),
        (
            [[0.5, 0.25]],
            enclosure([[0.25, 0.25]]),
            "impossible",
            "1 of 2 elements in 1 of 1 rows are impossible: [0, 0] = 0.5, expected exactly 0.25, "
            "off by 0.25 (1 of rms)",
            0.0,
            ("7.",),
        ),
        (
            [[0.5, 0.25]],
            enclosure([[0.25, 0.25]], hard=0.0625, sharp=0.03125),
            "impossible",
            "1 of 2 elements in 1 of 1 rows are impossible: [0, 0] = 0.5, expected 0.25 +- 0.0625, "
            "off by 0.25 (1 of rms), 4 radii",
            0.0625,
            ("6.",),
        ),
        (
            [[0.3125, 0.25]],
            enclosure([[0.25, 0.25]], hard=0.125, sharp=0.03125),
            "implausible",
            "1 of 2 elements in 1 of 1 rows are implausible: [0, 0] = 0.3125, expected 0.25 +- 0.0312, "
            "off by 0.0625 (0.25 of rms), 2 radii, not calibrated",
            0.03125,
            ("6.",),
        ),
        (
            [[0.5]],
            enclosure([[0.0]]),
            "impossible",
            "1 of 1 elements in 1 of 1 rows are impossible: [0, 0] = 0.5, expected exactly 0, off by 0.5",
            0.0,
            ("6",),
        ),
    ],
)
def test_what_is_told_of_a_breach(output, allowed, kind, detail, radius, heat) -> None:
    (breach,) = judged(output, allowed).breaches
    assert (breach.kind, breach.detail, breach.heat) == (kind, detail, heat)
    assert breach.worst is not None
    assert (breach.worst.token, breach.worst.column, breach.worst.radius) == (0, 0, radius)


def test_statistics_of_a_single_element() -> None:
    stats = judged([[1.5]], enclosure([[1.0]], hard=0.75, sharp=0.625)).stats
    assert (stats.elements, stats.compared, stats.exact, stats.mismatches) == (1, 1, 0, 0)
    assert (stats.median_ratio, stats.max_ratio) == (0.8, 0.8)
    assert stats.median_ratio_hard == stats.max_ratio_hard == pytest.approx(2 / 3)
    assert (stats.rms, stats.mean_radius) == (1.0, 0.625)


def test_there_is_no_ratio_where_all_is_exact() -> None:
    stats = judged([[1.0, 2.0]], enclosure([[1.0, 2.0]])).stats
    assert (stats.median_ratio, stats.max_ratio, stats.median_ratio_hard, stats.max_ratio_hard) == (None,) * 4


def test_the_worst_implausible_value_is_the_one_furthest_outside() -> None:
    """Not the one with the largest radius, though error and radius sum to more there."""
    allowed = enclosure([[1.0, 1.0]], hard=9.0, sharp=[[0.25, 2.0]])
    worst = judged([[2.0, 3.25]], allowed).breaches[0].worst
    assert worst is not None
    assert worst.column == 0


# --- where it is wrong, as a picture ---------------------------------------------------------------------------------


def test_a_picture_of_what_differs_is_in_units_of_the_expected_rms() -> None:
    expected = torch.tensor([[100.0, 100.0], [100.0, 100.0]])
    got = torch.tensor([[100.0, 101.0], [100.0, 90.0]])
    breach = not_equal(got, expected)
    assert breach is not None
    assert breach.heat == (".5", ".6")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_has_no_part_in_the_rms(value: float) -> None:
    """Without it the rms is 0, and 1 is taken; were it 1, and the rms 1/2, 0.07 would be a step further."""
    expected = torch.tensor([[value, 0.0, 0.0, 0.0]])
    breach = not_equal(torch.tensor([[value, 0.07, 0.0, 0.0]]), expected)
    assert breach is not None
    assert breach.heat == (".5..",)


@pytest.mark.parametrize(
    ("got", "hard", "sharp", "picture"),
    [
        (1.25, 8.0, 0.125, ("6",)),  # 0.125 beyond the sharp radius
        (12.0, 10.984375, 0.0, ("5",)),  # 0.016 beyond the hard one
    ],
)
def test_a_picture_shows_how_far_beyond_the_radius_that_is_broken(
    got: float, hard: float, sharp: float, picture: tuple[str, ...]
) -> None:
    assert judged([[got]], enclosure([[1.0]], hard=hard, sharp=sharp)).breaches[0].heat == picture


@pytest.mark.parametrize(("got", "kind"), [(math.inf, FINITE), (math.nan, FINITE), (1.0, NAN), (1.0, POS_INF)])
def test_a_picture_of_confused_kinds_has_no_digits(got: float, kind: int) -> None:
    assert judged([[got, 0.0]], enclosure([[0.0, 0.0]], kinds=[[kind, FINITE]])).breaches[0].heat == ("#.",)
