"""What an instruction does is recognised by the answers of a kernel that is made of it, and narrows the radius."""

from __future__ import annotations

import dataclasses

import pytest
import simulate
import torch
from simulate import Choices

from difftest import calibration, probe, recognition
from difftest.calibration import Calibration
from difftest.probe import Addition
from difftest.recognition import Instruction
from oracles.cutlass_sm120 import path
from oracles.numerics import Accumulator, Numerics, TensorCore
from oracles.problem import Problem, build
from oracles.reference import enclose
from strategies.capability import Capability
from strategies.scenario import Scenario, Shape

CPU = torch.device("cpu")
DECLARED = path((0, 7, 4)).numerics
RUNNING = Instruction(columns=32, alignment=2.0**-13, result=2.0**-13, running=True)
REALLY = {
    "running": RUNNING,
    "apart": dataclasses.replace(RUNNING, running=False),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer tokens than on a card: simulations take their time."""
    monkeypatch.setattr(recognition, "_TOKENS", 16)


def seen(within: int | None, beyond: int, rounding: str = "truncate") -> tuple[Addition, ...]:
    inner = Addition(distance=1, bits=within, rounding=None if within is None else "truncate", up_to=17)
    return inner, Addition(distance=32, bits=beyond, rounding=rounding, up_to=24)  # type: ignore[arg-type]


class Kernel:
    """SM120's path, in an arithmetic of its own, with the instruction `really`."""

    name = "simulated"
    capability = Capability(precisions=frozenset({"mxfp8xmxfp4"}))
    numerics = DECLARED

    def __init__(self, really: Accumulator, **choices: object) -> None:
        plain = dataclasses.replace(DECLARED, gemm1_output="bfloat16", intermediate="bfloat16", gemm2_output="bfloat16")
        self._really = dataclasses.replace(plain, gemm1=really, gemm2=really)
        self._choices = Choices(order=simulate.in_order, seed=1, **choices)  # type: ignore[arg-type]

    def unsupported(self, _: Scenario) -> str | None:
        return None

    def prepare(self, problem: Problem) -> Problem:
        return problem

    def __call__(self, problem: Problem) -> torch.Tensor:
        return simulate.simulate(problem, self._really, self._choices).to(problem.output_dtype)


@pytest.mark.parametrize("really", REALLY)
def test_what_an_instruction_does_is_recognised(really: str) -> None:
    right = REALLY[really]
    beyond = (24, "nearest") if not right.running else (14, "truncate")
    additions = seen(14, *beyond)
    kernel = Kernel(right.accumulator(DECLARED.gemm1))
    assert recognition.recognise(kernel, {"gemm1": additions, "gemm2": additions}, CPU) == {
        "gemm1": right,
        "gemm2": right,
    }


def test_what_cuts_in_another_way_is_not_recognised() -> None:
    """Down, and not towards 0. What was measured of it still narrows the bound."""
    kernel = Kernel(DECLARED.gemm1, errors=-1, divides=True)
    assert recognition.recognise(kernel, {"gemm1": seen(14, 14), "gemm2": seen(14, 14)}, CPU) == {}


def test_where_nothing_tells_them_apart_the_coarsest_is_known() -> None:
    """float32: blocks of MXFP8 have not the bits that a wide instruction cuts."""
    kernel = Kernel(Accumulator(group=32, flush_to_zero=True))
    additions = seen(None, 24, "nearest")
    known = recognition.recognise(kernel, {"gemm1": additions, "gemm2": additions}, CPU)
    coarsest = Instruction(columns=32, alignment=2.0**-23, result=2.0**-23, running=False, exactly=False)
    assert known == {"gemm1": coarsest, "gemm2": coarsest}


def test_oracles_without_a_chain_are_not_asked() -> None:
    class Silent(Kernel):
        numerics = Numerics()

    assert recognition.recognise(Silent(Accumulator()), {"gemm1": seen(14, 14), "gemm2": seen(14, 14)}, CPU) == {}


def test_calibration_measures_recognises_and_keeps(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the radius of 14 bits is then that of float32, or less: every output has one right value."""
    monkeypatch.setattr(probe, "DISTANCES", (1, 32))
    monkeypatch.setattr(probe, "EXPONENTS", range(12, 15))
    kernel = Kernel(RUNNING.accumulator(DECLARED.gemm1))
    found = calibration.measure(kernel, "simulated", CPU)
    assert {(one.bits, one.rounding) for one in (*found.gemm1, *found.gemm2)} == {(14, "truncate")}
    assert found.known == {"gemm1": RUNNING, "gemm2": RUNNING}
    assert found.contradictions(DECLARED) == []
    assert "gemm1 recognised: 32 columns at a time" in "\n".join(found.lines())
    kept = Calibration.load(found.save(tmp_path))
    assert kept == found
    measured = kept.applied(DECLARED)
    assert measured.calibrated
    shape = Shape(tokens=4, hidden=256, intermediate=256, experts=2, top_k=2)
    problem = build(Scenario(shape=shape, precision="mxfp8xmxfp4"))
    wide, tight = enclose(problem, DECLARED), enclose(problem, measured)
    error = (kernel(problem).double() - tight.center).abs()
    assert bool((error <= tight.sharp).all())
    assert bool((error <= tight.hard).all())
    assert (tight.sharp == 0).double().mean() > 0.5
    assert tight.sharp.mean() < 1e-3 * wide.sharp.mean()
    assert not torch.equal(
        tight.center, enclose(problem, dataclasses.replace(DECLARED, gemm1=_FINE, gemm2=_FINE)).center
    )


_FINE = Accumulator(group=32)


def test_a_measured_width_narrows_what_is_declared() -> None:
    for gemm1, alignment in ((seen(None, 24), 2.0**-23), (seen(14, 24, "nearest"), 2.0**-13), (seen(16, 16), 2.0**-15)):
        found = Calibration(environment={}, gemm1=gemm1, gemm2=gemm1, taken="")
        measured = found.applied(DECLARED).gemm1.measured
        assert measured is not None
        assert measured.chain == TensorCore(columns=32, alignment=alignment, result=alignment)
    blind = "gemm1: cuts at 0.00012207, and not as any instruction that is known"
    unknown = Calibration(environment={}, gemm1=seen(14, 14), gemm2=seen(None, 24), taken="")
    assert unknown.blind(DECLARED) == [blind]
    assert dataclasses.replace(unknown, known={"gemm1": RUNNING}).blind(DECLARED) == []
    assert unknown.blind(Numerics()) == []
    narrow = Calibration(environment={}, gemm1=seen(12, 12), gemm2=(), taken="")
    assert narrow.contradictions(DECLARED)[0].startswith("gemm1: 1 columns apart: 12 bits, towards 0, but a unit")
