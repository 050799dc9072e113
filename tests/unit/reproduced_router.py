"""Routers for scripts, right and with a mistake each. See `oracles.reproductions`."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch

from oracles.reproductions.routing import choose, weights

COUNT = itertools.count()


def right(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids = choose(p)
    return ids.int(), weights(p, ids).float()


def forgets_the_bias(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids = choose(SimpleNamespace(**{**vars(p), "bias": None}))
    return ids.int(), weights(p, ids).float()


def twice(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weight = right(p)
    ids[:, -1] = ids[:, 0]
    return ids, weight


def nobody(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weight = right(p)
    ids[:1, :1] = p.logits.shape[1]
    return ids, weight


def heavy(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weight = right(p)
    return ids, weight * 1.001


def changes(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weight = right(p)
    return ids, weight + next(COUNT) % 3


def leaks(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weight = right(p)
    return ids, weight * (1 if bool(p.logits.isfinite().all()) else 2)


def alone(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ids, weight = right(p)
    return ids, weight * (2 if len(p.logits) == 1 else 1)


def needs_a_token(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    if not len(p.logits):
        raise RuntimeError("cannot reshape tensor of 0 elements into shape [0, -1]")
    return right(p)
