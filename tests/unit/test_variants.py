from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch

from difftest.judging import variants
from oracles import formats
from oracles.problem import Problem, build
from strategies.scenario import (
    DuplicateSlot,
    Execution,
    MaskSlot,
    Parallel,
    Precision,
    Replay,
    Routing,
    Scenario,
    Shape,
    Situ,
    StrayId,
    ValueEdit,
    Values,
)


def scenario(precision: Precision = "bf16xmxfp4") -> Scenario:
    return Scenario(
        shape=Shape(tokens=5, hidden=64, intermediate=32, experts=8, top_k=2),
        parallel=Parallel(ep_size=2, ep_rank=1),
        activation=Situ(per_expert=True),
        precision=precision,
        routing=Routing(edits=(MaskSlot(token=1, slot=0), DuplicateSlot(token=4, slot=1, source=0))),
        values=Values(
            edits=(
                ValueEdit(tensor="hidden_states", index=(4, 7), value="nan"),
                ValueEdit(tensor="w2_scale", index=(5, 0, 0), value=3),
            )
        ),
        execution=Execution(padding=2),
    )


BOTH = pytest.mark.parametrize("precision", ["bf16xmxfp4", "mxfp8xmxfp4"])


def consistent(problem: Problem) -> None:
    """x in bfloat16 is the exact value of its quantised form, and the shapes are those that the scenario tells."""
    described = problem.scenario
    assert problem.tokens == described.shape.tokens + described.execution.padding
    for tensor in (problem.topk_ids, problem.topk_weights):
        assert tensor.shape == (problem.tokens, described.shape.top_k)
    assert (problem.hidden_q is None) == (described.precision == "bf16xmxfp4")
    if problem.hidden_q is not None and problem.hidden_scale is not None:
        value = formats.mxfp8_dequantize(problem.hidden_q.view(torch.uint8), problem.hidden_scale)
        torch.testing.assert_close(value.to(torch.bfloat16), problem.hidden_states, rtol=0, atol=0, equal_nan=True)


@BOTH
def test_rows_of_a_batch(precision: Precision) -> None:
    problem = build(scenario(precision))
    rows = torch.tensor([6, 4, 1])
    part = variants.take_rows(problem, rows)
    consistent(part)
    assert torch.equal(part.topk_ids, problem.topk_ids[rows])
    torch.testing.assert_close(part.hidden_states, problem.hidden_states[rows], rtol=0, atol=0, equal_nan=True)
    edits = part.scenario.routing.edits
    assert edits[:2] == (MaskSlot(token=2, slot=0), DuplicateSlot(token=1, slot=1, source=0))
    assert [edit.index[0] for edit in part.scenario.values.edits if edit.tensor == "hidden_states"] == [1, 0]
    assert part.w13 is problem.w13


@BOTH
def test_no_rows(precision: Precision) -> None:
    part = variants.take_rows(build(scenario(precision)), torch.arange(0))
    consistent(part)
    assert part.tokens == 0


@BOTH
def test_padding_is_what_a_scenario_pads_with(precision: Precision) -> None:
    problem = build(scenario(precision))
    padded = variants.pad(problem, 2)
    consistent(padded)
    assert padded.scenario.execution.padding == 4
    for name, tensor in variants.tensors(build(padded.scenario)).items():
        assert variants.tensors(padded)[name].equal(tensor) or name.startswith("hidden")


@BOTH
def test_plain_rows_are_finite(precision: Precision) -> None:
    problem = build(scenario(precision))
    dirty = ~problem.hidden_states.isfinite().all(1)
    plain = variants.with_plain_rows(problem, dirty)
    consistent(plain)
    assert dirty.tolist() == [False] * 4 + [True] * 3
    assert bool(plain.hidden_states.isfinite().all())
    assert torch.equal(plain.hidden_states[:4], problem.hidden_states[:4])
    assert bool((plain.hidden_states[4:] == 1).all())


@BOTH
def test_a_redraw_changes_signs_only_and_always_alike(precision: Precision) -> None:
    problem = build(scenario(precision))
    first, again, second = (variants.redrawn(problem, number) for number in (0, 0, 1))
    consistent(first)
    assert torch.equal(first.w13, again.w13)
    assert not torch.equal(first.w13, second.w13)
    assert not torch.equal(first.hidden_states[0], problem.hidden_states[0])
    assert torch.equal(first.hidden_states[0].abs(), problem.hidden_states[0].abs())
    before, after = formats.unpack(problem.w13), formats.unpack(first.w13)
    assert torch.equal(before & 7, after & 7)
    flipped = before != after
    assert torch.equal(flipped, flipped[..., :1].expand_as(flipped))  # whole rows


def test_another_rank_sees_the_same_batch() -> None:
    problem = build(scenario())
    whole = variants.on_rank(problem, 1, 0)
    assert (whole.ep_size, whole.experts_local) == (1, 8)
    assert torch.equal(whole.topk_ids, problem.topk_ids)
    assert torch.equal(whole.w13[4:], problem.w13)
    assert torch.equal(variants.on_rank(problem, 2, 1).w2_scale, problem.w2_scale)


def test_experts_bytes_and_what_the_scenario_tells() -> None:
    problem = build(scenario())
    changed = variants.with_expert_bytes(problem, [1, 3], 0xFF)
    assert bool((changed.w13_scale[[1, 3]] == 0xFF).all())
    assert torch.equal(changed.w2[[0, 2]], problem.w2[[0, 2]])
    assert changed.scenario.values.edits[-1] == ValueEdit(tensor="w13_scale", index=(5, 0, 0), value=0xFF)
    assert not bool((problem.w13_scale == 0xFF).any())


def test_changed_tensors_are_named_and_can_be_put_back() -> None:
    problem = build(scenario())
    before = variants.clone_tensors(problem)
    assert variants.changed_tensors(problem, before) == []
    assert problem.activation.beta is not None
    problem.activation.beta[0] = 9.0
    problem.hidden_states[4, 7] = 1.0  # it was NaN
    problem.w13[0, 0, 0] ^= 1
    assert sorted(variants.changed_tensors(problem, before)) == ["activation.beta", "hidden_states", "w13"]
    restored = variants.with_tensors(problem, before)
    assert variants.changed_tensors(restored, before) == []
    assert torch.isnan(restored.hidden_states[4, 7])


def test_a_change_of_a_tensors_shape_is_a_change() -> None:
    problem = build(scenario())
    before = variants.clone_tensors(problem)
    problem.w2.resize_(1)
    assert variants.changed_tensors(problem, before) == ["w2"]


@BOTH
@pytest.mark.parametrize("change", get_args(Replay))
def test_a_replay_finds_other_contents_of_the_same_sizes(precision: Precision, change: Replay) -> None:
    problem = build(replace(scenario(precision), execution=Execution(mode="graph", replays=(change,), padding=2)))
    before = variants.clone_tensors(problem)
    contents = variants.replayed(problem, change, 1)
    consistent(contents)
    changed = set(variants.changed_tensors(contents, before))
    quantised = {"hidden_q", "hidden_scale"} if precision == "mxfp8xmxfp4" else set()
    fields = {
        "same": set(),
        "x": {"hidden_states", *quantised},
        "weights": {"topk_weights"},
        "ids": {"topk_ids"},
        "masks": {"topk_ids"},
        "empty_expert": {"topk_ids"},
        "fewer_tokens": {"hidden_states", "topk_ids", "topk_weights", *quantised},
        "all": {"hidden_states", "topk_ids", "topk_weights", *quantised},
    }
    assert changed == fields[change]
    assert variants.changed_tensors(problem, before) == []
    padding = slice(problem.scenario.shape.tokens, None)
    for name in fields[change]:
        old, new = getattr(problem, name)[padding], getattr(contents, name)[padding]
        assert old.view(torch.uint8).equal(new.view(torch.uint8)), "padding stays padding"


def test_an_expert_becomes_empty_for_a_replay() -> None:
    problem = build(replace(scenario(), routing=Routing(rule="all_to_one")))
    used = {int(expert) for expert in problem.local_ids.unique() if expert >= 0}
    left = {int(expert) for expert in variants.replayed(problem, "empty_expert", 1).local_ids.unique() if expert >= 0}
    assert len(used - left) == 1
    assert left < used


def test_fewer_tokens_are_followed_by_padding() -> None:
    problem = build(scenario())
    contents = variants.replayed(problem, "fewer_tokens", 1)
    assert (contents.scenario.shape.tokens, contents.scenario.execution.padding) == (2, 5)
    assert torch.equal(contents.topk_ids[:2], problem.topk_ids[:2])
    assert bool(contents.hidden_states[2:].isnan().all())
    assert bool((contents.topk_ids[2:] == -1).all())


def test_ids_that_name_no_expert_stay_what_they_are() -> None:
    stray = StrayId(token=0, slot=0, expert_id=2**31 - 1)
    problem = build(replace(scenario(), routing=Routing(edits=(stray,))))
    contents = variants.replayed(problem, "ids", 1)
    assert contents.topk_ids[0, 0] == 2**31 - 1
    assert torch.equal(contents.topk_ids[1:5], (problem.topk_ids[1:5] + 1) % 8)


@BOTH
def test_an_eager_call_may_write_to_what_it_brings(precision: Precision) -> None:
    """A replay of the same contents comes after it."""
    problem = build(scenario(precision))
    plain = variants.eager(problem)
    assert variants.changed_tensors(plain, variants.tensors(problem)) == []
    for name in ("hidden_states", "hidden_q", "hidden_scale", "topk_ids", "topk_weights"):
        own, given = getattr(plain, name), getattr(problem, name)
        assert (own is None) == (given is None)
        assert own is None or own.data_ptr() != given.data_ptr()
