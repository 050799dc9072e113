"""What becomes of each suspicion about Marlin and SGLang's serving path: python benchmarks/suspects.py [--only NAME].

Each has a scenario that reaches it. Some were read in the source of sglang 0.5.23, (a) to (f); the others are public
reports about Marlin and what calls it. A line each:

reproduced          the mistake is there; the scenario shows it, and the answer is the one that the mistake would give
not reproduced      the scenario reaches it, and the answer is right
not reachable here  the code does it, and nothing that runs on this machine comes to it: the reason says what would
not run             something is missing

Needs sglang, FlashInfer and a CUDA device; what is wiring alone, and SM120, where the kernel is emulated, need only
sglang. Where vLLM is installed in the place of sglang, the reports about Marlin are tried on its kernels. Exit code 1:
something was not run.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch

from difftest.engine import check
from difftest.judging.compare import judge
from difftest.stream import Stream
from oracles import sglang_layers, sglang_package, sglang_path
from oracles.base import missing_of
from oracles.marlin import Marlin
from oracles.problem import Problem, build
from oracles.reference import enclose
from oracles.sglang_path import SglangFlashinfer, SglangMarlin, SglangPath
from oracles.sglang_sm120 import SglangEmulatedSm120, SglangEmulatedSm120Interleaved
from strategies import Layer, MaskRow, MaskSlot, Parallel, Routing, Scenario, Shape, Situ, SwigluOai, Values, scenarios
from strategies.scenario import Execution

REPRODUCED, NOT_REPRODUCED, NOT_REACHABLE, NOT_RUN = "reproduced", "not reproduced", "not reachable here", "not run"
OAI = SwigluOai(alpha=1.702, beta=1.0, limit=7.0)
BASE = Scenario(shape=Shape(tokens=8, hidden=256, intermediate=128, experts=4, top_k=2), activation=OAI)
LARGE = Values(x_exponent=5)
"""Gates and ups beyond every limit here."""
LINEAR = Situ(beta=4.0, linear_beta=2.0**20)
"""What SiTU is without a cap of up, to 1e-5 for an up of 300. A larger one would widen the enclosure: tanh is made of
sigmoids there, and is right to an absolute 2**-24."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Result = tuple[str, str]


@dataclass(frozen=True)
class Suspect:
    """what: the suspicion. run: what became of it, and the reason."""

    name: str
    what: str
    run: Callable[[], Result]


SUSPECTS: list[Suspect] = []


def suspect(name: str, what: str) -> Callable[[Callable[[], Result]], Callable[[], Result]]:
    def register(run: Callable[[], Result]) -> Callable[[], Result]:
        SUSPECTS.append(Suspect(name, what, run))
        return run

    return register


class Missing(RuntimeError):
    """Something is not here. The message says what."""


def here(oracle: Any) -> Any:
    """`oracle`, where it can run. Raises `Missing`."""
    reason = missing_of(oracle)
    if reason is not None:
        raise Missing(f"{oracle.name}: {reason}")
    return oracle


def installed() -> None:
    """Raises `Missing` without sglang."""
    if sglang_package.version() is None:
        raise Missing(f"sglang: not installed: {sglang_package.INSTALL}")


def marlin_layer() -> SglangMarlin | Marlin:
    """Marlin as SGLang serves it, or vLLM's kernels where only that is installed. Raises `Missing`."""
    kernels = Marlin()
    layer: SglangMarlin | Marlin = here(SglangMarlin() if kernels.backend == "sglang" else kernels)
    return layer


def whose(oracle: SglangMarlin | Marlin) -> str:
    vllm = isinstance(oracle, Marlin) and oracle.backend == "vllm"
    return "in vLLM's own kernels" if vllm else "in SGLang's kernels"


def another_layer(path: SglangPath, asked: Scenario, computed: Problem, why: str) -> Result:
    """Whether `path`, asked for one layer, computes the other."""
    outcome = check(asked, path, checks=(), device=DEVICE)
    if outcome.verdict == "agrees":
        return NOT_REPRODUCED, "the answer is right"
    problem = build(asked)
    breaches = judge(path(path.prepare(problem)), enclose(computed, path.numerics), path.numerics).breaches
    if breaches:
        return REPRODUCED, f"wrong, and not as suspected: {outcome.detail}"
    return REPRODUCED, f"{why}; {outcome.detail}"


def right(oracle: Any, *scenarios: Scenario, told: str) -> Result:
    """Not reproduced when every answer is right."""
    for scenario in scenarios:
        outcome = check(scenario, oracle, checks=(), device=DEVICE)
        if outcome.verdict != "agrees":
            return REPRODUCED, f"{outcome.verdict}: {outcome.detail or outcome.reason}"
    return NOT_REPRODUCED, f"{len(scenarios)} scenarios right, {told}"


# --- read in the source of sglang 0.5.23 -----------------------------------------------------------------------------


@suspect("(a)", "an alpha of 0 is taken for one that is not set (flashinfer_mxfp4)")
def alpha_zero() -> Result:
    asked = replace(BASE, activation=replace(OAI, alpha=0.0))
    return another_layer(here(SglangFlashinfer()), asked, build(BASE), "the answer is that of alpha 1.702")


def _factor(path: SglangPath, activation: SwigluOai | Situ) -> Result:
    plain = replace(BASE, activation=activation)
    scaled = replace(plain, layer=Layer(routed_scaling_factor=2.0))
    return another_layer(path, scaled, build(plain), "routed_scaling_factor 2 gives the answer of 1")


@suspect("(b)", "routed_scaling_factor is dropped (flashinfer_mxfp4)")
def factor_flashinfer() -> Result:
    return _factor(here(SglangFlashinfer()), OAI)


@suspect("(b)", "routed_scaling_factor is dropped (marlin)")
def factor_marlin() -> Result:
    return _factor(here(SglangMarlin()), Situ())


@suspect("(c)", "SiTU without a gemm1_clamp_limit leaves up linear, where FlashInfer caps it at 25 (marlin)")
def no_clamp_limit() -> Result:
    path = here(SglangMarlin())
    asked = replace(BASE, activation=Situ(), values=LARGE)
    without = {"activation": "situ", "gemm1_alpha": 4.0}
    with mock.patch.object(sglang_path, "activation_config", return_value=without):
        found, why = another_layer(path, asked, build(replace(asked, activation=LINEAR)), "up is linear")
    return found, f"{why}; a model without situ_linear_beta meets it, Kimi-K3 sets 25"


@suspect("(d)", "router weights are rounded to bfloat16 (marlin)")
def router_weights() -> Result:
    oracle = here(SglangMarlin())
    exact = dataclasses.replace(oracle.numerics, router_weight="float32", weighted="float32")
    problem = build(replace(BASE, activation=Situ()))
    output = oracle(oracle.prepare(problem))
    if judge(output, enclose(problem, oracle.numerics), oracle.numerics).breaches:
        return REPRODUCED, "wrong even with the rounding"
    breaches = judge(output, enclose(problem, exact), exact).breaches
    if not breaches:
        return NOT_REPRODUCED, "right without the rounding too"
    return REPRODUCED, f"a rounding that its Numerics declare; without it {breaches[0].detail}"


@suspect("(e)", "a finalize that the model defers for trtllm-gen is asked of CUTLASS too (flashinfer_mxfp4, SiTU)")
def deferred_finalize() -> Result:
    installed()
    trtllm = sglang_layers.module("srt.layers.moe.moe_runner.flashinfer_trtllm")
    path = here(SglangFlashinfer())
    prepared = path.prepare(build(replace(BASE, activation=Situ())))
    with trtllm.flashinfer_trtllm_deferred_finalize_context():
        output = path(prepared)
    if not isinstance(output, torch.Tensor):
        return NOT_REPRODUCED, f"the layer hands on a {type(output).__name__}"
    return (
        NOT_REACHABLE,
        "asked to defer, the layer hands on a finished tensor, of which the model would read gemm2_out; it asks only "
        "where its all-reduce fusion is on: SM100 and SM103, or SGLANG_K3_AR_FUSION=1 with several ranks",
    )


@suspect("(f)", "DeepSeek-V4's method takes a clamp without alpha for SwigluStep")
def swiglu_step() -> Result:
    installed()
    method = sglang_layers.module("srt.layers.quantization.mxfp4_flashinfer_cutlass_moe")
    problem = build(replace(BASE, activation=Situ()))
    with sglang_layers.served("flashinfer_mxfp4", is_sm90=True, is_sm100=False, is_sm120=False):
        made = method.Mxfp4FlashinferCutlassMoEMethod.__new__(method.Mxfp4FlashinferCutlassMoEMethod)
        made._use_mxfp8_act_scaling = False
        layer = sglang_path.new_layer(problem, 1)
        layer.w13_weight = problem.w13
        layer.moe_runner_config.gemm1_alpha = None
        made.create_moe_runner(layer, layer.moe_runner_config)
    if not made._use_swiglu_step:
        return NOT_REPRODUCED, "SwiGLU is chosen"
    return NOT_REACHABLE, "it does; Kimi-K3 is given another method, and sets alpha"


# --- SM120, the kernel emulated --------------------------------------------------------------------------------------

ON_SM120 = replace(BASE, precision="mxfp8xmxfp4")
SAME_ROWS = "with rows in turn, so that they are right"


@suspect("SM120", "rows of gate and up are taken in turn, though a checkpoint has two halves (flashinfer_mxfp4)")
def rows_in_turn() -> Result:
    meant = build(ON_SM120)
    gate_up = {name: getattr(meant, name) for name in ("w13", "w13_scale")}
    read = {name: torch.cat((rows[:, 0::2], rows[:, 1::2]), dim=1) for name, rows in gate_up.items()}
    path = here(SglangEmulatedSm120())
    return another_layer(path, ON_SM120, replace(meant, **read), "gate is the rows 0, 2, 4, ... of [gate; up]")


@suspect("SM120", "SiTU is computed as GPT-OSS's SwiGLU-OAI (flashinfer_mxfp4)")
def situ_on_sm120() -> Result:
    asked = replace(ON_SM120, activation=Situ())
    why = f"the answer is that of SwiGLU-OAI(1.702, 1, 7), {SAME_ROWS}"
    return another_layer(here(SglangEmulatedSm120Interleaved()), asked, build(ON_SM120), why)


@suspect("SM120", "alpha and limit of SwiGLU-OAI are dropped (flashinfer_mxfp4)")
def parameters_on_sm120() -> Result:
    asked = replace(ON_SM120, activation=replace(OAI, alpha=0.5, limit=0.5))
    why = f"the answer is that of 1.702 and 7, {SAME_ROWS}"
    return another_layer(here(SglangEmulatedSm120Interleaved()), asked, build(ON_SM120), why)


@suspect("SM120", "routed_scaling_factor is dropped (flashinfer_mxfp4)")
def factor_on_sm120() -> Result:
    asked = replace(ON_SM120, layer=Layer(routed_scaling_factor=2.0))
    why = f"the answer is that of 1, {SAME_ROWS}"
    return another_layer(here(SglangEmulatedSm120Interleaved()), asked, build(ON_SM120), why)


@suspect("SM120", "a layer with rows in turn and GPT-OSS's activation is wrong too (flashinfer_mxfp4)")
def gpt_oss_on_sm120() -> Result:
    path, drawn = here(SglangEmulatedSm120Interleaved()), list[Scenario]()

    def keep(scenario: Scenario) -> None:
        drawn.append(replace(scenario, activation=OAI, layer=replace(scenario.layer, routed_scaling_factor=1.0)))

    Stream(scenarios(path.capability, profile="quick"), base_seed=1, shard=0, count=300).each(keep)
    return right(path, *drawn, told="drawn, with all but the activation and the factor as they come")


# --- public reports --------------------------------------------------------------------------------------------------


@suspect("B10", "vllm#48895: the second GEMM multiplies rows by other rows' router weights, K padded (marlin)")
def other_rows_weights() -> Result:
    oracle = here(Marlin())
    shape = Shape(tokens=32, hidden=2944, intermediate=2880, experts=32, top_k=4)
    reported = Scenario(shape=shape, execution=Execution(poison=0xFF))
    batches = [replace(reported, shape=replace(shape, tokens=tokens)) for tokens in (32, 100, 200, 300, 400)]
    found, why = right(oracle, *batches, told=f"one for each block size, {whose(oracle)}")
    if found == REPRODUCED or oracle.backend == "vllm":
        return found, why
    served = Scenario(shape=replace(shape, hidden=2880), activation=OAI)
    return right(here(SglangMarlin()), served, told=f"H = I = 2880, and {why}")


@suspect("B11", "vllm#49070: alpha and beta of SwiGLU-OAI are dropped (marlin)")
def alpha_and_beta() -> Result:
    other = replace(BASE, activation=replace(OAI, alpha=1.25, limit=5.0), values=LARGE)
    oracle = marlin_layer()
    return right(oracle, BASE, other, told=whose(oracle))


@suspect("B12", "vllm#47769: a rank's I that is no multiple of 64 is read out of bounds (marlin)")
def odd_widths() -> Result:
    widths = [replace(BASE, shape=replace(BASE.shape, intermediate=width)) for width in (32, 96, 160)]
    oracle = marlin_layer()
    return right(oracle, *widths, told=f"I = 32, 96, 160, {whose(oracle)}")


@suspect("B13", "sglang#28170: expert -1 is dereferenced without an expert map (marlin)")
def masked_without_map() -> Result:
    masked = replace(BASE, routing=Routing(edits=(MaskSlot(token=1, slot=0), MaskRow(token=2))))
    one = replace(BASE, shape=replace(BASE.shape, tokens=1), routing=Routing(edits=(MaskSlot(token=0, slot=0),)))
    found, why = right(here(SglangMarlin()), masked, one, told="with -1 in the batch, and at M = 1")
    if found == REPRODUCED:
        return found, why
    ranked = replace(masked, parallel=Parallel(ep_size=2, ep_rank=1))
    return right(here(Marlin()), ranked, told=f"with a map (by the kernels alone), and {why}")


@suspect("B15", "sglang#13234: shared memory is under-counted at a very large batch (marlin)")
def very_large_batch() -> Result:
    oracle = here(Marlin())
    shape = Shape(tokens=8192, hidden=7168, intermediate=256, experts=384, top_k=16)
    problem = build(Scenario(shape=shape, parallel=Parallel(ep_size=8, ep_rank=3)), DEVICE)
    problem = replace(problem, topk_ids=problem.first_expert + problem.topk_ids % problem.experts_local)  # all local
    output = oracle(oracle.prepare(problem))
    rows = torch.cat((torch.arange(4), torch.arange(4000, 4008), torch.arange(8180, 8192))).cuda()
    breaches = judge(output[rows], enclose(_rows(problem, rows), oracle.numerics), oracle.numerics).breaches
    if breaches:
        return REPRODUCED, breaches[0].detail
    return NOT_REPRODUCED, f"131072 pairs, H = 7168, {len(rows)} rows right; a configuration at the limit was not found"


def _rows(problem: Problem, rows: torch.Tensor) -> Problem:
    return replace(
        problem,
        hidden_states=problem.hidden_states[rows],
        topk_ids=problem.topk_ids[rows],
        topk_weights=problem.topk_weights[rows],
    )


_LIMITED = replace(BASE, activation=replace(OAI, limit=10.0), values=LARGE)


@suspect("B37", "vllm#41935, sglang#39939: the clamp is dropped (flashinfer_mxfp4)")
def clamp_flashinfer() -> Result:
    return right(here(SglangFlashinfer()), _LIMITED, told="limit 10, gates and ups beyond it")


@suspect("B37", "vllm#41935, sglang#39939: the clamp is dropped (marlin)")
def clamp_marlin() -> Result:
    oracle = marlin_layer()
    return right(oracle, _LIMITED, told=f"limit 10, gates and ups beyond it, {whose(oracle)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = sorted({one.name for one in SUSPECTS})
    parser.add_argument("--only", choices=names, metavar="NAME", help="those of this name, as '(e)', SM120 or B12")
    only = parser.parse_args().only
    unrun = 0
    for one in SUSPECTS:
        if only not in (None, one.name):
            continue
        try:
            with torch.no_grad(), torch.cuda.device(0) if torch.cuda.is_available() else nullcontext():
                found, why = one.run()
        except Missing as missing:
            found, why = NOT_RUN, str(missing)
        except (RuntimeError, ImportError, ValueError, TypeError, AttributeError) as error:
            found, why = NOT_RUN, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        unrun += found == NOT_RUN
        print(f"{one.name:5} {found:18}  {one.what}\n{'':26}{why}", flush=True)
    return int(unrun > 0)


if __name__ == "__main__":
    sys.exit(main())
