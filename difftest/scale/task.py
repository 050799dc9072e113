"""Some shards of a campaign, run to a result: by hand, in a job of a cluster, or as a task of Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from difftest import campaign
from difftest.ledger.ledger import crashing
from difftest.options import Options
from difftest.output.events import Event, Handler, ShardFinished
from difftest.scale.identity import Identity
from difftest.scale.result import Result


def run(
    options: Options,
    shards: Sequence[int],
    emit: Handler,
    *,
    known: Sequence[Path],
    folder: Path,
    drivers: int | None = None,
) -> Result:
    """Draw and judge the scenarios of `shards`, and shrink what is new. That of shard 0 replays the ledger too.

    known: the ledger's case files, the same for all parts of the campaign: nothing that a part finds is known to
    another one, so that a shard's result does not depend on which ran before. folder: where this part saves its cases
    on the way; they are in the result too. drivers: see `campaign.executors_for`. Raises as `campaign.run` does.
    """
    scenarios: dict[int, int] = {}

    def counted(event: Event) -> None:
        if isinstance(event, ShardFinished):
            scenarios[event.shard] = event.scenarios
        emit(event)

    own = dataclasses.replace(options, cases=folder)
    with campaign.executors_for(own, drivers) as executors:
        executors.isolate(crashing(options.cases) & set(options.candidates))
        part = campaign.run_part(own, shards, counted, known, executors)
    identity = Identity.take(options, known, part.fingerprints)
    return Result(identity=identity, shards=scenarios, summary=part.summary, cases=part.cases)
