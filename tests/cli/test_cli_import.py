"""What `difftest import` shows, and what becomes of a recorded call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from difftest.ledger import cases
from oracles.problem import build
from strategies import Parallel, Scenario, Shape, recordings

CALL = Scenario(
    shape=Shape(tokens=6, hidden=96, intermediate=64, experts=4, top_k=2), parallel=Parallel(ep_size=2, ep_rank=1)
)
NAMES = ("hidden_states", "topk_ids", "topk_weights", "w13", "w13_scale", "w2", "w2_scale")


@pytest.fixture
def call(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A recorded call of rank 1 of 2, with 77 in row 4 of x."""
    monkeypatch.setenv(recordings.VARIABLE, "")
    problem = build(CALL)
    tensors = {name: getattr(problem, name).clone() for name in NAMES}
    tensors["hidden_states"][4, 70] = 77
    tensors["output"] = torch.zeros(6, 96, dtype=torch.bfloat16)
    save_file(tensors, workdir / "call.safetensors", metadata={"ep_size": "2", "ep_rank": "1"})
    return "call.safetensors"


def test_a_call_that_agrees(call, difftest, snapshot):
    result = difftest("import", call, "--candidate", "kernels.py:Right", "--html", "out.html")
    assert str(result) == snapshot
    assert result.code == 0
    assert not Path("cases").exists()
    assert "difftest import call.safetensors" in Path("out.html").read_text()


def test_a_call_that_diverges_is_shrunk_saved_replayed_and_reported(call, difftest, snapshot):
    result = difftest("import", call, "--candidate", "kernels.py:Marked", "--json", "out.jsonl")
    assert str(result) == snapshot
    assert result.code == 1
    (path,) = Path("cases").glob("*.case.json")
    capture = cases.load(path).scenario.capture
    assert (capture.tensors, capture.tokens, capture.hidden) == (("hidden_states",), (4,), (2,))
    events = [json.loads(line)["event"] for line in Path("out.jsonl").read_text().splitlines()]
    assert events[0] == "RunStarted"
    assert events[-1] == "RunFinished"
    Path(call).unlink()
    assert difftest("replay", "cases").code == 0
    assert difftest("cases", str(path), "--mark", "fixed").code == 0
    assert difftest("replay", str(path)).code == 1
    assert difftest("explain", str(path)).code == 0
    assert difftest("report", str(path), "--out", "upstream").code == 1  # its script calls what the class was made from
    kept = load_file(Path("upstream/finding.safetensors"))
    assert kept["hidden_states"][4, 70] == 77
    recordings.find(capture.digest).unlink()
    for name in ("call", "upstream/finding"):
        Path(f"{name}.safetensors").unlink(missing_ok=True)
    result = difftest("replay", str(path))
    assert result.code == 3
    assert "put the recording beside the case" in result.err


def test_a_routing_table_alone(call, difftest, snapshot):
    tensors = load_file(call)
    save_file({"topk_ids": tensors["topk_ids"]}, "table.safetensors", metadata={"num_experts": "4"})
    result = difftest("import", "table.safetensors", "--candidate", "kernels.py:Right")
    assert str(result) == snapshot
    assert result.code == 0


def test_no_recording(call, difftest, snapshot):
    tensors = load_file(call)
    save_file({**tensors, "topk_ids": tensors["topk_ids"].long()}, "ids.safetensors", metadata={"ep_size": "2"})
    save_file({**tensors, "w2": tensors["w2"][:, :, :16].contiguous()}, "nibbles.safetensors")
    save_file({name: tensors[name] for name in ("w2", "topk_ids")}, "missing.safetensors")
    Path("cut.safetensors").write_bytes(Path(call).read_bytes()[:1000])
    Path("case.json").write_text("{}")
    for name in ("ids", "nibbles", "missing", "cut", "absent"):
        result = difftest("import", f"{name}.safetensors", "--candidate", "kernels.py:Right")
        assert str(result) == snapshot(name=name)
        assert result.code == 2
    assert str(difftest("import", "case.json", "--candidate", "kernels.py:Right")) == snapshot(name="other")


def test_a_router(call, difftest, snapshot):
    assert str(difftest("import", call, "--candidate", "router-torch")) == snapshot
