"""Shapes of published models: as their sources have them, shrunken faithfully, drawn at the rank that serves them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import pytest
from draws import draws, routed

from oracles import build
from strategies import MODELS, Capability, Model, Parallel, Scenario, Shape, Situ, SwigluOai

BY_SHAPE = {(model.hidden, model.intermediate, model.experts, model.top_k): model for model in MODELS.values()}
BY_SMALL_SHAPE = {(*model.small, model.experts, model.top_k): model for model in MODELS.values()}
PADDED = Capability(hidden_multiple=256, intermediate_multiple=256)


def model_of(scenario: Scenario, models: dict[tuple[int, ...], Model] = BY_SHAPE) -> Model | None:
    """Whose shape this is, I unsharded; None for a free one."""
    if scenario.layer.moe_tp_size > 1:
        return None
    shape = scenario.shape
    return models.get((shape.hidden, shape.intermediate, shape.experts, shape.top_k))


def test_kimi_k3_is_as_its_first_user_serves_it() -> None:
    kimi = MODELS["kimi-k3"]
    assert kimi.shape(128) == Shape(tokens=128, hidden=3584, intermediate=3072, experts=896, top_k=16)
    assert kimi.ep_sizes == (32,)
    assert kimi.activation == Situ(beta=4.0, linear_beta=25.0)
    assert Scenario(shape=kimi.shape(), parallel=Parallel(ep_size=32, ep_rank=7)).experts_local == 28


def test_gpt_oss_has_its_activation_and_biases() -> None:
    for name, experts in (("gpt-oss-20b", 32), ("gpt-oss-120b", 128)):
        model = MODELS[name]
        assert model.shape() == Shape(hidden=2880, intermediate=2880, experts=experts, top_k=4)
        assert (model.activation, model.biases) == (SwigluOai(alpha=1.702, beta=1.0, limit=7.0), "per_expert")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_consistent(name: str) -> None:
    model = MODELS[name]
    assert model.name == name
    assert model.source
    assert list(model.ep_sizes) == sorted(model.ep_sizes)
    for ep_size in model.ep_sizes:
        Scenario(shape=model.shape(), parallel=Parallel(ep_size=ep_size, ep_rank=ep_size - 1))
        packed = 3 * model.hidden * model.intermediate // 2 * (model.experts // ep_size)
        assert packed < 2**30  # bytes of the weights on a rank


@pytest.mark.parametrize("name", MODELS)
def test_the_shrunken_form_keeps_ratio_and_structure(name: str) -> None:
    model = MODELS[name]
    small, whole = model.small_shape(3), model.shape(3)
    assert (small.experts, small.top_k, small.tokens) == (whole.experts, whole.top_k, 3)
    assert small.hidden * whole.intermediate == small.intermediate * whole.hidden
    assert small.hidden * small.intermediate < 2**16


@pytest.mark.parametrize("name", MODELS)
def test_the_shrunken_form_builds_at_every_rank_count(name: str) -> None:
    model = MODELS[name]
    for ep_size in model.ep_sizes:
        parallel = Parallel(ep_size=ep_size, ep_rank=ep_size - 1)
        problem = build(Scenario(shape=model.small_shape(4), parallel=parallel))
        assert problem.experts_local == model.experts // ep_size


def real() -> tuple[Scenario, ...]:
    return draws("real", 1000)


class TestReal:
    def test_nine_of_ten_are_real(self) -> None:
        whole = [scenario for scenario in real() if scenario.layer.moe_tp_size == 1]
        found = Counter(model.name for scenario in whole if (model := model_of(scenario)))
        assert set(found) == set(MODELS)
        assert min(found.values()) > 0.06 * len(whole)
        assert 0.8 < found.total() / len(whole) < 0.95

    def test_nine_rows_of_ten_have_a_slot_on_the_rank(self) -> None:
        rows: Counter[str] = Counter()
        with_slot: Counter[str] = Counter()
        for scenario in real():
            model = model_of(scenario)
            if model is not None and scenario.parallel.ep_size > 1:
                mine = (routed(scenario).local_ids[: scenario.shape.tokens] >= 0).any(dim=1)
                rows[model.name] += len(mine)
                with_slot[model.name] += int(mine.sum())
        assert rows["kimi-k3"] > 1000
        assert with_slot["kimi-k3"] / rows["kimi-k3"] >= 0.9
        assert with_slot.total() / rows.total() >= 0.9

    def test_ids_of_other_ranks_are_drawn(self) -> None:
        ranks = [scenario for scenario in real() if scenario.parallel.ep_size > 1]
        problems = map(routed, ranks)
        remote = [bool(((problem.topk_ids >= 0) & (problem.local_ids < 0)).any()) for problem in problems]
        assert sum(remote) / len(remote) >= 0.3

    def test_ranks_above_0_come_first(self) -> None:
        ranks = Counter(scenario.parallel.ep_rank for scenario in real() if scenario.parallel.ep_size == 32)
        assert ranks.total() - ranks[0] > ranks[0] > 0
        assert set(ranks) >= {0, 1, 2, 3, 7, 8, 15, 16, 31}

    def test_half_are_as_served_and_half_are_not(self) -> None:
        own: dict[str, list[bool]] = defaultdict(list)
        for scenario in real():
            if model := model_of(scenario):
                own[model.name].append(scenario.activation == model.activation)
        shares = {name: sum(same) / len(same) for name, same in own.items()}
        assert all(0.4 < part < 0.85 for part in shares.values()), shares

    def test_every_rule_is_drawn(self) -> None:
        assert {s.routing.rule for s in real()} == {
            "uniform", "skewed", "all_to_one", "round_robin", "remote_only", "empty_experts", "ties",
        }  # fmt: skip


def test_shrunken_forms_are_drawn_by_default() -> None:
    found = Counter(
        model.name for scenario in draws("default", 2000) if (model := model_of(scenario, BY_SMALL_SHAPE)) is not None
    )
    assert set(found) == {model.name for model in BY_SMALL_SHAPE.values()}


def test_a_width_that_the_kernel_does_not_take_is_padded_up() -> None:
    for scenario in draws("real", 100, PADDED):
        assert PADDED.objection(scenario) is None
    hidden = {scenario.shape.hidden for scenario in draws("real", 100, PADDED)}
    assert hidden >= {math.ceil(model.hidden / 256) * 256 for model in MODELS.values()}


def test_without_expert_parallelism_a_rank_stands_alone() -> None:
    for scenario in draws("real", 100, Capability(expert_parallel=False)):
        assert scenario.parallel == Parallel()
        assert scenario.shape.experts <= 256
