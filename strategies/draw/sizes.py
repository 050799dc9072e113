"""Sizes of a rank: tokens, widths, experts and the ranks around it."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from strategies.capability import Capability
from strategies.draw.weighted import weighted
from strategies.models import MODELS, Model
from strategies.profile import Profile
from strategies.scenario import Parallel, Shape

_TOKEN_TILES = (8, 16, 32, 64, 128)
_WIDTH_TILES = (64, 128, 256, 512)
_EP_SIZES = ((1, 16), (2, 3), (3, 1), (4, 2), (8, 2), (16, 1), (32, 1))
_RANKS = ((0, 14), (1, 6), (2, 2), (3, 2), *((rank, 1) for rank in (4, 5, 6, 7, 8, 15, 16, 31)))
_TOP_K = ((1, 5), (2, 6), (3, 1), (4, 4), (5, 1), (6, 1), (8, 2), (16, 2))


@dataclass(frozen=True, slots=True)
class Base:
    """A free shape (no model), or a model's. small: its shrunken form. as_served: with the model's own extras."""

    model: Model | None = None
    small: bool = True
    as_served: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SizesDraft:
    """Sizes before they are fitted together. A free shape's are drawn also where a model's take their place."""

    base: Base
    tokens: int
    hidden: int
    intermediate_local: int
    ep_size: int
    ep_rank: int
    experts_local: int
    top_k: int

    def fit(self, capability: Capability, moe_tp_size: int) -> Sizes:
        """Sizes that agree and that `capability` accepts, I being sharded over `moe_tp_size` ranks."""
        hidden, intermediate_local = self.hidden, self.intermediate_local
        experts_local, top_k = self.experts_local, self.top_k
        served: tuple[int, ...] = tuple(size for size, _ in _EP_SIZES)
        model = self.base.model
        if model is not None:
            whole = model.small_shape() if self.base.small else model.shape()
            hidden = _round_up(whole.hidden, capability.hidden_multiple)
            share = -(-whole.intermediate // moe_tp_size)
            intermediate_local = _round_up(share, capability.intermediate_multiple)
            served, top_k = model.ep_sizes, model.top_k
        ranks = max(self.ep_size, self.ep_rank + 1)
        ep_size = next((size for size in served if size >= ranks), served[-1])
        if model is not None:
            experts_local = model.experts // ep_size
        if not capability.expert_parallel:
            ep_size = 1
        experts = _round_up(max(experts_local, -(-top_k // ep_size)), capability.experts_multiple) * ep_size
        return Sizes(
            shape=Shape(
                tokens=self.tokens,
                hidden=hidden,
                intermediate=intermediate_local * moe_tp_size,
                experts=experts,
                top_k=top_k,
            ),
            parallel=Parallel(ep_size=ep_size, ep_rank=min(self.ep_rank, ep_size - 1)),
            intermediate_local=intermediate_local,
            model=model,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes that agree. model: whose shape it is, None for a free one."""

    shape: Shape
    parallel: Parallel
    intermediate_local: int
    model: Model | None

    @property
    def experts_local(self) -> int:
        return self.shape.experts // self.parallel.ep_size

    @property
    def first_expert(self) -> int:
        return self.parallel.ep_rank * self.experts_local


def sizes_drafts(capability: Capability, profile: Profile) -> SearchStrategy[SizesDraft]:
    """Sizes of `profile`; H and the rank's I in the units of `capability`."""
    ranks = capability.expert_parallel
    return st.builds(
        SizesDraft,
        base=_bases(profile),
        tokens=_tokens(profile.tokens, empty=capability.empty_batch),
        hidden=_widths(capability.hidden_multiple, profile.width),
        intermediate_local=_widths(capability.intermediate_multiple, profile.width),
        ep_size=weighted(*_EP_SIZES) if ranks else st.just(1),
        ep_rank=weighted(*_RANKS) if ranks else st.just(0),
        experts_local=weighted(*profile.experts_local),
        top_k=weighted(*_TOP_K),
    )


def _round_up(size: int, multiple: int) -> int:
    """The least multiple that holds `size`: as serving pads a width that a kernel does not take."""
    return -(-size // multiple) * multiple


def _bases(profile: Profile) -> SearchStrategy[Base]:
    """Free, then shrunken models, then real ones, half of them as served."""
    small = [(Base(model, small=True, as_served=True), profile.small) for model in MODELS.values()]
    real = [
        (Base(model, small=False, as_served=as_served), profile.real // 2)
        for model in MODELS.values()
        for as_served in (False, True)
    ]
    return weighted((Base(), profile.free), *small, *real)


def _tokens(limit: int, *, empty: bool) -> SearchStrategy[int]:
    """M: any of 1 to `limit`, more often 1 and a tile's neighbours; an empty batch comes last, not as the simplest."""
    edges = {tile + offset for tile in _TOKEN_TILES for offset in (-1, 0, 1) if tile < limit}
    weights = {tokens: 6 if tokens in edges else 1 for tokens in range(1, limit + 1)}
    weights[1] += limit // 4
    return weighted(*weights.items(), *(((0, 2),) if empty else ()))


def _widths(unit: int, limit: int) -> SearchStrategy[int]:
    """A multiple of `unit`: more often a tile's width, its neighbours, the least, or small; one past the limit too."""
    count = max(2, limit // unit + 1)
    widths = [unit * factor for factor in range(1, count + 1)]

    def weight(width: int) -> int:
        distance = min(abs(width - tile) for tile in _WIDTH_TILES)
        edge = 3 if distance == 0 or width == unit else 2 if distance <= unit else 1
        return edge * (3 if width <= limit // 2 else 1)

    return weighted(*((width, weight(width)) for width in widths))
