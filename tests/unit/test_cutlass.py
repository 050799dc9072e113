"""The CUTLASS oracle where there is no card: layouts, what is promised, what is missing, and the call's arguments.

The kernel's place takes a stand-in that reads its arguments as the kernel does, and answers with the reference.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import types
from dataclasses import replace
from enum import IntEnum
from typing import Any

import pytest
import torch

from oracles import busy, cutlass_layouts, formats
from oracles import flashinfer_package as package
from oracles.base import Oracle, capability_of, missing_of
from oracles.cutlass import Cutlass
from oracles.cutlass_graph import CutlassGraph
from oracles.problem import ActivationParams, Problem, build
from oracles.reference import Reference
from strategies.scenario import (
    Activation,
    DuplicateSlot,
    Execution,
    Layer,
    MaskRow,
    Parallel,
    Routing,
    Scenario,
    Shape,
    Situ,
    Swiglu,
    SwigluOai,
    Values,
)

BASE = Scenario(shape=Shape(tokens=5, hidden=256, intermediate=128, experts=4, top_k=2))


def _random(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 16, 64), (3, 48, 192), (2, 128, 512), (0, 16, 64)])
def test_weights_come_back(shape: tuple[int, int, int]) -> None:
    experts, rows, columns = shape
    packed = _random(experts, rows, columns // 2)
    weight = cutlass_layouts.interleave_weight(packed)
    assert weight.shape == packed.shape
    assert weight.is_contiguous()
    assert torch.equal(cutlass_layouts.deinterleave_weight(weight), packed)
    assert torch.equal(cutlass_layouts.interleave_weight(cutlass_layouts.deinterleave_weight(packed)), packed)


@pytest.mark.parametrize("shape", [(1, 64, 128), (3, 192, 384), (0, 64, 128)])
def test_scales_come_back(shape: tuple[int, int, int]) -> None:
    experts, rows, columns = shape
    scale = _random(experts, rows, columns // 32)
    folded = cutlass_layouts.fold_scale(scale)
    assert folded.shape == (experts, rows // 64, columns // 128, 16, 16)
    assert folded.is_contiguous()
    assert torch.equal(cutlass_layouts.unfold_scale(folded), scale)


def test_halves_come_back() -> None:
    rows = _random(2, 6, 5)
    swapped = cutlass_layouts.swap_halves(rows)
    assert torch.equal(swapped[:, :3], rows[:, 3:])
    assert torch.equal(cutlass_layouts.swap_halves(swapped), rows)


def test_the_kernels_converter_reads_the_codes_of_a_block() -> None:
    """It makes two bfloat16 of a word by one shift and one mask: the sign, and three bits across exponent and mantissa.

    Word j of a row's 64 columns is a thread's: eight codes of rows r and r + 8, four columns of an instruction of 16.
    """
    codes = _random(32, 128) & 15
    words = cutlass_layouts.interleave_weight(formats.pack(codes)[None])[0].view(torch.int32).long() & 0xFFFFFFFF
    value = formats.e2m1_decode(codes)
    for row in range(32):
        block, inner = row // 16 * 16, row % 8
        for word in range(16):
            instruction = 4 * (word // 8) + 2 * (word % 8 // 4) + row % 16 // 8
            column = 16 * instruction + 2 * (word % 4)
            raw = int(words[row, word])
            pairs = (
                raw & 0x81C081C0,
                (raw << 3) & 0x81C081C0,
                (raw << 6) & 0x81C081C0,
                (raw << 1) & 0x80008000 | (raw >> 3) & 0x01800180 | (raw >> 7) & 0x00400040,
            )
            places = ((0, 0), (8, 0), (0, 8), (8, 8))
            for pair, (lower, right) in zip(pairs, places, strict=True):
                for odd in range(2):
                    bits = torch.tensor([pair >> 16 * odd & 0xFFFF]).to(torch.int16).view(torch.bfloat16)
                    wanted = value[block + inner + lower, column + right + odd]
                    assert float(bits) * 2.0**126 == float(wanted)


def test_every_scale_is_where_the_kernel_reads_it() -> None:
    scale = _random(2, 128, 8)
    folded = cutlass_layouts.fold_scale(scale)
    for row in (0, 15, 16, 63, 64, 127):
        for group in range(8):
            place = folded[1, row // 64, group // 4, row % 16, row % 64 // 16 * 4 + group % 4]
            assert place == scale[1, row, group]


def test_shapes_that_do_not_fit_are_named() -> None:
    for shape in ((1, 24, 32), (1, 16, 16)):
        with pytest.raises(ValueError, match=r"weight.shape = .*N must be a multiple of 16 and K/2 a multiple of 32"):
            cutlass_layouts.interleave_weight(_random(*shape))
        with pytest.raises(ValueError, match=r"weight.shape"):
            cutlass_layouts.deinterleave_weight(_random(*shape))
    for shape in ((1, 32, 4), (1, 64, 6)):
        with pytest.raises(ValueError, match=r"scale.shape = .*N must be a multiple of 64 and K/32 a multiple of 4"):
            cutlass_layouts.fold_scale(_random(*shape))


# --- what is promised, and what is missing ---------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the installed version."""

    def install(version: str | None) -> None:
        def found(name: str) -> str:
            if name == "flashinfer-python" and version is not None:
                return version
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", found)
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None if version is None else object())

    return install


def test_versions(installed: Any) -> None:
    for text, numbers in (("0.6.18", (0, 6, 18)), ("0.7.0rc1+cu130", (0, 7, 0)), ("0.7.4.post1", (0, 7, 4))):
        installed(text)
        assert package.version() == numbers
    installed(None)
    assert package.version() is None


def test_they_are_oracles() -> None:
    for oracle in (Cutlass(), CutlassGraph()):
        assert isinstance(oracle, Oracle)
        assert capability_of(oracle) is oracle.capability
        assert missing_of(oracle) == oracle.missing()


def test_situ_is_promised_where_the_package_lists_it(installed: Any) -> None:
    for version in ("0.6.18", "0.7.0"):
        installed(version)
        assert Cutlass().unsupported(replace(BASE, activation=Situ())) is None


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        (replace(BASE, shape=replace(BASE.shape, hidden=192)), "H is not a multiple of 128"),
        (replace(BASE, layer=Layer(moe_tp_size=2)), "I of a rank is not a multiple of 128"),
        (replace(BASE, output_dtype="float16"), "output dtype float16"),
        (replace(BASE, execution=Execution(mode="graph")), "execution mode graph"),
        (replace(BASE, execution=Execution(tactic=0)), "a tactic beyond its 0"),
        (replace(BASE, precision="mxfp8xmxfp4"), "precision mxfp8xmxfp4"),
    ],
)
def test_what_is_not_promised(scenario: Scenario, reason: str) -> None:
    assert Cutlass().unsupported(scenario) == reason


def test_known_mistakes_are_promised() -> None:
    for scenario in (
        replace(BASE, shape=replace(BASE.shape, tokens=0)),
        replace(BASE, routing=Routing(edits=(DuplicateSlot(token=1, slot=1, source=0),))),
        replace(BASE, values=Values(scale_low=0, scale_high=255)),
    ):
        assert Cutlass().unsupported(scenario) is None


def test_situ_is_promised_from_the_version_that_lists_it(installed: Any) -> None:
    for version, promised in (("0.6.17", False), ("0.6.18", True), ("0.7.0", True)):
        installed(version)
        assert ("situ" in Cutlass().capability.activations) is promised


def test_another_stream_is_busy_where_the_scenario_says_so(monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    queued: list[torch.device] = []
    monkeypatch.setattr(busy, "on", lambda device: types.SimpleNamespace(queue=lambda: queued.append(device)))
    call(build(BASE))
    assert not queued
    call(build(replace(BASE, execution=Execution(busy=True))))
    assert queued == [torch.device("cpu")]


def test_the_graph_oracle_promises_graphs_only() -> None:
    assert CutlassGraph().unsupported(BASE) == "execution mode eager"
    assert CutlassGraph().unsupported(replace(BASE, execution=Execution(mode="graph", replays=("all", "same")))) is None
    assert CutlassGraph().name == "cutlass-graph"


def test_what_is_missing_is_told_in_order(installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    installed(None)
    assert Cutlass().missing() == f"not installed: {package.INSTALL}"
    installed("0.6.16")
    assert Cutlass().missing() == f"flashinfer-python is older than 0.6.17: {package.INSTALL} --upgrade"
    installed("0.6.18")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Cutlass().missing() == "no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert Cutlass().missing() == (
        "needs a device of SM90 (bf16 x MXFP4) or SM120 (MXFP8 x MXFP4), and this one is SM80"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))

    def broken(name: str) -> Any:
        raise ImportError(f"No module named 'tvm_ffi' in {name}")

    monkeypatch.setattr(package, "module", broken)
    assert "flashinfer cannot be imported (No module named 'tvm_ffi'" in str(Cutlass().missing())
    env = types.SimpleNamespace(FLASHINFER_AOT_DIR=tmp_path / "aot", FLASHINFER_JIT_DIR=tmp_path / "jit")
    monkeypatch.setattr(package, "module", {"fused_moe": None, "jit.env": env}.__getitem__)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Cutlass().missing() == "FlashInfer's SM90 kernels are not built, and there is no nvcc"
    built = tmp_path / "jit" / "fused_moe_90"
    built.mkdir(parents=True)
    (built / "fused_moe_90.so").touch()
    assert Cutlass().missing() is None


# --- the call --------------------------------------------------------------------------------------------------------


class ActivationType(IntEnum):
    """The package's own numbers."""

    Swiglu = 3
    SwigluBias = 5
    Situ = 10


_PARAMETERS = {
    ActivationType.Swiglu: ("swiglu", {}),
    ActivationType.SwigluBias: (
        "swiglu_oai",
        {"alpha": "swiglu_alpha", "beta": "swiglu_beta", "limit": "swiglu_limit"},
    ),
    ActivationType.Situ: ("situ", {"beta": "situ_beta", "linear_beta": "situ_linear_beta"}),
}


class StandIn:
    """In the place of `flashinfer.fused_moe`: reads the arguments as the kernel does, answers with the reference."""

    ActivationType = ActivationType

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.given: dict[str, Any] = {}
        self.found_workspace: list[int] = []
        self.found_output = torch.empty(0)

    def interleave_moe_weights_for_sm90_mixed_gemm(self, weight: torch.Tensor, kind: str) -> torch.Tensor:
        assert kind == "fp4"
        return cutlass_layouts.interleave_weight(weight)

    def interleave_moe_scales_for_sm90_mixed_gemm(self, scale: torch.Tensor) -> torch.Tensor:
        return cutlass_layouts.fold_scale(scale)

    def cutlass_fused_moe_workspace_size(self, tokens: int, *_: int, **keywords: Any) -> int:
        assert tokens > 0
        assert (keywords["x_dtype"], keywords["weight_dtype"]) == (torch.bfloat16, torch.uint8)
        assert keywords["use_w4_group_scaling"]
        return 64

    def cutlass_fused_moe(
        self, *, situ_beta: torch.Tensor | None = None, situ_linear_beta: torch.Tensor | None = None, **given: Any
    ) -> None:
        if situ_beta is not None:
            given |= {"situ_beta": situ_beta, "situ_linear_beta": situ_linear_beta}
        self.given = given
        self.found_workspace = given["workspace_buffer"].unique().tolist()
        self.found_output = given["output"].clone()
        kind, names = _PARAMETERS[given["activation_type"]]
        scales = [cutlass_layouts.unfold_scale(scale.view(torch.uint8)) for scale in given["quant_scales"]]
        assert set(names.values()) == {name for name in given if name.startswith(("swiglu_", "situ_"))}
        biases = (given.get("fc1_expert_biases"), given.get("fc2_expert_biases"))
        assert (biases[0] is None) == (biases[1] is None)
        read = replace(
            self.problem,
            hidden_states=given["input"],
            topk_ids=given["token_selected_experts"],
            topk_weights=given["token_final_scales"],
            routed_scaling_factor=1.0,
            w13=cutlass_layouts.swap_halves(cutlass_layouts.deinterleave_weight(given["fc1_expert_weights"])),
            w13_scale=cutlass_layouts.swap_halves(scales[0]),
            w2=cutlass_layouts.deinterleave_weight(given["fc2_expert_weights"]),
            w2_scale=scales[1],
            w13_bias=None if biases[0] is None else cutlass_layouts.swap_halves(biases[0]),
            w2_bias=biases[1] if given["tp_rank"] == 0 else None,
            activation=ActivationParams(kind=kind, **{name: given[theirs] for name, theirs in names.items()}),
            ep_size=given["ep_size"],
            ep_rank=given["ep_rank"],
            num_experts=len(given["fc1_expert_weights"]) * given["ep_size"],
        )
        given["output"].copy_(Reference()(read))


@pytest.fixture
def call(installed: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ask `Cutlass` of 0.7.0, with a stand-in for the kernel: (stand-in, its answer)."""
    installed("0.7.0")
    monkeypatch.setattr(package, "device_for", lambda tensor: tensor.device)
    monkeypatch.setattr(package, "current", lambda _: contextlib.nullcontext())

    def ask(problem: Problem) -> tuple[StandIn, torch.Tensor]:
        kernel = StandIn(problem)
        monkeypatch.setattr(package, "module", {"fused_moe": kernel}.__getitem__)
        oracle = Cutlass()
        return kernel, oracle(oracle.prepare(problem))

    return ask


@pytest.mark.parametrize(
    "activation", [Swiglu(), SwigluOai(per_expert=True), Situ(per_expert=True), SwigluOai(limit=float("inf"))]
)
@pytest.mark.parametrize(("ep_size", "ep_rank"), [(1, 0), (2, 1)])
@pytest.mark.parametrize(("tp_size", "tp_rank"), [(1, 0), (2, 0), (2, 1)])
def test_the_kernel_is_asked_the_scenarios_question(
    call: Any, activation: Activation, ep_size: int, ep_rank: int, tp_size: int, tp_rank: int
) -> None:
    scenario = replace(
        BASE,
        shape=replace(BASE.shape, intermediate=256),
        activation=activation,
        parallel=Parallel(ep_size=ep_size, ep_rank=ep_rank),
        layer=Layer(biases="per_expert", moe_tp_size=tp_size, moe_tp_rank=tp_rank, routed_scaling_factor=2.5),
        routing=Routing(edits=(MaskRow(token=3),)),
        execution=Execution(padding=2),
    )
    problem = build(scenario)
    kernel, output = call(problem)
    assert torch.equal(output, Reference()(problem))
    given = kernel.given
    assert given["use_w4_group_scaling"]
    assert (given["tp_size"], given["tp_rank"]) == (tp_size, tp_rank)
    assert torch.equal(given["token_selected_experts"], problem.topk_ids)  # global ids
    assert all(tensor.is_contiguous() for tensor in given.values() if isinstance(tensor, torch.Tensor))
    for name in ("fc1_expert_biases", "fc2_expert_biases"):
        assert given[name].dtype == torch.bfloat16


def test_without_biases_none_are_passed(call: Any) -> None:
    kernel, _ = call(build(BASE))
    assert "fc1_expert_biases" not in kernel.given
    assert "profile_ids" not in kernel.given


def test_an_empty_batch_is_the_kernels_to_answer(call: Any) -> None:
    _, output = call(build(replace(BASE, shape=replace(BASE.shape, tokens=0))))
    assert output.shape == (0, 256)


def test_switches_are_passed(call: Any) -> None:
    for pdl in (None, False, True):
        for fused in (None, False, True):
            kernel, _ = call(build(replace(BASE, execution=Execution(pdl=pdl, fused_finalize=fused))))
            assert kernel.given["enable_pdl"] is pdl
            assert kernel.given["use_fused_finalize"] is (fused is not False)


@pytest.mark.parametrize("byte", [0, 0x7F, 0xFF])
def test_output_and_workspace_are_poisoned_before_the_call(call: Any, byte: int) -> None:
    kernel, _ = call(build(replace(BASE, execution=Execution(poison=byte))))
    assert kernel.found_workspace == [byte]


def test_nothing_of_the_problem_is_handed_out(call: Any) -> None:
    """The graph oracle writes to what it captured."""
    problem = build(BASE)
    kernel, _ = call(problem)
    kernel.given["input"].zero_()
    kernel.given["token_selected_experts"].fill_(-1)
    kernel.given["token_final_scales"].zero_()
    assert problem.hidden_states.any()
    assert (problem.topk_ids >= 0).all()
    assert problem.topk_weights.any()


def test_the_callers_output_is_used_as_it_is(call: Any) -> None:
    problem = build(BASE)
    kernel, want = call(problem)
    assert not kernel.found_output.any()  # poisoned
    oracle = Cutlass()
    output = torch.full_like(want, 7.0)
    oracle.run_into(oracle.prepare(problem), output)
    assert kernel.given["output"] is output
    assert (kernel.found_output == 7.0).all()
    assert torch.equal(output, want)


def test_situ_can_be_asked_of_a_version_without_its_parameters(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, _ = call(build(BASE))  # puts the stand-in in its place
    monkeypatch.setattr(kernel, "cutlass_fused_moe", lambda **_: None)
    arguments = Cutlass().prepare(build(replace(BASE, activation=Situ()))).arguments
    assert arguments["activation_type"] is ActivationType.Situ
    assert not any(name.startswith("situ_") for name in arguments)


def test_an_unknown_activation_is_named(call: Any) -> None:
    problem = build(BASE)
    with pytest.raises(ValueError, match="activation 'geglu'"):
        call(replace(problem, activation=ActivationParams(kind="geglu")))


def test_a_tactic_is_counted_round_among_those_that_fit() -> None:
    asked = []

    def fit(stage: int, rows: int, columns: int) -> list[int]:
        asked.append((stage, rows, columns))
        return [0, 3, 5] if stage == 1 else [10, 11]

    tactics = package.Tactics(runner=types.SimpleNamespace(get_valid_tactics_for_shape=fit), count=6)
    assert [tactics.choose(tactic, 256, 128) for tactic in (0, 1, 5)] == [[0, 10], [3, 11], [5, 11]]
    assert asked[:2] == [(1, 256, 256), (2, 256, 128)]


def test_a_package_without_a_runner_has_no_tactics_to_choose_from(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.6.17's kernels cannot be asked: a scenario that names a tactic is unsupported there, not a crash."""
    monkeypatch.setattr(package, "missing", lambda: None)
    monkeypatch.setattr(package.Tactics, "load", lambda: package.Tactics(runner=None, count=6))
    chosen = replace(BASE, execution=Execution(tactic=3))
    for version, refused in (("0.6.17", True), ("0.6.18", False)):
        installed(version)
        assert (Cutlass(tactics=True).unsupported(chosen) is not None) == refused
