"""Activations on intervals against float32 arithmetic whose library functions err as far as they may."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import simulate
import torch
from simulate import Activation, Choices

from oracles import activations
from oracles.ball import BIAS, HARD, Ball, exact
from oracles.enclosure import ANY, FINITE, NAN, NEG_INF, POS_INF
from oracles.numerics import Transcendental
from oracles.problem import ActivationParams

F64 = torch.float64


def params(kind: str, **values: float) -> ActivationParams:
    return ActivationParams(kind=kind, **{name: torch.tensor([value]) for name, value in values.items()})


KINDS = {
    "swiglu": params("swiglu"),
    "swiglu_oai": params("swiglu_oai", alpha=1.702, beta=1.0, limit=7.0),
    "unlimited": params("swiglu_oai", alpha=1.702, beta=0.0, limit=torch.inf),
    "situ": params("situ", beta=4.0, linear_beta=25.0),
    "odd situ": params("situ", beta=0.3, linear_beta=1e-3),
}
PRECISE = Transcendental()
FAST = Transcendental(exp="fast", divide="fast", tanh="two_sigmoid", flush_to_zero=True)
ACCURACY = {
    "precise": PRECISE,
    "one ulp": Transcendental(exp_ulps=1.0, tanh_ulps=1.0),
    "four ulp": Transcendental(exp_ulps=4.0, tanh_ulps=4.0),
    "flushes": dataclasses.replace(PRECISE, flush_to_zero=True),
    "fast": FAST,
    "fast divide": Transcendental(divide="fast"),
    "two sigmoid": Transcendental(tanh="two_sigmoid"),
    "sigmoid by tanh": Transcendental(sigmoid="tanh"),
}


def every_bfloat16() -> torch.Tensor:
    values = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16).double()
    return values[values.isfinite()]


def of(values: torch.Tensor, radius: torch.Tensor | float = 0.0) -> Ball:
    """[1, 1, I]."""
    center = values.double()[None, None]
    return Ball(center=center, radius=torch.as_tensor(radius, dtype=F64).expand(3, *center.shape).contiguous())


def outside(kind: ActivationParams, accuracy: Transcendental, gate: torch.Tensor, up: torch.Tensor, out: Ball) -> int:
    """How often a float32 implementation leaves the hard radius."""
    count = 0
    for errors, divides, flush in itertools.product((1, -1, 0), (False, True), (False, True)):
        choices = Choices(order=simulate.in_order, errors=errors, divides=divides, flush=flush, seed=errors + 1)
        a = Activation(kind, 0, accuracy, choices)(gate.double(), up.double())
        finite = a.isfinite() & ((out.center[0, 0].abs() + out.radius[HARD, 0, 0]) < 3e38)
        error = (a - out.center[0, 0]).abs()
        count += int((error[finite] > out.radius[HARD, 0, 0][finite] * (1 + 2.0**-40)).sum())
    return count


@pytest.mark.parametrize("accuracy", ACCURACY)
@pytest.mark.parametrize("kind", KINDS)
def test_every_bfloat16_gate(kind: str, accuracy: str) -> None:
    gate = every_bfloat16()
    up = gate[torch.randperm(len(gate), generator=torch.Generator().manual_seed(0))]
    out = activations.apply(KINDS[kind], of(gate), of(up), ACCURACY[accuracy])
    assert outside(KINDS[kind], ACCURACY[accuracy], gate, up, out) == 0


@pytest.mark.parametrize("accuracy", ACCURACY)
@pytest.mark.parametrize("kind", KINDS)
def test_ordinary_arguments(kind: str, accuracy: str) -> None:
    generator = torch.Generator().manual_seed(1)
    gate = (torch.randn(20000, generator=generator) * 30).double()
    up = torch.randn(20000, generator=generator).double()
    out = activations.apply(KINDS[kind], of(gate), of(up), ACCURACY[accuracy])
    assert outside(KINDS[kind], ACCURACY[accuracy], gate, up, out) == 0


@pytest.mark.parametrize("kind", ["swiglu", "swiglu_oai"])
def test_an_activated_gate_is_rounded_before_it_meets_up(kind: str) -> None:
    """A kernel in torch's float32 that does so is inside, and most often exact; one that does not is outside."""
    generator = torch.Generator().manual_seed(5)
    gate, up = (torch.randn(20000, generator=generator).mul(4).bfloat16().float() for _ in range(2))
    alpha, beta, limit = (1.0, 0.0, torch.inf) if kind == "swiglu" else (1.702, 1.0, 7.0)
    g, u = gate.clamp(max=limit), up.clamp(-limit, limit)
    swish = g * torch.sigmoid(alpha * g)
    wide, rounded = (swish * (u + beta)).double(), (swish.bfloat16().float() * (u + beta)).double()
    one = params(kind) if kind == "swiglu" else params(kind, alpha=alpha, beta=beta, limit=limit)
    accuracy = dataclasses.replace(ACCURACY["precise"], activated="bfloat16")
    out = activations.apply(one, of(gate.double()), of(up.double()), accuracy)
    center, radius = out.center[0, 0], out.radius[HARD, 0, 0]
    assert bool(((rounded - center).abs() <= radius).all())
    assert float(((wide - center).abs() > radius).double().mean()) > 0.9
    assert float((radius < 2.0**-20 * center.abs()).double().mean()) > 0.99
    moved = activations.apply(one, of(gate.double(), 2.0**-6), of(up.double()), accuracy)
    plain = activations.apply(one, of(gate.double(), 2.0**-6), of(up.double()), ACCURACY["precise"])
    assert torch.equal(moved.radius[BIAS], plain.radius[BIAS])


@pytest.mark.parametrize("accuracy", ["precise", "fast"])
@pytest.mark.parametrize("kind", KINDS)
def test_arguments_inside_their_radius(kind: str, accuracy: str) -> None:
    generator = torch.Generator().manual_seed(2)

    def random(scale: float) -> torch.Tensor:
        return (torch.randn(5000, generator=generator) * scale).double()

    gate, up = random(10), random(10)
    wide, wider = random(1).abs(), random(2.0**-8).abs() * up.abs()
    out = activations.apply(KINDS[kind], of(gate, wide), of(up, wider), ACCURACY[accuracy])
    for _ in range(3):
        inside = gate + wide * (2 * torch.rand(5000, generator=generator) - 1)
        other = up + wider * (2 * torch.rand(5000, generator=generator) - 1)
        got = Activation(KINDS[kind], 0, ACCURACY[accuracy], Choices(order=simulate.in_order))(inside, other)
        assert bool(((got - out.center[0, 0]).abs() <= out.radius[HARD, 0, 0] * (1 + 2.0**-20)).all())


@pytest.mark.parametrize("kind", KINDS)
def test_the_radius_is_a_few_ulp(kind: str) -> None:
    generator = torch.Generator().manual_seed(3)
    gate, up = torch.randn(1000, generator=generator), torch.randn(1000, generator=generator)
    out = activations.apply(KINDS[kind], of(gate), of(up), PRECISE)
    assert bool((out.radius[HARD] <= 32 * 2.0**-24 * out.center.abs()).all())


def test_the_bias_is_that_of_the_library_and_of_the_arguments() -> None:
    center = torch.tensor([1.5])
    certain, biased = (
        of(center),
        Ball(center=of(center).center, radius=torch.tensor([0.1, 0.1, 0.01], dtype=F64)[:, None, None, None]),
    )
    library = activations.apply(KINDS["swiglu"], certain, certain, PRECISE).radius[BIAS].item()
    both = activations.apply(KINDS["swiglu"], biased, certain, PRECISE).radius
    assert 0 < library < 1e-5
    assert 0.01 < both[BIAS].item() < both[HARD].item() / 5


@pytest.mark.parametrize("flush", [False, True])
def test_a_flushed_argument_of_tanh_is_lost_whole(flush: bool) -> None:
    """up / 25 is subnormal and may be read as 0, although 25 times that is not."""
    accuracy = dataclasses.replace(PRECISE, flush_to_zero=flush)
    up = torch.tensor([25 * 2.0**-127])
    out = activations.apply(KINDS["situ"], of(torch.tensor([50.0])), of(up), accuracy)
    assert (out.radius[HARD].item() >= out.center.abs().item()) == flush


@pytest.mark.parametrize("flush", [False, True])
def test_a_subnormal_up_times_a_large_gate(flush: bool) -> None:
    accuracy = dataclasses.replace(PRECISE, flush_to_zero=flush)
    out = activations.apply(KINDS["swiglu"], of(torch.tensor([2.0**100])), of(torch.tensor([2.0**-130])), accuracy)
    assert (out.radius[HARD].item() >= out.center.item()) == flush


def test_two_sigmoid_may_pass_one() -> None:
    """With 2 ulp of the division: 2 (1 + 4 u) - 1 is 8 u above 1."""
    accuracy = Transcendental(tanh="two_sigmoid", divide="fast")
    out = activations.apply(
        params("situ", beta=1.0, linear_beta=1.0), of(torch.tensor([500.0])), of(torch.tensor([500.0])), accuracy
    )
    assert out.radius[HARD].item() >= 16 * 2.0**-24


def test_a_sigmoid_by_tanh_ends_at_minus_18() -> None:
    """float32's tanh(-9.5) is -1, so that 1 + tanh is 0; one ulp of it is a thousandth of the sigmoid of -10."""
    params_ = params("situ", beta=4.0, linear_beta=25.0)
    gate, up = of(torch.tensor([-19.0, -10.0])), of(torch.tensor([1.0, 1.0]))
    by_exp = activations.apply(params_, gate, up, PRECISE)
    by_tanh = activations.apply(params_, gate, up, Transcendental(sigmoid="tanh"))
    got = by_tanh.center.abs()[0, 0]
    assert (by_exp.radius[HARD, 0, 0] < 1e-5 * got).all()
    assert by_tanh.radius[HARD, 0, 0, 0] >= got[0]
    assert 5e-4 * got[1] < by_tanh.radius[HARD, 0, 0, 1] < 5e-3 * got[1]


def test_an_overflowing_exponential_gives_zero() -> None:
    """1 / (1 + exp(89)) is a float32 number, but float32's exp(89) is infinite: 89 times it is read as 0."""
    out = activations.apply(KINDS["swiglu"], of(torch.tensor([-89.0])), of(torch.tensor([1.0])), PRECISE)
    assert out.center.item() < 0
    assert out.radius[HARD].item() >= -out.center.item()


# --- what is not finite ----------------------------------------------------------------------------------------------

_BITS = {FINITE: (0.0, 1.5, -200.0, 300.0), POS_INF: (torch.inf,), NEG_INF: (-torch.inf,), NAN: (torch.nan,)}
_ALPHAS = {
    "alpha 0": params("swiglu_oai", alpha=0.0, beta=1.0, limit=7.0),
    "alpha -1": params("swiglu_oai", alpha=-1.0, beta=1.0, limit=torch.inf),
}


@pytest.mark.parametrize("clamp_nan", ["keeps", "limit"])
@pytest.mark.parametrize("kind", [*KINDS, *_ALPHAS])
def test_special_arguments(kind: str, clamp_nan: str) -> None:
    """All kinds of gate and up, against IEEE arithmetic; a must-be-finite is also inside its radius."""
    chosen = (KINDS | _ALPHAS)[kind]
    accuracy = dataclasses.replace(PRECISE, clamp_nan=clamp_nan)
    values = [value for examples in _BITS.values() for value in examples]
    gate, up = (torch.tensor(list(pair)) for pair in zip(*itertools.product(values, repeat=2), strict=True))
    out = activations.apply(chosen, exact(gate.double()[None, None]), exact(up.double()[None, None]), accuracy)
    assert out.kinds is not None
    for divides in (False, True):
        got = Activation(chosen, 0, accuracy, Choices(order=simulate.in_order, divides=divides))(
            gate.double(), up.double()
        )
        found = torch.where(
            got.isnan(), NAN, torch.where(got == torch.inf, POS_INF, torch.where(got == -torch.inf, NEG_INF, FINITE))
        )
        assert bool(((found & out.kinds[0, 0]) != 0).all())
        must = out.kinds[0, 0] == FINITE
        assert bool(((got - out.center[0, 0]).abs() <= out.radius[HARD, 0, 0])[must].all())


@pytest.mark.parametrize(
    ("kind", "clamp_nan", "gate"),
    [("situ", "keeps", FINITE | POS_INF), ("situ", "keeps", FINITE | NEG_INF), ("swiglu_oai", "limit", FINITE | NAN)],
)
def test_a_finite_result_of_an_unknown_argument_is_any_that_it_may_be(kind: str, clamp_nan: str, gate: int) -> None:
    """tanh of what may be finite or infinite is finite, but not tanh(0)."""
    accuracy = dataclasses.replace(PRECISE, clamp_nan=clamp_nan)
    unknown = dataclasses.replace(of(torch.zeros(1)), kinds=torch.full((1, 1, 1), gate, dtype=torch.uint8))
    out = activations.apply(KINDS[kind], unknown, of(torch.ones(1)), accuracy)
    assert out.kinds is not None
    assert out.kinds.item() == FINITE
    for value in (-200.0, -1.0, 3.0, 7.0, 3e38 if gate & POS_INF else 7.0, -3e38):
        inside = activations.apply(KINDS[kind], of(torch.tensor([value])), of(torch.ones(1)), PRECISE).center
        assert (inside - out.center).abs().item() <= out.radius[HARD].item()


def test_a_clamped_nan_may_be_either_limit() -> None:
    accuracy = dataclasses.replace(PRECISE, clamp_nan="limit")
    nan = exact(torch.full((1, 1, 1), torch.nan, dtype=F64))
    out = activations.apply(KINDS["swiglu_oai"], of(torch.ones(1)), nan, accuracy)
    for up in (7.0, -7.0):
        inside = activations.apply(KINDS["swiglu_oai"], of(torch.ones(1)), of(torch.tensor([up])), PRECISE).center
        assert (inside - out.center).abs().item() <= out.radius[HARD].item()


def test_sets_stay_sets() -> None:
    unknown = dataclasses.replace(of(torch.zeros(1)), kinds=torch.full((1, 1, 1), ANY, dtype=torch.uint8))
    out = activations.apply(KINDS["swiglu"], unknown, of(torch.ones(1)), PRECISE)
    assert out.kinds is not None
    assert out.kinds.item() == ANY
    assert out.radius.sum().item() == 0


def test_parameters_are_those_of_the_expert() -> None:
    two = ActivationParams(kind="situ", beta=torch.tensor([4.0, 1.0]), linear_beta=torch.tensor([25.0, 1.0]))
    argument = Ball(center=torch.full((2, 1, 1), 3.0, dtype=F64), radius=torch.zeros(3, 2, 1, 1, dtype=F64))
    out = activations.apply(two, argument, argument, PRECISE).center.flatten().tolist()
    alone = [activations.apply(KINDS["situ"], of(torch.tensor([3.0])), of(torch.tensor([3.0])), PRECISE).center.item()]
    alone += [
        activations.apply(
            params("situ", beta=1.0, linear_beta=1.0), of(torch.tensor([3.0])), of(torch.tensor([3.0])), PRECISE
        ).center.item()
    ]
    assert out == alone


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"activation.kind = 'relu': must be one of swiglu, swiglu_oai, situ"):
        activations.apply(params("relu"), of(torch.ones(1)), of(torch.ones(1)), PRECISE)
