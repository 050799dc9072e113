"""The router: its scenarios, its tensors, what a right one may answer, and how a table is judged."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from typing import get_args

import pytest
import torch
from hypothesis import given, settings

from difftest.engine import check
from difftest.judging.outcome import Outcome, Verdict
from difftest.output.describe import scenario_line
from difftest.router.judge import judge_table
from difftest.shrinking import moves
from difftest.shrinking.complexity import complexity, covers
from oracles.router_numerics import RouterNumerics
from oracles.router_problem import RoutingTable, build
from oracles.router_reference import enclose
from oracles.router_torch import RouterTorch
from strategies import RouterCapability, RouterScenario, RouterShape, Scores, router_scenarios
from strategies.plain import InvalidScenario
from strategies.reading import read
from strategies.router import BiasRule, Logits, LogitsDtype, LogitsRule, SetBias, SetLogit, SetRow, TieExperts
from strategies.scenario import Scenario

LAST = RouterNumerics(nan="last")


def scenario(*, tokens=1, experts=4, top_k=2, groups=1, topk_groups=1, edits=(), rule="normal", **scores):
    shape = RouterShape(tokens=tokens, experts=experts, top_k=top_k, groups=groups, topk_groups=topk_groups)
    return RouterScenario(shape=shape, scores=Scores(**scores), logits=Logits(rule=rule, edits=edits))


def logits_of(values, **more):
    """A scenario of one token whose logits are `values`."""
    edits = tuple(SetLogit(token=0, expert=expert, value=float(value)) for expert, value in enumerate(values))
    return scenario(experts=len(values), edits=(*edits, *more.pop("edits", ())), **more)


def kinds(given, ids, weights=None, numerics=LAST):
    """Kinds of breaches of a table of one token. weights: the right ones by default."""
    enclosure = enclose(build(given), numerics)
    ids = torch.tensor([ids], dtype=torch.int32)
    if weights is None:
        weights = enclosure.weights(ids.long().clamp(0, given.shape.experts - 1)).center.float()
    else:
        weights = torch.tensor([weights], dtype=torch.float32)
    return [breach.kind for breach in judge_table(RoutingTable(ids, weights), enclosure).breaches]


# --- the scenario --------------------------------------------------------------------------------------------------


@given(router_scenarios(profile="default"))
@settings(max_examples=60, deadline=None)
def test_json_round_trip(drawn):
    assert read(drawn.to_json()) == drawn
    assert type(read(drawn.to_json())) is RouterScenario


def test_a_layers_scenario_is_still_read_as_one():
    assert type(read(Scenario().to_json())) is Scenario


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"version": 1, "kind": "gate"}, "kind = 'gate': must be 'router', or left out"),
        ({"version": 2, "kind": "router"}, "version = 2: must be 1"),
        ({"version": 1, "kind": "router", "shape": {"experts": 4, "groups": 3}}, "shape.groups = 3: must be a divisor"),
        (
            {"version": 1, "kind": "router", "shape": {"experts": 4, "top_k": 5}},
            "shape.top_k = 5: must be an integer in",
        ),
        (
            {"version": 1, "kind": "router", "shape": {"experts": 4, "groups": 2, "top_k": 3}},
            r"shape.top_k = 3: .*\[1, 2\]",
        ),
        ({"version": 1, "kind": "router", "scores": {"scoring": "tanh"}}, "scores.scoring = 'tanh': must be one of"),
        (
            {"version": 1, "kind": "router", "logits": {"edits": [{"edit": "set_row", "token": 1, "value": "nan"}]}},
            r"logits.edits\[0\].token = 1: must be an integer in \[0, 0\]",
        ),
        ({"version": 1, "kind": "router", "hidden": 32}, "hidden = 32: must be left out"),
    ],
)
def test_a_damaged_one_is_refused_by_field(data, message):
    with pytest.raises(InvalidScenario, match=message):
        read(data)


@pytest.mark.parametrize(
    "capability",
    [
        RouterCapability(),
        RouterCapability(scorings=frozenset({"sigmoid"}), unbiased=frozenset(), grouped=False, non_finite=False),
        RouterCapability(biased=frozenset({"sigmoid"}), dtypes=frozenset({"bfloat16"}), most_experts=33, most_top_k=3),
        RouterCapability(empty_batch=False, routed_scaling_factor=False),
    ],
)
@pytest.mark.parametrize("profile", ["quick", "real"])
def test_nothing_is_drawn_that_is_not_promised(capability, profile):
    @given(router_scenarios(capability, profile=profile))
    @settings(max_examples=40, deadline=None)
    def run(drawn):
        assert capability.objection(drawn) is None

    run()


@given(router_scenarios(profile="quick"))
@settings(max_examples=30, deadline=None)
def test_moves_stay_valid_and_covers_is_reflexive(drawn):
    for move in moves.moves(drawn):
        for simpler in move:
            assert read(simpler.to_json()) == simpler
    assert covers(drawn, drawn)
    assert not covers(drawn, Scenario())
    assert not covers(Scenario(), drawn)
    assert complexity(RouterScenario()) <= complexity(drawn)


def test_its_line():
    given = scenario(groups=2, topk_groups=1, bias="normal", edits=(SetRow(token=0, value=math.nan),))
    assert scenario_line(given) == (
        "M=1 E=4 K=2, 1 of 2 groups, scores(bias=normal), edits: set_row(token=0, value=nan)"
    )


# --- tensors -------------------------------------------------------------------------------------------------------


def test_edits_in_order():
    given = scenario(
        tokens=2,
        bias="zero",
        edits=(
            SetRow(token=1, value=3.0),
            SetLogit(token=1, expert=2, value=-math.inf),
            SetBias(expert=2, value=5.0),
            TieExperts(token=1, expert=0, source=2),
        ),
    )
    problem = build(given)
    assert problem.logits[1].tolist() == [-math.inf, 3.0, -math.inf, 3.0]
    assert problem.bias.tolist() == [5.0, 0.0, 5.0, 0.0]


def test_content_does_not_depend_on_the_sizes():
    small, large = build(scenario(bias="normal")), build(scenario(tokens=3, experts=16, bias="normal"))
    assert torch.equal(small.logits, large.logits[:1, :4])
    assert torch.equal(small.bias, large.bias[:4])


def test_the_bits_are_pinned():
    """Changing them makes every saved case another test: raise `strategies.router.FORMAT_VERSION`."""
    digest = hashlib.sha256()
    for rule, bias, dtype in itertools.product(*map(get_args, (LogitsRule, BiasRule, LogitsDtype))):
        shape = RouterShape(tokens=3, experts=8)
        logits = Logits(rule=rule, dtype=dtype, seed=7)
        problem = build(RouterScenario(shape=shape, scores=Scores(bias=bias), logits=logits))
        for tensor in (problem.logits, problem.bias):
            if tensor is not None:
                digest.update(bytes(tensor.view(torch.uint8).flatten().tolist()))
    assert digest.hexdigest()[:16] == "06a3884303667591"


def test_negative_logits_have_no_sum_worth_a_division():
    problem = build(scenario(tokens=8, experts=32, rule="negative"))
    assert float(torch.sigmoid(problem.logits.double()).max()) < 1e-17
    assert bool((problem.logits < -88).any())


# --- the choice ----------------------------------------------------------------------------------------------------


def test_the_best_are_right_in_any_order_and_others_are_not():
    given = logits_of([0.0, 3.0, 1.0, 2.0])
    assert kinds(given, [1, 3]) == kinds(given, [3, 1]) == []
    assert kinds(given, [1, 2]) == ["wrong_expert"]


def test_experts_that_tie_stand_in_for_each_other():
    given = logits_of([1.0, 2.0, 1.0, 0.0])
    assert kinds(given, [1, 0]) == kinds(given, [1, 2]) == []
    assert kinds(given, [0, 2]) == kinds(given, [1, 3]) == ["wrong_expert"]


def test_scores_that_float32_cannot_tell_apart_tie():
    given = logits_of([60.0, 50.0, 40.0, 0.0], top_k=1)
    assert kinds(given, [2]) == []  # all are 1 in float32
    assert kinds(given, [3]) == ["wrong_expert"]


def test_neighbours_at_the_resolution_of_the_arithmetic_tie_and_further_ones_do_not():
    near = float(torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)))
    assert kinds(logits_of([1.0, near, 0.0]), [0, 2]) == ["wrong_expert"]
    assert kinds(logits_of([1.0, near, 0.0], top_k=1), [0]) == []
    assert kinds(logits_of([1.0, 1.00001, 0.0], top_k=1), [0]) == ["wrong_expert"]


def test_the_bias_chooses_and_does_not_weigh():
    given = logits_of([0.0, 1.0, 2.0, 3.0], bias="zero", edits=(SetBias(expert=0, value=1.0),), top_k=1)
    assert kinds(given, [0], [0.5]) == []
    assert kinds(given, [3]) == ["wrong_expert"]
    assert kinds(given, [0], [1.5]) == ["impossible"]


def test_ids_that_are_no_choice():
    given = logits_of([0.0, 3.0, 1.0, 2.0])
    assert kinds(given, [1, 4]) == kinds(given, [-1, 1]) == ["invalid_expert"]
    assert kinds(given, [1, 1]) == ["repeated_expert"]


def test_a_group_is_as_good_as_its_two_best_or_its_best_without_a_bias():
    logits = [3.0, -9.0, -9.0, 1.0, 1.0, 1.0]  # the best expert is of group 0, the best two are of group 1
    with_bias = logits_of(logits, groups=2, top_k=2, bias="zero")
    assert kinds(with_bias, [3, 4]) == []
    assert kinds(with_bias, [0, 3]) == kinds(with_bias, [0, 1]) == ["wrong_expert"]
    without = logits_of(logits, groups=2, top_k=2)
    assert kinds(without, [0, 2]) == []
    assert kinds(without, [3, 4]) == ["wrong_expert"]


def test_groups_that_tie_stand_in_for_each_other():
    given = logits_of([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], groups=3, top_k=1, bias="zero")
    assert kinds(given, [0]) == kinds(given, [3]) == []
    assert kinds(given, [4]) == ["wrong_expert"]
    both = logits_of([1.0, 1.0, 1.0, 1.0, 2.0, 2.0], groups=3, topk_groups=2, top_k=3, bias="zero")
    assert kinds(both, [4, 5, 0]) == kinds(both, [4, 5, 3]) == []
    assert kinds(both, [4, 0, 2]) == ["wrong_expert"]  # three groups
    assert kinds(both, [4, 0, 1]) == ["wrong_expert"]  # 5 is left out


def test_wrong_expert_names_the_one_that_was_left_out():
    given = logits_of([0.0, 3.0, 1.0, 2.0])
    enclosure = enclose(build(given), LAST)
    table = RoutingTable(torch.tensor([[1, 2]], dtype=torch.int32), torch.tensor([[0.9526, 0.7311]]))
    breach = judge_table(table, enclosure).breaches[0]
    assert (breach.worst.column, breach.worst.got, breach.worst.center) == (1, 2.0, 3.0)
    assert "[0, 1] is expert 2 with 0.731058" in breach.detail
    assert "left out was expert 3 with 0.880797" in breach.detail


# --- NaN -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nan", "right", "wrong"), [("last", [2], [1]), ("first", [1], [2]), ("any", [1], None)])
def test_where_a_nan_ranks(nan, right, wrong):
    given = logits_of([0.0, math.nan, 2.0], top_k=1)
    numerics = RouterNumerics(nan=nan)
    assert kinds(given, right, numerics=numerics) == []
    if wrong is not None:
        assert kinds(given, wrong, numerics=numerics) == ["wrong_expert"]
    else:
        assert kinds(given, [2], numerics=numerics) == []
    assert kinds(given, [0], numerics=numerics) == ["wrong_expert"]


def test_a_row_of_nan_must_still_be_a_choice():
    given = scenario(edits=(SetRow(token=0, value=math.nan),), renormalise=True)
    assert kinds(given, [3, 1], [math.nan, math.nan]) == []
    assert kinds(given, [0, 0], [math.nan, math.nan]) == ["repeated_expert"]
    assert kinds(given, [0, 1], [0.5, math.nan]) == ["must_be_nonfinite"]


def test_the_weight_beside_a_nan_is_open_where_it_is_divided_by_the_sum():
    given = logits_of([math.nan, 1.0], top_k=2, renormalise=True)
    assert kinds(given, [0, 1], [math.nan, math.nan]) == kinds(given, [0, 1], [math.nan, 0.3]) == []
    plain = logits_of([math.nan, 1.0], top_k=2)
    assert kinds(plain, [0, 1], [math.nan, 0.3]) == ["impossible"]
    assert kinds(plain, [0, 1], [math.nan, math.nan]) == ["must_be_finite"]


# --- weights -------------------------------------------------------------------------------------------------------


def test_weights_are_judged_for_the_experts_that_were_chosen():
    given = logits_of([1.0, 2.0, 1.0], renormalise=True, routed_scaling_factor=2.5)
    share = torch.sigmoid(torch.tensor([2.0, 1.0], dtype=torch.float64))
    right = (2.5 * share / share.sum()).tolist()
    assert kinds(given, [1, 2], right) == kinds(given, [1, 0], right) == []
    assert kinds(given, [1, 2], right[::-1]) == ["impossible"]
    assert kinds(given, [1, 2], [weight / 2.5 for weight in right]) == ["impossible"]
    assert kinds(given, [1, 2], [right[0] * (1 + 2e-6), right[1]]) == ["impossible"]


def test_a_tiny_sum_is_not_divided_up_to_one():
    given = logits_of([-60.0, -60.0], renormalise=True)
    assert kinds(given, [0, 1], [0.5, 0.5]) == ["impossible"]
    score = 1 / (1 + math.exp(60.0))
    assert kinds(given, [0, 1], [score / (2 * score + 1e-20)] * 2) == []


def test_scores_rounded_to_the_logits_dtype():
    given = dataclasses.replace(
        logits_of([1.0, 0.0], top_k=1),
        logits=Logits(
            dtype="bfloat16", edits=(SetLogit(token=0, expert=0, value=1.0), SetLogit(token=0, expert=1, value=0.0))
        ),
    )
    rounded = float(torch.sigmoid(torch.tensor(1.0)).bfloat16())
    exact = float(torch.sigmoid(torch.tensor(1.0)))
    assert kinds(given, [0], [rounded], RouterNumerics(scores="logits")) == []
    assert kinds(given, [0], [exact], RouterNumerics(scores="logits")) == ["impossible"]
    assert kinds(given, [0], [rounded]) == ["impossible"]
    for weight in (rounded, exact):
        assert kinds(given, [0], [weight], RouterNumerics(scores="either")) == []


@given(router_scenarios(profile="quick"))
@settings(max_examples=150, deadline=None)
def test_the_interval_holds_float32_arithmetic(drawn):
    """torch's sigmoid and softmax, which share no code with the intervals, stay inside of them."""
    problem = build(drawn)
    enclosure = enclose(problem, RouterNumerics())
    x = problem.logits.float()
    score = torch.sigmoid(x) if drawn.scores.scoring == "sigmoid" else torch.softmax(x, dim=1)
    score = score.double()
    assert torch.equal(score.isnan(), enclosure.nan)
    inside = enclosure.nan | ((enclosure.low <= score) & (score <= enclosure.high))
    assert bool(inside.all())


# --- through the engine --------------------------------------------------------------------------------------------


@given(router_scenarios(profile="quick"))
@settings(max_examples=120, deadline=None)
def test_our_own_router_agrees(drawn):
    assert check(drawn, RouterTorch()).verdict is Verdict.AGREES


class Wrong(RouterTorch):
    """Returns `answer`."""

    name = "wrong"

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, prepared):  # noqa: ARG002
        return self.answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (torch.zeros(1, 1), "returned Tensor, must be a RoutingTable"),
        ((torch.zeros(1, 1), torch.zeros(1, 1)), "topk_ids: returned [1, 1] torch.float32"),
        ((torch.zeros(1, 1, dtype=torch.int32), torch.zeros(1)), "topk_weights: returned [1]"),
    ],
)
def test_what_is_no_table(answer, said):
    outcome = check(RouterScenario(), Wrong(answer))
    assert outcome.kind == "shape_or_dtype"
    assert said in outcome.detail


def test_a_router_that_writes_to_its_logits():
    class Writes(RouterTorch):
        name = "writes"

        def __call__(self, prepared):
            prepared.logits[0, 0] = 9.0
            return super().__call__(prepared)

    assert "wrote to its inputs: logits" in check(scenario(), Writes()).detail


def test_a_router_that_is_not_the_same_twice():
    class Flips(RouterTorch):
        name = "flips"
        calls = 0

        def __call__(self, prepared):
            self.calls += 1
            ids, weights = super().__call__(prepared)
            return RoutingTable(ids.flip(1), weights.flip(1)) if self.calls % 2 else RoutingTable(ids, weights)

    outcome = check(scenario(), Flips())
    assert (outcome.verdict, outcome.check) == (Verdict.NONDETERMINISTIC, "determinism")


def test_a_nan_that_reaches_another_token():
    class Leaks(RouterTorch):
        name = "leaks"

        def weights(self, problem, chosen):
            return super().weights(problem, chosen) * (1.0 + 2.0**-23 * problem.logits.isnan().any())

    given = scenario(tokens=2, edits=(SetRow(token=1, value=math.nan),))
    outcome = check(given, Leaks(), checks={"isolation"})
    assert (outcome.check, outcome.kind) == ("isolation", "not_bit_equal")


def test_an_outcome_of_a_router_round_trips():
    class Unsorted(RouterTorch):
        name = "unsorted"

        def best(self, value, allowed, count):
            return super().best(-value, allowed, count)

    outcome = check(logits_of([0.0, 1.0], top_k=1), Unsorted())
    assert outcome.kind == "wrong_expert"
    assert Outcome.from_json(outcome.to_json()) == outcome
