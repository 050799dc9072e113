"""The issue of a report: what a maintainer needs to know, as Markdown that can be pasted."""

from __future__ import annotations

from difftest.judging.outcome import VALUE_KINDS, Outcome, Verdict
from difftest.ledger.cases import Case
from difftest.output.describe import changed_fields, element_line
from difftest.report.proof import Proof
from difftest.report.render import render
from strategies.reading import layer
from strategies.scenario import (
    AssignExpert,
    DuplicateSlot,
    MaskRow,
    MaskSlot,
    RoutingEdit,
    Scenario,
    SetWeight,
    StrayId,
    ValueEdit,
)


def title(outcome: Outcome) -> str:
    """What is wrong, in one line."""
    match outcome.verdict:
        case Verdict.REJECTED:
            what = f"rejects a valid call ({outcome.kind})"
        case Verdict.CRASHED | Verdict.HUNG:
            what = f"{outcome.verdict} ({outcome.kind})"
        case Verdict.NONDETERMINISTIC:
            what = f"answers differ from call to call ({outcome.rate})"
        case _:
            what = {
                "must_be_finite": "non-finite output for finite inputs",
                "must_be_nonfinite": "a NaN or infinity is lost",
                "inputs_changed": "writes to its inputs",
                "guard_band": "writes beyond its output",
            }.get(outcome.kind, "wrong output")
    where = _peculiar(layer(outcome.scenario))
    return f"{outcome.candidate}: {what}" + (f" with {where}" if where else "")


def summary(case: Case) -> str:
    """One or two sentences."""
    outcome = case.outcome
    return f"A fused MoE layer with MXFP4 experts, computed by {outcome.candidate}: {outcome.detail}."


def issue(case: Case, proof: Proof | None, *, no_script: str = "", sanitizer: str = "", needs: str) -> str:
    """The text of `issue.md`. no_script: why there is no script, when there is no `proof`. sanitizer: its words."""
    outcome, here = case.outcome, case.environment
    by_hand = "From a recorded call, shrunk." if case.recording is not None else "By hand."
    found = by_hand if case.found is None else f"By a property-based campaign: `{case.found.command}`, shrunk."
    environment = [
        *here.packages.items(),
        ("torch", here.torch),
        ("python", here.python),
        ("platform", here.platform),
        ("processor", f"{here.cpu} ({here.arch}, {here.isa})"),
    ]
    return render(
        "issue.md.j2",
        title=title(outcome),
        summary=summary(case),
        scenario=scenario_words(layer(outcome.scenario)),
        expected=_expected(outcome),
        explanation=case.explanation,
        proof=proof,
        no_script=no_script,
        sanitizer=sanitizer,
        needs=needs,
        not_shown=_not_shown(case),
        environment=environment,
        found=found,
    )


def _expected(outcome: Outcome) -> str:
    if outcome.worst is None or outcome.kind not in VALUE_KINDS:
        return f"Expected an answer; {outcome.detail}."
    how = {
        "impossible": "No order of additions and no rounding that the kernel is known to use gives this value: the "
        "interval is proved.",
        "implausible": "The interval holds for all but one in 10^17 sums; three redraws of signs showed the same.",
    }.get(outcome.kind, "")
    return f"Worst element: {element_line(outcome.worst, outcome.kind)}. {how}".rstrip()


def _not_shown(case: Case) -> list[str]:
    lines = [
        f"Other versions than {', '.join(f'{n} {v}' for n, v in case.environment.packages.items()) or 'this one'}."
    ]
    if layer(case.scenario).parallel.ep_size == 1:
        lines.append("Expert parallelism: the smallest scenario has one rank.")
    lines.append("Where in the kernel's source the mistake is, unless the explanation says so.")
    lines.append("How much it changes the output of a whole model.")
    return lines


def scenario_words(scenario: Scenario) -> list[str]:
    """The scenario, a line for each thing that is peculiar, in plain words."""
    shape, parallel, layer = scenario.shape, scenario.parallel, scenario.layer
    lines = [
        f"{shape.tokens} token{'s' * (shape.tokens != 1)}, hidden size {shape.hidden}, intermediate size "
        f"{shape.intermediate}, {shape.experts} expert{'s' * (shape.experts != 1)}, top-k {shape.top_k}",
        f"activation {scenario.activation.kind}{changed_fields(scenario.activation)}",
        f"{scenario.precision}, output {scenario.output_dtype}",
    ]
    if parallel.ep_size > 1:
        lines.append(f"expert parallelism: rank {parallel.ep_rank} of {parallel.ep_size}")
    for name, part in (("layer", layer), ("routing", scenario.routing), ("values", scenario.values)):
        changed = changed_fields(part)
        if changed:
            lines.append(f"{name}: {changed}")
    if changed_fields(scenario.execution):
        lines.append(f"execution: {changed_fields(scenario.execution)}")
    if scenario.capture:
        lines.append(f"recorded, not drawn: {', '.join(scenario.capture.tensors)}")
    return [*lines, *map(_edit_words, (*scenario.routing.edits, *scenario.values.edits))]


def _peculiar(scenario: Scenario) -> str:
    """What the title should name: the first edit, or nothing."""
    edits = (*scenario.routing.edits, *scenario.values.edits)
    return _edit_words(edits[0]) if edits else ""


def _edit_words(edit: RoutingEdit | ValueEdit) -> str:
    match edit:
        case MaskSlot(token=token, slot=slot):
            return f"slot {slot} of token {token} masked (id -1)"
        case MaskRow(token=token):
            return f"all slots of token {token} masked (id -1)"
        case AssignExpert(token=token, slot=slot, expert=expert):
            return f"slot {slot} of token {token} routed to expert {expert}"
        case DuplicateSlot(token=token, slot=slot, source=source):
            return f"token {token} routed to one expert twice (slots {source} and {slot})"
        case StrayId(token=token, slot=slot, expert_id=expert_id):
            return f"slot {slot} of token {token} routed to id {expert_id}, which names no expert"
        case SetWeight(token=token, slot=slot, weight=weight):
            return f"router weight {weight} in slot {slot} of token {token}"
        case ValueEdit(tensor=tensor, index=index, value=value):
            return f"{tensor}{list(index)} = {value}"
