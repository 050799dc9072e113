"""emulated-sm120: the steps of FlashInfer's MXFP8 x MXFP4 fused MoE on SM120, in plain torch on any device.

An emulation, not the kernel: it shows that scenarios, layouts and judging of that path hold together without a card,
and proves nothing about the kernel. It shares no code with the reference. The steps are the kernel's (cutlass_backend
of flashinfer-python): swizzle the weights' scales, expand the tokens by expert and pack their scales anew at multiples
of 128 rows, GEMM1, bias and activation, MXFP8 of the result, GEMM2, finalize. Every scale that a GEMM reads comes out
of a swizzled buffer by the buffer's index formula.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oracles.numerics import Accumulator, Numerics, Transcendental
from oracles.problem import ActivationParams, Problem
from strategies.capability import Capability
from strategies.scenario import Scenario

_BLOCK = 32
"""Elements under one scale, and columns of one step of the emulated MMA."""
_TILE = 128
"""Rows of a tile of swizzled scales; an expert's scales begin at a multiple."""
_MOST = 1 << 24
"""Elements of a GEMM's partial sums that are held at a time."""

# A block's 32 products are added exactly, their scales are powers of two, and blocks are added in order in float32.
_GEMM = Accumulator(group=_BLOCK)


@dataclass(frozen=True, kw_only=True)
class Call:
    """What the kernel is handed. Ids are global, `first_expert` is the rank's first; weights are in the kernel's order.

    field                   shape                          dtype
    x                       [M, H]                         float8_e4m3fn
    input_sf                128x4 of [M, H/32]             uint8
    token_selected_experts  [M, K]                         int32, a global id, or -1 for a masked slot
    token_final_scales      [M, K]                         float32
    w13                     [E, 2I, H/2]                   uint8, two E2M1 codes a byte; rows [up; gate]
    w13_scale               [E, 128x4 of [2I, H/32]]       uint8 E8M0
    w2                      [E, H, I/2]                    uint8
    w2_scale                [E, 128x4 of [H, I/32]]        uint8
    w13_bias                [E, 2I], rows [up; gate]       bfloat16 or float16, or None
    w2_bias                 [E, H]                         bfloat16 or float16, or None
    """

    x: torch.Tensor
    input_sf: torch.Tensor
    token_selected_experts: torch.Tensor
    token_final_scales: torch.Tensor
    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    activation: ActivationParams
    first_expert: int
    output_dtype: torch.dtype
    w13_bias: torch.Tensor | None = None
    w2_bias: torch.Tensor | None = None


class EmulatedSm120:
    """Oracle "emulated-sm120": what a right kernel for SM120 would compute, but for its accumulator, which is float32.

    Capture and replay are not emulable.
    """

    name = "emulated-sm120"
    capability = Capability(
        hidden_multiple=_TILE,
        intermediate_multiple=_TILE,
        precisions=frozenset({"mxfp8xmxfp4"}),
        output_dtypes=frozenset({"bfloat16", "float16"}),
    )
    numerics = Numerics(
        weights="exact",
        gemm1=_GEMM,
        gemm1_output="output",
        bias_before_rounding=False,
        activation=Transcendental(exp_ulps=1.0, tanh="two_sigmoid", clamp_nan="limit"),
        intermediate="output",
        intermediate_quantizer="mxfp8",
        gemm2=_GEMM,
        gemm2_output="output",
    )

    def unsupported(self, scenario: Scenario) -> str | None:
        """What is outside `capability`, in a few words; None otherwise."""
        return self.capability.objection(scenario)

    def prepare(self, problem: Problem) -> Call:
        assert problem.hidden_q is not None  # of this precision
        assert problem.hidden_scale is not None
        return Call(
            x=problem.hidden_q,
            input_sf=self.input_sf(problem.hidden_scale),
            token_selected_experts=problem.topk_ids,
            token_final_scales=problem.router_weights,
            w13=self.up_gate(problem.w13),
            w13_scale=torch.stack([self.swizzled(scale) for scale in self.up_gate(problem.w13_scale)]),
            w2=problem.w2,
            w2_scale=torch.stack([self.swizzled(scale) for scale in problem.w2_scale]),
            activation=problem.activation,
            first_expert=problem.ep_rank * problem.experts_local,
            output_dtype=problem.output_dtype,
            w13_bias=None if problem.w13_bias is None else self.up_gate(problem.w13_bias),
            w2_bias=problem.w2_bias,
        )

    def __call__(self, prepared: Call) -> torch.Tensor:
        tokens, hidden = prepared.x.shape
        dtype, device = prepared.output_dtype, prepared.x.device
        payload = prepared.x.float()
        local = self.local_ids(prepared)
        answers = torch.zeros(*local.shape, hidden, dtype=torch.float32, device=device)
        before = 0
        for expert in range(len(prepared.w13)):
            token, slot = (local == expert).nonzero(as_tuple=True)
            count = token.numel()
            if not count:
                continue
            base = self.first_row(before, expert)
            before += count
            x_scale = self.expanded(prepared.input_sf, token, base, hidden // _BLOCK)
            h = (
                self.gemm(payload[token], x_scale, _e2m1(prepared.w13[expert]), prepared.w13_scale[expert])
                .to(dtype)
                .float()
            )
            if prepared.w13_bias is not None:
                h = h + prepared.w13_bias[expert].float()
            up, gate = h.chunk(2, dim=-1)
            codes, a_scale = self.requantized(self.activated(prepared.activation, expert, gate, up), dtype)
            stored = swizzled_rows(self.swizzled(a_scale), torch.arange(count, device=device), a_scale.shape[1])
            y = (
                self.gemm(codes.float(), stored, _e2m1(prepared.w2[expert]), prepared.w2_scale[expert])
                .to(dtype)
                .float()
            )
            if prepared.w2_bias is not None:
                y = y + prepared.w2_bias[expert].float()
            answers[token, slot] = y
        total = torch.zeros(tokens, hidden, dtype=torch.float32, device=device)
        for position in range(local.shape[1]):
            live = local[:, position] >= 0
            total[live] += prepared.token_final_scales[live, position, None] * answers[live, position]
        return total.to(dtype)

    # --- steps, each of which a mistaken kernel may get wrong (`oracles.faults.sm120`)

    def up_gate(self, rows: torch.Tensor) -> torch.Tensor:
        """[E, 2I, ...] with rows [gate; up] -> [up; gate], as the kernel reads them."""
        half = rows.shape[1] // 2
        return torch.cat((rows[:, half:], rows[:, :half]), dim=1)

    def swizzled(self, scale: torch.Tensor) -> torch.Tensor:
        """The buffer of scales [N, G] that a GEMM reads."""
        return swizzle(scale)

    def input_sf(self, scale: torch.Tensor) -> torch.Tensor:
        """The buffer of the activations' scales [M, H/32] that the expansion reads."""
        return swizzle(scale)

    def local_ids(self, call: Call) -> torch.Tensor:
        """int64 [M, K]: the rank's own expert, -1 for a masked or foreign slot."""
        local = call.token_selected_experts.long() - call.first_expert
        mine = (call.token_selected_experts >= 0) & (local >= 0) & (local < len(call.w13))
        return torch.where(mine, local, -1)

    def first_row(self, before: int, expert: int) -> int:
        """Where an expert's scales begin in the expanded buffer, `before` rows of other experts lying before: room for
        one more tile is left for each of these."""
        return (before + expert * (_TILE - 1) + _TILE - 1) // _TILE * _TILE

    def expanded(self, input_sf: torch.Tensor, token: torch.Tensor, base: int, groups: int) -> torch.Tensor:
        """uint8 [len(token), groups]: an expert's scales, out of the expanded buffer that begins at row `base`."""
        rows = torch.arange(base, base + len(token), device=token.device)
        buffer = input_sf.new_zeros(-(-(base + len(token)) // _TILE) * _TILE, groups)
        buffer[rows] = swizzled_rows(input_sf, token, groups)
        return swizzled_rows(self.swizzled(buffer), rows, groups)

    def gemm(self, x: torch.Tensor, x_scale: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
        """float32 [T, N]: codes x [T, K] with scales [T, K/32], codes w [N, K] with swizzled scales.

        A step is one block: 32 products of codes, exact in float64, times both scales, added to a float32 accumulator.
        """
        rows, columns = w.shape
        groups = columns // _BLOCK
        own = self.scales(swizzled_rows(w_scale, torch.arange(rows, device=w.device), groups))
        total = x.new_zeros(len(x), rows)
        step = max(1, _MOST // max(1, total.numel()))
        for first in range(0, groups, step):
            part = slice(first, min(first + step, groups))
            a = x.view(len(x), groups, _BLOCK)[:, part].double().transpose(0, 1)
            b = w.view(rows, groups, _BLOCK)[:, part].double().permute(1, 2, 0)
            scale = _e8m0(x_scale[:, part]).T[:, :, None] * own[:, part].T[:, None, :]
            for partial in (a @ b) * scale:
                total = (total.double() + partial).float()
        return total

    def scales(self, byte: torch.Tensor) -> torch.Tensor:
        """float64: the scales of a weight, by their bytes."""
        return _e8m0(byte)

    def activated(self, params: ActivationParams, expert: int, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """float32 [T, I]."""
        return _activate(params, expert, gate, up)

    def requantized(self, a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """MXFP8 of a [T, I], rounded to the output dtype first."""
        return quantize(a.to(dtype))


# --- scales, 128x4 ---------------------------------------------------------------------------------------------------


def _place(row: torch.Tensor, column: torch.Tensor, columns: int) -> torch.Tensor:
    """Index of the scale of `row` and group `column` in a swizzled buffer of `columns` groups a row.

    Tiles of 128 rows by 4 groups lie one after the other, those of the same rows first. In a tile, row r is line
    r % 32, with rows r, r + 32, r + 64 and r + 96 side by side, each with its 4 groups.
    """
    tiles_across = -(-columns // 4)
    tile = (row // _TILE) * tiles_across + column // 4
    return tile * 512 + (row % 32) * 16 + (row % _TILE) // 32 * 4 + column % 4


def swizzle(scale: torch.Tensor) -> torch.Tensor:
    """uint8 [N, G] -> a flat buffer, N padded to a multiple of 128 and G to one of 4, with zeros."""
    rows, columns = scale.shape
    buffer = scale.new_zeros(-(-rows // _TILE) * _TILE * (-(-columns // 4) * 4))
    row = torch.arange(rows, device=scale.device)[:, None]
    buffer[_place(row, torch.arange(columns, device=scale.device), columns)] = scale
    return buffer


def swizzled_rows(buffer: torch.Tensor, rows: torch.Tensor, columns: int) -> torch.Tensor:
    """uint8 [len(rows), columns] from a swizzled buffer of `columns` groups a row."""
    return buffer[_place(rows[:, None], torch.arange(columns, device=buffer.device), columns)]


# --- arithmetic ------------------------------------------------------------------------------------------------------


_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _e2m1(packed: torch.Tensor) -> torch.Tensor:
    """float32 [..., K] of two codes a byte, the low nibble first."""
    table = torch.tensor(_MAGNITUDES + tuple(-value for value in _MAGNITUDES), device=packed.device)
    nibbles = torch.stack((packed.bitwise_and(15), packed.bitwise_right_shift(4)), dim=-1)
    return table[nibbles.flatten(-2).int()]


_POWERS = torch.tensor([*(2.0**exponent for exponent in range(-127, 128)), torch.nan], dtype=torch.float64)
"""By E8M0 byte."""


def _e8m0(byte: torch.Tensor) -> torch.Tensor:
    """float64 powers of two; 0xFF is NaN."""
    return _POWERS.to(byte.device)[byte.long()]


def _activate(params: ActivationParams, expert: int, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """float32 [T, I]. fmin and fmax turn a NaN into the limit, as the kernel's do."""

    def tanh(z: torch.Tensor) -> torch.Tensor:
        return 2 * torch.sigmoid(2 * z) - 1

    if params.kind == "swiglu":
        return gate * torch.sigmoid(gate) * up
    if params.kind == "swiglu_oai":
        assert params.alpha is not None
        assert params.beta is not None
        assert params.limit is not None
        limit = params.limit[expert]
        gate, up = torch.fmin(gate, limit), torch.fmax(torch.fmin(up, limit), -limit)
        return gate * torch.sigmoid(params.alpha[expert] * gate) * (up + params.beta[expert])
    if params.kind == "situ":
        assert params.beta is not None
        assert params.linear_beta is not None
        beta, linear_beta = params.beta[expert], params.linear_beta[expert]
        return tanh(gate / beta) * torch.sigmoid(gate) * beta * (tanh(up / linear_beta) * linear_beta)
    raise ValueError(f"activation {params.kind!r}: must be one of swiglu, swiglu_oai, situ")


def quantize(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """MXFP8 of a [T, K] in bfloat16 or float16: (float8_e4m3fn [T, K], uint8 [T, K/32]), as flashinfer-python 0.7.4.

    The scale is the power of two at or above amax / 448; the maximum passes over NaN, and NaN saturates like +inf.
    """
    blocks = a.float().view(len(a), -1, _BLOCK)
    all_nan = blocks.isnan().all(-1)
    amax = blocks.abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(-1)
    significand, exponent = torch.frexp(amax.double() / 448)
    byte = (exponent - (significand == 0.5).int() + 127).clamp(0, 254)
    byte = torch.where(amax == 0, 0, torch.where(amax.isinf(), 254, byte))
    inverse = torch.where((byte == 0) | (byte == 254), 0.0, 1 / _e8m0(byte))
    scaled = (blocks.double() * inverse[..., None]).nan_to_num(nan=448.0, posinf=448.0).clamp(-448, 448)
    codes = scaled.float().to(torch.float8_e4m3fn).view(a.shape)
    return codes, torch.where(all_nan, 255, byte).to(torch.uint8)
