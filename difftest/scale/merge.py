"""Results joined into what one run of the whole campaign would have said."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from difftest.findings import Finding, Summary
from difftest.harvest import FORMS
from difftest.judging.outcome import Bucket
from difftest.ledger import cases
from difftest.ledger.cases import Case
from difftest.options import Options, shards_of
from difftest.output.events import CaseSaved, Handler, RunFinished, RunStarted
from difftest.scale.part import words
from difftest.scale.result import Result
from difftest.shrinking.complexity import complexity, covers
from difftest.shrinking.shrink import magnitude


class NotOneCampaign(ValueError):
    """Results do not add up. The message is one line that names the result, and what to do."""


@dataclasses.dataclass(frozen=True)
class _Sighting:
    """A finding of one part, and its case. before: scenarios of the whole campaign up to and with its first."""

    finding: Finding
    case: Case
    before: int


def check(results: Mapping[str, Result]) -> None:
    """Raises `NotOneCampaign` unless the results are of one campaign and each shard is in one of them. results: by the
    name that the user knows each by."""
    first_name, first = next(iter(results.items()))
    owners: dict[int, str] = {}
    for name, result in results.items():
        difference = first.identity.difference(result.identity)
        if difference is not None:
            raise NotOneCampaign(
                f"{name}: is of another campaign than {first_name}: {difference}; join results of one campaign"
            )
        twice = [shard for shard in result.shards if shard in owners]
        if twice:
            raise NotOneCampaign(
                f"{name}: has shard {words(twice)}, which {owners[twice[0]]} has too; give one of them, so that no "
                "scenario counts twice"
            )
        owners.update(dict.fromkeys(result.shards, name))
    missing = set(range(shards_of(first.identity.options["examples"]))) - owners.keys()
    if missing:
        raise NotOneCampaign(f"missing: shard {words(missing)}; run it with the campaign's options, or give its result")


def join(results: Sequence[Result]) -> tuple[Summary, list[Case]]:
    """The summary of all, and the cases of its findings in their order. results: that `check` accepts.

    Findings of a bucket are one where the simplest of them explains the others, so far as scenarios alone can tell:
    they have all that it has (`covers`). Else the next simplest stands beside it, as in one run. seconds: 0, since the
    parts ran beside each other.
    """
    scenarios = {shard: count for result in results for shard, count in result.shards.items()}
    parts = sorted(results, key=lambda result: min(result.shards, default=0))
    summary = sum((part.summary for part in parts), Summary())
    sightings: dict[Bucket, list[_Sighting]] = defaultdict(list)
    for part in parts:
        for finding, case in zip(part.summary.findings, part.cases, strict=True):
            before = _position(part.shards, finding.scenarios_before, scenarios)
            sightings[finding.bucket].append(_Sighting(finding, case, before))
    joined = [one for found in sightings.values() for one in _forms(found)]
    joined.sort(key=lambda one: (one.finding.bucket.check != "reference", -one.finding.seen, one.before))
    findings = tuple(one.finding for one in joined)
    return dataclasses.replace(summary, findings=findings, seconds=0.0), [one.case for one in joined]


def save(summary: Summary, found: Sequence[Case], folder: Path, emit: Handler) -> Summary:
    """Write the cases of `join` into `folder`, and tell of each; the summary with their paths.

    A case that is there already, as when results are joined again, is left as it is: somebody may have marked it.
    Raises `CaseNotWritten`.
    """
    paths = []
    for case in found:
        path = folder / f"{case.bucket}-{case.scenario.digest}{cases.SUFFIX}"
        if not path.exists():
            cases.save(case, path)
        emit(CaseSaved(bucket=case.bucket, path=path))
        paths.append(path)
    findings = [dataclasses.replace(f, case_path=path) for f, path in zip(summary.findings, paths, strict=True)]
    return dataclasses.replace(summary, findings=tuple(findings))


def tell(results: Sequence[Result], options: Options, emit: Handler) -> Summary:
    """Join results, save the cases in the options' folder, and tell of it as of a run. Raises `CaseNotWritten`."""
    summary, found = join(results)
    shards = [shard for result in results for shard in result.shards]
    emit(
        RunStarted(
            options=options,
            candidates=tuple(summary.verdicts),
            missing=summary.missing,
            shards=len(shards),
            scenarios=summary.scenarios,
        )
    )
    summary = save(summary, found, options.cases, emit)
    emit(RunFinished(summary=summary))
    return summary


def _position(mine: Mapping[int, int], before: int, scenarios: Mapping[int, int]) -> int:
    """Where the `before`-th scenario of a part is in the whole campaign, shard after shard."""
    left = before
    for shard, count in mine.items():
        if left <= count:
            return sum(number for other, number in scenarios.items() if other < shard) + left
        left -= count
    return before


def _forms(sightings: Sequence[_Sighting]) -> list[_Sighting]:
    """The findings of one bucket, those that a simpler one explains joined with it."""
    left = sorted(sightings, key=lambda one: complexity(one.finding.smallest.scenario))
    forms: list[_Sighting] = []
    while left:
        smallest = left[0].finding.smallest.scenario
        last = len(forms) == FORMS - 1
        same = [one for one in left if last or covers(smallest, one.finding.smallest.scenario)]
        forms.append(_one(same))
        left = [one for one in left if one not in same]
    return forms


def _one(same: Sequence[_Sighting]) -> _Sighting:
    """The first is the simplest."""
    simplest, before = same[0], min(one.before for one in same)
    worst = max((one.finding.worst for one in same), key=magnitude)
    finding = dataclasses.replace(
        simplest.finding,
        worst=worst,
        seen=sum(one.finding.seen for one in same),
        scenarios_before=before,
        shrink_runs_hypothesis=sum(one.finding.shrink_runs_hypothesis for one in same),
        shrink_runs_reducer=sum(one.finding.shrink_runs_reducer for one in same),
    )
    sightings = tuple(sorted({digest for one in same for digest in one.case.sightings}))
    return _Sighting(finding, dataclasses.replace(simplest.case, worst=worst, sightings=sightings), before)
