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


@dataclass(frozen=True, slots=True)
class ElementDraft:
    """A value edit before the sizes are known. places: of the token and column, or of the expert, row and group."""

    tensor: EditedTensor
    value: Special | int
    places: tuple[int, ...]

    def fit(self, sizes: Sizes) -> ValueEdit | None:
        """The edit in tensors of these sizes, of this rank's own experts; None without tokens to edit."""
        shape = sizes.shape
        first = 0 if self.tensor == "hidden_states" else sizes.first_expert
        axes: tuple[int, ...]
        match self.tensor:
            case "hidden_states":
                if shape.tokens == 0:
                    return None
                axes = (shape.tokens, shape.hidden)
            case "w13_scale":
                axes = (sizes.experts_local, 2 * sizes.intermediate_local, shape.hidden // GROUP)
            case "w2_scale":
                axes = (sizes.experts_local, shape.hidden, sizes.intermediate_local // GROUP)
        index = tuple(cut(place, axis) for place, axis in zip(self.places, axes, strict=True))
        return ValueEdit(tensor=self.tensor, index=(first + index[0], *index[1:]), value=self.value)


def element_drafts(capability: Capability) -> list[tuple[SearchStrategy[ElementDraft], int]]:
    """(strategy, weight), one for each tensor. A kernel that promises no non-finite input is not overflowed either."""
    overflowing = capability.non_finite
    specials = weighted(*_FINITE, *(_OVERFLOWING if overflowing else ()))
    special_bytes = ((0, 2), (255, 2)) if capability.special_scale_bytes else ()
    scale_bytes = weighted((127, 1), (1, 2), *(((254, 1),) if overflowing else ()), *special_bytes)

    def drafts(
        tensor: EditedTensor, values: SearchStrategy[Special] | SearchStrategy[int], axes: int
    ) -> SearchStrategy[ElementDraft]:
        places = [PLACES] * axes
        return st.tuples(values, *places).map(lambda parts: ElementDraft(tensor, parts[0], parts[1:]))

    return [
        (drafts("hidden_states", specials, 2), 20),
        (drafts("w13_scale", scale_bytes, 3), 6),
        (drafts("w2_scale", scale_bytes, 3), 6),
    ]
