"""A campaign against FlashInfer's CUTLASS kernel, as a table. `python benchmarks/campaign_cutlass.py --activation situ`

Takes the options of `difftest run`. Draws and judges as that does, and tells of every candidate: how many scenarios
agree, by activation, with error / radius; what does not agree, by the name of its known deviation; what is unsupported,
by reason; what is new. Then a Kimi-K3 rank (EP32, rank 7) at M = 1, 8, 32, 128, with other content each time.
Exit code 1 when anything is new.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter, defaultdict
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from difftest import campaign, preflight
from difftest.engine import Engine, Executor
from difftest.findings import Summary
from difftest.judging.checks import CHECKS
from difftest.judging.outcome import Agreement, Outcome, Verdict
from difftest.ledger import cases
from difftest.options import OPTIONS, Options
from difftest.output import describe
from difftest.output.events import Event, ScenarioFinished
from oracles.routing import route
from strategies.capability import Capability
from strategies.models import MODELS
from strategies.scenario import ACTIVATIONS, Activation, Execution, Parallel, Routing, Scenario, Values

CANDIDATES = ("cutlass", "cutlass-graph")
RANK = Parallel(ep_size=32, ep_rank=7)
TOKENS = (1, 8, 32, 128)
SCALES = (114, 118)
"""Gates of order 3 at H = 3584."""


def main() -> None:
    options: list[click.Parameter] = [
        click.Option(
            [spec.flag, spec.name],
            metavar=None if spec.is_switch else spec.metavar,
            is_flag=spec.is_switch,
            help=spec.help,
            multiple=spec.repeatable,
        )
        for spec in OPTIONS
    ]
    draws = click.Option(["--draws"], type=int, default=8, show_default=True, help="Contents of a Kimi-K3 batch.")
    click.Command("campaign_cutlass", callback=run, help=__doc__, params=[*options, draws]).main()


def run(draws: int, **given: Any) -> None:
    options = Options.parse(given | {"candidate": given["candidate"] or CANDIDATES})
    preflight.check(options)
    console = Console(width=170)
    tally = Tally()
    started = time.perf_counter()
    summary = campaign.run(options, tally)
    seconds = time.perf_counter() - started
    console.print("\n".join(describe.missing_lines(summary.missing)), markup=False)
    console.print(f"{options.command()}: {summary.scenarios / seconds:.1f} scenarios/s, ledger and shrinking included")
    share = tally.duplicates / max(1, tally.scenarios)
    console.print(f"{tally.duplicates} of {tally.scenarios} scenarios ({share:.1%}) have an expert twice in a row")
    for candidate in summary.verdicts:
        console.print(tally.table(candidate, candidate))
    console.print(the_rest(summary))
    for finding in summary.findings:
        console.print("\n".join(describe.finding_lines(finding, options)), markup=False)
    new = len(summary.findings)
    with campaign.executors_for(options) as executors:
        for candidate in summary.verdicts if draws else ():
            found, outcomes = kimi_k3(executors.of(candidate, options.reference), options, draws)
            console.print(found.table(candidate, f"{candidate}, Kimi-K3 rank 7 of 32"))
            new += len(outcomes)
            for outcome in outcomes:
                console.print(f"{outcome}: {describe.scenario_line(outcome.scenario)}", markup=False)
    sys.exit(1 if new else 0 if summary.verdicts else 3)


class Tally:
    """An event handler: verdicts and error / radius by candidate and a label of the scenario.

    duplicates: scenarios in which a row names a local expert twice.
    """

    def __init__(self) -> None:
        self.scenarios = self.duplicates = 0
        self._verdicts: dict[str, dict[str, Counter[Verdict]]] = defaultdict(lambda: defaultdict(Counter))
        self._stats: dict[str, dict[str, list[Agreement]]] = defaultdict(lambda: defaultdict(list))

    def __call__(self, event: Event) -> None:
        if isinstance(event, ScenarioFinished) and isinstance(event.scenario, Scenario):
            self.scenarios += 1
            self.duplicates += names_an_expert_twice(event.scenario)
            for outcome in event.outcomes:
                self.add(activation_label(event.scenario.activation), outcome)

    def add(self, label: str, outcome: Outcome) -> None:
        self._verdicts[outcome.candidate][label][outcome.verdict] += 1
        if outcome.stats is not None and outcome.verdict is Verdict.AGREES:
            self._stats[outcome.candidate][label].append(outcome.stats)

    def table(self, candidate: str, title: str) -> Table:
        """A row for each label. Ratios are error / radius of what agrees: the median of medians, and the largest."""
        verdicts = [verdict for verdict in Verdict if any(row[verdict] for row in self._verdicts[candidate].values())]
        ratios = ("sharp median", "sharp max", "hard median", "hard max", "mean radius / rms")
        table = Table("scenarios", *map(str, verdicts), "exact", *ratios, title=title)
        for label, counts in sorted(self._verdicts[candidate].items()):
            stats = self._stats[candidate][label]
            compared = sum(one.compared for one in stats)
            exact = f"{sum(one.exact for one in stats) / compared:.1%}" if compared else "-"
            radii = [one.mean_radius / one.rms for one in stats if one.rms > 0]
            table.add_row(
                label,
                *(str(counts[verdict]) for verdict in verdicts),
                exact,
                _told(statistics.median, [one.median_ratio for one in stats]),
                _told(max, [one.max_ratio for one in stats]),
                _told(statistics.median, [one.median_ratio_hard for one in stats]),
                _told(max, [one.max_ratio_hard for one in stats]),
                f"{statistics.median(radii):.2e}" if radii else "-",
            )
        return table


def _told(of: Any, ratios: list[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{of(known):.3f}" if known else "-"


def the_rest(summary: Summary) -> Table:
    """What does not agree: findings by candidate and the deviation that the ledger names, new ones, unsupported."""
    table = Table("candidate", "what", "count", title="what does not agree, by cause")
    saved = [*cases.paths(cases.SHIPPED)]
    named: Counter[tuple[str, str]] = Counter()
    for path in saved:
        case = cases.load(path)
        if summary.known[path.name]:
            named[case.candidate, case.deviation or path.name] += summary.known[path.name]
    own = sum(count for name, count in summary.known.items() if name not in {path.name for path in saved})
    for (candidate, name), count in sorted(named.items()):
        table.add_row(candidate, f"known: {name}", str(count))
    if own:
        table.add_row("", "known: cases of --cases", str(own))
    for candidate, reasons in summary.unsupported.items():
        for reason, count in reasons.most_common():
            table.add_row(candidate, f"unsupported: {reason}", str(count))
    for finding in summary.findings:
        table.add_row(finding.bucket.oracle, f"NEW: {finding.bucket}", str(finding.seen))
    table.add_row("", "one-offs outside the sharp radius", str(summary.one_offs))
    return table


def activation_label(activation: Activation) -> str:
    """SiTU with 4/25, with other values, per expert; the others by kind."""
    default = type(activation)()
    if getattr(activation, "per_expert", False):
        return f"{activation.kind}, per expert"
    return activation.kind if activation == default else f"{activation.kind}, other parameters"


def names_an_expert_twice(scenario: Scenario) -> bool:
    ids, _ = route(scenario, torch.device("cpu"))
    local = ids.long() - scenario.first_expert
    local = torch.where((ids >= 0) & (local >= 0) & (local < scenario.experts_local), local, -1).sort(-1).values
    return bool(((local[:, 1:] == local[:, :-1]) & (local[:, 1:] >= 0)).any())


def kimi_k3(executor: Executor, options: Options, draws: int) -> tuple[Tally, list[Outcome]]:
    """`draws` contents of each batch, with the checks that a campaign would sample; and what was found."""
    model, tally, found = MODELS["kimi-k3"], Tally(), []
    capability = executor.introduction.capability
    assert isinstance(capability, Capability)  # preflight: no routers beside layers
    kinds = [kind for kind in ACTIVATIONS if kind in capability.activations]
    chosen = [kind for kind in kinds if kind in (options.activations or kinds)]
    graph = "eager" not in capability.modes
    execution = Execution(mode="graph", replays=("all", "fewer_tokens", "same")) if graph else Execution()
    # M = 0, which the check "empty" asks for, is the campaign's to count.
    engine = Engine(executor.candidate, executor.reference, executor=executor, checks=CHECKS.keys() - {"empty"})
    for kind in chosen:
        for tokens in TOKENS:
            for seed in range(draws):
                scenario = Scenario(
                    shape=model.shape(tokens),
                    parallel=RANK,
                    activation=ACTIVATIONS[kind](),
                    routing=Routing(seed=options.seed + seed),
                    values=Values(seed=options.seed + seed, scale_low=SCALES[0], scale_high=SCALES[1]),
                    execution=execution,
                )
                outcome = engine.check(scenario)
                tally.add(f"{kind}, M = {tokens:3}", outcome)
                found += list(outcome.findings)
    return tally, found


if __name__ == "__main__":
    main()
