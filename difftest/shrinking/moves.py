"""Steps from a scenario towards a simpler one. Each move yields valid scenarios, the boldest first.

A move may yield one that is no simpler, or that no kernel supports: the reducer asks `complexity` and the predicate.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, get_args

from difftest.router import moves as router_moves
from difftest.shrinking.capture_moves import drop_places, drop_tensors
from difftest.shrinking.complexity import SIMPLEST_FACTOR
from difftest.shrinking.edit_moves import drop_edits, simplify_edits, without_one_edit
from difftest.shrinking.refit import changed, replaced
from difftest.shrinking.search import smaller, smaller_widths
from strategies.plain import AnyScenario
from strategies.router import RouterScenario
from strategies.scenario import MaskRow, MaskSlot, Replay, Scenario, ValueEdit

Move = Callable[[Scenario], Iterator[Scenario]]

SEEDS = range(4)
"""Seeds that are tried for a rule; one draw in a few is enough when a smaller shape lost the failure by chance."""

TACTICS = 4
"""The first so many are tried in any case."""

_DEFAULTS = {spec.name: spec.default for spec in dataclasses.fields(Scenario) if spec.name not in ("shape", "parallel")}
_PARTS = ("activation", "layer", "routing", "values", "execution")
_CONTENTS = ("routing", "values", "capture")
_LINKED = (
    ("layer", ("moe_tp_size", "moe_tp_rank")),
    ("values", ("scale_low", "scale_high")),
    ("execution", ("mode", "replays")),
)
"""Fields that only go to their default together."""

_REPLAYS: tuple[Replay, ...] = get_args(Replay)


def default_all(scenario: Scenario) -> Iterator[Scenario]:
    """Everything but shape, parallelism and edits to its default at once; then all but the contents."""
    yield from replaced(scenario, **_DEFAULTS)
    yield from replaced(scenario, **{name: part for name, part in _DEFAULTS.items() if name not in _CONTENTS})


def default_each(scenario: Scenario) -> Iterator[Scenario]:
    """Each part to its default, then each field, then numbers towards it."""
    for name, default in _DEFAULTS.items():
        yield from replaced(scenario, **{name: default})
    yield from replaced(scenario, activation=type(scenario.activation)())
    for name in _PARTS:
        part = getattr(scenario, name)
        defaults = {spec.name: spec.default for spec in dataclasses.fields(part) if spec.name not in ("seed", "edits")}
        groups = [fields for linked, fields in _LINKED if linked == name] + [(field,) for field in defaults]
        for fields in groups:
            yield from changed(scenario, **{name: {field: defaults[field] for field in fields}})
    yield from changed(scenario, values={"rule": "integer"})
    yield from changed(scenario, layer={"routed_scaling_factor": SIMPLEST_FACTOR})
    if scenario.execution.tactic is not None:  # a tactic's neighbours are no simpler forms of it
        for tactic in range(min(scenario.execution.tactic, TACTICS)):
            yield from changed(scenario, execution={"tactic": tactic})
    sign = -1 if scenario.values.x_exponent < 0 else 1
    for exponent in smaller(abs(scenario.values.x_exponent), 0):
        yield from changed(scenario, values={"x_exponent": sign * exponent})
    for field, least in (("padding", 0), ("repeats", 1), ("tactic", 0), ("poison", 0)):
        value = getattr(scenario.execution, field) or 0
        for number in dict.fromkeys((*range(least, min(value, least + 2)), *smaller(value, least))):
            yield from changed(scenario, execution={field: number})


def shrink_replays(scenario: Scenario) -> Iterator[Scenario]:
    """One replay fewer, from the last; then each with a simpler change before it."""
    replays = scenario.execution.replays
    for position in reversed(range(len(replays))):
        yield from changed(scenario, execution={"replays": replays[:position] + replays[position + 1 :]})
    for position, change in enumerate(replays):
        for simpler in _REPLAYS[: _REPLAYS.index(change)]:
            yield from changed(
                scenario, execution={"replays": (*replays[:position], simpler, *replays[position + 1 :])}
            )


def shrink_seeds(scenario: Scenario) -> Iterator[Scenario]:
    """Seeds to 0, together and one at a time, then to the next few."""
    routing, values = scenario.routing.seed, scenario.values.seed
    yield from changed(scenario, routing={"seed": 0}, values={"seed": 0})
    for seed in SEEDS:
        if seed < values:
            yield from changed(scenario, values={"seed": seed})
        if seed < routing:
            yield from changed(scenario, routing={"seed": seed})


def shrink_widths(scenario: Scenario) -> Iterator[Scenario]:
    """H and the I of a rank together to each power of two, then each alone."""
    hidden, local, ranks = scenario.shape.hidden, scenario.intermediate_local, scenario.layer.moe_tp_size
    for width in smaller_widths(max(hidden, local)):
        yield from changed(scenario, shape={"hidden": min(width, hidden), "intermediate": min(width, local) * ranks})
    for width in smaller_widths(hidden):
        yield from changed(scenario, shape={"hidden": width})
    for width in smaller_widths(local):
        yield from changed(scenario, shape={"intermediate": width * ranks})


def shrink_moe_tp(scenario: Scenario) -> Iterator[Scenario]:
    """Fewer ranks that share an intermediate, the columns of each kept; a lower rank."""
    size, rank = scenario.layer.moe_tp_size, scenario.layer.moe_tp_rank
    for number in smaller(size, 1):
        layer = {"moe_tp_size": number, "moe_tp_rank": min(rank, number - 1)}
        yield from changed(scenario, layer=layer, shape={"intermediate": scenario.intermediate_local * number})
    for number in smaller(rank, 0):
        yield from changed(scenario, layer={"moe_tp_rank": number})


def shrink_tokens(scenario: Scenario) -> Iterator[Scenario]:
    """M to 0, 1, then bisected, then less a power of two: the same place in a shorter row of tiles."""
    tokens = scenario.shape.tokens
    less = [tokens - (1 << bit) for bit in reversed(range(tokens.bit_length()))]
    for number in dict.fromkeys([*range(min(tokens, 2)), *smaller(tokens, 0), *less]):
        yield from changed(scenario, shape={"tokens": number})


def tokens_for_padding(scenario: Scenario) -> Iterator[Scenario]:
    """Tokens in the place of the rows that pad the batch: to a kernel both are rows."""
    padding = scenario.execution.padding
    if padding:
        tokens = scenario.shape.tokens + padding
        yield from changed(scenario, shape={"tokens": tokens}, execution={"padding": 0})


def padding_for_edits(scenario: Scenario) -> Iterator[Scenario]:
    """A padding row in the place of an edit: a masked one is what a masked slot makes of its row, and a routed one is
    NaN throughout."""
    tokens = scenario.shape.tokens
    execution: dict[str, Any] = {"padding": max(1, scenario.execution.padding)}
    for edit, fewer in without_one_edit(scenario):
        if isinstance(edit, ValueEdit):
            if edit.value not in ("nan", "inf", "-inf"):
                continue
            execution = execution | {"padding_rows": "routed"}
        elif not isinstance(edit, MaskSlot | MaskRow):
            continue
        for number in dict.fromkeys((tokens - 1, tokens)):
            yield from changed(fewer, shape={"tokens": number}, execution=execution)


def slots_for_weights(scenario: Scenario) -> Iterator[Scenario]:
    """Two slots in the place of what alone makes router weights differ where each row has one slot, which weighs 1: a
    factor, the integer rule, or a row that pads the batch."""
    experts = max(2, scenario.shape.experts)
    if scenario.shape.top_k > 1 or experts % scenario.parallel.ep_size:
        return
    shape, padding = {"experts": experts, "top_k": 2}, scenario.execution.padding
    if scenario.layer.routed_scaling_factor != 1.0:
        yield from changed(scenario, shape=shape, layer={"routed_scaling_factor": 1.0})
    if scenario.values.rule == "integer":
        yield from changed(scenario, shape=shape, values={"rule": "normal"})
    if padding:
        rows = {"tokens": scenario.shape.tokens + padding}
        yield from changed(scenario, shape=shape | rows, execution={"padding": 0})


def _grouped(
    scenario: Scenario, ep_size: int, ep_rank: int, local: int, top_k: int, **changes: Any
) -> Iterator[Scenario]:
    """With other expert groups; K and the rank are cut to what fits."""
    experts = ep_size * local
    yield from changed(
        scenario,
        shape={"experts": experts, "top_k": min(top_k, experts)},
        parallel={"ep_size": ep_size, "ep_rank": min(ep_rank, ep_size - 1)},
        **changes,
    )


def shrink_experts(scenario: Scenario) -> Iterator[Scenario]:
    """ep_size, rank, experts of a rank and K: jointly to the smallest combinations, then one at a time."""
    size, rank = scenario.parallel.ep_size, scenario.parallel.ep_rank
    local, top_k = scenario.experts_local, scenario.shape.top_k
    for new_size, new_local, new_top_k, new_rank in itertools.product(
        sorted({1, min(2, size), size}),
        sorted({1, min(2, local), local}),
        sorted({1, min(2, top_k), top_k}),
        sorted({0, min(1, rank), rank}),
    ):
        if new_rank < new_size and new_top_k <= new_size * new_local:
            yield from _grouped(scenario, new_size, new_rank, new_local, new_top_k)
    for number in smaller(top_k, 1):
        yield from _grouped(scenario, size, rank, local, number)
    for number in smaller(local, 1):
        yield from _grouped(scenario, size, rank, number, top_k)
    for number in smaller(size, 1):
        yield from _grouped(scenario, number, rank, local, top_k)
        if scenario.shape.experts % number == 0:
            yield from _grouped(scenario, number, rank, scenario.shape.experts // number, top_k)
    for number in smaller(rank, 0):
        yield from _grouped(scenario, size, number, local, top_k)


def reseed_experts(scenario: Scenario) -> Iterator[Scenario]:
    """One fewer of K, of a rank's experts or of ranks, under other routing seeds: a table that is drawn anew for fewer
    experts may have lost the failure by chance."""
    size, rank = scenario.parallel.ep_size, scenario.parallel.ep_rank
    local, top_k = scenario.experts_local, scenario.shape.top_k
    for seed in SEEDS:
        routing = {"seed": seed}
        if top_k > 1:
            yield from _grouped(scenario, size, rank, local, top_k - 1, routing=routing)
        if local > 1:
            yield from _grouped(scenario, size, rank, local - 1, top_k, routing=routing)
        if size > 1:
            yield from _grouped(scenario, size - 1, rank, local, top_k, routing=routing)


MOVES: tuple[Move, ...] = (
    drop_edits,
    default_all,
    drop_tensors,
    drop_places,
    tokens_for_padding,
    padding_for_edits,
    slots_for_weights,
    shrink_widths,
    shrink_experts,
    shrink_tokens,
    default_each,
    shrink_replays,
    shrink_moe_tp,
    shrink_seeds,
    reseed_experts,
    simplify_edits,
)


@functools.singledispatch
def moves(scenario: AnyScenario) -> Iterator[Iterator[AnyScenario]]:
    """What each move makes of `scenario`, in the order in which they are tried. Raises TypeError for a kind that has
    none."""
    raise TypeError(f"{type(scenario).__name__}: has no moves")


@moves.register
def _of_layer(scenario: Scenario) -> Iterator[Iterator[AnyScenario]]:
    return (move(scenario) for move in MOVES)


moves.register(RouterScenario)(router_moves.moves)
