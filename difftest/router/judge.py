"""Judges a routing table: the experts as sets with ties, then the weights of those that were chosen."""

from __future__ import annotations

from dataclasses import replace

import torch

from difftest.judging.compare import Breach, Judgement, judge, malformed
from difftest.judging.outcome import Worst
from oracles.enclosure import ANY
from oracles.router_problem import RouterProblem, RoutingTable
from oracles.router_reference import RoutingEnclosure


def malformed_table(output: object, problem: RouterProblem) -> Breach | None:
    """What is wrong with the type, shapes, dtypes or devices of a router's answer; None when it is as promised."""
    if not isinstance(output, tuple) or len(output) != 2:
        return Breach(kind="shape_or_dtype", detail=f"returned {type(output).__name__}, must be a RoutingTable")
    shape = (problem.tokens, problem.scenario.shape.top_k)
    for name, tensor, dtype in zip(RoutingTable._fields, output, (torch.int32, torch.float32), strict=True):
        breach = malformed(tensor, shape, dtype, problem.logits.device)
        if breach is not None:
            return replace(breach, detail=f"{name}: {breach.detail}")
    return None


def judge_table(table: RoutingTable, enclosure: RoutingEnclosure) -> Judgement:
    """Compare `table` with what `enclosure` allows. The worst element is that of the first token that is wrong."""
    experts, ids = enclosure.scenario.shape.experts, table.topk_ids.long()
    invalid = (ids < 0) | (ids >= experts)
    repeated = _repeated(ids) & ~invalid.any(1, keepdim=True)
    known = ~(invalid | repeated).any(1)
    breaches = []
    if bool(invalid.any()):
        breaches.append(_breach("invalid_expert", invalid, ids, f"must be in [0, {experts})"))
    if bool(repeated.any()):
        breaches.append(_breach("repeated_expert", repeated, ids, "is chosen twice"))
    # A stand-in for the rows whose experts are no choice: it is not looked at.
    first = torch.arange(ids.shape[1], device=ids.device)
    sound = torch.where(known[:, None], ids, first)
    wrong, slot, better = enclosure.wrong_choice(sound)
    wrong &= known
    if bool(wrong.any()):
        where = wrong[:, None] & (first == slot[:, None])
        breaches.append(_wrong_expert(where, ids, better, enclosure))
    allowed = enclosure.weights(sound)
    kinds = torch.where(known[:, None], allowed.kinds, ANY).to(torch.uint8)
    weights = judge(table.topk_weights, replace(allowed, kinds=kinds), enclosure.numerics)
    return Judgement(breaches=(*breaches, *weights.breaches), stats=weights.stats)


def _repeated(ids: torch.Tensor) -> torch.Tensor:
    """bool [M, K]: slots whose expert an earlier slot of the token has."""
    same = ids[:, :, None] == ids[:, None, :]
    return (same & torch.ones_like(same).tril(-1)).any(2)


def _place(where: torch.Tensor) -> tuple[int, int]:
    return divmod(int(where.flatten().byte().argmax()), where.shape[1])


def _breach(kind: str, where: torch.Tensor, ids: torch.Tensor, said: str) -> Breach:
    token, slot = _place(where)
    expert = int(ids[token, slot])
    some = f"{int(where.any(1).sum())} of {len(where)} tokens"
    worst = _worst(token, slot, expert, float("nan"))
    return Breach(kind=kind, detail=f"{some}: [{token}, {slot}] is expert {expert}, which {said}", worst=worst)


def _wrong_expert(where: torch.Tensor, ids: torch.Tensor, better: torch.Tensor, enclosure: RoutingEnclosure) -> Breach:
    token, slot = _place(where)
    expert, other = int(ids[token, slot]), int(better[token])
    low, high = enclosure.choice_low, enclosure.choice_high

    def score(index: int) -> str:
        ends = float(low[token, index]), float(high[token, index])
        return f"{ends[0]:.9g}" if ends[0] == ends[1] else f"{sum(ends) / 2:.9g}"

    shape = enclosure.scenario.shape
    group = ""
    if shape.groups > 1:
        mine, theirs = expert // shape.experts_per_group, other // shape.experts_per_group
        group = f", of group {mine} where group {theirs} has the higher score" if mine != theirs else ""
    some = f"{int(where.any(1).sum())} of {len(where)} tokens"
    detail = (
        f"{some} chose an expert that scores too low: [{token}, {slot}] is expert {expert} with {score(expert)}, "
        f"left out was expert {other} with {score(other)}{group}"
    )
    return Breach(kind="wrong_expert", detail=detail, worst=_worst(token, slot, expert, float(other)))


def _worst(token: int, slot: int, got: int, expected: float) -> Worst:
    return Worst(
        token=token,
        column=slot,
        got=float(got),
        center=expected,
        hard=(expected, expected),
        sharp=(expected, expected),
        radius=0.0,
    )
