"""Bulk content of x and the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis.strategies import SearchStrategy

from strategies.capability import Capability
from strategies.draw.change import Change
from strategies.draw.weighted import weighted
from strategies.scenario import ValueRule

VALUE_RULES: SearchStrategy[ValueRule] = weighted(
    ("normal", 9), ("integer", 3), ("index", 2), ("one_hot", 2), ("wide", 2)
)

_E2M1_RMS = math.sqrt(sum(magnitude**2 for magnitude in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)
_INDEX_RMS = math.sqrt(sum(step**2 for step in range(1, 14)) / 13)
_WIDE_RMS = math.sqrt(sum(4.0**exponent for exponent in range(-12, 13)) / 25)
_GATE_RMS = 3.0
"""What a fitting scale aims at: sigmoid and tanh bend there, and a limit of 7 is passed by one gate in fifty."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Scale bytes [low, high]; `fitted`: counted from `fitting_byte`."""

    low: int
    high: int
    fitted: bool = True

    def scale_bytes(self, rule: ValueRule, hidden: int) -> tuple[int, int]:
        """(scale_low, scale_high) for H = `hidden`."""
        base = fitting_byte(rule, hidden) if self.fitted else 0
        return base + self.low, base + self.high


def fitting_byte(rule: ValueRule, hidden: int) -> int:
    """The E8M0 byte under which a gate over `hidden` columns of x is of order 3, for x_exponent 0.

    A gate is a sum of H products of independent signs: its RMS is sqrt(H) * rms(x) * rms(E2M1) * 2**(byte - 127).
    """
    x_rms = {
        "normal": 1.0,
        "integer": 1.0,  # that rule brings its own scale
        "index": _INDEX_RMS,
        "one_hot": 1 / math.sqrt(hidden),
        "wide": _WIDE_RMS,
    }[rule]
    return 127 - round(math.log2(_E2M1_RMS * x_rms * math.sqrt(hidden) / _GATE_RMS))


def scalings(capability: Capability) -> SearchStrategy[Scaling]:
    """Near the fitting byte, narrow and wide; a few at the ends of the range. The first is FlashInfer's own tests'.

    A kernel that does not promise non-finite input is not driven to overflow.
    """
    low, high = (0, 255) if capability.special_scale_bytes else (1, 254)
    ends = [(Scaling(low, low + 3, fitted=False), 1)]
    if capability.non_finite:
        ends += [(Scaling(high - 6, high, fitted=False), 1), (Scaling(low, high, fitted=False), 1)]
    return weighted(
        (Scaling(118, 122, fitted=False), 10),
        (Scaling(0, 0), 8),
        (Scaling(-1, 1), 16),
        (Scaling(-2, 0), 16),
        (Scaling(-4, 1), 16),
        (Scaling(1, 3), 12),
        (Scaling(-10, 0), 8),
        (Scaling(-40, 0), 4),
        *ends,
    )


def value_changes(capability: Capability) -> list[tuple[Change, int]]:
    """(change, weight): x larger or smaller, a little or extremely."""
    usual = [(Change("values", {"x_exponent": exponent}), 2) for exponent in (1, -1, 2, -2)]
    extreme = (-8, -40, -100, *((8, 40, 100) if capability.non_finite else ()))
    return usual + [(Change("values", {"x_exponent": exponent}), 1) for exponent in extreme]
