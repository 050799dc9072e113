"""What calibration measures, keeps and narrows."""

from __future__ import annotations

import dataclasses
import json

import pytest
import simulate
import torch
from simulate import Choices

from difftest import calibration, probe
from difftest.calibration import Calibration, InvalidCalibration, narrowed
from difftest.engine import Engine
from difftest.judging.outcome import Verdict
from difftest.probe import Addition, Unmeasurable
from oracles.emulated_sm120 import EmulatedSm120
from oracles.grouped_mm import GroupedMM
from oracles.numerics import Accumulator, Numerics, Stripes, TensorCore
from oracles.problem import Problem, build
from oracles.reference import Reference, enclose
from strategies.scenario import Scenario, Shape, Values

CPU = torch.device("cpu")
SCENARIO = Scenario(shape=Shape(tokens=3, hidden=128, intermediate=64, experts=2, top_k=2))


class Simulated:
    """A kernel that adds as `really` says, and declares `numerics`."""

    name = "simulated"

    def __init__(self, really: Accumulator, declared: Accumulator | None = None, order: str = "in_order") -> None:
        self._really = Numerics(weights="exact", gemm1=really, gemm2=really)
        declared = declared or really
        self.numerics = Numerics(weights="exact", gemm1=declared, gemm2=declared)
        self._choices = Choices(order=getattr(simulate, order))

    def unsupported(self, _: Scenario) -> str | None:
        return None

    def prepare(self, problem: Problem) -> Problem:
        return problem

    def __call__(self, problem: Problem) -> torch.Tensor:
        return simulate.simulate(problem, self._really, self._choices).to(torch.bfloat16)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations take their time: only the distances and exponents at which something happens."""
    monkeypatch.setattr(probe, "DISTANCES", (1, 8, 32))
    monkeypatch.setattr(probe, "EXPONENTS", range(21, 27))


@pytest.fixture(scope="module")
def taken() -> Calibration:
    return calibration.measure(GroupedMM(), "grouped-mm", CPU)


def seen(additions: tuple[Addition, ...]) -> dict[int, tuple[int | None, str | None]]:
    return {one.distance: (one.bits, one.rounding) for one in additions}


# --- measuring -------------------------------------------------------------------------------------------------------


def test_float32_is_measured(taken: Calibration) -> None:
    for additions in (taken.gemm1, taken.gemm2):
        assert [one.distance for one in additions] == list(probe.DISTANCES)
        found = {one: how for one, how in seen(additions).items() if how[0] is not None}
        assert set(found.values()) == {(24, "nearest")}
        assert 128 in found


def test_mxfp8_is_measured_as_far_as_its_blocks_hold_two_numbers() -> None:
    """The emulation of SM120 adds blocks of 32 exactly, and these in float32."""
    for additions in probe.measure(EmulatedSm120(), CPU).values():
        found = {one.distance: (one.bits, one.rounding, one.up_to) for one in additions}
        assert {found[distance] for distance in (1, 2, 4, 8, 16)} <= {(None, None, 17), (None, None, 30)}
        assert found[1] == (None, None, 17)
        assert {found[distance][:2] for distance in (32, 64, 128)} == {(24, "nearest")}


def test_a_kernel_without_eager_mode_is_asked_in_a_graph() -> None:
    class Captured(GroupedMM):
        capability = dataclasses.replace(GroupedMM.capability, modes=frozenset({"graph"}))

    assert seen(probe.measure(Captured(), CPU)["gemm1"])[128] == (24, "nearest")


def test_a_reference_does_not_round() -> None:
    for additions in probe.measure(Reference(), CPU).values():
        assert {one.bits for one in additions} == {None}
        assert {one.up_to for one in additions} == {30}


@pytest.mark.usefixtures("quick")
def test_a_tensor_core_is_measured() -> None:
    """26 bits within an instruction, cut; 24 of its result, cut; 24 of a sum of groups, to nearest."""
    core = Accumulator(group=32, inside=TensorCore())  # the simulated one aligns at a quarter of what is declared
    found = calibration.measure(Simulated(core), "simulated", CPU)
    for additions in (found.gemm1, found.gemm2):
        assert seen(additions) == {1: (26, "truncate"), 8: (24, "truncate"), 32: (24, "nearest")}
    measured = found.applied(Simulated(core).numerics)
    assert measured.calibrated
    for acc in (measured.gemm1, measured.gemm2):
        assert dataclasses.replace(acc, measured=None) == core
        assert acc.measured == dataclasses.replace(core, inside=TensorCore(alignment=2.0**-25))
    assert found.contradictions(Simulated(core).numerics) == []


@pytest.mark.usefixtures("quick")
def test_numerics_that_declare_too_much_are_told() -> None:
    narrow = Accumulator(unit_roundoff=2.0**-22, exact_bits=22)
    truncates = Accumulator(rounding="truncate")
    found = calibration.measure(Simulated(narrow), "simulated", CPU)
    assert seen(found.gemm1)[1] == (22, "nearest")
    assert found.contradictions(Simulated(narrow).numerics) == []
    lines = found.contradictions(Simulated(narrow, Accumulator()).numerics)
    assert lines[0] == "gemm1: 1 columns apart: 22 bits, to nearest, but a unit roundoff of 5.96046e-08 is declared"
    assert found.applied(Numerics()).gemm1.measured == Accumulator()  # never wider
    cut = calibration.measure(Simulated(truncates), "simulated", CPU)
    assert any("but nearest is declared" in line for line in cut.contradictions(Numerics()))
    assert cut.contradictions(Simulated(truncates).numerics) == []


def test_what_is_not_supported_is_not_measured() -> None:
    class Picky(Simulated):
        def unsupported(self, _: Scenario) -> str | None:
            return "one expert"

    with pytest.raises(Unmeasurable, match="the probe is not supported: one expert"):
        probe.measure(Picky(Accumulator()), CPU)


@pytest.mark.parametrize(("values", "bits", "rounding"), [
    ((0.0, 1.0, 2.0, 2.0, 3.0, 4.0, 6.0, -3.0), 21, "nearest"),
    ((0.0, 1.0, 1.0, 2.0, 3.0, 4.0, 6.0, -3.0), 21, "truncate"),
    ((1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 6.0, -3.0), 21, "other"),
    ((0.4, 1.1, 1.6, 2.1, 2.9, 4.1, 6.2, -3.1), None, None),
    ((torch.nan,) * 8, None, None),
])  # fmt: skip
def test_what_is_left_is_read(
    values: tuple[float, ...], bits: int | None, rounding: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "EXPONENTS", range(20, 21))
    found = probe._read(4, torch.tensor([values], dtype=torch.float64), torch.tensor([True]))
    assert (found.bits, found.rounding) == (bits, rounding)


# --- narrowing -------------------------------------------------------------------------------------------------------


def test_only_the_sharp_radius_is_narrowed() -> None:
    coarse = Accumulator(unit_roundoff=2.0**-14, exact_bits=14, rounding="truncate")
    fine = dataclasses.replace(coarse, measured=Accumulator())
    problem = build(SCENARIO)
    one, other = (enclose(problem, Numerics(gemm1=acc, gemm2=acc)) for acc in (coarse, fine))
    assert torch.equal(one.center, other.center)
    assert torch.equal(one.hard, other.hard)
    assert bool((other.sharp <= one.sharp).all())
    assert other.sharp.mean() < 0.2 * one.sharp.mean()


def test_a_finer_alignment_narrows_the_sharp_radius() -> None:
    core = Accumulator(group=32, inside=TensorCore(alignment=2.0**-12))
    fine = dataclasses.replace(core, measured=dataclasses.replace(core, inside=TensorCore(alignment=2.0**-25)))
    problem = build(SCENARIO)
    one, other = (
        enclose(problem, Numerics(weights="exact", gemm1=acc, gemm2=acc, gemm2_output="float32"))
        for acc in (core, fine)
    )
    assert torch.equal(one.hard, other.hard)
    assert other.sharp.mean() < 0.2 * one.sharp.mean()


def test_the_tensor_core_of_stripes_is_narrowed_too() -> None:
    acc = Accumulator(rounding="truncate", stripes=Stripes(columns=64, lanes=(2, 4)))
    seen = [
        Addition(distance=1, bits=26, rounding="truncate", up_to=25),
        Addition(distance=16, bits=24, rounding="nearest", up_to=24),
    ]
    fine = narrowed(acc, seen)
    assert fine.rounding == "truncate"
    assert fine.stripes == Stripes(columns=64, lanes=(2, 4), core=TensorCore(alignment=2.0**-25))
    problem = build(dataclasses.replace(SCENARIO, values=Values(rule="wide", scale_low=100, scale_high=140)))
    one, other = (
        enclose(problem, Numerics(gemm1=found, gemm2=found, gemm1_output="float32", gemm2_output="float32"))
        for found in (acc, dataclasses.replace(acc, measured=fine))
    )
    assert torch.equal(one.hard, other.hard)
    assert bool((other.sharp <= one.sharp).all())
    assert other.sharp.mean() < 0.9 * one.sharp.mean()


def test_the_engine_uses_it_and_says_so(taken: Calibration, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(calibration.VARIABLE, str(tmp_path))
    for kept in (False, True):
        if kept:
            taken.save(tmp_path)
        outcome = Engine("grouped-mm", "reference").check(SCENARIO, checks=())
        assert outcome.verdict is Verdict.AGREES
        assert outcome.stats is not None
        assert outcome.stats.calibrated is kept


# --- keeping ---------------------------------------------------------------------------------------------------------


def test_a_file_holds_all_of_it(taken: Calibration, tmp_path) -> None:
    path = taken.save(tmp_path / "new" / "folder")
    assert path.name == taken.name
    assert path.name.startswith("grouped-mm-")
    assert Calibration.load(path) == taken
    assert calibration.find(GroupedMM(), "grouped-mm", CPU, path.parent) == taken


def test_another_environment_has_none(taken: Calibration, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken.save(tmp_path)
    assert calibration.find(GroupedMM(), "grouped-mm@other", CPU, tmp_path) is None
    monkeypatch.setattr(calibration, "_gpus", lambda: "another card")
    assert calibration.find(GroupedMM(), "grouped-mm", CPU, tmp_path) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', '{"format": 2, "gemm1": [{}], "gemm2": []}'])
def test_a_damaged_file_is_told_and_not_used(text: str, taken: Calibration, tmp_path, caplog) -> None:
    path = taken.save(tmp_path)
    path.write_text(text)
    with pytest.raises(InvalidCalibration, match="make it again with difftest calibrate"):
        Calibration.load(path)
    assert calibration.find(GroupedMM(), "grouped-mm", CPU, tmp_path) is None
    assert "not used" in caplog.text


def test_a_rounding_that_is_none(taken: Calibration, tmp_path) -> None:
    path = taken.save(tmp_path)
    data = json.loads(path.read_text())
    data["gemm1"][-1]["rounding"] = "up"
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidCalibration, match="must be nearest, truncate, other or null"):
        Calibration.load(path)
