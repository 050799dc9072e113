"""The call of FlashInfer in a report's script is the oracle's, argument by argument."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from findings import diverges

from difftest.report.script import script as made
from oracles import cutlass_sm90, cutlass_sm120, reproductions
from oracles import flashinfer_package as package
from oracles.cutlass_path import Path as CallPath
from oracles.problem import Problem, build
from strategies import Scenario, Shape
from strategies.scenario import Execution, Precision

SHAPE = Shape(tokens=3, hidden=256, intermediate=128, experts=2, top_k=2)

MXFP8 = Scenario(shape=SHAPE, precision="mxfp8xmxfp4")
TACTIC = Scenario(shape=SHAPE, execution=Execution(tactic=3))


def cutlass_fused_moe(*, situ_beta: Any = None) -> None:
    del situ_beta


class Runner:
    """Tells which tactics fit; only where it is made as the oracle makes it. `made` are its keywords."""

    def __init__(self, **made: Any) -> None:
        self.made = made
        self.fused_moe_runner = self

    def get_gemm1_tactic_count(self) -> int:
        return 4

    def get_valid_tactics_for_shape(self, gemm: int, rows: int, columns: int) -> list[int]:
        return [gemm, rows, columns, len(self.made)]


@pytest.fixture
def runners() -> list[Runner]:
    return []


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, runners: list[Runner]) -> Any:
    """The module of a script, where a GPU is the CPU and the package's own conversions are plain marks."""
    made = SimpleNamespace(MoERunner=lambda **keywords: runners.append(Runner(**keywords)) or runners[-1])
    core = SimpleNamespace(get_cutlass_fused_moe_module=lambda _: made)
    fused_moe = SimpleNamespace(
        ActivationType=SimpleNamespace(Swiglu=3),
        cutlass_fused_moe=cutlass_fused_moe,
        interleave_moe_weights_for_sm90_mixed_gemm=lambda packed, kind: packed ^ len(kind),
        interleave_moe_scales_for_sm90_mixed_gemm=lambda scales: scales.repeat_interleave(4, -1),
    )
    flashinfer, inside = ModuleType("flashinfer"), ModuleType("flashinfer.fused_moe")
    vars(inside).update(vars(fused_moe), core=core)
    flashinfer.fused_moe = inside  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    monkeypatch.setitem(sys.modules, "flashinfer.fused_moe", inside)
    monkeypatch.setattr(package, "module", lambda name: core if name == "fused_moe.core" else inside)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    spec = importlib.util.spec_from_file_location("script", Path(reproductions.__path__[0]) / "cutlass.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def namespace(problem: Problem) -> SimpleNamespace:
    names = "hidden_states hidden_q hidden_scale topk_ids topk_weights w13 w13_scale w2 w2_scale w13_bias w2_bias"
    names += " num_experts ep_size ep_rank routed_scaling_factor output_dtype"
    found = {name: getattr(problem, name) for name in names.split()}
    return SimpleNamespace(
        **found, activation="swiglu", moe_tp_size=1, moe_tp_rank=0, pdl=None, fused_finalize=None, tactic=None, poison=0
    )


@pytest.mark.parametrize(
    ("precision", "path"), [("bf16xmxfp4", cutlass_sm90.PATH), ("mxfp8xmxfp4", cutlass_sm120.path((0, 7, 0)))]
)
def test_weights_scales_and_states_are_the_oracles(script: Any, precision: Precision, path: CallPath) -> None:
    problem = build(Scenario(shape=SHAPE, precision=precision))
    expected = {**path.states(problem, torch.clone), **path.layer(problem, torch.clone), **path.flags}
    call = script.arguments(namespace(problem))
    own = {"token_selected_experts", "token_final_scales", "output_dtype", "tp_size", "tp_rank", "ep_size", "ep_rank"}
    assert set(call) - own - {"enable_pdl", "use_fused_finalize", "activation_type"} == set(expected)
    for name, value in expected.items():
        pairs = zip(value, call[name], strict=True) if isinstance(value, list) else [(value, call[name])]
        for mine, its in pairs:
            if isinstance(mine, bool):
                assert its is mine, name
            else:
                assert (its.dtype, its.shape) == (mine.dtype, mine.shape), name
                assert torch.equal(its.view(torch.uint8), mine.view(torch.uint8)), name
    assert (call["input"].dtype, call["fc2_expert_weights"].dtype) == (path.x_dtype, path.weight_dtype)


def test_a_tactic_is_the_oracles(script: Any, runners: list[Runner]) -> None:
    problem = build(Scenario(shape=SHAPE))
    for tactic in range(6):
        p = namespace(problem)
        p.tactic = tactic
        expected = package.Tactics.load().choose(tactic, problem.hidden, problem.intermediate)
        assert script.arguments(p)["profile_ids"] == expected
    assert runners[0].made == runners[1].made
    assert "profile_ids" not in script.arguments(namespace(problem))


@pytest.mark.parametrize("scenario", [TACTIC, MXFP8], ids=["tactic", "mxfp8"])
def test_a_script_is_made_of_both(scenario: Scenario) -> None:
    text = made(diverges(scenario, candidate="cutlass"), "cutlass", "title", "summary")
    compile(text, "repro.py", "exec")
    asked = text[text.index("QUESTIONS = [") :]
    assert f"'tactic': {scenario.execution.tactic}" in asked
    assert ('"hidden_q": (' in asked) == (scenario.precision == "mxfp8xmxfp4")
