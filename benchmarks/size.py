"""What a scenario costs by its size: `python benchmarks/size.py`. Time and peak memory of each step, beside its floor.

From one token and H = I = 128 to a Kimi-K3 rank (EP32: 28 of 896 experts, H = 3584, I = 3072, K = 16) at M = 8192. The
floor is the larger of two times. Bytes: what the step reads once and writes once, by the bandwidth of a large copy.
Operations: its matrix products, by the rate of a large one of the same dtype; for the reference those that it makes
itself, in float64. Both rates are measured first. A step's time is the median of several runs, warm, device idle before
and after. Memory is what torch allocates on the GPU beside what was there; on a CPU it is not told.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from measuring import installed, show, wall
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from difftest.judging.compare import judge
from difftest.judging.variants import tensors
from oracles import kernels, matmul, one_pass
from oracles.numerics import Accumulator, Numerics
from oracles.problem import Problem, build
from oracles.reference import enclose
from oracles.weight import Weight
from strategies.models import MODELS
from strategies.scenario import Parallel, Scenario, Shape, Values

RANK = Parallel(ep_size=32, ep_rank=7)
VALUES = Values(scale_low=114, scale_high=118)
"""Gates of order 3 at H = 3584."""


def _small(tokens: int, size: int, experts: int, top_k: int) -> Scenario:
    return Scenario(shape=Shape(tokens=tokens, hidden=size, intermediate=size, experts=experts, top_k=top_k))


def _kimi(tokens: int) -> Scenario:
    return Scenario(shape=MODELS["kimi-k3"].shape(tokens), parallel=RANK, values=VALUES)


SCENARIOS = (
    _small(1, 128, 4, 1),
    _small(8, 256, 8, 2),
    _small(64, 512, 8, 2),
    _small(256, 1024, 8, 4),
    _kimi(1),
    _kimi(32),
    _kimi(128),
    _kimi(1024),
    _kimi(8192),
)


@dataclass(frozen=True)
class Rates:
    """Bytes a second of a copy, read and written; operations a second of matrix products in float64 and bfloat16."""

    copy: float
    float64: float
    bfloat16: float

    def floor(self, moved: float, float64: float = 0.0, bfloat16: float = 0.0) -> float:
        """Seconds."""
        return max(moved / self.copy, float64 / self.float64 + bfloat16 / self.bfloat16)


@dataclass(frozen=True)
class Step:
    """seconds, and bytes of device memory at the peak."""

    seconds: float
    memory: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidate", help="an oracle [default: cutlass on a GPU, else grouped-mm]")
    parser.add_argument("--largest", type=int, default=8192, help="tokens of the largest batch [default: 8192]")
    parser.add_argument("--repeats", type=int, default=5, help="runs of a step [default: 5]")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    candidate: Any = installed(options.candidate or ("cutlass" if device.type == "cuda" else "grouped-mm"))
    rates = _rates(device, options.repeats)
    table = Table("M", "H", "I", "E", "K", "step", "ms", "floor ms", "times", "peak MiB")
    table.title = (
        f"{candidate.name} on {device.type}: copy {rates.copy / 1e9:.0f} GB/s, "
        f"float64 {rates.float64 / 1e12:.2g} and bfloat16 {rates.bfloat16 / 1e12:.3g} TFLOP/s"
    )
    with torch.no_grad():
        for scenario in SCENARIOS:
            if scenario.shape.tokens > options.largest:
                continue
            shape = scenario.shape
            sizes = (shape.tokens, shape.hidden, shape.intermediate, scenario.experts_local, shape.top_k)
            for name, (step, floor) in measure(scenario, candidate, device, rates, options.repeats).items():
                numbers = f"{1e3 * step.seconds:.3f}", f"{1e3 * floor:.3f}", f"{step.seconds / floor:.1f}"
                memory = f"{step.memory / 2**20:.1f}" if device.type == "cuda" else "-"
                table.add_row(*(str(size) for size in sizes), name, *numbers, memory)
            table.add_section()
    show(table)


def measure(
    scenario: Scenario, candidate: Any, device: torch.device, rates: Rates, repeats: int
) -> dict[str, tuple[Step, float]]:
    """By step, what it took and the seconds of its floor."""
    problem, materialise = _timed(lambda: build(scenario, device), device, repeats)
    prepared, prepare = _timed(lambda: candidate.prepare(problem), device, repeats)
    output, kernel = _timed(lambda: candidate(prepared), device, repeats)
    products = _products(problem, candidate.numerics)
    enclosure, reference = _timed(lambda: enclose(problem, candidate.numerics), device, repeats)
    _, compare = _timed(lambda: judge(output, enclosure, candidate.numerics), device, repeats)
    whole = sum(tensor.nbytes for tensor in tensors(problem).values())
    used, pairs = _used(problem)
    states = problem.hidden_states.nbytes
    answers = output.numel() * (3 * 8 + 1)
    operations = 6 * pairs * problem.intermediate * problem.hidden
    return {
        "materialise": (materialise, rates.floor(whole)),
        "prepare": (prepare, rates.floor(2 * whole)),
        "kernel": (kernel, rates.floor(used + 2 * states, bfloat16=operations)),
        "reference": (reference, rates.floor(used + states + answers, float64=products)),
        "compare": (compare, rates.floor(output.nbytes + answers)),
    }


def _products(problem: Problem, numerics: Numerics) -> int:
    """Operations of all matrix products that the reference makes, of values and of radii; also those of its own
    kernels, which torch does not see."""
    unseen = 0
    look, magnitudes, squares = one_pass.look, Weight.magnitudes, Weight.squares

    def looked(x: torch.Tensor, w: torch.Tensor, acc: Accumulator) -> one_pass.Sums | None:
        nonlocal unseen
        sums = look(x, w, acc)
        unseen += 0 if sums is None else 2 * x.numel() * w.shape[1]
        return sums

    def counting(product: Callable[[Weight, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
        def counted(weight: Weight, x: torch.Tensor) -> torch.Tensor:
            nonlocal unseen
            unseen += 2 * x.numel() * weight.held.shape[1] if kernels.worth(weight.held) else 0
            return product(weight, x)

        return counted

    with (
        FlopCounterMode(display=False) as counter,
        mock.patch.object(matmul.one_pass, "look", looked),
        mock.patch.object(Weight, "magnitudes", counting(magnitudes)),
        mock.patch.object(Weight, "squares", counting(squares)),
    ):
        enclose(problem, numerics)
    return int(counter.get_total_flops()) + unseen


def _used(problem: Problem) -> tuple[int, int]:
    """(bytes of the weights of experts that any token uses, number of (token, slot) pairs)."""
    local = problem.local_ids[problem.local_ids >= 0]
    experts = len(local.unique())
    each = sum(tensor[0].nbytes for tensor in (problem.w13, problem.w13_scale, problem.w2, problem.w2_scale))
    return experts * each, local.numel()


def _timed(run: Callable[[], Any], device: torch.device, repeats: int) -> tuple[Any, Step]:
    result = run()
    seconds, memory = [], 0
    for _ in range(repeats):
        result = None
        before = 0
        if device.type == "cuda":
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
        start = wall()
        result = run()
        seconds.append(wall() - start)
        if device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(device) - before
    return result, Step(statistics.median(seconds), memory)


def _rates(device: torch.device, repeats: int) -> Rates:
    size = 1 << (30 if device.type == "cuda" else 26)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    _, copy = _timed(lambda: target.copy_(source), device, repeats)

    def product(dtype: torch.dtype) -> float:
        size = 8192 if device.type == "cuda" else 1024
        generator = torch.Generator(device).manual_seed(0)
        first, second = (
            torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2)
        )  # of zeros a product is quicker
        return 2 * size**3 / _timed(lambda: first @ second, device, repeats)[1].seconds

    return Rates(2 * size / copy.seconds, product(torch.float64), product(torch.bfloat16))


if __name__ == "__main__":
    main()
