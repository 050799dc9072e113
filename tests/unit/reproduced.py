"""Kernels for scripts: a right one, and one for each check that finds its mistake. See `oracles.reproductions`."""

from __future__ import annotations

import itertools
import os
from types import SimpleNamespace

import torch

from oracles.reproductions.expected import expected

STEPS = {
    "input": "none",
    "intermediate_quantizer": "none",
    "weights": "float32",
    "gemm1": "bfloat16",
    "bias": "after",
    "biased": "float32",
    "intermediate": "bfloat16",
    "gemm2": "bfloat16",
    "router_weight": "float32",
    "weighted": "float32",
}
COUNT = itertools.count()


def right(p: SimpleNamespace) -> torch.Tensor:
    assert p.pdl in (None, True, False)
    return expected(p, STEPS).to(p.output_dtype)


def right_into(p: SimpleNamespace, output: torch.Tensor) -> None:
    output.copy_(right(p))


def right_replays(questions: list[SimpleNamespace]) -> list[torch.Tensor]:
    return [right(p) for p in questions]


def doubled(p: SimpleNamespace) -> torch.Tensor:
    return right(p) * 2


def changes_x(p: SimpleNamespace) -> torch.Tensor:
    out = right(p)
    p.hidden_states += 1
    return out


def needs_a_row(p: SimpleNamespace) -> torch.Tensor:
    if not len(p.hidden_states):
        raise ValueError(f"need at least {1} row")
    return right(p)


def flat_when_empty(p: SimpleNamespace) -> torch.Tensor:
    return right(p) if len(p.hidden_states) else right(p).flatten()


def counts_its_calls(p: SimpleNamespace) -> torch.Tensor:
    return right(p) + next(COUNT) % 3


def leaves_a_row(p: SimpleNamespace) -> torch.Tensor:
    out = torch.empty(p.hidden_states.shape, dtype=p.output_dtype)
    out[1:] = right(p)[1:]
    return out


def beyond(p: SimpleNamespace) -> torch.Tensor:
    return right(p)


def beyond_into(p: SimpleNamespace, output: torch.Tensor) -> None:
    output.copy_(right(p))
    output.as_strided((3,), (1,), output.storage_offset() + output.numel()).fill_(1.0)


def short(p: SimpleNamespace) -> torch.Tensor:
    return right(p)


def short_into(p: SimpleNamespace, output: torch.Tensor) -> None:
    output[1:] = right(p)[1:]


def odd_batches(p: SimpleNamespace) -> torch.Tensor:
    return right(p) + len(p.hidden_states) % 2


def first_row(p: SimpleNamespace) -> torch.Tensor:
    out = right(p)
    out[:1] += 1
    return out


def pads_with_ones(p: SimpleNamespace) -> torch.Tensor:
    out = right(p)
    out[(p.topk_ids < 0).all(1)] = 1.0
    return out


def long_batches(p: SimpleNamespace) -> torch.Tensor:
    return right(p) * (2 if len(p.hidden_states) > 5 else 1)


def foreign_leaks(p: SimpleNamespace) -> torch.Tensor:
    local = (p.topk_ids >= p.first_expert) & (p.topk_ids < p.first_expert + len(p.w13))
    return right(p) + torch.where(local, 0, p.topk_ids).sum(1, keepdim=True).to(p.output_dtype)


def every_weight(p: SimpleNamespace) -> torch.Tensor:
    return right(p) + (0 * p.topk_weights.sum(1, keepdim=True)).to(p.output_dtype)


def every_scale(p: SimpleNamespace) -> torch.Tensor:
    return right(p) * (torch.nan if bool((p.w13_scale == 0xFF).any()) else 1)


def shares_a_scale(p: SimpleNamespace) -> torch.Tensor:
    out = right(p)
    out[(~p.hidden_states.isfinite().all(1)).roll(1)] *= 0.5
    return out


def overlaps(p: SimpleNamespace) -> torch.Tensor:
    return right(p) * (2 if p.pdl is not False else 1)


def bias_on_every_rank(p: SimpleNamespace) -> torch.Tensor:
    return right(p) + (1 if p.ep_size > 1 else 0)


def stale(p: SimpleNamespace) -> torch.Tensor:
    return right(p)


def stale_replays(questions: list[SimpleNamespace]) -> list[torch.Tensor]:
    return [right(questions[0]) for _ in questions]


def aborts(_: SimpleNamespace) -> torch.Tensor:
    os.abort()
