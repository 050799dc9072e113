"""Faults with the simplest scenario that shows each, worked out by hand, and the hunt that has to end there.

"Simplest" is the order of `difftest.shrinking.complexity`: fewest edits, then fewest departures from the defaults,
then the smallest sizes, then the lowest seeds. So a masked padding row (a departure) goes before a masked slot (an
edit), and a batch of padding alone (M = 0) before one with a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from difftest.engine import Engine
from difftest.judging.outcome import Outcome
from difftest.options import shards_of, share_of
from difftest.shrinking.shrink import Shrinker, Shrunk
from difftest.stream import Enough, Stream
from oracles.faults import FAULTS, Twin
from strategies import (
    DuplicateSlot,
    Execution,
    Layer,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    SwigluOai,
    scenarios,
)

BUDGET = 2000
"""Scenarios in which a fault has to be found."""


@dataclass(frozen=True)
class Minimum:
    """The bucket (check and kind), the scenario, and why nothing simpler shows it."""

    scenario: Scenario
    why: str
    check: str = "reference"
    kind: str = "impossible"


def _shape(**sizes: int) -> Scenario:
    return Scenario(shape=Shape(**sizes))


def _second_of_two_ranks(**sizes: int) -> Scenario:
    return Scenario(shape=Shape(experts=2, **sizes), parallel=Parallel(ep_size=2, ep_rank=1))


_PLAIN = "any row shows it"
_TWO_GROUPS = "takes two groups under a dot product; I counts last, so it grows"
_TWO_SLOTS = "a single slot has weight 1; two slots of two experts"
_PADDING = Scenario(execution=Execution(padding=1))
_ONLY_PADDING = Scenario(shape=Shape(tokens=0), execution=Execution(padding=1))
_DUPLICATE = (DuplicateSlot(token=0, slot=0, source=1),)
_ROUTED_NAN = Execution(padding=1, padding_rows="routed")

MINIMA: dict[str, Minimum] = {
    # layout
    "gate-up-swapped": Minimum(Scenario(), _PLAIN),
    "rows-interleaved": Minimum(Scenario(), _PLAIN),
    "nibbles-swapped": Minimum(Scenario(), _PLAIN),
    "nibbles-by-half-group": Minimum(Scenario(), _PLAIN),
    "bias-halves-swapped": Minimum(Scenario(layer=Layer(biases="per_expert")), "there has to be a bias"),
    "w2-not-interleaved": Minimum(_shape(intermediate=64), _TWO_GROUPS),
    "w13-scales-column-major": Minimum(_shape(hidden=64), "with one group rows by groups is groups by rows"),
    "w2-scales-column-major": Minimum(_shape(intermediate=64), "with one group rows by groups is groups by rows"),
    "next-group-scale": Minimum(_shape(intermediate=64), _TWO_GROUPS),
    "next-expert-tail-scale": Minimum(_shape(experts=2), "with one expert the next one is itself"),
    # activation
    "alpha-beta-ignored": Minimum(Scenario(activation=SwigluOai()), "only that activation has them"),
    "zero-beta-is-unset": Minimum(Scenario(activation=SwigluOai(beta=0.0)), "the default beta is 1"),
    # routing
    "ep-offset-ignored": Minimum(_second_of_two_ranks(), "the first rank's offset is 0"),
    "ep-offset-twice": Minimum(_second_of_two_ranks(), "the first rank's offset is 0"),
    "masked-slot-wraps": Minimum(_ONLY_PADDING, "a padding row is masked", "no_local_expert", "not_bit_equal"),
    "foreign-expert-contributes": Minimum(
        Scenario(shape=Shape(experts=2, top_k=2), parallel=Parallel(ep_size=2)),
        "one row with an own and a foreign expert",
    ),
    "next-ranks-expert-is-last": Minimum(
        Scenario(shape=Shape(experts=2, top_k=2), parallel=Parallel(ep_size=2)), "the last rank has no next one"
    ),
    "last-expert-missing": Minimum(Scenario(), "the only expert is the last"),
    "duplicate-lost": Minimum(
        Scenario(shape=Shape(experts=2, top_k=2), routing=Routing(edits=_DUPLICATE)), "an expert twice takes two slots"
    ),
    "duplicate-lost-in-decode": Minimum(
        Scenario(shape=Shape(experts=2, top_k=2), routing=Routing(edits=_DUPLICATE)), "as duplicate-lost, M = 1"
    ),
    "duplicate-lost-by-three-kernel-sort": Minimum(
        Scenario(shape=Shape(experts=16, top_k=16), routing=Routing(edits=_DUPLICATE)), "K = 16, and so E = 16"
    ),
    "masked-slot-counts-in-decode": Minimum(
        _ONLY_PADDING, "a single row, which is padding", "no_local_expert", "not_bit_equal"
    ),
    "decode-has-four-slots": Minimum(_shape(experts=5, top_k=5), "a fifth slot"),
    "decode-ignores-offset-on-last-rank": Minimum(
        _second_of_two_ranks(top_k=2), "one row with an own and a foreign expert"
    ),
    "top-k-cut-at-eight": Minimum(_shape(experts=9, top_k=9), "a ninth slot"),
    "row-map-shifted-by-masked": Minimum(
        Scenario(shape=Shape(tokens=2), execution=Execution(padding=1)), "two rows to exchange, and a masked slot"
    ),
    "weight-twice": Minimum(_shape(experts=2, top_k=2), _TWO_SLOTS),
    "weight-of-next-slot": Minimum(_shape(experts=2, top_k=2), _TWO_SLOTS),
    "weight-of-next-row-in-last-tile": Minimum(_shape(tokens=2, experts=2, top_k=2), _TWO_SLOTS + ", and a next row"),
    "weights-normalized-by-rank": Minimum(
        Scenario(shape=Shape(experts=2, top_k=2), parallel=Parallel(ep_size=2)), _TWO_SLOTS + ", one of another rank"
    ),
    "scaling-factor-dropped": Minimum(Scenario(layer=Layer(routed_scaling_factor=2.0)), "2 is its simplest value"),
    "masked-first-row-ends-batch": Minimum(
        Scenario(
            shape=Shape(tokens=2),
            routing=Routing(edits=(MaskSlot(token=0, slot=0),)),
            execution=Execution(mode="graph"),
        ),
        "a row to lose after the masked one",
    ),
    "bias-once-per-token": Minimum(
        Scenario(shape=Shape(experts=2, top_k=2), layer=Layer(biases="per_expert")), _TWO_SLOTS
    ),
    "bias-for-masked-slots": Minimum(
        Scenario(layer=Layer(biases="per_expert"), routing=Routing(edits=(MaskSlot(token=0, slot=0),))),
        "a padding row has weight 0",
        "no_local_expert",
        "not_bit_equal",
    ),
    # numerics
    "odd-tail-dropped": Minimum(_shape(intermediate=96), "three groups; I counts last"),
    "columns-beyond128-dropped": Minimum(_shape(hidden=160), "a 129th column, in groups of 32"),
    "accumulator-in-bfloat16": Minimum(_shape(intermediate=64), _TWO_GROUPS),
    "first-result-not-rounded": Minimum(Scenario(), _PLAIN),
    "intermediate-not-rounded": Minimum(Scenario(), _PLAIN),
    "intermediate-truncated": Minimum(Scenario(), _PLAIN),
    "weight-in-bfloat16": Minimum(_shape(experts=2, top_k=2), _TWO_SLOTS),
    "output-rounded-twice": Minimum(
        Scenario(shape=Shape(experts=2, top_k=2), output_dtype="float16"), "one slot's answer is a bfloat16 already"
    ),
    "decode-drops-odd-tail": Minimum(_shape(hidden=96), "three groups of H"),
    # non-finite
    "nan-input-is-zero": Minimum(
        Scenario(shape=Shape(tokens=0), execution=_ROUTED_NAN), "a routed padding row is NaN", kind="must_be_nonfinite"
    ),
    "infinity-sign-lost": Minimum(
        Scenario(routing=Routing(edits=(SetWeight(token=0, slot=0, weight=-math.inf),))),
        "no weight is drawn infinite",
        kind="must_be_nonfinite",
    ),
    "clamp-swallows-nan": Minimum(
        Scenario(shape=Shape(tokens=0), activation=SwigluOai(), execution=_ROUTED_NAN),
        "only that activation clamps",
        kind="must_be_nonfinite",
    ),
    "rows-times-zero": Minimum(_PADDING, "a NaN row, and another one", kind="must_be_finite"),
    "padding-reaches-row-zero": Minimum(_PADDING, "a NaN row, and another one", kind="must_be_finite"),
    "nan-halves-neighbours": Minimum(_PADDING, "a NaN row, and another one"),
    "idle-expert-times-zero": Minimum(_shape(experts=2), "an expert without rows", "absent", "not_bit_equal"),
    # memory
    "last-column-tile-unwritten": Minimum(_shape(hidden=160), "a 129th column, in groups of 32"),
    "row-after-tile-unwritten": Minimum(_shape(tokens=17), "a 17th row"),
    "writes-past-end": Minimum(_shape(tokens=0), "an empty output has an end", "guard", "guard_band"),
    "writes-before-start": Minimum(Scenario(), "a tile that is not full", "guard", "guard_band"),
    "row-overwrites-next": Minimum(_shape(tokens=2), "a next row; H = 32 is no multiple of 64"),
    "hidden-states-modified": Minimum(Scenario(), "x has elements", "inputs", "inputs_changed"),
    "ids-modified": Minimum(_second_of_two_ranks(), "the first rank's offset is 0", "inputs", "inputs_changed"),
    "tail-scale-out-of-bounds": Minimum(Scenario(), "one group is an odd number", "poison", "not_bit_equal"),
    "split-adds-to-workspace": Minimum(_shape(intermediate=160), "five groups", "poison", "not_bit_equal"),
    # execution
    "graph-replays-routing": Minimum(Scenario(execution=Execution(mode="graph")), "a capture has no routing"),
    "tactic-doubles-half": Minimum(
        Scenario(shape=Shape(intermediate=64), execution=Execution(tactic=1)), "half of two groups is one"
    ),
    "large-batch-rejected": Minimum(
        _shape(tokens=37), "a 37th row", "call", "RuntimeError: a block needs more shared memory than there is"
    ),
    "padding-is-routed": Minimum(_ONLY_PADDING, "nothing but padding", "no_local_expert", "not_bit_equal"),
}


def found(name: str, seed: int) -> tuple[int, Engine, Outcome, Stream]:
    """As a campaign does: draw until the minimum's bucket is seen. Returns the scenarios drawn, the engine that ran
    them, the finding, and the stream that drew it."""
    minimum = MINIMA[name]
    engine = Engine(FAULTS[name].oracle())
    count, first = 0, None

    def visit(scenario: Scenario) -> None:
        nonlocal count, first
        count += 1
        seen = [o for o in engine.check(scenario).findings if (o.check, o.kind) == (minimum.check, minimum.kind)]
        if seen:
            first = seen[0]
            raise Enough

    for shard in range(shards_of(BUDGET)):
        stream = Stream(
            scenarios(Twin.capability, profile="quick"), base_seed=seed, shard=shard, count=share_of(BUDGET, shard)
        )
        stream.each(visit)
        if first is not None:
            return count, engine, first, stream
    raise AssertionError(f"{name}: {minimum.check}/{minimum.kind} not found in {count} scenarios of seed {seed}")


def hunt(name: str, seed: int) -> tuple[int, Shrunk, int]:
    """Find it, then shrink it. Returns the scenarios drawn, what it was shrunk to, and the real runs of shrinking."""
    count, engine, first, stream = found(name, seed)
    before = engine.runs
    shrunk = Shrinker(engine, first, lambda *_: None).shrink(stream)
    return count, shrunk, engine.runs - before
