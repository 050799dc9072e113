"""Layout conversions: where each code lands, and that the inverse brings it back."""

from __future__ import annotations

import pytest
import torch

from oracles import formats
from oracles.layouts import BLOCK_MXFP4_BYTES, from_block_mxfp4, to_block_mxfp4


def _random(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(1, 1, 32), (3, 5, 64), (2, 7, 96), (4, 32, 1024), (0, 4, 32)])
def test_block_mxfp4_round_trip(shape: tuple[int, int, int]) -> None:
    experts, rows, columns = shape
    packed, scale = _random(experts, rows, columns // 2), _random(experts, rows, columns // 32)
    blocks = to_block_mxfp4(packed, scale)
    assert blocks.shape == (experts, rows, columns // 32, BLOCK_MXFP4_BYTES)
    assert blocks.dtype == torch.uint8
    assert blocks.is_contiguous()
    again, scale_again = from_block_mxfp4(blocks)
    assert torch.equal(again, packed)
    assert torch.equal(scale_again, scale)


def test_blocks_are_not_changed_by_a_round_trip_from_them() -> None:
    blocks = _random(2, 3, 4, BLOCK_MXFP4_BYTES)
    assert torch.equal(to_block_mxfp4(*from_block_mxfp4(blocks)), blocks)


def test_every_element_of_a_block_is_where_ggml_reads_it() -> None:
    """Low nibbles hold elements 0..15, high nibbles 16..31."""
    codes = (torch.arange(64) * 7 % 16).to(torch.uint8)
    blocks = to_block_mxfp4(formats.pack(codes), torch.tensor([11, 22], dtype=torch.uint8))
    assert blocks[:, 0].tolist() == [11, 22]
    for block, expected in zip(blocks[:, 1:], codes.view(2, 32), strict=True):
        assert torch.equal(block & 0xF, expected[:16])
        assert torch.equal(block >> 4, expected[16:])


def test_a_non_contiguous_source_is_read_by_its_values() -> None:
    packed, scale = _random(3, 4, 32), _random(3, 4, 2)
    flipped = to_block_mxfp4(packed.transpose(0, 1), scale.transpose(0, 1))
    assert torch.equal(flipped, to_block_mxfp4(packed, scale).transpose(0, 1))
