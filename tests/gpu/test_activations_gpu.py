"""The kernel of `oracles.activations_triton` gives, bit by bit, what `oracles.activations` does with torch."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from oracles import activations, kernels
from oracles.ball import BIAS, Ball
from oracles.numerics import Transcendental
from oracles.problem import ActivationParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

F64 = torch.float64
EXPERTS, TOKENS, INNER = 3, 1000, 1411  # more than `kernels.LARGE`, and no multiple of a block
PARAMETERS: dict[str, dict[str, list[float]]] = {
    "swiglu": {},
    "swiglu_oai": {"alpha": [1.702, -0.5, 0.0], "beta": [1.0, 0.0, -2.0], "limit": [7.0, torch.inf, 0.3]},
    "situ": {"beta": [4.0, 0.3, 1e-3], "linear_beta": [25.0, 1e-3, 7.0]},
}
_FAST = Transcendental(exp="fast", divide="fast", tanh="two_sigmoid", clamp_nan="limit", flush_to_zero=True)
ACCURACY = {
    "marlin": _FAST,
    "cutlass": dataclasses.replace(_FAST, reciprocal_ulps=1.0),
    "cutlass, emulated": Transcendental(exp_ulps=1.0, tanh="two_sigmoid", clamp_nan="limit"),
    "grouped-mm": Transcendental(exp_ulps=1.0, tanh_ulps=1.0),
    "marlin of vllm": Transcendental(divide="fast", sigmoid="tanh", clamp_nan="limit", activated="bfloat16"),
}
AT_A_BOUNDARY = (0.0, -0.0, 2.0**-126, -(2.0**-126), 2.0**-149, -87.0, -87.5, 88.0, 200.0, -200.0, 3.38e38, -3.38e38)


def arguments(seed: int) -> tuple[Ball, Ball]:
    """gate and up [C, T, I], columns of one float32 ball as the reference has them: usual values mostly, some of any
    binade, some at a boundary. Half of them are known exactly, but for the bias."""
    generator = torch.Generator().manual_seed(seed)
    shape = (EXPERTS, TOKENS, 2 * INNER)

    def uniform() -> torch.Tensor:
        return torch.rand(shape, generator=generator, dtype=F64)

    def scaled(low: int, high: int) -> torch.Tensor:
        exponent = torch.randint(low, high, shape, generator=generator).double()
        return torch.randn(shape, generator=generator, dtype=F64) * torch.exp2(exponent)

    choice = uniform()
    center = torch.where(choice < 0.3, scaled(-150, 120), scaled(-4, 6))
    some = torch.tensor(AT_A_BOUNDARY, dtype=F64)[torch.randint(len(AT_A_BOUNDARY), shape, generator=generator)]
    center = torch.where(choice > 0.95, some, center).float().double()
    choice = uniform()
    hard = torch.where(choice > 0.95, scaled(-150, 100).abs(), center.abs() * 2.0**-9 * uniform())
    hard = torch.where(choice < 0.5, 0.0, hard)
    radius = torch.stack((hard, hard * uniform(), center.abs() * 2.0**-24 * uniform()))
    center, radius = center.cuda(), radius.cuda()
    gate, up = (
        Ball(center=center[..., part], radius=radius[..., part]) for part in (slice(0, INNER), slice(INNER, None))
    )
    return gate, up


@pytest.mark.parametrize("accuracy", ACCURACY)
@pytest.mark.parametrize("kind", PARAMETERS)
def test_the_kernel_gives_the_same_bits(kind: str, accuracy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = {name: torch.tensor(values, device="cuda") for name, values in PARAMETERS[kind].items()}
    params = ActivationParams(kind=kind, **vectors)
    gate, up = arguments(len(kind) + len(accuracy))
    assert kernels.worth(gate.center)  # Triton makes the kernel here
    there = activations.apply(params, gate, up, ACCURACY[accuracy])
    monkeypatch.setattr(kernels, "worth", lambda _: False)
    here = activations.apply(params, gate, up, ACCURACY[accuracy])
    assert there.kinds is None
    assert here.kinds is None
    assert torch.equal(there.center.view(torch.int64), here.center.view(torch.int64))
    assert torch.equal(there.radius, here.radius)
    assert bool((here.radius[BIAS] > 0).any())
