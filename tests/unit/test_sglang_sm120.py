"""SGLang's path for SM120 with the kernel emulated: what is wrong with it, and that the oracle itself is right.

What needs no sglang runs everywhere; the rest where the package is installed.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from findings import diverges

import oracles
from difftest.engine import Engine, check
from difftest.judging.compare import judge
from difftest.judging.outcome import Verdict
from difftest.ledger import cases
from difftest.options import installed_candidates
from difftest.report.issue import summary
from difftest.report.script import script
from difftest.stream import Stream
from oracles import formats, sglang_layers, sglang_package
from oracles.problem import Problem, build
from oracles.reference import enclose
from oracles.reproductions.expected import mxfp8
from oracles.sglang_path import Prepared, with_rows_in_turn
from oracles.sglang_sm120 import SglangEmulatedSm120, SglangEmulatedSm120Interleaved
from strategies import Layer, Parallel, Scenario, Shape, Situ, Swiglu, SwigluOai, scenarios

HALVES, IN_TURN = SglangEmulatedSm120(), SglangEmulatedSm120Interleaved()
GPT_OSS = SwigluOai(alpha=1.702, beta=1.0, limit=7.0)
SCENARIO = Scenario(
    shape=Shape(tokens=3, hidden=160, intermediate=96, experts=4, top_k=2), precision="mxfp8xmxfp4", activation=GPT_OSS
)
installed = pytest.mark.skipif(
    sglang_package.version() is None, reason="sglang is not installed: it is of the extra 'sglang', and no CI has it"
)


def as_read(problem: Problem) -> Problem:
    """The layer that SM120's processor makes of halves: row 0 is gate 0, row 1 up 0, row 2 gate 1."""

    def split(rows: torch.Tensor) -> torch.Tensor:
        return torch.cat((rows[:, 0::2], rows[:, 1::2]), dim=1)

    bias = None if problem.w13_bias is None else split(problem.w13_bias)
    return replace(problem, w13=split(problem.w13), w13_scale=split(problem.w13_scale), w13_bias=bias)


def test_rows_in_turn() -> None:
    problem = build(replace(SCENARIO, layer=Layer(biases="per_expert")))
    turned = with_rows_in_turn(problem)
    gate, up = problem.w13.split(96, dim=1)
    assert torch.equal(turned.w13[:, 0::2], gate)
    assert torch.equal(turned.w13[:, 1::2], up)
    back = as_read(turned)
    for name in ("w13", "w13_scale", "w13_bias"):
        assert torch.equal(getattr(back, name), getattr(problem, name)), name


@pytest.mark.parametrize("oracle", [HALVES, IN_TURN])
def test_what_it_promises(oracle: SglangEmulatedSm120) -> None:
    assert oracle.unsupported(SCENARIO) is None
    assert oracle.unsupported(replace(SCENARIO, activation=Situ())) is None
    assert oracle.unsupported(replace(SCENARIO, precision="bf16xmxfp4")) == "precision bf16xmxfp4"
    assert oracle.unsupported(replace(SCENARIO, activation=Swiglu())) == "activation swiglu"
    assert "beta" in str(oracle.unsupported(replace(SCENARIO, activation=SwigluOai(beta=0.0))))


@pytest.mark.parametrize("oracle", [HALVES, IN_TURN])
def test_it_is_an_emulation_and_never_runs_unasked(oracle: SglangEmulatedSm120) -> None:
    assert isinstance(oracles.get(oracle.name), type(oracle))
    assert oracle.name in oracles.emulations()
    assert oracle.name not in installed_candidates()


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, ...] | None] = [None, (0, 5, 22), (0, 5, 23)]

    def no_layers(_: str) -> None:
        raise ImportError("No module named 'msgspec'")

    monkeypatch.setattr(sglang_package, "version", lambda: found[0])
    monkeypatch.setattr(sglang_layers, "module", no_layers)
    told = []
    while found:
        told.append(HALVES.missing())
        del found[0]
    assert told == [
        f"not installed: {sglang_package.INSTALL}",
        f"sglang is older than 0.5.23: {sglang_package.INSTALL} --upgrade",
        f"sglang's layers cannot be imported (No module named 'msgspec'): {sglang_package.INSTALL}",
    ]


def test_the_plain_layer_of_a_script_quantises_as_the_format_says() -> None:
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(0)).bfloat16().double()
    x[0, :32] = 448 * 2.0**-3  # a power of two exactly at amax / 448
    x[1, :32] = 0
    assert torch.equal(mxfp8(x), formats.mxfp8_dequantize(*formats.mxfp8_quantize(x)).double())
    odd = torch.full((1, 96), torch.nan, dtype=torch.float64)
    odd[0, 32], odd[0, 64] = 2.0, -torch.inf
    assert mxfp8(odd)[0, :32].isnan().all()
    assert mxfp8(odd)[0, 32:34].tolist() == [2.0, 448 * 2.0**-7]
    assert mxfp8(odd)[0, 64].item() == 448 * 2.0**127  # whatever the sign


def test_a_report_says_that_the_kernel_is_emulated() -> None:
    (path,) = cases.SHIPPED.glob("sglang-emulated-sm120.reference.diverges.impossible-a96e7a31.*")
    assert "sglang-emulated-sm120, where the kernel is emulated:" in summary(cases.load(path))


# --- with the released package -------------------------------------------------------------------------------------


def answers(oracle: SglangEmulatedSm120, scenario: Scenario, meant: Problem) -> bool:
    """Whether what `oracle` gives for `scenario` is wrong for it, and right for the layer `meant`."""
    problem = build(scenario)
    output = oracle(oracle.prepare(problem))
    wrong = judge(output, enclose(problem, oracle.numerics), oracle.numerics).breaches
    return bool(wrong) and not judge(output, enclose(meant, oracle.numerics), oracle.numerics).breaches


@installed
def test_with_rows_in_turn_and_gpt_oss_s_activation_it_is_right() -> None:
    """So it is SGLang's processor and not this oracle that is wrong elsewhere: all that is drawn otherwise, padding of
    H and I, EP, masks, biases, special values, passes through the same tensors and the same call."""
    engine, seen = Engine(IN_TURN), []

    def visit(scenario: Scenario) -> None:
        plain = replace(scenario, activation=GPT_OSS, layer=replace(scenario.layer, routed_scaling_factor=1.0))
        outcome = engine.check(plain)
        assert outcome.verdict is Verdict.AGREES, str(outcome)
        seen.append(plain)

    Stream(scenarios(IN_TURN.capability, profile="quick"), base_seed=3, shard=0, count=12).each(visit)
    assert len(seen) == 12


@installed
def test_the_rows_of_two_halves_are_torn_apart() -> None:
    for layer in (Layer(), Layer(biases="per_expert")):
        scenario = replace(SCENARIO, layer=layer, parallel=Parallel(ep_size=2, ep_rank=1))
        assert answers(HALVES, scenario, as_read(build(scenario)))


@installed
@pytest.mark.parametrize(
    "activation",
    [Situ(), Situ(beta=2.0, linear_beta=8.0), replace(GPT_OSS, alpha=0.5), replace(GPT_OSS, limit=0.5)],
    ids=["SiTU", "SiTU's parameters", "alpha", "limit"],
)
def test_the_activation_is_always_gpt_oss_s(activation: Situ | SwigluOai) -> None:
    scenario = replace(SCENARIO, activation=activation)
    assert answers(IN_TURN, scenario, build(SCENARIO))


@installed
def test_routed_scaling_factor_is_dropped() -> None:
    assert answers(IN_TURN, replace(SCENARIO, layer=Layer(routed_scaling_factor=2.5)), build(SCENARIO))


@installed
def test_kimi_k3_s_layer_has_both_mistakes() -> None:
    assert answers(HALVES, replace(SCENARIO, activation=Situ()), as_read(build(SCENARIO)))


@installed
@pytest.mark.parametrize("oracle", [HALVES, IN_TURN])
@pytest.mark.parametrize("activation", [GPT_OSS, Situ()], ids=["SwiGLU-OAI", "SiTU"])
def test_a_report_s_script_says_what_the_oracle_does(
    oracle: SglangEmulatedSm120, activation: Situ | SwigluOai, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = replace(SCENARIO, activation=activation, layer=Layer(biases="per_expert"))
    space = {"__name__": "repro"}
    text = script(diverges(scenario, candidate=oracle.name), oracle.name, "title", "summary")
    sglang_layers.enter()  # as `difftest report` does where sglang's server lacks what it needs
    exec(compile(text, "repro.py", "exec"), space)
    right = oracle is IN_TURN and activation == GPT_OSS
    assert space["main"]() == (0 if right else 1)  # type: ignore[operator]  # the script's function
    said = capsys.readouterr().out
    rows = "0 of 192" if oracle is IN_TURN else "190 of 192"
    assert f"w13 of expert 0: {rows} rows are not the checkpoint's" in said
    assert "ActivationType.Swiglu with what is passed is swiglu_oai, alpha 1.702, beta 1, limit 7" in said


@installed
def test_a_processor_that_honours_the_order_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later release may be: the case then agrees, which is news to the ledger."""
    method = sglang_layers.module("srt.layers.quantization.mxfp4").Mxfp4MoEMethod
    released = method._process_weights_for_sm120_cutlass

    def repaired(self: object, layer: torch.nn.Module) -> None:
        if not layer.moe_runner_config.gate_up_interleaved:  # type: ignore[union-attr]  # SGLang's own
            for name in ("w13_weight", "w13_weight_scale", "w13_weight_bias"):
                rows = getattr(layer, name).data
                rows.copy_(torch.stack(rows.chunk(2, dim=1), dim=2).flatten(1, 2))
        released(self, layer)

    assert check(SCENARIO, HALVES, checks=()).verdict is Verdict.DIVERGES
    monkeypatch.setattr(method, "_process_weights_for_sm120_cutlass", repaired)
    assert check(SCENARIO, HALVES, checks=()).verdict is Verdict.AGREES


@installed
def test_the_layer_says_whether_its_rows_are_in_turn() -> None:
    for oracle in (HALVES, IN_TURN):
        prepared = oracle.prepare(build(SCENARIO))
        assert isinstance(prepared, Prepared)
        assert prepared.layer.moe_runner_config.gate_up_interleaved is (oracle is IN_TURN)  # type: ignore[union-attr]
