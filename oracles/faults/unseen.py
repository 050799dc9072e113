"""Fifteen faults written by someone who had not read the others, nor what detects them: a test of the strategies.

`strategies/draw` was last changed at 103f435, before anyone else could read these, and not for them; nor were
the checks. Each was written before any result of it was seen, and has not been changed since.

They are candidates like any other (`fault:NAME`), but no hypotheses of `explain`: they stand for what nobody listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from oracles.faults.fault import Fault, registrar
from oracles.faults.twin import Call, Prepared, Twin
from oracles.problem import Problem

_REGISTERED: dict[str, Fault] = {}

UNSEEN_FAULTS: Mapping[str, Fault] = MappingProxyType(_REGISTERED)
"""Every fault of this module by name, class by class."""


unseen = registrar(_REGISTERED)
"""Registers a subclass of `Twin` here, and not among `oracles.faults.FAULTS`."""


# --- layout -----------------------------------------------------------------------------------------------------------


@unseen("layout", "Marlin scale prep: 64 wide, then [0, 2, 1, 3] within 4", meets=("H % 64 = 32",))
class MarlinScaleTail(Twin):
    """The last half block of w2's scale rows keeps the order [0, 2, 1, 3] within 4 that only whole blocks have."""

    def scale_bytes(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        row = torch.arange(scale.shape[1], device=scale.device)
        four = torch.tensor([0, 1, -1, 0], device=scale.device)
        whole = len(row) // 64 * 64
        return scale[:, torch.where(row < whole, row, row + four[row % 4])]


@unseen(
    "layout",
    "vllm#47769: a repack that wants the rank's I to be a multiple of 64",
    meets=("odd moe_tp_rank", "I of the rank an odd multiple of 32 above 32"),
)
class TpScaleShift(Twin):
    """The rank's slice of w2's scales starts at a multiple of 64 columns, a group before that of its weights."""

    def dequantized(self, problem: Problem, name: str) -> torch.Tensor:
        layer = problem.scenario.layer
        first = layer.moe_tp_rank * problem.scenario.intermediate_local
        if name == "w2" and first % 64:
            # The group before is another rank's and not here: the slice's own last one stands for it.
            problem = replace(problem, w2_scale=problem.w2_scale.roll(1, -1))
        return super().dequantized(problem, name)


# --- activation -------------------------------------------------------------------------------------------------------


@unseen("activation", "SwigluBias: g * sigmoid(alpha * g), alpha inside the sigmoid alone")
class SiluOfScaledGate(Twin):
    """SwiGLU-OAI calls silu on alpha * gate, so that the gate itself is scaled by alpha too."""

    def swiglu_oai(
        self, gate: torch.Tensor, up: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor, limit: torch.Tensor
    ) -> torch.Tensor:
        return super().swiglu_oai(gate, up, alpha, beta, limit) * alpha


@unseen(
    "activation",
    "doActivation: parameters are looked up for the expert of each permuted row",
    meets=("parameters per expert", "two experts within 16 permuted rows"),
)
class BlockReadsFirstExpertsParameters(Twin):
    """A block of 16 permuted rows loads the activation's parameters once, for the expert of its first row."""

    def parameter(self, call: Call, vector: torch.Tensor | None) -> torch.Tensor:
        assert vector is not None
        first = torch.arange(len(call.expert), device=vector.device) // 16 * 16
        return vector[call.expert[first]].unsqueeze(1)


# --- routing ----------------------------------------------------------------------------------------------------------


@unseen(
    "routing", "radix sort of permuted rows: bits of the key are log2(experts), rounded up", meets=("E_local not 2**n",)
)
class RadixSortBitShort(Twin):
    """The sort's key has floor(log2(E_local)) bits, so that the experts above the power of two fall to lower ones."""

    def pairs(self, call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        token, slot, expert = super().pairs(call)
        bits = call.problem.experts_local.bit_length() - 1
        expert, order = (expert & (1 << bits) - 1).sort(stable=True)
        return token[order], slot[order], expert


@unseen("routing", "moe_sum kernels unrolled for top_k up to 8; Kimi-K3 has 16", meets=("top_k > 8",))
class SlotsPastEight(Twin):
    """The final sum is unrolled over eight slots, and leaves out the others."""

    def combine(self, call: Call, slots: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return super().combine(call, slots[:, :8], weights)


@unseen("routing", "TransformerEngine#2907: ids of -1 sort to the head of the row map")
class MaskedIdsShiftRows(Twin):
    """Rows of x are gathered by a row map whose head, the slots that are not the rank's, was not skipped."""

    def gather(self, call: Call, states: torch.Tensor) -> torch.Tensor:
        order = call.local.flatten().sort(stable=True).indices
        return states[order[: len(call.token)] // call.local.shape[1]]


# --- numerics ---------------------------------------------------------------------------------------------------------


@unseen("numerics", "apply_router_weight_on_input: topk_weights belong after GEMM2, in float32")
class WeightOnIntermediate(Twin):
    """The router weight is multiplied into the intermediate, before that is rounded, and into the bias of GEMM2."""

    def intermediate(self, call: Call, a: torch.Tensor) -> torch.Tensor:
        return super().intermediate(call, a * self.router_weights(call)[call.token, call.slot, None])

    def biased(self, call: Call, value: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if bias is None or bias is not call.problem.w2_bias:
            return super().biased(call, value, bias)
        return value + bias[call.expert].float() * self.router_weights(call)[call.token, call.slot, None]

    def combine(self, call: Call, slots: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return super().combine(call, slots, torch.ones_like(weights))


@unseen(
    "numerics",
    "epilogues instantiated for half: a tile of bfloat16 staged in shared memory as float16",
    meets=("|h| above 65504, or below 2**-14",),
)
class HalfStaging(Twin):
    """A GEMM's result passes through float16, which holds every bfloat16 except the large and the small ones."""

    def rounded(self, value: torch.Tensor) -> torch.Tensor:
        return super().rounded(value).half().float()


# --- non-finite -------------------------------------------------------------------------------------------------------


@unseen("non-finite", "silu as x * e**x / (1 + e**x)", meets=("SwiGLU", "gate > 88"))
class SigmoidOverflow(Twin):
    """The sigmoid is e**x / (1 + e**x), which is Inf / Inf for a large gate."""

    def swiglu(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        e = torch.exp(gate)
        return gate * (e / (1.0 + e)) * up


@unseen("non-finite", "cvt.rn.satfinite on the way out", meets=("float16 output", "|y| > 65504"))
class HalfOutputSaturates(Twin):
    """A float16 output is converted with saturation: Inf becomes 65504."""

    def store(self, call: Call, total: torch.Tensor, output: torch.Tensor) -> None:
        largest = torch.finfo(output.dtype).max
        super().store(call, total.clamp(-largest, largest) if output.dtype == torch.float16 else total, output)


# --- memory -----------------------------------------------------------------------------------------------------------


@unseen(
    "memory",
    "fused finalize adds into the output, which has to be cleared before",
    meets=("fused finalize", "poison that is not 0"),
)
class FusedFinalizeUncleared(Twin):
    """With the last sum in the second GEMM's epilogue, the output is added to and nothing has cleared it."""

    def store(self, call: Call, total: torch.Tensor, output: torch.Tensor) -> None:
        fused = call.problem.scenario.execution.fused_finalize
        super().store(call, total + output.float() if fused else total, output)


@unseen(
    "memory",
    "flashinfer#3011: ids of a row are taken to differ, and they need not",
    meets=("an expert twice in a row", "top_k > E_local", "nearly every slot on this rank"),
)
class WorkspaceForDistinctIds(Twin):
    """The workspace has M * min(top_k, E_local) rows, and what comes after them is not stored."""

    def scatter(self, call: Call, y: torch.Tensor) -> torch.Tensor:
        tokens, top_k = call.local.shape
        rows = tokens * min(top_k, call.problem.experts_local)
        slots = self.allocate(call.problem, (tokens, top_k, y.shape[1]), torch.float32)
        slots[call.token[:rows], call.slot[:rows]] = y[:rows]
        return slots


# --- execution --------------------------------------------------------------------------------------------------------


@unseen(
    "execution",
    "Marlin's workspace of locks: int32 zeros before each call, which the kernel has to restore",
    meets=("a second launch", "a tactic that splits K"),
)
class LocksNotRestored(Twin):
    """Locks are left set, so that from the second launch on the last range of K overwrites the sum of the others."""

    def launch(self, prepared: Prepared, problem: Problem, output: torch.Tensor) -> None:
        super().launch(prepared, problem, output)
        prepared.kept["locked"] = True

    def accumulated(self, call: Call, blocks: torch.Tensor) -> torch.Tensor:
        if call.splits > 1 and len(blocks) % call.splits == 0 and call.prepared.kept.get("locked"):
            return self.summed(blocks.chunk(call.splits)[-1])
        return super().accumulated(call, blocks)


@unseen(
    "execution",
    "activation scales bound at capture: input_sf is a buffer beside the input",
    meets=("graph", "MXFP8", "a replay with another x"),
)
class GraphKeepsFirstScales(Twin):
    """Later replays get x's new elements, and the scales of the first."""

    def replay(self, prepared: Prepared, problem: Problem) -> torch.Tensor:
        if problem.hidden_scale is not None:
            scale = prepared.kept.setdefault("hidden_scale", problem.hidden_scale.clone())
            problem = replace(problem, hidden_scale=scale)
        return super().replay(prepared, problem)
