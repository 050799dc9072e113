"""The steps of the reference one by one, on values that are written down: what each leaves open, and no more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracles import formats, reference
from oracles.ball import HARD, SHARP, Ball, exact, kinds_of, rounded
from oracles.enclosure import ANY, FINITE, NAN, NEG_INF, POS_INF, Enclosure
from oracles.matmul import matmul
from oracles.numerics import Accumulator, Numerics, Transcendental
from oracles.problem import Problem, build
from oracles.reference import Reference, enclose
from strategies.scenario import (
    DuplicateSlot,
    Execution,
    Layer,
    MaskRow,
    Parallel,
    Routing,
    Scenario,
    Shape,
    ValueEdit,
    Values,
)

U = 2.0**-24
TINY = 2.0**-126
LEAST = 2.0**-149
MOST = formats.MAX_FINITE["float32"]
FLUSHES = Transcendental(flush_to_zero=True)


def double(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ball(center: torch.Tensor, hard: float | torch.Tensor = 0.0, sharp: float | torch.Tensor = 0.0) -> Ball:
    each = [torch.as_tensor(radius, dtype=torch.float64).expand(center.shape) for radius in (hard, sharp, sharp)]
    return Ball(
        center=center, radius=torch.stack(each), kinds=None if bool(center.isfinite().all()) else kinds_of(center)
    )


def one_expert(slots: int, tokens: int = 1, **rest: Any) -> Problem:
    """Every slot is of the only expert."""
    edits = tuple(DuplicateSlot(token=t, slot=s, source=0) for t in range(tokens) for s in range(1, slots))
    shape = Shape(tokens=tokens, experts=slots, top_k=slots)
    return build(Scenario(shape=shape, routing=Routing(edits=edits), **rest))


def weighted(problem: Problem, *weights: float) -> Problem:
    """The router weights of every row."""
    return dataclasses.replace(problem, topk_weights=torch.tensor([weights]).expand(problem.tokens, -1).contiguous())


def summed(problem: Problem, answers: list[float], numerics: Numerics | None = None) -> Ball:
    """The final sum over the slots of one row, whose experts' answers are given; all H columns alike."""
    routes = reference._Routes(problem)
    pairs = exact(double(*answers)[routes.slot, None].expand(-1, problem.hidden).contiguous())
    order = (routes.token * len(answers) + routes.slot).argsort()
    out = reference._summed(problem, numerics or Numerics(), routes, pairs, order)
    assert torch.equal(out.center, out.center[:, :1].expand_as(out.center))
    return out


# --- the final sum, slot by slot -------------------------------------------------------------------------------------


def in_order(terms: Ball, *, fused: bool = True, slots: int | None = None, smallest: float = LEAST) -> Ball:
    """The sum of all terms [S, 1] as one token's."""
    places = torch.arange(len(terms.center))[None]
    return reference._in_order(terms, places, fused, slots or len(terms.center), smallest)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("slots", "smallest"), [(3, LEAST), (1 << 16, LEAST), (3, 2.0**-20)])
def test_each_product_and_each_partial_sum_may_be_off_by_u(slots: int, smallest: float, fused: bool) -> None:
    """docs/enclosures.md: u of each product (where it may be rounded) and of each partial sum, twice; an inherited
    error grows with 4 u for each slot; and what is below the smallest number that is not flushed may be lost."""
    products, hard, sharp = double(1.0, 2.0**-30, -0.25), double(0.5, 0.125, 0.0), double(0.25, 0.0, 0.0)
    out = in_order(ball(products[:, None], hard[:, None], sharp[:, None]), fused=fused, slots=slots, smallest=smallest)
    sums = 1.0 + 2.0**-30, 0.75 + 2.0**-30
    rounding = U * ((1.25 + 2.0**-30) * fused + sum(sums))
    for radius, inherited in ((out.radius[HARD], 0.625), (out.radius[SHARP], 0.25)):
        assert radius.item() == pytest.approx(
            inherited * (1 + 4 * slots * U) + 2 * rounding + 2 * slots * smallest, rel=2.0**-50
        )
    assert out.center.item() == 0.75 + 2.0**-30
    assert out.radius.shape == (3, 1, 1)


def test_nothing_is_added_in_the_place_of_a_slot_that_is_empty() -> None:
    """Two tokens, of three slots and of one: the empty slots of the second round nothing."""
    terms = ball(double(1.0, 2.0**-30, 1.0, 1.0 + 2.0**-40)[:, None])
    places = torch.tensor([[0, 1, 2], [3, 4, 4]])
    out = reference._in_order(terms, places, True, 3, LEAST)
    alone = in_order(ball(double(1.0 + 2.0**-40)[:, None]), slots=3)
    assert out.radius[HARD, 1].item() == alone.radius[HARD].item()
    assert out.radius[HARD, 1].item() == pytest.approx(2 * U + 6 * LEAST, rel=2.0**-20)  # of the product alone


def test_numbers_of_float32_are_not_rounded_and_others_do_not_disturb_them() -> None:
    terms = ball(double(1.5, 0.25, 1.0, 2.0**-30)[:, None])
    out = reference._in_order(terms, torch.tensor([[0, 1], [2, 3]]), True, 2, LEAST)
    assert (out.radius[:, 0] == 0).all()
    assert (out.radius[:2, 1] > 0).all()


@pytest.mark.parametrize(("size", "open_"), [(TINY, False), (TINY / 2, True), (TINY * (1 + 2.0**-30), True)])
def test_what_is_flushed_is_not_exact(size: float, open_: bool) -> None:
    out = in_order(ball(double(size)[:, None]), smallest=TINY)
    assert bool((out.radius[HARD] > 0).all()) == open_


def test_a_sum_is_never_negative_zero() -> None:
    assert not in_order(ball(double(-0.0)[:, None])).center.signbit().any()


@pytest.mark.parametrize(
    ("share", "hard", "possible"),
    [
        (1 - 7 * U, 0.0, True),  # with 8 u: 4 for each of two slots
        (1 - 8.5 * U, 0.0, False),
        (1 - 5 * U, 0.0, True),
        (0.6, 0.0, False),
        (0.6, 0.5, True),
    ],
)
def test_a_partial_sum_that_may_pass_the_largest_float32_may_be_infinite(
    share: float, hard: float, possible: bool
) -> None:
    """Whatever the second term does; and another token is another sum."""
    terms = ball(double(share * MOST, 0.0, 0.5 * MOST, 0.0)[:, None], double(hard * MOST, 0.0, 0.0, 0.0)[:, None])
    out = reference._in_order(terms, torch.tensor([[0, 1], [2, 3]]), True, 2, LEAST)
    kinds = [FINITE, FINITE] if out.kinds is None else out.kinds.flatten().tolist()
    assert kinds == [ANY if possible else FINITE, FINITE]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((1.0, torch.inf), POS_INF),
        ((-torch.inf, 1.0), NEG_INF),
        ((torch.inf, -torch.inf), NAN),
        ((torch.nan, MOST), NAN),
        ((torch.inf, MOST), ANY),  # which may overflow, to an infinity of its own sign
    ],
)
def test_a_sum_with_what_is_not_finite(values: tuple[float, float], kind: int) -> None:
    terms = ball(double(*values)[:, None])
    finite = torch.where(terms.center.isfinite(), terms.center, 0.0)
    out = in_order(Ball(center=finite, radius=terms.radius, kinds=terms.kinds))
    assert out.kinds is not None
    assert out.kinds.item() == kind


def test_a_product_may_be_rounded_before_it_is_added_or_not() -> None:
    """y (1 + 2**-23) - y: fused it is y 2**-23, unfused what float32 keeps of it."""
    y = 1 + 2.0**-7
    out = summed(weighted(one_expert(2), -1.0, 1 + 2.0**-23), [y, y])
    unfused = float(torch.tensor(y) * torch.tensor(1 + 2.0**-23)) - y
    assert out.center[0, 0].item() == y * 2.0**-23
    assert unfused != y * 2.0**-23
    assert (out.radius[:2, 0, 0] >= abs(unfused - y * 2.0**-23)).all()


def test_a_product_of_the_least_numbers_may_be_rounded_onto_a_tie() -> None:
    """2**-151 below the middle of two bfloat16 numbers, which float32 cannot tell from it."""
    out = summed(weighted(one_expert(1), 78643 * 2.0**-100), [5 * 2.0**-51])
    assert out.center[0, 0].item() == 2.0**-133
    assert float((torch.tensor(78643 * 2.0**-100) * torch.tensor(5 * 2.0**-51)).bfloat16()) == 2.0**-132
    assert (out.radius[:2, 0, 0] == 2.0**-133).all()


@pytest.mark.parametrize("flush", [False, True])
def test_three_subnormal_products_whose_sum_is_not_may_all_be_flushed(flush: bool) -> None:
    numerics = Numerics(activation=Transcendental(flush_to_zero=flush))
    out = summed(weighted(one_expert(3), *[2.0**-100] * 3), [0.75 * 2.0**-26] * 3, numerics)
    assert out.center[0, 0].item() == 2.25 * TINY
    assert (out.radius[:2, 0, 0] >= 2.25 * TINY).all() == flush


def test_a_subnormal_float16_output_may_be_flushed() -> None:
    numerics = Numerics(activation=FLUSHES)
    out = summed(weighted(one_expert(1, output_dtype="float16"), 1.0), [2.0**-20], numerics)
    assert (out.radius[:2, 0, 0] == 2.0**-20).all()


@pytest.mark.parametrize("flush", [False, True])
def test_a_subnormal_float16_product_may_be_flushed_where_the_gemm_flushes(flush: bool) -> None:
    numerics = Numerics(weighted="float16", gemm2=Accumulator(flush_to_zero=flush))
    out = summed(weighted(one_expert(1), 2.0**-20), [1.0], numerics)
    assert (out.radius[:2, 0, 0] >= 2.0**-20).all() == flush


def test_slots_are_added_in_their_order() -> None:
    """2**30 - 2**30 + 1 rounds nothing; from the other end it would."""
    problem = weighted(one_expert(3), 2.0**30, -(2.0**30), 1.0)
    alone = enclose(weighted(one_expert(1), 1.0), Numerics())
    out = enclose(problem, Numerics())
    assert (out.hard == 0).all()
    assert torch.equal(out.center, alone.center)


# --- router weight times answer --------------------------------------------------------------------------------------


def times(weight: float, answer: float, *, hard: float = 0.0, flush: bool = False) -> Ball:
    center = double(answer)[:, None]
    special = not bool(torch.isfinite(double(weight, answer)).all())
    return reference._weighted(
        ball(center, hard, hard), torch.tensor([0]), double(weight)[:, None], special, flush_to_zero=flush
    )


def kind_of(out: Ball) -> int:
    return FINITE if out.kinds is None else int(out.kinds.item())


@pytest.mark.parametrize(("weight", "radius"), [(TINY / 2, 3 * TINY / 2), (TINY, TINY * 0.25), (-2.0, 0.5)])
def test_only_a_subnormal_weight_may_be_read_as_zero(weight: float, radius: float) -> None:
    out = times(weight, 3.0, hard=0.25, flush=True)
    assert out.center.item() == 3 * weight
    assert (out.radius[:2] == radius).all()


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize(("weight", "answer"), [(TINY / 2, torch.inf), (torch.inf, TINY / 2)])
def test_an_infinity_times_what_may_be_read_as_zero_may_be_nan(weight: float, answer: float, flush: bool) -> None:
    assert kind_of(times(weight, answer)) == POS_INF
    assert (kind_of(times(weight, answer, flush=flush)) & NAN != 0) == flush


@pytest.mark.parametrize(
    ("weight", "answer", "kind", "center"),
    [
        (torch.nan, 1.0, NAN, torch.nan),
        (torch.inf, 2.0, POS_INF, torch.inf),
        (-torch.inf, 2.0, NEG_INF, -torch.inf),
        (0.0, torch.inf, NAN, torch.nan),
        (2.0, -torch.inf, NEG_INF, -torch.inf),
        (2.0, torch.nan, NAN, torch.nan),
    ],
)
def test_a_product_with_what_is_not_finite(weight: float, answer: float, kind: int, center: float) -> None:
    out = times(weight, answer, hard=0.5)
    assert kind_of(out) == kind
    assert out.center.item() == pytest.approx(center, nan_ok=True)
    assert (out.radius == 0).all()


def test_answers_of_several_experts_are_joined() -> None:
    """Some of them may have no kinds."""
    out = reference._joined([ball(double(1.0)[:, None], 0.5), ball(double(torch.inf, 2.0)[:, None])])
    assert out.center.flatten().tolist() == [1.0, torch.inf, 2.0]
    assert out.radius[HARD].flatten().tolist() == [0.5, 0.0, 0.0]
    assert out.kinds is not None
    assert out.kinds.flatten().tolist() == [FINITE, POS_INF, FINITE]


# --- several ranks ---------------------------------------------------------------------------------------------------

BF16 = build(Scenario(shape=Shape(tokens=1)))


def reduced(*partials: Ball) -> Ball:
    return reference._all_reduced(list(partials), BF16)


def apart(*values: float, hard: float = 0.0) -> list[Ball]:
    return [ball(double(value)[:, None], hard) for value in values]


def test_two_ranks_leave_open_what_they_leave_themselves() -> None:
    out = reduced(*apart(1.0, 2.0**-3, hard=2.0**-9))
    want = rounded(ball(double(1.125)[:, None], 2.0**-8), "bfloat16")
    assert torch.equal(out.center, want.center)
    assert torch.equal(out.radius, want.radius)


@pytest.mark.parametrize(("zeros", "hard"), [(0, 0.0), (2, 0.0), (0, 0.25)])
def test_each_addition_but_the_last_errs_by_u_of_the_sum_of_magnitudes(zeros: int, hard: float) -> None:
    """(1 + u)**(n - 2) - 1 with n partial sums that are not 0, and no more than that."""
    values = 1.0, -3.0, 2.0**-5, 4.0
    out = reduced(*apart(*values, hard=hard), *apart(*[0.0] * zeros))
    grown = ((1 + 2.0**-8) ** 2 - 1) * (8 + 2.0**-5 + 4 * hard)
    want = [rounded(ball(double(2 + 2.0**-5)[:, None], grown * f + 4 * hard), "bfloat16") for f in (1, 1 + 2.0**-20)]
    assert out.center.item() == want[0].center.item()
    assert want[0].radius[HARD].item() <= out.radius[HARD].item() <= want[1].radius[HARD].item()
    assert want[0].radius[HARD].item() == want[1].radius[HARD].item(), "or the test says nothing"
    sharp = rounded(ball(double(2 + 2.0**-5)[:, None], grown), "bfloat16").radius[HARD]
    assert out.radius[SHARP].item() == sharp.item()


def test_what_may_be_something_takes_part_and_each_column_is_a_sum_of_its_own() -> None:
    partials = [ball(double([1.0, 64.0])), ball(double([1.0, 64.0])), ball(double([0.0, 0.0]), double([2.0**-6, 0.0]))]
    out = reference._all_reduced(partials, BF16)
    first = rounded(ball(double(2.0), 2.0**-6 + 2.0**-8 * (2 + 2.0**-6)), "bfloat16").radius[HARD]
    assert first.item() > rounded(ball(double(2.0), 2.0**-6), "bfloat16").radius[HARD].item()
    assert out.radius[HARD].tolist() == [[first.item(), 0.0]]


@pytest.mark.parametrize(("last", "kind"), [(0.26, ANY), (0.25, ANY), (0.24, FINITE)])
def test_a_partial_sum_of_ranks_may_overflow(last: float, kind: int) -> None:
    """The magnitudes, with what the additions add, pass the largest bfloat16 and the sum does not; two ranks have no
    partial sum."""
    most = formats.MAX_FINITE["bfloat16"]
    values = [float(torch.tensor(share * most).bfloat16()) for share in (0.74, last, -last * 0.03)]
    assert kind_of(reduced(*apart(*values, 0.0))) == kind
    assert kind_of(reduced(*apart(0.9 * most, -0.9 * most))) == FINITE


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ((torch.inf, 1.0, 1.0), POS_INF),
        ((1.0, torch.inf, -torch.inf), NAN),
        ((torch.nan, 1.0, 3e38, 3e38), NAN),
        ((-torch.inf, 3e38, 3e38, 1.0), ANY),
    ],
)
def test_ranks_whose_sums_are_not_finite(values: tuple[float, ...], kind: int) -> None:
    assert kind_of(reduced(*apart(*values))) == kind


def test_a_rank_that_is_not_finite_takes_part_in_the_additions() -> None:
    """Of other columns the sums stay what they are: of three numbers, and of two and a 0."""
    partials = [ball(double([value, 1.0, zero])) for value, zero in ((torch.inf, 0.0), (1.0, 1.0), (1.0, 1.0))]
    out = reference._all_reduced(partials, BF16)
    assert out.kinds is not None
    assert out.kinds.tolist() == [[POS_INF, FINITE, FINITE]]
    assert out.center.tolist() == [[torch.inf, 3.0, 2.0]]
    three = rounded(ball(double(3.0), 3 * 2.0**-8), "bfloat16").radius[HARD].item()
    assert out.radius[HARD].tolist() == [[0.0, three, 0.0]]


def test_ranks_all_of_which_are_not_finite_somewhere() -> None:
    values = [torch.inf, 1.0], [1.0, torch.nan], [torch.inf, 1.0]
    out = reference._all_reduced([ball(double(value)) for value in values], BF16)
    assert out.kinds is not None
    assert out.kinds.tolist() == [[POS_INF, NAN]]


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_are_what_shards_of_the_layer_answer(ranks: int) -> None:
    whole = Scenario(shape=Shape(tokens=6, hidden=64, intermediate=64, experts=8, top_k=4))
    problem = build(whole)
    partials = []
    for rank in range(ranks):
        shard = build(dataclasses.replace(whole, parallel=Parallel(ep_size=ranks, ep_rank=rank)))
        routed = dataclasses.replace(shard, topk_ids=problem.topk_ids, topk_weights=problem.topk_weights)
        answer = enclose(routed, Numerics())
        partials.append(ball(answer.center, answer.hard, answer.sharp))
    want = reference._all_reduced(partials, problem)
    out = enclose(problem, Numerics(ranks=ranks))
    assert torch.equal(out.center, want.center)
    assert torch.equal(out.hard, want.radius[HARD])
    assert torch.equal(out.sharp, want.radius[SHARP])
    assert bool((out.kinds == FINITE).all())


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "spread", "subnormal"),
    [(100, 112, False, False), (100, 113, True, False), (2, 2, False, False), (1, 2, False, True)],
)
def test_what_is_said_of_weights(low: int, high: int, spread: bool, subnormal: bool) -> None:
    """0.5 and 6 differ by a factor of 12; half of 2**(1 - 127) is the first that is subnormal."""
    packed = torch.full((1, 2, 32), 0x21, dtype=torch.uint8)
    scale = torch.tensor([[[low, low], [high, low]]], dtype=torch.uint8)
    weight = reference._dequantized(packed, scale, (low, high), Numerics())
    assert torch.equal(weight.value, formats.mxfp4_dequantize(packed, scale))
    assert weight.unit.tolist() == [[2.0 ** (low - 128)] * 2]
    assert (weight.spread, weight.subnormal, weight.kinds, weight.scale) == (spread, subnormal, None, None)
    held = reference._dequantized(packed, scale, (low, high), Numerics(weights="exact")).scale
    assert held is not None
    assert held.tolist() == [[[2.0 ** (low - 127)] * 2, [2.0 ** (high - 127), 2.0 ** (low - 127)]]]


def test_weights_that_no_dtype_holds_are_zero_beside_their_kinds() -> None:
    packed = torch.full((1, 1, 16), 0x72, dtype=torch.uint8)  # 1 and 6
    weight = reference._dequantized(packed, torch.full((1, 1, 1), 254, dtype=torch.uint8), (254, 254), Numerics())
    assert weight.kinds is not None
    assert weight.kinds.unique().tolist() == [FINITE, POS_INF]
    assert weight.value[0, 0, :2].tolist() == [2.0**127, 0.0]


# --- biases and roundings --------------------------------------------------------------------------------------------


def after_gemm(value: Ball, bias: float | None, dtype: Any, numerics: Numerics, acc: Accumulator | None = None) -> Ball:
    held = None if bias is None else torch.tensor([[bias]])
    return reference._biased_and_rounded(value, held, numerics, acc or Accumulator(), dtype)


def test_the_accumulator_is_float32_already() -> None:
    value = ball(double([[1 + 2.0**-40]]), 2.0**-30)
    assert after_gemm(value, None, "float32", Numerics()) is value


@pytest.mark.parametrize("flush", [False, True])
def test_a_subnormal_result_may_be_flushed_where_the_gemm_flushes(flush: bool) -> None:
    out = after_gemm(ball(double([[2.0**-20]])), None, "float16", Numerics(), Accumulator(flush_to_zero=flush))
    assert (out.radius[:2] == (2.0**-20 if flush else 0.0)).all()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("flush", [False, True])
def test_a_subnormal_sum_with_a_bias_may_be_flushed_where_the_activation_flushes(flush: bool, before: bool) -> None:
    numerics = Numerics(activation=Transcendental(flush_to_zero=flush), bias_before_rounding=before)
    out = after_gemm(ball(double([[TINY]])), -TINY / 2, "bfloat16", numerics)
    assert out.center.item() == TINY / 2
    assert (out.radius[:2] == (TINY / 2 if flush else 0.0)).all()


@pytest.mark.parametrize("flush", [False, True])
def test_a_subnormal_intermediate_may_be_flushed_where_the_activation_flushes(
    flush: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An activation of 2**-20, as float16, which a large scale of w2 makes visible."""
    small = torch.full((1, 1, 32), 2.0**-20, dtype=torch.float64)
    monkeypatch.setattr(reference.activations, "apply", lambda *_: ball(small))
    problem = build(Scenario(shape=Shape(tokens=1), values=Values(rule="one_hot")))
    numerics = Numerics(activation=Transcendental(flush_to_zero=flush), intermediate="float16", gemm2_output="float32")
    out = enclose(problem, numerics)
    seen = out.center.abs() > 2.0**-30
    assert bool(seen.any())
    assert bool((out.hard[seen] >= out.center[seen].abs() / 2).all()) == flush


def test_a_step_in_the_outputs_dtype_is_in_the_scenarios() -> None:
    problem = build(Scenario(shape=Shape(tokens=4, hidden=64, intermediate=64), output_dtype="float16"))
    steps = ("gemm1_output", "intermediate", "gemm2_output")
    named, given = (enclose(problem, Numerics(**dict.fromkeys(steps, dtype))) for dtype in ("output", "float16"))
    assert same(named, given)
    assert not same(given, enclose(problem, Numerics()))


def same(first: Enclosure, second: Enclosure) -> bool:
    return all(
        torch.equal(getattr(first, name), getattr(second, name)) for name in ("center", "hard", "sharp", "kinds")
    )


# --- what the GEMMs are told -----------------------------------------------------------------------------------------


def recorded(monkeypatch: pytest.MonkeyPatch) -> tuple[list[dict[str, Any]], list[tuple[Ball, Ball]]]:
    """What each call of `matmul` is told, and what each `_biased_and_rounded` makes of what; filled by `enclose`."""
    told: list[dict[str, Any]] = []
    steps: list[tuple[Ball, Ball]] = []
    round_: Callable[..., Ball] = reference._biased_and_rounded

    def multiply(x: Ball, weight: Any, acc: Accumulator, correlated: Any = None, undecided: Any = None) -> Ball:
        told.append({"correlated": correlated, "undecided": undecided})
        return matmul(x, weight, acc, correlated, undecided)

    def biased(value: Ball, *rest: Any) -> Ball:
        steps.append((value, round_(value, *rest)))
        return steps[-1][1]

    monkeypatch.setattr(reference, "matmul", multiply)
    monkeypatch.setattr(reference, "_biased_and_rounded", biased)
    return told, steps


@pytest.mark.parametrize("before", [False, True])
def test_effort_is_spent_where_a_rounding_leaves_something_open(before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told, steps = recorded(monkeypatch)
    layer = Layer(biases="per_expert")
    problem = build(Scenario(shape=Shape(tokens=16, hidden=64, intermediate=64, experts=2), layer=layer))
    coarse = Accumulator(unit_roundoff=2.0**-18, exact_bits=18)
    enclose(problem, Numerics(gemm1=coarse, gemm2=coarse, bias_before_rounding=before))
    assert len(told) == len(steps) == 2
    for one, (value, out) in zip(told, steps, strict=True):
        undecided = one["undecided"](value.center, value.radius[HARD])
        # A bias that is added to what was rounded is rounded once more, to float32: that decides nothing.
        open_ = out.radius[HARD] > 0
        assert bool(undecided.any())
        assert not bool(undecided.all())
        assert torch.equal(undecided, open_)


def test_no_rounding_follows_a_gemm_whose_result_stays_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = recorded(monkeypatch)
    enclose(BF16, Numerics(gemm1_output="float32", gemm2_output="float32"))
    assert [one["undecided"] for one in told] == [None, None]


@pytest.mark.parametrize(("quantizer", "block"), [("none", 1), ("mxfp8", 32)])
def test_elements_under_one_scale_of_a_quantizer_move_together(
    quantizer: Any, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, _ = recorded(monkeypatch)
    enclose(BF16, Numerics(intermediate_quantizer=quantizer))
    assert [one["correlated"] and one["correlated"].block for one in told] == [None, block]


def repeated(gate: list[float], up: list[float], uncertain: list[bool]) -> list[bool]:
    a = ball(torch.zeros(1, 1, len(gate), dtype=torch.float64), torch.tensor(uncertain).double()[None, None])
    return reference._repeated(ball(double([[*gate, *up]])), a).flatten().tolist()


UP = [1.1, 1.3, 1.7, 1.9]


@pytest.mark.parametrize(
    ("gate", "uncertain", "found"),
    [
        ([1.5, 1.25, 1.5, 1.75], [True] * 4, [True, False, True, False]),
        ([1.5, 1.25, 1.5, 1.75], [False, True, True, True], [False, False, True, False]),
        ([1.5, 1.25, 1.25, 1.75], [True] * 4, [False, True, True, False]),
        ([1.5, 1.75, 1.25, 1.75], [True] * 4, [False, True, False, True]),  # the largest is as good as the least
        ([1.5, 1.25, -3.0, 1.75], [True] * 4, [True, False, True, False]),  # sign and power of two
        ([1.5, 1.25, 1.5 + 2.0**-26, 1.75], [True] * 4, [False] * 4),
        ([1.5, 1.25, 1.5 + 2.0**-27, 1.75], [True] * 4, [True, False, True, False]),  # rounded alike, most likely
    ],
)
def test_significands_tell_sums_of_the_same_numbers(
    gate: list[float], uncertain: list[bool], found: list[bool]
) -> None:
    assert repeated(gate, UP, uncertain) == found
    assert repeated(UP, gate, uncertain) == found


# --- as a whole ------------------------------------------------------------------------------------------------------


def test_no_token_and_no_expert_of_this_rank_is_exact() -> None:
    for tokens in (0, 2):
        masked = Routing(edits=tuple(MaskRow(token=token) for token in range(tokens)))
        out = enclose(build(Scenario(shape=Shape(tokens=tokens), routing=masked)), Numerics())
        assert {tensor.dtype for tensor in (out.center, out.hard, out.sharp)} == {torch.float64}
        assert out.kinds.dtype == torch.uint8


def test_the_reference_answers_nan_where_some_value_that_is_not_finite_must_come() -> None:
    """Sums that overflow, of either sign, and then meet."""
    edits = (ValueEdit(tensor="hidden_states", index=(0, 0), value="max"),)
    problem = build(Scenario(values=Values(scale_low=118, scale_high=150, edits=edits)))
    kinds = enclose(problem, Reference.numerics).kinds
    y = Reference()(problem)
    undecided = (kinds & FINITE == 0) & (kinds & (kinds - 1) != 0)
    assert bool(undecided.any())
    assert bool(y[undecided].isnan().all())
    assert bool(y[kinds == FINITE].isfinite().all())


def test_the_reference_promises_what_its_capability_does() -> None:
    assert Reference().unsupported(Scenario()) is None
    assert Reference().unsupported(Scenario(execution=Execution(mode="graph"))) == "execution mode graph"
