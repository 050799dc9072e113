"""Faults of memory: garbage read, a place not written, another one's place written."""

from __future__ import annotations

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import Call, Prepared, Twin
from oracles.problem import Problem

Tensor = torch.Tensor


def _write_beside(output: Tensor, place: int) -> None:
    """Write the number 1 at `place`, counted from the start of `output`, as far as the allocation reaches."""
    place += int(output.storage_offset())
    if 0 <= place < output.untyped_storage().nbytes() // output.itemsize:
        output.as_strided((1,), (1,), place).fill_(1.0)


@fault("memory", "flashinfer#4569: tiles leave a part of the output unwritten")
class LastColumnTileUnwritten(Twin):
    """Columns of the output from the 129th on are not written."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        super().store(call, total[:, :128], output[:, :128])


@fault("memory", "flashinfer's enable_alltoall: rows with no local expert are left untouched")
class IdleRowsUnwritten(Twin):
    """Rows without a local expert are not written."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        rows = (call.local >= 0).any(1)
        output[rows] = total[rows].to(output.dtype)


@fault("memory", "tile edges: the first row of a new tile")
class RowAfterTileUnwritten(Twin):
    """A last row that is alone in its tile of 16 is not written."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        rows = len(total) - (len(total) > 16 and len(total) % 16 == 1)
        super().store(call, total[:rows], output[:rows])


@fault("memory", "flashinfer#3957: a write past the end of a buffer")
class WritesPastEnd(Twin):
    """One element past the end of the output is written."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        super().store(call, total, output)
        _write_beside(output, output.numel())


@fault("memory", "flashinfer#3957: a write past the end of a buffer")
class WritesBeforeStart(Twin):
    """One element before the start of the output is written, for a last tile that is not full."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        super().store(call, total, output)
        if len(total) % 16:
            _write_beside(output, -1)


@fault("memory", "vectorised stores: a row's last vector reaches into the next row")
class RowOverwritesNext(Twin):
    """Each row's last store overwrites the next row's first element, where H is no multiple of 64."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        super().store(call, total, output)
        if output.shape[1] % 64 and len(output) > 1:
            output[1:, 0] = output[:-1, -1]


@fault("memory", "flashinfer#3011: a slot without a row reads what the workspace held")
class IdleSlotsReadWorkspace(Twin):
    """The workspace rows of slots that are not live are added too."""

    def combine(self, call: Call, slots: Tensor, weights: Tensor) -> Tensor:
        idle = torch.where(call.local[:, :, None] < 0, slots * weights[:, :, None], 0.0)
        return super().combine(call, slots, weights) + idle.sum(1)


@fault("memory", "FlashInfer's workspace is never zeroed")
class SplitAddsToWorkspace(Twin):
    """Sums over a K of more than 128 start from what the workspace held."""

    def accumulated(self, call: Call, blocks: Tensor) -> Tensor:
        total = super().accumulated(call, blocks)
        return total + self.allocate(call.problem, tuple(total.shape), total.dtype) if len(blocks) > 4 else total


@fault("memory", "triton#10772: a tail of scales read out of bounds, where 0xFF is NaN")
class TailScaleOutOfBounds(Twin):
    """Where K is no multiple of 64, the tail is added once more, times 0 and a scale from beyond the end."""

    def accumulated(self, call: Call, blocks: Tensor) -> Tensor:
        total = super().accumulated(call, blocks)
        if len(blocks) % 2 == 0:
            return total
        beyond = self.scale_of(self.allocate(call.problem, (1,), torch.uint8)).float()
        return total + torch.zeros_like(total) * beyond


@fault("memory", "a kernel that scales x in place")
class HiddenStatesModified(Twin):
    """x is left doubled."""

    def launch(self, prepared: Prepared, problem: Problem, output: Tensor) -> None:
        super().launch(prepared, problem, output)
        problem.hidden_states.mul_(2)


@fault("memory", "sglang#8630: ids mapped to local ones in place")
class IdsModified(Twin):
    """topk_ids are left as local ids."""

    def launch(self, prepared: Prepared, problem: Problem, output: Tensor) -> None:
        super().launch(prepared, problem, output)
        problem.topk_ids.sub_((problem.topk_ids >= problem.first_expert) * problem.first_expert)


@fault("memory", "sglang#4727, Liger-Kernel#1296: offsets overflow; here a word is 12 bits")
class OffsetOverflows(Twin):
    """Elements of x at offsets from 4096 on are read from the start again."""

    def states(self, call: Call) -> Tensor:
        states = super().states(call)
        place = torch.arange(states.numel(), device=states.device) % 4096
        return states.flatten()[place].view(states.shape)


@fault("memory", "sglang#13902: metadata of the last rows with block_m 64")
class LargeTileLosesRows(Twin):
    """Tiles of 64 rows leave the rows from the 17th on unwritten."""

    def dot(self, call: Call, x: Tensor, weight: Tensor) -> Tensor:
        out = super().dot(call, x, weight)
        if call.tile == 64:
            late = call.place >= 16
            out[late] = self.allocate(call.problem, tuple(out[late].shape), out.dtype)
        return out


@fault(
    "memory",
    "FlashInfer's MXFP8 path: room for min(M * K, M * E_local) rows",
    meets=("one expert twice", "E_local < K"),
)
class DuplicatesOverrunWorkspace(Twin):
    """There is room for M * E_local pairs: those beyond are lost."""

    def pairs(self, call: Call) -> tuple[Tensor, Tensor, Tensor]:
        token, slot, expert = super().pairs(call)
        room = len(call.local) * call.problem.experts_local
        call.local = call.local.clone()
        call.local[token[room:], slot[room:]] = -1
        return token[:room], slot[:room], expert[:room]


@fault("memory", "flashinfer's fused finalize adds to an output that a memset has to clear first")
class FusedFinalizeWithoutMemset(Twin):
    """A fused finalize adds to what the output held."""

    def store(self, call: Call, total: Tensor, output: Tensor) -> None:
        fused = call.problem.scenario.execution.fused_finalize
        super().store(call, total + output.float() if fused else total, output)
