"""Faults: named mistakes in an otherwise right implementation, twice used.

Injected, they measure what the tool catches (`fault:NAME` is a candidate like any other). As hypotheses they explain a
finding. CONTRIBUTING says how one is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from oracles.faults import activation, execution, layout, memory, non_finite, numerics, routing, unseen_second
from oracles.faults.fault import KINDS, REGISTERED, Fault, Kind
from oracles.faults.sm120 import SM120_FAULTS
from oracles.faults.twin import Twin
from oracles.faults.unseen import UNSEEN_FAULTS

FAULTS: Mapping[str, Fault] = MappingProxyType(REGISTERED)
"""Every fault by name, class by class."""

__all__ = [
    "FAULTS",
    "KINDS",
    "SM120_FAULTS",
    "UNSEEN_FAULTS",
    "Fault",
    "Kind",
    "Twin",
    "activation",
    "execution",
    "layout",
    "memory",
    "non_finite",
    "numerics",
    "routing",
    "unseen_second",
]
