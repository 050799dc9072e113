"""Scenarios, findings and summaries in words, the same on the command line and in pytest. No torch."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from difftest.coverage import Coverage
from difftest.explain.explanation import Explanation
from difftest.findings import Finding, Mistake, Summary, mistakes
from difftest.judging.outcome import ROUTING_KINDS, Outcome, Verdict, Worst
from difftest.judging.votes import AGREE, DIFFER, UNASKED, Pairs, Votes
from difftest.ledger.cases import Case
from difftest.ledger.replay import Replay, ReplayStatus
from difftest.options import Options
from difftest.output.events import CaseNotSaved, CaseSurvived, JournalLost, ShardLost
from difftest.scale.part import words
from strategies.plain import AnyScenario
from strategies.router import RouterScenario
from strategies.scenario import Scenario

_SHOWN = 8
"""Of axis values that were never drawn, so many are named."""

MANY_EDITS = 6
"""A scenario's line shows this many edits; the case file holds them all."""


@functools.singledispatch
def scenario_line(scenario: AnyScenario) -> str:
    """The scenario in one line: the sizes, and whatever is not at its default."""
    raise TypeError(f"{type(scenario).__name__}: has no line")


@scenario_line.register
def _layer_line(scenario: Scenario) -> str:
    shape, parallel = scenario.shape, scenario.parallel
    parts = [f"M={shape.tokens} H={shape.hidden} I={shape.intermediate} E={shape.experts} K={shape.top_k}"]
    if parallel.ep_size > 1:
        parts.append(f"EP rank {parallel.ep_rank} of {parallel.ep_size}")
    parts.append(scenario.activation.kind + changed_fields(scenario.activation))
    defaults = {spec.name: spec.default for spec in dataclasses.fields(Scenario)}
    dtypes = ("precision", "output_dtype")
    parts += [getattr(scenario, name) for name in dtypes if getattr(scenario, name) != defaults[name]]
    changes = {name: changed_fields(getattr(scenario, name)) for name in ("layer", "routing", "values", "execution")}
    parts += [name + changed for name, changed in changes.items() if changed]
    if scenario.capture:
        parts.append(f"{', '.join(scenario.capture.tensors)} of recording {scenario.capture.digest[:12]}")
    edits = (*scenario.routing.edits, *scenario.values.edits)
    if edits:
        parts.append(_edits(edits))
    return ", ".join(parts)


@scenario_line.register
def _router_line(scenario: RouterScenario) -> str:
    shape = scenario.shape
    parts = [f"M={shape.tokens} E={shape.experts} K={shape.top_k}"]
    if shape.groups > 1:
        parts.append(f"{shape.topk_groups} of {shape.groups} groups")
    parts += [f"{name}{words}" for name in ("scores", "logits") if (words := changed_fields(getattr(scenario, name)))]
    if scenario.calls > 1:
        parts.append(f"calls={scenario.calls}")
    if scenario.logits.edits:
        parts.append(_edits(scenario.logits.edits))
    return ", ".join(parts)


def _edits(edits: Sequence[Any]) -> str:
    more = f" and {len(edits) - MANY_EDITS} more" if len(edits) > MANY_EDITS else ""
    return "edits: " + ", ".join(map(_edit, edits[:MANY_EDITS])) + more


def numerics_line(numerics: Any) -> str:
    """The roundings that an oracle declares (`oracles.numerics.Numerics`): those that are not the recipe's own."""
    return changed_fields(numerics)[1:-1] or "the recipe, nothing else"


def changed_fields(part: Any) -> str:
    """(name=value, ...) of the fields that are not at their default, edits aside; empty when there are none."""
    words = []
    for spec in dataclasses.fields(part):
        value = getattr(part, spec.name)
        if spec.name == "edits" or value == spec.default:
            continue
        words.append(spec.name + (changed_fields(value) if dataclasses.is_dataclass(value) else f"={value}"))
    return f"({', '.join(words)})" if words else ""


def _edit(edit: Any) -> str:
    if hasattr(edit, "tensor"):
        return f"{edit.tensor}[{', '.join(map(str, edit.index))}]={edit.value}"
    fields = ", ".join(f"{spec.name}={getattr(edit, spec.name)}" for spec in dataclasses.fields(edit))
    return f"{edit.edit}({fields})"


def outcome_title(outcome: Outcome) -> str:
    """What failed, in a few words."""
    return f"{outcome.candidate} {outcome.verdict} ({outcome.kind}) in check {outcome.check!r}"


def outcome_line(outcome: Outcome) -> str:
    """What failed, and the detail unless the kind says it all."""
    return outcome_title(outcome) + ("" if outcome.detail == outcome.kind else f": {outcome.detail}")


def element_line(worst: Worst, kind: str) -> str:
    """The worst element: where, what was expected, what came."""
    if kind in ROUTING_KINDS:
        expected = "" if math.isnan(worst.center) else f"expected expert {worst.center:.0f}, "
        return f"token {worst.token}, slot {worst.column}: {expected}got expert {worst.got:.0f}"
    got = f"got {_number(worst.got)}"
    where = f"token {worst.token}, column {worst.column}"
    match kind:
        case "must_be_finite":
            return f"{where}: expected a finite value near {_number(worst.center)}, {got}"
        case "must_be_nonfinite":
            # A wrong infinity or NaN is a finding only where one certain value is right.
            expected = "NaN or infinity" if math.isfinite(worst.got) else _number(worst.center)
            return f"{where}: expected {expected}, {got}"
    low, high = worst.hard if kind == "impossible" else worst.sharp
    if low == high:
        expected = f"exactly {_number(low)}"
    elif _number(low) == _number(high):
        expected = f"{_number(low)} +- {(high - low) / 2:.3g}"
    else:
        expected = f"[{_number(low)}, {_number(high)}]"
    ratio = "" if worst.ratio is None else f" (error is {worst.ratio:.3g} radii)"
    return f"{where}: expected {expected}, {got}{ratio}"


def _number(value: float) -> str:
    return f"{value:.9g}"


def replay_command(path: object) -> str:
    """The shell command that runs a saved case again."""
    return f"difftest replay {shlex.quote(str(path))}"


def replay_counts(replays: Iterable[Replay]) -> str:
    """`3 cases: 2 STILL DIVERGES, 1 FIXED`."""
    counts = Counter(replay.status for replay in replays)
    words = ", ".join(f"{counts[status]} {status.upper()}" for status in ReplayStatus if counts[status])
    return f"{count(counts.total(), 'case')}: {words}"


def case_lines(path: object, case: Case) -> list[str]:
    """A saved case in a list: status and finding, the scenario, when and where it was seen, the report upstream."""
    lines = [f"{case.status}  {path}", f"      {outcome_line(case.outcome)}", f"      {scenario_line(case.scenario)}"]
    where = case.environment
    versions = ", ".join(f"{name} {version}" for name, version in where.packages.items())
    seen = f"{case.seen or 'no day noted'}, with {versions or f'torch {where.torch}'} on {where.arch}"
    return [*lines, f"      last seen: {seen}", f"      upstream: {case.upstream or 'not reported'}"]


def report_lines(folder: object, verdict: str | None, no_script: str) -> list[str]:
    """A report that was written, and what its script came to."""
    told = (
        f"no script: {no_script}"
        if verdict is None
        else verdict.replace("**", "").replace("the machine below", "this machine").rstrip(":")
    )
    return [f"report: {folder}", told]


def finding_lines(finding: Finding, options: Options) -> list[str]:
    """A finding in full: what failed, the smallest scenario, its worst element, the case, how to reproduce it."""
    smallest, worst = finding.smallest, finding.worst
    lines = [outcome_title(smallest), f"  what failed    {smallest.detail}"]
    size = "" if finding.fixed_point else " (not as small as it gets: the run ended before)"
    lines.append(f"  smallest       {scenario_line(smallest.scenario)}{size}")
    if smallest.worst is not None:
        lines.append(f"  worst element  {element_line(smallest.worst, smallest.kind)}")
    if worst.scenario != smallest.scenario and worst.worst is not None and worst.worst.ratio is not None:
        digest = worst.scenario.digest
        lines.append(f"  worst seen     {element_line(worst.worst, worst.kind)}, in scenario {digest}")
    if smallest.rate is not None:
        lines.append(f"  how often      {smallest.rate}")
    if finding.explanation is not None:
        lines += explanation_lines(finding.explanation)
    if finding.votes is not None:
        lines.append(f"  votes          {votes_line(finding.votes)}")
    runs = finding.shrink_runs_hypothesis + finding.shrink_runs_reducer
    lines.append(f"  seen in        {count(finding.seen, 'scenario')}; shrunk in {count(runs, 'run')}")
    if finding.case_path is None:
        return [*lines, f"  Reproduce with: {options.command()}"]
    return [*lines, f"  case           {finding.case_path}", f"  Reproduce with: {replay_command(finding.case_path)}"]


def explanation_lines(explanation: Explanation) -> list[str]:
    """What a finding is due to, where it is wrong, and what the smallest scenario needs."""
    lines = [f"  explanation    {explanation.headline}"]
    if explanation.bad_set:
        lines.append(f"  where          {explanation.bad_set}")
    if explanation.needs:
        lines.append(f"  needs          {', '.join(explanation.needs)}")
    return lines


def explained_lines(path: object, finding: Outcome, explanation: Explanation) -> list[str]:
    """The answer of `difftest explain`."""
    lines = [f"{path}: {outcome_title(finding)}", f"  smallest       {scenario_line(finding.scenario)}"]
    lines += explanation_lines(explanation)
    if explanation.refuted:
        lines.append(f"  ruled out      {', '.join(explanation.refuted)}: they fit the case alone")
    counted = " (a match counts those that came out wrong)" if explanation.matches else ""
    return [*lines, f"  asked          {count(explanation.asked, 'further scenario')}{counted}"]


def mistake_title(mistake: Mistake) -> str:
    """What several findings have in common."""
    return f"one mistake, {count(len(mistake.findings), 'bucket')}: {mistake.match}"


def votes_line(votes: Votes) -> str:
    """Who stands alone: what the other candidates say of a finding."""
    right, wrong = _names(votes.against), _names(votes.beside)
    if votes.alone:
        parts = [f"stands alone: {right} {_agree(votes.against)} with the reference"]
    elif votes.beside:
        others = f"{right} and the reference" if votes.against else "the reference alone"
        parts = [f"{wrong} {_agree(votes.beside)} with it, against {others}"]
    else:
        parts = ["no other candidate decides"]
    if votes.undecided:
        parts.append(f"{_names(votes.undecided)} cannot tell, the radius holds both")
    if votes.apart:
        parts.append(f"{_names(votes.apart)} {_agree(votes.apart)} with neither")
    if votes.silent:
        parts.append(f"no answer from {_names(votes.silent)}")
    return "; ".join(parts)


def _agree(names: Sequence[str]) -> str:
    return "agrees" if len(names) == 1 else "agree"


def _names(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def pair_lines(pairs: Pairs) -> list[str]:
    """How often each two candidates agreed, as a table."""
    if not pairs.counts:
        return []
    width = max(len(name) for names in pairs.counts for name in names)
    lines = ["pairwise agreement, answer against answer, of the scenarios that both answered:"]
    for (first, second), counts in pairs.counts.items():
        agreed, differed, unasked = (counts[result] for result in (AGREE, DIFFER, UNASKED))
        parts = [f"{agreed} of {agreed + differed} agree"]
        parts += [f"{differed} differ"] if differed else []
        parts += [f"{unasked} not looked into"] if unasked else []
        lines.append(f"  {first:{width}}  {second:{width}}  {', '.join(parts)}")
    return lines


def short_finding_lines(finding: Finding, options: Options) -> list[str]:
    """A finding whose full report stands elsewhere: what failed, and how to reproduce it."""
    explained = [] if finding.explanation is None else explanation_lines(finding.explanation)[:1]
    return [outcome_line(finding.smallest), *explained, finding_lines(finding, options)[-1]]


def header_lines(options: Options) -> list[str]:
    """What is about to run; the seed comes first."""
    if options.imported is not None:
        return [f"difftest: import {options.imported}, reference {options.reference}"]
    budget = count(options.examples, "scenario")
    return [f"difftest: seed {options.seed}, profile {options.profile}, {budget}, reference {options.reference}"]


def missing_lines(missing: Mapping[str, str]) -> list[str]:
    """The candidates that were left out, and why."""
    return [f"left out: {name} ({reason})" for name, reason in missing.items()]


def summary_lines(summary: Summary, options: Options) -> list[str]:
    """The end of a report: counts by candidate, the ledger, what was left out, and the seed."""
    rate = f" in {summary.seconds:.1f} s, {summary.scenarios / summary.seconds:.1f}/s" if summary.seconds else ""
    lines = [f"scenarios: {summary.scenarios}{rate}"]
    for name, verdicts in summary.verdicts.items():
        lines.append(f"{name}: {_verdict_counts(verdicts)}")
        total = verdicts.total()
        for reason, number in summary.unsupported.get(name, Counter()).most_common():
            lines.append(f"  unsupported: {reason}: {number} ({number / total:.1%})")
    if summary.one_offs:
        lines.append(f"one-offs: {summary.one_offs} (outside the sharp radius once, not again in three redraws)")
    lines += pair_lines(summary.pairs)
    lines += coverage_lines(summary.coverage)
    lines += [f"known: {path}: {count(number, 'scenario')}" for path, number in summary.known.most_common()]
    reported = {str(finding.bucket) for finding in summary.findings}
    for bucket, number in summary.elsewhere.most_common():
        if bucket in reported:
            lines.append(f"seen by other shards too: {bucket}: {count(number, 'scenario')}")
        else:
            lines.append(f"not shrunk: {bucket}: the process that had it to shrink ended before; see {options.cases}")
    lines += ledger_lines(summary)
    lines += missing_lines(summary.missing)
    lines += [f"required and missing: {name}" for name in summary.required]
    lines += [
        f"device {device} was taken out, others did its work: {reason}"
        for device, reason in summary.lost_devices.items()
    ]
    again = f"again with: {options.command()}"
    return [*lines, f"seed: {options.seed} ({again})" if options.imported is None else again]


def coverage_lines(coverage: Coverage) -> list[str]:
    """What was drawn of the space of scenarios, the values that were not, and the pairs of axes with most gaps."""
    if not coverage.pairs:
        return []
    absent, gaps, pairs = coverage.missing_values, coverage.missing_pairs, coverage.possible_pairs
    values = f"{len(coverage.values) - len(absent)} of {len(coverage.values)} axis values"
    lines = [f"coverage: {values}, {len(pairs) - len(gaps)} of {len(pairs)} pairs of them"]
    if absent:
        more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
        lines.append(f"  never drawn: {', '.join(map(' '.join, absent[:_SHOWN]))}{more}")
    axes = Counter(f"{first[0]} with {second[0]}" for first, second in gaps)
    if axes and not absent:
        lines.append(f"  most gaps: {', '.join(f'{pair} {number}' for pair, number in axes.most_common(3))}")
    return lines


def ledger_lines(summary: Summary) -> list[str]:
    """What became of the known cases."""
    counts = ", ".join(f"{number} {status}" for status, number in summary.replays.most_common())
    return [*([f"cases: {counts}"] if counts else []), *(f"ledger: {line}" for line in summary.ledger_failures)]


def unsaved_lines(event: CaseNotSaved) -> list[str]:
    """A case that could not be written. It is the only copy: it is shown whole, on a line that makes a file."""
    return [f"not saved: {event.error}", "the case:", json.dumps(event.case.to_json())]


def lost_journal_line(event: JournalLost) -> str:
    """What it means that there is no journal."""
    return f"no journal: {event.error}; if a kernel ends this process, its scenario is not known"


def survived_line(event: CaseSurvived) -> str:
    """What it may mean that a case does not end its process again."""
    return (
        f"no finding: an earlier run ended while {event.candidate} ran {scenario_line(event.scenario)}, which agrees "
        "now: something else ended that run, or it does not happen each time; --isolate tells how a process ends"
    )


def lost_shard_line(event: ShardLost) -> str:
    """What became of a shard that nobody brought to its end."""
    return f"lost: shard {words([event.shard])}: {event.error}" + ("; it runs again" if event.again else "")


def exit_reason(summary: Summary) -> str:
    """Why the run ends with its exit code, in a few words."""
    if summary.exit_code == 0:
        return "all agree, but for the known cases" if summary.known else "all agree"
    if summary.exit_code == 1:
        parts = []
        if summary.findings:
            found, causes = len(summary.findings), len(mistakes(summary.findings))
            parts.append(count(found, "finding") + (f" of {count(causes, 'mistake')}" if causes < found else ""))
        if summary.ledger_failures:
            parts.append(f"{count(len(summary.ledger_failures), 'case')} not as the ledger says")
        return " and ".join(parts)
    needed = summary.required or summary.missing
    return f"needed and missing: {', '.join(needed)}" if needed else "nothing was judged"


def idle_lines(summary: Summary, required: Iterable[str]) -> list[str]:
    """What makes a run without findings prove nothing: a required candidate that answered no scenario, or all did."""
    idle = {name for name, counts in summary.verdicts.items() if counts.total() == counts[Verdict.UNSUPPORTED]}
    lines = [f"required, but it supports no scenario that was drawn: {name}" for name in required if name in idle]
    if not lines and summary.verdicts and len(idle) == len(summary.verdicts):
        lines.append("nothing was compared: no candidate supports a scenario that was drawn")
    return lines


def _verdict_counts(verdicts: Counter[Verdict]) -> str:
    total = verdicts.total()
    return ", ".join(f"{v} {verdicts[v]} ({verdicts[v] / total:.1%})" for v in Verdict if verdicts[v]) or "nothing ran"


def count(number: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
