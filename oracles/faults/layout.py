"""Faults of weight layout: the right numbers, read in the wrong order."""

from __future__ import annotations

import torch

from oracles.faults.fault import fault
from oracles.faults.twin import Call, Twin, in_groups


@fault("layout", "Megatron-LM#6045: FC1 expects [up; gate]")
class GateUpSwapped(Twin):
    """The halves of w13 are read as [up; gate]."""

    def halves(self, call: Call, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = super().halves(call, h)
        return up, gate


@fault("layout", "SGLang's SM120 weight processor takes even rows for gate and odd rows for up, always")
class RowsInterleaved(Twin):
    """Rows of w13 are read as gate and up in turn."""

    def halves(self, call: Call, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG002
        return h[:, 0::2], h[:, 1::2]


@fault("layout", "E2M1 packing: the low nibble is the even column")
class NibblesSwapped(Twin):
    """The high nibble is read as the even column."""

    def unpacked(self, name: str, packed: torch.Tensor) -> torch.Tensor:
        return in_groups(super().unpacked(name, packed), 2).flip(-1).flatten(-2)


@fault("layout", "flashinfer#3334: scales not passed through the kernel's interleave helper")
class ScalesColumnMajor(Twin):
    """The scale bytes of w13 are read as groups by rows."""

    def scale_bytes(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        if name == "w2":
            return scale
        experts, rows, groups = scale.shape
        return scale.reshape(experts, groups, rows).mT
