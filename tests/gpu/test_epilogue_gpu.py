"""Kernels around a GEMM give what is computed pass by pass otherwise, to the bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from oracles import accumulation, epilogue, formats, kernels, one_pass
from oracles.ball import Ball, exact
from oracles.cutlass_sm90 import PATH
from oracles.inherited import Correlation
from oracles.matmul import matmul
from oracles.numerics import Accumulator, TensorCore
from oracles.weight import Weight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DECLARED = PATH.numerics.gemm1
ACCUMULATORS = {
    "declared": DECLARED,
    "measured": dataclasses.replace(
        DECLARED, measured=dataclasses.replace(DECLARED, inside=TensorCore(alignment=2.0**-25))
    ),
    "subnormals": dataclasses.replace(DECLARED, flush_to_zero=False),
}
SIZES = ((2, 3, 70, 128), (1, 1, 1, 32), (3, 1, 513, 96), (2, 37, 1024, 1056))
"""C, T, N, K: ragged, and more than a block."""


def _weight(experts: int, rows: int, columns: int, scales: tuple[int, int], generator: torch.Generator) -> Weight:
    low, high = scales
    packed = torch.randint(0, 256, (experts, rows, columns // 2), generator=generator, device="cuda")
    scale = torch.randint(low, high + 1, (experts, rows, columns // 32), generator=generator, device="cuda")
    packed[:, 0] = 0
    return Weight(
        held=formats.mxfp4_dequantize(packed.to(torch.uint8), scale.to(torch.uint8)).float(),
        unit=formats.exp2(scale.amin(-1) - 128),
        spread=high - low > 12,
        subnormal=low < 2,
        scale=formats.exp2(scale - 127),
    )


def _contents(shape: tuple[int, int, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    normal = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float64)
    whole = torch.randint(-20, 21, shape, generator=generator, device="cuda")
    wide = normal * formats.exp2(whole)
    one_hot = (whole == 7).double()
    contents = {"normal": normal, "wide": wide, "small": normal * 2.0**-127, "large": normal * 2.0**123}
    exactly = {name: formats.round_to(value, "bfloat16") for name, value in contents.items()}
    return exactly | {"integers": whole.double(), "one-hot": one_hot, "zero": torch.zeros_like(normal)}


@pytest.mark.parametrize("scales", [(115, 119), (100, 140)])
@pytest.mark.parametrize("acc", ACCUMULATORS)
@pytest.mark.parametrize("size", SIZES)
def test_radii_are_the_same(
    size: tuple[int, int, int, int], acc: str, scales: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    experts, tokens, rows, columns = size
    generator = torch.Generator("cuda").manual_seed(sum(size))
    weight = _weight(experts, rows, columns, scales, generator)
    monkeypatch.setattr(one_pass, "LARGE", 0)
    for name, center in _contents((experts, tokens, columns), generator).items():
        part, repeated = torch.rand(2, *center.shape, generator=generator, device="cuda", dtype=torch.float64)
        radius = torch.where(part < 0.3, center.abs() * part * 2.0**-8, 0.0)
        ball = Ball(center=center, radius=torch.stack((radius, radius / 3, radius / 7)))
        correlated = Correlation(repeated=repeated < 0.1)
        for x, correlation in ((exact(center), None), (ball, None), (ball, correlated)):
            once, passes = _both(x, weight, ACCUMULATORS[acc], correlation, monkeypatch)
            assert torch.equal(once.center, passes.center), name
            assert torch.equal(once.radius, passes.radius), name
            assert (once.kinds is None) == (passes.kinds is None), name
            assert once.kinds is None or torch.equal(once.kinds, passes.kinds), name


def _both(
    x: Ball, weight: Weight, acc: Accumulator, correlated: Correlation | None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Ball, Ball]:
    assert epilogue.applies(acc)
    once = matmul(x, weight, acc, correlated)
    with monkeypatch.context() as patch:
        patch.setattr(epilogue, "applies", lambda _: False)
        return once, matmul(x, weight, acc, correlated)


def test_it_is_for_groups_in_a_tensor_core_that_is_not_followed() -> None:
    core = TensorCore()
    assert not epilogue.applies(Accumulator())
    assert not epilogue.applies(Accumulator(group=4))
    assert not epilogue.applies(Accumulator(rounding="truncate", chain=core, unit_roundoff=2.0**-23))
    known = dataclasses.replace(DECLARED, inside=dataclasses.replace(core, exactly=True))
    assert not epilogue.applies(dataclasses.replace(DECLARED, measured=known))


@pytest.mark.parametrize("columns", [32, 1056, 4128])
def test_rows_are_told_the_same(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator("cuda").manual_seed(columns)
    weight = _weight(3, 5, columns, (115, 119), generator)
    for name, x in _contents((3, 50, columns), generator).items():
        x[0, 0], x[0, 1, ::3], x[1, 0], x[1, 1, :32] = 0.0, -0.0, 7.25, -3.0
        for share in (0.0, 0.1, 1.0):
            uncertain = torch.rand(x.shape, generator=generator, device="cuda") < share
            uncertain[2, 7] = False
            told = []
            for least in (0, x.numel() + 1):
                monkeypatch.setattr(kernels, "LARGE", least)
                grid = accumulation.Grid(x, uncertain, weight, DECLARED)
                ordered = accumulation.Stagnation(x, weight).ordered
                rows = accumulation.is_independent(x, ordered, 32)
                told.append((grid.least, grid.lowest, grid.below, ordered, rows))
            for once, passes in zip(*told, strict=True):
                assert torch.equal(once, passes), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tokens", [1, 20, 33, 150])
def test_products_of_magnitudes(tokens: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Additions have another order."""
    generator = torch.Generator("cuda").manual_seed(tokens)
    x = torch.rand(3, tokens, 1056, generator=generator, device="cuda", dtype=torch.float64)
    weight = _weight(3, 130, 1056, (115, 119), generator)
    weight = dataclasses.replace(weight, held=weight.held.to(dtype))
    few = torch.where(torch.arange(tokens, device="cuda")[:, None] % 9 == 7, x, 0.0)
    made = []
    for least in (0, weight.held.numel() + 1):
        monkeypatch.setattr(kernels, "LARGE", least)
        made.append((weight.magnitudes(x), weight.squares(x), weight.magnitudes_of_few(few)))
    for once, passes in zip(*made, strict=True):
        torch.testing.assert_close(once, passes, rtol=1e-13, atol=0)
