"""Is a known finding what explains another one? Take away what it needs, and ask again.

A scenario often has several peculiar things at once. That it has all that a known finding's simplest form has is no
proof that this explains it: a second mistake would hide behind the first. So the scenario is run again without that
cause. What then agrees was due to it; what does not is a finding of its own, in a scenario without the known cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from difftest.judging.outcome import VALUE_KINDS, Bucket, Outcome, Verdict
from difftest.ledger import triggers
from difftest.ledger.triggers import Trigger
from difftest.shrinking.complexity import covers, departures, edit_kind, edit_kinds, range_kinds
from difftest.shrinking.refit import changed, replaced, with_edits
from difftest.shrinking.search import smaller_widths
from strategies.plain import AnyScenario
from strategies.scenario import Execution, Layer, Routing, Scenario, Swiglu, Values

SCALE_ENDS = (1, 254)
"""The scale bytes next to 0x00 and 0xFF."""


class Checker(Protocol):
    """What this needs of an engine."""

    def check(self, scenario: AnyScenario, *, checks: Collection[str] | None = None) -> Outcome: ...


def alike(one: Bucket, other: Bucket) -> bool:
    """Whether one cause may show as both: the same verdict of the same kind, or wrong values in whatever check."""
    return one.verdict is other.verdict and (one.kind == other.kind or {one.kind, other.kind} <= VALUE_KINDS)


@dataclass(frozen=True)
class Cause:
    """What a finding is due to: all that its simplest `form` has, or a `trigger` alone."""

    form: AnyScenario
    trigger: Trigger | None = None

    def may_show(self, own: Bucket, other: Bucket) -> bool:
        """Whether a finding of the bucket `own` with this cause may come up as `other` too."""
        if self.trigger is not None:  # whatever is computed from it is wrong somehow
            return own.verdict is other.verdict
        return alike(own, other)

    def is_in(self, scenario: AnyScenario) -> bool:
        return covers(self.form, scenario) if self.trigger is None else triggers.has(self.trigger, scenario)

    def taken_from(self, scenario: AnyScenario) -> Iterator[AnyScenario]:
        """Scenarios without it, see `without`."""
        if self.trigger is None:
            yield from without(self.form, scenario)
        else:
            yield triggers.without(self.trigger, scenario)


def explained_by(causes: Collection[Cause], finding: Outcome, checker: Checker) -> bool:
    """Whether the findings of these causes are this one too, each of them or several together."""
    if not any(cause.is_in(finding.scenario) for cause in causes):
        return False
    rest = stripped(finding, causes, checker)
    return rest is None or not _shows(finding, rest)


def stripped(finding: Outcome, causes: Iterable[Cause], checker: Checker) -> Outcome | None:
    """The outcome of the finding's scenario without the causes, in the finding's own check: without one after the other
    until nothing like the finding is left.

    To take a further one away may bring an earlier one back: a slot that was given another expert, because an edit made
    its own one come twice, makes a pair where that edit is gone. None when nothing can be taken away: the forms are as
    plain as a scenario of the candidate can be.
    """
    rest = None
    for cause in causes:
        scenario = finding.scenario if rest is None else rest.scenario
        if cause.is_in(scenario):
            tried = (checker.check(other, checks={finding.check}) for other in cause.taken_from(scenario))
            rest = next((outcome for outcome in tried if outcome.verdict is not Verdict.UNSUPPORTED), rest)
            if rest is not None and not _shows(finding, rest):
                break
    return rest


def _shows(finding: Outcome, rest: Outcome) -> bool:
    """Whether something like the finding is in an outcome."""
    return any(alike(other.bucket, finding.bucket) for other in rest.findings)


def without(form: AnyScenario, scenario: AnyScenario) -> Iterator[AnyScenario]:
    """`scenario` less one thing that `form` needs of it, each a scenario that `form` does not cover.

    First all its edits of the kinds that the form has; then one departure of the form's back at its default; then one
    size below the form's. Some may be unsupported: a kernel's own unit is no cause. Nothing of a router's scenario.
    """
    if not isinstance(form, Scenario) or not isinstance(scenario, Scenario):
        return iter(())
    candidates = (*_less_edits(form, scenario), *_less_departure(form, scenario), *_less_size(form, scenario))
    return (other for other in candidates if not covers(form, other))


def _less_edits(form: Scenario, scenario: Scenario) -> Iterator[Scenario]:
    kinds = edit_kinds(form)
    if not kinds:
        return
    routing = [edit for edit in scenario.routing.edits if edit_kind(edit) not in kinds]
    values = [edit for edit in scenario.values.edits if edit_kind(edit) not in kinds]
    low, high = SCALE_ENDS
    bounds = {"scale_low": scenario.values.scale_low, "scale_high": scenario.values.scale_high}
    if range_kinds(scenario) & kinds:
        bounds = {name: min(max(bound, low), high) for name, bound in bounds.items()}
    yield from changed(with_edits(scenario, routing, values), values=bounds)


def _less_departure(form: Scenario, scenario: Scenario) -> Iterator[Scenario]:
    execution, layer, values = Execution(), Layer(), Values()
    local = scenario.intermediate_local
    back = {
        "replays": changed(scenario, execution={"replays": execution.replays}),
        "padding": changed(scenario, execution={"padding": 0, "padding_rows": execution.padding_rows}),
        **{
            name: changed(scenario, execution={name: getattr(execution, name)})
            for name in ("padding_rows", "poison", "tactic", "pdl", "fused_finalize", "busy")
        },
        "biases": changed(scenario, layer={"biases": layer.biases}),
        "moe_tp": changed(scenario, layer={"moe_tp_size": 1, "moe_tp_rank": 0}, shape={"intermediate": local}),
        "routed_scaling_factor": changed(scenario, layer={"routed_scaling_factor": layer.routed_scaling_factor}),
        "routing_rule": changed(scenario, routing={"rule": Routing().rule}),
        "values_rule": changed(scenario, values={"rule": values.rule}),
        "x_exponent": changed(scenario, values={"x_exponent": values.x_exponent}),
        "scales": changed(scenario, values={"scale_low": values.scale_low, "scale_high": values.scale_high}),
        "parameters": replaced(scenario, activation=type(scenario.activation)()),
        "activation": replaced(scenario, activation=Swiglu()),
        "output_dtype": replaced(scenario, output_dtype="bfloat16"),
        "precision": replaced(scenario, precision="bf16xmxfp4"),
        "mode": changed(scenario, execution={"mode": execution.mode, "replays": execution.replays}),
    }
    needed = departures(form)
    for name, fewer in back.items():
        if name in needed:
            yield from fewer


def _less_size(form: Scenario, scenario: Scenario) -> Iterator[Scenario]:
    shape, local = form.shape, scenario.experts_local
    size, rank = scenario.parallel.ep_size, scenario.parallel.ep_rank

    def grouped(ep_size: int, ep_rank: int, experts_local: int, top_k: int) -> Iterator[Scenario]:
        sizes = {"experts": ep_size * experts_local, "top_k": min(top_k, ep_size * experts_local)}
        yield from changed(scenario, shape=sizes, parallel={"ep_size": ep_size, "ep_rank": ep_rank})

    if form.parallel.ep_rank:
        yield from grouped(size, 0, local, scenario.shape.top_k)
    if form.parallel.ep_size > 1:
        yield from grouped(1, 0, local, scenario.shape.top_k)
    if shape.top_k > 1:
        yield from grouped(size, rank, local, shape.top_k - 1)
    if form.experts_local > 1:
        yield from grouped(size, rank, form.experts_local - 1, scenario.shape.top_k)
    rows = shape.tokens + form.execution.padding
    if rows > 1:  # no rows at all would prove nothing
        yield from changed(scenario, shape={"tokens": rows - 1}, execution={"padding": 0})
    for width in reversed(smaller_widths(shape.hidden)):
        yield from changed(scenario, shape={"hidden": width})
    for width in reversed(smaller_widths(form.intermediate_local)):
        yield from changed(scenario, shape={"intermediate": width * scenario.layer.moe_tp_size})
