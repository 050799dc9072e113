"""Mistakes planted in a router are found by a campaign, and end in their minimal scenario."""

from __future__ import annotations

import pytest
import torch

from difftest import campaign
from difftest.ledger import cases
from difftest.options import Options
from oracles.router_torch import RouterTorch
from strategies import RouterScenario, RouterShape, Scores
from strategies.router import Logits, SetBias, SetLogit, SetRow

FILE = __file__


class BiasLeaks(RouterTorch):
    """Weights are gathered from the scores with the bias."""

    name = "bias-leaks"

    def __call__(self, prepared):
        table = super().__call__(prepared)
        chosen = self.ranked_by(prepared, self.scores(prepared)).gather(1, table.topk_ids.long())
        return table._replace(topk_weights=self.weights(prepared, chosen))


class Unnormalised(RouterTorch):
    """Weights are not divided by their sum."""

    name = "unnormalised"

    def weights(self, problem, chosen):
        return chosen * problem.scenario.scores.routed_scaling_factor


class Unbiased(RouterTorch):
    """Experts are chosen by the unbiased scores."""

    name = "unbiased"

    def ranked_by(self, problem, scores):  # noqa: ARG002
        return torch.where(scores.isnan(), -torch.inf, scores)


class NanFirst(RouterTorch):
    """Promises that a NaN is chosen last, and chooses it first, as torch.topk does."""

    name = "nan-first"

    def ranked_by(self, problem, scores):
        choice = scores if problem.bias is None else scores + problem.bias
        return torch.where(choice.isnan(), torch.inf, choice)


class Ungrouped(RouterTorch):
    """Group limits are not looked at."""

    name = "ungrouped"

    def allowed(self, problem, choice):  # noqa: ARG002
        return torch.ones_like(choice, dtype=torch.bool)


class Twice(RouterTorch):
    """A row of NaN gets expert 0 in every slot."""

    name = "twice"

    def __call__(self, prepared):
        table = super().__call__(prepared)
        lost = prepared.logits.isnan().all(1, keepdim=True)
        return table._replace(topk_ids=torch.where(lost, 0, table.topk_ids))


class LastOfTies(RouterTorch):
    """Not wrong: of equal experts the last are taken."""

    name = "last-of-ties"

    def best(self, value, allowed, count):
        return value.shape[1] - 1 - super().best(value.flip(1), allowed.flip(1), count)


def found(fault, tmp_path, *, seed=0, examples=60):
    spec = f"{FILE}:{fault.__name__}"
    options = Options(candidates=(spec,), profile="quick", examples=examples, seed=seed, cases=tmp_path)
    return campaign.run(options, lambda _: None)


MINIMA = {
    # A bias of a drawn rule is one departure, the simplest there is: one expert is enough.
    BiasLeaks: ("impossible", RouterScenario(scores=Scores(bias="normal"))),
    # One expert's weight is its score, where it should be 1.
    Unnormalised: ("impossible", RouterScenario(scores=Scores(renormalise=True))),
    NanFirst: (
        "wrong_expert",
        RouterScenario(
            shape=RouterShape(experts=2), logits=Logits(edits=(SetLogit(token=0, expert=0, value=float("nan")),))
        ),
    ),
    Twice: (
        "repeated_expert",
        RouterScenario(
            shape=RouterShape(experts=2, top_k=2), logits=Logits(edits=(SetRow(token=0, value=float("nan")),))
        ),
    ),
}


@pytest.mark.parametrize("fault", MINIMA, ids=lambda fault: fault.__name__)
def test_a_planted_fault_ends_in_its_minimum(fault, tmp_path):
    kind, minimum = MINIMA[fault]
    finding = next(
        f for f in found(fault, tmp_path).findings if f.bucket.kind == kind and f.bucket.check == "reference"
    )
    assert finding.fixed_point
    assert finding.smallest.scenario == minimum
    assert cases.load(finding.case_path).scenario == minimum


def test_a_choice_by_unbiased_scores(tmp_path):
    """Two experts and a bias that turns their order."""
    smallest = found(Unbiased, tmp_path).findings[0].smallest
    assert smallest.kind == "wrong_expert"
    shape, scores = smallest.scenario.shape, smallest.scenario.scores
    assert (shape.tokens, shape.experts, shape.top_k, shape.groups) == (1, 2, 1, 1)
    assert scores.bias != "none"
    assert not [edit for edit in smallest.scenario.logits.edits if not isinstance(edit, SetBias)]


def test_group_limits_that_are_ignored(tmp_path):
    """One group of two is kept; without a bias two groups of one expert would do, but then the best is its group's."""
    smallest = found(Ungrouped, tmp_path).findings[0].smallest
    assert smallest.kind == "wrong_expert"
    shape = smallest.scenario.shape
    assert (shape.tokens, shape.groups, shape.topk_groups) == (1, 2, 1)
    assert shape.experts == 4
    assert not smallest.scenario.logits.edits


def test_another_order_of_ties_is_no_finding(tmp_path):
    summary = found(LastOfTies, tmp_path)
    assert not summary.findings
    assert summary.exit_code == 0
