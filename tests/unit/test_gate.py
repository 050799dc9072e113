"""The gate: nothing is skipped, and an emulation passes nothing."""

from __future__ import annotations

import dataclasses
import json
import platform
from pathlib import Path

import pytest

from difftest.calibration import Calibration
from difftest.gate import bench, command, gate, target
from difftest.gate.target import TARGETS, Target
from difftest.gate.verdict import Part, Timed, Verdict
from difftest.judging import timing, trial
from difftest.ledger import cases
from difftest.options import Options
from oracles.grouped_mm import GroupedMM
from strategies import gate as plan
from strategies.scenario import Situ

FILE = Path(__file__)
SMALL = ("swiglu/routing/M=1/uniform", "situ/routing/M=2/masked", "situ/execution/capture")
SKIPPED = plan.matrix("bf16xmxfp4")[SMALL[1]]


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


class Skips(GroupedMM):
    """Leaves one scenario out, by hand."""

    def unsupported(self, scenario):
        return "skipped by hand" if scenario == SKIPPED else super().unsupported(scenario)


class Interrupted(GroupedMM):
    """The user ends the run while it computes SiTU."""

    def __call__(self, prepared):
        if prepared.problem.activation.kind == "situ":
            raise KeyboardInterrupt
        return super().__call__(prepared)


class Here(Target):
    """On this machine."""

    arch = platform.machine()


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Asks for a gate on a part of the matrix, with grouped-mm's kin as kernel and control."""
    matrix = plan.matrix

    def small(precision):
        return {name: matrix(precision)[name] for name in SMALL}

    monkeypatch.setattr(target, "matrix", small)
    monkeypatch.setattr(gate, "matrix", small)
    monkeypatch.setenv("DIFFTEST_CALIBRATIONS", str(tmp_path / "calibrations"))

    def ask(kernel: str, control: str = "Control", *, of: type[Target] = Here, **given: object) -> gate.Asked:
        about = of(
            name="here",
            capability=(0, 0),
            precision="bf16xmxfp4",
            kernels=((f"{FILE}:{kernel}", "eager"),),
            control=f"{FILE}:{control}",
            emulation=f"{FILE}:Kernel",
        )
        options = Options(candidates=("unread",), examples=8, seed=1, profile="quick", cases=tmp_path / "cases")
        return gate.Asked(target=about, options=options, **given)

    return ask


@pytest.fixture
def hold(asked):
    """Holds a gate, see `asked`."""

    def run(*names: str, **given: object) -> Verdict:
        return gate.hold(asked(*names, **given), lambda _: None, lambda _: None)

    return run


def test_what_agrees_passes(hold, asked, tmp_path):
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
    for facts in verdict.kernels.values():
        assert any("24 bits, to nearest" in line for line in facts["calibration"])
    assert len(list((tmp_path / "calibrations").iterdir())) == 2
    with pytest.raises(gate.Refused, match="not timed: grouped-mm: runs on the cpu"):
        bench.bench(asked("Kernel"), verdict, lambda _: None)


def test_a_wrong_target_fails_and_the_control_does_not(hold, asked):
    verdict = hold("WrongSitu")
    assert command.code(verdict) == command.NOT_PASSED
    answers = {part.name: part.passed for part in verdict.parts if part.kernel.endswith("WrongSitu")}
    assert answers == {SMALL[0]: True, SMALL[1]: False}
    assert all(part.passed for part in verdict.parts if part.kernel.endswith("Control"))
    with pytest.raises(gate.Refused, match="not timed: not passed: "):
        bench.bench(asked("WrongSitu"), verdict, lambda _: None)


def test_unsupported_is_a_failure(hold):
    verdict = hold("DeclinesSitu")
    assert f"{FILE}:DeclinesSitu: {SMALL[1]}: unsupported: activation situ" in verdict.failures


def test_a_scenario_that_is_skipped_by_hand_is_a_failure(hold):
    verdict = hold("Kernel", "Skips")
    assert f"{FILE}:Skips: {SMALL[1]}: unsupported: skipped by hand" in verdict.failures
    assert command.code(verdict) == command.NOT_PASSED


def test_a_mode_that_the_kernel_does_not_have_is_a_failure(asked):
    given = asked("Kernel")
    graphs = dataclasses.replace(given.target, kernels=((f"{FILE}:Kernel", "graph"),))
    failures = gate.hold(dataclasses.replace(given, target=graphs), lambda _: None, lambda _: None).failures
    assert failures == (f"{FILE}:Kernel: {SMALL[2]}: unsupported: execution mode graph",)


def test_what_is_left_unrun_is_a_failure(hold):
    failures = hold("Interrupted").failures
    assert failures[0] == "interrupted"
    assert {f"{FILE}:Interrupted: {SMALL[1]}: left unrun", f"{FILE}:Control: drawn: left unrun"} < set(failures)


def test_a_card_of_another_kind_is_refused(hold):
    with pytest.raises(gate.Refused, match=f"Kernel: needs a device of sm00, and this one is {platform.machine()}"):
        hold("Kernel", of=Target)


def test_a_known_gap_is_excused_unless_situ_is_required(hold, tmp_path):
    refused = hold("RefusesSitu")
    assert not refused.passed  # and its case is saved: the gap is known from here on
    known = hold("RefusesSitu")
    assert known.passed, known.failures
    assert [part.answer for part in known.parts if part.name == SMALL[1]] == ["known", "agrees"]
    (case,) = cases.paths(tmp_path / "cases")
    assert known.gaps[case.name]["sightings"] == 1 + known.drawn[f"{FILE}:RefusesSitu"]["known"]
    required = hold("RefusesSitu", require_situ=True)
    assert not required.passed
    assert not required.gaps
    named, drawn, *_ = required.failures
    assert named.startswith(f"{FILE}:RefusesSitu: {SMALL[1]}: rejected in prepare: RuntimeError: activation 10 is not")
    assert drawn.startswith(f"{FILE}:RefusesSitu: drawn: RuntimeError: activation 10 is not known")


def test_a_kernel_that_adds_more_coarsely_than_it_declares_fails(hold, monkeypatch):
    monkeypatch.setattr(Calibration, "contradictions", lambda *_: ["gemm1: 14 bits"])
    monkeypatch.setattr(Calibration, "blind", lambda *_: ["gemm2: cuts at 0.1"])
    failures = hold("Kernel").failures
    assert f"{FILE}:Kernel: not as declared: gemm1: 14 bits" in failures
    assert f"{FILE}:Kernel: no bound to hold it to: gemm2: cuts at 0.1" in failures


# --- timing ----------------------------------------------------------------------------------------------------------


class Event:
    """A CUDA event on a clock that moves 3 us an event and stands still else."""

    clock = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.clock += 0.003
        self.at = Event.clock

    def elapsed_time(self, other):
        return other.at - self.at


@pytest.fixture
def card(monkeypatch):
    """A CUDA device with kernel libraries, as far as timing looks: the tensors stay where they are."""
    loaded = {"/site/moe.so": "aaaa"}
    monkeypatch.setattr(trial.libraries, "loaded", lambda: dict(loaded))
    monkeypatch.setattr(timing.torch.cuda, "Event", Event)
    monkeypatch.setattr(timing.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "_on_card", lambda _: True)
    return loaded


def test_what_passed_is_timed_on_the_same_scenarios(asked, card):
    given = asked("Kernel")
    verdict = gate.hold(given, lambda _: None, lambda _: None)
    assert verdict.kernels[f"{FILE}:Kernel"]["libraries"] == card
    timings = bench.bench(given, verdict, lambda _: None)
    assert {(one.kernel.partition(":")[2], one.name) for one in timings} == {
        (kernel, name) for kernel in ("Kernel", "Control") for name in SMALL[:2]
    }
    assert {round(one.median, 3) for one in timings} == {3.0}


def test_another_library_than_the_one_that_passed_is_not_timed(asked, card):
    given = asked("Kernel")
    verdict = gate.hold(given, lambda _: None, lambda _: None)
    card["/site/moe.so"] = "bbbb"
    with pytest.raises(gate.Refused, match=r"not timed: /site/moe.so is not the library that passed"):
        bench.bench(given, verdict, lambda _: None)


# --- what is told ----------------------------------------------------------------------------------------------------


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
    assert verdict.not_emulable == (SMALL[2],)
    assert "calibration" not in verdict.kernels[f"{FILE}:Kernel"]


def test_the_file_holds_what_a_release_is_held_to(hold, tmp_path):
    command.write(hold("Kernel"), tmp_path / "verdict.json")
    data = json.loads((tmp_path / "verdict.json").read_text())
    assert (data["version"], data["passed"], data["verdict"]) == (2, True, "passed")
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
        Part(kernel="cutlass", name="situ/values/exact", answer="agrees", exact=8),
        Part(kernel="cutlass", name="situ/values/nan-row", answer="known"),
    )
    verdict = Verdict(
        target="sm120",
        emulated=False,
        require_situ=False,
        seed=1,
        parts=parts,
        drawn={"cutlass": {"agrees": 5, "known": 0}},
        gaps={"a.case.json": {"deviation": "duplicate expert", "sightings": 3}},
        timings=(
            Timed(kernel="cutlass", name="swiglu/routing/M=1/uniform", median=12.25, least=12.0, calls=30),
            Timed(kernel="marlin", name="situ/values/exact", median=8.0, least=8.0, calls=30),
        ),
        failures=("cutlass: a", "cutlass: b"),
    )
    assert list(command.lines(verdict)) == [
        "cutlass swiglu routing  1 of 2 agree, error/radius at most 2",
        "cutlass situ values     1 of 2 agree, 1 expected gaps, all exact",
        "cutlass drawn: 5 agrees",
        "expected gap: duplicate expert, seen 3 times: a.case.json",
        "failed: cutlass: a",
        "failed: cutlass: b",
        "not passed: cutlass: a (and 1 more)",
    ]
    assert list(command.timing_lines(verdict)) == [
        "microseconds of a call, median  cutlass  marlin",
        f"{'swiglu/routing/M=1/uniform':30}     12.2",
        f"{'situ/values/exact':30}  {'':7}     8.0",
    ]


def test_kernels_of_builds():
    assert [one.spec for one in TARGETS["sm90"].held((), None)] == ["cutlass", "cutlass-graph", "marlin"]
    held = TARGETS["sm120"].held(("0.6.18+situ",), "marlin@/python")
    assert [(one.spec, one.precision, one.mode, one.control) for one in held] == [
        ("cutlass@0.6.18+situ", "mxfp8xmxfp4", "eager", False),
        ("cutlass-graph@0.6.18+situ", "mxfp8xmxfp4", "graph", False),
        ("marlin@/python", "bf16xmxfp4", "eager", True),
    ]
    eager, graph, _ = (set(kernel.plan()) for kernel in held)
    assert eager | graph == set(plan.matrix("mxfp8xmxfp4"))
    assert not eager & graph
