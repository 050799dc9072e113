"""Which part of a recorded call a scenario takes for its content, as plain data."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from strategies.plain import require, require_choice, require_items

Axis = Literal["tokens", "slots", "experts", "hidden", "intermediate"]
Captured = Literal["hidden_states", "topk_ids", "topk_weights", "w13", "w2", "w13_bias", "w2_bias"]
AXES: Mapping[Captured, tuple[Axis, ...]] = {
    "hidden_states": ("tokens", "hidden"),
    "topk_ids": ("tokens", "slots", "experts"),
    "topk_weights": ("tokens", "slots"),
    "w13": ("experts", "intermediate", "hidden"),
    "w2": ("experts", "hidden", "intermediate"),
    "w13_bias": ("experts", "intermediate"),
    "w2_bias": ("experts", "hidden"),
}
"""The axes of each tensor that places can be taken from. w13 and w2 come with their scales."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """The recorded tensors that a scenario has for its content; a rule draws the others. The default has none.

    digest: SHA-256 of the recording's bytes, in hex. tensors: those that are used.
    tokens, slots, experts, hidden, intermediate: the places of the recording that are kept, ascending, and as many as
    the scenario's shape has; none for an axis that no tensor used has. experts: the recording's global ids of the
    rank's own. hidden, intermediate: groups of 32 columns, those of the intermediate counted in the rank's own.
    """

    digest: str = ""
    tensors: tuple[Captured, ...] = ()
    tokens: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    experts: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    intermediate: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ok = isinstance(self.digest, str) and re.fullmatch("[0-9a-f]{64}|", self.digest) is not None
        require(ok, "capture.digest", self.digest, "64 hex digits, the SHA-256 of a file")
        require_items("capture.tensors", self.tensors, str)
        for position, name in enumerate(self.tensors):
            require_choice(f"capture.tensors[{position}]", name, Captured)
        require(len(set(self.tensors)) == len(self.tensors), "capture.tensors", self.tensors, "distinct names")
        both = bool(self.digest) == bool(self.tensors)
        require(both, "capture.tensors", self.tensors, "given with a digest, and left out without one")
        for axis in typing.get_args(Axis):
            places = getattr(self, axis)
            require_items(f"capture.{axis}", places, int)
            ascending = all(one < other for one, other in zip((-1, *places), places, strict=False))
            require(ascending, f"capture.{axis}", places, "ascending integers from 0 on")

    def __bool__(self) -> bool:
        return bool(self.tensors)

    @property
    def axes(self) -> set[Axis]:
        """Those that the tensors used have."""
        return {axis for name in self.tensors for axis in AXES[name]}

    def check(self, sizes: Mapping[Axis, int]) -> None:
        """Raises `InvalidScenario` unless there are as many places on each axis as `sizes` says."""
        for axis, size in sizes.items():
            places, wanted = getattr(self, axis), size if axis in self.axes else 0
            require(len(places) == wanted, f"capture.{axis}", places, f"{wanted} places")

    def fitted(self, sizes: Mapping[Axis, int]) -> Capture:
        """The first so many places of each axis."""
        kept: dict[str, Any] = {axis: getattr(self, axis)[:size] for axis, size in sizes.items()}
        return dataclasses.replace(self, **kept)

    def using(self, tensors: tuple[Captured, ...]) -> Capture:
        """With these tensors of it alone."""
        if not tensors:
            return NO_CAPTURE
        axes = {axis for name in tensors for axis in AXES[name]}
        unused: dict[str, Any] = {axis: () for axis in typing.get_args(Axis) if axis not in axes}
        return dataclasses.replace(self, tensors=tensors, **unused)


NO_CAPTURE = Capture()
