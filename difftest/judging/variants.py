"""Problems made from a problem: some of its rows, other ids, other contents.

A variant's `scenario` is edited along: it tells shape and features (rows, masked slots, non-finite values), which is
what an oracle's `unsupported` asks for. The tensors are what counts; building that scenario would not give them.
Tensors that change are copied, so that a variant's are as aligned as the original's and the original stays as it is.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, TypeVar

import torch

from oracles.kept import KEPT, same_bytes
from oracles.problem import Problem, build
from oracles.router_problem import RouterProblem
from strategies.scenario import (
    MaskRow,
    MaskSlot,
    Parallel,
    Replay,
    RoutingEdit,
    Scenario,
    SetWeight,
    ValueEdit,
)

_P = TypeVar("_P", bound=Problem | RouterProblem)


def tensors(problem: Problem | RouterProblem) -> dict[str, torch.Tensor]:
    """Every tensor of `problem` by its field, "activation.alpha" and so on for those of the activation."""
    found = {name: value for name, value in vars(problem).items() if isinstance(value, torch.Tensor)}
    inner = vars(problem.activation).items() if isinstance(problem, Problem) else ()
    return found | {f"activation.{name}": value for name, value in inner if isinstance(value, torch.Tensor)}


def clone_tensors(problem: Problem | RouterProblem) -> dict[str, torch.Tensor]:
    """A copy of each of `tensors(problem)`."""
    return {name: tensor.clone() for name, tensor in tensors(problem).items()}


def changed_tensors(problem: Problem | RouterProblem, before: dict[str, torch.Tensor]) -> list[str]:
    """Fields of `problem` that are not what they were, to the bit."""
    return [name for name, tensor in tensors(problem).items() if not same_bytes(tensor, before[name])]


def with_tensors(problem: _P, given: dict[str, torch.Tensor]) -> _P:
    """`problem` with the tensors `given`, as `tensors` names them."""
    prefix = "activation."
    inner: dict[str, Any] = {
        name.removeprefix(prefix): tensor for name, tensor in given.items() if name.startswith(prefix)
    }
    outer: dict[str, Any] = {name: tensor for name, tensor in given.items() if not name.startswith(prefix)}
    if isinstance(problem, Problem):
        outer["activation"] = replace(problem.activation, **inner)
    return replace(problem, **outer)


def take_rows(problem: Problem, index: torch.Tensor) -> Problem:
    """The tokens `index` (int64 [m], distinct) as a batch of their own, in that order."""
    scenario = problem.scenario
    chosen = index.tolist()
    place = {token: position for position, token in enumerate(chosen)}
    routing: list[RoutingEdit] = [
        replace(edit, token=place[edit.token]) for edit in scenario.routing.edits if edit.token in place
    ]
    values = [
        replace(edit, index=(place[edit.index[0]], *edit.index[1:])) if edit.tensor == "hidden_states" else edit
        for edit in scenario.values.edits
        if edit.tensor != "hidden_states" or edit.index[0] in place
    ]
    for position, token in enumerate(chosen):  # padding rows become rows of garbage, which they are
        if token >= scenario.shape.tokens:
            if scenario.execution.padding_rows == "masked":
                routing.append(MaskRow(token=position))
            values.append(ValueEdit(tensor="hidden_states", index=(position, 0), value="nan"))
    described = replace(
        scenario,
        shape=replace(scenario.shape, tokens=len(chosen)),
        execution=replace(scenario.execution, padding=0, padding_rows="masked"),
        routing=replace(scenario.routing, edits=tuple(routing)),
        values=replace(scenario.values, edits=tuple(values)),
    )
    index = index.to(problem.hidden_states.device)
    return replace(
        problem,
        scenario=described,
        hidden_states=problem.hidden_states[index],
        hidden_q=None if problem.hidden_q is None else _take(problem.hidden_q, index),
        hidden_scale=None if problem.hidden_scale is None else problem.hidden_scale[index],
        topk_ids=problem.topk_ids[index],
        topk_weights=problem.topk_weights[index],
    )


def _take(payload: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Rows of a float8 tensor, for which not every device has an index kernel."""
    return payload.view(torch.uint8)[index].view(payload.dtype)


def pad(problem: Problem, count: int) -> Problem:
    """`count` more rows as serving appends them: NaN in x, every slot masked, weight 0."""
    scenario = problem.scenario
    described = replace(scenario, execution=replace(scenario.execution, padding=scenario.execution.padding + count))

    def more(tensor: torch.Tensor, value: float) -> torch.Tensor:
        return torch.cat((tensor, tensor.new_full((count, tensor.shape[1]), value)))

    q, scale = problem.hidden_q, problem.hidden_scale
    return replace(
        problem,
        scenario=described,
        hidden_states=more(problem.hidden_states, torch.nan),
        hidden_q=None if q is None else more(q.view(torch.uint8), 0x7F).view(q.dtype),
        hidden_scale=None if scale is None else more(scale, 127),
        topk_ids=more(problem.topk_ids, -1),
        topk_weights=more(problem.topk_weights, 0.0),
    )


def with_ids(problem: Problem, topk_ids: torch.Tensor) -> Problem:
    """Other expert ids, int32 [M, K]."""
    masked = (topk_ids == -1) & (problem.topk_ids != -1)
    edits = tuple(MaskSlot(token=token, slot=slot) for token, slot in _example(problem, masked))
    return replace(problem, scenario=_edited(problem.scenario, routing=edits), topk_ids=topk_ids)


def with_weights(problem: Problem, where: torch.Tensor, weight: float) -> Problem:
    """The router weights `where`, bool [M, K], set to `weight`."""
    edits = tuple(SetWeight(token=token, slot=slot, weight=weight) for token, slot in _example(problem, where))
    weights = torch.where(where, weight, problem.topk_weights)
    return replace(problem, scenario=_edited(problem.scenario, routing=edits), topk_weights=weights)


def with_poison(problem: Problem, byte: int) -> Problem:
    """The byte that an oracle which fills its own memory fills it with."""
    execution = replace(problem.scenario.execution, poison=byte)
    return replace(problem, scenario=replace(problem.scenario, execution=execution))


def with_pdl(problem: Problem, pdl: bool) -> Problem:
    """With or without programmatic dependent launch."""
    execution = replace(problem.scenario.execution, pdl=pdl)
    return replace(problem, scenario=replace(problem.scenario, execution=execution))


_GIVEN = ("hidden_states", "hidden_q", "hidden_scale", "topk_ids", "topk_weights")
"""What each call brings."""


def eager(problem: Problem) -> Problem:
    """The same call, without a capture. What it brings is copied: a call that writes to it changes no replay's."""
    execution = replace(problem.scenario.execution, mode="eager", replays=())
    own = {name: tensor.clone() for name in _GIVEN if (tensor := getattr(problem, name)) is not None}
    return replace(problem, scenario=replace(problem.scenario, execution=execution), **own)


def replayed(problem: Problem, change: Replay, number: int) -> Problem:
    """What replay `number` (from 1) of a captured graph finds in x, ids and router weights; see `Execution.replays`.

    Of the same sizes, weights and activation. Values stay of the kind they were: exact sums stay exact.
    """
    match change:
        case "same":
            return problem
        case "x":
            return _other_x(problem, number)
        case "weights":
            return _other_weights(problem, number)
        case "ids":
            return _other_ids(problem, number)
        case "masks":
            return _without_slots(problem, number)
        case "empty_expert":
            local = problem.local_ids
            counts = torch.bincount(local[local >= 0], minlength=problem.experts_local)
            return with_ids(problem, torch.where(local == counts.argmax(), -1, problem.topk_ids))
        case "fewer_tokens":
            return _fewer_tokens(problem)
        case "all":
            return _other_weights(_other_ids(_other_x(problem, number), number), number)


def _live(problem: Problem) -> torch.Tensor:
    """bool [M, 1]: rows that are no padding."""
    rows = torch.arange(problem.tokens, device=problem.topk_ids.device)
    return (rows < problem.scenario.shape.tokens)[:, None]


def _rolled(problem: Problem, tensor: torch.Tensor, number: int) -> torch.Tensor:
    """The live rows of `tensor` moved on by `number`, those at the end to the start."""
    tokens = problem.scenario.shape.tokens
    return torch.cat((tensor[:tokens].roll(number, 0), tensor[tokens:]))


def _other_x(problem: Problem, number: int) -> Problem:
    """The rows of x moved on, and every sign changed."""
    sign = torch.where(_live(problem), 0x80, 0).to(torch.uint8)
    states, q, scale = problem.hidden_states, problem.hidden_q, problem.hidden_scale
    return replace(
        problem,
        hidden_states=torch.where(_live(problem), -_rolled(problem, states, number), states),
        hidden_q=None if q is None else (_rolled(problem, q.view(torch.uint8), number) ^ sign).view(q.dtype),
        hidden_scale=None if scale is None else _rolled(problem, scale, number),
    )


def _other_weights(problem: Problem, number: int) -> Problem:
    """The router weights of other rows and slots, and half of them."""
    weights = _rolled(problem, problem.topk_weights, number).flip(1) / 2
    return replace(problem, topk_weights=torch.where(_live(problem), weights, problem.topk_weights))


def _other_ids(problem: Problem, number: int) -> Problem:
    """Each expert's rows go to the one `number` further on: other counts, and with them other tiles."""
    ids, experts = problem.topk_ids, problem.num_experts
    named = _live(problem) & (ids >= 0) & (ids < experts)
    return replace(problem, topk_ids=torch.where(named, (ids + number) % experts, ids))


def _without_slots(problem: Problem, number: int) -> Problem:
    """Every other slot is masked, the first among them for odd numbers."""
    tokens, top_k = problem.topk_ids.shape
    places = torch.arange(tokens * top_k, device=problem.topk_ids.device).view(tokens, top_k)
    return with_ids(problem, torch.where(_live(problem) & ((places + number) % 2 == 1), -1, problem.topk_ids))


def _fewer_tokens(problem: Problem) -> Problem:
    """The second half of the live rows becomes padding: NaN in x, every slot masked, weight 0."""
    scenario = problem.scenario
    tokens = scenario.shape.tokens // 2
    kept = take_rows(problem, torch.arange(tokens))
    described = replace(
        kept.scenario,
        execution=replace(scenario.execution, padding=scenario.execution.padding + scenario.shape.tokens - tokens),
    )
    padded = pad(replace(kept, scenario=described), problem.tokens - tokens)
    return replace(padded, scenario=described)


def with_plain_rows(problem: Problem, where: torch.Tensor) -> Problem:
    """The rows `where`, bool [M], made ordinary: 1 throughout x, and 0.5 for a router weight that is not finite.

    Not 0: an implementation may skip a weight of 0, and would then compute other batches than before.
    """
    q, scale = problem.hidden_q, problem.hidden_scale
    rows = where[:, None]
    weights = problem.topk_weights
    return replace(
        problem,
        hidden_states=torch.where(rows, 1.0, problem.hidden_states).to(problem.hidden_states.dtype),
        hidden_q=None if q is None else torch.where(rows, 0x38, q.view(torch.uint8)).to(torch.uint8).view(q.dtype),
        hidden_scale=None if scale is None else torch.where(rows, 127, scale).to(torch.uint8),
        topk_weights=torch.where(rows & ~weights.isfinite(), 0.5, weights),
    )


def with_expert_bytes(problem: Problem, experts: list[int], scale_byte: int) -> Problem:
    """The weights of the rank's own `experts` (local ids) replaced: every code 0xF, every scale `scale_byte`."""
    changed = {}
    for name in ("w13", "w2"):
        for field, byte in ((name, 0xFF), (f"{name}_scale", scale_byte)):
            changed[field] = getattr(problem, field).clone()
            changed[field][experts] = byte
    edits = tuple(
        ValueEdit(tensor="w13_scale", index=(problem.first_expert + expert, 0, 0), value=scale_byte)
        for expert in experts[:1]
    )
    return replace(problem, scenario=_edited(problem.scenario, values=edits), **changed)


def on_rank(problem: Problem, ep_size: int, ep_rank: int) -> Problem:
    """The same layer, batch and routing table, seen by another rank, or by a rank that holds every expert.

    The table is this problem's own: some routing rules look at the rank.
    """
    device = problem.hidden_states.device
    other = build(replace(problem.scenario, parallel=Parallel(ep_size=ep_size, ep_rank=ep_rank)), device, KEPT)
    return replace(other, **{name: getattr(problem, name) for name in _GIVEN})


def redrawn(problem: Problem, number: int) -> Problem:
    """Random signs on the columns of x and on the rows of w13: as good a draw, with other roundings.

    The signs are a function of the scenario and of `number`.
    """
    source = random.Random(f"{problem.scenario.digest}/{number}")
    device = problem.hidden_states.device

    def flips(count: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(source.randbytes(count)), dtype=torch.uint8).to(device) & 1

    columns = flips(problem.hidden)
    rows = flips(problem.w13.shape[0] * problem.w13.shape[1]).view(problem.w13.shape[:2])
    sign = (1 - 2 * columns.to(torch.int16)).to(problem.hidden_states.dtype)
    q = problem.hidden_q
    return replace(
        problem,
        hidden_states=problem.hidden_states * sign,
        hidden_q=None if q is None else (q.view(torch.uint8) ^ (columns << 7)).view(q.dtype),
        w13=problem.w13 ^ (rows * 0x88).unsqueeze(-1),
    )


def _example(problem: Problem, where: torch.Tensor) -> list[tuple[int, int]]:
    """One (token, slot) of `where`, bool [M, K], to tell what it is about; none when all are in padding rows."""
    found = where[: problem.scenario.shape.tokens].nonzero()[:1].tolist()
    return [(token, slot) for token, slot in found]


def _edited(
    scenario: Scenario, *, routing: tuple[RoutingEdit, ...] = (), values: tuple[ValueEdit, ...] = ()
) -> Scenario:
    return replace(
        scenario,
        routing=replace(scenario.routing, edits=scenario.routing.edits + routing),
        values=replace(scenario.values, edits=scenario.values.edits + values),
    )
