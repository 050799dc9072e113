from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from draws import WHOLE, draws

from difftest.judging import variants
from difftest.shrinking.moves import moves
from oracles import kept as module
from oracles.faults import Twin
from oracles.kept import Kept, same_bytes
from oracles.numerics import Numerics
from oracles.problem import Problem, build
from oracles.reference import enclose
from strategies import Layer, Parallel, Scenario, Shape, Situ, SwigluOai, ValueEdit, Values

ONES = torch.ones(8)


def ask(kept: Kept, key: object, *tensors: torch.Tensor | None) -> int:
    """How often `make` was called for it: 1, or 0."""
    called: list[None] = []
    kept.of("sum", key, tensors, lambda: called.append(None))
    return len(called)


# --- finding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("second", "same"),
    [
        (torch.ones(8), True),
        (torch.ones(16)[::2], True),
        (torch.cat((torch.zeros(1), torch.ones(8)))[1:], True),  # begins in the middle of a word
        (torch.ones(8, dtype=torch.float64), False),
        (torch.ones(2, 4), False),
        (torch.ones(7), False),
        (torch.ones(8, device="meta"), False),
        (torch.tensor([1.0] * 7 + [2.0]), False),
        (None, False),
    ],
)
def test_a_tensor_is_the_same_where_its_bits_are(second: torch.Tensor | None, same: bool) -> None:
    assert same_bytes(ONES, second) is same
    assert same_bytes(second, ONES) is same


def test_bits_count_and_not_values() -> None:
    assert not same_bytes(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bytes(torch.tensor([torch.nan]), torch.tensor([torch.nan]))
    assert same_bytes(torch.zeros(0, 3), torch.zeros(0, 3))
    assert same_bytes(torch.ones(10)[::5][:1], torch.ones(1))
    assert not same_bytes(torch.ones(10)[::5][:1], torch.zeros(1))
    assert same_bytes(None, None)


def test_a_result_is_found_by_key_and_tensors() -> None:
    kept = Kept()
    assert [ask(kept, 1, ONES, None), ask(kept, 2, ONES, None), ask(kept, 1, ONES, ONES)] == [1, 1, 1]
    assert [ask(kept, 1, ONES.clone(), None), ask(kept, 2, ONES, None)] == [0, 0]
    assert kept.asked == {("sum", False): 3, ("sum", True): 2}


# --- room ------------------------------------------------------------------------------------------------------------


def test_the_last_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    kept = Kept()
    for key in (1, 2, 3, 1, 4):  # 2 is the one used longest ago
        ask(kept, key)
    assert [ask(kept, key) for key in (1, 3, 4, 2)] == [0, 0, 0, 1]


def test_what_is_kept_stays_in_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 bytes: of entries that take 32 each there are four, whether these are the result's or of what it is of."""
    monkeypatch.setattr(module, "BYTES", 128)
    kept = Kept()
    for key in range(4):
        kept.of("sum", key, [ONES[:4]], lambda: (ONES[:2], [ONES[:2]]))
    assert [ask(kept, key, ONES[:4]) for key in (0, 1, 2, 3)] == [0, 0, 0, 0]
    kept.of("sum", 4, [], lambda: ONES)
    assert [ask(kept, key, ONES[:4]) for key in (3, 2, 1, 0)] == [0, 0, 0, 1]
    assert [ask(kept, 5, torch.ones(9)), ask(kept, 5, torch.ones(9))] == [1, 1]  # more than a quarter


# --- problems and enclosures -----------------------------------------------------------------------------------------


def neighbours(scenario: Scenario, count: int) -> Iterator[Scenario]:
    """Some of what a shrinker may try after `scenario`, of each of its moves."""
    for move in moves(scenario):
        yield from itertools.islice(move, count)


def rich() -> list[Scenario]:
    """Scenarios with much that can be taken away."""
    small = [one for one in draws("quick", 150, WHOLE) if one.shape.hidden * one.intermediate_local < 1 << 14]
    edits = (
        ValueEdit(tensor="w13_scale", index=(3, 5, 1), value=130),
        ValueEdit(tensor="w2_scale", index=(2, 3, 0), value=255),
        ValueEdit(tensor="hidden_states", index=(1, 1), value="nan"),
    )
    made = Scenario(
        shape=Shape(tokens=5, hidden=64, intermediate=128, experts=4, top_k=2),
        parallel=Parallel(ep_size=2, ep_rank=1),
        activation=SwigluOai(per_expert=True),
        layer=Layer(biases="per_expert", moe_tp_size=2, moe_tp_rank=1, routed_scaling_factor=2.5),
        values=Values(seed=7, scale_low=110, scale_high=125, edits=edits),
    )
    return [made, replace(made, activation=Situ(), layer=Layer(), values=Values(rule="integer", seed=3)), *small[:3]]


@pytest.mark.parametrize("number", range(5))
def test_a_problem_is_the_same_whatever_was_built_before(number: int) -> None:
    start, kept = rich()[number], Kept()
    for scenario in (start, *neighbours(start, 6)):
        made, alone = (variants.tensors(build(scenario, "cpu", store)) for store in (kept, None))
        assert made.keys() == alone.keys()
        assert all(same_bytes(made[name], alone[name]) for name in alone), scenario
        for tensor in made.values():
            tensor.view(torch.uint8).bitwise_not_()  # a problem's tensors are its own
    hits = {name: kept.asked[name, True] for name in ("w13", "w2")}
    assert min(hits.values()) > kept.asked["w13", False]


@pytest.mark.parametrize("number", range(5))
def test_an_enclosure_is_the_same_whatever_was_enclosed_before(number: int) -> None:
    start, kept = rich()[number], Kept()
    for scenario in (start, *neighbours(start, 6)):
        assert_same(build(scenario), Twin.numerics, kept)
    assert kept.asked["experts", True] >= 5


def test_a_problem_may_be_written_to_once_it_is_enclosed() -> None:
    kept, problem = Kept(), build(PROBLEM.scenario)
    enclose(problem, Numerics(), kept)
    for tensor in variants.tensors(problem).values():
        tensor.view(torch.uint8).bitwise_not_()
    assert_same(PROBLEM, Numerics(), kept)
    assert kept.asked["experts", True] == 1


def assert_same(problem: Problem, numerics: Numerics, kept: Kept) -> None:
    made, alone = (enclose(problem, numerics, store) for store in (kept, None))
    assert all(same_bytes(getattr(made, field.name), getattr(alone, field.name)) for field in fields(alone))


PROBLEM = build(
    Scenario(
        shape=Shape(tokens=3, hidden=64, intermediate=64, experts=3, top_k=2),
        activation=SwigluOai(),
        layer=Layer(biases="per_expert"),
    )
)


def changed(name: str) -> Problem:
    """`PROBLEM` with one bit of one tensor changed, that of a sign or another large one."""
    tensors = variants.clone_tensors(PROBLEM)
    flat = tensors[name].view(-1)
    if name == "topk_ids":
        flat[0] = (flat[0] + 1) % 3
    else:
        flat.view(torch.uint8)[flat.itemsize - 1] ^= 0x80 if flat.is_floating_point() else 0x08
    return variants.with_tensors(PROBLEM, tensors)


@pytest.mark.parametrize("name", variants.tensors(PROBLEM))
def test_an_enclosure_follows_each_tensor(name: str) -> None:
    kept = Kept()
    before = enclose(PROBLEM, Numerics(), kept)
    after = changed(name)
    assert_same(after, Numerics(), kept)
    assert not same_bytes(enclose(after, Numerics(), kept).center, before.center)


@pytest.mark.parametrize(
    "other",
    [
        {"gemm1_output": "float32"},
        {"intermediate": "output"},
        {"weights": "exact"},
        {"bias_before_rounding": False},
        {"intermediate_quantizer": "mxfp8"},
    ],
)
def test_an_enclosure_follows_what_is_declared(other: dict[str, Any]) -> None:
    kept = Kept()
    wide = replace(PROBLEM, scenario=replace(PROBLEM.scenario, output_dtype="float16"))
    for problem in (PROBLEM, wide):
        for numerics in (Numerics(), Numerics(**other)):
            assert_same(problem, numerics, kept)
    assert kept.asked["experts", True] == 0


def test_a_kind_of_activation_is_told_apart() -> None:
    kept = Kept()
    for activation in (Situ(), Situ(beta=2.0), SwigluOai(alpha=4.0, beta=25.0), SwigluOai()):
        scenario = replace(PROBLEM.scenario, activation=activation)
        assert_same(build(scenario), Numerics(), kept)
    assert kept.asked["experts", True] == 0
