"""The Marlin oracle where there is no card: layouts, the import, what is promised, and the whole layer emulated.

The kernels' places take stand-ins that read their arguments as the kernels do and add as tensor cores do, so that the
declared Numerics are held against an arithmetic that shares nothing with the reference.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import math
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import simulate
import torch
from simulate import Choices, Tensor

from difftest.judging.compare import judge
from oracles import marlin, marlin_layouts
from oracles import sglang_package as package
from oracles.base import Oracle, capability_of, missing_of
from oracles.marlin import NUMERICS, Marlin
from oracles.problem import Problem, build
from oracles.reference import enclose
from strategies.scenario import (
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
    SwigluOai,
    ValueEdit,
    Values,
)

BASE = Scenario(shape=Shape(tokens=5, hidden=128, intermediate=64, experts=4, top_k=2))


def _random(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def _bfloat16(bits: int) -> float:
    return float(torch.tensor([bits & 0xFFFF], dtype=torch.int32).to(torch.int16).view(torch.bfloat16))


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 64, 32), (3, 192, 96), (2, 128, 512), (0, 64, 32)])
def test_layouts_come_back(shape: tuple[int, int, int]) -> None:
    experts, rows, columns = shape
    packed, scale, bias = _random(experts, rows, columns // 2), _random(experts, rows, columns // 32), _random(2, rows)
    weight = marlin_layouts.repack_weight(packed)
    assert weight.shape == (experts, columns // 16, 2 * rows)
    assert weight.dtype == torch.int32
    assert torch.equal(marlin_layouts.unpack_weight(weight), packed)
    permuted = marlin_layouts.permute_scale(scale)
    assert permuted.shape == (experts, columns // 32, rows)
    assert permuted.is_contiguous()
    assert torch.equal(marlin_layouts.unpermute_scale(permuted), scale)
    assert torch.equal(marlin_layouts.unpermute_bias(marlin_layouts.permute_bias(bias)), bias)


def test_a_warp_reads_its_codes_and_scales() -> None:
    """The kernel's own steps, lane by lane: a thread loads four words of a tile of 64 rows and 16 columns, and eight
    scale bytes; shifts and masks make two bfloat16 of four bits, or of two bytes, at once; and what it multiplies is
    operand B of m16n8k16 (PTX: thread t holds columns 2 (t mod 4) and the next, and both + 8, of row t / 4)."""
    packed, scale = _random(1, 128, 32), _random(1, 128, 2).clamp(min=1, max=250)
    weight = marlin_layouts.repack_weight(packed)[0].long() & 0xFFFFFFFF
    scales = marlin_layouts.permute_scale(scale)[0].tolist()
    codes = torch.stack((packed[0] & 15, packed[0] >> 4), -1).flatten(-2)
    table = simulate._CODES[codes.int()]
    for tile, block, thread in itertools.product(range(4), range(2), range(32)):
        words = weight[tile, 128 * block + 4 * thread :][:4].tolist()
        group, start = tile // 2, 64 * block + 8 * (thread // 4)
        quads = [int.from_bytes(bytes(scales[group][start + part : start + part + 4]), "little") for part in (0, 4)]
        # Of each four bytes: first 0 and 2, then 1 and 3.
        pairs = [half for quad in quads for half in ((quad << 7) & 0x7F807F80, (quad & 0xFF00FF00) >> 1)]
        for part, later, later_column in itertools.product(range(4), range(2), range(2)):
            raw = words[part] if later else words[part] << 8  # the second eight rows are in the upper nibbles
            raw = raw if later_column else raw << 4
            found = (raw & 0x80008000) | ((raw & 0x70007000) >> 6)
            row = 64 * block + 16 * part + 8 * later + thread // 4
            assert _bfloat16(pairs[part] >> 16 * later) == 2.0 ** (int(scale[0, row, group]) - 127)
            for odd in range(2):
                # Nibbles of one byte belong to columns 8 apart, the later in the upper one.
                column = 16 * tile + 2 * (thread % 4) + 8 * later_column + odd
                assert _bfloat16(found >> 16 * odd) * 2.0**126 == float(table[row, column])


def test_a_thread_adds_its_biases() -> None:
    """Thread t holds columns 2 (t mod 4) and the next of each eight, and reads eight biases side by side."""
    bias = torch.arange(64.0)[None]
    permuted = marlin_layouts.permute_bias(bias)[0]
    for half, thread, eight, odd in itertools.product(range(2), range(4), range(4), range(2)):
        assert permuted[32 * half + 8 * thread + 2 * eight + odd] == 32 * half + 8 * eight + 2 * thread + odd


def test_shapes_that_do_not_fit_are_named() -> None:
    for shape in ((1, 32, 8), (1, 64, 4)):
        with pytest.raises(ValueError, match=r"weight.shape = .*N must be a multiple of 64 and K/2 a multiple of 8"):
            marlin_layouts.repack_weight(_random(*shape))
    with pytest.raises(ValueError, match=r"scale.shape = .*N must be a multiple of 64"):
        marlin_layouts.permute_scale(_random(1, 32, 4))


def test_padding_is_zeros() -> None:
    assert [marlin_layouts.padded(width) for width in (32, 64, 96, 3072)] == [64, 64, 128, 3072]
    rows = marlin_layouts.pad_rows(_random(2, 192, 3), 128)
    assert torch.equal(rows[:, :96], _random(2, 192, 3)[:, :96])
    assert torch.equal(rows[:, 128:224], _random(2, 192, 3)[:, 96:])
    assert not bool(rows[:, 96:128].any())
    assert not bool(rows[:, 224:].any())
    columns = marlin_layouts.pad_columns(_random(2, 3, 5), 8)
    assert torch.equal(columns[..., :5], _random(2, 3, 5))
    assert not bool(columns[..., 5:].any())


# --- the package -----------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the installed version."""

    def install(version: str | None) -> None:
        def found(name: str) -> str:
            if name == "sglang" and version is not None:
                return version
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", found)

    return install


def test_what_is_missing_is_told_in_order(installed: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(package.MODULES, raising=False)
    installed(None)
    assert Marlin().missing() == f"not installed: {package.INSTALL}"
    installed("0.5.22.post1")
    assert Marlin().missing() == f"sglang is older than 0.5.23: {package.INSTALL} --upgrade"
    installed("0.5.23")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Marlin().missing() == "no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert Marlin().missing() == "Marlin needs a device of SM80 or later, and this one is SM75"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))

    def broken(name: str) -> Any:
        raise ImportError(f"No module named 'msgspec' in {name}")

    monkeypatch.setattr(package, "module", broken)
    assert str(Marlin().missing()).startswith("sglang cannot be imported (No module named 'msgspec' in")
    monkeypatch.setattr(package, "module", lambda _: None)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    expected = (
        "sglang compiles its kernels when they are first used, and there is no nvcc (nor DIFFTEST_SGLANG_MODULES)"
    )
    assert Marlin().missing() == expected
    monkeypatch.setenv(package.MODULES, str(tmp_path))
    assert Marlin().missing() is None


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of sglang's form that says when the server is imported; nothing of it stays imported."""
    files = {
        "sglang/__init__.py": "raise RuntimeError('the server')",
        "sglang/srt/__init__.py": "raise RuntimeError('the server')",
        "sglang/srt/utils/__init__.py": "raise RuntimeError('the server')",
        "sglang/srt/environ.py": "depth = 3",
        "sglang/kernels/__init__.py": "",
        "sglang/kernels/jit/__init__.py": "",
        "sglang/kernels/jit/utils.py": "def load_jit(*names, **keywords): return ('compiled', names, keywords)",
        "sglang/kernels/repack.py": (
            "from sglang.kernels.jit.utils import load_jit\n"
            "from sglang.srt import environ\n"
            "from sglang.srt.utils import is_cuda\n"
            "from sglang.srt.utils.custom_op import register_custom_op\n"
            "@register_custom_op(mutates_args=['out'])\n"
            "def repack(bits): return load_jit('repack', bits, cuda_files=['repack.cuh'])\n"
            "@register_custom_op\n"
            "def plain(): return is_cuda(), environ.depth\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(sys.modules)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("sglang", "sgl_kernel")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "modules", sys.modules)
    yield tmp_path  # type: ignore[misc]
    for name in sys.modules.keys() - before.keys():
        if name.partition(".")[0] in ("sglang", "sgl_kernel"):
            del sys.modules[name]


def test_kernels_are_imported_without_the_server(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree.is_dir()
    monkeypatch.delenv(package.MODULES, raising=False)
    repack = package.module("kernels.repack")
    assert repack.plain() == (True, 3)
    assert repack.repack(4) == ("compiled", ("repack", 4), {"cuda_files": ["repack.cuh"]})


def test_built_modules_are_loaded(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(package.MODULES, str(tree / "built"))
    (tree / "built").mkdir()
    path = tree / "built" / "sgl_kernel_jit_repack_4.so"
    path.touch()
    loader = types.SimpleNamespace(load_module=lambda name: f"loaded {name}")
    monkeypatch.setitem(sys.modules, "tvm_ffi", loader)
    repack = package.module("kernels.repack")
    assert repack.repack(4) == f"loaded {path}"
    assert repack.repack(8)[0] == "compiled"


def test_there_is_no_package(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree.is_dir()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ImportError, match="No module named 'sglang'"):
        package.module("kernels.repack")


# --- what is promised ------------------------------------------------------------------------------------------------


def test_it_is_an_oracle() -> None:
    oracle = Marlin()
    assert isinstance(oracle, Oracle)
    assert capability_of(oracle) is oracle.capability
    assert missing_of(oracle) == oracle.missing()


@pytest.mark.parametrize(
    ("scenario", "reason"),
    [
        (replace(BASE, shape=replace(BASE.shape, hidden=192)), "H is not a multiple of 128"),
        (replace(BASE, activation=Situ(per_expert=True)), "activation parameters per expert"),
        (replace(BASE, output_dtype="float16"), "output dtype float16"),
        (replace(BASE, execution=Execution(mode="graph")), "execution mode graph"),
        (replace(BASE, execution=Execution(tactic=0)), "a tactic beyond its 0"),
        (replace(BASE, precision="mxfp8xmxfp4"), "precision mxfp8xmxfp4"),
    ],
)
def test_what_is_not_promised(scenario: Scenario, reason: str) -> None:
    assert Marlin().unsupported(scenario) == reason


def test_block_sizes_are_tactics() -> None:
    tuned = Marlin(tactics=True)
    assert tuned.unsupported(replace(BASE, execution=Execution(tactic=4))) is None
    assert tuned.unsupported(replace(BASE, execution=Execution(tactic=5))) == "a tactic beyond its 5"


# --- the layer, emulated ---------------------------------------------------------------------------------------------


class StandIn:
    """In the place of sglang's modules. choices: what the tensor cores' recipe leaves open."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.blocks: list[int] = []
        self.aligned: list[str] = []

    def module(self, name: str) -> Any:
        functions: dict[str, Any] = {
            "gptq_marlin_repack": {"gptq_marlin_repack": self.repack},
            "moe_align": {"moe_align_block_size": self.align},
            "moe_align_small_numel": {"moe_align_small_numel": self.align_small, "SMALL_NUMEL_LIMIT": 64},
            "moe_align_single_token": {"moe_align_single_token": self.align_single},
            "moe_wna16_marlin": {"moe_wna16_marlin_gemm": self.gemm},
            "activation": {"activation_module": lambda _: types.SimpleNamespace(run_activation=self.silu)},
            "minimax_m3_swiglu": {"swiglu_oai_split": self.swiglu_oai},
            "fused_marlin_moe": {"situ_and_mul": self.situ},
            "moe_topk_sum": {"moe_topk_sum": self.sum},
        }
        return types.SimpleNamespace(**functions[name.rpartition(".")[2]])

    def repack(self, words: Tensor, order: Tensor, size_k: int, size_n: int, bits: int) -> Tensor:
        assert words.shape == (size_k // 8, size_n)
        assert (order.numel(), bits) == (0, 4)
        return marlin_layouts.repack_weight(words.T.contiguous().view(torch.uint8)[None])[0]

    def align(self, ids: Tensor, buckets: int, block: int, order: Tensor, experts: Tensor, counts: Tensor, *rest: Any,
              write_inactive_prefix_count: bool, kind: str = "generic") -> None:  # fmt: skip
        self.aligned.append(kind)
        if kind == "generic":
            sums, fill = rest
            assert fill
            assert sums.numel() >= buckets + 1
        flat = ids.flatten().tolist()
        assert all(-1 <= found < buckets - 1 for found in flat)
        pairs: list[int] = []
        owners: list[int] = []
        for expert in range(-1, buckets - 1):
            own = [pair for pair, found in enumerate(flat) if found == expert]
            blocks = -(-len(own) // block)
            pairs += own + [len(flat)] * (blocks * block - len(own))
            owners += [expert] * blocks
        order[: len(pairs)] = torch.tensor(pairs, dtype=torch.int32)  # raises where the table is too short
        experts[: len(owners)] = torch.tensor(owners, dtype=torch.int32)
        assert counts.numel() == 1 + write_inactive_prefix_count
        counts[0] = len(pairs)
        if write_inactive_prefix_count:
            counts[1] = owners.count(-1)

    def align_small(self, *tables: Any, **keywords: Any) -> None:
        self.align(*tables, **keywords, kind="small")

    def align_single(self, ids: Tensor, block: int, *, return_inactive_prefix_count: bool) -> Any:
        assert return_inactive_prefix_count
        slots = ids.shape[1]
        order, experts = torch.empty(slots * block, dtype=torch.int32), torch.empty(slots, dtype=torch.int32)
        counts = torch.empty(2, dtype=torch.int32)
        used = sorted(range(slots), key=lambda slot: ids[0, slot].item())
        for place, slot in enumerate(used):
            order[place * block : (place + 1) * block] = slots
            order[place * block] = slot
            experts[place] = ids[0, slot]
        counts[0], counts[1] = slots * block, int((ids < 0).sum())
        self.aligned.append("single")
        return order, experts, counts

    def gemm(self, a: Tensor, c: Tensor, codes: Tensor, bias: Tensor | None, scale: Tensor, *rest: Any,
             moe_block_size: int, top_k: int, mul_topk_weights: bool, is_ep: bool, b_q_type: Any, size_m: int,
             size_n: int, size_k: int, use_fp32_reduce: bool, expert_ids_are_sorted: bool, zero_inactive_output: bool,
             has_inactive_prefix_count: bool) -> None:  # fmt: skip
        *nothing, locks, order, experts, counts, weights = rest
        assert nothing == [None] * 4
        assert not bool(locks.any())
        assert (a.shape, c.shape) == ((size_m, size_k), (size_m * top_k, size_n))
        assert (size_k % 64, size_n % 128) == (0, 0)  # a tile of each
        assert b_q_type.id == 562949953487106
        assert expert_ids_are_sorted == has_inactive_prefix_count == (not is_ep)
        assert use_fp32_reduce
        assert scale.dtype == torch.float8_e8m0fnu
        self.blocks.append(moe_block_size)
        if not size_m:
            return
        read = marlin_layouts.unpack_weight(codes), marlin_layouts.unpermute_scale(scale.view(torch.uint8))
        owners = experts[: counts[0] // moe_block_size].tolist()
        if expert_ids_are_sorted:
            assert owners == sorted(owners)
            assert counts[1] == owners.count(-1)
        for number, expert in enumerate(owners):
            pairs = order[number * moe_block_size : (number + 1) * moe_block_size].long()
            pairs = pairs[pairs < size_m * top_k]
            if expert == -1:
                if zero_inactive_output:
                    c[pairs] = 0
                continue
            power = ((read[1][expert].int() << 7).to(torch.int16)).view(torch.bfloat16)  # 0x00 is 0, 0xFF infinity
            value = torch.stack((read[0][expert] & 15, read[0][expert] >> 4), -1).flatten(-2)
            w = simulate._CODES[value.int()].bfloat16() * power.repeat_interleave(32, dim=-1)
            y = simulate.multiply(a[pairs // top_k].double(), w.double(), NUMERICS.gemm1, self.choices).float()
            out = y.bfloat16()
            if bias is not None:
                out = out + marlin_layouts.unpermute_bias(bias)[expert]
            if mul_topk_weights:
                out = out * weights.flatten()[pairs].bfloat16()[:, None]
            c[pairs] = out

    def silu(self, source: Tensor, target: Tensor, kind: str) -> None:
        assert kind == "silu"
        gate, up = source.float().chunk(2, dim=-1)
        target.copy_(gate / (1 + torch.exp(-gate)) * up)

    def swiglu_oai(self, source: Tensor, alpha: float, beta: float, limit: float, *, out: Tensor) -> None:
        gate, up = source.float().chunk(2, dim=-1)
        top = torch.tensor(limit)
        gate, up = torch.fmin(gate, top), torch.fmin(torch.fmax(up, -top), top)
        out.copy_(gate * torch.sigmoid(alpha * gate) * (up + beta))

    def situ(self, target: Tensor, source: Tensor, beta: float, linear_beta: float) -> None:
        def tanh(value: Tensor) -> Tensor:
            return 2 * torch.sigmoid(2 * value) - 1

        gate, up = source.float().chunk(2, dim=-1)
        target.copy_(beta * tanh(gate / beta) * torch.sigmoid(gate) * (linear_beta * tanh(up / linear_beta)))

    def sum(self, answers: Tensor, output: Tensor) -> None:
        total = torch.zeros_like(output, dtype=torch.float32)
        for slot in range(answers.shape[1]):
            total += answers[:, slot].float()
        output.copy_(total)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The package, and a device of four processors that is this one."""
    made = StandIn(Choices(order=simulate.striped(64, 4), flush=False))
    monkeypatch.setattr(package, "module", made.module)
    monkeypatch.setattr(marlin, "_device", lambda tensor: tensor.device)
    monkeypatch.setattr(marlin, "_current", lambda _: contextlib.nullcontext())
    properties = types.SimpleNamespace(multi_processor_count=4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    return made


def _ask(scenario: Scenario) -> Tensor:
    assert Marlin(tactics=True).unsupported(scenario) is None
    return _answer(build(scenario))


def _answer(problem: Problem) -> Tensor:
    oracle = Marlin(tactics=True)
    return oracle(oracle.prepare(problem))


SCENARIOS = {
    "plain": BASE,
    "one token": replace(
        BASE, shape=replace(BASE.shape, tokens=1), routing=Routing(edits=(MaskSlot(token=0, slot=1),))
    ),
    "no token": replace(BASE, shape=replace(BASE.shape, tokens=0)),
    "I is padded": replace(
        BASE, shape=replace(BASE.shape, intermediate=96), layer=Layer(biases="per_expert"), activation=SwigluOai()
    ),
    "masked": replace(BASE, routing=Routing(edits=(MaskRow(token=1), MaskSlot(token=3, slot=0)))),
    "rank 1 of 2": replace(BASE, parallel=Parallel(ep_size=2, ep_rank=1), activation=Situ()),
    "rank 31 of 32": replace(
        BASE, shape=replace(BASE.shape, experts=128, top_k=8), parallel=Parallel(ep_size=32, ep_rank=31)
    ),
    "many experts": replace(BASE, shape=replace(BASE.shape, experts=96), activation=Situ(beta=1.0, linear_beta=4.0)),
    "an expert twice": replace(BASE, routing=Routing(edits=(DuplicateSlot(token=2, slot=1, source=0),))),
    "biases and a factor": replace(BASE, layer=Layer(biases="per_expert", routed_scaling_factor=2.5)),
    "a sharded I": replace(
        BASE,
        shape=replace(BASE.shape, intermediate=128),
        layer=Layer(moe_tp_size=2, moe_tp_rank=1, biases="per_expert"),
        activation=SwigluOai(limit=math.inf),
    ),
    "large and small": replace(BASE, values=Values(rule="wide", scale_low=100, scale_high=140), activation=SwigluOai()),
    "a block of 64": replace(BASE, execution=Execution(tactic=4, poison=0xFF)),
    "not finite": replace(
        BASE,
        routing=Routing(edits=(SetWeight(token=4, slot=0, weight=math.nan), SetWeight(token=3, slot=1, weight=-0.0))),
        values=Values(
            edits=(
                ValueEdit(tensor="hidden_states", index=(0, 5), value="inf"),
                ValueEdit(tensor="hidden_states", index=(2, 7), value="nan"),
            )
        ),
    ),
}


@pytest.mark.parametrize("cut", [64, 1 << 20])
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_layer_is_inside_its_enclosure(name: str, cut: int, stand_in: StandIn) -> None:
    stand_in.choices = Choices(order=simulate.striped(cut, 4 if cut == 64 else 2), flush=False)
    scenario = SCENARIOS[name]
    problem = build(scenario)
    judgement = judge(_ask(scenario), enclose(problem, NUMERICS), NUMERICS)
    assert judgement.breaches == ()
    assert judgement.stats.compared == problem.hidden_states.numel() or name == "not finite"


@pytest.mark.parametrize("field", ["router_weight", "weighted", "biased"])
def test_each_rounding_of_its_own_is_seen(field: str, stand_in: StandIn) -> None:
    """Without it in the Numerics, the emulated layer would be wrong."""
    assert stand_in.choices is not None
    scenario = SCENARIOS["biases and a factor"]
    wider = replace(NUMERICS, **{field: "float32"})
    assert judge(_ask(scenario), enclose(build(scenario), wider), wider).breaches[0].kind == "impossible"


def test_tables_are_made_as_sglang_does(stand_in: StandIn) -> None:
    for name in ("plain", "one token", "many experts", "rank 31 of 32"):
        _ask(SCENARIOS[name])
    assert stand_in.aligned == ["generic", "single", "small", "small"]


@pytest.mark.parametrize(("tokens", "block"), [(1, 8), (14, 8), (15, 16), (200, 64)])
def test_the_block_follows_the_batch(tokens: int, block: int, stand_in: StandIn) -> None:
    shape = Shape(tokens=tokens, hidden=128, intermediate=32, experts=4, top_k=2)
    scenario = replace(BASE, shape=shape)
    assert Marlin().prepare(build(scenario)).block == block
    assert stand_in.blocks == []


def test_poison_fills_what_a_call_works_in(stand_in: StandIn) -> None:
    """A row that no GEMM writes would show it: masked pairs are 0 all the same."""
    clean = _ask(SCENARIOS["masked"])
    poisoned = _ask(replace(SCENARIOS["masked"], execution=Execution(poison=0xFF)))
    assert torch.equal(clean, poisoned)
    assert not bool(clean[1].any())
    oracle = Marlin()
    prepared = oracle.prepare(build(replace(BASE, execution=Execution(poison=0x7F))))
    prepared.poison()
    assert bool((prepared.output.view(torch.uint8) == 0x7F).all())
    output = torch.full_like(prepared.output, torch.nan)
    oracle.run_into(prepared, output)
    assert torch.equal(output, oracle(prepared))
    assert stand_in.blocks


@pytest.mark.parametrize(("byte", "kind"), [(0x00, "impossible"), (0xFF, "must_be_nonfinite")])
def test_special_scale_bytes_depart(byte: int, kind: str, stand_in: StandIn) -> None:
    """0x00 is read as 0, not as 2**-127, and 0xFF as infinity, not as NaN."""
    problem = build(BASE)
    scale = problem.w13_scale.clone()
    scale[:, 64:] = byte
    crafted = replace(
        problem,
        hidden_states=torch.full_like(problem.hidden_states, 2.0**120 if byte == 0 else 1.0),
        w13=torch.full_like(problem.w13, 0x77),  # 6
        w13_scale=scale,
        w2=torch.full_like(problem.w2, 0x22),  # 1
    )
    if byte == 0:
        crafted.w13_scale[:, :64] = 1  # gates of 2**120 * 6 * 2**-126 * 128
        crafted.w2_scale[:] = 127
    judgement = judge(_answer(crafted), enclose(crafted, NUMERICS), NUMERICS)
    assert [breach.kind for breach in judgement.breaches] == [kind]
    assert stand_in.blocks


@pytest.mark.parametrize(("inner", "kinds"), [(64, []), (96, ["must_be_finite"])])
def test_a_padded_column_spreads_an_infinity(inner: int, kinds: list[str], stand_in: StandIn) -> None:
    """A zero weight times an infinity of x is NaN; without one, SiTU masks the infinity."""
    edit = ValueEdit(tensor="hidden_states", index=(0, 5), value="inf")
    shape = replace(BASE.shape, intermediate=inner)
    problem = build(replace(BASE, shape=shape, activation=Situ(), values=Values(edits=(edit,))))
    crafted = replace(problem, w13=problem.w13 | 0x11)  # no code is 0
    judgement = judge(_answer(crafted), enclose(crafted, NUMERICS), NUMERICS)
    assert [breach.kind for breach in judgement.breaches] == kinds
    assert stand_in.blocks
