"""ggml through its adapter: number formats, arithmetic bit by bit, and whole layers against plain float64."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib.util
import math
import subprocess
import sys

import pytest
import torch

import oracles
from oracles import formats
from oracles.ggml import Ggml, GgmlRepacked
from oracles.ggml_graph import Graph, GuardBandError, library
from oracles.layouts import to_block_mxfp4
from oracles.problem import Problem, build
from strategies.scenario import (
    Activation,
    AssignExpert,
    DuplicateSlot,
    Execution,
    Layer,
    MaskRow,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    SetWeight,
    Shape,
    Situ,
    Swiglu,
    SwigluOai,
    ValueEdit,
    Values,
)

VECTORISED = Ggml().numerics.hidden_quantizer == "q8_0"
"""Whether this machine's ggml is the AVX2 build, whose every bit is simulated here; else only what all builds share."""


REPACKED = pytest.param(
    GgmlRepacked, marks=pytest.mark.skipif(GgmlRepacked().missing() is not None, reason=str(GgmlRepacked().missing()))
)
BOTH = pytest.mark.parametrize("oracle", [Ggml, REPACKED])


def _run(problem: Problem, oracle: type[Ggml] = Ggml) -> torch.Tensor:
    ggml = oracle()
    return ggml(ggml.prepare(problem))


def _gemm(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, *, repacked: bool = False) -> torch.Tensor:
    """ggml's mul_mat_id with one expert: x float32 [M, K], packed [N, K/2], scale [N, K/32] -> float32 [M, N]."""
    (rows, columns), outputs = x.shape, packed.shape[0]
    graph = Graph(operators=8, poison=0xFF)
    make = graph.repacked if repacked else graph.leaf
    weight = make(to_block_mxfp4(packed, scale), columns, outputs, 1, kind="MXFP4")
    ids = graph.leaf(torch.zeros(rows, 1, dtype=torch.int32), 1, rows)
    result = graph.result(graph.op("mul_mat_id", weight, graph.leaf(x, columns, 1, rows), ids))
    graph.compute()
    return result.clone().view(rows, outputs)


def _random(*shape: int, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def _bytes(low: int, high: int, *shape: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high + 1, shape, generator=generator).to(torch.uint8)


# --- formats ---------------------------------------------------------------------------------------------------------


@BOTH
def test_every_code_under_every_scale_byte(oracle: type[Ggml]) -> None:
    """16 codes in both halves of a block x 256 bytes, read back one by one. 0xFF is read as 2**128, not as NaN."""
    codes = (torch.arange(32) % 16).to(torch.uint8)
    scale = torch.arange(256).to(torch.uint8)[:, None]
    step = 2.0**-14  # Q8_0 scale of 127 * step; small enough that no product overflows
    x, packed = 127 * step * torch.eye(32), formats.pack(codes).expand(256, -1)
    read = _gemm(x, packed, scale, repacked=oracle is GgmlRepacked).double() / (127 * step)
    values = formats.e2m1_decode(codes)[:, None]
    assert torch.equal(read[:, :255], values * formats.e8m0_decode(scale[:255, 0]))
    assert torch.equal(read[:, 255], values[:, 0] * 2.0**128)


# --- arithmetic ------------------------------------------------------------------------------------------------------


def _q8_0(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Q8_0 as the AVX code computes it: integers as float64 [..., K/32, 32], and their scales [..., K/32, 1]."""
    blocks = x.float().view(*x.shape[:-1], -1, 32)
    amax = blocks.abs().amax(-1, keepdim=True)
    top = torch.full_like(amax, 127.0)  # torch divides a number by a tensor as number * (1 / tensor)
    scale = (amax / top).half().double()
    integers = torch.round(blocks * (top / amax)).double()
    return torch.where(scale == 0, 0.0, integers), scale  # of a block that small nothing is left, whatever its integers


AWKWARD_ROWS = {
    "normal": _random(512, 32),
    "bfloat16": _random(512, 32, seed=3).bfloat16().float(),
    "ties at amax / 2": torch.cat((127.0 * torch.ones(64, 1), (torch.arange(64)[:, None] / 2 + torch.zeros(31))), 1),
    "below the smallest fp16 scale": _random(512, 32, scale=3e-7),
    "subnormal fp16 scale": _random(512, 32, scale=1e-3),
    "near the largest fp16 scale": _random(512, 32, scale=2e6),
    "subnormal float32": _random(512, 32, scale=1e-39),
    "zero": torch.zeros(1, 32),
    "one value": torch.eye(32) * 3.0,
}


@pytest.mark.parametrize("name", AWKWARD_ROWS)
def test_q8_0_of_the_activations(name: str) -> None:
    """Every dequantised activation, read back through a unit matrix of weights."""
    x = AWKWARD_ROWS[name]
    unit = formats.pack(formats.e2m1_encode(torch.eye(32).double()))
    read = _gemm(x, unit, torch.full((32, 1), 127, dtype=torch.uint8)).double()
    integers, scale = _q8_0(x)
    expected = (integers * scale).flatten(-2)
    if VECTORISED:
        assert torch.equal(read, expected)
    else:  # the reciprocal of a rounded amax / 127, and other ties: at most one step off
        assert ((read - expected).abs() <= scale[:, 0]).all()
        assert (read != expected).double().mean() < 0.01 or name == "ties at amax / 2"


def test_a_q8_0_scale_above_fp16_is_infinite() -> None:
    """From amax = 65520 * 127 on: the row's results are not finite, and the next row's are untouched."""
    x = torch.ones(2, 32)
    x[0, 5] = 65520 * 127
    read = _gemm(x, _bytes(0x11, 0x77, 8, 16), torch.full((8, 1), 120, dtype=torch.uint8))
    assert not read[0].isfinite().any()
    assert read[1].isfinite().all()


def _float32(exact: torch.Tensor) -> torch.Tensor:
    return exact.float().double()


def _fused(scale: torch.Tensor, integer: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """float32(scale * integer + addend) rounded once. The product has up to 27 bits and is exact in float64; the sum's
    float64 error, by TwoSum, makes its last bit odd, so that the second rounding cannot be a double one."""
    product = scale * integer
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    raw = total.view(torch.int64)
    towards_zero = (error != 0) & ((error > 0) != (total > 0))
    odd = torch.where(error != 0, (raw - towards_zero.long()) | 1, raw)
    return _float32(odd.view(torch.float64))


def _dot(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """ggml_vec_dot_mxfp4_q8_0 with AVX2 and FMA, bit by bit, as float64 [M, N]; see `oracles.ggml._numerics`."""
    integers, steps = _q8_0(x)
    codes = 2 * formats.e2m1_decode(formats.unpack(packed)).view(len(packed), -1, 32)
    products = integers[:, None] * codes  # [M, N, blocks, 32]
    scales = _float32(steps[:, None, :, 0] * formats.exp2(scale.long() - 128))[..., None]
    groups = products.view(*products.shape[:-1], 8, 4).sum(-1)
    blocks = products.shape[2]
    lanes = products.new_zeros(2, *products.shape[:2], 8)
    for block in range(blocks - blocks % 2):
        lanes[block % 2] = _fused(scales[:, :, block], groups[:, :, block], lanes[block % 2])
    eight = _float32(lanes[0] + lanes[1])
    four = _float32(eight[..., 4:] + eight[..., :4])
    two = _float32(four[..., :2] + four[..., 2:])
    total = _float32(two[..., 0] + two[..., 1])
    if blocks % 2:
        total = _fused(scales[:, :, -1, 0], products[:, :, -1].sum(-1), total)
    return total


def _dot_repacked(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """gemv_q4_b32_8x8_q8_0_lut_avx, bit by bit, as float64 [M, N]: a fused multiply-add for each block, in order."""
    integers, steps = _q8_0(x)
    codes = 2 * formats.e2m1_decode(formats.unpack(packed)).view(len(packed), -1, 32)
    blocks = (integers[:, None] * codes).sum(-1)
    scales = _float32(steps[:, None, :, 0] * formats.exp2(scale.long() - 128))
    total = torch.zeros_like(blocks[..., 0])
    for block in range(blocks.shape[-1]):
        total = _fused(scales[..., block], blocks[..., block], total)
    return total


@BOTH
@pytest.mark.parametrize("columns", [32, 64, 96, 128, 224, 1024])
@pytest.mark.parametrize(("low", "high", "size"), [(118, 122, 1.0), (100, 150, 1.0), (0, 3, 3e-4), (118, 122, 1e5)])
def test_the_dot_product(columns: int, low: int, high: int, size: float, oracle: type[Ggml]) -> None:
    x = _random(8, columns, scale=size, seed=columns)
    packed, scale = _bytes(0, 255, 32, columns // 2), _bytes(low, high, 32, columns // 32)
    repacked = oracle is GgmlRepacked
    read = _gemm(x, packed, scale, repacked=repacked).double()
    if VECTORISED:
        assert torch.equal(read, (_dot_repacked if repacked else _dot)(x, packed, scale))
        return
    integers, steps = _q8_0(x)  # others may differ by one step of each activation, and in the order of the sum
    weight = formats.mxfp4_dequantize(packed, scale)
    error = (read - (integers * steps).flatten(-2) @ weight.T).abs()
    allowed = steps.repeat_interleave(32, 1)[..., 0] @ weight.abs().T + 2.0**-149 * columns
    assert (error <= 0.02 * allowed).all()


# --- whole layers ----------------------------------------------------------------------------------------------------


def _quantised(x: torch.Tensor) -> torch.Tensor:
    integers, scale = _q8_0(x)
    return (integers * scale).flatten(-2)


def _activation(problem: Problem, expert: int, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    params = problem.activation
    if params.kind == "swiglu":
        return gate * gate.sigmoid() * up

    def of(vector: torch.Tensor | None) -> float:
        assert vector is not None
        return float(vector[expert])

    if params.kind == "swiglu_oai":
        gate, up = gate.clamp(max=of(params.limit)), up.clamp(-of(params.limit), of(params.limit))
        return gate * (of(params.alpha) * gate).sigmoid() * (up + of(params.beta))
    beta, linear_beta = of(params.beta), of(params.linear_beta)
    return beta * (gate / beta).tanh() * gate.sigmoid() * linear_beta * (up / linear_beta).tanh()


def _plain(problem: Problem) -> torch.Tensor:
    """The layer in float64, one (token, slot) at a time, with Q8_0 before both GEMMs."""
    w13 = formats.mxfp4_dequantize(problem.w13, problem.w13_scale)
    w2 = formats.mxfp4_dequantize(problem.w2, problem.w2_scale)
    out = torch.zeros(problem.tokens, problem.hidden, dtype=torch.float64)
    for token, slot in (problem.local_ids >= 0).nonzero().tolist():
        expert = int(problem.local_ids[token, slot])
        projected = w13[expert] @ _quantised(problem.hidden_states[token])
        if problem.w13_bias is not None:
            projected = projected + problem.w13_bias[expert].double()
        gate, up = projected[: problem.intermediate], projected[problem.intermediate :]
        row = w2[expert] @ _quantised(_activation(problem, expert, gate, up))
        if problem.w2_bias is not None:
            row = row + problem.w2_bias[expert].double()
        out[token] += problem.router_weights[token, slot].double() * row
    return out


SHAPE = Shape(tokens=7, hidden=96, intermediate=128, experts=8, top_k=3)
ACTIVATIONS: dict[str, Activation] = {
    "swiglu": Swiglu(),
    "swiglu_oai": SwigluOai(limit=1.0),
    "swiglu_oai without limit": SwigluOai(limit=math.inf, alpha=-0.5),
    "swiglu_oai with another beta": SwigluOai(beta=0.25, limit=1.0),
    "swiglu_oai per expert": SwigluOai(limit=0.5, per_expert=True),
    "situ": Situ(beta=0.5, linear_beta=0.75),
    "situ per expert": Situ(per_expert=True),
}
LAYERS: dict[str, Scenario] = {
    "plain": Scenario(shape=SHAPE),
    "one of everything": Scenario(),
    "rank 1 of 2": Scenario(shape=SHAPE, parallel=Parallel(ep_size=2, ep_rank=1)),
    "biases and moe_tp": Scenario(
        shape=SHAPE,
        layer=Layer(biases="per_expert", moe_tp_size=2, moe_tp_rank=0, routed_scaling_factor=2.5),
    ),
    "biases on moe_tp rank 1": Scenario(shape=SHAPE, layer=Layer(biases="per_expert", moe_tp_size=2, moe_tp_rank=1)),
    "edited routing": Scenario(
        shape=SHAPE,
        parallel=Parallel(ep_size=2),
        layer=Layer(biases="per_expert"),
        routing=Routing(
            edits=(
                MaskSlot(token=0, slot=1),
                MaskRow(token=1),
                AssignExpert(token=2, slot=0, expert=7),
                AssignExpert(token=3, slot=0, expert=2),
                DuplicateSlot(token=3, slot=2, source=0),
                SetWeight(token=4, slot=0, weight=0.0),
                SetWeight(token=5, slot=1, weight=-1.5),
            )
        ),
        execution=Execution(padding=3),
    ),
}


def _assert_close(output: torch.Tensor, expected: torch.Tensor) -> None:
    """Within a bfloat16 rounding and a few Q8_0 integers of the intermediate that float32 rounds the other way."""
    allowed = 2.0**-8 * expected.abs() + 2e-2 * expected.square().mean().sqrt()
    assert ((output.double() - expected).abs() <= allowed).all()


@BOTH
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_against_float64(layer: str, activation: str, oracle: type[Ggml]) -> None:
    scenario = dataclasses.replace(LAYERS[layer], activation=ACTIVATIONS[activation])
    assert oracle().unsupported(scenario) is None
    problem = build(scenario)
    output = _run(problem, oracle)
    assert output.shape == problem.hidden_states.shape
    assert output.dtype == torch.bfloat16
    assert _plain(problem).square().mean() > 0
    _assert_close(output, _plain(problem))


@pytest.mark.parametrize("rule", ["normal", "integer", "index", "one_hot", "wide"])
def test_value_rules(rule: str) -> None:
    problem = build(Scenario(shape=SHAPE, values=Values(rule=rule)))  # type: ignore[arg-type]  # each is a ValueRule
    _assert_close(_run(problem), _plain(problem))


def test_float16_output() -> None:
    problem = build(Scenario(shape=SHAPE, output_dtype="float16"))
    assert _run(problem).dtype == torch.float16
    _assert_close(_run(problem), _plain(problem))


# --- dead slots, non-finite values, memory ---------------------------------------------------------------------------


def test_ranks_sum_to_the_whole() -> None:
    whole = build(Scenario(shape=SHAPE))
    total = torch.zeros_like(whole.hidden_states, dtype=torch.float64)
    for rank in range(4):
        part = build(Scenario(shape=SHAPE, parallel=Parallel(ep_size=4, ep_rank=rank)))
        # A rank's own table holds more of its experts than the others' tables do.
        total += _run(dataclasses.replace(part, topk_ids=whole.topk_ids, topk_weights=whole.topk_weights)).double()
    _assert_close(total, _run(whole).double())


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(shape=dataclasses.replace(SHAPE, tokens=0)),
        Scenario(shape=SHAPE, routing=Routing(edits=tuple(MaskRow(token=token) for token in range(7)))),
        Scenario(shape=SHAPE, parallel=Parallel(ep_size=4, ep_rank=2), routing=Routing(rule="remote_only")),
        Scenario(shape=dataclasses.replace(SHAPE, tokens=0), execution=Execution(padding=2, poison=0xFF)),
    ],
    ids=["M = 0", "all masked", "remote only", "padding only"],
)
@BOTH
def test_nothing_to_compute_is_zero(scenario: Scenario, oracle: type[Ggml]) -> None:
    problem = build(scenario)
    output = _run(problem, oracle)
    assert output.shape == problem.hidden_states.shape
    assert torch.equal(output, torch.zeros_like(output))


def test_a_dead_slot_contributes_nothing_whatever_its_weight() -> None:
    scenario = Scenario(
        shape=SHAPE, parallel=Parallel(ep_size=2), routing=Routing(edits=(MaskSlot(token=0, slot=0), MaskRow(token=1)))
    )
    problem = build(scenario)
    dead = problem.local_ids < 0
    weights = torch.where(dead, torch.nan, problem.topk_weights)
    output = _run(dataclasses.replace(problem, topk_weights=weights))
    assert torch.equal(output, _run(problem))
    assert not output[1].any()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_router_weight_is_multiplied_as_ieee_says(value: float) -> None:
    edits = (SetWeight(token=2, slot=1, weight=value),)
    output = _run(build(Scenario(shape=SHAPE, routing=Routing(edits=edits))))
    plain = _run(build(Scenario(shape=SHAPE)))
    others = torch.arange(7) != 2
    assert not output[2].isfinite().any()
    assert torch.equal(output[others], plain[others])


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "max"])
@pytest.mark.parametrize("column", [0, 27, 95])
def test_a_special_value_in_x_stays_in_its_row(value: str, column: int) -> None:
    edits = (ValueEdit(tensor="hidden_states", index=(2, column), value=value),)  # type: ignore[arg-type]  # a Special
    output = _run(build(Scenario(shape=SHAPE, values=Values(edits=edits))))
    plain = _run(build(Scenario(shape=SHAPE)))
    others = torch.arange(7) != 2
    assert torch.equal(output[others], plain[others])


@pytest.mark.parametrize("scenario", [LAYERS["plain"], LAYERS["edited routing"]], ids=["table", "rows"])
@pytest.mark.parametrize("activation", ["swiglu_oai with another beta", "swiglu_oai per expert", "situ"])
@BOTH
def test_poison_and_repetition_change_no_bit(scenario: Scenario, activation: str, oracle: type[Ggml]) -> None:
    scenario = dataclasses.replace(scenario, activation=ACTIVATIONS[activation])
    ggml, outputs = oracle(), []
    for poison in (0x00, 0xFF):
        execution = dataclasses.replace(scenario.execution, poison=poison)
        prepared = ggml.prepare(build(dataclasses.replace(scenario, execution=execution)))
        outputs += [ggml(prepared), ggml(prepared)]
    assert all(torch.equal(output, outputs[0]) for output in outputs)


@BOTH
def test_prepared_problems_own_their_memory(oracle: type[Ggml]) -> None:
    """Several at a time, run after their problem and its tensors are gone and the memory was used again."""
    ggml = oracle()
    expected = [_run(build(dataclasses.replace(layer, activation=SwigluOai())), oracle) for layer in LAYERS.values()]
    prepared = [ggml.prepare(build(dataclasses.replace(layer, activation=SwigluOai()))) for layer in LAYERS.values()]
    gc.collect()
    garbage = [torch.full((size,), 0xFF, dtype=torch.uint8) for size in (64, 512, 4096, 65536) * 50]
    for _ in range(2):
        assert all(torch.equal(ggml(one), right) for one, right in zip(prepared, expected, strict=True))
    del garbage


def test_the_problem_is_not_modified() -> None:
    problem = build(LAYERS["edited routing"])
    tensors = [value for value in vars(problem).values() if isinstance(value, torch.Tensor)]
    before = [tensor.clone() for tensor in tensors]
    _run(problem)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(tensors, before, strict=True))


def test_a_write_beyond_the_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ggml = Ggml()
    prepared = ggml.prepare(build(LAYERS["plain"]))
    compute = library().ggml_graph_compute

    def overrun(graph: object, plan: object) -> int:
        status: int = compute(graph, plan)
        plan_of = plan._obj  # type: ignore[attr-defined]  # of ctypes.byref
        ctypes.memset(ctypes.addressof(plan_of.work_data.contents) + plan_of.work_size, 0x55, 9)
        return status

    monkeypatch.setattr(library(), "ggml_graph_compute", overrun)
    with pytest.raises(GuardBandError, match=r"ggml wrote 9 bytes past the end of its \d+ bytes of memory"):
        ggml(prepared)


# --- a known error of ggml -------------------------------------------------------------------------------------------
# The repacked mul_mat_id keeps as many entries for an expert as there are tokens, although a token may name an expert
# more than once: they overflow into the next expert's. llama.cpp pull request 26310, not merged in ggml-python 0.0.45.

UPSTREAM = "https://github.com/ggml-org/llama.cpp/pull/26310"


def _duplicates(ids: list[list[int]]) -> Problem:
    problem = build(Scenario(shape=Shape(tokens=len(ids), experts=2, top_k=2)))
    return dataclasses.replace(problem, topk_ids=torch.tensor(ids, dtype=torch.int32))


@pytest.mark.parametrize("ids", [[[0, 0], [0, 1]], [[1, 1]] * 100], ids=["across experts", "last expert only"])
def test_the_plain_kernel_takes_duplicates(ids: list[list[int]]) -> None:
    problem = _duplicates(ids)
    _assert_close(_run(problem), _plain(problem))


@pytest.mark.xfail(strict=True, reason=UPSTREAM)
@pytest.mark.parametrize("oracle", [REPACKED])
def test_the_repacked_kernel_takes_duplicates(oracle: type[Ggml]) -> None:
    problem = _duplicates([[0, 0], [0, 1]])
    _assert_close(_run(problem, oracle), _plain(problem))


@pytest.mark.xfail(strict=True, raises=GuardBandError, reason=UPSTREAM)
@pytest.mark.parametrize("oracle", [REPACKED])
def test_the_repacked_kernel_keeps_within_its_work_space(oracle: type[Ggml]) -> None:
    _run(_duplicates([[1, 1]] * 100), oracle)


# --- what it promises ------------------------------------------------------------------------------------------------


def test_it_is_found_by_name() -> None:
    oracle = oracles.get("ggml")
    assert isinstance(oracle, Ggml)
    assert isinstance(oracle, oracles.Oracle)
    assert oracles.missing_of(oracle) is None


@pytest.mark.parametrize("byte", [0, 254, 255])
def test_no_scale_byte_is_declined(byte: int) -> None:
    edit = ValueEdit(tensor="w2_scale", index=(0, 0, 0), value=byte)
    assert Ggml().unsupported(Scenario(values=Values(edits=(edit,)))) is None
    assert Ggml().unsupported(Scenario(values=Values(scale_low=byte, scale_high=byte))) is None


def test_what_else_is_declined() -> None:
    assert Ggml().unsupported(Scenario(precision="mxfp8xmxfp4")) == "precision mxfp8xmxfp4"
    assert Ggml().unsupported(Scenario(execution=Execution(mode="graph"))) == "execution mode graph"


def test_numerics_follow_the_build() -> None:
    numerics = Ggml().numerics
    avx2 = bool(library().ggml_cpu_has_avx2() and library().ggml_cpu_has_fma())
    assert numerics.intermediate_quantizer == ("q8_0" if avx2 else "q8_0_portable")
    assert numerics.gemm1 == numerics.gemm2
    assert numerics.gemm1.product_roundings == (0 if avx2 else 1)


def test_without_ggml_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    missing = Ggml().missing()
    assert missing == "not installed: pip install 'difftest[ggml]' (builds from source; needs cmake and a C compiler)"
    assert Ggml().numerics.hidden_quantizer == "q8_0_portable"


def test_without_ggml_the_module_still_imports() -> None:
    program = "import sys; sys.modules['ggml'] = None; import oracles; print(oracles.get('ggml').missing())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("not installed: ")


def test_a_library_that_does_not_load_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("Failed to load shared library")

    monkeypatch.setattr("oracles.ggml.library", broken)
    missing = Ggml().missing()
    assert missing is not None
    assert missing.startswith("cannot be loaded: Failed to load shared library; build it again with pip install")
