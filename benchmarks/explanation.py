"""What explains a fault, and what is said of one that is not in the library: `python benchmarks/explanation.py`.

For each fault (`oracles.faults`) and seed: a campaign's scenarios up to the first finding, which is then reduced and
explained twice, with all faults as hypotheses and with all but itself. A table by class says

    own       explained by its own name, alone
    among     by its own name and others that answer the same to all that was asked
    recipe    by a rounding, which holds its answers to all that was asked
    missed    not at all, or by other names
and, of those that were left out,
    in class, outside   explained by another name of its class, or of another one
    none, class         not explained, and of these how often the suspected class is the true one.

With --unseen the faults are those of `oracles.faults.unseen`, which are hypotheses of nothing: all are left out.

Exits with 1 when a fault is missed, more than 5 % are explained by a name outside of their class, or fewer than 80 %
of those that nothing matches are told by their class. Results are kept as they come, and a run goes on from there.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measuring import Results, each, shared_answers, spread

from difftest.engine import Engine
from difftest.explain import hypotheses
from difftest.explain.answers import Answers, NotAsked
from difftest.explain.explainer import Explainer
from difftest.explain.explanation import Explanation
from difftest.judging.outcome import Outcome
from difftest.judging.trial import InProcess
from difftest.shrinking.shrink import Shrinker
from oracles.base import Oracle
from oracles.faults import FAULTS, KINDS, UNSEEN_FAULTS
from strategies import Scenario

BUDGET = 2000
PARTS = 8
"""Searches that the faults are divided among."""
OUTSIDE, TOLD = 0.05, 0.8
KNOWN = {**FAULTS, **UNSEEN_FAULTS}


def first_findings(seed: int, names: list[str], budget: int) -> dict[str, dict[str, Any] | None]:
    """By fault, the first finding of a campaign in its JSON form; None when the budget ends before."""
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(names)
    with shared_answers() as shared:
        oracles = {name: KNOWN[name].oracle() for name in names}
        engines = {name: Engine(o, executor=InProcess(o, "reference")) for name, o in oracles.items()}

        def visit(scenario: Scenario) -> bool:
            shared.forget()
            for name in [name for name, seen in found.items() if seen is None]:
                outcome = engines[name].check(scenario)
                if outcome.is_finding:
                    found[name] = outcome.findings[0].to_json()
            return None in found.values()

        each(seed, budget, visit)
    return found


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """While it lasts, a hypothesis answers a question once: the two explanations of a finding ask nearly the same."""
    asked: dict[tuple[str, Scenario, str], Answers | None] = {}
    ask = hypotheses.ask

    def once(oracle: Oracle, scenario: Scenario, check: str, **kwargs: Any) -> Answers:
        key = oracle.name, scenario, check
        if key not in asked:
            try:
                asked[key] = ask(oracle, scenario, check, **kwargs)
            except NotAsked:
                asked[key] = None
        answers = asked[key]
        if answers is None:
            raise NotAsked
        return answers

    with mock.patch.object(hypotheses, "ask", once):
        yield


def explained(name: str, first: dict[str, Any]) -> dict[str, Any]:
    """The finding reduced, and its explanations in their JSON form, with and without the fault itself; of a fault that
    is no hypothesis the one without."""
    with remembered(), shared_answers():
        return _explained(name, first)


def _explained(name: str, first: dict[str, Any]) -> dict[str, Any]:
    oracle = KNOWN[name].oracle()
    started = time.monotonic()
    shrunk = Shrinker(Engine(oracle, executor=InProcess(oracle, "reference")), Outcome.from_json(first), _ignore)
    smallest = shrunk.shrink(None).smallest
    result: dict[str, Any] = {"smallest": smallest.to_json(), "reduced in": time.monotonic() - started}
    tried = {"without": {other: fault for other, fault in FAULTS.items() if other != name}}
    if name in FAULTS:
        tried = {"explanation": dict(FAULTS), **tried}
    for part, faults in tried.items():
        started = time.monotonic()
        explanation = Explainer(KNOWN[name].oracle(), faults=faults).explain(smallest, shrunk.worst)
        result |= {part: explanation.to_json(), f"{part} in": time.monotonic() - started}
    return result


def _ignore(*_: object) -> None:
    """The table is all that is shown."""


def verdict(name: str, explanation: Explanation) -> str:
    """own, among, recipe or missed; see above."""
    names = [match.name for match in explanation.matches]
    if name in names:
        return "own" if names == [name] else "among"
    return "recipe" if any(match.source == "recipe" for match in explanation.matches) else "missed"


def verdict_without(name: str, explanation: Explanation) -> str:
    """in class, outside, class (told rightly where nothing matches) or none (told wrongly)."""
    kind = KNOWN[name].kind
    if explanation.matches:
        return "in class" if explanation.matches[0].kind == kind else "outside"
    return "class" if explanation.suspected == kind else "none"


def report(results: Mapping[tuple[int, str], Mapping[str, Any]]) -> int:
    """results: by seed and fault."""
    columns = ("own", "among", "recipe", "missed", "in class", "outside", "class", "none")
    rows: dict[str, dict[str, int]] = {kind: dict.fromkeys(columns, 0) for kind in (*KINDS, "all")}
    order = list(KNOWN)
    for (seed, name), result in sorted(results.items(), key=lambda item: (order.index(item[0][1]), item[0][0])):
        without = Explanation.from_json(result["without"])
        verdicts, shown = [verdict_without(name, without)], without
        if name in FAULTS:
            full = Explanation.from_json(result["explanation"])
            verdicts.append(verdict(name, full))
            shown = without if verdicts[1] in ("own", "among") else full
        for row in (KNOWN[name].kind, "all"):
            for said in verdicts:
                rows[row][said] += 1
        if {"outside", "none", "recipe", "missed"} & set(verdicts):
            print(f"{KNOWN[name].kind} {name}, seed {seed}: {', '.join(verdicts)}: {shown.headline}")
    print(f"\n{'class':<12}" + "".join(f"{column:>10}" for column in columns) + f"{'told':>10}")
    for row, counts in rows.items():
        nothing = counts["class"] + counts["none"]
        told = f"{counts['class'] / nothing:.0%}" if nothing else "-"
        print(f"{row:<12}" + "".join(f"{counts[column]:>10}" for column in columns) + f"{told:>10}")
    total = rows["all"]
    nothing = total["class"] + total["none"]
    good = not total["missed"] and total["outside"] <= OUTSIDE * len(results) and total["class"] >= TOLD * nothing
    return 0 if good and results else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="seeds 0, 1, ... [default: %(default)s]")
    parser.add_argument("--budget", type=int, default=BUDGET, help="scenarios of a campaign [default: %(default)s]")
    parser.add_argument("--fault", action="append", help="by name; all by default")
    parser.add_argument("--unseen", action="store_true", help="`oracles.faults.unseen` and not the library's")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("explanation.json"), help="[default: %(default)s]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.fault or list(UNSEEN_FAULTS if options.unseen else FAULTS)
    results = Results(options.results, {"budget": options.budget})
    seeds = range(options.seeds)
    unfound = {seed: [name for name in names if name not in results.of(f"found {seed}")] for seed in seeds}
    parts = {(seed, part): (seed, missing[part::PARTS]) for seed, missing in unfound.items() for part in range(PARTS)}
    searches = {key: (seed, part, options.budget) for key, (seed, part) in parts.items() if part}
    for (seed, _), found in spread(first_findings, searches, options.processes):
        results.add(f"found {seed}", found)
    found_in = {(seed, name): results.of(f"found {seed}")[name] for name in names for seed in seeds}
    jobs = {
        (seed, name): (name, first)
        for (seed, name), first in found_in.items()
        if first is not None and name not in results.of(f"explained {seed}")
    }
    for (seed, name), result in spread(explained, jobs, options.processes):
        results.add(f"explained {seed}", {name: result})
        headline = Explanation.from_json(result.get("explanation", result["without"])).headline
        print(f"{name}, seed {seed}: {headline}", flush=True)
    late = [f"{name}, seed {seed}" for (seed, name), first in found_in.items() if first is None]
    if late:
        print(f"not found in {options.budget} scenarios: {'; '.join(late)}")
    shown = {seed: results.of(f"explained {seed}") for seed in seeds}
    return report({(seed, name): shown[seed][name] for seed in seeds for name in names if name in shown[seed]})


if __name__ == "__main__":
    sys.exit(main())
