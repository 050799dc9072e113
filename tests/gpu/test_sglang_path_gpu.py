"""SGLang's serving path on the card: what is right, and what the released package computes where it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from difftest.engine import check
from difftest.judging.compare import judge
from oracles import sglang_layers
from oracles.problem import build
from oracles.reference import enclose
from oracles.sglang_path import SglangFlashinfer, SglangMarlin, SglangPath
from strategies import Layer, MaskRow, MaskSlot, Parallel, Routing, Scenario, Shape, Situ, SwigluOai

pytestmark = pytest.mark.gpu

OAI = SwigluOai(alpha=1.702, beta=1.0, limit=7.0)
BASE = Scenario(shape=Shape(tokens=8, hidden=256, intermediate=128, experts=4, top_k=2), activation=OAI)


def oracle(cls: type[SglangPath]) -> SglangPath:
    found = cls()
    reason = found.missing()
    if reason is not None:
        pytest.skip(reason)
    return found


def answers_as(path: SglangPath, scenario: Scenario, other: Scenario) -> bool:
    """Whether the answer to `scenario` is one that is right for `other`."""
    problem = build(scenario)
    output: torch.Tensor = path(path.prepare(problem))
    return not judge(output, enclose(build(other), path.numerics), path.numerics).breaches


@pytest.mark.parametrize(
    "scenario",
    [
        BASE,
        replace(BASE, parallel=Parallel(ep_size=2, ep_rank=1)),
        replace(BASE, routing=Routing(edits=(MaskSlot(token=1, slot=0), MaskRow(token=2)))),
        replace(BASE, shape=replace(BASE.shape, hidden=320, intermediate=96), layer=Layer(biases="per_expert")),
        replace(BASE, shape=replace(BASE.shape, tokens=0)),
    ],
    ids=["plain", "EP", "masked", "padded, biases", "M=0"],
)
def test_flashinfer_is_right_with_swiglu_oai(scenario: Scenario) -> None:
    assert check(scenario, oracle(SglangFlashinfer)).verdict == "agrees"


@pytest.mark.parametrize(
    ("asked", "computed"),
    [
        (replace(BASE, activation=Situ()), replace(BASE, activation=SwigluOai(alpha=4.0, beta=1.0, limit=25.0))),
        (replace(BASE, activation=replace(OAI, alpha=0.0)), BASE),
        (replace(BASE, layer=Layer(routed_scaling_factor=2.0)), BASE),
    ],
    ids=["SiTU is SwiGLU", "alpha 0 is none", "the scaling factor is dropped"],
)
def test_flashinfer_computes_another_layer(asked: Scenario, computed: Scenario) -> None:
    """As sglang 0.5.23 does. Where this fails the package was fixed: update the ledger."""
    path = oracle(SglangFlashinfer)
    assert check(asked, path).kind == "impossible"
    assert answers_as(path, asked, computed)


@pytest.mark.parametrize("activation", [OAI, replace(OAI, alpha=1.25, limit=5.0), Situ()], ids=lambda a: a.kind)
def test_marlin_computes_what_is_configured(activation: SwigluOai | Situ) -> None:
    path = oracle(SglangMarlin)
    assert check(replace(BASE, activation=activation), path).verdict == "agrees"
    ranked = check(replace(BASE, activation=activation, parallel=Parallel(ep_size=2, ep_rank=1)), path)
    if sglang_layers.has_kernels():
        assert ranked.verdict == "agrees"
    else:
        assert ranked.reason == "expert parallelism"
