"""How a router's scenario is drawn: as a layer's is, every choice on its own, fitted afterwards, nothing filtered."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

from strategies.draw.place import PLACES, cut
from strategies.draw.scenario import unmutated
from strategies.draw.weighted import restricted, weighted
from strategies.profile import PROFILES
from strategies.router import (
    BiasRule,
    Logits,
    LogitsDtype,
    LogitsRule,
    RouterEdit,
    RouterScenario,
    RouterShape,
    Scores,
    Scoring,
    SetBias,
    SetLogit,
    SetRow,
    TieExperts,
)
from strategies.router_capability import RouterCapability

_DEFAULT = RouterCapability()
_MOST_EDITS = 4
_TOKENS = ((1, 6), (2, 6), (3, 4), (4, 2), (5, 2), (7, 2), (8, 2), (0, 1))
_MANY_TOKENS = ((16, 1), (17, 1), (31, 1), (33, 1), (64, 1), (65, 1), (128, 1), (129, 1))
_PER_GROUP = ((2, 4), (1, 2), (3, 4), (4, 6), (5, 2), (6, 1), (7, 1), (8, 4))
_MANY_PER_GROUP = ((16, 2), (31, 1), (32, 2), (33, 1), (64, 1), (128, 1))
_GROUPS = ((1, 12), (2, 4), (3, 1), (4, 4), (8, 3))
_TOP_K = ((1, 5), (2, 6), (3, 3), (4, 4), (6, 2), (8, 3), (16, 1))
_FACTORS = ((1.0, 12), (2.0, 2), (2.5, 2), (0.5, 1), (2.827, 1))
_FINITE = ((0.0, 2), (-100.0, 2), (100.0, 1), (-20.0, 1), (-30000.0, 1))
_NON_FINITE = ((math.nan, 5), (math.inf, 2), (-math.inf, 2))
_BIASES = ((0.0, 1), (1.0, 2), (-1.0, 2), (1e30, 1), (-1e30, 1))
_SCORINGS: tuple[tuple[Scoring, int], ...] = (("sigmoid", 3), ("softmax", 1))
_BIAS_RULES: tuple[tuple[BiasRule, int], ...] = (("none", 3), ("zero", 1), ("normal", 5), ("levels", 3), ("large", 1))
_RULES: tuple[tuple[LogitsRule, int], ...] = (("normal", 6), ("levels", 4), ("equal", 1), ("negative", 2), ("wide", 2))
_DTYPES: tuple[tuple[LogitsDtype, int], ...] = (("float32", 3), ("bfloat16", 3), ("float16", 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterModel:
    """The gate of a published model. source: where the figures come from."""

    name: str
    shape: RouterShape
    scores: Scores
    source: str


ROUTER_MODELS = {
    model.name: model
    for model in (
        RouterModel(
            name="qwen3-30b-a3b",
            shape=RouterShape(experts=128, top_k=8),
            scores=Scores(scoring="softmax", renormalise=True),
            source="config.json of Qwen/Qwen3-30B-A3B",
        ),
        RouterModel(
            name="deepseek-v3",
            shape=RouterShape(experts=256, top_k=8, groups=8, topk_groups=4),
            scores=Scores(bias="normal", renormalise=True, routed_scaling_factor=2.5),
            source="config.json of deepseek-ai/DeepSeek-V3",
        ),
        RouterModel(
            name="kimi-k2",
            shape=RouterShape(experts=384, top_k=8),
            scores=Scores(bias="normal", renormalise=True, routed_scaling_factor=2.827),
            source="config.json of moonshotai/Kimi-K2-Instruct",
        ),
        RouterModel(
            name="kimi-k3",
            shape=RouterShape(experts=896, top_k=16),
            scores=Scores(bias="normal", renormalise=True),
            source="config.json of moonshotai/Kimi-K3",
        ),
    )
}
"""The gates of models by name, the smallest first."""


@dataclass(frozen=True, slots=True)
class _EditDraft:
    """An edit before the sizes are known. more: a value, or the place of another expert."""

    kind: type[RouterEdit]
    token: int
    expert: int
    more: float

    def fit(self, shape: RouterShape) -> RouterEdit | None:
        """The edit in these sizes; None where it has no place."""
        expert = cut(self.expert, shape.experts)
        if self.kind is SetBias:
            return SetBias(expert=expert, value=self.more)
        if shape.tokens == 0:
            return None
        token = cut(self.token, shape.tokens)
        if self.kind is SetRow:
            return SetRow(token=token, value=self.more)
        if self.kind is SetLogit:
            return SetLogit(token=token, expert=expert, value=self.more)
        if shape.experts == 1:
            return None
        source = cut(self.expert, shape.experts - 1)
        return TieExperts(token=token, expert=cut(source + 1 + int(self.more), shape.experts), source=source)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Draft:
    model: RouterModel | None
    groups: int
    kept: int
    per_group: int
    top_k: int
    tokens: int
    scoring: Scoring
    bias: BiasRule
    renormalise: bool
    factor: float
    rule: LogitsRule
    dtype: LogitsDtype
    seed: int
    calls: int
    edits: list[_EditDraft]

    def fit(self, capability: RouterCapability) -> RouterScenario:
        """The scenario, within `capability`."""
        shape, scores = self._shape(capability), self._scores(capability)
        model = self.model
        if model is not None:
            served = RouterScenario(shape=replace(model.shape, tokens=1), scores=model.scores)
            if capability.objection(served) is None:
                shape, scores = replace(model.shape, tokens=self.tokens), model.scores
        edits = (edit.fit(shape) for edit in self.edits)
        kept = tuple(
            edit for edit in edits if edit is not None and (scores.bias != "none" or type(edit) is not SetBias)
        )
        logits = Logits(rule=self.rule, dtype=self.dtype, seed=self.seed, edits=kept)
        return RouterScenario(shape=shape, scores=scores, logits=logits, calls=self.calls)

    def _shape(self, capability: RouterCapability) -> RouterShape:
        groups = min(self.groups, capability.most_experts) if capability.grouped else 1
        per_group = max(1, min(self.per_group * (self.groups // groups), capability.most_experts // groups))
        kept = min(self.kept, groups)
        top_k = min(self.top_k, kept * per_group, capability.most_top_k)
        return RouterShape(tokens=self.tokens, experts=groups * per_group, top_k=top_k, groups=groups, topk_groups=kept)

    def _scores(self, capability: RouterCapability) -> Scores:
        bias = self.bias
        if bias != "none" and self.scoring not in capability.biased:
            bias = "none"
        elif bias == "none" and self.scoring not in capability.unbiased:
            bias = "zero"
        factor = self.factor if capability.routed_scaling_factor else 1.0
        return Scores(scoring=self.scoring, bias=bias, renormalise=self.renormalise, routed_scaling_factor=factor)


def router_scenarios(
    capability: RouterCapability = _DEFAULT, *, profile: str = "default"
) -> SearchStrategy[RouterScenario]:
    """Scenarios that `capability` promises: `capability.objection` of each is None.

    profile: how large they are, a name in `PROFILES`. Each shrinks towards one token, one expert, float32 logits, no
    edits. Raises `InvalidArgument`, naming the argument, for any other argument.
    """
    if not isinstance(capability, RouterCapability):
        raise InvalidArgument(f"capability = {capability!r}: must be a RouterCapability")
    if profile not in PROFILES:
        raise InvalidArgument(f"profile = {profile!r}: must be one of {', '.join(PROFILES)}")
    quick, real = profile == "quick", profile == "real"
    no_model: RouterModel | None = None
    models = () if quick else tuple((model, 20 if real else 2) for model in ROUTER_MODELS.values())
    tokens = _TOKENS if quick else _TOKENS + _MANY_TOKENS
    drafts = st.builds(
        _Draft,
        model=weighted((no_model, 20), *models),
        groups=weighted(*_GROUPS),
        kept=weighted((1, 3), (2, 3), (4, 2), (8, 1)),
        per_group=weighted(*(_PER_GROUP if quick else _PER_GROUP + _MANY_PER_GROUP)),
        top_k=weighted(*_TOP_K),
        tokens=weighted(*((count, weight) for count, weight in tokens if count or capability.empty_batch)),
        scoring=restricted(_SCORINGS, capability.scorings),
        bias=weighted(*_BIAS_RULES),
        renormalise=st.booleans(),
        factor=weighted(*_FACTORS),
        rule=weighted(*_RULES),
        dtype=restricted(_DTYPES, capability.dtypes),
        seed=st.integers(0, 2**16 - 1),
        calls=weighted((1, 6), (2, 1), (3, 1)),
        edits=st.lists(_edit_drafts(capability), max_size=_MOST_EDITS),
    )
    return unmutated(drafts).map(lambda draft: draft.fit(capability))


def _edit_drafts(capability: RouterCapability) -> SearchStrategy[_EditDraft]:
    values = weighted(*_FINITE, *(_NON_FINITE if capability.non_finite else ()))
    kinds: SearchStrategy[tuple[type[RouterEdit], SearchStrategy[float]]] = weighted(
        ((SetLogit, values), 4), ((TieExperts, PLACES), 3), ((SetRow, values), 3), ((SetBias, weighted(*_BIASES)), 2)
    )

    @st.composite
    def draft(draw: st.DrawFn) -> _EditDraft:
        kind, more = draw(kinds)
        return _EditDraft(kind, draw(PLACES), draw(PLACES), draw(more))

    return draft()
