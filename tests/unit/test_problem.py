"""Each rule and edit has its stated effect; a rank holds its slice of the whole; the bits never change."""

from __future__ import annotations

import dataclasses
import hashlib
import math

import pytest
import torch

from oracles import content, formats
from oracles.problem import Problem, build, on_gpu
from strategies.scenario import (
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
    StrayId,
    SwigluOai,
    ValueEdit,
    Values,
    expert_factor,
)

MEDIUM = Shape(tokens=6, hidden=96, intermediate=128, experts=12, top_k=3)
PRECISIONS = ("bf16xmxfp4", "mxfp8xmxfp4")
VALUE_RULES = ("normal", "integer", "index", "one_hot", "wide")
ROUTING_RULES = ("uniform", "skewed", "all_to_one", "round_robin", "remote_only", "empty_experts", "ties")


def tensors(problem: Problem) -> dict[str, torch.Tensor]:
    """Every tensor of a problem by its name, the activation's parameters among them."""
    both = vars(problem) | {f"activation.{name}": value for name, value in vars(problem.activation).items()}
    return {name: value for name, value in both.items() if isinstance(value, torch.Tensor)}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def digest(problem: Problem) -> str:
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors(problem).items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(bits(tensor))
    return sha.hexdigest()[:16]


def identical(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and bits(left) == bits(right)


# --- determinism ---------------------------------------------------------------------------------------------------

PINNED = {
    "the simplest": (Scenario(), "7fef3e0f0cebb464"),
    "every extra": (
        Scenario(
            shape=MEDIUM,
            parallel=Parallel(ep_size=3, ep_rank=2),
            activation=Situ(per_expert=True),
            layer=Layer(biases="per_expert", moe_tp_size=2, moe_tp_rank=1, routed_scaling_factor=2.5),
            routing=Routing(
                rule="skewed",
                seed=9,
                edits=(MaskSlot(token=0, slot=1), SetWeight(token=1, slot=0, weight=-2.0), MaskRow(token=5)),
            ),
            values=Values(
                seed=4,
                x_exponent=3,
                scale_low=0,
                scale_high=255,
                edits=(ValueEdit(tensor="hidden_states", index=(2, 5), value="nan"),),
            ),
            execution=Execution(padding=2),
        ),
        "0e49ca2f90d6ab43",
    ),
    "mxfp8, wide": (
        Scenario(
            shape=MEDIUM,
            precision="mxfp8xmxfp4",
            activation=SwigluOai(per_expert=True),
            routing=Routing(rule="empty_experts", seed=1),
            values=Values(rule="wide", seed=5, edits=(ValueEdit(tensor="hidden_states", index=(0, 0), value="-inf"),)),
            execution=Execution(padding=1),
        ),
        "bf4948f9c2f95b6c",
    ),
    "integer": (
        Scenario(
            shape=MEDIUM,
            layer=Layer(biases="per_expert"),
            routing=Routing(rule="all_to_one", seed=3),
            values=Values(rule="integer", seed=1),
        ),
        "f6bd47b8771bfa4e",
    ),
    "index": (
        Scenario(shape=MEDIUM, routing=Routing(rule="round_robin"), values=Values(rule="index", seed=1)),
        "1922805b1549bf9b",
    ),
    "one_hot, remote": (
        Scenario(
            shape=MEDIUM,
            parallel=Parallel(ep_size=4, ep_rank=1),
            routing=Routing(rule="remote_only", seed=8),
            values=Values(rule="one_hot", seed=2),
        ),
        "0a76c6cf63bc9032",
    ),
}


@pytest.mark.parametrize("name", PINNED)
def test_bits_are_pinned(name: str) -> None:
    """A saved case is a scenario: a change of any of these makes every case file another test."""
    scenario, expected = PINNED[name]
    assert digest(build(scenario)) == expected


@pytest.mark.parametrize("name", PINNED)
def test_no_state_of_torch_matters(name: str) -> None:
    scenario, expected = PINNED[name]
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    try:
        torch.manual_seed(123)
        torch.set_num_threads(2 if threads == 1 else 1)
        torch.set_default_dtype(torch.float64)
        assert digest(build(scenario)) == expected
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)


def test_seeds_change_what_they_own_and_nothing_else() -> None:
    base = Scenario(shape=MEDIUM, layer=Layer(biases="per_expert"))
    routed = {"topk_ids", "topk_weights"}
    for other, owned in (
        (dataclasses.replace(base, routing=Routing(seed=1)), routed),
        (dataclasses.replace(base, values=Values(seed=1)), set(tensors(build(base))) - routed),
    ):
        left, right = tensors(build(base)), tensors(build(other))
        assert {name for name in left if not identical(left[name], right[name])} == owned


# --- the table of fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("moe_tp_rank", [0, 1])
def test_shapes_and_dtypes(precision: str, tokens: int, moe_tp_rank: int) -> None:
    problem = build(
        Scenario(
            shape=dataclasses.replace(MEDIUM, tokens=tokens),
            parallel=Parallel(ep_size=3, ep_rank=1),
            precision=precision,
            activation=SwigluOai(),
            layer=Layer(biases="per_expert", moe_tp_size=2, moe_tp_rank=moe_tp_rank),
            execution=Execution(padding=2),
        )
    )
    rows, hidden, inter, local, top_k = tokens + 2, 96, 64, 4, 3
    want = {
        "hidden_states": ((rows, hidden), torch.bfloat16),
        "topk_ids": ((rows, top_k), torch.int32),
        "topk_weights": ((rows, top_k), torch.float32),
        "w13": ((local, 2 * inter, hidden // 2), torch.uint8),
        "w13_scale": ((local, 2 * inter, hidden // 32), torch.uint8),
        "w2": ((local, hidden, inter // 2), torch.uint8),
        "w2_scale": ((local, hidden, inter // 32), torch.uint8),
        "w13_bias": ((local, 2 * inter), torch.bfloat16),
        "activation.alpha": ((local,), torch.float32),
        "activation.beta": ((local,), torch.float32),
        "activation.limit": ((local,), torch.float32),
    }
    if moe_tp_rank == 0:
        want["w2_bias"] = ((local, hidden), torch.bfloat16)
    if precision == "mxfp8xmxfp4":
        want["hidden_q"] = ((rows, hidden), torch.float8_e4m3fn)
        want["hidden_scale"] = ((rows, hidden // 32), torch.uint8)
    assert {name: (tuple(value.shape), value.dtype) for name, value in tensors(problem).items()} == want
    assert (problem.tokens, problem.hidden, problem.intermediate) == (rows, hidden, inter)
    assert (problem.experts_local, problem.first_expert, problem.num_experts) == (local, 4, 12)
    assert all(value.is_contiguous() for value in tensors(problem).values())


def test_output_dtype() -> None:
    assert build(Scenario()).output_dtype == torch.bfloat16
    assert build(Scenario(output_dtype="float16")).output_dtype == torch.float16


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("tokens", [0, 5])
def test_one_transfer_brings_every_tensor(precision: str, tokens: int) -> None:
    """Here to the CPU: the same bits, in memory of its own, aligned as an allocation is."""
    shape = dataclasses.replace(MEDIUM, tokens=tokens)
    activation = Situ(beta=3.0, linear_beta=7.0, per_expert=True)
    problem = build(Scenario(shape=shape, precision=precision, activation=activation))
    given, brought = tensors(problem), tensors(on_gpu(problem, torch.device("cpu")))
    assert brought.keys() == given.keys()
    for name, tensor in brought.items():
        assert identical(tensor, given[name])
        assert tensor.storage_offset() * tensor.itemsize % 512 == 0
        assert tensor.untyped_storage().data_ptr() != given[name].untyped_storage().data_ptr()


def test_local_ids() -> None:
    problem = build(Scenario(shape=MEDIUM, parallel=Parallel(ep_size=3, ep_rank=1)))
    ids = torch.tensor([[0, 3, 4], [7, 8, 11], [-1, 5, -1]], dtype=torch.int32)
    problem = dataclasses.replace(problem, topk_ids=ids)
    assert problem.local_ids.tolist() == [[-1, -1, 0], [3, -1, -1], [-1, 1, -1]]


def test_router_weights_are_scaled_in_float32() -> None:
    problem = build(Scenario(shape=MEDIUM, layer=Layer(routed_scaling_factor=2.7)))
    weights = problem.router_weights
    assert weights.dtype == torch.float32
    assert torch.equal(weights, (problem.topk_weights.double() * torch.tensor(2.7).double()).float())


# --- activation ----------------------------------------------------------------------------------------------------


def test_uniform_activation_parameters() -> None:
    params = build(Scenario(shape=MEDIUM, activation=SwigluOai(alpha=1.5, beta=0.5, limit=math.inf))).activation
    assert params.kind == "swiglu_oai"
    assert params.alpha.tolist() == [1.5] * 12
    assert params.beta.tolist() == [0.5] * 12
    assert params.limit.tolist() == [math.inf] * 12
    assert params.linear_beta is None


def test_activation_parameters_per_expert_go_by_the_global_id() -> None:
    scenario = Scenario(
        shape=MEDIUM,
        parallel=Parallel(ep_size=3, ep_rank=2),
        activation=Situ(beta=2.0, linear_beta=10.0, per_expert=True),
    )
    params = build(scenario).activation
    factors = [expert_factor(expert) for expert in range(8, 12)]
    assert len(set(factors)) > 1
    assert params.kind == "situ"
    assert params.beta.tolist() == [2.0 * factor for factor in factors]
    assert params.linear_beta.tolist() == [10.0 * factor for factor in factors]
    assert params.alpha is None


# --- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", VALUE_RULES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("x_exponent", [-100, 0, 100])
def test_unedited_content_is_finite(rule: str, precision: str, x_exponent: int) -> None:
    problem = build(
        Scenario(
            shape=MEDIUM,
            precision=precision,
            layer=Layer(biases="per_expert"),
            values=Values(rule=rule, x_exponent=x_exponent, scale_low=0, scale_high=254),
        )
    )
    weights = [
        formats.mxfp4_dequantize(problem.w13, problem.w13_scale),
        formats.mxfp4_dequantize(problem.w2, problem.w2_scale),
    ]
    for tensor in (problem.hidden_states, problem.topk_weights, problem.w13_bias, problem.w2_bias, *weights):
        assert tensor.isfinite().all()
    assert (problem.hidden_states != 0).any(dim=1).all()
    assert (problem.topk_weights > 0).all()


def whole(rule: str, **values: int) -> Problem:
    shape = Shape(tokens=64, hidden=512, intermediate=256, experts=4, top_k=2)
    return build(Scenario(shape=shape, layer=Layer(biases="per_expert"), values=Values(rule=rule, **values)))


def test_normal_rule() -> None:
    x = whole("normal").hidden_states.double()
    assert abs(x.mean()) < 0.03
    assert abs(x.std() - 1) < 0.02
    assert 3 < x.abs().max() < 4
    assert torch.equal(whole("normal", x_exponent=5).hidden_states.double(), x * 32)


def test_wide_rule() -> None:
    x = whole("wide").hidden_states.double()
    exponents = (x.abs() / whole("normal").hidden_states.double().abs()).log2().round()
    assert exponents.unique().tolist() == list(range(-12, 13))


def test_one_hot_rule() -> None:
    x = whole("one_hot", x_exponent=-2).hidden_states
    assert ((x == 0.25).sum(1) == 1).all()
    assert (x != 0).sum() == 64
    assert len(x.argmax(1).unique()) > 50


def test_index_rule_tells_rows_and_columns_apart() -> None:
    problem = whole("index")
    x = problem.hidden_states
    assert x.abs().max() == 13
    assert torch.equal(x, x.round())
    assert len(x[:13, :64].unique(dim=0)) == 13
    assert len(x[:13, :13].T.unique(dim=0)) == 13
    codes = formats.unpack(problem.w13)
    assert len(codes[0, :, :16].unique(dim=0)) == 16
    assert len(codes[:, 0, :16].unique(dim=0)) == 4
    gate, up = codes[0].chunk(2)
    assert (gate != up).all()


def test_integer_rule() -> None:
    problem = whole("integer")
    x = problem.hidden_states
    assert x.unique().tolist() == [0, 1]
    assert x.sum(1).min() >= 1
    assert x.sum(1).max() == 6
    assert (problem.w13_scale == 127).all()
    assert (problem.w2_scale == 127).all()
    gate, up = formats.mxfp4_dequantize(problem.w13, problem.w13_scale).chunk(2, dim=1)
    w2 = formats.mxfp4_dequantize(problem.w2, problem.w2_scale)
    assert gate.unique().tolist() == [0, 1, 2]
    assert up.unique().tolist() == [-2, -1, 0, 1, 2]
    assert w2.unique().tolist() == [-2, -1, 0, 1, 2]
    assert abs((w2 != 0).double().mean() - 1 / 8) < 0.01
    assert problem.w13_bias.unique().tolist() == [0, 1, 2, 3]
    assert problem.topk_weights.unique().tolist() == [0.25, 0.5, 1]


def test_integer_rule_is_exact_in_float32_in_any_order() -> None:
    """Both GEMMs: every product is a multiple of a unit, and their magnitudes sum below 2**24 units."""
    problem = whole("integer")
    x = problem.hidden_states.double()
    w13 = formats.mxfp4_dequantize(problem.w13, problem.w13_scale)
    h = x @ w13.mT
    assert (x.abs() @ w13.abs().mT).max() <= 12
    gate, up = h.chunk(2, dim=-1)
    assert gate.min() >= 0
    assert gate.max() >= 8
    assert up.min() < 0
    a = formats.round_to(gate * torch.sigmoid(gate) * up, "bfloat16")
    unit = 2.0 ** (torch.frexp(a[a != 0].abs().min()).exponent - 8)  # the last bit of the smallest bfloat16
    w2 = formats.mxfp4_dequantize(problem.w2, problem.w2_scale)
    assert (a.abs() @ w2.abs().mT).max() < 2**24 * unit


@pytest.mark.parametrize("rule", ["normal", "one_hot", "wide"])
def test_bulk_weights_take_every_code_and_scale(rule: str) -> None:
    problem = whole(rule, scale_low=100, scale_high=103)
    for packed, scale in ((problem.w13, problem.w13_scale), (problem.w2, problem.w2_scale)):
        counts = torch.bincount(formats.unpack(packed).flatten().int(), minlength=16).double()
        assert ((counts / counts.sum() * 16 - 1).abs() < 0.05).all()
        assert scale.unique().tolist() == [100, 101, 102, 103]
    assert whole(rule, scale_low=7, scale_high=7).w2_scale.unique().tolist() == [7]
    assert len(whole(rule, scale_low=0, scale_high=255).w13_scale.unique()) == 256


@pytest.mark.parametrize("rule", VALUE_RULES)
@pytest.mark.parametrize("x_exponent", [-100, 0, 100])
def test_mxfp8_hidden_states_are_the_exact_value(rule: str, x_exponent: int) -> None:
    edits = tuple(
        ValueEdit(tensor="hidden_states", index=(0, column), value=value)
        for column, value in enumerate(("max", "-max", "min_subnormal", "0", "-0"))
    )
    values = Values(rule=rule, x_exponent=x_exponent, edits=edits)
    problem = build(Scenario(shape=MEDIUM, precision="mxfp8xmxfp4", values=values))
    payload = problem.hidden_q.view(torch.uint8)
    exact = formats.mxfp8_dequantize(payload, problem.hidden_scale)
    assert torch.equal(problem.hidden_states.double(), exact)
    assert payload[0, :5].tolist() == [0x7E, 0xFE, 0x01, 0x00, 0x80]
    assert (exact[0, 2] > 0).item()
    assert torch.equal(problem.hidden_states.double().signbit(), exact.signbit())


def test_mxfp8_is_the_rule_quantised() -> None:
    plain = build(Scenario(shape=MEDIUM)).hidden_states.double()
    quantised = build(Scenario(shape=MEDIUM, precision="mxfp8xmxfp4")).hidden_states.double()
    assert ((plain - quantised).abs() <= plain.abs() / 16 + 2.0**-9).all()


# --- value edits ---------------------------------------------------------------------------------------------------

SPECIALS = ("nan", "inf", "-inf", "0", "-0", "max", "-max", "min_subnormal")
BFLOAT16_BITS = (0x7FC0, 0x7F80, 0xFF80, 0x0000, 0x8000, 0x7F7F, 0xFF7F, 0x0001)
E4M3_BITS = (0x7F, 0x7F, 0xFF, 0x00, 0x80, 0x7E, 0xFE, 0x01)


@pytest.mark.parametrize(("special", "expected"), list(zip(SPECIALS, BFLOAT16_BITS, strict=True)))
def test_hidden_state_edit(special: str, expected: int) -> None:
    edit = ValueEdit(tensor="hidden_states", index=(3, 7), value=special)
    base, edited = build(Scenario(shape=MEDIUM)), build(Scenario(shape=MEDIUM, values=Values(edits=(edit,))))
    got = edited.hidden_states.view(torch.int16)
    assert got[3, 7].item() & 0xFFFF == expected
    got[3, 7] = base.hidden_states.view(torch.int16)[3, 7]
    assert identical(edited.hidden_states, base.hidden_states)


@pytest.mark.parametrize(("special", "expected"), list(zip(SPECIALS, E4M3_BITS, strict=True)))
def test_hidden_state_edit_of_mxfp8(special: str, expected: int) -> None:
    edit = ValueEdit(tensor="hidden_states", index=(3, 7), value=special)
    base = build(Scenario(shape=MEDIUM, precision="mxfp8xmxfp4"))
    edited = build(Scenario(shape=MEDIUM, precision="mxfp8xmxfp4", values=Values(edits=(edit,))))
    got = edited.hidden_q.view(torch.uint8)
    assert got[3, 7] == expected
    assert edited.hidden_states[3, 7].isnan() == (expected & 0x7F == 0x7F)
    got[3, 7] = base.hidden_q.view(torch.uint8)[3, 7]
    assert identical(edited.hidden_q, base.hidden_q)
    assert identical(edited.hidden_scale, base.hidden_scale)


def test_later_edits_win() -> None:
    edits = tuple(ValueEdit(tensor="hidden_states", index=(0, 0), value=value) for value in ("nan", "max"))
    assert build(Scenario(values=Values(edits=edits))).hidden_states[0, 0].isfinite()


@pytest.mark.parametrize("name", ["w13_scale", "w2_scale"])
def test_scale_edit_goes_by_the_global_expert(name: str) -> None:
    edit = ValueEdit(tensor=name, index=(5, 70, 1), value=255)
    for rank in range(3):
        parallel = Parallel(ep_size=3, ep_rank=rank)
        base = tensors(build(Scenario(shape=MEDIUM, parallel=parallel)))
        edited = tensors(build(Scenario(shape=MEDIUM, parallel=parallel, values=Values(edits=(edit,)))))
        changed = {key for key in base if not identical(base[key], edited[key])}
        assert changed == ({name} if rank == 1 else set())
        if rank == 1:
            assert (edited[name] != base[name]).nonzero().tolist() == [[1, 70, 1]]
            assert edited[name][1, 70, 1] == 255


# --- ranks and sizes -----------------------------------------------------------------------------------------------

PER_EXPERT = ("w13", "w13_scale", "w2", "w2_scale", "w13_bias", "w2_bias", "activation.beta")


@pytest.mark.parametrize("rule", VALUE_RULES)
def test_an_ep_rank_holds_its_slice_of_the_whole(rule: str) -> None:
    def make(ep_size: int, ep_rank: int) -> dict[str, torch.Tensor]:
        return tensors(
            build(
                Scenario(
                    shape=MEDIUM,
                    parallel=Parallel(ep_size=ep_size, ep_rank=ep_rank),
                    activation=Situ(per_expert=True),
                    layer=Layer(biases="per_expert"),
                    routing=Routing(rule="round_robin"),
                    values=Values(rule=rule),
                )
            )
        )

    everything = make(1, 0)
    for rank in range(4):
        mine = make(4, rank)
        for name in everything:
            want = (
                everything[name][3 * rank : 3 * rank + 3]
                if name in (*PER_EXPERT, "activation.linear_beta")
                else everything[name]
            )
            assert identical(mine[name], want), name


@pytest.mark.parametrize("rule", VALUE_RULES)
def test_a_moe_tp_rank_holds_its_slice_of_the_whole(rule: str) -> None:
    shape = dataclasses.replace(MEDIUM, intermediate=96 * 4)

    def make(size: int, rank: int) -> Problem:
        layer = Layer(biases="per_expert", moe_tp_size=size, moe_tp_rank=rank)
        return build(Scenario(shape=shape, layer=layer, values=Values(rule=rule)))

    everything = make(1, 0)
    for rank in range(4):
        mine, own = make(4, rank), slice(96 * rank, 96 * (rank + 1))
        for name in ("w13", "w13_scale", "w13_bias"):
            gate, up = getattr(everything, name).chunk(2, dim=1)
            assert identical(getattr(mine, name), torch.cat((gate[:, own], up[:, own]), dim=1)), name
        assert identical(mine.w2, everything.w2[:, :, 48 * rank : 48 * (rank + 1)])
        assert identical(mine.w2_scale, everything.w2_scale[:, :, 3 * rank : 3 * (rank + 1)])
        assert (mine.w2_bias is None) == (rank > 0)
        assert identical(mine.hidden_states, everything.hidden_states)
    assert identical(make(4, 0).w2_bias, everything.w2_bias)


@pytest.mark.parametrize("rule", ["normal", "integer", "index", "wide"])
def test_a_larger_layer_holds_the_smaller_ones_elements(rule: str) -> None:
    """So a shrinker that cuts a size leaves all other content alone."""
    small = build(Scenario(shape=MEDIUM, layer=Layer(biases="per_expert"), values=Values(rule=rule)))
    shape = Shape(tokens=9, hidden=288, intermediate=160, experts=20, top_k=3)
    large = build(Scenario(shape=shape, layer=Layer(biases="per_expert"), values=Values(rule=rule)))
    if rule != "integer":
        assert identical(large.hidden_states[:6, :96], small.hidden_states)
    assert identical(large.topk_weights[:6], small.topk_weights)
    for name, columns in (("w13", 48), ("w13_scale", 3)):
        for mine, theirs in zip(getattr(small, name).chunk(2, 1), getattr(large, name).chunk(2, 1), strict=True):
            assert identical(theirs[:12, :128, :columns], mine), name
    assert identical(large.w2[:12, :96, :64], small.w2)
    assert identical(large.w2_scale[:12, :96, :4], small.w2_scale)
    assert identical(large.w2_bias[:12, :96], small.w2_bias)
    for mine, theirs in zip(small.w13_bias.chunk(2, 1), large.w13_bias.chunk(2, 1), strict=True):
        assert identical(theirs[:12, :128], mine)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_padding_appends_garbage_that_is_masked(precision: str) -> None:
    base = Scenario(shape=MEDIUM, precision=precision)
    plain = tensors(build(base))
    padded = tensors(build(dataclasses.replace(base, execution=Execution(padding=3))))
    for name in plain:
        rows = plain[name].shape[0] if name.startswith(("hidden", "topk")) else None
        assert identical(padded[name][:rows], plain[name])
    assert padded["hidden_states"].shape[0] == 9
    assert padded["hidden_states"][6:].isnan().all()
    assert (padded["topk_ids"][6:] == -1).all()
    assert (padded["topk_weights"][6:] == 0).all()


# --- routing -------------------------------------------------------------------------------------------------------

ROUTED = Shape(tokens=400, hidden=32, intermediate=32, experts=64, top_k=4)


def route(rule: str, *, seed: int = 0, ep_size: int = 1, ep_rank: int = 0, shape: Shape = ROUTED) -> Problem:
    return build(
        Scenario(
            shape=shape, parallel=Parallel(ep_size=ep_size, ep_rank=ep_rank), routing=Routing(rule=rule, seed=seed)
        )
    )


@pytest.mark.parametrize("rule", ROUTING_RULES)
@pytest.mark.parametrize("shape", [ROUTED, dataclasses.replace(ROUTED, top_k=64), Shape(tokens=0)])
@pytest.mark.parametrize("ep_size", [1, 16])
@pytest.mark.parametrize("seed", [0, 1])
def test_ids_are_in_range_and_distinct(rule: str, shape: Shape, ep_size: int, seed: int) -> None:
    if shape.experts % ep_size:
        shape = dataclasses.replace(shape, experts=ep_size)
    ids = route(rule, ep_size=ep_size, ep_rank=ep_size // 2, shape=shape, seed=seed).topk_ids
    assert ids.shape == (shape.tokens, shape.top_k)
    assert ((ids >= 0) & (ids < shape.experts)).all()
    ordered = ids.sort(dim=1).values
    assert (ordered[:, 1:] > ordered[:, :-1]).all()


@pytest.mark.parametrize("rule", [rule for rule in ROUTING_RULES if rule != "ties"])
def test_weights_are_positive_and_sum_to_one(rule: str) -> None:
    weights = route(rule).topk_weights
    assert (weights > 0).all()
    assert (weights.double().sum(1) - 1).abs().max() < 1e-6
    assert len(weights.unique()) > 1000


def test_uniform_rule() -> None:
    counts = torch.bincount(route("uniform").topk_ids.flatten(), minlength=64)
    assert counts.min() > 5
    assert counts.max() < 50


def test_skewed_rule() -> None:
    counts = torch.bincount(route("skewed").topk_ids.flatten(), minlength=64).sort(descending=True).values
    assert counts[0] > 250
    assert counts[:8].sum() > counts[8:].sum()


def test_all_to_one_rule() -> None:
    for seed in range(20):
        ids = route("all_to_one", seed=seed, ep_size=8, ep_rank=5).topk_ids
        assert len(ids.unique(dim=0)) == 1
        assert torch.equal((ids[0] - ids[0, 0]) % 64, torch.arange(4))
        if seed % 2 == 0:
            assert 40 <= ids[0, 0] < 48
    assert len({route("all_to_one", seed=seed).topk_ids[0, 0].item() for seed in range(20)}) > 10


def test_round_robin_rule() -> None:
    ids = route("round_robin").topk_ids
    assert torch.equal(ids.flatten(), torch.arange(1600, dtype=torch.int32) % 64)


def test_remote_only_rule() -> None:
    assert (route("remote_only", ep_size=8, ep_rank=3).local_ids == -1).all()
    all_of_them = route("remote_only", ep_size=8, ep_rank=3, shape=dataclasses.replace(ROUTED, top_k=60))
    assert ((all_of_them.local_ids >= 0).sum(1) == 4).all(), "56 are remote: the other 4 must be local"


def test_empty_experts_rule() -> None:
    drawn = route("empty_experts").topk_ids.unique()
    assert len(drawn) == 32
    wide = route("empty_experts", shape=dataclasses.replace(ROUTED, top_k=40)).topk_ids.unique()
    assert len(wide) == 40


def test_empty_experts_rule_leaves_local_experts_empty_too() -> None:
    problem = route("empty_experts", ep_size=8, ep_rank=3)
    counts = torch.bincount(problem.local_ids.flatten() + 1, minlength=9)[1:]
    assert 0 < (counts == 0).sum() < 8


def test_ties_rule() -> None:
    problem = route("ties")
    assert torch.equal(problem.topk_ids, torch.arange(4, dtype=torch.int32).repeat(400, 1))
    assert (problem.topk_weights == 0.25).all()


@pytest.mark.parametrize("rule", ["uniform", "skewed", "empty_experts"])
def test_nine_of_ten_rows_have_a_local_slot_at_a_real_rank(rule: str) -> None:
    shape = Shape(tokens=512, hidden=32, intermediate=32, experts=896, top_k=16)
    problem = route(rule, ep_size=32, ep_rank=7, shape=shape)
    share = (problem.local_ids >= 0).any(dim=1).double().mean().item()
    assert 0.9 < share < 1.0
    assert (problem.local_ids == -1).any(dim=1).all(), "remote ids are drawn"


# --- routing edits -------------------------------------------------------------------------------------------------


def test_routing_edits() -> None:
    base = build(Scenario(shape=MEDIUM))
    edits = (
        MaskSlot(token=0, slot=1),
        MaskRow(token=1),
        AssignExpert(token=2, slot=0, expert=11),
        DuplicateSlot(token=2, slot=2, source=0),
        SetWeight(token=3, slot=1, weight=-0.3),
        SetWeight(token=3, slot=2, weight=math.nan),
        SetWeight(token=4, slot=0, weight=-math.inf),
    )
    edited = build(Scenario(shape=MEDIUM, routing=Routing(edits=edits)))
    ids, weights = base.topk_ids.clone(), base.topk_weights.clone()
    ids[0, 1] = -1
    ids[1] = -1
    ids[2, 0] = ids[2, 2] = 11
    weights[3, 1], weights[3, 2], weights[4, 0] = -0.3, math.nan, -math.inf
    assert torch.equal(edited.topk_ids, ids)
    assert identical(edited.topk_weights, weights)


def test_routing_edits_apply_in_order() -> None:
    edits = (MaskRow(token=0), AssignExpert(token=0, slot=1, expert=3), DuplicateSlot(token=0, slot=0, source=1))
    assert build(Scenario(shape=MEDIUM, routing=Routing(edits=edits))).topk_ids[0].tolist() == [3, 3, -1]


def test_stray_ids_name_no_expert() -> None:
    edits = tuple(
        StrayId(token=token, slot=0, expert_id=value) for token, value in enumerate((12, 2**31 - 1, -(2**31)))
    )
    problem = build(Scenario(shape=MEDIUM, routing=Routing(edits=edits)))
    assert problem.topk_ids[:3, 0].tolist() == [12, 2**31 - 1, -(2**31)]
    assert problem.local_ids[:3, 0].tolist() == [-1, -1, -1]


def test_routed_padding_is_routed_as_further_tokens_are() -> None:
    longer = dataclasses.replace(MEDIUM, tokens=MEDIUM.tokens + 3)
    execution = Execution(padding=3, padding_rows="routed")
    padded, further = build(Scenario(shape=MEDIUM, execution=execution)), build(Scenario(shape=longer))
    assert torch.equal(padded.topk_ids, further.topk_ids)
    assert torch.equal(padded.topk_weights, further.topk_weights)
    assert bool(padded.hidden_states[MEDIUM.tokens :].isnan().all())
    assert torch.equal(padded.hidden_states[: MEDIUM.tokens], further.hidden_states[: MEDIUM.tokens])


@pytest.mark.parametrize("chunk", [1, 1 << 16, 1 << 26])
def test_how_many_experts_are_made_together_makes_no_difference(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(shape=Shape(hidden=128, intermediate=96, experts=7), values=Values(seed=3))
    monkeypatch.setattr(content, "_CHUNK", 1 << 15)  # two experts of w13
    several = build(scenario)
    monkeypatch.setattr(content, "_CHUNK", chunk)
    other = build(scenario)
    assert all(torch.equal(getattr(several, name), getattr(other, name)) for name in ("w13", "w13_scale", "w2"))
    assert torch.equal(several.w2_scale, other.w2_scale)
