"""What a campaign keeps in a store: a folder here, and an object store in memory."""

from __future__ import annotations

import dataclasses
import json
import os
import stat

import pytest
from findings import case

from difftest.findings import Summary
from difftest.ledger import cases
from difftest.options import InvalidOption, Options
from difftest.scale.identity import Identity, shared
from difftest.scale.result import InvalidResult, Result
from difftest.scale.store import Store
from difftest.scale.stored import Stored, given_or_stored


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path) -> Store:
    return Store(str(tmp_path / "store") if request.param == "folder" else f"memory://{tmp_path}")


@pytest.fixture
def options(tmp_path) -> Options:
    return Options(candidates=("grouped-mm",), profile="quick", examples=24, seed=1, cases=tmp_path / "cases")


def result(options: Options, shard: int = 0) -> Result:
    identity = Identity(options=shared(options), versions={}, candidates={}, ledger="")
    return Result(identity=identity, shards={shard: 8}, summary=Summary(scenarios=8), cases=())


def test_files_come_back(store):
    assert (store.read("a/b.json"), store.names("a")) == (None, [])
    store.write("a/b.json", b"1")
    store.write("a/a.json", b"2")
    store.write("a/b.json", b"3")
    assert (store.read("a/b.json"), store.names("a")) == (b"3", ["a/a.json", "a/b.json"])


def test_a_file_on_its_way_is_not_seen(tmp_path, monkeypatch):
    store = Store(str(tmp_path / "store"))
    seen = []
    replace = os.replace

    def looks(beside, path):
        seen.append(store.names("a"))
        assert stat.S_ISREG(os.stat(beside).st_mode)
        replace(beside, path)

    monkeypatch.setattr(os, "replace", looks)
    store.write("a/b.json", b"1")
    assert (seen, store.names("a")) == ([[]], ["a/b.json"])


@pytest.mark.parametrize("url", ["nosuch://bucket/a", "/dev/null/store"])
def test_no_store_is_one_line(url):
    with pytest.raises(InvalidOption, match=f"{url}: cannot be used as a store: ") as raised:
        Store(url)
    assert "\n" not in str(raised.value)


def test_a_campaign_goes_on_with_its_own_options(store, options):
    stored = Stored(store)
    assert stored.options() is None
    stored.start(options)
    stored.start(options)
    assert stored.options() == shared(options)
    again = Options.parse(given_or_stored({"cases": "elsewhere", "seed": None, "candidate": ()}, stored.options()))
    assert shared(again) == shared(options)
    with pytest.raises(InvalidOption, match="holds a campaign with another --seed; leave the option out"):
        stored.start(dataclasses.replace(options, seed=2))
    with pytest.raises(InvalidOption, match="holds a campaign with another --candidate"):
        stored.start(dataclasses.replace(options, candidates=("ggml",)))


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"{", "its campaign.json is no campaign's"), (b'{"version": 2}', "holds a campaign of version 2; this difftest")],
)
def test_what_is_no_campaign_is_left_alone(content, told, store, options):
    store.write("campaign.json", content)
    with pytest.raises(InvalidOption, match=told):
        Stored(store).start(options)
    assert store.read("campaign.json") == content


def test_the_ledger_is_that_of_the_start(store, options, tmp_path):
    cases.save(case(), options.cases / "one.case.json")
    (options.cases / "one.safetensors").write_bytes(b"recorded")
    stored = Stored(store)
    stored.start(options)
    cases.save(case(), options.cases / "two.case.json")
    stored.start(options)
    known = stored.ledger(tmp_path / "node")
    assert [path.name for path in known] == ["one.case.json"]
    assert (tmp_path / "node" / "one.safetensors").read_bytes() == b"recorded"
    assert stored.ledger(tmp_path / "node") == known


def test_another_campaign_in_the_same_place_has_another_key(store, options):
    """What a node kept of the ledger of the one before is not of this one."""
    with pytest.raises(
        InvalidOption, match=r"has no campaign\.json here; the store must be a folder that all nodes share"
    ):
        Stored(store).key()
    keys = []
    for given in (options, options, dataclasses.replace(options, seed=2)):
        Stored(store).start(given)
        keys.append(Stored(store).key())
        store._files.rm(store._path("campaign.json"))
    cases.save(case(), options.cases / "one.case.json")
    Stored(store).start(options)
    keys.append(Stored(store).key())
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


def test_results_by_shard(store, options):
    stored = Stored(store)
    assert (stored.shards(), stored.result(7)) == ([], None)
    stored.write_result(7, result(options, 7))
    assert (stored.shards(), stored.result(7)) == ([7], result(options, 7))
    store.write("shards/shard-00008.json", result(options, 7).encode())
    with pytest.raises(InvalidResult, match="is of other shards: 7"):
        stored.result(8)
    store.write("shards/shard-00009.json", result(options, 9).encode()[:-20])
    with pytest.raises(InvalidResult, match="cut off"):
        stored.result(9)
    assert stored.shards() == [7, 8, 9]


def test_cases_lie_beside_the_results(store):
    Stored(store).write_cases([case()])
    (name,) = store.names("cases")
    assert cases.Case.from_json(json.loads(store.read(name))) == case()
