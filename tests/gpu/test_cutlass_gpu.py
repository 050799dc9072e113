"""FlashInfer's CUTLASS kernel on the card: what it agrees with, and that all else has a name.

Every scenario that `cutlass` promises is judged by its own enclosure. Three things are known to go wrong, and each is
pinned to the rows that it may touch: rows with an expert twice, rows whose experts have a scale byte 0x00 or 0xFF, and
an empty batch. Outside these, nothing may disagree. Run with -s to see the tables.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import get_args

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from difftest.engine import Engine
from difftest.judging import variants
from difftest.judging.compare import Judgement, judge, not_equal
from oracles import cutlass_layouts
from oracles import flashinfer_package as package
from oracles.base import missing_of
from oracles.cutlass import Cutlass
from oracles.cutlass_graph import CutlassGraph
from oracles.enclosure import Enclosure
from oracles.formats import e2m1_encode, pack
from oracles.problem import Problem, build
from oracles.reference import Reference, enclose
from strategies import scenarios
from strategies.capability import Capability
from strategies.scenario import (
    Activation,
    DuplicateSlot,
    Execution,
    Layer,
    PaddingRows,
    Parallel,
    Replay,
    Routing,
    Scenario,
    Shape,
    Situ,
    StrayId,
    Swiglu,
    SwigluOai,
    ValueEdit,
    Values,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCENARIOS = 600
KIMI_K3 = Shape(tokens=1, hidden=3584, intermediate=3072, experts=896, top_k=16)
KIMI_K3_RANK = Parallel(ep_size=32, ep_rank=7)
KIMI_K3_SCALES = (114, 118)
"""Lowest scale byte of five. Gates are 0.18 rms at that width, where SiTU's tanh has few bits left, and 2.8."""

BASE = Scenario(
    shape=Shape(tokens=37, hidden=256, intermediate=128, experts=8, top_k=3),
    layer=Layer(biases="per_expert", routed_scaling_factor=2.5),
)


@functools.cache
def oracle() -> Cutlass:
    found = Cutlass()
    lacking = missing_of(found)
    if lacking is not None:
        pytest.skip(lacking)
    return found


@pytest.fixture(autouse=True)
def installed() -> None:
    """Skips where it is not."""
    oracle()


def activations() -> list[Activation]:
    known: list[Activation] = [Swiglu(), SwigluOai(), SwigluOai(per_expert=True), Situ(), Situ(per_expert=True)]
    return known if computes_situ() else known[:3]


def computes_situ() -> bool:
    """Stock 0.6.18 does not: see `test_stock_0_6_18_refuses_situ`."""
    oracle()
    return package.has_situ_parameters()


def draws(count: int, capability: Capability) -> list[Scenario]:
    """`count` scenarios of the default profile, the same ones at each call."""
    found = []

    @seed(3)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(scenarios(capability, profile="default"))
    def collect(scenario: Scenario) -> None:
        found.append(scenario)

    collect()
    return found


# --- what is known to go wrong ---------------------------------------------------------------------------------------


def duplicate_rows(problem: Problem) -> torch.Tensor:
    """bool [M]: rows in which a local expert occurs twice. The kernel loses one of the slots."""
    ids = problem.local_ids.sort(-1).values
    return ((ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] >= 0)).any(-1)


def special_byte_rows(problem: Problem) -> torch.Tensor:
    """bool [M]: rows with an expert that has a scale byte 0x00, read as 0, or 0xFF, read as infinity."""

    def has(scale: torch.Tensor) -> torch.Tensor:
        return ((scale == 0) | (scale == 0xFF)).flatten(1).any(1)

    special = has(problem.w13_scale) | has(problem.w2_scale)
    return (special[problem.local_ids.clamp(min=0)] & (problem.local_ids >= 0)).any(-1)


KNOWN = {"duplicate expert": duplicate_rows, "scale byte 0x00 or 0xFF": special_byte_rows}


@dataclass(frozen=True)
class Result:
    """One scenario. whole: all rows judged; None when the kernel raised. rest: without the rows of known mistakes."""

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
        if self.whole is None:
            return "empty batch" not in self.names
        return bool(self.rest is not None and self.rest.breaches)


def run(candidate: Cutlass, scenario: Scenario) -> Result:
    problem = build(scenario, "cuda")
    rows = {name: known(problem) for name, known in KNOWN.items()}
    names = tuple(name for name, touched in rows.items() if bool(touched.any()))
    if problem.tokens == 0:
        names += ("empty batch",)
    try:
        output = candidate(candidate.prepare(problem))
        torch.cuda.synchronize()
    except RuntimeError as error:
        return Result(scenario, names, None, None, str(error).splitlines()[0])
    enclosure = enclose(problem, candidate.numerics)
    whole = judge(output, enclosure, candidate.numerics)
    touched = functools.reduce(torch.logical_or, rows.values())
    rest = judge(output[~touched], rows_of(enclosure, ~touched), candidate.numerics)
    return Result(scenario, names, whole, rest)


def rows_of(enclosure: Enclosure, rows: torch.Tensor) -> Enclosure:
    return Enclosure(**{name: tensor[rows] for name, tensor in vars(enclosure).items()})


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
    return "\n".join(lines)


def test_every_disagreement_has_a_name() -> None:
    kinds = frozenset(activation.kind for activation in activations())
    capability = replace(oracle().capability, activations=kinds)
    results = [run(oracle(), scenario) for scenario in draws(SCENARIOS, capability)]
    print("\n" + table("cutlass", results))
    share = sum("duplicate expert" in result.names for result in results) / len(results)
    print(f"scenarios with an expert twice in a row: {share:.1%}")
    unexplained = [result for result in results if result.unexplained]
    for result in unexplained[:10]:
        told = result.error or (result.rest.breaches[0].detail if result.rest is not None else "")
        print(f"{result.scenario.digest}: {told}\n    {result.scenario.to_json()}")
    assert len(results) >= 500
    assert not unexplained


@pytest.mark.parametrize("low", KIMI_K3_SCALES)
@pytest.mark.parametrize("tokens", [1, 8, 32, 128])
def test_kimi_k3_rank(tokens: int, low: int) -> None:
    activation: Activation = Situ() if computes_situ() else Swiglu()
    scenario = Scenario(
        shape=replace(KIMI_K3, tokens=tokens),
        parallel=KIMI_K3_RANK,
        activation=activation,
        values=Values(scale_low=low, scale_high=low + 4),
    )
    result = run(oracle(), scenario)
    assert result.whole is not None
    stats = result.whole.stats
    print(
        f"\nKimi-K3 rank 7 of 32, {activation.kind}, M = {tokens}, scales from {low}: {result.verdict}, "
        f"exact {stats.exact} of {stats.compared}, ratio {stats.median_ratio} / {stats.max_ratio}, "
        f"mean radius {stats.mean_radius / stats.rms:.2e} of rms"
    )
    assert result.verdict == "agrees"
    assert stats.mean_radius <= 0.007 * stats.rms


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 64, 128), (3, 192, 384), (2, 512, 256)])
def test_the_packages_helpers_do_what_the_layouts_say(shape: tuple[int, int, int]) -> None:
    oracle()
    from flashinfer import fused_moe

    experts, rows, columns = shape
    generator = torch.Generator("cuda").manual_seed(0)
    packed, scale = (
        torch.randint(0, 256, (experts, rows, columns // k), dtype=torch.uint8, device="cuda", generator=generator)
        for k in (2, 32)
    )
    interleaved = fused_moe.interleave_moe_weights_for_sm90_mixed_gemm(packed, "fp4")
    assert torch.equal(interleaved, cutlass_layouts.interleave_weight(packed))
    assert torch.equal(cutlass_layouts.deinterleave_weight(interleaved), packed)
    folded = fused_moe.interleave_moe_scales_for_sm90_mixed_gemm(scale)
    assert torch.equal(folded, cutlass_layouts.fold_scale(scale))
    assert torch.equal(cutlass_layouts.unfold_scale(folded), scale)


# --- all checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidate", [Cutlass, CutlassGraph])
def test_the_engine_finds_no_more_than_the_empty_batch(candidate: type[Cutlass] | type[CutlassGraph]) -> None:
    """Poison, guard bands, splits, permutations, padding, foreign ids, ranks, as a campaign samples them, where no
    known mistake is in the way."""
    asked = candidate()
    engine = Engine(asked, Reference(), device="cuda")
    known = {"duplicate_experts": False, "special_scale_bytes": False, "empty_batch": False}
    kinds = frozenset(activation.kind for activation in activations())
    judged = 0
    for scenario in draws(200, replace(asked.capability, activations=kinds, **known)):
        outcome = engine.check(scenario)
        judged += 1
        findings = [found for found in (outcome, *outcome.other_findings) if found.is_finding]
        assert [found for found in findings if found.check != "empty"] == [], scenario.to_json()
    spans = {name: round(seconds, 1) for name, seconds in engine.spans.seconds.items()}
    ran = {check: count for (check, what), count in sorted(engine.executor.tally.items()) if what == "ran"}
    print(f"\n{asked.name}: {judged} scenarios with a sample of the checks {ran}, seconds {spans}")
    if isinstance(asked, CutlassGraph):
        assert ran["replay"] == ran["replay_eager"] > 50
    assert judged > 100


# --- departures, as they are -----------------------------------------------------------------------------------------


def test_an_expert_twice_in_a_row_loses_a_slot() -> None:
    edit = DuplicateSlot(token=4, slot=2, source=0)
    for poison in (0x00, 0xFF):
        scenario = replace(BASE, routing=Routing(edits=(edit,)), execution=Execution(poison=poison))
        result = run(oracle(), scenario)
        assert result.names == ("duplicate expert",)
        assert result.verdict in ("impossible", "must_be_finite")
        assert not result.unexplained


def test_an_empty_batch_is_refused() -> None:
    result = run(oracle(), replace(BASE, shape=replace(BASE.shape, tokens=0)))
    assert "input_activations" in result.error


def test_stock_0_6_18_refuses_situ() -> None:
    if computes_situ():
        pytest.skip("this build computes SiTU")
    result = run(oracle(), replace(BASE, activation=Situ()))
    assert "fc1_expert_weights inter size must be equal to" in result.error


@pytest.mark.parametrize("expert_id", [8, 9, 2**31 - 1, -2, -(2**31)])
@pytest.mark.parametrize("ep_rank", [0, 1])
def test_an_id_of_no_expert_contributes_nothing(expert_id: int, ep_rank: int) -> None:
    routing = Routing(edits=(StrayId(token=3, slot=0, expert_id=expert_id),))
    scenario = replace(BASE, routing=routing, parallel=Parallel(ep_size=2, ep_rank=ep_rank))
    assert run(oracle(), scenario).verdict == "agrees"


def test_scale_byte_ff_is_read_as_infinity() -> None:
    edit = ValueEdit(tensor="w13_scale", index=(2, 5, 1), value=0xFF)
    result = run(oracle(), replace(BASE, values=Values(edits=(edit,))))
    assert result.verdict == "must_be_nonfinite"  # a gate that should be NaN is infinite, and its sigmoid is 0 or 1
    assert not result.unexplained


# --- arithmetic ------------------------------------------------------------------------------------------------------

SMALL = (1.0, -1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -3.0)


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
    return [value / 16 for value in oracle()(oracle().prepare(crafted))[0, : len(rows)].tolist()]


@pytest.mark.parametrize(
    ("columns", "exponent", "left"),
    [
        # One instruction of 16 columns: addends are cut at 2**-25 of the largest, towards 0.
        ((0, 1, 2), 24, SMALL),
        ((0, 1, 2), 25, (1.0, -1.0, 1.0, 2.0, 3.0, 4.0, 6.0, -3.0)),
        ((0, 1, 2), 26, (0.0, 0.0, 0.0, 2.0, 2.0, 4.0, 6.0, -2.0)),
        # Its result is cut to 24 bits, towards 0.
        ((0, 1, 17), 23, (1.0, -1.0, 1.0, 2.0, 3.0, 4.0, 6.0, -3.0)),
        ((0, 1, 17), 24, (0.0, -1.0, 0.0, 2.0, 2.0, 4.0, 6.0, -3.0)),
        # Groups of 32 meet in an addition to nearest, ties to even.
        ((0, 32, 64), 23, (1.0, -1.0, 2.0, 2.0, 3.0, 4.0, 6.0, -3.0)),
        ((0, 32, 64), 24, (0.0, -1.0, 2.0, 2.0, 4.0, 4.0, 6.0, -3.0)),
    ],
)
def test_the_accumulator_is_the_one_declared(
    columns: tuple[int, int, int], exponent: int, left: tuple[float, ...]
) -> None:
    """What is left of each of SMALL when 2**exponent, it, and -2**exponent are added in these columns."""
    big, small, minus = columns
    x = {big: 2.0**exponent, small: 1.0, minus: 2.0**exponent}
    assert ups(x, [{big: 1.0, small: value, minus: -1.0} for value in SMALL]) == list(left)


def test_scale_byte_00_is_read_as_0() -> None:
    x, rows = {0: 2.0**123}, [{0: 6.0}, {0: 2.0}]
    assert ups(x, rows, scale=1) == [0.75, 0.25]  # 6 and 2 times 2**(123 - 126)
    assert ups(x, rows, scale=0) == [0.0, 0.0]  # not 0.375 and 0.125


def test_a_groups_sum_overflows_before_its_scale_is_applied() -> None:
    big = 2.0**127
    assert ups({0: big}, [{0: 1.0}, {0: -1.0}], scale=1) == [2.0, -2.0]
    for weight in (2.0, -6.0):  # not 4 and -12
        assert not math.isfinite(ups({0: big}, [{0: weight}], scale=1)[0])


# --- execution -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", range(5))
def test_switches_change_no_bit(position: int) -> None:
    """Without PDL, with the other finalize, with another poison, and again."""
    if position >= len(activations()):
        pytest.skip("not an activation of this version")
    scenario = replace(BASE, activation=activations()[position])
    problem = build(scenario, "cuda")
    want = oracle()(oracle().prepare(problem))
    for execution in (
        Execution(pdl=False),
        Execution(pdl=True),
        Execution(fused_finalize=False),
        Execution(poison=0xFF),
        Execution(),
    ):
        other = build(replace(scenario, execution=execution), "cuda")
        assert not_equal(oracle()(oracle().prepare(other)), want, signed_zero=True) is None


def test_the_callers_output_is_written_in_full() -> None:
    problem = build(BASE, "cuda")
    prepared = oracle().prepare(problem)
    want = oracle()(prepared)
    output = torch.full_like(want, torch.nan)
    oracle().run_into(prepared, output)
    assert torch.equal(output, want)


def test_a_problem_on_the_cpu_is_answered_there() -> None:
    there, here = build(BASE, "cuda"), build(BASE)
    want = oracle()(oracle().prepare(there))
    got = oracle()(oracle().prepare(here))
    assert not got.is_cuda
    assert torch.equal(got, want.cpu())


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("rows", get_args(PaddingRows))
def test_every_replay_is_eager_to_the_bit(position: int, rows: PaddingRows) -> None:
    """One graph, captured on empty contents, replayed with other x, ids, weights; experts become empty and return."""
    if position >= len(activations()):
        pytest.skip("not an activation of this version")
    replays = tuple(change for pair in zip(get_args(Replay), ("same",) * 9, strict=False) for change in pair)
    scenario = replace(
        BASE,
        activation=activations()[position],
        parallel=Parallel(ep_size=2, ep_rank=1),
        execution=Execution(mode="graph", replays=replays, padding=3, padding_rows=rows),
    )
    engine = Engine(CutlassGraph(), Reference(), device="cuda")
    outcome = engine.check(scenario, checks={"replay", "replay_eager", "pad", "isolation"})
    assert not outcome.is_finding, str(outcome)
    assert engine.executor.tally["replay_eager", "ran"] == engine.executor.tally["replay", "ran"] == 1


def test_a_graph_captured_once_serves_every_content() -> None:
    scenario = replace(BASE, parallel=Parallel(ep_size=2, ep_rank=1))
    problem = build(scenario, "cuda")
    graph = CutlassGraph()
    prepared = graph.prepare(problem)
    for number in range(200):
        contents = variants.replayed(problem, get_args(Replay)[number % 8], number)
        want = oracle()(oracle().prepare(contents))
        assert not_equal(graph.replay(prepared, contents), want, signed_zero=True) is None
    assert not_equal(graph(prepared), oracle()(oracle().prepare(problem)), signed_zero=True) is None


def test_every_tactic_that_fits_agrees() -> None:
    tuned = Cutlass(tactics=True)
    assert tuned.capability.tactics > 1
    outcomes: Counter[str] = Counter()
    for hidden, inner in ((128, 128), (256, 384), (512, 512)):
        shape = replace(BASE.shape, hidden=hidden, intermediate=inner)
        for tactic in range(tuned.capability.tactics):
            result = run(tuned, replace(BASE, shape=shape, execution=Execution(tactic=tactic)))
            outcomes[result.error or result.verdict] += 1
    print(f"\n{tuned.capability.tactics} tactics: {dict(outcomes)}")
    rejected = [text for text in outcomes if text not in ("agrees", "implausible", "impossible")]
    assert set(outcomes) - set(rejected) == {"agrees"}


def test_tiles_of_many_experts_are_the_same_in_each_call() -> None:
    """Up to 0.6.17 a tile may be computed with the next expert's scales; nearly always with one step along K (I = 128).
    The reported shape (flashinfer#5438) shows it once in thousands of calls: `benchmarks/race.py`."""
    shape = Shape(tokens=512, hidden=1024, intermediate=128, experts=256, top_k=6)
    scenario = Scenario(shape=shape, execution=Execution(repeats=200))
    outcome = Engine(oracle(), device="cuda").check(scenario, checks={"reference", "determinism"})
    races = any(finding.check == "determinism" for finding in outcome.findings)
    assert races == ((package.version() or ()) < (0, 6, 18)), str(outcome)
