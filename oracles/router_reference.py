"""The router's recipe in float64, and all that a right router may answer.

DeepSeek-V3's gate, which Kimi-K3 has with one group: a score for each expert, a correction bias that takes part in
choosing alone, the best groups and the best K experts in them, weights from the unbiased scores.

Each score lies in an interval, derived from the declared arithmetic (docs/enclosures.md). A choice S is right when some
scores within their intervals make it a best one: no expert of S lies certainly below one that was left out. So experts
that are exactly or nearly tied may stand in for each other, and others not. The weights are judged for the experts that
were chosen.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import torch

from oracles import formats
from oracles.enclosure import ANY, FINITE, NAN, Enclosure
from oracles.numerics import Transcendental
from oracles.router_numerics import RouterNumerics
from oracles.router_problem import RouterProblem
from strategies.router import RouterScenario

EPSILON = 1e-20
"""Added to the sum of the chosen scores before it divides them (modeling_deepseek.py), in float32."""

_U = 2.0**-24
_ULP = 2.0**-23
_TINY = 2.0**-126
_SMALLEST = 2.0**-149


@dataclass(frozen=True, kw_only=True)
class RoutingEnclosure:
    """What a right router may answer; float64 [M, E].

    center, low, high: the unbiased score; a NaN is 0 there. choice_low, choice_high: what the experts are ranked by.
    nan: bool, the score is NaN.
    """

    scenario: RouterScenario
    numerics: RouterNumerics
    center: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    choice_low: torch.Tensor
    choice_high: torch.Tensor
    nan: torch.Tensor

    def weights(self, topk_ids: torch.Tensor) -> Enclosure:
        """What topk_weights [M, K] may be for these experts, int64 [M, K], each in [0, E).

        The weight of a NaN score is NaN. Beside one, in a token whose weights are divided by their sum, nothing is
        claimed: the token's output is NaN already.
        """
        scores = self.scenario.scores
        center, low, high = (ends.gather(1, topk_ids) for ends in (self.center, self.low, self.high))
        nan = self.nan.gather(1, topk_ids)
        if scores.renormalise:
            center = center / (center.sum(1, keepdim=True) + EPSILON)
            low, high = self._shares(low, high)
        factor = formats.round_to(torch.tensor(scores.routed_scaling_factor, dtype=torch.float64), "float32").item()
        center, low, high = center * factor, low * factor * (1 - _U), high * factor * (1 + _U)
        if not scores.renormalise:  # the division by a float32 sum leaves float32
            center, low, high = _rounded(center, low, high, self.numerics, self.scenario)
        quantum = self.arithmetic["quantum"]
        low = torch.where(low < _TINY, (low - quantum).clamp(min=0.0), low)
        high = torch.where((high > 0) & (high < _TINY), high + quantum, high)
        hard = torch.where(nan, 0.0, torch.maximum(high - center, center - low).clamp(min=0.0))
        beside = ANY if scores.renormalise else FINITE
        kinds = torch.where(nan, NAN, torch.where(nan.any(1, keepdim=True), beside, FINITE)).to(torch.uint8)
        return Enclosure(center=torch.where(nan, torch.nan, center), hard=hard, sharp=hard, kinds=kinds)

    def _shares(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Ends of s / (sum + epsilon): s at one end and all others at the other. K additions and a division."""
        apart = 1.0 - torch.eye(low.shape[1], dtype=low.dtype, device=low.device)
        summing, dividing = self.arithmetic["sum"], self.arithmetic["division"]

        def share(own: torch.Tensor, others: torch.Tensor, sign: float) -> torch.Tensor:
            total = own + (others[:, None, :] * apart).sum(2) + EPSILON
            return own / (total * (1 - sign * summing)) * (1 + sign * dividing)

        return share(low, high, -1.0), share(high, low, 1.0)

    @property
    def arithmetic(self) -> dict[str, float]:
        """Relative errors of the sum of K scores, of the division by it and of the product with
        routed_scaling_factor; and the absolute one of a result that is no normal number."""
        count, accuracy = self.scenario.shape.top_k, self.numerics.transcendental
        return {
            "sum": count * _U * (1 + count * _U),
            "division": _division(accuracy),
            "product": _U,
            "quantum": _quantum(accuracy),
        }

    def wrong_choice(self, topk_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(wrong bool [M], slot int64 [M], expert int64 [M]) of a choice of distinct experts, int64 [M, K], in [0, E).

        Where it is wrong, the expert at `slot` lies certainly below `expert`, which was left out.
        """
        shape = self.scenario.shape
        tokens, experts = self.choice_low.shape
        if tokens == 0:
            return topk_ids.new_zeros(0, dtype=torch.bool), topk_ids.new_zeros(0), topk_ids.new_zeros(0)
        chosen = torch.zeros(tokens, experts, dtype=torch.bool, device=topk_ids.device).scatter_(1, topk_ids, True)
        group = torch.arange(experts, device=topk_ids.device) // shape.experts_per_group
        used = torch.zeros(tokens, shape.groups, dtype=torch.bool, device=topk_ids.device)
        used.scatter_(1, group[topk_ids], True)
        least, slot = self.choice_high.gather(1, topk_ids).min(1)
        left_out = torch.where(chosen, -torch.inf, self.choice_low)
        grouped = left_out.view(tokens, shape.groups, shape.experts_per_group)
        best, place = grouped.max(2)
        kept = self._kept_groups(topk_ids.device)  # [C, G]
        excess = torch.where(kept, best[:, None, :], -torch.inf)  # [M, C, G]
        allowed = self._allowed_groups(kept) & ~(used[:, None, :] & ~kept).any(2)
        highest, where = excess.max(2)
        wrong = ~(allowed & (highest <= least[:, None])).any(1)
        # Told by the set of groups that comes closest; by any that is right itself where a chosen expert is outside.
        fits = allowed if shape.groups == 1 else torch.where(allowed.any(1, keepdim=True), allowed, True)
        nearest = torch.where(fits, highest, torch.inf).argmin(1, keepdim=True)
        from_group = where.gather(1, nearest)
        expert = from_group * shape.experts_per_group + place.gather(1, from_group)
        if shape.groups > 1:
            slot, expert = self._outside(topk_ids, kept, allowed, slot, expert)
        return wrong, slot, expert.flatten()

    def _outside(
        self,
        topk_ids: torch.Tensor,
        kept: torch.Tensor,
        allowed: torch.Tensor,
        slot: torch.Tensor,
        expert: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(slot, expert), told by a group that should not have been used where no set of groups allows the choice."""
        shape = self.scenario.shape
        right = self._allowed_groups(kept).byte().argmax(1)  # some right set
        inside = kept[right].repeat_interleave(shape.experts_per_group, dim=1)  # [M, E]
        out = ~inside.gather(1, topk_ids)
        better = torch.where(inside, self.choice_low, -torch.inf)
        better = better.scatter(1, topk_ids, -torch.inf).argmax(1, keepdim=True)
        told = ~allowed.any(1) & out.any(1)
        return torch.where(told, out.byte().argmax(1), slot), torch.where(told[:, None], better, expert)

    def _kept_groups(self, device: torch.device) -> torch.Tensor:
        """bool [C, G]: every set of topk_groups groups."""
        return _combinations(self.scenario.shape.groups, self.scenario.shape.topk_groups).to(device)

    def _allowed_groups(self, kept: torch.Tensor) -> torch.Tensor:
        """bool [M, C]: no group of the set lies certainly below one outside."""
        low, high = self.group_scores
        least = torch.where(kept, high[:, None, :], torch.inf).min(2).values
        best = torch.where(kept, -torch.inf, low[:, None, :]).max(2).values
        return least >= best

    @functools.cached_property
    def group_scores(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(low, high) [M, G]: see `strategies.router.Scores`. With a NaN in a group nothing is known of it, unless a
        NaN ranks last."""
        shape = self.scenario.shape

        def grouped(ends: torch.Tensor) -> torch.Tensor:
            return ends.view(len(ends), shape.groups, shape.experts_per_group)

        best = 1 if self.scenario.scores.bias == "none" else min(2, shape.experts_per_group)
        low, high = (grouped(ends).topk(best, 2).values.sum(2) for ends in (self.choice_low, self.choice_high))
        if best > 1:
            low, high = formats.round_to(low, "float32"), formats.round_to(high, "float32")
        unknown = grouped(self.nan).any(2) & (self.numerics.nan != "last")
        return torch.where(unknown, -torch.inf, low), torch.where(unknown, torch.inf, high)


@functools.cache
def _combinations(groups: int, kept: int) -> torch.Tensor:
    sets = list(itertools.combinations(range(groups), kept))
    return torch.zeros(len(sets), groups, dtype=torch.bool).scatter_(1, torch.tensor(sets), True)


def enclose(problem: RouterProblem, numerics: RouterNumerics) -> RoutingEnclosure:
    """What a right router that declares `numerics` may answer to `problem`."""
    scenario = problem.scenario
    logits = problem.logits.double()
    function = _sigmoid if scenario.scores.scoring == "sigmoid" else _softmax
    center, low, high = function(logits, numerics.transcendental)
    center, low, high = _rounded(center, low, high, numerics, scenario)
    nan = center.isnan()
    center, low, high = (torch.where(nan, 0.0, ends) for ends in (center, low, high))
    choice_low, choice_high = low, high
    if problem.bias is not None:
        bias = problem.bias.double()
        choice_low, choice_high = (formats.round_to(ends + bias, "float32") for ends in (low, high))
        if numerics.transcendental.flush_to_zero:
            choice_low = torch.where(choice_low.abs() < _TINY, choice_low.clamp(max=0.0), choice_low)
            choice_high = torch.where(choice_high.abs() < _TINY, choice_high.clamp(min=0.0), choice_high)
    # A NaN logit leaves no number in a softmax, and a kernel may rank the logits in its place.
    place = "any" if scenario.scores.scoring == "softmax" else numerics.nan
    return RoutingEnclosure(
        scenario=scenario,
        numerics=numerics,
        center=center,
        low=low,
        high=high,
        choice_low=torch.where(nan, torch.inf if place == "first" else -torch.inf, choice_low),
        choice_high=torch.where(nan, -torch.inf if place == "last" else torch.inf, choice_high),
        nan=nan,
    )


Ends = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""(center, low, high)."""


def _sigmoid(x: torch.Tensor, accuracy: Transcendental) -> Ends:
    """1 / (1 + exp(-x)).

    Relative error: that of exp, damped by 1 - sigmoid, one addition, one division. Below -87 exp(-x) overflows, or a
    fast division's denominator passes 2**126: 0.
    """
    center = torch.sigmoid(x)
    error = (1 - center) * _exp_error(x, accuracy) + _U + _division(accuracy)
    error = error * (1 + 2 * error)
    low, high = center * (1 - error), center * (1 + error)
    small = x < -87
    return center, torch.where(small, 0.0, low), torch.where(small, high + _quantum(accuracy), high)


def _softmax(x: torch.Tensor, accuracy: Transcendental) -> Ends:
    """exp(x - max) / sum exp(x - max).

    The difference is rounded, which exp turns into a relative error of |x - max| u; E - 1 additions of positive terms
    in any order; one division. A term that is no normal number may be 0.
    """
    count = x.shape[1]
    away = x - x.amax(1, keepdim=True)
    term = torch.exp(away)
    error = _exp_error(away, accuracy) + away.abs().clamp(max=200.0) * _U
    error = error * (1 + error)
    lost = _quantum(accuracy)
    low = torch.where(term < 2 * _TINY, 0.0, term * (1 - error))
    high = torch.where(term < 2 * _TINY, term * (1 + error) + lost, term * (1 + error))
    summing = count * _U * (1 + count * _U)
    dividing = _division(accuracy)
    center = term / term.sum(1, keepdim=True)
    # Of one term and the sum of all others each is at the end that moves the share furthest.
    share_low = low / ((low + high.sum(1, keepdim=True) - high) * (1 + summing)) * (1 - dividing)
    share_high = high / ((high + low.sum(1, keepdim=True) - low) * (1 - summing)) * (1 + dividing)
    tiny = share_high < _TINY
    share_low = torch.where(tiny, 0.0, share_low * (1 - 2.0**-50))
    return center, share_low, torch.where(tiny & (share_high > 0), share_high + lost, share_high * (1 + 2.0**-50))


def _rounded(
    center: torch.Tensor, low: torch.Tensor, high: torch.Tensor, numerics: RouterNumerics, scenario: RouterScenario
) -> Ends:
    """The score rounded to the dtype that is declared: of float32 the error has it already."""
    dtype = scenario.logits.dtype
    if numerics.scores == "float32" or dtype == "float32":
        return center, low, high
    cut = formats.round_to(low, dtype), formats.round_to(high, dtype)
    if numerics.scores == "either":
        return center, torch.minimum(low, cut[0]), torch.maximum(high, cut[1])
    return formats.round_to(center, dtype), *cut


def _exp_error(x: torch.Tensor, accuracy: Transcendental) -> torch.Tensor:
    """Relative error of exp(x), from the argument's size where it is ex2.approx of x log2 e."""
    if accuracy.exp == "fast":
        return (2 + (1.173 * x.abs().clamp(max=200.0)).floor()) * _ULP
    return torch.full_like(x, accuracy.exp_ulps * _ULP)


def _division(accuracy: Transcendental) -> float:
    return 2 * _ULP if accuracy.divide == "fast" else _U


def _quantum(accuracy: Transcendental) -> float:
    """How far a result that is no normal number may be off."""
    return _TINY if accuracy.flush_to_zero else _SMALLEST * max(2.0, accuracy.exp_ulps)
