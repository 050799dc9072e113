"""What explains a fault, and what is said of one that is not in the library: `python benchmarks/explanation.py`.

For each fault (`oracles.faults`): a campaign's scenarios up to the first finding, which is then reduced and explained
twice, with all faults as hypotheses and with all but itself. A table by class says

    own       explained by its own name, alone
    among     by its own name and others that answer the same to all that was asked
    recipe    by a rounding, which holds its answers to all that was asked
    missed    not at all, or by other names
and, of those that were left out,
    in class, outside   explained by another name of its class, or of another one
    none, class         not explained, and of these how often the suspected class is the true one.

Exits with 1 when a fault is missed, more than 5 % are explained by a name outside of their class, or fewer than 80 %
of those that nothing matches are told by their class. Results are kept as they come, and a run goes on from there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from measuring import Results, each, shared_answers, spread

from difftest.engine import Engine
from difftest.explain.explainer import Explainer
from difftest.explain.explanation import Explanation
from difftest.judging.outcome import Outcome
from difftest.judging.trial import InProcess
from difftest.shrinking.shrink import Shrinker
from oracles.faults import FAULTS, KINDS
from strategies import Scenario

BUDGET = 2000
OUTSIDE, TOLD = 0.05, 0.8


def first_findings(seed: int, names: list[str], budget: int) -> dict[str, dict[str, Any] | None]:
    """By fault, the first finding of a campaign in its JSON form; None when the budget ends before."""
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(names)
    with shared_answers() as shared:
        oracles = {name: FAULTS[name].oracle() for name in names}
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


def explained(name: str, first: dict[str, Any]) -> dict[str, Any]:
    """The finding reduced, and its two explanations in their JSON form, with and without the fault itself."""
    oracle = FAULTS[name].oracle()
    started = time.monotonic()
    shrunk = Shrinker(Engine(oracle, executor=InProcess(oracle, "reference")), Outcome.from_json(first), _ignore)
    smallest = shrunk.shrink(None).smallest
    reduced = time.monotonic()
    full = Explainer(FAULTS[name].oracle()).explain(smallest, shrunk.worst)
    ended = time.monotonic()
    others = {other: fault for other, fault in FAULTS.items() if other != name}
    without = Explainer(FAULTS[name].oracle(), faults=others).explain(smallest, shrunk.worst)
    return {
        "smallest": smallest.to_json(),
        "explanation": full.to_json(),
        "without": without.to_json(),
        "seconds": [reduced - started, ended - reduced],
    }


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
    kind = FAULTS[name].kind
    if explanation.matches:
        return "in class" if explanation.matches[0].kind == kind else "outside"
    return "class" if explanation.suspected == kind else "none"


def report(results: dict[str, dict[str, Any]]) -> int:
    columns = ("own", "among", "recipe", "missed", "in class", "outside", "class", "none")
    rows: dict[str, dict[str, int]] = {kind: dict.fromkeys(columns, 0) for kind in (*KINDS, "all")}
    for name in sorted(results, key=list(FAULTS).index):
        full = Explanation.from_json(results[name]["explanation"])
        without = Explanation.from_json(results[name]["without"])
        said, left = verdict(name, full), verdict_without(name, without)
        for row in (FAULTS[name].kind, "all"):
            rows[row][said] += 1
            rows[row][left] += 1
        if said not in ("own", "among") or left in ("outside", "none"):
            shown = without.headline if said in ("own", "among") else full.headline
            print(f"{FAULTS[name].kind} {name}: {said}, left out: {left}: {shown}")
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=BUDGET, help="scenarios of a campaign [default: %(default)s]")
    parser.add_argument("--fault", action="append", help="by name; all by default")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path("explanation.json"), help="[default: %(default)s]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.fault or list(FAULTS)
    results = Results(options.results, {"seed": options.seed, "budget": options.budget})
    if missing := [name for name in names if name not in results.of("found")]:
        results.add("found", first_findings(options.seed, missing, options.budget))
    found = results.of("found")
    jobs = {n: (n, found[n]) for n in names if found[n] is not None and n not in results.of("explained")}
    for name, result in spread(explained, jobs, options.processes):
        results.add("explained", {name: result})
        print(f"{name}: {Explanation.from_json(result['explanation']).headline}", flush=True)
    done = results.of("explained")
    late = [name for name in names if found[name] is None]
    if late:
        print(f"not found in {options.budget} scenarios: {', '.join(late)}")
    return report({name: done[name] for name in names if name in done})


if __name__ == "__main__":
    sys.exit(main())
