"""Weight layouts of the kernels: conversions from the canonical tensors, each with its inverse."""

from __future__ import annotations

import torch

from oracles.formats import GROUP

BLOCK_MXFP4_BYTES = 1 + GROUP // 2
"""Bytes of ggml's block_mxfp4 (ggml-common.h): one E8M0 byte, then 32 codes."""


def to_block_mxfp4(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Canonical MXFP4 -> ggml's block_mxfp4: uint8 [..., K/2] and uint8 [..., K/32] -> uint8 [..., K/32, 17].

    Byte 0 of a block is the scale. Of the 16 others, byte 1 + j holds element j in its low and element 16 + j in its
    high nibble (canonical: 2 j and 2 j + 1). Codes and scales keep their bits.
    """
    halves = packed.reshape(*scale.shape, 2, GROUP // 4)
    low, high = halves[..., 0, :], halves[..., 1, :]  # elements 0..15 and 16..31 of the block, in pairs
    blocks = packed.new_empty(*scale.shape, BLOCK_MXFP4_BYTES)
    blocks[..., 0] = scale
    blocks[..., 1::2] = (low & 0xF) | (high << 4)
    blocks[..., 2::2] = (low >> 4) | (high & 0xF0)
    return blocks


def from_block_mxfp4(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverse of `to_block_mxfp4`: uint8 [..., K/32, 17] -> packed uint8 [..., K/2] and scale uint8 [..., K/32]."""
    even, odd = blocks[..., 1::2], blocks[..., 2::2]
    low = (even & 0xF) | (odd << 4)
    high = (even >> 4) | (odd & 0xF0)
    return torch.cat((low, high), dim=-1).flatten(-2), blocks[..., 0].clone()
