"""The whole scenario."""

from __future__ import annotations

import typing
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import SearchStrategy

from strategies.capability import Capability
from strategies.draw.activation import activations
from strategies.draw.aim import AIMS
from strategies.draw.departure import departures
from strategies.draw.draft import Draft
from strategies.draw.execution import executions
from strategies.draw.routing import ROUTING_RULES
from strategies.draw.sizes import sizes_drafts
from strategies.draw.values import VALUE_RULES, scalings
from strategies.draw.weighted import restricted
from strategies.profile import PROFILES
from strategies.scenario import OutputDtype, Precision, Scenario

T = TypeVar("T")

_DEFAULT = Capability()
_SEEDS = st.integers(0, 2**16 - 1)
"""Enough for a campaign, and few enough that a shrinker is soon done with one."""


def scenarios(capability: Capability = _DEFAULT, *, profile: str = "default") -> SearchStrategy[Scenario]:
    """Scenarios that `capability` promises: `capability.objection` of each is None.

    profile: how large they are, a name in `PROFILES`. Each is a plain base (sizes, and content by rule and seed) with
    a short list of departures, and shrinks towards one token, one expert, no edits, eager mode. Raises
    `InvalidArgument`, naming the argument, for any other argument.
    """
    if not isinstance(capability, Capability):
        raise InvalidArgument(f"capability = {capability!r}: must be a Capability")
    if profile not in PROFILES:
        raise InvalidArgument(f"profile = {profile!r}: must be one of {', '.join(PROFILES)}")
    precisions: tuple[Precision, ...] = typing.get_args(Precision)
    output_dtypes: tuple[OutputDtype, ...] = typing.get_args(OutputDtype)
    drafts = st.builds(
        Draft,
        sizes=sizes_drafts(capability, PROFILES[profile]),
        activation=activations(capability),
        precision=restricted(((precision, 1) for precision in precisions), capability.precisions),
        output_dtype=restricted(((dtype, 1) for dtype in output_dtypes), capability.output_dtypes),
        execution=executions(capability),
        routing_rules=ROUTING_RULES,
        value_rule=VALUE_RULES,
        scaling=scalings(capability),
        seed=_SEEDS,
        aim=AIMS,
        departures=departures(capability),
    )
    return unmutated(drafts).map(lambda draft: draft.fit(capability))


def unmutated(drafts: SearchStrategy[T]) -> SearchStrategy[T]:
    """`drafts`, each drawn afresh.

    Hypothesis follows a fresh example with up to five that copy one of its choices over another, and does not do so
    inside a unique collection. Ours are unlike each other (M, E, a seed), so a copy only takes an example's place:
    without it a conjunction of rare choices is met two to three times sooner, over 16 seeds.
    """
    return st.lists(drafts, min_size=1, max_size=1, unique_by=id).map(lambda only: only[0])
