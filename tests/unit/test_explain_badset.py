"""Where a breach is told to be, and how its values relate to the right ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from difftest.explain.badset import describe
from difftest.explain.marks import column_marks, row_marks
from difftest.explain.needs import needs
from difftest.explain.relation import relation
from oracles.numerics import Numerics
from oracles.problem import build
from oracles.reference import enclose
from strategies import (
    Capability,
    DuplicateSlot,
    Execution,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    ValueEdit,
    Values,
)

PLAIN = Scenario(shape=Shape(tokens=37, hidden=96, intermediate=32, experts=4, top_k=2))
NAN_IN_ROW_5 = Values(edits=(ValueEdit(tensor="hidden_states", index=(5, 0), value="nan"),))


def told(scenario: Scenario, rows, columns=slice(None)) -> str:
    """What is said when these rows and columns are wrong. rows: a function of the problem, or an index."""
    problem = build(scenario)
    right = enclose(problem, Numerics())
    bad = torch.zeros_like(right.center, dtype=torch.bool)
    chosen = rows(problem) if callable(rows) else rows
    index = torch.zeros(len(bad), dtype=torch.bool)
    index[chosen] = True
    bad[index.nonzero(), torch.arange(bad.shape[1])[columns]] = True
    return describe([(bad, right, problem)])


@pytest.mark.parametrize(
    ("scenario", "rows", "expected"),
    [
        (PLAIN, slice(None), "every row"),
        (replace(PLAIN, routing=Routing(edits=(MaskSlot(token=7, slot=1),))), 7, "rows with a masked slot"),
        (
            replace(PLAIN, routing=Routing(edits=(DuplicateSlot(token=7, slot=1, source=0),))),
            7,
            "rows with the same expert twice",
        ),
        (replace(PLAIN, values=NAN_IN_ROW_5), 5, "rows with NaN or infinity in x"),
        (
            replace(PLAIN, routing=Routing(edits=(SetWeight(token=9, slot=0, weight=-2.0),))),
            9,
            "rows with a negative router weight",
        ),
        (PLAIN, lambda problem: (problem.local_ids == 3).any(1), "rows of the rank's last expert"),
        (PLAIN, lambda problem: (problem.local_ids == 1).any(1), "rows of expert 1"),
        (PLAIN, slice(32, None), "rows from 32 on"),
        (PLAIN, 0, "rows 0, the first"),
        (PLAIN, [11, 23], "rows 11, 23 of 37"),
    ],
)
def test_what_the_wrong_rows_have_in_common(scenario, rows, expected):
    assert told(scenario, rows) == f"{expected}, every column"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (slice(64, None), "columns from 64 on"),
        (slice(0, None, 2), "even columns"),
        (slice(95, None), "the last column"),
        (slice(0, 16), "the first 16 columns"),
        ([3, 50], "columns 3, 50 of 96"),
    ],
)
def test_what_the_wrong_columns_have_in_common(columns, expected):
    assert told(PLAIN, slice(None), columns) == f"every row, {expected}"


def test_a_property_of_two_marks():
    scenario = replace(PLAIN, routing=Routing(edits=tuple(MaskSlot(token=t, slot=1) for t in (3, 35))))
    assert told(scenario, 35).startswith("rows with a masked slot and ")


def test_rows_without_an_expert_of_the_rank_need_not_be_wrong():
    scenario = replace(PLAIN, parallel=Parallel(ep_size=2, ep_rank=1))
    assert told(scenario, lambda problem: (problem.local_ids >= 0).any(1)) == "every row, every column"


def test_what_holds_in_most_answers_goes_before_what_holds_by_chance():
    """In the first answer row 32 alone is wrong, which is also the first of its tile; the others tell why."""
    looked = []
    for token in (32, 4, 9):
        problem = build(replace(PLAIN, routing=Routing(edits=(DuplicateSlot(token=token, slot=1, source=0),))))
        right = enclose(problem, Numerics())
        bad = torch.zeros_like(right.center, dtype=torch.bool)
        bad[token] = True
        looked.append((bad, right, problem))
    assert describe(looked) == "rows with the same expert twice, every column"
    assert describe([]) == ""


def test_scattered_elements_are_counted():
    problem = build(PLAIN)
    right = enclose(problem, Numerics())
    bad = torch.zeros_like(right.center, dtype=torch.bool)
    bad.fill_diagonal_(True)
    assert describe([(bad, right, problem)]).endswith("; 3% of the elements there")


def test_marks_are_told_apart_by_their_words():
    scenario = replace(
        PLAIN, parallel=Parallel(ep_size=2, ep_rank=1), values=NAN_IN_ROW_5, execution=Execution(padding=2)
    )
    for marks in (row_marks, column_marks):
        words = [mark.words for mark in marks(build(scenario))]
        assert len(words) == len(set(words))


def test_an_empty_batch_has_no_marks_of_rows():
    assert list(row_marks(build(replace(PLAIN, shape=replace(PLAIN.shape, tokens=0))))) == []


# --- how the values relate -----------------------------------------------------------------------------------------


def related(output, scenario: Scenario = PLAIN, columns=slice(None)) -> str | None:
    problem = build(scenario)
    right = enclose(problem, Numerics())
    answer = output(right.center.clone(), problem).to(torch.bfloat16)
    bad = torch.zeros_like(answer, dtype=torch.bool)
    bad[:, columns] = True
    found = relation(answer, bad, right, problem)
    return None if found is None else found.words


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (lambda y, _: y * 0, "0"),
        (lambda y, _: y * 2, "2 times the right ones"),
        (lambda y, _: -y, "-1 times the right ones"),
        (lambda y, _: y * torch.nan, "NaN"),
        (lambda y, _: y.roll(1, 0), "those of other rows"),
        (lambda y, _: y.roll(1, 1), "the right ones in other columns"),
        (lambda y, _: y + 1, None),
    ],
)
def test_how_wrong_values_relate_to_right_ones(output, expected):
    assert related(output) == expected


def test_memory_that_was_never_written():
    scenario = replace(PLAIN, execution=Execution(poison=0x3C))
    unwritten = torch.full((37, 96), 0x3C3C, dtype=torch.int16).view(torch.bfloat16).double()
    assert related(lambda *_: unwritten, scenario) == "what memory was filled with, byte 0x3c"


# --- what a smallest scenario needs --------------------------------------------------------------------------------


def test_needs_name_what_is_not_at_its_default():
    scenario = Scenario(
        shape=Shape(tokens=5, hidden=96, intermediate=64, experts=4, top_k=2),
        parallel=Parallel(ep_size=2, ep_rank=1),
        activation=Situ(),
        values=replace(NAN_IN_ROW_5, edits=(ValueEdit(tensor="w13_scale", index=(0, 0, 0), value=255),)),
        execution=Execution(mode="graph", replays=("x",)),
    )
    assert [need.words for need in needs(scenario, Capability())] == [
        "a captured graph, replayed with other x",
        "scale byte 0xff at w13_scale[0, 0, 0]",
        "activation situ",
        "EP rank 1 of 2",
        "top 2",
        "M = 5",
        "H = 96",
        "I = 64",
    ]
    assert needs(Scenario(), Capability()) == []
