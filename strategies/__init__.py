"""What to try: scenarios as pure data, and how one is drawn."""

from __future__ import annotations

import importlib
import typing

from strategies.capability import Capability
from strategies.models import MODELS, Model
from strategies.profile import PROFILES, Profile
from strategies.router import RouterScenario, RouterShape, Scores
from strategies.router_capability import RouterCapability
from strategies.scenario import (
    ACTIVATIONS,
    Activation,
    AssignExpert,
    DuplicateSlot,
    Execution,
    InvalidScenario,
    Layer,
    MaskRow,
    MaskSlot,
    Parallel,
    Routing,
    RoutingEdit,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    StrayId,
    Swiglu,
    SwigluOai,
    ValueEdit,
    Values,
)

if typing.TYPE_CHECKING:
    from strategies.draw import router_scenarios, scenarios

__all__ = [
    "ACTIVATIONS",
    "MODELS",
    "PROFILES",
    "Activation",
    "AssignExpert",
    "Capability",
    "DuplicateSlot",
    "Execution",
    "InvalidScenario",
    "Layer",
    "MaskRow",
    "MaskSlot",
    "Model",
    "Parallel",
    "Profile",
    "RouterCapability",
    "RouterScenario",
    "RouterShape",
    "Routing",
    "RoutingEdit",
    "Scenario",
    "Scores",
    "SetWeight",
    "Shape",
    "Situ",
    "StrayId",
    "Swiglu",
    "SwigluOai",
    "ValueEdit",
    "Values",
    "router_scenarios",
    "scenarios",
]


def __getattr__(name: str) -> object:
    # Drawing needs Hypothesis, and an oracle in a worker process reads scenarios without it.
    if name in ("router_scenarios", "scenarios"):
        return getattr(importlib.import_module("strategies.draw"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
