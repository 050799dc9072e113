"""The gate: nothing is skipped, and an emulation passes nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from difftest.gate import command, gate
from difftest.gate.target import TARGETS, Target
from difftest.gate.verdict import Part, Verdict
from difftest.judging.outcome import Outcome
from difftest.judging.outcome import Verdict as OutcomeVerdict
from difftest.ledger import cases
from difftest.options import Options
from oracles.grouped_mm import GroupedMM
from strategies import gate as plan
from strategies.scenario import Scenario, Situ

FILE = Path(__file__)
SMALL = ("swiglu/routing/M=1/uniform", "situ/routing/M=2/masked", "situ/execution/capture")


class Kernel(GroupedMM):
    """Stands for a kernel under test."""


class Control(GroupedMM):
    """Stands for the control."""


class WrongSitu(GroupedMM):
    """SiTU comes out half as large again."""

    def __call__(self, prepared):
        out = super().__call__(prepared)
        return out * 1.5 if prepared.problem.activation.kind == "situ" else out


class RefusesSitu(GroupedMM):
    """Does not know SiTU, and promises it."""

    def prepare(self, problem):
        if problem.activation.kind == "situ":
            raise RuntimeError("activation 10 is not known")
        return super().prepare(problem)


class DeclinesSitu(GroupedMM):
    """Does not promise SiTU."""

    capability = dataclasses.replace(GroupedMM.capability, activations=frozenset({"swiglu", "swiglu_oai"}))


class Absent(GroupedMM):
    """Is not installed."""

    def missing(self):
        return "not installed: pip install kernels"


@pytest.fixture
def hold(tmp_path, monkeypatch):
    """Holds a gate on a part of the matrix, with grouped-mm's kin as kernel and control."""
    matrix = plan.matrix
    monkeypatch.setattr(gate, "matrix", lambda precision: {name: matrix(precision)[name] for name in SMALL})

    def run(kernel: str, control: str = "Control", **asked: object) -> Verdict:
        target = Target(
            name="here",
            capability=(0, 0),
            precision="bf16xmxfp4",
            kernels=(f"{FILE}:{kernel}",),
            control=f"{FILE}:{control}",
            emulation=f"{FILE}:Kernel",
        )
        options = Options(candidates=("unread",), examples=8, seed=1, profile="quick", cases=tmp_path / "cases")
        return gate.hold(gate.Asked(target=target, options=options, **asked), lambda _: None, lambda _: None)

    return run


def test_what_agrees_passes(hold):
    verdict = hold("Kernel")
    assert verdict.passed
    assert verdict.line == "passed"
    assert command.code(verdict) == command.PASSED
    # Captured graphs are not what these kernels run.
    assert [part.name for part in verdict.parts] == 2 * list(SMALL[:2])
    assert {name.partition(":")[2]: counts["agrees"] for name, counts in verdict.drawn.items()} == {
        "Kernel": 8,
        "Control": 8,
    }


def test_a_wrong_target_fails_and_the_control_does_not(hold):
    verdict = hold("WrongSitu")
    assert command.code(verdict) == command.NOT_PASSED
    answers = {part.name: part.passed for part in verdict.parts if part.kernel.endswith("WrongSitu")}
    assert answers == {SMALL[0]: True, SMALL[1]: False}
    assert all(part.passed for part in verdict.parts if part.kernel.endswith("Control"))


def test_unsupported_is_a_failure(hold):
    verdict = hold("DeclinesSitu")
    assert f"{FILE}:DeclinesSitu: {SMALL[1]}: unsupported: activation situ" in verdict.failures


def test_a_known_gap_is_excused_unless_situ_is_required(hold, tmp_path):
    refused = hold("RefusesSitu")
    assert not refused.passed  # and its case is saved: the gap is known from here on
    known = hold("RefusesSitu")
    assert known.passed, known.failures
    assert [part.answer for part in known.parts if part.name == SMALL[1]] == ["known", "agrees"]
    required = hold("RefusesSitu", require_situ=True)
    assert not required.passed
    assert "activation # is not known" in "".join(required.failures).replace("10", "#")
    assert cases.paths(tmp_path / "cases")


@pytest.mark.parametrize(("kernel", "control"), [("Absent", "Control"), ("Kernel", "Absent"), ("Nonesuch", "Control")])
def test_what_is_not_there_is_refused_before_anything_runs(hold, kernel, control):
    with pytest.raises(gate.Refused, match=r"Absent: not installed|has no attribute 'Nonesuch'"):
        hold(kernel, control)


def test_an_emulation_passes_nothing(hold):
    verdict = hold("Kernel", emulate=True)
    assert verdict.failures == ()
    assert not verdict.passed
    assert command.code(verdict) == command.EMULATED
    assert verdict.line == "not passed (emulated): nothing was found, and no kernel was run"


def test_the_file_holds_what_a_release_is_held_to(hold, tmp_path):
    command.write(hold("Kernel"), tmp_path / "verdict.json")
    data = json.loads((tmp_path / "verdict.json").read_text())
    assert (data["version"], data["passed"], data["verdict"]) == (1, True, "passed")
    assert data["groups"][f"{FILE}:Kernel swiglu routing"]["ran"] == 1
    assert data["kernels"][f"{FILE}:Kernel"]["torch"]


def test_the_matrix_holds_what_the_users_listed():
    names = plan.matrix("mxfp8xmxfp4")
    for activation in ("swiglu", "situ"):
        own = {name: scenario for name, scenario in names.items() if name.startswith(activation)}
        assert {scenario.shape.tokens for scenario in own.values()} >= {1, 2, 8, 32, 128}
        assert {scenario.precision for scenario in own.values()} == {"mxfp8xmxfp4"}
        assert {scenario.execution.mode for scenario in own.values()} == {"eager", "graph"}
        real = [scenario for scenario in own.values() if scenario.shape.hidden == 3584]
        assert {(scenario.experts_local, scenario.parallel.ep_rank) for scenario in real} == {(28, 7)}
    situ = names["situ/routing/M=1/uniform"].activation
    assert situ == Situ(beta=4.0, linear_beta=25.0)
    assert set(map(plan.group_of, names)) == {"routing", "parallel", "values", "execution", "kimi-k3"}


def test_lines_for_people():
    parts = (
        Part(kernel="cutlass", name="swiglu/routing/M=1/uniform", answer="agrees", ratio=0.5, exact=3),
        Part(kernel="cutlass", name="swiglu/routing/M=2/uniform", answer="diverges in reference: off", ratio=2.0),
        Part(kernel="cutlass", name="situ/values/exact", answer="known"),
    )
    verdict = Verdict(
        target="sm120",
        emulated=False,
        require_situ=False,
        seed=1,
        parts=parts,
        drawn={"cutlass": {"agrees": 5, "known": 0}},
        failures=("cutlass: a", "cutlass: b"),
    )
    assert list(command.lines(verdict)) == [
        "cutlass swiglu routing  1 of 2 passed, error/radius at most 2",
        "cutlass situ values     1 of 1 passed, all exact",
        "cutlass drawn: 5 agrees",
        "failed: cutlass: a",
        "failed: cutlass: b",
        "not passed: cutlass: a (and 1 more)",
    ]


def test_kernels_of_builds():
    assert TARGETS["sm90"].specs(()) == ("cutlass", "cutlass-graph")
    assert TARGETS["sm120"].specs(("0.6.18+situ",)) == ("cutlass@0.6.18+situ", "cutlass-graph@0.6.18+situ")


def test_an_answer_that_is_no_finding_and_no_agreement_is_told():
    outcome = Outcome(
        verdict=OutcomeVerdict.UNSUPPORTED, scenario=Scenario(), candidate="k", reference="reference", reason="M = 0"
    )
    asked = gate.Asked(target=TARGETS["sm90"], options=Options(candidates=("k",), examples=1, seed=0))
    assert gate._answer(asked, outcome, None, None) == "unsupported: M = 0"
