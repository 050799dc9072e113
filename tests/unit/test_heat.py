"""Heat maps in characters."""

from __future__ import annotations

import pytest
import torch

import difftest
from difftest.judging.heat import COLUMNS, ROWS, heat
from oracles.grouped_mm import GroupedMM
from strategies import Scenario, Shape


def test_one_character_an_element() -> None:
    excess = torch.tensor([[0.0, 1e-6, 1e-3], [torch.inf, 5.0, 1e9]], dtype=torch.float64)
    assert heat(excess > 0, excess, rms=1.0) == (".14", "#79")


def test_a_wrong_element_may_be_off_by_nothing_that_counts() -> None:
    """A zero of the other sign."""
    assert heat(torch.tensor([[True, False]]), torch.zeros(1, 2, dtype=torch.float64), rms=1.0) == ("0.",)


@pytest.mark.parametrize(("rows", "columns"), [(49, 97), (1, 3584), (128, 7168), (48, 96)])
def test_large_outputs_are_shown_in_blocks(rows: int, columns: int) -> None:
    wrong = torch.zeros(rows, columns, dtype=torch.bool)
    wrong[-1, -1] = True
    lines = heat(wrong, wrong.double(), rms=1.0)
    assert len(lines) <= ROWS
    assert {len(line) for line in lines} <= set(range(1, COLUMNS + 1))
    assert "".join(lines).count("7") == 1
    assert lines[-1][-1] == "7"


def test_an_empty_output() -> None:
    assert heat(torch.zeros(0, 4, dtype=torch.bool), torch.zeros(0, 4), rms=0.0) == ()


class LastColumn(GroupedMM):
    """Twice the last column."""

    def __call__(self, prepared):
        out = super().__call__(prepared)
        out[:, -1] *= 2
        return out


def test_a_finding_shows_where() -> None:
    outcome = difftest.check(Scenario(shape=Shape(tokens=3)), LastColumn(), checks=())
    assert len(outcome.heat) == 3
    assert {line[:-1] for line in outcome.heat} == {"." * 31}
    assert all(line[-1] in "67" for line in outcome.heat)
