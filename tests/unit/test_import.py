"""Recorded calls: the file, the scenario that takes tensors from it, and the case that keeps it."""

# ruff: noqa: ARG001, ARG005  # stand-ins for a kernel have its parameters

from __future__ import annotations

import dataclasses
from enum import IntEnum
from pathlib import Path

import pytest
import torch
from findings import case, diverges
from safetensors.torch import load_file, save_file

from difftest.ledger import cases
from difftest.recorder import NotRecorded, record
from difftest.shrinking.moves import moves
from oracles import captures, cutlass_layouts, recording
from oracles.problem import Problem, build
from strategies import (
    DuplicateSlot,
    InvalidScenario,
    Layer,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    Shape,
    Situ,
    ValueEdit,
    Values,
    recordings,
)
from strategies.capture import Capture

CALL = Scenario(
    shape=Shape(tokens=5, hidden=128, intermediate=64, experts=6, top_k=3),
    parallel=Parallel(ep_size=2, ep_rank=1),
    layer=Layer(biases="per_expert"),
    routing=Routing(seed=3, edits=(MaskSlot(token=1, slot=2), DuplicateSlot(token=4, slot=0, source=1))),
    values=Values(edits=(ValueEdit(tensor="hidden_states", index=(2, 7), value="nan"),)),
)
NAMES = tuple(recording.TENSORS)


def tensors(problem: Problem, names: tuple[str, ...] = NAMES) -> dict[str, torch.Tensor]:
    found = {name: getattr(problem, name) for name in names}
    return {name: tensor.clone() for name, tensor in found.items() if tensor is not None}


@pytest.fixture(autouse=True)
def _no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(recordings.VARIABLE, "")


def saved(path: Path, given: dict[str, torch.Tensor], **metadata: str) -> Path:
    save_file(given, path, metadata={"ep_size": "2", "ep_rank": "1"} | metadata)
    recordings.add_folder(path.parent)
    return path


def whole(path: Path) -> Scenario:
    return recording.load(path).whole(recordings.digest_of(path))


@pytest.fixture
def call(tmp_path: Path) -> Scenario:
    return whole(saved(tmp_path / "call.safetensors", tensors(build(CALL))))


def test_a_whole_call_gives_its_own_tensors(call: Scenario) -> None:
    problem = build(call)
    for name, tensor in tensors(build(CALL)).items():
        assert torch.equal(getattr(problem, name).view(torch.uint8), tensor.view(torch.uint8)), name
    assert problem.recorded


def test_the_json_form_is_read_again(call: Scenario) -> None:
    assert Scenario.from_json(call.to_json()) == call
    assert "capture" not in Scenario().to_json()


def test_what_is_peculiar_is_told_as_edits(call: Scenario) -> None:
    scenario = build(call).scenario
    assert not scenario.capture
    # The duplicate is told where it is seen first.
    ids = build(CALL).topk_ids[4].tolist()
    later = max(slot for slot in range(3) if ids.count(ids[slot]) > 1)
    assert scenario.routing.edits == (
        MaskSlot(token=1, slot=2),
        DuplicateSlot(token=4, slot=later, source=ids.index(ids[later])),
    )
    assert scenario.values.edits == CALL.values.edits


def test_what_is_missing_a_rule_draws(tmp_path: Path) -> None:
    source = build(CALL)
    path = saved(tmp_path / "table.safetensors", tensors(source, ("topk_ids", "topk_weights")), num_experts="6")
    scenario = whole(path)
    assert (scenario.shape.tokens, scenario.shape.hidden, scenario.shape.experts) == (5, 128, 6)
    problem, plain = build(scenario), build(dataclasses.replace(scenario, capture=Capture()))
    assert torch.equal(problem.topk_ids, source.topk_ids)
    for name in ("hidden_states", "w13", "w2_scale"):
        assert torch.equal(getattr(problem, name), getattr(plain, name))


def test_a_part_of_a_call(call: Scenario) -> None:
    capture = dataclasses.replace(
        call.capture, tokens=(1, 4), slots=(0, 2), experts=(4,), hidden=(0, 3), intermediate=(1,)
    )
    part = build(
        dataclasses.replace(
            call,
            shape=Shape(tokens=2, hidden=64, intermediate=32, experts=2, top_k=2),
            capture=capture,
        )
    )
    full = build(CALL)
    columns = torch.cat((torch.arange(32), torch.arange(96, 128)))
    assert torch.equal(part.hidden_states, full.hidden_states[[1, 4]][:, columns])
    rows = torch.cat((torch.arange(32, 64), torch.arange(96, 128)))
    packed = torch.cat((torch.arange(16), torch.arange(48, 64)))
    assert torch.equal(part.w13, full.w13[1:2][:, rows][:, :, packed])
    assert torch.equal(part.w13_scale, full.w13_scale[1:2][:, rows][:, :, [0, 3]])
    assert torch.equal(part.w2, full.w2[1:2][:, columns][:, :, 16:])
    assert torch.equal(part.w2_bias, full.w2_bias[1:2, columns])
    # Expert 4 is the second rank's only one now, whose id is 1; all others are the first rank's, 0.
    old = full.topk_ids[[1, 4]][:, [0, 2]]
    assert torch.equal(part.topk_ids, torch.where(old < 0, -1, torch.where(old == 4, 1, 0)).int())


def test_without_other_ranks_their_slots_are_masked(call: Scenario) -> None:
    alone = dataclasses.replace(call, shape=dataclasses.replace(call.shape, experts=3), parallel=Parallel())
    old = build(CALL).topk_ids
    assert torch.equal(build(alone).topk_ids, torch.where(old < 3, -1, old - 3))


def test_every_move_gives_a_scenario_that_can_be_built(call: Scenario) -> None:
    tried = {scenario for move in moves(call) for scenario in move}
    assert any(not scenario.capture for scenario in tried)
    assert any(len(scenario.capture.tensors) == 1 for scenario in tried if isinstance(scenario, Scenario))
    for scenario in sorted(tried, key=lambda one: one.digest)[::9]:
        assert isinstance(scenario, Scenario)
        problem = build(scenario)
        assert problem.hidden_states.shape[1] == scenario.shape.hidden
        assert problem.topk_ids.shape == (scenario.shape.tokens, scenario.shape.top_k)
        assert bool((problem.topk_ids < scenario.shape.experts).all())


def test_mxfp8_is_quantised_from_what_was_recorded(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.safetensors", tensors(build(CALL), ("hidden_states",)), precision="mxfp8xmxfp4")
    problem = build(whole(path))
    assert problem.hidden_q is not None
    recorded, kept = build(CALL).hidden_states.double(), problem.hidden_states.double()
    finite = [0, 1, 3, 4]  # a NaN makes its whole group NaN
    assert not kept[2, :32].isfinite().any()
    assert ((kept - recorded).abs() <= recorded[finite].abs().amax() / 16)[finite].all()


@pytest.mark.parametrize(
    ("change", "metadata", "told"),
    [
        ({"topk_ids": torch.zeros(5, 3, dtype=torch.int64)}, {}, "topk_ids: int64 [5, 3]: must be int32 [M, K]"),
        ({"topk_ids": torch.full((5, 3), 9, dtype=torch.int32)}, {}, "must be global ids in [-1, num_experts = 6)"),
        ({"topk_ids": torch.full((5, 3), -2, dtype=torch.int32)}, {}, "topk_ids: int32 [5, 3] from -2 to -2"),
        ({"topk_weights": torch.zeros(4, 3)}, {}, "topk_weights: float32 [4, 3]: must be float32 [M, K] with M = 5"),
        ({"w13": torch.zeros(3, 128, 32, dtype=torch.uint8)}, {}, "w13: uint8 [3, 128, 32]: must be uint8 [E_local"),
        ({"w13_scale": None}, {}, "w13_scale: is missing, and w13 is there"),
        ({"w2_bias": None}, {}, "w2_bias: is missing; w13_bias is there"),
        ({"gate": torch.zeros(1)}, {}, "gate: must be left out; the names are hidden_states"),
        ({"hidden_states": torch.zeros(5, 48).bfloat16()}, {}, "H = 48 must be a multiple of 32"),
        ({"output": torch.zeros(5, 128)}, {}, "output: float32 [5, 128]: must be bfloat16 [M, H]"),
        ({}, {"activation": "gelu"}, "metadata activation = 'gelu': must be one of swiglu"),
        ({}, {"alpha": "1"}, "metadata alpha: must be left out; swiglu has no such parameter"),
        ({}, {"ep_size": "two"}, "metadata ep_size = 'two': must be an integer"),
        ({}, {"ep_rank": "2"}, "parallel.ep_rank = 2: must be"),
        ({}, {"ep_size": "1", "ep_rank": "0", "num_experts": "6"}, "3 experts: must be num_experts / ep_size = 6 / 1"),
        ({}, {"epsize": "2"}, "metadata epsize = '2': must be left out"),
        ({}, {"version": "2"}, "metadata version = '2': must be '1'"),
        ({}, {"output_dtype": "float32"}, "output_dtype = 'float32': must be one of"),
    ],
)
def test_what_is_no_recording(
    tmp_path: Path, change: dict[str, torch.Tensor | None], metadata: dict[str, str], told: str
) -> None:
    given = {**tensors(build(CALL)), **change}
    path = saved(tmp_path / "a.safetensors", {k: v for k, v in given.items() if v is not None}, **metadata)
    with pytest.raises(recording.InvalidRecording) as caught:
        recording.load(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_damaged_files(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.safetensors", tensors(build(CALL)))
    path.write_bytes(path.read_bytes()[:-100])
    for name, told in (
        ("a.safetensors", "is no safetensors file, or is cut off"),
        ("b.safetensors", "such file"),
        ("b.pt", "must be a file"),
    ):
        with pytest.raises(recording.InvalidRecording, match=told):
            recording.load(tmp_path / name)
    saved(tmp_path / "c.safetensors", {})
    with pytest.raises(recording.InvalidRecording, match="holds no tensor of a call"):
        recording.load(tmp_path / "c.safetensors")


@pytest.mark.parametrize(
    "capture",
    [
        {"tokens": (0, 1)},
        {"tokens": (1, 0, 2, 3, 4)},
        {"digest": "abc"},
        {"digest": ""},
        {"tensors": ("gate",)},
    ],
)
def test_a_capture_that_does_not_fit(call: Scenario, capture: dict[str, object]) -> None:
    with pytest.raises(InvalidScenario, match=r"^capture\."):
        dataclasses.replace(call, capture=dataclasses.replace(call.capture, **capture))


def test_places_that_the_recording_does_not_have(call: Scenario) -> None:
    beyond = dataclasses.replace(call, capture=dataclasses.replace(call.capture, tokens=(0, 1, 2, 3, 9)))
    with pytest.raises(captures.InvalidCapture, match="must be places of"):
        build(beyond)


def test_a_case_keeps_its_recording_beside_it(tmp_path: Path, call: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kept" / "a.case.json"
    cases.save(case(diverges(call)), path)
    (tmp_path / "call.safetensors").unlink()
    monkeypatch.setenv(recordings.VARIABLE, "")
    assert cases.load(path).scenario == call
    assert torch.equal(build(call).topk_ids, build(CALL).topk_ids)
    cases.save(cases.load(path), path)  # as `difftest cases --mark` does
    (tmp_path / "kept" / "a.safetensors").write_bytes(b"other")
    with pytest.raises(recordings.RecordingNotFound, match="put the recording beside the case"):
        build(dataclasses.replace(call))
    with pytest.raises(cases.CaseNotWritten, match=r"capture\.digest"):
        cases.save(cases.load(path), tmp_path / "b.case.json")
    assert not (tmp_path / "b.case.json").exists()


class ActivationType(IntEnum):
    Swiglu = 3
    Situ = 10


def cutlass_fused_moe(
    input: torch.Tensor,  # the kernel's own name
    token_selected_experts: torch.Tensor,
    token_final_scales: torch.Tensor,
    fc1_expert_weights: torch.Tensor,
    fc2_expert_weights: torch.Tensor,
    output_dtype: torch.dtype,
    quant_scales: list[torch.Tensor],
    fc1_expert_biases: torch.Tensor | None = None,
    fc2_expert_biases: torch.Tensor | None = None,
    ep_size: int = 1,
    ep_rank: int = 0,
    output: torch.Tensor | None = None,
    use_w4_group_scaling: bool = False,
    activation_type: ActivationType = ActivationType.Swiglu,
    situ_beta: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    return [input * 2]


def test_a_call_of_the_kernel_is_recorded(tmp_path: Path) -> None:
    scenario = dataclasses.replace(
        CALL, shape=dataclasses.replace(CALL.shape, intermediate=128), activation=Situ(beta=3.0)
    )
    p = build(scenario)
    assert p.w13_bias is not None
    path = tmp_path / "call.safetensors"
    recorded = record(cutlass_fused_moe, path, when=lambda result: not bool(result[0].isfinite().all()), num_experts=6)

    def fold(scale: torch.Tensor) -> torch.Tensor:
        return cutlass_layouts.fold_scale(scale).view(torch.int32)

    def ask(states: torch.Tensor) -> None:
        recorded(
            states,
            p.topk_ids,
            p.topk_weights,
            cutlass_layouts.interleave_weight(cutlass_layouts.swap_halves(p.w13)),
            cutlass_layouts.interleave_weight(p.w2),
            torch.bfloat16,
            quant_scales=[fold(cutlass_layouts.swap_halves(p.w13_scale)), fold(p.w2_scale)],
            fc1_expert_biases=cutlass_layouts.swap_halves(p.w13_bias),
            fc2_expert_biases=p.w2_bias,
            ep_size=2,
            ep_rank=1,
            use_w4_group_scaling=True,
            activation_type=ActivationType.Situ,
            situ_beta=torch.full((3,), 3.0),
        )

    ask(torch.ones_like(p.hidden_states))
    assert not path.exists()
    ask(p.hidden_states)
    ask(torch.full_like(p.hidden_states, torch.nan))  # not the first any more
    found = recording.load(path)
    for name, tensor in tensors(p).items():
        assert torch.equal(found.tensors[name].view(torch.uint8), tensor.view(torch.uint8)), name
    assert found.scenario == dataclasses.replace(scenario, routing=Routing(), values=Values())
    assert found.output is not None
    assert found.output.shape == (5, 128)


def test_a_function_with_the_names_of_a_recording(tmp_path: Path) -> None:
    def layer(hidden_states: torch.Tensor, topk_ids: torch.Tensor, **_more: object) -> torch.Tensor:
        return hidden_states

    p = build(CALL)
    record(layer, tmp_path / "a.safetensors", ep_size=2)(p.hidden_states, p.topk_ids, topk_weights=p.topk_weights)
    assert set(load_file(tmp_path / "a.safetensors")) == {"hidden_states", "topk_ids", "topk_weights", "output"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_function_that_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="record: value: must be some of hidden_states"):
        record(lambda value: value, tmp_path / "a.safetensors")(3)
    with pytest.raises(NotRecorded, match="swiglu_alpha: must be the same for all experts, has 2 values"):
        record(lambda input, swiglu_alpha: input, tmp_path / "a.safetensors")(
            torch.ones(2, 32), torch.tensor([1.0, 2.0])
        )
