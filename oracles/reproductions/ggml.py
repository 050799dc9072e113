"""llama.cpp's ggml, through ggml-python: two mul_mat_id round an activation. Needs `pip install ggml-python`."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ggml
import torch


def plain(p: SimpleNamespace) -> torch.Tensor:
    return _layer(p, repack=False)


def repacked(p: SimpleNamespace) -> torch.Tensor:
    """With the weights in the buffer type CPU_REPACK, where llama.cpp keeps stacks of experts by default."""
    return _layer(p, repack=len(p.w13) > 1)


def _layer(p: SimpleNamespace, repack: bool) -> torch.Tensor:
    tokens, hidden = p.hidden_states.shape
    local = p.topk_ids.long() - p.first_expert
    live = (p.topk_ids >= 0) & (local >= 0) & (local < len(p.w13))
    token = torch.arange(tokens)[:, None].expand_as(local)[live]
    x, ids = p.hidden_states.float(), local.int()
    if not bool(live.all()):  # ggml has no -1: every live slot becomes a row with one id
        x, ids = x[token], ids[live][:, None]
    out = torch.zeros(tokens, hidden)
    if not len(token):
        return out.to(p.output_dtype)
    h = _mul_mat_id(x[:, None], ids, p.w13, p.w13_scale, p.w13_bias, repack)
    rows = h.flatten(0, 1)
    a = torch.cat([_activate(p, int(e), row) for e, row in zip(ids.flatten(), rows, strict=True)])
    y = _mul_mat_id(a.view(*ids.shape, -1), ids, p.w2, p.w2_scale, p.w2_bias, repack).flatten(0, 1)
    weight = (p.topk_weights * torch.tensor(p.routed_scaling_factor, dtype=torch.float32))[live]
    for row in range(len(token)):
        out[token[row]] += weight[row] * y[row]
    return out.to(p.output_dtype)


def _mul_mat_id(
    x: torch.Tensor,
    ids: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    repack: bool,
) -> torch.Tensor:
    """x float32 [M, K or 1, C], ids int32 [M, K] -> float32 [M, K, N]."""
    experts, rows, half = packed.shape
    # block_mxfp4: the scale byte, then 16 bytes with elements j and 16 + j of the block
    low, high = packed.reshape(*scale.shape, 2, 8).unbind(-2)
    blocks = torch.empty(*scale.shape, 17, dtype=torch.uint8)
    blocks[..., 0], blocks[..., 1::2], blocks[..., 2::2] = scale, (low & 15) | (high << 4), (low >> 4) | (high & 240)

    def build(context: Any, leaf: Callable[..., Any]) -> Any:
        size = (2 * half, rows, experts)
        weight = _repacked(blocks, size) if repack else leaf(blocks, ggml.GGML_TYPE_MXFP4, *size)
        table = leaf(ids, ggml.GGML_TYPE_I32, *reversed(ids.shape))
        out = ggml.ggml_mul_mat_id(context, weight, leaf(x, ggml.GGML_TYPE_F32, *reversed(x.shape)), table)
        if bias is not None:
            out = ggml.ggml_add_id(context, out, leaf(bias.float(), ggml.GGML_TYPE_F32, rows, experts), table)
        return out

    return _compute(build, x.numel() + blocks.numel()).view(*ids.shape, rows)


def _activate(p: SimpleNamespace, expert: int, gate_up: torch.Tensor) -> torch.Tensor:
    """float32 [2I] -> [1, I], by ggml's operator where it has one."""
    value = {name: float(vector[expert]) for name, vector in p.parameters.items()}
    gate, up = gate_up.chunk(2)

    def build(context: Any, leaf: Callable[..., Any]) -> Any:
        def row(values: torch.Tensor) -> Any:
            return leaf(values, ggml.GGML_TYPE_F32, values.numel(), 1)

        if p.activation == "swiglu":
            return ggml.ggml_swiglu_split(context, row(gate), row(up))
        return ggml.ggml_swiglu_oai(context, row(gate), row(up), value["alpha"], value["limit"])

    if p.activation == "swiglu" or (p.activation == "swiglu_oai" and value["beta"] == 1):
        return _compute(build, gate_up.numel()).view(1, -1)
    if p.activation == "swiglu_oai":
        gate, up = gate.clamp(max=value["limit"]), up.clamp(-value["limit"], value["limit"])
        return (gate * torch.sigmoid(value["alpha"] * gate) * (up + value["beta"]))[None]
    beta, linear_beta = value["beta"], value["linear_beta"]
    return (beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * (linear_beta * torch.tanh(up / linear_beta)))[None]


def _compute(build: Callable[..., Any], elements: int) -> torch.Tensor:
    """The result of the graph that `build` makes, float32 and flat."""
    kept = []

    def leaf(values: torch.Tensor, kind: int, *shape: int) -> Any:
        values = values.contiguous()
        kept.append(values)
        tensor = getattr(ggml, f"ggml_new_tensor_{len(shape)}d")(context, kind, *shape)
        ctypes.memmove(tensor.contents.data, values.data_ptr(), values.numel() * values.element_size())
        return tensor

    context = ggml.ggml_init(ggml.ggml_init_params(mem_size=(1 << 26) + 64 * elements, mem_buffer=None, no_alloc=False))
    try:
        result = build(context, leaf)
        graph = ggml.ggml_new_graph(context)
        ggml.ggml_build_forward_expand(graph, result)
        ggml.ggml_graph_compute_with_ctx(context, graph, 1)
        out = torch.empty(ggml.ggml_nelements(result), dtype=torch.float32)
        ctypes.memmove(out.data_ptr(), result.contents.data, ggml.ggml_nbytes(result))
    finally:
        ggml.ggml_free(context)
    return out


def _repacked(blocks: torch.Tensor, size: tuple[int, ...]) -> Any:
    """A weight in the buffer type CPU_REPACK, which ggml converts to."""
    registry = ggml.ggml_backend_cpu_reg()
    address = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    extra = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
    types = itertools.takewhile(bool, extra(ggml.ggml_backend_reg_dev_get(registry, 0)))  # ends with a null pointer
    kind = next(kind for kind in types if ggml.ggml_backend_buft_name(kind) == b"CPU_REPACK")
    context = ggml.ggml_init(ggml.ggml_init_params(mem_size=1 << 16, mem_buffer=None, no_alloc=True))
    tensor = ggml.ggml_new_tensor_3d(context, ggml.GGML_TYPE_MXFP4, *size)
    buffer = ggml.ggml_backend_buft_alloc_buffer(kind, ggml.ggml_backend_buft_get_alloc_size(kind, tensor))
    ggml.ggml_backend_tensor_alloc(buffer, tensor, ggml.ggml_backend_buffer_get_base(buffer))
    ggml.ggml_backend_tensor_set(tensor, blocks.data_ptr(), 0, blocks.numel())
    return tensor
