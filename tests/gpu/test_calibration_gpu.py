"""What calibration sees of the tensor cores of a Hopper card, through FlashInfer's CUTLASS kernel."""

from __future__ import annotations

import pytest
import torch

from difftest import calibration
from oracles.base import missing_of
from oracles.cutlass import Cutlass
from oracles.problem import build
from oracles.reference import enclose
from strategies.scenario import Scenario, Shape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_hopper_aligns_at_two_bits_more_than_it_keeps() -> None:
    oracle = Cutlass()
    lacking = missing_of(oracle)
    if lacking is not None:
        pytest.skip(lacking)
    found = calibration.measure(oracle, "cutlass", torch.device("cuda"))
    print("", *found.lines(), sep="\n")
    for additions in (found.gemm1, found.gemm2):
        seen = {one.distance: (one.bits, one.rounding) for one in additions}
        assert {seen[distance] for distance in (1, 2, 4)} == {(26, "truncate")}  # within one instruction
        assert {seen[distance] for distance in (8, 16)} == {(24, "truncate")}  # its result
        assert {seen[distance] for distance in (32, 64, 128)} == {(24, "nearest")}  # groups
    assert found.contradictions(oracle.numerics) == []
    measured = found.applied(oracle.numerics)
    assert measured.gemm1.measured is not None
    assert measured.gemm1.measured.inside is not None
    assert measured.gemm1.measured.inside.alignment == 2.0**-25
    problem = build(Scenario(shape=Shape(tokens=32, hidden=512, intermediate=512, experts=4, top_k=2)), "cuda")
    y = oracle(oracle.prepare(problem)).double()
    for numerics in (oracle.numerics, measured):
        enclosure = enclose(problem, numerics)
        assert bool(((y - enclosure.center).abs() <= enclosure.sharp).all())
