"""`--html`: a campaign as one page that needs no network. No torch, but for the rows of a heat map."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from difftest.coverage import Coverage
from difftest.files import can_be_replaced, write_whole
from difftest.findings import Finding, Mistake, Summary, mistakes
from difftest.judging.outcome import Outcome, Verdict
from difftest.options import InvalidOption, Options
from difftest.output import describe
from difftest.output.events import Event, RunFinished, RunInterrupted, RunStarted, ScenarioFinished
from difftest.report.render import render
from strategies.plain import AnyScenario
from strategies.scenario import Scenario

BINS = 10
"""Of error / radius, from 0 to 1."""
TILE = 64
"""Columns of the narrowest tile of the GEMM kernels that are tested."""
MARKED = 8
"""Rows of a heat map whose experts are told."""

_AXES: dict[str, Callable[[Scenario], str]] = {
    "activation": lambda scenario: scenario.activation.kind,
    "precision": lambda scenario: scenario.precision,
    "values": lambda scenario: scenario.values.rule,
    "routing": lambda scenario: scenario.routing.rule,
    "ranks": lambda scenario: "one" if scenario.parallel.ep_size == 1 else "several",
    "tokens": lambda scenario: _class_of(scenario.shape.tokens),
    "mode": lambda scenario: scenario.execution.mode,
}


def _class_of(tokens: int) -> str:
    for most in (0, 1, 8, 32, 128):
        if tokens <= most:
            return str(most) if most < 2 else f"up to {most}"
    return "above 128"


class Page:
    """A handler that collects what a page shows, and writes it when the run ends, interrupted or not.

    error: why it could not be written, None when it was.
    """

    def __init__(self, path: Path, options: Options) -> None:
        """Raises `InvalidOption` where no file can be."""
        if not can_be_replaced(path):
            raise InvalidOption(f"--html {path}: cannot be written; name a file in a folder that exists")
        self.error: str | None = None
        self._path = path
        self._options = options
        self._started: RunStarted | None = None
        self._ratios: dict[str, list[float]] = defaultdict(list)
        self._all_exact: Counter[str] = Counter()
        self._by_axis: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._started = event
            case ScenarioFinished(scenario=scenario, outcomes=outcomes):
                for outcome in outcomes:
                    self._take(scenario, outcome)
            case RunFinished(summary=summary):
                self._write(summary, interrupted=False)
            case RunInterrupted(summary=summary):
                self._write(summary, interrupted=True)

    def _take(self, scenario: AnyScenario, outcome: Outcome) -> None:
        """Ratios are of agreeing scenarios: a finding's own is told with the finding."""
        if outcome.verdict is not Verdict.AGREES or outcome.stats is None:
            return
        ratio = outcome.stats.max_ratio
        if ratio is None:
            self._all_exact[outcome.candidate] += 1
            return
        self._ratios[outcome.candidate].append(ratio)
        if not isinstance(scenario, Scenario):
            return
        for axis, value in _AXES.items():
            self._by_axis[axis, value(scenario)][outcome.candidate].append(ratio)

    def _write(self, summary: Summary, *, interrupted: bool) -> None:
        try:
            write_whole(self._path, self._text(summary, interrupted=interrupted))
        except OSError as error:
            self.error = f"--html {self._path}: {error.strerror}; the page is not written"

    def _text(self, summary: Summary, *, interrupted: bool) -> str:
        candidates = list(summary.verdicts)
        return render(
            "campaign.html.j2",
            options=self._options,
            command=self._options.command(),
            summary=summary,
            interrupted=interrupted,
            reason=describe.exit_reason(summary),
            candidates=candidates,
            verdicts=[v for v in Verdict if v is Verdict.AGREES or any(seen[v] for seen in summary.verdicts.values())],
            histograms={name: self._histogram(name) for name in candidates},
            axes=self._axes(candidates),
            groups=[_group(mistake, self._options) for mistake in mistakes(summary.findings)],
            agreement=describe.pair_lines(summary.pairs)[1:],
            coverage=_coverage(summary.coverage),
            environment=_environment(),
        )

    def _histogram(self, candidate: str) -> dict[str, Any]:
        ratios = self._ratios[candidate]
        counts = Counter(min(BINS - 1, int(ratio * BINS)) for ratio in ratios)
        return {
            "exact": self._all_exact[candidate],
            "total": len(ratios),
            "counts": [counts[position] for position in range(BINS)],
            "most": max(counts.values(), default=1),
            "median": statistics.median(ratios) if ratios else None,
            "largest": max(ratios, default=None),
        }

    def _axes(self, candidates: list[str]) -> dict[str, list[dict[str, Any]]]:
        """By axis, a row for each value and candidate with a ratio: how many scenarios, median and largest ratio."""
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for (axis, value), ratios in sorted(self._by_axis.items()):
            for name in candidates:
                if found := ratios.get(name):
                    told = {"number": len(found), "median": statistics.median(found), "largest": max(found)}
                    rows[axis].append({"value": value, "candidate": name, **told})
        return rows


def _group(mistake: Mistake, options: Options) -> dict[str, Any]:
    """Findings that one mistake explains. title: empty for one alone, which says it itself."""
    several = len(mistake.findings) > 1
    return {
        "title": describe.mistake_title(mistake) if several else "",
        "findings": [_finding(finding, options) for finding in mistake.findings],
    }


def _finding(finding: Finding, options: Options) -> dict[str, Any]:
    smallest = finding.smallest
    return {
        "title": describe.outcome_title(smallest),
        "detail": smallest.detail,
        "scenario": describe.scenario_line(smallest.scenario),
        "element": None if smallest.worst is None else describe.element_line(smallest.worst, smallest.kind),
        "heat": smallest.heat,
        "columns": _column_marks(smallest),
        "rows": _row_marks(smallest),
        "explanation": None if finding.explanation is None else str(finding.explanation),
        "votes": None if finding.votes is None else describe.votes_line(finding.votes),
        "seen": finding.seen,
        "runs": finding.shrink_runs_hypothesis + finding.shrink_runs_reducer,
        "command": describe.short_finding_lines(finding, options)[-1].strip().removeprefix("Reproduce with: "),
    }


def _column_marks(outcome: Outcome) -> list[int]:
    """The columns at which a tile may begin, where the heat map has a place for each."""
    scenario = outcome.scenario
    if not isinstance(scenario, Scenario) or not outcome.heat or len(outcome.heat[0]) != scenario.shape.hidden:
        return []
    return list(range(TILE, scenario.shape.hidden, TILE))


def _row_marks(outcome: Outcome) -> list[str]:
    """For each row of the heat map that is wrong, the first few of them: which experts it went to, which slots are
    masked. None where rows are shown in blocks."""
    scenario = outcome.scenario
    if not isinstance(scenario, Scenario):
        return []
    rows = scenario.shape.tokens + scenario.execution.padding
    if not outcome.heat or len(outcome.heat) != rows:
        return []
    import torch  # of the process that ran the campaign

    from oracles import captures, routing

    place = torch.device("cpu")
    try:
        ids, _ = routing.route(scenario, place, captures.taken(scenario, place))
    except LookupError:  # its recording is not here
        return []
    first, size = scenario.first_expert, scenario.experts_local

    def slot(expert: int) -> str:
        return "masked" if expert == -1 else str(expert) + ("" if 0 <= expert - first < size else " (not of this rank)")

    experts = "experts" if scenario.shape.top_k > 1 else "expert"
    wrong = [row for row, line in enumerate(outcome.heat) if line.strip(".")]
    words = [f"row {row}: {'padding, ' * (row >= scenario.shape.tokens)}{experts} " for row in wrong[:MARKED]]
    marks = [word + ", ".join(map(slot, ids[row].tolist())) for word, row in zip(words, wrong, strict=False)]
    return marks + ([f"and {len(wrong) - MARKED} more rows"] if len(wrong) > MARKED else [])


def _coverage(coverage: Coverage) -> dict[str, Any]:
    """What was drawn: scenarios by axis and value, and for each two axes how many of their pairs of values met."""
    values: dict[str, dict[str, int]] = defaultdict(dict)
    for (axis, value), count in coverage.values.items():
        values[axis][value] = count
    possible = Counter((first[0], second[0]) for first, second in coverage.possible_pairs)
    met = Counter((first[0], second[0]) for first, second in coverage.pairs & coverage.possible_pairs)
    axes = list(values)
    rows = [
        {"axis": axis, "cells": [met[other, axis] / possible[other, axis] for other in axes[:place]]}
        for place, axis in enumerate(axes)
        if place and all(possible[other, axis] for other in axes[:place])
    ]
    return {"lines": describe.coverage_lines(coverage), "values": values, "axes": axes, "rows": rows}


def _environment() -> dict[str, str]:
    return {
        "difftest": importlib.metadata.version("difftest"),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "platform": platform.platform(),
    }
