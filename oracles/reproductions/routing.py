"""The router as its definition says, in float64: a score for each expert, the best groups, the best experts in them."""

from __future__ import annotations

from types import SimpleNamespace

import torch


def scores(p: SimpleNamespace) -> torch.Tensor:
    """float64 [M, E]: what the weights are made of."""
    logits: torch.Tensor = p.logits.cpu().double()
    return torch.sigmoid(logits) if p.scoring == "sigmoid" else torch.softmax(logits, 1)


def choose(p: SimpleNamespace) -> torch.Tensor:
    """int64 [M, K]: the experts by falling score. The correction bias takes part in choosing alone."""
    choice = scores(p) if p.bias is None else scores(p) + p.bias.cpu().double()
    choice = torch.where(choice.isnan(), -torch.inf, choice)
    grouped = choice.view(len(choice), p.groups, choice.shape[1] // p.groups)
    best = 1 if p.bias is None else min(2, grouped.shape[2])
    kept = grouped.topk(best, 2).values.sum(2).topk(p.topk_groups, 1).indices
    left_out = torch.ones(len(choice), p.groups, dtype=torch.bool).scatter(1, kept, False)
    return grouped.masked_fill(left_out[:, :, None], -torch.inf).flatten(1).topk(p.top_k, 1).indices


def weights(p: SimpleNamespace, topk_ids: torch.Tensor) -> torch.Tensor:
    """float64 [M, K] of these experts: from the unbiased scores."""
    chosen = scores(p).gather(1, topk_ids)
    if p.renormalise:
        chosen = chosen / (chosen.sum(1, keepdim=True) + 1e-20)
    return chosen * float(p.routed_scaling_factor)
