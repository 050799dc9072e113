"""Number formats, bit by bit, in plain integer and float64 arithmetic that is the same on a CPU and a GPU.

E2M1 (FP4), E8M0 (scale), E4M3 (FP8): OCP Microscaling Formats v1.0 and OCP FP8 v1.0. Rounding goes from float64
straight to the target: by way of float32 it would round twice (1 + 2**-8 + 2**-40 would become 1 in bfloat16).
"""

from __future__ import annotations

import functools
import math
import struct
from typing import Literal

import torch

from oracles import kernels

GROUP = 32
"""Elements under one scale."""
RUN = 16
"""Elements that an instruction of a tensor core takes of a row, or a part of them."""

E2M1_MAX = 6.0
E4M3_MAX = 448.0

_E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FORMATS: dict[str, tuple[int, int, float]] = {  # significand bits, exponent of the smallest normal, largest finite
    "float32": (24, -126, 3.4028234663852886e38),
    "bfloat16": (8, -126, 3.3895313892515355e38),
    "float16": (11, -14, 65504.0),
}
UNIT_ROUNDOFF = {name: 2.0**-bits for name, (bits, _, _) in _FORMATS.items()}
MAX_FINITE = {name: top for name, (_, _, top) in _FORMATS.items()}
MIN_NORMAL = {name: 2.0**low for name, (_, low, _) in _FORMATS.items()}


def exp2(exponent: torch.Tensor) -> torch.Tensor:
    """2**exponent as float64, exactly, for integer exponents in [-1022, 1023]."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def _bits(value: torch.Tensor) -> torch.Tensor:
    """The int64 bits of float64. Raises `TypeError` for another dtype, whose bits would be read as if they were."""
    if value.dtype != torch.float64:
        raise TypeError(f"value.dtype = {value.dtype}: must be torch.float64; convert with .double() first")
    return value.view(torch.int64)


def grouped(value: torch.Tensor, size: int) -> torch.Tensor:
    """[..., K] -> [..., K / size, size]."""
    return value.reshape(*value.shape[:-1], value.shape[-1] // size, size)


def round_to(value: torch.Tensor, dtype: Literal["float32", "bfloat16", "float16"]) -> torch.Tensor:
    """`value` (float64) rounded to nearest even in `dtype`, as float64. Keeps subnormals; overflow is infinity."""
    if value.dtype == torch.float64 and kernels.worth(value):
        from oracles import formats_triton  # of a package that comes with torch for CUDA alone

        return formats_triton.round_to(value, dtype)
    bits, min_exponent, largest = _FORMATS[dtype]
    rounded = _round(value, bits, min_exponent)
    if not value.is_cuda and within(rounded, largest):  # to ask a GPU would cost more than to do it
        return rounded
    return rounded.masked_fill_(rounded.abs() > largest, torch.inf).copysign_(value)


def within(value: torch.Tensor, largest: float) -> bool:
    """Whether no element is larger in magnitude, or NaN. One pass over memory, where a comparison takes three."""
    if not value.numel():
        return True
    if value.is_cuda:
        return bool(torch.linalg.vector_norm(value, math.inf) <= largest)
    low, high = value.aminmax()
    return float(low) >= -largest and float(high) <= largest


def is_zero(value: torch.Tensor) -> bool:
    """Whether all of it is known to be 0, and no NaN; what is not looked at (`kernels.look_first`) is not known."""
    return kernels.look_first(value) and within(value, 0.0)


def least(value: torch.Tensor) -> float:
    """The smallest element, infinity when there is none, NaN where there is one; -infinity where that is not looked at
    (`kernels.look_first`)."""
    if not kernels.look_first(value):
        return -math.inf
    return float(value.amin()) if value.numel() else math.inf


def largest(*values: torch.Tensor) -> list[float]:
    """The largest element of each that is not empty, else 0; NaN where there is one. A GPU is waited for once."""
    return torch.stack([value.amax() if value.numel() else value.new_zeros(()) for value in values]).tolist()


def smallest(value: torch.Tensor) -> float:
    """The smallest magnitude of float64 that is not 0; infinity when there is none, and 0 where that is not looked at
    (`kernels.look_first`)."""
    if not kernels.look_first(value):
        return 0.0
    if not value.numel():
        return math.inf
    size = float(torch.linalg.vector_norm(value, -math.inf) if value.is_cuda else value.abs().amin())
    if size > 0:
        return size
    rest = (1 << 63) - 1  # all bits but the sign's
    lowest = int((((_bits(value) & rest) - 1) & rest).amin()) + 1  # 0 becomes the largest number
    return math.inf if lowest > rest else struct.unpack("<d", struct.pack("<q", lowest))[0]


_EXPONENT = 0x7FF << 52


def _round(value: torch.Tensor, bits: int, min_exponent: int) -> torch.Tensor:
    """Nearest even with `bits` significand bits and a fixed quantum below 2**min_exponent; no upper limit.

    With q the last place of a value's binade, adding 1.5 * 2**52 q leaves no bit under q, and float64 rounds to
    nearest even. Infinity and NaN come through; so do values from 2**900 on, unrounded or infinite.
    """
    binade = (_bits(value) & _EXPONENT).view(torch.float64).clamp_(2.0**min_exponent, 2.0**900)
    magic = binade.mul_(1.5 * 2.0 ** (53 - bits))
    return (value + magic).sub_(magic).copysign_(value)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [..., K/2] -> uint8 codes [..., K]; the low nibble is the even column."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Inverse of `unpack`."""
    pairs = grouped(codes, 2)
    return pairs[..., 0] | (pairs[..., 1] << 4)


def e2m1_decode(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 (bit 3 is the sign) -> float64."""
    table = torch.tensor(_E2M1_MAGNITUDES + tuple(-value for value in _E2M1_MAGNITUDES), dtype=torch.float64)
    return table.to(codes.device)[codes.long()]


def e2m1_encode(value: torch.Tensor) -> torch.Tensor:
    """float64 -> codes, nearest even, saturating at 6; NaN becomes +6 as the hardware conversion does."""
    magnitude = torch.where(value.isnan(), E2M1_MAX, value.abs()).clamp(max=E2M1_MAX)
    rounded = _round(magnitude, 2, 0)
    table = torch.tensor(_E2M1_MAGNITUDES, dtype=torch.float64, device=value.device)
    code = torch.searchsorted(table, rounded)
    return (code + 8 * (value.signbit() & ~value.isnan())).to(torch.uint8)


def e8m0_decode(byte: torch.Tensor) -> torch.Tensor:
    """uint8 -> float64: 2**(byte - 127); 0xFF is NaN."""
    return torch.where(byte == 0xFF, torch.nan, exp2(byte.to(torch.int64) - 127))


def e8m0_encode_ceil(value: torch.Tensor) -> torch.Tensor:
    """Positive float64 -> the byte of the smallest power of two that is not below it, in [0, 254]; NaN -> 0xFF."""
    raw = _bits(value)
    exponent = (raw >> 52) - 1023 + ((raw & ((1 << 52) - 1)) != 0)
    return torch.where(value.isnan(), 255, (exponent + 127).clamp(0, 254)).to(torch.uint8)


def e4m3_decode(byte: torch.Tensor) -> torch.Tensor:
    """uint8 -> float64 (E4M3 "fn": no infinity, 0x7F and 0xFF are NaN)."""
    code = byte.to(torch.int64)
    exponent, mantissa = (code >> 3) & 0xF, (code & 7).to(torch.float64)
    magnitude = torch.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * exp2(exponent - 7))
    magnitude = torch.where((code & 0x7F) == 0x7F, torch.nan, magnitude)
    return torch.where(code >= 0x80, -magnitude, magnitude)


def e4m3_round(value: torch.Tensor) -> torch.Tensor:
    """float64 -> the nearest even E4M3 value as float64, saturating at 448; no NaN."""
    return _round(value.clamp(-E4M3_MAX, E4M3_MAX), 4, -6)


def e4m3_encode(value: torch.Tensor) -> torch.Tensor:
    """float64 -> bytes, nearest even, saturating at 448; NaN -> 0x7F."""
    magnitude = e4m3_round(value.abs())
    raw = _bits(magnitude)
    normal = (((raw >> 52) - 1023 + 7) << 3) | ((raw >> 49) & 7)
    code = torch.where(magnitude < 2.0**-6, (magnitude * 2.0**9).nan_to_num().to(torch.int64), normal)
    code = torch.where(value.isnan(), 0x7F, code + 0x80 * value.signbit())
    return code.to(torch.uint8)


def mxfp4_dequantize(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """uint8 [..., K/2] and E8M0 bytes [..., K/32] -> float64 [..., K], exactly."""
    # Numbers of 8 bytes are looked up many times as fast as rows of 16.
    values = _pairs(packed.device).index_select(0, packed.flatten().int()).view(torch.float32).double()
    grouped(values, GROUP).mul_(e8m0_decode(scale).view(-1, 1))
    return values.view(*packed.shape[:-1], 2 * packed.shape[-1])


def mxfp4_with_runs(packed: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(values of `mxfp4_dequantize`, the largest magnitude of each `RUN` [..., K / RUN]) under scale bytes below 253.

    On a GPU large ones are float32, which they fit exactly (6 * 2**126, under 253, is the first that overflows).
    Elsewhere they are float64, and the largest are None, since they would take passes of their own.
    """
    if not kernels.worth(packed):
        return mxfp4_dequantize(packed, scale), None
    from oracles import formats_triton  # of a package that comes with torch for CUDA alone

    return formats_triton.mxfp4_with_runs(packed, scale)


@functools.cache
def _pairs(device: torch.device) -> torch.Tensor:
    """int64 [256]: the bits of the two float32 values of each byte."""
    return (
        e2m1_decode(unpack(torch.arange(256, dtype=torch.uint8, device=device)[:, None]))
        .float()
        .view(torch.int64)[:, 0]
    )


def mxfp4_quantize(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 [..., K] -> packed uint8 [..., K/2] and E8M0 bytes [..., K/32]; scale = ceil power of two of amax / 6."""
    scale = _group_scale(value, E2M1_MAX)
    return pack(e2m1_encode(_scaled(value, 254 - scale))), scale


def mxfp8_dequantize(payload: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """E4M3 bytes [..., K] and E8M0 bytes [..., K/32] -> float64 [..., K], exactly."""
    return _scaled(e4m3_decode(payload), scale)


def mxfp8_quantize(value: torch.Tensor, *, lowest: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 [..., K] -> E4M3 bytes [..., K] and E8M0 bytes [..., K/32], none below `lowest`.

    scale = ceil power of two of amax / 448; payload nearest even. A NaN makes its whole group NaN.
    """
    scale = _group_scale(value, E4M3_MAX).clamp(min=lowest)
    return e4m3_encode(_scaled(value, 254 - scale)), scale


def _group_scale(value: torch.Tensor, largest: float) -> torch.Tensor:
    return e8m0_encode_ceil(grouped(value.abs(), GROUP).amax(-1) / largest)


def _scaled(value: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (grouped(value, GROUP) * e8m0_decode(scale).unsqueeze(-1)).flatten(-2)
