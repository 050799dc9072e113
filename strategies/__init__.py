"""What to try: scenarios as pure data, and how one is drawn."""

from __future__ import annotations

import importlib
import typing

from strategies.capability import Capability
from strategies.models import MODELS, Model
from strategies.profile import PROFILES, Profile
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
    from strategies.draw import scenarios

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
    "Routing",
    "RoutingEdit",
    "Scenario",
    "SetWeight",
    "Shape",
    "Situ",
    "StrayId",
    "Swiglu",
    "SwigluOai",
    "ValueEdit",
    "Values",
    "scenarios",
]


def __getattr__(name: str) -> object:
    # Drawing needs Hypothesis, and an oracle in a worker process reads scenarios without it.
    if name == "scenarios":
        return importlib.import_module("strategies.draw").scenarios
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
