"""Reports: the scripts stand alone, and do what the oracles do."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from findings import case, diverges

import oracles
from difftest.isolation import environment
from difftest.isolation.sequence import Step
from difftest.judging.outcome import Outcome, Verdict
from difftest.ledger import cases
from difftest.report import folder, paths, proof, script
from difftest.report.issue import scenario_words, title
from difftest.stream import Stream
from oracles.enclosure import FINITE
from oracles.grouped_mm import GroupedMM
from oracles.problem import Problem, build
from oracles.reference import enclose
from oracles.reproductions import expected, ggml, grouped_mm
from strategies import DuplicateSlot, Routing, Scenario, Shape, scenarios

DUPLICATE = Scenario(
    shape=Shape(tokens=2, experts=2, top_k=2), routing=Routing(edits=(DuplicateSlot(token=0, slot=1, source=0),))
)


def namespace(problem: Problem) -> SimpleNamespace:
    """What a script makes of its data."""
    names = "hidden_states topk_ids topk_weights w13 w13_scale w2 w2_scale w13_bias w2_bias first_expert num_experts"
    names += " ep_size ep_rank routed_scaling_factor output_dtype hidden_q hidden_scale"
    activation = problem.activation
    vectors = {name: getattr(activation, name) for name in ("alpha", "beta", "limit", "linear_beta")}
    return SimpleNamespace(
        **{name: getattr(problem, name) for name in names.split()},
        activation=activation.kind,
        parameters={name: vector for name, vector in vectors.items() if vector is not None},
        moe_tp_size=problem.scenario.layer.moe_tp_size,
        moe_tp_rank=problem.scenario.layer.moe_tp_rank,
        poison=problem.scenario.execution.poison,
    )


def outside(got: torch.Tensor, problem: Problem, name: str) -> int:
    """Outputs that a right implementation of the oracle `name` cannot give."""
    enclosure = enclose(problem, oracles.get(name).numerics)
    finite = (enclosure.kinds == FINITE) & got.isfinite()
    lost = (enclosure.kinds == FINITE) & ~got.isfinite()
    return int((((got.double() - enclosure.center).abs() > enclosure.hard) & finite).sum() + lost.sum())


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("grouped-mm", grouped_mm.grouped_mm),
        ("ggml", ggml.plain),
        ("reference", lambda p: expected.expected(p, script.rounding(oracles.get("reference").numerics))),
    ],
)
def test_a_reproduction_answers_as_a_right_kernel(name: str, call: Callable[[SimpleNamespace], torch.Tensor]):
    seen = []

    def visit(scenario: Scenario) -> None:
        problem = build(scenario)
        assert outside(call(namespace(problem)), problem, name) == 0
        seen.append(scenario)

    Stream(scenarios(oracles.get("ggml").capability, profile="quick"), base_seed=5, shard=0, count=40).each(visit)
    assert len(seen) == 40


def test_the_script_of_a_repacked_duplicate_shows_it_without_difftest(tmp_path):
    (path,) = [
        path for path in cases.paths(cases.SHIPPED) if "ggml-repacked.reference.diverges.impossible" in path.name
    ]
    report = folder.write(path, tmp_path / "report")
    assert report.proof is not None
    assert report.proof.reproduced
    assert "32 of 32 values are wrong, in 1 of 1 rows" in report.proof.output
    assert sorted(file.name for file in report.folder.iterdir()) == [
        "environment.json",
        "error.svg",
        "finding.case.json",
        "issue.md",
        "repro.py",
    ]
    environment = json.loads((report.folder / "environment.json").read_text())
    assert environment["packages"]["ggml-python"]
    assert "libggml-cpu.so" in environment["libraries"]
    text = (report.folder / "issue.md").read_text()
    assert "- token 0 routed to one expert twice (slots 0 and 1)" in text
    assert report.proof.output in text
    assert "difftest" not in (report.folder / "repro.py").read_text()


def test_a_script_that_shows_nothing_says_so(tmp_path):
    path = tmp_path / "grouped.case.json"
    cases.save(case(diverges(DUPLICATE, candidate="grouped-mm")), path)
    report = folder.write(path, tmp_path / "report")
    assert report.proof is not None
    assert not report.proof.reproduced
    assert "**It did not reproduce on the machine below**" in (report.folder / "issue.md").read_text()


HERE = environment.of("grouped-mm")[1]


def test_a_script_cannot_import_difftest(tmp_path):
    path = tmp_path / "repro.py"
    path.write_text("import sys\ntry:\n    import difftest\nexcept ImportError:\n    sys.exit(1)\n")
    assert proof.Runner(place=HERE).prove(path).reproduced


def test_a_package_that_only_an_oracle_can_enter(tmp_path):
    path = tmp_path / "repro.py"
    path.write_text("import sys\nimport oracles\n")
    runner = proof.Runner(place=HERE, enter="oracles.base:names")
    hidden = runner.prove(path)
    assert "import of oracles halted" in hidden.output
    assert not hidden.reproduced


def test_a_script_that_hangs_or_dies_or_breaks(tmp_path):
    path, runner = tmp_path / "repro.py", proof.Runner(place=HERE)
    path.write_text("print('waits', flush=True)\nimport time\ntime.sleep(600)\n")
    hung = proof.Runner(place=HERE, timeout=5).prove(path, ends_process=True)
    assert (hung.reproduced, hung.verdict) == (True, "Run on the machine below, it did not end within 5 s.")
    path.write_text("import os\nos.abort()\n")
    died = runner.prove(path, ends_process=True)
    assert died.reproduced
    assert "ended by signal 6" in died.verdict
    path.write_text("import torch\nprint(torch.no_such_thing)\n")
    broken = runner.prove(path)
    assert not broken.reproduced
    assert "AttributeError" in broken.output
    assert str(tmp_path) not in broken.output


def test_no_script_for_an_oracle_that_names_none(tmp_path):
    path = tmp_path / "bare.case.json"
    outcome = diverges(DUPLICATE, candidate=f"{__file__}:Bare")
    with pytest.raises(script.NoScript, match="names no `reproduction`"):
        script.script(outcome, outcome.candidate, "title", "summary")
    cases.save(case(outcome), path)
    report = folder.write(path, tmp_path / "report")
    assert report.proof is None
    assert report.no_script in (report.folder / "issue.md").read_text()


def test_no_script_of_a_finding_that_needs_earlier_cases(tmp_path):
    """Its last call alone would not show it. What ran before is told in words, and the case file has it."""
    path, before = tmp_path / "later.case.json", Step(Scenario(shape=Shape(tokens=7)), ("reference",))
    cases.save(case(diverges(DUPLICATE, candidate="grouped-mm"), sequence=(before, before)), path)
    report = folder.write(path, tmp_path / "report")
    assert report.proof is None
    assert report.no_script.startswith("the finding needs 2 earlier cases in the same process")
    text = (report.folder / "issue.md").read_text()
    assert report.no_script in text
    assert text.count("- before it in the same process: M=7 H=32 I=32 E=1 K=1, swiglu") == 2
    assert cases.load(report.folder / "finding.case.json").sequence == (before, before)


def test_the_candidate_of_a_report_is_the_case_s_in_some_environment(tmp_path):
    path = tmp_path / "grouped.case.json"
    cases.save(case(diverges(DUPLICATE, candidate="grouped-mm")), path)
    with pytest.raises(folder.NoReport, match="--candidate ggml: the case is about grouped-mm"):
        folder.write(path, tmp_path / "report", candidate="ggml")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("at /home/someone/kernels/moe.cu:41)", "at .../moe.cu:41)"),
        ('File "/v/lib/python3.12/site-packages/sglang/srt/a.py", line 3', 'File "sglang/srt/a.py", line 3'),
        ("/usr/local/cuda/bin/nvcc and /opt/torch/x", "/usr/local/cuda/bin/nvcc and /opt/torch/x"),
        ("1/2, a/b/c and https://example.org/a/b", "1/2, a/b/c and https://example.org/a/b"),
        ("/tmp/builds/0.6.18-9.0a/site/flashinfer/lib.so", ".../lib.so"),
    ],
)
def test_paths_of_the_machine_are_cut(text, told):
    assert paths.relative(text) == told
    assert paths.relative_in({"a": [text, 1]}) == {"a": [told, 1]}


def test_a_case_in_a_report_has_no_paths_of_the_machine(tmp_path):
    path = tmp_path / "rejects.case.json"
    outcome = Outcome(
        verdict=Verdict.REJECTED,
        scenario=Scenario(),
        candidate="grouped-mm",
        reference="reference",
        check="call",
        kind="RuntimeError: no",
        detail="RuntimeError: no (/home/someone/a/b.py:3)",
        traceback='File "/home/someone/a/b.py", line 3',
    )
    cases.save(case(outcome), path)
    report = folder.write(path, tmp_path / "report")
    for file in report.folder.iterdir():
        assert "someone" not in file.read_text()
        assert str(tmp_path) not in file.read_text()
    assert report.proof is not None
    assert report.proof.verdict.startswith("**It did not reproduce")


class Bare(GroupedMM):
    name = "bare"
    reproduction = None


def test_a_report_s_folder_must_be_new(tmp_path):
    path = tmp_path / "grouped.case.json"
    cases.save(case(diverges(DUPLICATE, candidate="grouped-mm")), path)
    with pytest.raises(folder.NoReport, match="exists; name a folder that does not"):
        folder.write(path, tmp_path)


def test_nothing_half_written_stays(tmp_path, monkeypatch):
    path = tmp_path / "grouped.case.json"
    cases.save(case(diverges(DUPLICATE, candidate="grouped-mm")), path)

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(proof.Runner, "prove", full)
    with pytest.raises(folder.NoReport, match="No space left on device"):
        folder.write(path, tmp_path / "report")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_titles_and_words():
    outcome = diverges(DUPLICATE, candidate="cutlass")
    assert title(outcome) == "cutlass: wrong output with token 0 routed to one expert twice (slots 0 and 1)"
    rejected = Outcome(
        verdict=Verdict.REJECTED,
        scenario=Scenario(shape=Shape(tokens=0)),
        candidate="cutlass",
        reference="reference",
        check="call",
        kind="RuntimeError: M must be positive",
        detail="RuntimeError: M must be positive",
    )
    assert title(rejected) == "cutlass: rejects a valid call (RuntimeError: M must be positive) with no tokens"
    assert scenario_words(rejected.scenario)[0] == ("0 tokens, hidden size 32, intermediate size 32, 1 expert, top-k 1")
