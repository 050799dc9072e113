"""The layer as its definition says, in float64, with a rounding wherever the kernel is known to have one."""

from __future__ import annotations

from types import SimpleNamespace

import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def dequantize(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """MXFP4 [..., K/2] and E8M0 [..., K/32] -> float64 [..., K]. The low nibble is the even column."""
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
    factor = torch.where(scale == 255, torch.nan, torch.exp2(scale.double() - 127))
    value: torch.Tensor = E2M1.double()[codes] * factor.repeat_interleave(32, -1)
    return value


def q8_0(x: torch.Tensor) -> torch.Tensor:
    """ggml's Q8_0: int8 per 32 values, with a float16 scale."""
    blocks = x.float().reshape(*x.shape[:-1], -1, 32)
    amax = blocks.abs().amax(-1, keepdim=True)
    codes = (blocks * torch.where(amax > 0, 127 / amax, 0.0)).round()
    return (codes.double() * (amax / 127).half().double()).flatten(-2)


def mxfp8_codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashInfer's MXFP8 of [..., K]: E4M3 codes, float64 [..., K/32, 32], and E8M0 bytes [..., K/32].

    The scale is the power of two at or above amax / 448. NaN is passed over by the maximum and saturates; a block of
    nothing else is NaN. Under the bytes 0 and 254 finite values become 0.
    """
    blocks = x.double().reshape(*x.shape[:-1], -1, 32)
    amax = blocks.abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(-1)
    significand, exponent = torch.frexp(amax.clamp(max=2.0**200) / 448)
    byte = torch.where(amax == 0, 0, exponent - (significand == 0.5).int() + 127).clamp(0, 254)
    inverse = torch.where((byte == 0) | (byte == 254), 0.0, torch.exp2(127 - byte.double()))
    scaled = (blocks * inverse[..., None]).nan_to_num(nan=448.0).clamp(-448, 448)
    byte = torch.where(blocks.isnan().all(-1), 255, byte).to(torch.uint8)
    return scaled.float().to(torch.float8_e4m3fn).double(), byte


def mxfp8(x: torch.Tensor) -> torch.Tensor:
    """The values that `mxfp8_codes` stands for."""
    codes, byte = mxfp8_codes(x)
    factor = torch.where(byte == 255, torch.nan, torch.exp2(byte.double() - 127))
    return (codes * factor[..., None]).flatten(-2)


def activate(p: SimpleNamespace, expert: int, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    value = {name: float(vector[expert]) for name, vector in p.parameters.items()}
    if p.activation == "swiglu":
        return gate * torch.sigmoid(gate) * up
    if p.activation == "swiglu_oai":
        gate, up = gate.clamp(max=value["limit"]), up.clamp(-value["limit"], value["limit"])
        return gate * torch.sigmoid(value["alpha"] * gate) * (up + value["beta"])
    beta, linear_beta = value["beta"], value["linear_beta"]  # SiTU
    return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * linear_beta * torch.tanh(up / linear_beta)


def expected(p: SimpleNamespace, rounding: dict[str, str]) -> torch.Tensor:
    """float64 [M, H]. rounding: by step, the dtype that the kernel's value has there ("output": that of the answer),
    "q8_0", "mxfp8", or "none"; and whether a bias is added "before" the GEMM's result is rounded or "after"."""

    def rounded(x: torch.Tensor, step: str) -> torch.Tensor:
        if rounding[step] == "none":
            return x
        if rounding[step] in ("q8_0", "mxfp8"):
            return q8_0(x) if rounding[step] == "q8_0" else mxfp8(x)
        dtype = p.output_dtype if rounding[step] == "output" else getattr(torch, rounding[step])
        return x.to(dtype).double()

    def biased(y: torch.Tensor, bias: torch.Tensor | None, expert: int, step: str) -> torch.Tensor:
        if bias is None:
            return rounded(y, step)
        term = bias[expert].double()
        if rounding["bias"] == "before":
            return rounded(y + term, step)
        return rounded(rounded(y, step) + term, "biased")

    def weight(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return rounded(dequantize(packed, scale), "weights")

    factor = torch.tensor(p.routed_scaling_factor, dtype=torch.float32)
    router_weights = rounded((p.topk_weights.cpu() * factor).double(), "router_weight")
    out = torch.zeros(p.hidden_states.shape, dtype=torch.float64)
    experts = len(p.w13)
    for token in range(len(out)):
        x = rounded(p.hidden_states[token].double(), "input")
        for slot, global_id in enumerate(p.topk_ids[token].tolist()):
            expert = global_id - p.first_expert
            if global_id < 0 or not 0 <= expert < experts:
                continue  # masked, or another rank's
            h = biased(weight(p.w13[expert], p.w13_scale[expert]) @ x, p.w13_bias, expert, "gemm1")
            a = rounded(rounded(activate(p, expert, *h.chunk(2)), "intermediate"), "intermediate_quantizer")
            y = biased(weight(p.w2[expert], p.w2_scale[expert]) @ a, p.w2_bias, expert, "gemm2")
            out[token] += rounded(router_weights[token, slot] * y, "weighted")
    return out.to(p.output_dtype).double()
