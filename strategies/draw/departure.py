"""What sets a scenario apart from its plain base."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from strategies.capability import Capability
from strategies.draw.change import Change
from strategies.draw.execution import execution_changes
from strategies.draw.layer import layer_changes
from strategies.draw.routing_edits import SlotDraft, slot_drafts
from strategies.draw.value_edits import ElementDraft, element_drafts
from strategies.draw.values import value_changes
from strategies.draw.weighted import weighted

Departure = Change | SlotDraft | ElementDraft

_MOST = 6
"""Half of it on average: enough for two that must meet, few enough that most scenarios stay plain in most ways."""


def departures(capability: Capability) -> SearchStrategy[list[Departure]]:
    """A short list, in the order in which they apply; each can be taken away by itself."""
    kinds: SearchStrategy[Change | SearchStrategy[Departure]] = weighted(
        *layer_changes(capability),
        *execution_changes(capability),
        *value_changes(capability),
        *slot_drafts(capability),
        *element_drafts(capability),
    )

    @st.composite
    def departure(draw: DrawFn) -> Departure:
        kind = draw(kinds)
        return kind if isinstance(kind, Change) else draw(kind)

    return st.lists(departure(), max_size=_MOST)
