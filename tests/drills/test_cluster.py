"""A campaign on a Ray cluster of four nodes; nodes, workers and driver are killed, nothing is lost or counted twice.

Skipped where Ray is not installed; `tox run -e ray` installs it.
"""

from __future__ import annotations

import dataclasses
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import dying
import pytest

from difftest import campaign
from difftest.findings import Summary
from difftest.ledger import cases
from difftest.options import Options
from difftest.output.events import Event, ResultCame, RunStarted, ShardLost
from difftest.preflight import Missing
from difftest.scale.merge import NotOneCampaign
from difftest.scale.store import Store
from difftest.scale.stored import Stored

ray = pytest.importorskip("ray", reason="Ray is not installed: tox run -e ray")

from ray.cluster_utils import Cluster  # noqa: E402

from difftest.scale import cluster  # noqa: E402

REJECTS = f"{Path(__file__).parents[1] / 'unit' / 'candidates.py'}:Rejects"
FIRST = f"{dying.FILE}:First"
NODES = 4
MARK = "DIFFTEST_DRILL"


@pytest.fixture(scope="module", autouse=True)
def nodes(request, tmp_path_factory):
    """A cluster of four nodes of a core each, the first of which cannot be spared; this process is connected to it.

    Ray's own logs are kept where a test failed: why a node or a worker went is in none of its exceptions.
    """
    failed = request.session.testsfailed
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(tmp_path_factory.mktemp("drill") / "mark"))  # the nodes' workers inherit it
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        logs = Path(machines.head_node.get_session_dir_path()) / "logs"
        try:
            added = [machines.add_node(num_cpus=1) for _ in range(NODES - 1)]
            ray.init(address=machines.address, log_to_driver=False)
            yield machines, added
        finally:
            ray.shutdown()
            machines.shutdown()
            if request.session.testsfailed > failed:
                kept = tmp_path_factory.mktemp("ray") / "logs"
                shutil.copytree(logs, kept)
                print(f"Ray's logs of the failed drill: {kept}")


def options(folder: Path, candidate: str, examples: int) -> Options:
    return Options(candidates=(candidate,), profile="quick", examples=examples, seed=1, cases=folder / "cases")


def start(folder: Path, given: Options) -> Stored:
    stored = Stored(Store(str(folder / "store")))
    stored.start(given)
    return stored


def told(summary: Summary) -> dict[str, object]:
    """All that two runs of one campaign must agree on."""
    names = ("scenarios", "verdicts", "unsupported", "one_offs", "pairs", "known", "elsewhere", "coverage", "exit_code")
    findings = [
        (finding.bucket, finding.smallest, finding.worst, finding.seen, finding.scenarios_before)
        for finding in summary.findings
    ]
    return {name: getattr(summary, name) for name in names} | {"findings": findings}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, object]:
    """What one run in one process says of the campaign of six shards."""
    summary = campaign.run(options(tmp_path_factory.mktemp("undisturbed"), REJECTS, 48), lambda _: None)
    assert len(summary.findings) == 1
    return told(summary)


def driven(folder: Path, address: str) -> subprocess.Popen[bytes]:
    """The command on the campaign of six shards, as soon as the first is over."""
    command = [sys.executable, "-m", "difftest", "campaign", str(folder / "store"), "--address", address]
    command += ["--candidate", REJECTS, "--profile", "quick", "--examples", "48", "--seed", "1"]
    with (folder / "driver.log").open("w") as log:
        driver = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    while not list(folder.glob("store/shards/shard-*.json")):
        assert driver.poll() is None, f"it ended before it was killed: {(folder / 'driver.log').read_text()}"
        time.sleep(0.05)
    return driver


def test_a_driver_whose_time_is_up_tells_what_was_found(nodes, tmp_path):
    driver = driven(tmp_path, nodes[0].address)
    driver.terminate()
    assert driver.wait() == 130
    *_, last = (tmp_path / "driver.log").read_text().splitlines()
    assert last == "exit 130: interrupted; findings so far are saved and shown above"


def test_a_driver_that_is_killed_goes_on_where_it_was(nodes, undisturbed, tmp_path):
    machines, _ = nodes
    given = options(tmp_path, REJECTS, 48)
    store = tmp_path / "store"
    driver = driven(tmp_path, machines.address)
    driver.kill()
    driver.wait()
    time.sleep(0.5)  # Ray ends the tasks of a driver that is gone; one may be writing its result
    finished = {path: path.stat().st_mtime_ns for path in store.glob("shards/shard-*.json")}
    assert 0 < len(finished) < 6

    seen: list[Event] = []
    summary = cluster.run(start(tmp_path, given), given, cluster.Budget(), seen.append)
    assert told(summary) == undisturbed
    assert isinstance(seen[0], RunStarted)
    assert sorted(event.shard for event in seen if isinstance(event, ResultCame)) == list(range(6))
    assert {path: path.stat().st_mtime_ns for path in finished} == finished  # not run again
    assert len(list(given.cases.iterdir())) == len(list((store / "cases").iterdir())) == 1


def test_a_worker_that_is_killed_costs_its_shard_a_second_try(tmp_path):
    """The candidate kills the process of its task, which takes the whole worker of Ray along."""
    given = options(tmp_path, FIRST, 8)
    seen: list[Event] = []
    summary = cluster.run(start(tmp_path, given), given, cluster.Budget(), seen.append)
    assert (summary.scenarios, summary.findings, summary.exit_code) == (8, (), 0)
    (lost,) = (event for event in seen if isinstance(event, ShardLost))
    assert (lost.shard, lost.again) == (0, True)
    assert "\n" not in lost.error


def test_a_campaign_has_nothing_of_one_that_was_here_before(tmp_path):
    """Its node kept the ledger of another one with a store at the same place."""
    given = options(tmp_path, REJECTS, 8)
    job = cluster._Job(url=str(tmp_path / "store"), options=given.to_json(), folder=str(tmp_path), gpus=0.0)

    def ran() -> Summary:
        stored = start(tmp_path, given)
        cluster._shard(job, 0, alone=False)
        result = stored.result(0)
        assert result is not None
        for case in result.cases:
            cases.save(case, given.cases / "known.case.json")
        shutil.rmtree(tmp_path / "store")
        return result.summary

    first, second = ran(), ran()
    shutil.rmtree(given.cases)
    third = ran()
    assert [(len(one.findings), one.known.total() > 0) for one in (first, second, third)] == [
        (1, False),
        (0, True),
        (1, False),
    ]


def test_a_result_of_another_campaign_is_named_and_left_alone(tmp_path):
    given, other = options(tmp_path, REJECTS, 8), options(tmp_path / "other", REJECTS, 8)
    start(tmp_path / "other", dataclasses.replace(other, seed=2))
    cluster.run(
        Stored(Store(str(tmp_path / "other" / "store"))), dataclasses.replace(other, seed=2), cluster.Budget(), print
    )
    stored = start(tmp_path, given)
    path = tmp_path / "store" / "shards" / "shard-00000.json"
    shutil.copytree(tmp_path / "other" / "store" / "shards", path.parent)
    content = path.read_bytes()
    with pytest.raises(
        NotOneCampaign, match=r"shards/shard-00000\.json: is of another campaign: --seed is 2, not 1; take it"
    ):
        cluster.run(stored, given, cluster.Budget(), lambda _: None)
    assert path.read_bytes() == content


def test_a_campaign_by_time_begins_no_shard_after_it_and_goes_on_where_it_was(tmp_path, monkeypatch):
    given, now = options(tmp_path, REJECTS, 8), [0.0]
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: now[0]))
    stored, shards = start(tmp_path, given), []

    def took_an_hour(event: Event) -> None:
        if isinstance(event, ResultCame):
            shards.append(event.shard)
            assert len(shards) < 20, "it goes on and on"
            now[0] += 1

    summary = cluster.run(stored, given, cluster.Budget(until=2), took_an_hour)
    first, running = len(shards), NODES - 1  # what runs when the time is up ends
    assert 2 <= first <= 2 + running
    assert sorted(shards) == list(range(first))  # the campaign has one of its own
    assert summary.scenarios == 8 * first
    now[0] = 0
    shards.clear()
    summary = cluster.run(stored, given, cluster.Budget(until=first + 1), took_an_hour)
    assert sorted(shards) == list(range(len(shards)))
    assert first < len(shards) <= first + 1 + running
    assert summary.scenarios == 8 * len(shards)


def test_without_a_gpu_a_shard_that_needs_one_is_refused(tmp_path):
    given = options(tmp_path, REJECTS, 8)
    with pytest.raises(
        Missing, match=r"no node of the cluster has 0\.5 of a GPU and a core: add nodes, or give another"
    ):
        cluster.run(start(tmp_path, given), given, cluster.Budget(gpus=0.5), lambda _: None)


def test_an_address_where_nobody_listens_is_told_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(
        Missing, match=f"--address {address}: nothing answers there .*; give HOST:PORT of a cluster's head"
    ):
        cluster._reach(address)


def test_nodes_that_are_killed_in_the_middle_change_nothing(nodes, undisturbed, tmp_path):
    """Last, since the cluster has only two nodes left after it."""
    machines, added = nodes
    given = options(tmp_path, REJECTS, 48)
    doomed, seen = added[:2], []

    def kill_two(event: Event) -> None:
        seen.append(event)
        while isinstance(event, ResultCame) and doomed:
            machines.remove_node(doomed.pop(), allow_graceful=False)

    summary = cluster.run(start(tmp_path, given), given, cluster.Budget(), kill_two)
    assert not any(node.any_processes_alive() for node in added[:2])
    assert told(summary) == undisturbed
    assert sorted(event.shard for event in seen if isinstance(event, ResultCame)) == list(range(6))
    assert any(isinstance(event, ShardLost) for event in seen)
