"""SGLang's serving path on a CPU: its weight processors and the arguments of the kernel's call, without a kernel.

What needs no sglang runs everywhere; the rest where the package is installed, with stand-ins for FlashInfer's helpers.
"""

from __future__ import annotations

import enum
import sys
from types import ModuleType

import pytest
import torch
from findings import diverges

from difftest.report.script import script
from oracles import sglang_layers, sglang_package, sglang_path
from oracles.problem import build
from oracles.sglang_path import Prepared, SglangFlashinfer, SglangMarlin
from strategies import Layer, MaskRow, Parallel, Routing, Scenario, Shape, Situ, Swiglu, SwigluOai, Values

installed = pytest.mark.skipif(
    sglang_package.version() is None, reason="sglang is not installed: it is of the extra 'sglang', and no CI has it"
)
SM90 = {"is_sm90": True, "is_sm100": False, "is_sm120": False}
SM120 = {"is_sm90": False, "is_sm100": False, "is_sm120": True}


def scenario(activation, **parts):
    shape = Shape(tokens=3, hidden=256, intermediate=128, experts=2, top_k=2)
    return Scenario(shape=shape, activation=activation, values=Values(rule="normal"), **parts)


def test_the_configuration_is_what_the_models_pass():
    config = {
        activation.kind: sglang_path.activation_config(build(scenario(activation)).activation)
        for activation in (Swiglu(), SwigluOai(alpha=1.5, limit=7.0), Situ(beta=4.0, linear_beta=25.0))
    }
    assert config == {
        "swiglu": {"activation": "silu"},
        "swiglu_oai": {"activation": "silu", "gemm1_alpha": 1.5, "gemm1_clamp_limit": 7.0},
        "situ": {"activation": "situ", "gemm1_alpha": 4.0, "gemm1_clamp_limit": 25.0},
    }


@pytest.mark.parametrize("oracle", [SglangFlashinfer(), SglangMarlin()])
def test_what_cannot_be_said_is_declined(oracle):
    assert "beta" in oracle.unsupported(scenario(SwigluOai(beta=0.0)))
    assert oracle.unsupported(scenario(SwigluOai(beta=1.0))) is None
    assert oracle.unsupported(scenario(Situ(per_expert=True))) == "activation parameters per expert"
    assert oracle.unsupported(scenario(Situ(), layer=Layer(routed_scaling_factor=2.5))) is None


@pytest.mark.skipif(sglang_package.version() is not None, reason="sglang is installed")
@pytest.mark.parametrize("oracle", [SglangFlashinfer(), SglangMarlin()])
def test_without_the_package_it_says_how_to_get_it(oracle):
    assert oracle.missing() == "not installed: pip install 'difftest[sglang]'"


def test_the_loader_fills_each_half_from_its_start():
    problem = build(scenario(Situ(), layer=Layer(biases="per_expert")))
    layer = torch.nn.Module()
    for name, shape in {
        "w13_weight": (2, 320, 192),
        "w13_weight_scale": (2, 320, 12),
        "w2_weight": (2, 384, 80),
        "w2_weight_scale": (2, 384, 5),
        "w13_weight_bias": (2, 320),
        "w2_weight_bias": (2, 384),
    }.items():
        dtype = torch.bfloat16 if name.endswith("bias") else torch.uint8
        setattr(layer, name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False))
    sglang_path.load(layer, problem)
    assert torch.equal(layer.w13_weight[:, :128, :128], problem.w13[:, :128])
    assert torch.equal(layer.w13_weight[:, 160:288, :128], problem.w13[:, 128:])
    assert int(layer.w13_weight[:, 128:160].sum()) == int(layer.w13_weight[:, :, 128:].sum()) == 0
    assert torch.equal(layer.w2_weight_scale[:, :256, :4], problem.w2_scale)
    assert torch.equal(layer.w13_weight_bias[:, 160:288], problem.w13_bias[:, 128:])
    assert torch.equal(layer.w2_weight_bias[:, :256], problem.w2_bias)


def test_nothing_stands_in_for_a_kernel_that_is_called():
    """It would leave the tables of expert parallelism as they were allocated, and that would be our mistake."""
    absent = sglang_layers._StandIn("sgl_kernel.moe")
    with pytest.raises(RuntimeError, match="sgl_kernel is not installed, and sglang calls it here"):
        absent.moe_align_block_size(1, 2)
    assert sglang_layers._StandIn("pynvml").nvmlInit(1, 2) is not None


@pytest.mark.skipif(sglang_layers.has_kernels(), reason="sgl_kernel is installed")
def test_expert_parallelism_of_marlin_is_promised_with_its_kernels_only():
    ranked = scenario(Situ(), parallel=Parallel(ep_size=2, ep_rank=1))
    assert SglangMarlin().unsupported(ranked) == "expert parallelism"
    assert SglangFlashinfer().unsupported(ranked) is None


# --- with the released package -------------------------------------------------------------------------------------


class ActivationType(enum.IntEnum):
    Swiglu = 3
    SwigluStep = 7
    Situ = 10


@pytest.fixture
def calls(monkeypatch):
    """FlashInfer as far as sglang calls it: helpers that permute nothing, and a kernel that notes its arguments."""
    seen = []

    def cutlass_fused_moe(**arguments):
        seen.append(arguments)
        arguments["output"].zero_()

    mxfp4 = sglang_layers.module("srt.layers.quantization.mxfp4")
    runner = sglang_layers.module("srt.layers.moe.moe_runner.flashinfer_cutlass")
    modules = {name: ModuleType(name) for name in ("flashinfer", "flashinfer.fused_moe", "flashinfer.fused_moe.core")}
    modules["flashinfer"].block_scale_interleave = lambda scale: scale
    modules["flashinfer.fused_moe"].cutlass_fused_moe = cutlass_fused_moe
    modules["flashinfer.fused_moe.core"].ActivationType = ActivationType
    for name, module in modules.items():
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(mxfp4, "_FI_HAS_SM90_CUTLASS_MXFP4", True)
    monkeypatch.setattr(mxfp4, "interleave_moe_weights_for_sm90_mixed_gemm", lambda w, _: w, raising=False)
    monkeypatch.setattr(mxfp4, "interleave_moe_scales_for_sm90_mixed_gemm", lambda s, group_size: s, raising=False)  # noqa: ARG005
    monkeypatch.setattr(runner, "is_flashinfer_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return seen


def processed(given, facts):
    problem = build(given)
    with sglang_layers.served("flashinfer_mxfp4", **facts):
        return problem, Prepared.of(problem, torch.device("cpu"), 256)


def called(given, facts, calls):
    problem, prepared = processed(given, facts)
    with sglang_layers.served("flashinfer_mxfp4", **facts):
        assert prepared.run().shape == problem.hidden_states.shape
    return calls[-1]


@installed
def test_sm90_puts_up_first(calls):  # noqa: ARG001
    problem, prepared = processed(scenario(Situ()), SM90)
    gate, up = problem.w13.split(128, dim=1)
    assert torch.equal(prepared.layer.w13_weight, torch.cat((up, gate), dim=1))


@installed
def test_sm120_takes_split_rows_for_interleaved_ones(calls):  # noqa: ARG001
    """The rows of a model whose gate and up are two halves are torn apart, whatever `gate_up_interleaved` says."""
    problem, prepared = processed(scenario(Situ()), SM120)
    assert prepared.layer.moe_runner_config.gate_up_interleaved is False
    gate, up = problem.w13.split(128, dim=1)
    for got, even, odd in (
        (prepared.layer.w13_weight, problem.w13[:, 0::2], problem.w13[:, 1::2]),
        (prepared.layer.w13_weight_scale, problem.w13_scale[:, 0::2], problem.w13_scale[:, 1::2]),
    ):
        assert torch.equal(got, torch.cat((odd, even), dim=1))
    assert not torch.equal(prepared.layer.w13_weight, torch.cat((up, gate), dim=1))


@installed
def test_sm120_drops_the_activations_parameters(calls):  # noqa: ARG001
    _, prepared = processed(scenario(SwigluOai(alpha=1.25, limit=5.0)), SM120)
    assert prepared.layer.swiglu_alpha.tolist() == pytest.approx([1.702] * 2)
    assert prepared.layer.swiglu_limit.tolist() == [7.0] * 2


@installed
def test_sm90_asks_the_kernel_for_swiglu_where_the_model_asks_for_situ(calls):
    arguments = called(scenario(Situ(beta=4.0, linear_beta=25.0)), SM90, calls)
    assert arguments["activation_type"] is ActivationType.Swiglu
    assert not any("situ" in name for name in arguments)
    parameters = [arguments[f"swiglu_{name}"].tolist() for name in ("alpha", "beta", "limit")]
    assert parameters == [[4.0, 4.0], [1.0, 1.0], [25.0, 25.0]]


@installed
def test_sm90_plain_swiglu_gets_the_parameters_of_gpt_oss(calls):
    arguments = called(scenario(Swiglu()), SM90, calls)
    assert arguments["swiglu_alpha"].tolist() == pytest.approx([1.702] * 2)
    assert arguments["swiglu_limit"].tolist() == [7.0] * 2


@installed
@pytest.mark.parametrize(
    "given",
    [
        scenario(Situ(beta=4.0, linear_beta=25.0)),
        scenario(SwigluOai(alpha=1.25, limit=5.0), layer=Layer(biases="per_expert", routed_scaling_factor=2.5)),
        scenario(Situ(), parallel=Parallel(ep_size=2, ep_rank=1)),
    ],
    ids=["situ", "biases", "EP"],
)
def test_a_report_s_script_calls_the_kernel_as_the_oracle_does(given, calls, monkeypatch):
    expected = called(given, SM90, calls)
    text = script(diverges(given, candidate="sglang-flashinfer"), "sglang-flashinfer", "title", "summary")
    space = {"__name__": "repro"}
    exec(compile(text, "repro.py", "exec"), space)
    monkeypatch.setitem(space, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with sglang_layers.module("srt.runtime_context").override_platform(**SM90):
        assert space["main"]() == 1  # a kernel that answers 0
    arguments = calls[-1]
    assert arguments.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(arguments[name].cpu().view(torch.uint8), value.cpu().view(torch.uint8)), name
        elif not isinstance(value, list):
            assert arguments[name] == value, name


@installed
def test_sm90_takes_an_alpha_of_0_for_none(calls):
    arguments = called(scenario(SwigluOai(alpha=0.0)), SM90, calls)
    assert arguments["swiglu_alpha"].tolist() == pytest.approx([1.702] * 2)


@installed
def test_sm90_hands_on_the_placement_and_not_the_scaling_factor(calls):
    given = scenario(SwigluOai(), layer=Layer(routed_scaling_factor=2.5), parallel=Parallel(ep_size=2, ep_rank=1))
    arguments = called(given, SM90, calls)
    assert (arguments["ep_size"], arguments["ep_rank"]) == (2, 1)
    problem = build(given)
    assert torch.equal(arguments["token_selected_experts"], problem.topk_ids)
    assert torch.equal(arguments["token_final_scales"], problem.topk_weights)


def marlin_call(given, monkeypatch, **config):
    """Arguments of sglang's Marlin layer for a configuration; its weights are not looked at."""
    seen = {}

    def fused_marlin_moe(**arguments):
        seen.update(arguments)
        return torch.zeros_like(arguments["hidden_states"])

    layer_module = sglang_layers.module("srt.layers.moe.fused_moe_triton.fused_marlin_moe")
    utils = sglang_layers.module("srt.layers.quantization.marlin_utils")
    monkeypatch.setattr(layer_module, "fused_marlin_moe", fused_marlin_moe)
    monkeypatch.setattr(utils, "marlin_make_workspace", lambda *_, **__: None)
    problem = build(given)
    with sglang_layers.served("marlin", **SM90):
        marlin = sglang_layers.module("srt.layers.moe.moe_runner.marlin")
        layer = sglang_path.new_layer(problem, 1)
        for name, value in config.items():
            setattr(layer.moe_runner_config, name, value)
        backend = sglang_layers.module("srt.layers.moe.utils").MoeRunnerBackend.MARLIN
        runner = sglang_layers.module("srt.layers.moe.moe_runner").MoeRunner(backend, layer.moe_runner_config)
        dispatched = sglang_path._dispatched(problem, torch.device("cpu"), layer)
        method = sglang_layers.module("srt.layers.quantization.mxfp4_marlin_moe")
        layer.w13_weight, layer.w2_weight = problem.w13, problem.w2
        layer.w13_weight_scale = problem.w13_scale.view(torch.float8_e8m0fnu)
        layer.w2_weight_scale = problem.w2_scale.view(torch.float8_e8m0fnu)
        info = method.build_marlin_moe_quant_info(layer)
        assert isinstance(info, marlin.MarlinMoeQuantInfo)
        runner.run(dispatched, info)
    return problem, seen


@installed
def test_marlin_is_told_of_situ_and_both_parameters(monkeypatch):
    _, arguments = marlin_call(scenario(Situ(beta=3.0, linear_beta=20.0)), monkeypatch)
    assert [arguments[name] for name in ("activation", "gemm1_alpha", "clamp_limit")] == ["situ", 3.0, 20.0]


@installed
def test_marlin_is_told_of_alpha_and_limit(monkeypatch):
    _, arguments = marlin_call(scenario(SwigluOai(alpha=1.25, limit=10.0)), monkeypatch)
    assert [arguments[name] for name in ("activation", "gemm1_alpha", "clamp_limit")] == ["silu", 1.25, 10.0]


@installed
def test_marlin_has_no_limit_where_none_is_configured(monkeypatch):
    """Then its SiTU leaves `up` linear, where FlashInfer's has 25 for a default."""
    _, arguments = marlin_call(scenario(Situ()), monkeypatch, gemm1_clamp_limit=None)
    assert arguments["clamp_limit"] is None


@installed
def test_marlin_gets_the_ranks_own_ids_and_a_map_with_expert_parallelism(monkeypatch):
    given = scenario(Situ(), parallel=Parallel(ep_size=2, ep_rank=1), routing=Routing(edits=(MaskRow(token=1),)))
    problem, arguments = marlin_call(given, monkeypatch)
    assert torch.equal(arguments["topk_ids"].long(), problem.local_ids)
    assert arguments["expert_map"].tolist() == [-1, 0]
    assert arguments["global_num_experts"] == 2
    assert torch.equal(arguments["topk_weights"], problem.topk_weights)  # without routed_scaling_factor


@installed
def test_deepseek_v4s_method_takes_a_clamp_without_alpha_for_swiglu_step():
    method = sglang_layers.module("srt.layers.quantization.mxfp4_flashinfer_cutlass_moe")
    for alpha, step in ((None, True), (4.0, False)):
        problem = build(scenario(Situ()))
        with sglang_layers.served("flashinfer_mxfp4", **SM90):
            made = method.Mxfp4FlashinferCutlassMoEMethod.__new__(method.Mxfp4FlashinferCutlassMoEMethod)
            made._use_mxfp8_act_scaling = False
            layer = sglang_path.new_layer(problem, 1)
            layer.w13_weight = problem.w13
            layer.moe_runner_config.gemm1_alpha = alpha
            made.create_moe_runner(layer, layer.moe_runner_config)
        assert made._use_swiglu_step is step


@installed
def test_a_deferred_finalize_is_not_heard_by_the_cutlass_runner(calls):
    """Kimi-K3's model defers it wherever the backend is flashinfer_mxfp4, and would read `gemm2_out` of the answer."""
    problem, prepared = processed(scenario(Situ()), SM90)
    trtllm = sglang_layers.module("srt.layers.moe.moe_runner.flashinfer_trtllm")
    with sglang_layers.served("flashinfer_mxfp4", **SM90), trtllm.flashinfer_trtllm_deferred_finalize_context():
        answer = prepared.method.apply(prepared.layer, prepared.dispatched).hidden_states
    assert isinstance(answer, torch.Tensor)
    assert answer.shape == problem.hidden_states.shape
    assert len(calls) == 1
