"""Faults of execution: right once, and wrong in a graph, under a tactic, the second time, or now and then."""

from __future__ import annotations

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import Call, Prepared, Twin
from oracles.problem import Problem

Tensor = torch.Tensor


def _at_capture(call: Call, name: str, value: Tensor) -> Tensor:
    """In a graph what `value` was in its first launch; else `value`."""
    found: Tensor = call.prepared.kept.setdefault(name, value) if call.graph else value
    return found


def _launches(call: Call) -> int:
    """How many launches of what was prepared came before this one."""
    before: int = call.prepared.kept.get("launches", 0)
    call.prepared.kept["launches"] = before + 1
    return before


@fault("execution", "vllm#52383: a graph replay reads a buffer frozen at capture")
class GraphReplaysRouting(Twin):
    """A graph replays the routing that it was captured with."""

    def local_ids(self, call: Call) -> Tensor:
        return _at_capture(call, "local", super().local_ids(call))


@fault("execution", "vllm#52383: a graph replay reads a buffer frozen at capture")
class GraphReplaysFirstWeights(Twin):
    """A graph keeps the router weights of its first replay."""

    def router_weights(self, call: Call) -> Tensor:
        weights = super().router_weights(call)
        return _at_capture(call, "weights", weights) if bool((call.local >= 0).any()) else weights


@fault("execution", "flashinfer#4841: a tactic replays with the row counts of its capture")
class GraphReplaysFirstCounts(Twin):
    """A graph computes no more pairs than its first replay had."""

    def dot(self, call: Call, x: Tensor, weight: Tensor) -> Tensor:
        out = super().dot(call, x, weight)
        if call.graph and len(x):
            out[call.prepared.kept.setdefault("count", len(x)) :] = 0.0
        return out


@fault("execution", "flashinfer#4036: GEMM2 of a call reads GEMM1's buffer of the call before, under graphs")
class SecondReplayReadsFirst(Twin):
    """From the second replay on, x is that of the replay before."""

    def states(self, call: Call) -> Tensor:
        now = super().states(call)
        before: Tensor = call.prepared.kept.get("states", now)
        call.prepared.kept["states"] = now
        return before if call.graph and _launches(call) > 1 else now


@fault("execution", "flashinfer#4841: tuned tactics are wrong only under replay")
class TacticReplaysRouting(Twin):
    """Tactics 3 to 5 replay the routing that they were captured with."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call)
        return _at_capture(call, "local", local) if call.tactic in (3, 4, 5) else local


@fault("execution", "flashinfer#3197: a tactic doubles half of the K range")
class TacticDoublesHalf(Twin):
    """Tactics 1, 4, 7 and 10 count the first half of K twice."""

    def accumulated(self, call: Call, blocks: Tensor) -> Tensor:
        total = super().accumulated(call, blocks)
        return total + self.summed(blocks[: len(blocks) // 2]) if call.tactic % 3 == 1 else total


@fault("execution", "flashinfer#3661: the tactic that runs is not the one that was asked for")
class TacticWithoutKernel(Twin):
    """Tactic 11 cannot be launched."""

    def launch(self, prepared: Prepared, problem: Problem, output: Tensor) -> None:
        if problem.scenario.execution.tactic == 11:
            raise RuntimeError("no kernel image for tactic 11")
        super().launch(prepared, problem, output)


@fault("execution", "flashinfer#5438: a tile is computed with the next expert's scales, in one call of many")
class RareRace(Twin):
    """One call of thirty answers with the first tile doubled."""

    calls = 0

    def gemm2(self, call: Call, a: Tensor) -> Tensor:
        y = super().gemm2(call, a)
        self.calls += 1
        return torch.where(call.place[:, None] < 16, 2 * y, y) if self.calls % 30 == 0 else y


@fault("execution", "cutlass#2162: a descriptor is rewritten before the store that reads it is done")
class SecondCallDiffers(Twin):
    """The second launch of what was prepared leaves the last row of each expert as it was in the workspace."""

    def gemm2(self, call: Call, a: Tensor) -> Tensor:
        y = super().gemm2(call, a)
        if _launches(call) == 1:
            y[call.place == call.place.max()] = 0.0
        return y


@fault("execution", "a call leaves its weights in another layout than it found them")
class CallChangesWeights(Twin):
    """Each launch leaves the first expert's w2 doubled."""

    def launch(self, prepared: Prepared, problem: Problem, output: Tensor) -> None:
        super().launch(prepared, problem, output)
        prepared.w2[0] *= 2


@fault("execution", "sglang#38773: a batch of no tokens is rejected")
class EmptyBatchRejected(Twin):
    """M = 0 is rejected."""

    def launch(self, prepared: Prepared, problem: Problem, output: Tensor) -> None:
        if problem.tokens == 0:
            raise RuntimeError("input_activations must not be null")
        super().launch(prepared, problem, output)


@fault("execution", "llama.cpp#24937: a batch above a threshold aborts")
class LargeBatchRejected(Twin):
    """M > 36 is rejected."""

    def launch(self, prepared: Prepared, problem: Problem, output: Tensor) -> None:
        if problem.tokens > 36:
            raise RuntimeError("a block needs more shared memory than there is")
        super().launch(prepared, problem, output)


@fault("execution", "vllm#47769: a repack that rejects I of a rank")
class WidthRejected(Twin):
    """I of a rank that is no multiple of 64 is rejected."""

    def prepare(self, problem: Problem) -> Prepared:
        if problem.intermediate % 64:
            raise ValueError(f"size_k = {problem.intermediate} is not divisible by tile_k_size = 64")
        return super().prepare(problem)


@fault("execution", "sglang#33360: padding tokens counted as real")
class PaddingIsRouted(Twin):
    """Rows that pad the batch go to the rank's first expert."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call).clone()
        local[call.problem.scenario.shape.tokens :, 0] = 0
        return local


@fault("execution", "flashinfer#4036: a grouped GEMM under PDL does not wait for the kernel before it")
class PdlReadsEarlierIntermediate(Twin):
    """With programmatic dependent launch the second GEMM reads what an earlier launch left of the first pair's row."""

    def intermediate(self, call: Call, a: Tensor) -> Tensor:
        a = super().intermediate(call, a)
        before: Tensor = call.prepared.kept.get("intermediate", torch.zeros_like(a))
        call.prepared.kept["intermediate"] = a
        if call.problem.scenario.execution.pdl and before.shape == a.shape:
            a = torch.cat((before[:1], a[1:]))
        return a


@fault(
    "execution",
    "a decode path for a single row is a second implementation; flashinfer#3197",
    meets=("M = 1", "a tactic"),
)
class DecodeTacticSkipsLastSlot(Twin):
    """For a single row, a tactic that is given leaves out the last of several slots."""

    def local_ids(self, call: Call) -> Tensor:
        local = super().local_ids(call).clone()
        if call.problem.tokens == 1 and call.problem.scenario.execution.tactic is not None and local.shape[1] > 1:
            local[:, -1] = -1
        return local
