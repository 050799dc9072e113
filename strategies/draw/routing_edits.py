"""Slots of the routing table set by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from strategies.capability import Capability
from strategies.draw.place import PLACES, cut
from strategies.draw.weighted import weighted
from strategies.scenario import (
    FLOAT32_MAX,
    AssignExpert,
    DuplicateSlot,
    MaskRow,
    MaskSlot,
    RoutingEdit,
    SetWeight,
    Shape,
    StrayId,
)

_MIN_SUBNORMAL = 2.0**-149
_WEIGHTS = ((0.0, 5), (-0.0, 2), (1.0, 2), (-1.0, 3), (-0.375, 2), (_MIN_SUBNORMAL, 1))
_LAST_ID = 2**31 - 1
_STRAY = ((0, 4), (1, 1), (-2, 2), (-3, 1), (_LAST_ID, 2), (-(2**31), 2))
"""Ids that name no expert: counted from the first past the last one, or negative."""
_OVERFLOWING = ((FLOAT32_MAX, 1), (math.nan, 1), (math.inf, 1), (-math.inf, 2))


@dataclass(frozen=True, slots=True)
class SlotDraft:
    """A routing edit before the sizes are known. detail: the weight, or the place of an expert or of a source."""

    kind: type[RoutingEdit]
    token: int
    slot: int = 0
    detail: float = 0

    def fit(self, shape: Shape) -> RoutingEdit | None:
        """The edit in a batch of `shape`; None where it has no place (no tokens, or one slot to duplicate)."""
        if shape.tokens == 0:
            return None
        token, slot = cut(self.token, shape.tokens), cut(self.slot, shape.top_k)
        if self.kind is MaskRow:
            return MaskRow(token=token)
        if self.kind is MaskSlot:
            return MaskSlot(token=token, slot=slot)
        if self.kind is SetWeight:
            return SetWeight(token=token, slot=slot, weight=self.detail)
        if self.kind is AssignExpert:
            return AssignExpert(token=token, slot=slot, expert=cut(int(self.detail), shape.experts))
        if self.kind is StrayId:
            past = int(self.detail)
            return StrayId(token=token, slot=slot, expert_id=past if past < 0 else min(shape.experts + past, _LAST_ID))
        if shape.top_k == 1:
            return None
        further = 1 + cut(int(self.detail), shape.top_k - 1)
        return DuplicateSlot(token=token, slot=(slot + further) % shape.top_k, source=slot)


def slot_drafts(capability: Capability) -> list[tuple[SearchStrategy[SlotDraft], int]]:
    """(strategy, weight), one for each kind of edit. An expert is assigned from all ranks' ones."""

    def drafts(kind: type[RoutingEdit], *more: SearchStrategy[float]) -> SearchStrategy[SlotDraft]:
        return st.tuples(st.just(kind), PLACES, *more).map(lambda parts: SlotDraft(*parts))

    weights = weighted(*_WEIGHTS, *(_OVERFLOWING if capability.non_finite else ()))
    found = [(drafts(SetWeight, PLACES, weights), 18)]
    if capability.masked_slots:
        found += [(drafts(MaskSlot, PLACES), 10), (drafts(MaskRow), 6)]
    if capability.stray_ids:
        found.append((drafts(StrayId, PLACES, weighted(*_STRAY)), 5))
    if capability.duplicate_experts:  # an assigned expert may be in the row already
        found += [(drafts(AssignExpert, PLACES, PLACES), 6), (drafts(DuplicateSlot, PLACES, PLACES), 12)]
    return found
