"""The issue of a report: what a maintainer needs to know, as Markdown that can be pasted."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from difftest.judging.outcome import VALUE_KINDS, Outcome, Verdict
from difftest.ledger.cases import Case
from difftest.output.describe import changed_fields, element_line, scenario_line
from difftest.report.paths import relative
from difftest.report.proof import Proof
from difftest.report.render import render
from oracles import emulations
from strategies.plain import AnyScenario
from strategies.router import RouterEdit, RouterScenario, SetBias, SetLogit, SetRow, TieExperts
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

_MOST = 100
"""Characters of an error in a title."""


def title(outcome: Outcome) -> str:
    """What is wrong, in one line."""
    match outcome.verdict:
        case Verdict.REJECTED:
            what = f"rejects a valid call ({shorten(relative(outcome.detail), _MOST, placeholder='...')})"
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
                "shape_or_dtype": "an answer of the wrong shape or dtype",
                "wrong_expert": "chooses an expert that is not among the best",
                "invalid_expert": "chooses an expert that there is none of",
                "repeated_expert": "chooses an expert twice",
            }.get(outcome.kind, "wrong output")
    where = _peculiar(outcome.scenario)
    return f"{outcome.candidate}: {what}" + (f" with {where}" if where else "")


def summary(case: Case) -> str:
    """One or two sentences."""
    outcome = case.outcome
    what = (
        "The router of an MoE layer"
        if isinstance(case.scenario, RouterScenario)
        else "A fused MoE layer with MXFP4 experts"
    )
    detail = relative(outcome.detail).rstrip(".")
    by = f"{outcome.candidate}, where the kernel is emulated" if _emulated(outcome) else outcome.candidate
    return f"{what}, computed by {by}: {detail}."


def _emulated(outcome: Outcome) -> bool:
    return outcome.candidate in emulations()


def issue(
    case: Case,
    proof: Proof | None,
    *,
    environment: Mapping[str, Any] | None,
    claim: str,
    no_script: str = "",
    sanitizer: str = "",
    needs: str,
    entered: bool = False,
) -> str:
    """The text of `issue.md`.

    environment: as the script saw it (see `difftest.report.bare`); without one it is told where the case was found.
    claim: what the kernel does not keep. no_script: why there is no script, when there is no `proof`. sanitizer: its
    words. entered: whether parts of the kernel's package were stood in for when the script was run.
    """
    outcome = case.outcome
    by_hand = "From a recorded call, shrunk." if case.recording is not None else "By hand."
    found = (
        by_hand if case.found is None else f"By a property-based campaign: `{relative(case.found.command)}`, shrunk."
    )
    scenario = scenario_words(outcome.scenario)
    for step in case.sequence:
        scenario.append(f"before it in the same process: {scenario_line(step.scenario)}")
    return render(
        "issue.md.j2",
        title=title(outcome),
        summary=summary(case),
        scenario=scenario,
        claim=claim,
        expected=_expected(outcome),
        explanation=case.explanation,
        proof=proof,
        no_script=no_script,
        sanitizer=sanitizer,
        needs=needs,
        entered=entered,
        not_shown=_not_shown(case, environment),
        environment=_found_in(case) if environment is None else _seen_in(environment),
        found=found,
    )


def _found_in(case: Case) -> list[tuple[str, object]]:
    here = case.environment
    device = [("device", here.device)] if here.device else []
    return [
        *here.packages.items(),
        ("torch", here.torch),
        ("python", here.python),
        ("platform", here.platform),
        ("processor", f"{here.cpu} ({here.arch}, {here.isa})"),
        *device,
    ]


def _seen_in(environment: Mapping[str, Any]) -> list[tuple[str, object]]:
    gpu = environment.get("gpu")
    lines: list[tuple[str, object]] = [*environment["packages"].items()]
    lines += [(name, environment[name]) for name in ("python", "platform", "processor")]
    if gpu is not None:
        lines.append(("GPU", f"{gpu['name']} (compute capability {gpu['capability']}), CUDA {gpu['cuda']}"))
        lines.append(("driver", gpu["driver"]))
    return [*lines, *((f"sha256 of {name}", digest) for name, digest in environment["libraries"].items())]


def _expected(outcome: Outcome) -> str:
    if outcome.worst is None or outcome.kind not in VALUE_KINDS:
        return f"Expected an answer; {relative(outcome.detail).rstrip('.')}."
    how = {
        "impossible": "No order of additions and no rounding that the kernel is known to use gives this value: the "
        "interval is proved.",
        "implausible": "The interval holds for all but one in 10^17 sums; three redraws of signs showed the same.",
    }.get(outcome.kind, "")
    return f"Worst element: {element_line(outcome.worst, outcome.kind)}. {how}".rstrip()


def _not_shown(case: Case, environment: Mapping[str, Any] | None) -> list[str]:
    versions = case.environment.packages
    if environment is not None:
        versions = {name: version for name, version in environment["packages"].items() if name != "torch"} or versions
    lines = [f"Other versions than {', '.join(f'{n} {v}' for n, v in versions.items()) or 'this one'}."]
    if _emulated(case.outcome):
        lines.append("What the kernel itself does: it is emulated in plain torch, and none was run.")
    if isinstance(case.scenario, Scenario) and case.scenario.parallel.ep_size == 1:
        lines.append("Expert parallelism: the smallest scenario has one rank.")
    lines.append("Where in the kernel's source the mistake is, unless the explanation says so.")
    lines.append("How much it changes the output of a whole model.")
    return lines


@functools.singledispatch
def scenario_words(scenario: AnyScenario) -> list[str]:
    """The scenario, a line for each thing that is peculiar, in plain words."""
    raise TypeError(f"{type(scenario).__name__}: has no words")


@scenario_words.register
def _layer_words(scenario: Scenario) -> list[str]:
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


@scenario_words.register
def _router_words(scenario: RouterScenario) -> list[str]:
    shape = scenario.shape
    lines = [f"{shape.tokens} token{'s' * (shape.tokens != 1)}, {shape.experts} experts, top-k {shape.top_k}"]
    if shape.groups > 1:
        lines.append(f"{shape.groups} groups, of which a token uses {shape.topk_groups}")
    lines.append(f"{scenario.scores.scoring} scores{changed_fields(scenario.scores)}")
    lines.append(f"{scenario.logits.dtype} logits{changed_fields(scenario.logits)}")
    return [*lines, *map(_edit_words, scenario.logits.edits)]


def _peculiar(scenario: AnyScenario) -> str:
    """What the title should name: the first edit, or the activation, or an empty batch, or nothing."""
    if isinstance(scenario, RouterScenario):
        return next(map(_edit_words, scenario.logits.edits), "no tokens" if scenario.shape.tokens == 0 else "")
    assert isinstance(scenario, Scenario)  # the only other kind
    edits = (*scenario.routing.edits, *scenario.values.edits)
    if edits:
        return _edit_words(edits[0])
    plain = {"swiglu": "", "swiglu_oai": "SwiGLU-OAI", "situ": "SiTU"}[scenario.activation.kind]
    return plain or ("no tokens" if scenario.shape.tokens == 0 else "")


def _edit_words(edit: RoutingEdit | ValueEdit | RouterEdit) -> str:
    match edit:
        case MaskSlot(token=token, slot=slot):
            return f"slot {slot} of token {token} masked (id -1)"
        case MaskRow(token=token):
            return f"all slots of token {token} masked (id -1)"
        case AssignExpert(token=token, slot=slot, expert=expert):
            return f"slot {slot} of token {token} routed to expert {expert}"
        case DuplicateSlot(token=token, slot=slot, source=source):
            first, second = sorted((slot, source))
            return f"token {token} routed to one expert twice (slots {first} and {second})"
        case StrayId(token=token, slot=slot, expert_id=expert_id):
            return f"slot {slot} of token {token} routed to id {expert_id}, which names no expert"
        case SetWeight(token=token, slot=slot, weight=weight):
            return f"router weight {weight} in slot {slot} of token {token}"
        case ValueEdit(tensor=tensor, index=index, value=value):
            return f"{tensor}{list(index)} = {value}"
        case SetLogit(token=token, expert=expert, value=value):
            return f"logit {value} of expert {expert} for token {token}"
        case SetRow(token=token, value=value):
            return f"every logit of token {token} = {value}"
        case TieExperts(token=token, expert=expert, source=source):
            return f"experts {source} and {expert} tied for token {token}"
        case SetBias(expert=expert, value=value):
            return f"bias {value} of expert {expert}"
