"""Elements of x and scale bytes set by hand."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from strategies.capability import Capability
from strategies.draw.place import PLACES, cut
from strategies.draw.sizes import Sizes
from strategies.draw.weighted import weighted
from strategies.scenario import GROUP, EditedTensor, Special, ValueEdit

_FINITE: tuple[tuple[Special, int], ...] = (("0", 1), ("-0", 2), ("min_subnormal", 2))
_OVERFLOWING: tuple[tuple[Special, int], ...] = (("max", 2), ("-max", 2), ("nan", 2), ("inf", 2), ("-inf", 2))


_SHORT = 8
"""Groups of a row up to which all of its scales are set together."""


@dataclass(frozen=True, slots=True)
class ElementDraft:
    """A value edit before the sizes are known. places: of the token and column, or of the expert, row and group.

    throughout: of a scale, every group of a short row: a dead row, where one dead group among live ones is not seen.
    """

    tensor: EditedTensor
    value: Special | int
    places: tuple[int, ...]
    throughout: bool = False

    def fit(self, sizes: Sizes) -> list[ValueEdit]:
        """The edits in tensors of these sizes, of this rank's own experts; none without tokens to edit."""
        shape = sizes.shape
        first = 0 if self.tensor == "hidden_states" else sizes.first_expert
        axes: tuple[int, ...]
        match self.tensor:
            case "hidden_states":
                if shape.tokens == 0:
                    return []
                axes = (shape.tokens, shape.hidden)
            case "w13_scale":
                axes = (sizes.experts_local, 2 * sizes.intermediate_local, shape.hidden // GROUP)
            case "w2_scale":
                axes = (sizes.experts_local, shape.hidden, sizes.intermediate_local // GROUP)
        place, *row, last = (cut(place, axis) for place, axis in zip(self.places, axes, strict=True))
        together = range(axes[-1]) if self.throughout and axes[-1] <= _SHORT else (last,)
        indices = ((first + place, *row, group) for group in together)
        return [ValueEdit(tensor=self.tensor, index=index, value=self.value) for index in indices]


def element_drafts(capability: Capability) -> list[tuple[SearchStrategy[ElementDraft], int]]:
    """(strategy, weight), one for each tensor. A kernel that promises no non-finite input is not overflowed either."""
    overflowing = capability.non_finite
    specials = weighted(*_FINITE, *(_OVERFLOWING if overflowing else ()))
    special_bytes = ((0, 4), (255, 3)) if capability.special_scale_bytes else ()
    scale_bytes = weighted((127, 1), (1, 2), *(((254, 3),) if overflowing else ()), *special_bytes)
    throughout = weighted((False, 1), (True, 1))

    def scales(tensor: EditedTensor) -> SearchStrategy[ElementDraft]:
        places = st.tuples(PLACES, PLACES, PLACES)
        return st.builds(ElementDraft, st.just(tensor), scale_bytes, places, throughout)

    elements = st.builds(ElementDraft, st.just("hidden_states"), specials, st.tuples(PLACES, PLACES))
    return [(elements, 20), (scales("w13_scale"), 9), (scales("w2_scale"), 9)]
