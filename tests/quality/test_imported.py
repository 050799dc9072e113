"""A fault that shows in a recorded call ends in the part of it that the fault needs, or in a scenario without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from difftest import campaign
from difftest.campaign import Summary
from difftest.options import Options
from oracles import recording
from oracles.grouped_mm import GroupedMM
from oracles.problem import build
from strategies import MaskSlot, Parallel, Routing, Scenario, Shape, recordings
from strategies.capture import Capture

CALL = Scenario(
    shape=Shape(tokens=9, hidden=128, intermediate=96, experts=8, top_k=3),
    parallel=Parallel(ep_size=2, ep_rank=1),
    routing=Routing(seed=3, edits=(MaskSlot(token=7, slot=1),)),
)
NAMES = ("hidden_states", "topk_ids", "topk_weights", "w13", "w13_scale", "w2", "w2_scale")


def _doubled(output: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.where(rows[:, None], output * 2, output)


class Marked(GroupedMM):
    """Doubles the rows of x that hold 77, which no rule draws."""

    def __call__(self, prepared):
        return _doubled(super().__call__(prepared), (prepared.problem.hidden_states == 77).any(1))


class ScaleByte(GroupedMM):
    """Doubles the rows of an expert of rank 1 whose w13 has a scale byte that no rule draws by default."""

    def __call__(self, prepared):
        problem = prepared.problem
        bad, local = (problem.w13_scale == 133).flatten(1).any(1), problem.local_ids
        rows = ((local >= 0) & bad[local.clamp(min=0)]).any(1) & (problem.ep_rank > 0)
        return _doubled(super().__call__(prepared), rows)


class Pair(GroupedMM):
    """Doubles a row whose slots have router weights 0.25 and 0.625 in this order, and one of them is this rank's."""

    def __call__(self, prepared):
        weights = prepared.problem.topk_weights
        first, second = (weights == 0.25), (weights == 0.625)
        return _doubled(super().__call__(prepared), first.any(1) & second.any(1))


class MaskedSlot(GroupedMM):
    """Doubles the rows with a masked slot."""

    def __call__(self, prepared):
        return _doubled(super().__call__(prepared), (prepared.problem.topk_ids == -1).any(1))


@pytest.fixture
def shrunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Imports the call for a class of this file; returns the scenario that it comes to."""
    monkeypatch.setenv(recordings.VARIABLE, "")
    problem = build(CALL)
    tensors = {name: getattr(problem, name).clone() for name in NAMES}
    tensors["hidden_states"][5, 70] = 77
    tensors["w13_scale"][2, 100, 3] = 133
    tensors["topk_weights"][3] = torch.tensor([0.5, 0.25, 0.625])
    path = tmp_path / "call.safetensors"
    save_file(tensors, path, metadata={"ep_size": "2", "ep_rank": "1"})
    recordings.add_folder(tmp_path)

    def run(name: str) -> Scenario:
        options = Options(
            candidates=(f"{__file__}:{name}",), examples=1, seed=0, cases=tmp_path / "cases", imported=path
        )
        scenario = recording.load(path).whole(recordings.digest_of(path))
        summary: Summary = campaign.judge(options, scenario, lambda _: None)
        found = [finding for finding in summary.findings if finding.bucket.check == "reference"]
        (finding,) = found
        assert finding.fixed_point
        smallest = finding.smallest.scenario
        assert isinstance(smallest, Scenario)
        return smallest

    return run


def part(**places: tuple) -> Capture:
    """Of any recording."""
    return Capture(digest="0" * 64, **places)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Marked", Scenario(capture=part(tensors=("hidden_states",), tokens=(5,), hidden=(2,)))),
        (
            "ScaleByte",
            Scenario(
                shape=Shape(experts=2),
                parallel=Parallel(ep_size=2, ep_rank=1),
                capture=part(tensors=("w13",), experts=(6,), hidden=(3,), intermediate=(0,)),
            ),
        ),
        (
            "Pair",
            Scenario(
                shape=Shape(experts=2, top_k=2), capture=part(tensors=("topk_weights",), tokens=(3,), slots=(1, 2))
            ),
        ),
        ("MaskedSlot", Scenario(shape=Shape(experts=2, top_k=2), routing=Routing(edits=(MaskSlot(token=0, slot=0),)))),
    ],
)
def test_what_a_recorded_call_comes_to(shrunk, name, expected):
    smallest = shrunk(name)
    if smallest.capture:
        assert smallest.capture.digest
        smallest = replace(smallest, capture=replace(smallest.capture, digest="0" * 64))
    assert smallest == expected
