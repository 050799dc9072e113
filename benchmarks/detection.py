"""What is caught, how soon, and what fixed tolerances see of it.

    python benchmarks/detection.py detect      for each fault (`oracles.faults`) and each seed: how many scenarios of a
        campaign until it is caught. Beside it the answers to the first scenarios judged by fixed tolerances that are in
        use elsewhere, and by twelve fixed shapes. A fault counts as caught when every seed catches it. Exits with 1
        when in a class of faults less than 98 % are caught, or their median is 60 scenarios or more.
    python benchmarks/detection.py rare        for the faults that say what must meet: the share of evenly drawn
        scenarios to which they answer otherwise than the twin. Exits with 1 when one does so in 1 % or more.

`detect` keeps its results in a JSON file as they come; when it is run again, it goes on from there.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from measuring import Results, answer, each, shared_answers, spread
from tolerances import TOLERANCES, passed

from difftest.engine import Engine
from difftest.judging.compare import judge, not_equal
from difftest.judging.trial import InProcess
from oracles.faults import FAULTS, KINDS, UNSEEN_FAULTS, Twin
from oracles.problem import build
from oracles.reference import enclose
from strategies import (
    AssignExpert,
    DuplicateSlot,
    Execution,
    Layer,
    MaskRow,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    Swiglu,
    SwigluOai,
    ValueEdit,
    Values,
)

KNOWN = {**FAULTS, **UNSEEN_FAULTS}
BUDGET = 2000
CAUGHT, MEDIAN = 0.98, 60


def fixed_shapes() -> Iterator[Scenario]:
    """Twelve: 1, 2, 8 and 32 tokens, routed uniformly, unevenly, and with every other row's last slot masked."""
    for tokens in (1, 2, 8, 32):
        shape = Shape(tokens=tokens, hidden=128, intermediate=128, experts=8, top_k=2)
        masked = tuple(MaskSlot(token=token, slot=1) for token in range(0, tokens, 2))
        for routing in (Routing(), Routing(rule="skewed"), Routing(edits=masked)):
            yield Scenario(shape=shape, routing=routing)


def detect_seed(seed: int, names: list[str], budget: int, compared: int) -> dict[str, dict[str, Any]]:
    """By fault: `caught` after so many scenarios (None: never), by which `check`, and the same by fixed tolerances in
    the first `compared` scenarios."""
    found: dict[str, dict[str, Any]] = {name: {"caught": None, "check": None, "tolerances": {}} for name in names}
    oracles = {name: KNOWN[name].oracle() for name in names}
    twin, number = Twin(), 0
    with shared_answers() as shared:
        engines = {n: Engine(oracle, executor=InProcess(oracle, "reference")) for n, oracle in oracles.items()}

        def visit(scenario: Scenario) -> bool:
            nonlocal number
            number += 1
            shared.forget()
            for name, engine in engines.items():
                outcome = engine.check(scenario) if found[name]["caught"] is None else None
                if outcome is not None and outcome.is_finding:
                    found[name] |= {"caught": number, "check": f"{outcome.check} {outcome.kind}"[:60]}
            if number <= compared:
                compare(scenario)
            return number < compared or any(result["caught"] is None for result in found.values())

        def compare(scenario: Scenario) -> None:
            problem = shared.build(scenario)
            enclosure = shared.enclose(problem, twin.numerics)
            right = answer(twin, problem)
            assert right is not None
            usual = passed(right, enclosure)  # one that the right answer fails says nothing
            for name in names:
                got = answer(KNOWN[name].oracle(), problem)
                for tolerance in usual if got is None else usual - passed(got, enclosure):
                    found[name]["tolerances"].setdefault(tolerance, number)

        each(seed, budget, visit)
    return found


def fixed_faults(names: list[str]) -> dict[str, list[str]]:
    """By fault, who sees it on the twelve fixed shapes: tolerances, and "enclosure"."""
    found: dict[str, set[str]] = {name: set() for name in names}
    with torch.no_grad():
        for scenario in fixed_shapes():
            problem = build(scenario)
            enclosure = enclose(problem, Twin.numerics)
            for name in names:
                got = answer(KNOWN[name].oracle(), problem)
                if got is None:
                    found[name] |= {*TOLERANCES, "enclosure"}
                    continue
                found[name] |= TOLERANCES.keys() - passed(got, enclosure)
                if judge(got, enclosure, Twin.numerics).breaches:
                    found[name].add("enclosure")
    return {name: sorted(seen) for name, seen in found.items()}


def detect(options: argparse.Namespace) -> int:
    names = options.fault or list(UNSEEN_FAULTS if options.unseen else FAULTS)
    results = Results(
        options.results, {"budget": options.budget, "compared": options.compared, "drawn": _fingerprint()}
    )
    todo = {
        seed: missing
        for seed in range(options.seeds)
        if (missing := [name for name in names if name not in results.of(f"seed {seed}")])
    }
    if missing := [name for name in names if name not in results.of("fixed")]:
        results.add("fixed", fixed_faults(missing))
    jobs = {seed: (seed, missing, options.budget, options.compared) for seed, missing in todo.items()}
    for seed, found in spread(detect_seed, jobs, options.processes):
        results.add(f"seed {seed}", found)
        late = [f"{name} {r['caught']}" for name, r in found.items() if (r["caught"] or math.inf) > MEDIAN * 5]
        print(f"seed {seed}: {len(found)} faults, late or never: {', '.join(late) or 'none'}", flush=True)
    return report_detection(names, [results.of(f"seed {seed}") for seed in range(options.seeds)], results.of("fixed"))


def _fingerprint() -> str:
    """Names what seed 0 draws: results of other strategies are not to be mixed with these."""
    seen: list[str] = []

    def visit(scenario: Scenario) -> bool:
        seen.append(scenario.digest)
        return len(seen) < 40

    each(0, BUDGET, visit)
    return f"{zlib.crc32(''.join(seen).encode()):08x}"


def report_detection(names: list[str], seeds: list[Mapping[str, Any]], fixed: Mapping[str, list[str]]) -> int:
    print(f"\n{'fault':<40} {'class':<11} {'caught':>7} {'median':>6} {'most':>5}  seen by (of {len(seeds)} seeds)")
    rows: dict[str, list[tuple[str, int, float]]] = defaultdict(list)
    for name in names:
        after = [seed[name]["caught"] for seed in seeds]
        caught = [number for number in after if number is not None]
        median = statistics.median(number or math.inf for number in after)
        rows[KNOWN[name].kind].append((name, len(caught), median))
        by = Counter(seed[name]["check"] for seed in seeds if seed[name]["check"])
        how = ", ".join(f"{check} {count}" for check, count in by.most_common(2))
        most = max(caught, default=0)
        print(f"{name:<40} {KNOWN[name].kind:<11} {len(caught):>3}/{len(seeds):<3} {median:>6.4g} {most:>5}  {how}")
    columns = [*TOLERANCES, "12x0.1", "12xencl"]
    print(f"\n{'class':<11} {'faults':>6} {'all seeds':>9} {'median':>6}  " + " ".join(f"{c:>8}" for c in columns))
    good = True
    for kind in [kind for kind in KINDS if kind in rows] + ["all"]:
        chosen = [row for key, group in rows.items() for row in group if kind in (key, "all")]
        sure = sum(caught == len(seeds) for _, caught, _ in chosen)
        median = statistics.median(median for _, _, median in chosen)
        good = good and sure >= CAUGHT * len(chosen) and median < MEDIAN
        seen = [sum(all(t in s[n]["tolerances"] for s in seeds) for n, _, _ in chosen) for t in TOLERANCES]
        seen += [sum(judge in fixed[n] for n, _, _ in chosen) for judge in ("0.1", "enclosure")]
        shares = " ".join(f"{count / len(chosen):>8.0%}" for count in seen)
        print(f"{kind:<11} {len(chosen):>6} {sure / len(chosen):>9.1%} {median:>6.4g}  {shares}")
    print("tolerances: share of the faults that one sees on every seed, in the first scenarios of each")
    return 0 if good else 1


_WEIGHTS = (0.0, -0.0, 1.0, -1.0, -0.375, math.nan, math.inf, -math.inf)


def evenly(source: random.Random) -> Scenario:
    """A scenario whose fields are drawn evenly and apart from each other, as a plain fuzzer does: sizes from all that
    the quick profile has, choices from all that there are, and up to two edits of even kind, place and content."""
    pick, below = source.choice, source.randrange
    ep_size, tokens = pick((1, 2, 3, 4, 8, 16, 32)), below(41)
    local = 1 + below(8)
    experts = ep_size * local
    top_k = min(experts, pick((1, 2, 3, 4, 5, 6, 8, 16)))
    hidden, inner = 32 * (1 + below(6)), 32 * (1 + below(6))
    moe_tp = pick((1, 2, 4))
    oai = SwigluOai(
        alpha=pick((1.702, 1.0, 0.5)),
        beta=pick((1.0, 0.0, 0.25)),
        limit=pick((7.0, 10.0, 1.0, 0.25, math.inf)),
        per_expert=pick((False, True)),
    )
    situ = Situ(
        beta=pick((0.5, 1.0, 4.0, 8.0)), linear_beta=pick((1.0, 4.0, 25.0, 100.0)), per_expert=pick((False, True))
    )
    ep_rank = below(ep_size)
    first = ep_rank * local

    def edit() -> Any:
        token, slot = below(tokens), below(top_k)
        expert, row = first + below(local), below(2 * inner)
        return pick(
            (
                MaskSlot(token=token, slot=slot),
                MaskRow(token=token),
                AssignExpert(token=token, slot=slot, expert=below(experts)),
                DuplicateSlot(token=token, slot=slot, source=below(top_k)),
                SetWeight(token=token, slot=slot, weight=pick(_WEIGHTS)),
                ValueEdit(
                    tensor="hidden_states",
                    index=(token, below(hidden)),
                    value=pick(("nan", "inf", "-inf", "0", "-0", "max", "-max", "min_subnormal")),
                ),
                ValueEdit(tensor="w13_scale", index=(expert, row, below(hidden // 32)), value=below(256)),
                ValueEdit(tensor="w2_scale", index=(expert, below(hidden), below(inner // 32)), value=below(256)),
            )
        )

    edits = [edit() for _ in range(below(3))] if tokens else []
    low = below(256)
    replays = pick(((), ("same",), ("x",), ("all", "same")))
    mode = pick(("eager", "graph"))
    return Scenario(
        shape=Shape(tokens=tokens, hidden=hidden, intermediate=inner * moe_tp, experts=experts, top_k=top_k),
        parallel=Parallel(ep_size=ep_size, ep_rank=ep_rank),
        activation=pick((Swiglu(), oai, situ)),
        precision=pick(("bf16xmxfp4", "mxfp8xmxfp4")),
        output_dtype=pick(("bfloat16", "float16")),
        layer=Layer(
            biases=pick(("none", "per_expert")),
            moe_tp_size=moe_tp,
            moe_tp_rank=below(moe_tp),
            routed_scaling_factor=pick((1.0, 0.5, 1.5, 2.0, 2.5)),
        ),
        routing=Routing(
            rule=pick(("uniform", "skewed", "all_to_one", "round_robin", "remote_only", "empty_experts", "ties")),
            seed=below(2**16),
            edits=tuple(edit for edit in edits if not isinstance(edit, ValueEdit)),
        ),
        values=Values(
            rule=pick(("normal", "integer", "index", "one_hot", "wide")),
            seed=below(2**16),
            x_exponent=pick((0, 1, -1, 2, -2, -8, 8)),
            scale_low=pick((118, low)),
            scale_high=max(122, low),
            edits=tuple(edit for edit in edits if isinstance(edit, ValueEdit)),
        ),
        execution=Execution(
            mode=mode,
            replays=replays if mode == "graph" else (),
            padding=pick((0, 1, 2, 3, 7, 8)),
            tactic=pick((None, *range(Twin.capability.tactics))),
        ),
    )


def differing(seed: int, names: list[str], count: int) -> dict[str, int]:
    """By fault, to how many of `count` evenly drawn scenarios it answers otherwise than the twin."""
    source, twin = random.Random(seed), Twin()
    found = dict.fromkeys(names, 0)
    with torch.no_grad():
        for _ in range(count):
            problem = build(evenly(source))
            right = answer(twin, problem)
            for name in names:
                got = answer(KNOWN[name].oracle(), problem)
                assert right is not None
                found[name] += got is None or not_equal(got, right) is not None
    return found


def rare(options: argparse.Namespace) -> int:
    names = options.fault or [name for name, fault in FAULTS.items() if fault.meets]
    share = options.count // 8
    totals: Counter[str] = Counter()
    for _, found in spread(differing, {part: (part, names, share) for part in range(8)}, options.processes):
        totals.update(found)
    common = 0
    for name in names:
        percent = totals[name] / (8 * share)
        common += percent >= 0.01
        print(f"{name:<40} {percent:>7.2%}  {' and '.join(KNOWN[name].meets)}")
    print(f"{len(names) - common} of {len(names)} faults answer otherwise in under 1 % of {8 * share} even draws")
    return 1 if common else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fault", action="append", metavar="NAME", help="this one only; may be given again")
    parser.add_argument("--processes", type=int, default=2)
    modes = parser.add_subparsers(required=True, metavar="MODE")
    detecting = modes.add_parser("detect", help="how soon each fault is caught")
    detecting.add_argument("--seeds", type=int, default=20, help="seeds 0, 1, ... [default: 20]")
    detecting.add_argument("--budget", type=int, default=BUDGET, help=f"scenarios of a seed [default: {BUDGET}]")
    detecting.add_argument("--compared", type=int, default=40, help="scenarios for fixed tolerances [default: 40]")
    detecting.add_argument("--results", type=Path, default=Path("detection.json"), help="[default: detection.json]")
    detecting.add_argument("--unseen", action="store_true", help="`oracles.faults.unseen` and not the library's")
    detecting.set_defaults(run=detect)
    drawing = modes.add_parser("rare", help="how rarely evenly drawn scenarios show them")
    drawing.add_argument("--count", type=int, default=4000, help="even draws [default: 4000]")
    drawing.set_defaults(run=rare)
    options = parser.parse_args()
    torch.set_num_threads(1)
    code: int = options.run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
