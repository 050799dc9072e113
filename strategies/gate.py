"""The scenarios that a release has to pass, by name: those that a port of Kimi-K3 was held to, and their like."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from strategies.models import MODELS
from strategies.scenario import (
    Activation,
    Execution,
    MaskSlot,
    Parallel,
    Precision,
    Replay,
    Routing,
    Scenario,
    Shape,
    Situ,
    Swiglu,
    ValueEdit,
    Values,
)

TOKENS = (1, 2, 8, 32)
REPEATS = 3
"""Calls that must agree bit for bit."""
REPLAYS: tuple[Replay, ...] = ("all", "same")
"""Of a captured graph, besides the first: with other x, ids and weights, and with the first contents again."""
_KIMI = MODELS["kimi-k3"]
_KIMI_RANK = Parallel(ep_size=32, ep_rank=7)
"""28 whole experts of 896."""
_SMALL = Shape(tokens=8, hidden=256, intermediate=256, experts=8, top_k=2)
TARGET_ACTIVATION = Situ.kind
"""What is ported; SwiGLU is the control."""


def matrix(precision: Precision) -> dict[str, Scenario]:
    """The scenarios by name, `ACTIVATION/GROUP/...`: SwiGLU, the control, then SiTU (4, 25), the target."""
    found: dict[str, Scenario] = {}
    for activation in (Swiglu(), Situ(beta=4.0, linear_beta=25.0)):
        for name, scenario in _scenarios(activation):
            found[f"{activation.kind}/{name}"] = replace(scenario, precision=precision)
    return found


def group_of(name: str) -> str:
    """What a scenario's name says it is about: "routing", "parallel", "values", "execution" or "kimi-k3"."""
    return name.split("/")[1]


def _scenarios(activation: Activation) -> Iterator[tuple[str, Scenario]]:
    base = Scenario(shape=_SMALL, activation=activation)
    yield "routing/M=0", replace(base, shape=replace(_SMALL, tokens=0))
    for tokens in TOKENS:
        sized = replace(base, shape=replace(_SMALL, tokens=tokens))
        masked = Routing(edits=(MaskSlot(token=tokens - 1, slot=1),))
        rules = {"uniform": Routing(), "skewed": Routing(rule="skewed"), "empty": Routing(rule="empty_experts")}
        for name, routing in (rules | {"masked": masked}).items():
            yield f"routing/M={tokens}/{name}", replace(sized, routing=routing)
    for rank in range(2):
        yield f"parallel/EP2/rank{rank}", replace(base, parallel=Parallel(ep_size=2, ep_rank=rank))
    ranked = replace(_SMALL, experts=_KIMI.experts, top_k=_KIMI.top_k)
    yield "parallel/EP32/rank7", replace(base, shape=ranked, parallel=_KIMI_RANK)
    for special in ("nan", "inf"):
        edit = ValueEdit(tensor="hidden_states", index=(3, 5), value=special)
        yield f"values/{special}-row", replace(base, values=Values(edits=(edit,)))
    yield "values/exact", replace(base, values=Values(rule="integer"))
    yield f"execution/eager/repeats={REPEATS}", replace(base, execution=Execution(repeats=REPEATS))
    yield "execution/capture", replace(base, execution=Execution(mode="graph"))
    yield f"execution/replays={len(REPLAYS)}", replace(base, execution=Execution(mode="graph", replays=REPLAYS))
    for stage, tokens in (("decode", 1), ("prefill", 128)):
        real = Scenario(shape=_KIMI.shape(tokens), parallel=_KIMI_RANK, activation=activation)
        yield f"kimi-k3/{stage}/M={tokens}/eager", real
        yield f"kimi-k3/{stage}/M={tokens}/graph", replace(real, execution=Execution(mode="graph", replays=REPLAYS))
