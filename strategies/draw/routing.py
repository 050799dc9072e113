"""The routing table's rule."""

from __future__ import annotations

from hypothesis.strategies import SearchStrategy

from strategies.draw.sizes import Sizes
from strategies.draw.weighted import weighted
from strategies.scenario import Routing, RoutingRule

_Rules = tuple[tuple[RoutingRule, int], ...]
_ONE_RANK: _Rules = (
    ("uniform", 36),
    ("skewed", 18),
    ("empty_experts", 18),
    ("all_to_one", 14),
    ("round_robin", 16),
    ("ties", 6),
)
_MANY_RANKS: _Rules = (
    ("uniform", 36),
    ("skewed", 18),
    ("empty_experts", 18),
    ("all_to_one", 14),
    ("round_robin", 12),
    ("ties", 4),
    ("remote_only", 6),
)
# A rank of many holds few of the experts. Rules that leave most of its rows without one are rare there, or nine of
# ten rows would test nothing.
_MODEL: _Rules = (
    ("uniform", 48),
    ("skewed", 18),
    ("empty_experts", 18),
    ("all_to_one", 21),
    ("round_robin", 1),
    ("ties", 1),
    ("remote_only", 1),
)


def _spread(rules: _Rules) -> list[RoutingRule]:
    return [rule for rule, weight in rules for _ in range(weight)]


RuleByPlace = tuple[RoutingRule, RoutingRule, RoutingRule]
"""The rule for one rank, for many, and for a rank of a model: one choice, whatever the sizes will be."""

ROUTING_RULES: SearchStrategy[RuleByPlace] = weighted(
    *((rules, 1) for rules in zip(_spread(_ONE_RANK), _spread(_MANY_RANKS), _spread(_MODEL), strict=True))
)


def routing(rules: RuleByPlace, seed: int, sizes: Sizes) -> Routing:
    """The routing, without edits."""
    one_rank, many_ranks, model = rules
    if sizes.parallel.ep_size == 1:
        return Routing(rule=one_rank, seed=seed)
    if sizes.model is None:
        return Routing(rule=many_ranks, seed=seed)
    if model == "all_to_one":
        seed -= seed % 2  # for an even seed the one expert is this rank's, see `oracles.routing`
    return Routing(rule=model, seed=seed)
