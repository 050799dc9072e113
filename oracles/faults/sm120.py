"""Faults of the MXFP8 x MXFP4 path: mistakes in the emulation of SM120. Hypotheses for that path alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from oracles.emulated_sm120 import Call, EmulatedSm120
from oracles.faults.fault import Fault, registrar
from oracles.problem import ActivationParams

_GROUP, _TILE = 32, 128
_FOUND: dict[str, Fault] = {}
SM120_FAULTS: Mapping[str, Fault] = MappingProxyType(_FOUND)
"""By name, `sm120-...`."""


_fault = registrar(_FOUND)


# --- layout ----------------------------------------------------------------------------------------------------------


@_fault("layout", "cutlass_fused_moe takes scales in the 128x4 layout")
class Sm120SwizzleIgnored(EmulatedSm120):
    """Scales are left row by row where the GEMM reads tiles of 128 by 4."""

    def swizzled(self, scale: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(scale, (0, -scale.shape[1] % 4, 0, -len(scale) % _TILE))
        return padded.flatten()


@_fault("layout", "128x4: line r % 32 holds rows r, r + 32, r + 64 and r + 96")
class Sm120LinesOfNeighbours(EmulatedSm120):
    """A line of a tile of weight scales holds four neighbouring rows."""

    def swizzled(self, scale: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(scale, (0, -scale.shape[1] % 4, 0, -len(scale) % _TILE))
        tiles = padded.view(len(padded) // _TILE, 32, 4, padded.shape[1] // 4, 4)
        return tiles.permute(0, 3, 1, 2, 4).flatten()


@_fault("layout", "cutlass_fused_moe: swizzled_input_sf says in which form input_sf is")
class Sm120InputSfLinear(EmulatedSm120):
    """The activations' scales are given row by row and read as swizzled."""

    def input_sf(self, scale: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(scale, (0, -scale.shape[1] % 4, 0, -len(scale) % _TILE)).flatten()


@_fault("layout", "FlashInfer's kernels take [up; gate], checkpoints have [gate; up]")
class Sm120GateUpSwapped(EmulatedSm120):
    """The halves of w13 are left as the checkpoint has them."""

    def up_gate(self, rows: torch.Tensor) -> torch.Tensor:
        return rows


@_fault("layout", "SGLang's SM120 weight processor takes even rows for gate and odd rows for up, always")
class Sm120RowsInterleaved(EmulatedSm120):
    """Rows of w13 are taken for gate and up in turn."""

    def up_gate(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat((rows[:, 1::2], rows[:, 0::2]), dim=1)


@_fault("layout", "expandInputRowsKernel: an expert's scales begin at a multiple of 128 rows")
class Sm120ScalesOfTheRowsBefore(EmulatedSm120):
    """An expert's scales are written where its rows begin, and read from the next multiple of 128 rows."""

    def expanded(self, input_sf: torch.Tensor, token: torch.Tensor, base: int, groups: int) -> torch.Tensor:
        scales = super().expanded(input_sf, token, base, groups)
        return scales.roll(1, 0) if base else scales


# --- activation ------------------------------------------------------------------------------------------------------


@_fault("activation", "situ_beta and situ_linear_beta default to 4 and 25 when they are not passed")
class Sm120SituParametersDropped(EmulatedSm120):
    """SiTU's parameters are not passed on: 4 and 25 are used."""

    def activated(self, params: ActivationParams, expert: int, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if params.kind == "situ":
            assert params.beta is not None  # of this kind
            assert params.linear_beta is not None
            four, twenty_five = torch.full_like(params.beta, 4.0), torch.full_like(params.linear_beta, 25.0)
            params = dataclasses.replace(params, beta=four, linear_beta=twenty_five)
        return super().activated(params, expert, gate, up)


# --- routing ---------------------------------------------------------------------------------------------------------


@_fault("routing", "ids are global; a rank's first expert is ep_rank * E_local")
class Sm120OffsetIgnored(EmulatedSm120):
    """Global ids are taken for the rank's own."""

    def local_ids(self, call: Call) -> torch.Tensor:
        ids = call.token_selected_experts.long()
        return torch.where((ids >= 0) & (ids < len(call.w13)), ids, -1)


@_fault("routing", "the 3-kernel sort stops at a row's first hit: the later slot of a duplicate is lost")
class Sm120DuplicateLost(EmulatedSm120):
    """A row's second slot of the same expert adds nothing."""

    def local_ids(self, call: Call) -> torch.Tensor:
        local = super().local_ids(call)
        earlier = (local[:, :, None] == local[:, None, :]).tril(-1).any(-1)
        return torch.where(earlier, -1, local)


# --- numerics --------------------------------------------------------------------------------------------------------


@_fault("numerics", "input_sf=None is not rejected: every activation scale is then 0x00")
class Sm120InputSfDropped(EmulatedSm120):
    """The activations' scales are all 1."""

    def input_sf(self, scale: torch.Tensor) -> torch.Tensor:
        return super().input_sf(torch.full_like(scale, 127))


@_fault("numerics", "the activation is requantised to MXFP8 between the GEMMs")
class Sm120RequantisationSkipped(EmulatedSm120):
    """GEMM2 reads the activation as it is, in the output's dtype."""

    def requantized(self, a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return a.to(dtype).float(), torch.full((len(a), a.shape[1] // _GROUP), 127, dtype=torch.uint8, device=a.device)


def _requantized(a: torch.Tensor, shift: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """MXFP8 of a [T, I] with the scale bytes that `shift` makes of the block's amax / 448 [T, I/32]."""
    blocks = a.double().nan_to_num(0.0, 0.0, 0.0).view(len(a), -1, _GROUP)
    byte = shift(blocks.abs().amax(-1) / 448).clamp(0, 254)
    scaled = (blocks / torch.exp2(byte - 127)[..., None]).clamp(-448, 448)
    return scaled.float().to(torch.float8_e4m3fn).view(a.shape), byte.to(torch.uint8)


@_fault("numerics", "the scale is the power of two at or above amax / 448")
class Sm120ScaleRoundedDown(EmulatedSm120):
    """The scale is the power of two below: the block's largest values saturate."""

    def requantized(self, a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return _requantized(a.to(dtype), lambda quotient: quotient.log2().floor() + 127)


@_fault("numerics", "OCP MX v1.0 takes floor(log2(amax)) - 8 for E4M3; this kernel takes the ceiling of amax / 448")
class Sm120ScaleOfTheExponent(EmulatedSm120):
    """The scale has the exponent of amax less 8, whatever its significand."""

    def requantized(self, a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return _requantized(a.to(dtype), lambda quotient: (quotient * 448).log2().floor() - 8 + 127)


@_fault("numerics", "the activation is rounded to the output's dtype before it is quantised")
class Sm120QuantisedUnrounded(EmulatedSm120):
    """MXFP8 is made of the float32 activation."""

    def requantized(self, a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        del dtype
        return _requantized(a, lambda quotient: quotient.log2().ceil() + 127)


@_fault("numerics", "a scale every 32 columns")
class Sm120ScaleEvery64(EmulatedSm120):
    """Each second block of the intermediate is read with the scale of the block before."""

    def requantized(self, a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scale = super().requantized(a, dtype)
        return codes, scale[:, 0::2].repeat_interleave(2, 1)


@_fault("numerics", "no extra global factor: fc2_act_global is null, and that means 1")
class Sm120GlobalScaleApplied(EmulatedSm120):
    """A second scale of 2 is applied to what GEMM2 reads."""

    def requantized(self, a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return super().requantized(2 * a, dtype)


# --- non-finite ------------------------------------------------------------------------------------------------------


@_fault("non-finite", "fminf(NaN, 448): a NaN among finite values becomes +448 times the scale")
class Sm120NanIsZero(EmulatedSm120):
    """The quantiser makes 0 of a NaN."""

    def requantized(self, a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return super().requantized(a.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf), dtype)


@_fault("non-finite", "hmax passes over NaN: only a block of nothing but NaN is NaN")
class Sm120NanTaintsItsBlock(EmulatedSm120):
    """One NaN makes the whole block NaN."""

    def requantized(self, a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        codes, scale = super().requantized(a, dtype)
        tainted = a.isnan().view(len(a), -1, _GROUP).any(-1)
        return codes, torch.where(tainted, 255, scale).to(torch.uint8)


@_fault("non-finite", "E8M0: 0xFF is NaN; the SM90 kernel reads it as infinity")
class Sm120ByteFfIsFinite(EmulatedSm120):
    """A weight scale of byte 0xFF is 2**128."""

    def scales(self, byte: torch.Tensor) -> torch.Tensor:
        return torch.where(byte == 255, 2.0**128, super().scales(byte))


# --- memory ----------------------------------------------------------------------------------------------------------


@_fault("memory", "rows past the tokens in a tile of scales are not written, and must not be read")
class Sm120LastScaleStale(EmulatedSm120):
    """The scales of an expert's last row are those of the row that the tile held before: zeros."""

    def expanded(self, input_sf: torch.Tensor, token: torch.Tensor, base: int, groups: int) -> torch.Tensor:
        scales = super().expanded(input_sf, token, base, groups)
        scales[-1] = 0 if len(token) % 8 == 1 else scales[-1]
        return scales
