"""The emulation of SM120: its layouts against other formulations, its arithmetic against the reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import oracles
from difftest.engine import Engine
from difftest.judging.outcome import Verdict
from difftest.options import installed_candidates
from difftest.stream import Stream
from oracles import emulated_sm120 as emulated
from oracles import formats
from strategies import Scenario, Shape, Situ, scenarios
from strategies.scenario import ValueEdit, Values

SCENARIO = Scenario(
    shape=Shape(tokens=5, hidden=128, intermediate=128, experts=3, top_k=2), precision="mxfp8xmxfp4", activation=Situ()
)


@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (128, 4), (130, 8), (384, 112), (5, 3), (256, 7)])
def test_swizzled_scales_are_tiles_of_32_lines(rows: int, columns: int) -> None:
    """cuBLAS: [rows, columns] -> tiles [rows / 128, columns / 4] of [32, 4, 4]."""
    scale = torch.randint(0, 255, (rows, columns), dtype=torch.uint8)
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 4) * 4, dtype=torch.uint8)
    padded[:rows, :columns] = scale
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4).permute(0, 3, 2, 1, 4)
    buffer = emulated.swizzle(scale)
    assert torch.equal(buffer, tiles.flatten())
    assert torch.equal(emulated.swizzled_rows(buffer, torch.arange(rows), columns), scale)


def test_quantised_values_are_those_of_the_format() -> None:
    generator = torch.Generator().manual_seed(0)
    a = (
        torch.randn(64, 128, generator=generator) * 2.0 ** torch.randint(-20, 20, (64, 1), generator=generator)
    ).bfloat16()
    codes, scale = emulated.quantize(a)
    payload, byte = formats.mxfp8_quantize(a.double())
    assert torch.equal(scale, byte)
    assert torch.equal(codes.view(torch.uint8) & 0x7F, payload & 0x7F)


@pytest.mark.parametrize("seed", [1, 2])
def test_it_agrees_with_the_reference(seed: int) -> None:
    oracle = oracles.get("emulated-sm120")
    engine = Engine(oracle)
    seen = []

    def visit(scenario: Scenario) -> None:
        outcome = engine.check(scenario)
        assert outcome.verdict is Verdict.AGREES, str(outcome)
        seen.append(scenario)

    Stream(scenarios(oracle.capability, profile="quick"), base_seed=seed, shard=0, count=20).each(visit)
    assert {scenario.precision for scenario in seen} == {"mxfp8xmxfp4"}


@pytest.mark.parametrize("byte", [0, 1, 240, 254, 255])
def test_scale_bytes_at_the_ends(byte: int) -> None:
    edits = (
        ValueEdit(tensor="w13_scale", index=(0, 3, 1), value=byte),
        ValueEdit(tensor="w2_scale", index=(1, 7, 0), value=byte),
    )
    outcome = Engine("emulated-sm120").check(dataclasses.replace(SCENARIO, values=Values(edits=edits)))
    assert outcome.verdict is Verdict.AGREES, str(outcome)


def test_an_accumulator_of_fewer_bits_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """14 bits, as Hopper's FP8 keeps, are fewer than the float32 that is declared."""
    gemm = emulated.EmulatedSm120.gemm

    def cut(*given: Any) -> torch.Tensor:
        return (gemm(*given).view(torch.int32) & ~0x3FF).view(torch.float32)

    monkeypatch.setattr(emulated.EmulatedSm120, "gemm", cut)
    scenario = dataclasses.replace(SCENARIO, shape=Shape(tokens=8, hidden=512, intermediate=512))
    assert Engine("emulated-sm120").check(scenario).verdict is Verdict.DIVERGES


def test_it_never_runs_unasked() -> None:
    assert "emulated-sm120" in oracles.names()
    assert "emulated-sm120" in oracles.emulations()
    assert "emulated-sm120" not in installed_candidates()
