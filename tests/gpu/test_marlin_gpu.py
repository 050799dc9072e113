"""Marlin's kernels on the card, SGLang's or vLLM's: what they agree with, and that all else has a name.

Every scenario that `marlin` promises is judged by its own enclosure, and by CUTLASS's answer where that has one.
Two things are known to go wrong, and each is pinned to the rows that it may touch. The kernels are SGLang's, or vLLM's
where only that is installed. Run with -s to see the tables.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
import torch
from test_cutlass_gpu import KIMI_K3, KIMI_K3_RANK, draws, rows_of, special_byte_rows

from difftest.engine import Engine
from difftest.judging.compare import Judgement, judge, not_equal, pair
from oracles import marlin_layouts, marlin_vllm
from oracles.base import missing_of
from oracles.cutlass import Cutlass
from oracles.formats import e2m1_encode, pack
from oracles.marlin import BLOCKS, Marlin, Weight
from oracles.problem import Problem, build
from oracles.reference import Reference, enclose
from strategies.scenario import (
    Execution,
    Layer,
    MaskRow,
    MaskSlot,
    Parallel,
    Routing,
    Scenario,
    Shape,
    Situ,
    Swiglu,
    SwigluOai,
    ValueEdit,
    Values,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCENARIOS = 2000
PAIRS = 600
KIMI_K3_VALUES = Values(scale_low=114, scale_high=118)
"""Gates of order 3 at that width."""

BASE = Scenario(
    shape=Shape(tokens=37, hidden=256, intermediate=96, experts=8, top_k=3),
    layer=Layer(biases="per_expert", routed_scaling_factor=2.5),
)


@functools.cache
def oracle() -> Marlin:
    found = Marlin()
    lacking = missing_of(found)
    if lacking is not None:
        pytest.skip(lacking)
    return found


def of(backend: str) -> None:
    """Skips what only one package's kernels have."""
    if oracle().backend != backend:
        pytest.skip(f"of {backend}'s kernels, and these are {oracle().backend}'s")


def answer(problem: Problem, candidate: Marlin | None = None) -> torch.Tensor:
    candidate = candidate or oracle()
    return candidate(candidate.prepare(problem))


# --- what is known to go wrong ---------------------------------------------------------------------------------------


def padded_infinity_rows(problem: Problem) -> torch.Tensor:
    """bool [M]: rows with an infinity, which the zero weights of a padded I turn into NaN."""
    if problem.intermediate % 64 == 0:
        return torch.zeros(problem.tokens, dtype=torch.bool, device=problem.hidden_states.device)
    return problem.hidden_states.isinf().any(-1)


KNOWN = {"scale byte 0x00 or 0xFF": special_byte_rows, "infinity and a padded I": padded_infinity_rows}


@dataclass(frozen=True)
class Result:
    """One scenario. whole: all rows judged; None when a kernel raised. rest: without the rows of known mistakes."""

    scenario: Scenario
    names: tuple[str, ...]
    whole: Judgement | None
    rest: Judgement | None
    error: str = ""

    @property
    def verdict(self) -> str:
        if self.whole is None:
            return "rejected"
        return self.whole.breaches[0].kind if self.whole.breaches else "agrees"

    @property
    def unexplained(self) -> bool:
        """Whether something is wrong that has no name."""
        return self.whole is None or bool(self.rest is not None and self.rest.breaches)

    @property
    def told(self) -> str:
        detail = self.error or (self.rest.breaches[0].detail if self.rest is not None and self.rest.breaches else "")
        return f"{self.scenario.digest}: {detail}\n    {self.scenario.to_json()}"


def run(scenario: Scenario, other: Cutlass | None = None) -> Result:
    """Against the reference, or against another candidate by both enclosures."""
    problem = build(scenario, "cuda")
    rows = {name: known(problem) for name, known in KNOWN.items()}
    names = tuple(name for name, touched in rows.items() if bool(touched.any()))
    try:
        output = answer(problem)
        torch.cuda.synchronize()
    except RuntimeError as error:
        return Result(scenario, names, None, None, str(error).splitlines()[0])
    allowed = enclose(problem, oracle().numerics)
    if other is not None:
        allowed = pair(allowed, other(other.prepare(problem)), enclose(problem, other.numerics))
    whole = judge(output, allowed, oracle().numerics)
    touched = functools.reduce(torch.logical_or, rows.values())
    rest = judge(output[~touched], rows_of(allowed, ~touched), oracle().numerics)
    return Result(scenario, names, whole, rest)


def table(title: str, results: Iterable[Result]) -> str:
    """Counts by what is known to go wrong and by activation, with error / radius where the radius is not 0."""
    columns = ("agrees", "implausible", "impossible", "must_be_finite", "must_be_nonfinite", "rejected")
    lines = [f"{title:44} {'all':>5} " + " ".join(f"{column:>17}" for column in columns) + "  ratio median / max"]
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(" + ".join(result.names) or f"plain {result.scenario.activation.kind}", []).append(result)
    for name, group in sorted(groups.items(), key=lambda item: (not item[0].startswith("plain"), item[0])):
        counts = Counter(result.verdict for result in group)
        stats = [result.rest.stats for result in group if result.rest is not None]
        medians = [one.median_ratio for one in stats if one.median_ratio is not None]
        largest = [one.max_ratio for one in stats if one.max_ratio is not None]
        ratio = f"{statistics.median(medians):.3f} / {max(largest):.3f}" if medians else "-"
        cells = " ".join(f"{counts[column]:17d}" for column in columns)
        lines.append(f"{name:44} {len(group):5d} {cells}  {ratio}")
    exact = [result.rest.stats for result in results if result.rest is not None]
    share = sum(one.exact for one in exact) / max(1, sum(one.compared for one in exact))
    lines.append(f"must be bit-exact: {share:.1%} of all outputs compared")
    return "\n".join(lines)


def assert_named(title: str, results: list[Result]) -> None:
    print("\n" + table(title, results))
    unexplained = [result for result in results if result.unexplained]
    for result in unexplained[:10]:
        print(result.told)
    assert not unexplained


def test_every_disagreement_has_a_name() -> None:
    results = [run(scenario) for scenario in draws(SCENARIOS, oracle().capability)]
    assert_named("marlin, by the reference", results)
    assert len(results) >= SCENARIOS - 10  # two draws in a row that are one scenario


def test_marlin_and_cutlass_agree() -> None:
    other = Cutlass()
    lacking = missing_of(other)
    if lacking is not None:
        pytest.skip(lacking)
    known = {"duplicate_experts": False, "special_scale_bytes": False, "empty_batch": False}  # of CUTLASS
    capability = replace(
        oracle().capability, intermediate_multiple=128, activations=other.capability.activations, **known
    )
    assert_named("marlin, by cutlass", [run(scenario, other) for scenario in draws(PAIRS, capability)])


@pytest.mark.parametrize("tokens", [1, 8, 32, 128])
def test_kimi_k3_rank(tokens: int) -> None:
    scenario = Scenario(
        shape=replace(KIMI_K3, tokens=tokens), parallel=KIMI_K3_RANK, activation=Situ(), values=KIMI_K3_VALUES
    )
    result = run(scenario)
    assert result.whole is not None
    stats = result.whole.stats
    print(
        f"\nKimi-K3 rank 7 of 32, situ, M = {tokens}: {result.verdict}, exact {stats.exact} of {stats.compared}, "
        f"ratio {stats.median_ratio} / {stats.max_ratio}, mean radius {stats.mean_radius / stats.rms:.2e} of rms"
    )
    assert result.verdict == "agrees"


def test_the_engine_finds_nothing() -> None:
    """Poison, guard bands, splits, permutations, padding, foreign ids, ranks, as a campaign samples them, where no
    known mistake is in the way."""
    engine = Engine(oracle(), Reference(), device="cuda")
    known = {"special_scale_bytes": False, "non_finite": False}
    judged = 0
    for scenario in draws(200, replace(oracle().capability, **known)):
        outcome = engine.check(scenario)
        judged += 1
        findings = [found for found in (outcome, *outcome.other_findings) if found.is_finding]
        assert findings == [], scenario.to_json()
    spans = {name: round(seconds, 1) for name, seconds in engine.spans.seconds.items()}
    print(f"\nmarlin: {judged} scenarios with a sample of the checks, seconds {spans}")


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 64, 32), (3, 192, 96), (2, 512, 256)])
def test_the_packages_repacking_does_what_the_layout_says(shape: tuple[int, int, int]) -> None:
    of("sglang")
    experts, rows, columns = shape
    generator = torch.Generator("cuda").manual_seed(0)
    packed, scale = (
        torch.randint(0, 256, (experts, rows, columns // k), dtype=torch.uint8, device="cuda", generator=generator)
        for k in (2, 32)
    )
    made = Weight.of(packed, scale, None)
    assert torch.equal(made.codes, marlin_layouts.repack_weight(packed))
    assert torch.equal(marlin_layouts.unpack_weight(made.codes), packed)


def test_vllms_preparation_does_what_the_layout_says() -> None:
    of("vllm")
    problem = build(replace(BASE, shape=replace(BASE.shape, intermediate=128)), "cuda")
    operands = marlin_layouts.Operands.of(problem, torch.Tensor.contiguous)
    prepared = iter(marlin_vllm.weights(operands))
    for weight in (operands.w13, operands.w2):
        assert torch.equal(next(prepared), marlin_layouts.repack_weight(weight.contiguous()))
    for scale in (operands.w13_scale, operands.w2_scale):
        assert torch.equal(next(prepared).view(torch.uint8), marlin_layouts.permute_scale(scale.contiguous()))
    for bias in (operands.w13_bias, operands.w2_bias):
        assert torch.equal(next(prepared), marlin_layouts.permute_bias(bias.bfloat16()))


# --- public reports --------------------------------------------------------------------------------------------------


def test_router_weights_meet_their_own_rows() -> None:
    """vllm#48895: the second GEMM is said to multiply rows by other rows' weights, where K is no multiple of a tile."""
    for tokens in (32, 100, 200, 300, 400):  # each its own rows of a thread block
        shape = Shape(tokens=tokens, hidden=2944, intermediate=2880, experts=32, top_k=4)
        assert run(Scenario(shape=shape, execution=Execution(poison=0xFF))).verdict == "agrees"


def test_masked_slots_without_expert_parallelism() -> None:
    """sglang#28170: -1 was read as an expert where no map was given. SGLang's kernels are given none here."""
    for edits in ((MaskSlot(token=2, slot=1),), tuple(MaskRow(token=token) for token in range(37))):
        scenario = replace(BASE, routing=Routing(edits=edits), execution=Execution(poison=0xFF))
        assert run(scenario).verdict == "agrees"
    one = replace(BASE, shape=replace(BASE.shape, tokens=1), routing=Routing(edits=(MaskSlot(token=0, slot=0),)))
    assert run(one).verdict == "agrees"


def test_vllm_needs_a_map_for_a_masked_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one both GEMMs leave the slot out, and the sum over the slots takes the row that nothing wrote."""
    of("vllm")
    monkeypatch.setattr(marlin_vllm, "_needs_map", lambda _: False)
    scenario = replace(BASE, routing=Routing(edits=(MaskSlot(token=2, slot=1),)), execution=Execution(poison=0xFF))
    problem = build(scenario, "cuda")
    output, allowed = answer(problem), enclose(problem, oracle().numerics)
    others = torch.arange(37, device="cuda") != 2
    assert judge(output, allowed, oracle().numerics).breaches
    assert judge(output[others], rows_of(allowed, others), oracle().numerics).breaches == ()


def test_vllm_refuses_an_empty_batch() -> None:
    """So that it is not promised; the package's layer does not call it then."""
    of("vllm")
    problem = build(replace(BASE, shape=replace(BASE.shape, tokens=0)), "cuda")
    with pytest.raises(RuntimeError, match="Invalid MNK"):
        answer(problem)


def test_131072_pairs_at_the_largest_block() -> None:
    """sglang#13234: shared memory and the reduction at a very large batch. Some rows are enclosed, each on its own."""
    shape = Shape(tokens=8192, hidden=7168, intermediate=256, experts=384, top_k=16)
    problem = build(Scenario(shape=shape, parallel=Parallel(ep_size=8, ep_rank=3), activation=Swiglu()), "cuda")
    problem = replace(problem, topk_ids=problem.first_expert + problem.topk_ids % problem.experts_local)  # all local
    output = answer(problem)
    rows = torch.cat((torch.arange(4), torch.arange(4000, 4008), torch.arange(8180, 8192))).cuda()
    part = replace(
        problem,
        hidden_states=problem.hidden_states[rows],
        topk_ids=problem.topk_ids[rows],
        topk_weights=problem.topk_weights[rows],
    )
    assert judge(output[rows], enclose(part, oracle().numerics), oracle().numerics).breaches == ()


def test_every_parameter_of_the_activation_is_used() -> None:
    """vllm#49070 (alpha and beta dropped), sglang#39939 (limit dropped): with inputs that reach the clamp."""
    scales = Values(scale_low=121, scale_high=124)
    whole = SwigluOai()
    for changed in (whole, replace(whole, alpha=1.0), replace(whole, beta=0.0), replace(whole, limit=10.0)):
        scenario = replace(BASE, activation=changed, values=scales)
        assert run(scenario).verdict == "agrees"
        problem = build(replace(scenario, activation=whole), "cuda")
        same = judge(answer(build(scenario, "cuda")), enclose(problem, oracle().numerics), oracle().numerics)
        assert bool(same.breaches) == (changed != whole)


def test_hidden_64_is_refused_by_the_kernel() -> None:
    """The layer check lets H through that is a multiple of 64; the second GEMM has no tile for it."""
    oracle()
    problem = build(replace(BASE, shape=replace(BASE.shape, hidden=192, intermediate=64)), "cuda")
    with pytest.raises(RuntimeError, match="Invalid thread config"):
        answer(problem)


# --- departures, as they are -----------------------------------------------------------------------------------------


def test_an_infinity_spreads_from_padded_columns() -> None:
    edit = ValueEdit(tensor="hidden_states", index=(4, 5), value="inf")
    scenario = replace(BASE, activation=Situ(), values=Values(edits=(edit,)))
    problem = build(scenario, "cuda")
    crafted = replace(problem, w13=problem.w13 | 0x11)  # no code is 0: nothing else makes a NaN of the infinity
    judgement = judge(answer(crafted), enclose(crafted, oracle().numerics), oracle().numerics)
    assert [breach.kind for breach in judgement.breaches] == ["must_be_finite"]
    whole = build(replace(scenario, shape=replace(BASE.shape, intermediate=128)), "cuda")
    whole = replace(whole, w13=whole.w13 | 0x11)
    assert judge(answer(whole), enclose(whole, oracle().numerics), oracle().numerics).breaches == ()


def test_scale_byte_ff_is_read_as_infinity() -> None:
    problem = build(replace(BASE, layer=Layer()), "cuda")
    scale = problem.w13_scale.clone()
    scale[:, 96:] = 0xFF
    positive = {"hidden_states": torch.ones_like(problem.hidden_states), "w2": torch.full_like(problem.w2, 0x22)}
    crafted = replace(problem, w13=torch.full_like(problem.w13, 0x77), w13_scale=scale, **positive)
    assert bool((answer(crafted) == torch.inf).all())  # not NaN


# --- arithmetic ------------------------------------------------------------------------------------------------------

SMALL = (1.0, -1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -3.0)
MET = (1.0, -1.0, 2.0, 2.0, 3.0, 4.0, 6.0, -3.0)
CUT = (1.0, -1.0, 1.0, 2.0, 3.0, 4.0, 6.0, -3.0)
"""What is left of these where 2**23 and each are added to nearest, ties to even, or cut towards 0, before -2**23."""


def ups(x: dict[int, float], rows: list[dict[int, float]], scale: int = 127) -> list[float]:
    """Sums of one GEMM: of x by column, with weights by column in each row, under the scale byte of every group.

    Read through silu(16) * up, 16 to eight digits, and a second GEMM that copies.
    """
    problem = build(Scenario(shape=Shape(tokens=1, hidden=128, intermediate=128, experts=1, top_k=1)), "cuda")
    states = torch.zeros_like(problem.hidden_states)
    states[0, 127] = 16.0
    gate, up, copies = (torch.zeros(128, 128, dtype=torch.float64, device="cuda") for _ in range(3))
    gate[:, 127] = 1.0
    copies.fill_diagonal_(1.0)
    for column, value in x.items():
        states[0, column] = value
    for row, weights in enumerate(rows):
        for column, value in weights.items():
            up[row, column] = value
    w13_scale = torch.full_like(problem.w13_scale, 127)
    w13_scale[0, 128:] = scale
    crafted = replace(
        problem,
        hidden_states=states,
        topk_weights=torch.ones_like(problem.topk_weights),
        w13=pack(e2m1_encode(torch.cat((gate, up))))[None],
        w2=pack(e2m1_encode(copies))[None],
        w13_scale=w13_scale,
        w2_scale=torch.full_like(problem.w2_scale, 127),
    )
    return [value / 16 for value in answer(crafted)[0, : len(rows)].tolist()]


@pytest.mark.parametrize(
    ("columns", "exponent", "left"),
    [
        # One instruction of 16 columns: addends are cut at 2**-25 of the largest, towards 0.
        ((0, 1, 2), 24, SMALL),
        ((0, 1, 2), 25, (1.0, -1.0, 1.0, 2.0, 3.0, 4.0, 6.0, -3.0)),
        ((0, 1, 2), 26, (0.0, 0.0, 0.0, 2.0, 2.0, 4.0, 6.0, -2.0)),
        # Its result is cut to 24 bits, towards 0: the same warp's next 16 columns, of four warps.
        ((0, 1, 65), 23, (1.0, -1.0, 1.0, 2.0, 3.0, 4.0, 6.0, -3.0)),
        ((0, 1, 65), 24, (0.0, -1.0, 0.0, 2.0, 2.0, 4.0, 6.0, -3.0)),
    ],
)
def test_the_accumulator_is_the_one_declared(
    columns: tuple[int, int, int], exponent: int, left: tuple[float, ...]
) -> None:
    """What is left of each of SMALL when 2**exponent, it, and -2**exponent are added in these columns."""
    big, small, minus = columns
    x = {big: 2.0**exponent, small: 1.0, minus: 2.0**exponent}
    assert ups(x, [{big: 1.0, small: value, minus: -1.0} for value in SMALL]) == list(left)


@pytest.mark.parametrize(
    ("columns", "left"),
    [
        # One warp takes 16 columns in turn with others (SGLang), so that these two meet to nearest, or 32 (vLLM).
        ((0, 16, 64), {1: MET, 2: CUT}),
        # Two warps of vLLM's, which meet before the third or another thread block joins them.
        ((96, 64, 0), {2: MET}),
    ],
)
def test_warps_take_turns_as_declared(columns: tuple[int, int, int], left: dict[int, tuple[float, ...]]) -> None:
    big, small, minus = columns
    stripes = oracle().numerics.gemm1.stripes
    assert stripes is not None
    if stripes.run not in left:
        pytest.skip("said of warps that take other columns")
    x = {big: 2.0**23, small: 1.0, minus: 2.0**23}
    assert ups(x, [{big: 1.0, small: value, minus: -1.0} for value in SMALL]) == list(left[stripes.run])


def test_scale_byte_00_is_read_as_0() -> None:
    x, rows = {0: 2.0**123}, [{0: 6.0}, {0: 2.0}]
    assert ups(x, rows, scale=1) == [0.75, 0.25]  # 6 and 2 times 2**(123 - 126)
    assert ups(x, rows, scale=0) == [0.0, 0.0]  # not 0.375 and 0.125


# --- execution -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [Swiglu(), SwigluOai(), Situ()])
def test_neither_poison_nor_repetition_changes_a_bit(activation: Swiglu | SwigluOai | Situ) -> None:
    for parallel in (Parallel(), Parallel(ep_size=2, ep_rank=1)):
        scenario = replace(
            BASE, activation=activation, parallel=parallel, routing=Routing(edits=(MaskRow(token=3), MaskRow(token=36)))
        )
        want = answer(build(scenario, "cuda"))
        for poison in (0x00, 0xFF):
            again = answer(build(replace(scenario, execution=Execution(poison=poison)), "cuda"))
            assert not_equal(again, want, signed_zero=True) is None


def test_every_block_size_agrees() -> None:
    of("sglang")
    tuned = Marlin(tactics=True)
    for tokens, tactic in ((tokens, tactic) for tokens in (1, 37, 200) for tactic in range(len(BLOCKS))):
        scenario = replace(BASE, shape=replace(BASE.shape, tokens=tokens), execution=Execution(tactic=tactic))
        problem = build(scenario, "cuda")
        assert judge(answer(problem, tuned), enclose(problem, tuned.numerics), tuned.numerics).breaches == ()


def test_a_problem_on_the_cpu_is_answered_there() -> None:
    want = answer(build(BASE, "cuda"))
    got = answer(build(BASE))
    assert not got.is_cuda
    assert torch.equal(got, want.cpu())
