"""Kinds of scenarios, and what a trial knows each by: how it is made, what an answer is, which checks there are."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from difftest.judging.checks import CHECKS, Check, Subject
from difftest.router.subject import ROUTER_CHECKS, RouterSubject
from oracles import problem, router_problem
from oracles.kept import KEPT
from oracles.problem import Problem
from oracles.router_problem import RouterProblem
from strategies.plain import AnyScenario
from strategies.router import RouterScenario
from strategies.scenario import Scenario

AnyProblem = Problem | RouterProblem
AnySubject = Subject | RouterSubject


def build(scenario: AnyScenario, device: torch.device) -> AnyProblem:
    """Make the tensors of `scenario` on `device`."""
    if isinstance(scenario, RouterScenario):
        return router_problem.build(scenario, device)
    assert isinstance(scenario, Scenario)  # the only other kind
    return problem.build(scenario, device, KEPT)


def checks_of(scenario: AnyScenario) -> Mapping[str, Check]:
    """The reference-free checks of its kind by name. A router's are named as those of a layer that do the same."""
    return ROUTER_CHECKS if isinstance(scenario, RouterScenario) else CHECKS
