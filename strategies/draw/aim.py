"""Where edits meet: each one's place is drawn on its own, and in some scenarios all of them are moved to one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, Self

from hypothesis.strategies import SearchStrategy

from strategies.draw.departure import Departure
from strategies.draw.place import cut
from strategies.draw.routing_edits import SlotDraft
from strategies.draw.sizes import Sizes
from strategies.draw.value_edits import ElementDraft
from strategies.draw.weighted import weighted
from strategies.scenario import AssignExpert

Aim = Literal["apart", "row", "slot"]
"""apart: each edit where it was drawn. row: those of tokens in one row. slot: those of slots in one slot too, and those
of scales in one expert of this rank, which that slot is routed to: a weight of 0 then meets the NaN that it hides."""

AIMS: SearchStrategy[Aim] = weighted(("apart", 2), ("row", 1), ("slot", 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The place where edits meet, before the sizes are known. expert: among the rank's own."""

    token: int = 0
    slot: int = 0
    expert: int = 0

    @classmethod
    def of(cls, departures: list[Departure]) -> Self | None:
        """Where the first edit is that has such a place; None when there is no edit."""
        found: dict[str, int] = {}
        edits = 0
        for departure in departures:
            match departure:
                case SlotDraft(token=token, slot=slot):
                    places = {"token": token, "slot": slot}
                case ElementDraft(tensor="hidden_states", places=(token, *_)):
                    places = {"token": token}
                case ElementDraft(places=(expert, *_)):
                    places = {"expert": expert}
                case _:
                    continue
            edits += 1
            found = places | found
        return cls(**found) if edits else None

    def moved(self, departures: list[Departure], aim: Aim) -> list[Departure]:
        """The same departures, their edits being here."""
        return [self._moved(departure, aim) for departure in departures]

    def _moved(self, departure: Departure, aim: Aim) -> Departure:
        match departure:
            case SlotDraft():
                slot = self.slot if aim == "slot" else departure.slot
                return dataclasses.replace(departure, token=self.token, slot=slot)
            case ElementDraft(tensor="hidden_states", places=(_, *rest)):
                return dataclasses.replace(departure, places=(self.token, *rest))
            case ElementDraft(places=(_, *rest)) if aim == "slot":
                return dataclasses.replace(departure, places=(self.expert, *rest))
        return departure

    def routed(self, sizes: Sizes) -> AssignExpert | None:
        """The edit that routes the slot to the expert; None without tokens."""
        if sizes.shape.tokens == 0:
            return None
        return AssignExpert(
            token=cut(self.token, sizes.shape.tokens),
            slot=cut(self.slot, sizes.shape.top_k),
            expert=sizes.first_expert + cut(self.expert, sizes.experts_local),
        )
