"""What holds of a router's answers: `claims` for routing tables (topk_ids [M, K], topk_weights [M, K]).

`given.bounds` of a question: `choice_low`, `choice_high` [M, E] and `group_low`, `group_high` [M, G], between which a
right router may see what experts and groups are chosen by; `low`, `high` [M, E], between which it may see a score (the
weight itself, where weights are not divided by their sum), and `nan` where that is NaN; and the relative errors of the
`sum`, of the `division` by it and of the last `product`, and the `quantum` of numbers near 0, each of one element.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import torch

from oracles.reproductions.claims import Claim, same_bits
from oracles.reproductions.routing import choose, weights


def is_best(p: SimpleNamespace, token: int, experts: list[int], bounds: dict[str, torch.Tensor]) -> bool:
    """Whether some scores in their bounds make the experts a token's best: with some set of the best groups, none of
    them lies certainly below one that was left out."""
    low, high, group_low, group_high = (
        bounds[name][token].tolist() for name in ("choice_low", "choice_high", "group_low", "group_high")
    )
    size = len(low) // p.groups
    for kept in itertools.combinations(range(p.groups), p.topk_groups):
        others = [group for group in range(p.groups) if group not in kept]
        right = min(group_high[group] for group in kept) >= max((group_low[group] for group in others), default=-1e999)
        if not right or any(expert // size not in kept for expert in experts):
            continue
        left_out = [low[expert] for expert in range(len(low)) if expert // size in kept and expert not in experts]
        if min(high[expert] for expert in experts) >= max(left_out, default=-1e999):
            return True
    return False


def weight_ends(
    p: SimpleNamespace, topk_ids: torch.Tensor, bounds: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(low, high) [M, K] of the weights of these experts; NaN where nothing is claimed."""
    low, high, nan = (bounds[name].gather(1, topk_ids) for name in ("low", "high", "nan"))
    if not p.renormalise:
        return torch.where(nan, torch.nan, low), torch.where(nan, torch.nan, high)
    adding, dividing, product, quantum = (bounds[name] for name in ("sum", "division", "product", "quantum"))
    # Of a score and the others each is at the end that moves its share furthest.
    apart = 1 - torch.eye(topk_ids.shape[1], dtype=low.dtype)
    most, least = (own + (others[:, None] * apart).sum(2) + 1e-20 for own, others in ((low, high), (high, low)))
    factor = float(torch.tensor(p.routed_scaling_factor, dtype=torch.float32))
    low = low / (most * (1 + adding)) * (1 - dividing) * factor * (1 - product)
    high = high / (least * (1 - adding)) * (1 + dividing) * factor * (1 + product)
    low = torch.where(low < 2.0**-126, (low - quantum).clamp(min=0), low)
    high = torch.where((high > 0) & (high < 2.0**-126), high + quantum, high)
    unknown = nan.any(1, keepdim=True)
    return torch.where(unknown, torch.nan, low), torch.where(unknown, torch.nan, high)


def judged(
    p: SimpleNamespace, answer: tuple[torch.Tensor, torch.Tensor], bounds: dict[str, torch.Tensor]
) -> Iterator[Claim]:
    """The experts are distinct and a token's best, and their weights what the definition says."""
    ids, got = answer[0].long(), answer[1]
    plain, experts = choose(p), bounds["low"].shape[1]
    wrong = torch.zeros_like(ids, dtype=torch.bool)
    known = torch.ones(len(ids), 1, dtype=torch.bool)
    for token, chosen in enumerate(ids.tolist()):
        impossible = [not 0 <= e < experts or e in chosen[:slot] for slot, e in enumerate(chosen)]
        if any(impossible):
            wrong[token], known[token] = torch.tensor(impossible), False
        elif not is_best(p, token, chosen, bounds):
            wrong[token] = torch.tensor([expert not in plain[token].tolist() for expert in chosen])
    yield Claim("expert", ids, plain, wrong, plain, plain)
    sound = torch.where(known, ids, torch.arange(ids.shape[1]))
    low, high = weight_ends(p, sound, bounds)
    must_be_nan = bounds["nan"].gather(1, sound)
    value = got.double()
    off = torch.where(must_be_nan, ~value.isnan(), ~((value >= low) & (value <= high)) & ~low.isnan())
    yield Claim("weight", got, weights(p, sound), off & known, low, high)


def reference(given: SimpleNamespace) -> Iterator[Claim]:
    """The chosen experts are a token's best, and their weights what the definition of the router says."""
    p = given.questions[0]
    yield from judged(p, given.kernel(p), given.bounds[0])


def split(given: SimpleNamespace) -> Iterator[Claim]:
    """The first token of a batch, alone, is routed as the definition says."""
    p = given.questions[1]
    yield from judged(p, given.kernel(p), given.bounds[1])


def determinism(given: SimpleNamespace) -> Iterator[Claim]:
    """The same call gives the same bits."""
    first = given.kernel(given.questions[0])
    for call in range(1, given.calls):
        again = given.kernel(given.questions[0])
        for name, got, want in zip(("expert", "weight"), again, first, strict=True):
            yield same_bits(f"call {call + 1}, {name}", got, want)


def isolation(given: SimpleNamespace) -> Iterator[Claim]:
    """NaN and infinities of a token stay in it: made 0, they leave all other tokens as they were."""
    first, other = map(given.kernel, given.questions)
    clean = given.questions[0].logits.cpu().isfinite().all(1)[:, None]
    for name, got, want in zip(("expert", "weight"), other, first, strict=True):
        yield same_bits(f"tokens beside them, {name}", torch.where(clean, got, want), want)


ROUTER_CHECKS = {
    "prepare": reference,
    "call": reference,
    "process": reference,
    "reference": reference,
    "determinism": determinism,
    "split": split,
    "isolation": isolation,
}
"""By the check of difftest whose finding they show."""
