"""Three other ways to test a fused MoE kernel, made anew on our scenarios: which cases they try, and what they accept.

flashinfer-fuzz   `tests/moe/test_unified_moe_fuzz.py` of FlashInfer (000c2aaf), its weight-only MXFP4 variant
vllm-grid         the MXFP4 cases of vLLM's `tests/kernels/moe`: the CUTLASS grid of `test_ocp_mx_moe.py` (01e4fce0) and
                  the Marlin grid of `test_moe.py` (0026f379)
twelve-shapes     a script of fixed shapes with rtol = atol = 0.2, as users had

Facts are theirs: the sizes, how often a rank is one of several, what the contents look like, which answers pass, which
exceptions are skips. All code is ours, and docs/peers.md says what differs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from difftest.judging import variants
from oracles import formats
from oracles.problem import ActivationParams, Problem
from oracles.routing import route
from strategies import (
    Layer,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    Shape,
    Swiglu,
    SwigluOai,
    Values,
)
from strategies.scenario import GROUP, Activation, RoutingRule

Tensor = torch.Tensor
Ask = Callable[[Problem, int], list[Tensor]]
"""Prepares a candidate for the problem and returns its answers to so many calls, float32 [M, H] each."""


@dataclass(frozen=True)
class Sizes:
    """How large cases are made. divide: H and I are these parts of upstream's. tokens, experts: the most of a rank."""

    divide: int
    tokens: int
    experts: int

    def width(self, size: int) -> int:
        return max(GROUP, -(-size // self.divide // GROUP) * GROUP)

    def scales(self, low: int, high: int) -> dict[str, int]:
        """Bounds of the scale bytes, raised where sums are of fewer terms: some tolerances are absolute."""
        gain = int(math.log2(self.divide) / 2)
        return {"scale_low": low + gain, "scale_high": high + gain}


REAL = Sizes(divide=1, tokens=1 << 20, experts=1 << 20)
SMALL = Sizes(divide=8, tokens=129, experts=16)
"""What a CPU can do: eighths of H and I, at most 129 tokens and 16 experts on a rank."""


@dataclass(frozen=True)
class Peer:
    """cases: the scenarios of a run, in order. contents: what their problems are made into. found: whether a run of it
    would fail on this problem, by what `Ask` answers and the expected values, float32 [M, H]. skips: an exception whose
    message has one of these is no failure; any other is."""

    name: str
    cases: Callable[[int, Sizes], Iterator[Scenario]]
    contents: Callable[[Problem], Problem]
    found: Callable[[Ask, Problem, Tensor], bool]
    skips: tuple[str, ...] = ()


# --- FlashInfer ------------------------------------------------------------------------------------------------------

_FUZZED = 160
"""Random configurations of a run by default. Upstream spreads them over eight formats, of which two are MXFP4; here all
are on the kernel in question."""
_EXPERTS = (8, 16, 32, 64, 72, 128, 160, 256, 512)
_HIDDEN = (256, 512, 1024, 1536, 2048, 3072)
_INTERMEDIATE = (256, 512, 768, 1024, 1408, 1536)
_TOP_K = (1, 2, 4, 6, 8)
_TOKENS = (1, 2, 3, 7, 17, 64, 127, 129, 256, 1024, 2048, 4095, 4096, 4097)
_LOADS: tuple[RoutingRule, ...] = ("uniform", "uniform", "all_to_one", "skewed", "uniform", "all_to_one")
_WEIGHTS = 500_000_000
_SKIPS = (
    "not supported",
    "unsupported",
    "no valid",
    "not implemented",
    "must be",
    "divisible",
    "requires",
    "only support",
)


def flashinfer_cases(seed: int, sizes: Sizes) -> Iterator[Scenario]:
    """Random shapes under a limit of weights; half could be a rank of 2 or 4, and of these three in ten are."""
    for number in range(_FUZZED):
        source = random.Random(seed + number)
        alone = source.random() < 0.5
        while True:
            experts, hidden = source.choice(_EXPERTS), source.choice(_HIDDEN)
            inner, ranks = source.choice(_INTERMEDIATE), source.choice((2, 4))
            shared = not alone and source.random() < 0.3 and experts >= 16 and experts % ranks == 0
            ep_size = ranks if shared else 1
            if 3 * hidden * inner * (experts // ep_size) <= _WEIGHTS:
                break
        local = min(experts // ep_size, sizes.experts)
        yield Scenario(
            shape=Shape(
                tokens=min(source.choice(_TOKENS), sizes.tokens),
                hidden=sizes.width(hidden),
                intermediate=sizes.width(inner),
                experts=local * ep_size,
                top_k=source.choice([count for count in _TOP_K if count <= local]),
            ),
            parallel=Parallel(ep_size=ep_size, ep_rank=source.randrange(ep_size)),
            routing=Routing(rule=source.choice(_LOADS), seed=seed + number),
            values=Values(seed=seed + number, **sizes.scales(125, 126)),
        )


def sparse(problem: Problem) -> Problem:
    """Three quarters of x and of the weights 0, and every token routed to the rank's own experts alone."""
    scenario = problem.scenario
    alone = dataclasses.replace(
        scenario, shape=dataclasses.replace(scenario.shape, experts=scenario.experts_local), parallel=Parallel()
    )
    device = problem.hidden_states.device
    generator = torch.Generator(device).manual_seed(scenario.values.seed)

    def kept(tensor: Tensor) -> Tensor:
        return torch.rand(tensor.shape, generator=generator, device=device) >= 0.75

    def thinned(packed: Tensor) -> Tensor:
        low, high = kept(packed), kept(packed)
        return packed & (low * 0x0F | high * 0xF0).to(torch.uint8)

    ids, weights = route(alone, device)
    return dataclasses.replace(
        problem,
        hidden_states=torch.where(kept(problem.hidden_states), problem.hidden_states, 0.0),
        w13=thinned(problem.w13),
        w2=thinned(problem.w2),
        topk_ids=ids + problem.first_expert,
        topk_weights=weights,
    )


def flashinfer_found(tactics: int, ask: Ask, problem: Problem, expected: Tensor) -> bool:
    """Within 5 % of the largest value and 30 % of its own; the same bits again; so too from a dirty output buffer and
    with each tactic."""

    def wrong(output: Tensor) -> bool:
        limit = 0.05 * float(expected.abs().max()) + 1e-3 + 0.3 * expected.abs()
        lost = ~output.isfinite() & expected.isfinite()
        return bool(lost.any() or ((output - expected).abs() > limit).any())

    first, again = ask(problem, 2)
    if wrong(first) or not torch.equal(first, again):
        return True
    others = [variants.with_poison(problem, 0xFF), *(_with(problem, tactic) for tactic in range(tactics))]
    return any(wrong(ask(other, 1)[0]) for other in others)


def _with(problem: Problem, tactic: int) -> Problem:
    execution = dataclasses.replace(problem.scenario.execution, tactic=tactic)
    return dataclasses.replace(problem, scenario=dataclasses.replace(problem.scenario, execution=execution))


# --- vLLM ------------------------------------------------------------------------------------------------------------


def vllm_cases(seed: int, sizes: Sizes) -> Iterator[Scenario]:
    """Eight cases of CUTLASS with large biases, then 96 of Marlin. The seed is upstream's own, whatever is asked."""
    del seed
    oai = (SwigluOai(alpha=1.0, beta=1.0, limit=math.inf), SwigluOai())
    for top_k, tokens, activation in itertools.product((1, 4), (1, 128), oai):
        values = Values(seed=42, **sizes.scales(118, 122))
        yield _vllm(sizes, (tokens, 3072, 3072, 32, top_k), 1, activation, Layer(biases="per_expert"), values)
    small = Values(seed=1, x_exponent=-3, **sizes.scales(122, 123))
    for tokens, inner, hidden, experts, top_k, ranks in itertools.product(
        (1, 123, 666), (128, 1024), (256, 2048), (5, 12), (2, 3), (1, 4)
    ):
        experts = experts // ranks * ranks
        sizes_of = (tokens, hidden, inner, experts, min(top_k, experts))
        yield _vllm(sizes, sizes_of, ranks, Swiglu(), Layer(), small)


def _vllm(
    sizes: Sizes,
    shape: tuple[int, int, int, int, int],
    ranks: int,
    activation: Activation,
    layer: Layer,
    values: Values,
) -> Scenario:
    tokens, hidden, inner, experts, top_k = shape
    experts = min(experts, sizes.experts * ranks)
    return Scenario(
        shape=Shape(
            tokens=min(tokens, sizes.tokens),
            hidden=sizes.width(hidden),
            intermediate=sizes.width(inner),
            experts=experts,
            top_k=top_k,
        ),
        parallel=Parallel(ep_size=ranks, ep_rank=min(1, ranks - 1)),
        activation=activation,
        layer=layer,
        routing=Routing(seed=values.seed),
        values=values,
    )


def vllm_found(ask: Ask, problem: Problem, expected: Tensor) -> bool:
    """CUTLASS (with biases): finite, and 80 % of the elements within 30 %. Marlin: all within 0.04, and what fails is
    run twice more."""
    if problem.w13_bias is not None:
        output = ask(problem, 1)[0]
        off = (output - expected).abs() > 0.3 * output.abs()
        return bool((~output.isfinite()).any()) or float(off.double().mean()) > 0.2
    outputs = ask(problem, 1)
    while _beyond(outputs[-1], expected, 0.04, 0.0):
        if len(outputs) == 3:
            return True
        outputs += ask(problem, 1)
    return False


def _beyond(output: Tensor, expected: Tensor, atol: float, rtol: float) -> bool:
    same = (output == expected) | (output.isnan() & expected.isnan())
    return bool((~same & ~((output - expected).abs() <= atol + rtol * expected.abs())).any())


# --- a script --------------------------------------------------------------------------------------------------------


def twelve_cases(seed: int, sizes: Sizes) -> Iterator[Scenario]:
    """A Kimi-K3 rank with 1, 8, 32 and 128 tokens, routed uniformly, unevenly, and with every other row's last slot
    masked."""
    del seed
    values = Values(**sizes.scales(118, 122))
    for tokens in (1, 8, 32, 128):
        shape = Shape(
            tokens=tokens,
            hidden=sizes.width(3584),
            intermediate=sizes.width(3072),
            experts=min(28, sizes.experts),
            top_k=16,
        )
        masked = tuple(MaskSlot(token=token, slot=15) for token in range(0, tokens, 2))
        for routing in (Routing(), Routing(rule="skewed"), Routing(edits=masked)):
            yield Scenario(shape=shape, routing=routing, values=values)


def twelve_found(ask: Ask, problem: Problem, expected: Tensor) -> bool:
    """Within 0.2 and 20 %."""
    return _beyond(ask(problem, 1)[0], expected, 0.2, 0.2)


def peers(tactics: int) -> tuple[Peer, ...]:
    """All of them. tactics: how many the kernel in question lets a caller choose from."""
    fuzz = functools.partial(flashinfer_found, tactics)
    return (
        Peer("flashinfer-fuzz", flashinfer_cases, sparse, fuzz, skips=_SKIPS),
        Peer("vllm-grid", vllm_cases, large_biases, vllm_found),
        Peer("twelve-shapes", twelve_cases, as_built, twelve_found),
    )


def as_built(problem: Problem) -> Problem:
    return problem


def large_biases(problem: Problem) -> Problem:
    """Biases, where there are any, about ten times as large as x."""

    def larger(bias: Tensor | None) -> Tensor | None:
        return None if bias is None else (bias * (10.0 / bias.float().square().mean().sqrt())).to(bias.dtype)

    return dataclasses.replace(problem, w13_bias=larger(problem.w13_bias), w2_bias=larger(problem.w2_bias))


def expected(problem: Problem) -> Tensor:
    """float32 [M, H]: the layer in float32, expert by expert, with the activation's result in bfloat16."""
    x, local, weights = problem.hidden_states.float(), problem.local_ids, problem.router_weights
    output = torch.zeros_like(x)
    for expert in range(problem.experts_local):
        token, slot = (local == expert).nonzero(as_tuple=True)
        if not len(token):
            continue
        gate, up = _gemm(problem, "w13", expert, x[token]).chunk(2, dim=-1)
        between = _activated(problem.activation, expert, gate, up).bfloat16().float()
        output.index_add_(0, token, weights[token, slot, None] * _gemm(problem, "w2", expert, between))
    return output


def _gemm(problem: Problem, name: str, expert: int, x: Tensor) -> Tensor:
    weight = formats.mxfp4_dequantize(getattr(problem, name)[expert], getattr(problem, f"{name}_scale")[expert])
    bias = getattr(problem, f"{name}_bias")
    result = x @ weight.float().mT
    return result if bias is None else result + bias[expert].float()


def _activated(params: ActivationParams, expert: int, gate: Tensor, up: Tensor) -> Tensor:
    if params.kind == "swiglu":
        return torch.nn.functional.silu(gate) * up
    assert params.alpha is not None  # SwiGLU-OAI has all three
    assert params.beta is not None
    assert params.limit is not None
    limit = params.limit[expert]
    gate, up = torch.minimum(gate, limit), torch.clamp(up, -limit, limit)
    return gate * torch.sigmoid(params.alpha[expert] * gate) * (up + params.beta[expert])
