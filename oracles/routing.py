"""The routing table of a scenario: a rule, then its edits. Integers without ties: the same on every device."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from oracles import formats, hashing
from strategies.scenario import AssignExpert, DuplicateSlot, MaskRow, MaskSlot, Scenario, SetWeight, StrayId

# Streams of the hash; `oracles.content` has the others.
_KEY, _ORDER, _LOCAL, _WEIGHT, _TARGET = 100, 101, 102, 103, 104

LOCAL_ROWS = (15, 16)
"""Of 16 rows 15 get at least one expert of this rank, under every rule but remote_only, all_to_one, round_robin and
ties. A real rank holds 1 expert in 32: without this most rows would test nothing."""


def route(
    scenario: Scenario, device: torch.device, given: Mapping[str, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(topk_ids int32, topk_weights float32), each [M, K].

    given: of these, what stands for what the rule makes of the tokens.
    Padding rows are masked and weigh 0, or come from the rule, as further tokens would.
    Rules, before the edits; a row's ids are distinct:
    uniform        any K of the E experts, in any order.
    skewed         expert of popularity rank r is drawn about 1 / (r + 1) as often as the first.
    all_to_one     every row the same K: consecutive ids from one drawn expert, of this rank for even seeds.
    round_robin    consecutive ids, each row where the last one ended.
    remote_only    only experts of other ranks, as far as there are K.
    empty_experts  half of the experts are never drawn, as far as K allows.
    ties           equal logits: the ids 0..K-1, equal weights.
    """
    return _Router(scenario, device).table(given or {})


class _Router:
    def __init__(self, scenario: Scenario, device: torch.device) -> None:
        self.scenario = scenario
        self.device = device
        self.seed = scenario.routing.seed
        execution = scenario.execution
        self.padding = execution.padding if execution.padding_rows == "masked" else 0
        self.tokens = scenario.shape.tokens + execution.padding - self.padding

    def _arange(self, count: int) -> torch.Tensor:
        return torch.arange(count, dtype=torch.int64, device=self.device)

    def _hash(self, stream: int, column: torch.Tensor, row: torch.Tensor | int = 0) -> torch.Tensor:
        """int64 in [0, 2**32)."""
        return hashing.hashed(hashing.key(self.seed, stream), column, row) & 0xFFFFFFFF

    def table(self, given: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        ids, weights = self._ids(), self._weights()
        for name, tensor in (("topk_ids", ids), ("topk_weights", weights)):
            if name in given:
                tensor[: self.scenario.shape.tokens] = given[name]
        for edit in self.scenario.routing.edits:
            match edit:
                case MaskSlot(token=token, slot=slot):
                    ids[token, slot] = -1
                case MaskRow(token=token):
                    ids[token] = -1
                case AssignExpert(token=token, slot=slot, expert=expert):
                    ids[token, slot] = expert
                case StrayId(token=token, slot=slot, expert_id=expert_id):
                    ids[token, slot] = expert_id
                case DuplicateSlot(token=token, slot=slot, source=source):
                    ids[token, slot] = ids[token, source].clone()
                case SetWeight(token=token, slot=slot, weight=weight):
                    weights[token, slot] = weight
        padding = (self.padding, self.scenario.shape.top_k)
        ids = torch.cat((ids, ids.new_full(padding, -1)))
        return ids.to(torch.int32), torch.cat((weights, weights.new_zeros(padding)))

    def _ids(self) -> torch.Tensor:
        """int64 [tokens, K], distinct in a row; tokens include routed padding rows."""
        scenario, rule = self.scenario, self.scenario.routing.rule
        tokens, top_k, experts = self.tokens, scenario.shape.top_k, scenario.shape.experts
        first, end = scenario.first_expert, scenario.first_expert + scenario.experts_local
        token, expert, slot = self._arange(tokens)[:, None], self._arange(experts), self._arange(top_k)
        match rule:
            case "ties":
                return slot.repeat(tokens, 1)
            case "round_robin":
                return (token * top_k + slot) % experts
            case "all_to_one":
                drawn = hashing.key(self.seed, _TARGET)
                target = first + drawn % scenario.experts_local if self.seed % 2 == 0 else drawn % experts
                return ((target + slot) % experts).repeat(tokens, 1)
        key = self._hash(_KEY, expert, token)
        local = (expert >= first) & (expert < end)
        blocked = torch.zeros_like(local)
        if rule in ("skewed", "empty_experts"):
            popularity = self._hash(_ORDER, expert).argsort(stable=True).argsort()
            if rule == "skewed":
                key = key // (1 + popularity)
            else:
                blocked = popularity >= max(top_k, experts // 2)
        elif rule == "remote_only":
            blocked = local
        # Keys are below 2**32 and made distinct by the expert, so that the choice has no ties on any device.
        key = (key - (blocked.long() << 32)) * experts + expert
        ids = key.topk(top_k, dim=1).indices
        return ids if rule == "remote_only" else self._with_local_slot(ids, key, local & ~blocked)

    def _with_local_slot(self, ids: torch.Tensor, key: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
        """Put the row's best local expert into one slot of rows that have none (see `LOCAL_ROWS`)."""
        if self.scenario.parallel.ep_size == 1 or not bool(local.any()):
            return ids
        tokens, top_k = ids.shape
        hashed = self._hash(_LOCAL, self._arange(tokens))
        lacking = ~local[ids].any(dim=1) & (hashed % LOCAL_ROWS[1] < LOCAL_ROWS[0])
        best = torch.where(local, key, torch.iinfo(torch.int64).min).argmax(dim=1)
        slot = (hashed >> 8) % top_k
        replaced = (self._arange(top_k) == slot[:, None]) & lacking[:, None]
        return torch.where(replaced, best[:, None], ids)

    def _weights(self) -> torch.Tensor:
        """float32 [tokens, K]: positive, a row sums to 1; powers of two under the integer rule, equal under ties."""
        scenario = self.scenario
        tokens, top_k = self.tokens, scenario.shape.top_k
        hashed = self._hash(_WEIGHT, self._arange(top_k), self._arange(tokens)[:, None])
        if scenario.values.rule == "integer":
            return formats.exp2(-(hashed % 3)).float()
        share = torch.ones_like(hashed) if scenario.routing.rule == "ties" else 1 + hashed % 65536
        return share.float() / share.sum(dim=1, keepdim=True).float()
