#!/usr/bin/env python3
"""ggml-repacked: wrong output with token 0 routed to one expert twice (slots 0 and 1)

A fused MoE layer with MXFP4 experts, computed by ggml-repacked: 32 of 32 elements in 1 of 1 rows are impossible: [0, 18] = -0.0101928711, expected exactly -0.0212402344, off by 0.011 (1.31 of rms).

Run it with python: it needs torch and ggml-python. It exits 1 when the kernel's answer is wrong as reported, 0 when it
is right, and 2 when the kernel could not be asked. The inputs are at the end of the file.
"""

from __future__ import annotations

import base64
import ctypes
import importlib.metadata
import itertools
import sys
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import ggml
import torch

ROUNDING = {'input': 'q8_0', 'intermediate_quantizer': 'q8_0', 'weights': 'none', 'gemm1': 'float32', 'bias': 'after', 'biased': 'float32', 'intermediate': 'float32', 'gemm2': 'float32', 'router_weight': 'float32', 'weighted': 'float32'}
"""Where the kernel rounds, for the layer below."""
DEVICE = "cpu"


# --- by definition ---------------------------------------------------------------------------------------------------


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


# --- the kernel ------------------------------------------------------------------------------------------------------


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


# --- what a right answer keeps ---------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """Of an answer `got` [M, N]: where it is `wrong`, what it should be (`want`), and in which interval."""

    what: str
    got: torch.Tensor
    want: torch.Tensor
    wrong: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def inside(what: str, got: torch.Tensor, want: torch.Tensor, bounds: dict[str, torch.Tensor]) -> Claim:
    """Each value is one that a right kernel may give."""
    value, low, high, kinds = got.double(), bounds["low"], bounds["high"], bounds["kinds"]
    kind = torch.where(value.isfinite(), 1, torch.where(value.isnan(), 8, torch.where(value > 0, 2, 4)))
    within = value.isfinite() & (value >= low) & (value <= high)
    hidden = (kinds & 1 == 0) & (kinds & kind == 0) & (value.isfinite() | (kinds & (kinds - 1) == 0))
    return Claim(what, got, want, torch.where(kinds == 1, ~within, hidden), low, high)


def reference(given: SimpleNamespace) -> Iterator[Claim]:
    """The answer is what the definition of the layer says, up to the roundings of the kernel."""
    yield inside("the answer", given.kernel(given.questions[0]), given.want[0], given.bounds[0])


# --- asking ----------------------------------------------------------------------------------------------------------


class NoAnswer(Exception):
    """The kernel raised, or returned what is no answer. reported: as the report says."""

    def __init__(self, text: str, reported: bool) -> None:
        super().__init__(text)
        self.reported = reported


def unpacked(data: dict) -> dict:
    """Tensors from (dtype, shape, zlib-compressed bytes in base 85)."""
    out = {}
    for name, (dtype, shape, text) in data.items():
        content = zlib.decompress(base64.b85decode("".join(text.split())))
        raw = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
        out[name] = raw.view(getattr(torch, dtype)).view(shape)
    return out


def questions_on(device: str) -> list[SimpleNamespace]:
    """The first question, and the others, which differ from it in some tensors and values."""
    first: dict = {}
    found = []
    for values, data in QUESTIONS:
        first = first or dict(values)
        tensors = {name: tensor.to(device) for name, tensor in unpacked(data).items()}
        if not found:
            first.update(tensors)
        fields = {**first, **values, **tensors}
        p = SimpleNamespace(**{name: value for name, value in fields.items() if "." not in name})
        p.parameters = {name.partition(".")[2]: value for name, value in fields.items() if "." in name}
        p.output_dtype = torch.bfloat16
        found.append(p)
    return found


def asked(function: Any, *arguments: Any) -> Any:
    try:
        answer = function(*arguments)
        return answer
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
        raise NoAnswer(f"REJECTED: {text}", False) from error


def formed(answer: Any, p: SimpleNamespace) -> Any:
    """The answer on the CPU."""
    parts = answer if isinstance(answer, tuple) else (answer,)
    for part, (shape, dtype) in zip(parts, [(p.hidden_states.shape, p.output_dtype)]):
        if tuple(part.shape) != tuple(shape) or part.dtype != dtype:
            raise NoAnswer(f"MALFORMED: {tuple(part.shape)} {part.dtype}, must be {tuple(shape)} {dtype}", True)
    parts = tuple(part.cpu() for part in parts)
    return parts if isinstance(answer, tuple) else parts[0]


def answered(function: Any, p: SimpleNamespace) -> Any:
    return formed(asked(function, p), p)


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of no known version"


def told(claim: Claim) -> int:
    """How much of an answer is wrong, the first elements in full."""
    for row, column in claim.wrong.nonzero()[:8].tolist():
        got, low, high = (float(part[row, column]) for part in (claim.got, claim.low, claim.high))
        want = float(claim.want[row, column])
        right = "NaN or infinity" if low != low else f"exactly {low:.9g}" if low == high else f"[{low:.9g}, {high:.9g}]"
        plain = "" if want in (low, high) or want != want else f"; plain: {want:.9g}"
        print(f"{claim.what}, row {row} column {column}: got {got:.9g}, expected {right}{plain}")
    return int(claim.wrong.sum())


def main() -> int:
    print("python", sys.version.split()[0], "torch", torch.__version__, "ggml-python", version("ggml-python"))
    questions = questions_on("cpu")
    given = SimpleNamespace(
        kernel=lambda p: answered(repacked, p),
        want=[expected(p, ROUNDING) for p in questions],
        bounds=[unpacked(entry) for entry in BOUNDS],
    )
    given.questions = questions_on(DEVICE)
    wrong = claims = 0
    try:
        for claim in reference(given):
            claims += 1
            count = told(claim)
            if count or claims == 1:
                rows = int(claim.wrong.any(1).sum())
                print(f"{claim.what}: {count} of {claim.wrong.numel()} values are wrong, in {rows} of {len(claim.wrong)} rows")
            wrong += count
    except NoAnswer as error:
        print(error)
        return 1 if error.reported else 2
    return int(wrong > 0)


# --- the inputs ------------------------------------------------------------------------------------------------------

QUESTIONS = [
    (
        {'hidden_q': None, 'hidden_scale': None, 'w13_bias': None, 'w2_bias': None, 'activation': 'swiglu', 'first_expert': 0, 'num_experts': 3, 'ep_size': 1, 'ep_rank': 0, 'moe_tp_size': 1, 'moe_tp_rank': 0, 'routed_scaling_factor': 1.0, 'poison': 0, 'pdl': None, 'fused_finalize': None, 'tactic': None},
        {
            "hidden_states": (
                "bfloat16",
                [1, 32],
                """
c-jF#0KfkpzDB;(z4bl~z_Y)?y^OwLKV!cszgNFaJ_bJuKL)>@zAQZ#KWo5WzPP`>J`_OFKdnEKzZJcMJ*_{lK6gL)O&#I
""",
            ),
            "topk_ids": (
                "int32",
                [1, 3],
                """
c-muRU|?VbVkRI4001Ze1p
""",
            ),
            "topk_weights": (
                "float32",
                [1, 3],
                """
c-k}iH^=Vd?j?42UH91m04+oYw*
""",
            ),
            "w13": (
                "uint8",
                [3, 64, 16],
                """
c-jE~4FB_-qU+;eF-KU7;}i2aDSsse7gVWvdsNv+4P5}NlR|5w7A#II{xtklv&jdH`<zwJ#q_Fe`{V!$vQ9-(Ld3W5#!nv7`^wKq
-pM!F&c0k~YG^}W`AW%-GpYBVU-|3G%Np)~TI<kktUP>@x%A)GiN+u1a`-|_Y6Mk#T&r%EzW+_?NLZAEe~a?vPrZ2`hY5`5*!;J|
f`57<37Ezlk->*#Pt4d^(?H%v|7$CzQCLYW<+=M|0}oLCP|N1LoXv~3ueX4}C~O!^)mJe5^E@%)daF+-21%^qS1Jren>e6!9$r@-
;s<A2n?~szsZVjObj(ko+<PjM|K>CHvN;P(fyFY~rM1DTU#4%*!W=R6PNVm7>v+i9r9+JJXsAxV;J_yNe)u8K2*M8_QJeJbu`s4R
(bYaH@!ci%qmNO()4|6Gihq$uO2D4I!I_HYhr8Bo{OM|<XC9zK`x)ApKl#PyD)aJNZ{85}@!{(l>p4^qqYkGmPHd4<$hJxmzXx**
B`Y4h_|I-SuQ5dV;2NhAvpD#+2+AOaVm-)Ess1X=3V*T@QLlsu*LA<)_D*cSBax2cATuWwUBk+Jee+zE!}a&y?o>fK2XxRbWP_GL
gjbl047ZAI#uz^OCoP**VVJj8NDg~?L9lY&_PH+&8)0GnNhAMqZn2(D<v%#(9DtM;OjX;4=g;*zZVZf(<n4yKm26xx0a$na-r@ma
LtE?0Tdbkiylicl;?+q>xC^4u&iy9vN`@GcexclQJ;uMItC`o6a`@xs!Uy&?xtI!Phc_lScjNWKf4<C<GQ!QR+K8QUvFU&UsWqYk
uLoqjZ1qX1_1E+ln8XX|4rXl7I?WPF=!ph*guy0g)@epghy#5t_0uJmAbbwBsB*jNR(my}zJ<VQ?+y1YWz+%kJh$~&J_Fbj6hUai
#97e~NB$X`dn>TT-5;J8a`35JS#4X;n{!qU<sE|}7#!KB)8-E_cEC@;jNscE?(lJFNA++C;?SUO&y<5ZQUc41(xMZcJni@Am9g_*
8LSp>F{G4&)r8o1R1%k~x60_k|5i&g(&}11ETSw)nd>eeKQ>^9MxKlSA;=oh@(Y6pzoz2PEsR^oOX=;N-tzpBu!vYo7$jX#q^AD^
@q2uX<Qe`nu-DzMij1I}+Zbr)s3Td6EfQUOUCmKOC?ayPOLCHwJ;*kf&{<PCy$B=Suz+%A(K0)55|>DPGH6*C2T4fK{+qT&zvZ1M
3Ku-JgE=Aat*#hZIyIfaeT9MCOp|dLKt;eX)|C!%2JmHjU9x^wOb(xdl-WEhfD+bdd-D@8!EWr=mEQX>{=z`>sQE~h3I4F+#Khpl
yhJ>tCSFplHq%-szYNgq@z4Ma;7SIE$ucU9OPgu_==TigqVfr(fB>AihQLx#1j1@oAm71jvP|>y9aVFSL8Vp=4yzs1l89T(Tn3}O
9F+6}oApYgdJz_ghNc8-?7{m~6Eb{<<Qf+&{%4geTK0Va8v!w6__rBj;T9!aebBu-x9GMcZ5`q_Sh>6UXE`yh!)aKhRq)1xo{-gn
@{0jgaa93%hs5CD1_p@Tnd3&#&HeZo)|`2v!SJq-3v{&|bW@V0;-Au-)UK=UHKuix^o+$9v3@G^G2;2?L?-YXXbrS7jtYpyvdbfr
cyy@Xbkef1D?ia>hQaz4%v#<ERt8OG!Q4<bb~y^7=-N>{nd4P$)i`Lqpk#cH0Vv;CsN~sCny`qhN&AQ&dqQwXT6RrRk6Q^beH)fj
iuF_%CEy23nu^vvx?L-(n_Udo9P7r8j6@m-u$}<}=R_L*xkSW0=>PFFJ$sI*u~Q#H5$y^<{8v`~gip-0(-ObY7LpEztqamunKt@X
*kO&c<cZW!i7YAsq#K0HZ2os15-k#9qS3<sia*zX4Wfs1;!%{AUD8iE8Q)Nr(*hbDsYRm}Uztrg`d3KB)aUBGXqDlm$jB$>sXOAt
K;))8bH39cX>iEmFdd~U=%teyga|ccjkP1wXVT}l5VH>#l=txX<PCT-tj^Q`1n18n_+&jPV9Bs!2gw<k{dzsX$p!FonEc5v4IOJo
>JfvUwaRx9SI@7^<dGjom1YQmtQGY_Q9D!`4Ev}`{t#2Oj}9*`BVGPQ!pp~5>-w1{0;hfe_a(>cF8#-UYj5on90)D7mm=Tw0aXtE
F6=g0nyC{bxP69je7M;pvV{->o`89wF@cJ5)5E9ucxWT+!p<Uy287gZM!rH>qmwceQNoxQ{WWmm0e_70pa)z($(GL#<yB&K5ZROK
)NIL7f5=QM;ceFl*VK~=|17mIC@gwje~9$@QL|vz%|#Dnk3{A+)n?ZtO*!qVytXG>Jq2h>lEVJpYIX?%Lpk`|7>Xyjs_KuZVk`VV
yWsL+fM!h}*)!6Qfdg@HiVsWYH2{P0cu;FnY@l;-WR@rOUA9ktFQj3}C7hUCl`Rig><HAX#k{_nR5a(vHo*t=f6M`?Y3VTFP6Nfv
lX(bn=dZWa$#8KhT*ZDMTtEoS3VPJkn@4%7z3?~n4HP2KDp{J5Ekz^%&!(iU6@n?hd=dd#m9AQb?_ukA9$Kj7ii1Vup7#Z~2m93$
E=SARN`{Eca+NHjUHcMz7F=gHQphwCC+IW%!aoFG7i3vy2}q@LUG4gDA#uEzh_-m?${04L#A69Pp|31e@y;SC&k96Wo14Y?u+p|W
R8s55K|(w&_?A-xq7hQ2)hBzCukL0U>)yy%`{MWP*9^>AHg-pSXvo#PmTiPh)IOW<Z&E5cBOPZp96hUAN1*<JESVd%D&SA5!JKK%
$I6G5aJdI0X0Lp^l@KcTCUFP9SIWxK-Z!#^{70RDgn5!fRmdiebU82SEMmn5oN!7-6|ljpO^bF+3r?&9o=fR7iT6^`{#!>YG9%%E
WXI>|BbEPIjTg35bZ;MV`1fX*rqKeLP(Gg*(I&wjQT@NjS;AFcNXr#h`PiM@w-x$|Lp9O7>8j#1P`BnnB|r+zA=abxXIMiGMa&9N
zXZpfWL{sKcrsz-(?8;NFtP{CC2QF#dZ48a{^4!R<oz4}wI_s#Gr<JEiC%gMt|Aw@vYJAQEiRHhMcS9ziGwbB-(~!*LW`bfZ2DO!
vOgRMoDBodQ)1$U4t_58+bF571!lSM8T<OJ`jYwd7$cdoG>o@~K+7RCpL+P@<E#iQ`=n_;{!Kv)W)oZT4%j#Ir=BN4O9$Wtk3`p}
a#RXQWZ_<RM@MzG+P969LVrR1tbf~Sfwk@_&Cmc_>*gu^^#K}uM!N(r6tQn8k5kXQhg$)-o0F^F^)w2GNoW_6-8EynfV?7HcD#A`
OCtldkI+Z5dMR&dC5X04Z0Vo{qSk|RUka%xM>h5g8Q)qr1?8<~xp<-o{iE(t)PIg77{f}=Y4EpCV_H1E&wWEnY%e@!r*U^@9-Z*j
L$|Iso&m9`S)$qHp!=294nW1Ur_{?yOB~UK?25NbvIE)B`>b#oFX(B;vXJKtz@iC+L$P+!+m}#A*HdhUjfU;ab~^!#3Hz^@+{5T*
m8(zX>cF9_xbIJkxt4-^o{-WDr{hx0M#Q1^!FGYsF}Wxqk#iN~Efok}h;|$lUc4PWF9M4dSrOmZ@)o3-YKs<+wdsl(y;V|C)-x3H
c%Q*!4#M75p8sB*?Jgk0L%*L4W%2}uSxLSihUCLyxCsMqR{NF8YL{ShzZi?f0`=NIS@Cz?E2ikWMJOnF56961{5jg|0-neZbP`sh
w0rSTig{jNb6BIO5pKn<t_-W)xTF-~DUYU=!sf#pCjq*9BNvh7N5-CSQ0(o?8-cu1|6h7n;1(Ck?Zocajb5Y9F)A`Wh8oMyPsduX
)F}g}Pi>MgpVqoU&2w5r-{0Q_phX}ri(rnbwJ(e=B!5ZoazA(LM!-q#0U9n~>XGTrs<7PAPQ7zcc=0f{;5FA#kXWS-*1=JoD%%ai
j&8A}a$-EA3@691C$m~}l63(mB+}JfB1px0lkb?V-vmv0lC~eGeGQl
""",
            ),
            "w13_scale": (
                "uint8",
                [3, 64, 1],
                """
c-kF}2@U`-2*Q3X$Lm+NEHO%fYOl4<%IRb|$z{VWqns}wN>pvp$YJ=n9a2Xax@YVjyg=W6@b!m8ONIyjRi+;8*3@;9Y=S%?%f066
Z)ZYki|O$L=*3z9
""",
            ),
            "w2": (
                "uint8",
                [3, 32, 16],
                """
c-jE~2LJh#R``#+Y*k2bz$Pc<sy-isTd40VGqV`2o5)bOwY^5t!Epco;lZ`S1`8-2fO&2*yAM^Lbti7@r2x*b*Z(LAUVy;siW8?!
_wqsBQtK!x3y;O*j<){mk*6L=U!>m^&5UJRLtt|<E?v424tgy8H>&8yNOvLbJkKm_TV8~D!KvV2xWb@8>#Oo<H+tn+gF+a<<dCJ+
d!qDxRM;|>)&G1DcSFy|SA7(GDT+9);;P20vtD_9$|bl)U_yJWkP~M%Nh*m|@_=+YFCo_nin@W0a3xDP<Ga!JAFx*JLeb&t!43ZK
c3!H!c!KYP1p#t*wz-h;L)YGrjAa$241z<z=V|@i$ELTa5n?1`2jLMhn{cc3-R4$uN`27)fmfM7CcWA!LZV-+Xydl@$azOgT`0R-
dHCdAFNq9q$w85v()+(L*dGq7<1`W+=&B$5q@*9-5h<*5H9Lu!FV>Cu`iSK`hCe3}@B;F?+DqhKC~+;YM!nWVR#phkQc?lXqW}Hc
ohW4~7S026Q9;>w@WSpT<plqC_F&)D==U>Tal?KEacjueRbLa*1||Bc%rzzniv?fo#v5LE4XR$$ErwV8ceBss_QTkfPb^irFkh(w
!uoiaZW{HeiI+JTzn<B}V<VcSX8pgE3#Z2l?19;ZkVo3~7WV2?i5&DH42;M@rS)2c_1)^<S*G8;5my4A8VV*zmGR(BQe~2_q=_va
u@SpT8q_D|>%bE!${}s;*a3LBIzL}~ADNqYQQk!B%&`Um;g-&JV@Lh<wSciIHeiK7nP-4QR{3W$aZXC|kGZjrN9yFNvE{~E_Vleb
1?rZ|xaBSbsLUuW>dNwy__37G<|)WKP_zXgH7z(`UC5Wh4p;vuZPBE&-g8<71>_PZYFaL#wFI6ii!!dz)<(|d1W6hw2VVJSZx>J|
=Yi?)+NCPgfQTvR6XHR@8TBM7W$l%3f|Av)vd(@tOcJPvgL98Wz}77VF~Hi~c;db6eXdt3=h;ThxdNoRJqn=I`M(HFo3V!~geQ-B
yv**D`C2c6CU*kXR`OpY35=vAR&E`beSV+eNW$#*Gehz}XkfY4T|RQ&cv7OCf<bI6Z<yP1w5==uh@Im*I2%z%4x+ULsgEOmMBc1l
d4`S9_I^!Ll~OIJI3C>vCI3hYpoCo?*2Cgozf!j<iDedN4Jjv{E=kf}2gTk{>i{sFF2z!E5d-fx)_zzwFJq6R$BKCyHxKUK*hJyE
DF8UFXRUD@&qxC0)cW@52;ktLf5DV`&8eK6YjJ%eYEkfboDz-6*sdI}Eg-6NaRarlFjvT#mBi4>Evsn`>qUGtz)1UeF-T^z8drfD
W+ku1PCTgYKf9M%lWmk~h-d6qu$#7ZN&lSD&Y4O<&kbV`EYyO#owV_vn-)_^yP05^CHr{0Ih;u2wJndeUELh8d+}JUJP$!|MFWe@
6L(btla7z2%$`K}9#Y3{jmgj=n@-JpT3ebi3A4-eI73UTf0h;d4K4;4zolc=-uMRGi77le!8B0m@{?WBd?td-4BAoI|Me)0gy`x}
-pvuTdgVec_No~BkI(#MqE2N1;?8x9a+4c{azU!C@|Tk}6*pt;-b68EAV*Y)ny#6UA)>!mUfo_H2c6-NA~g5Aj5uVN6)OMx&nuy>
W}Z+alN~RsN7KwVKw7ze3_2qB8YUkREMGz}*$)7I0n-dF{sKhI{9Ju)vA5@EhwH7k)rOBNV60K4u7Hu?Ef(Yh=vEraXfH?zyaetM
vwoXqtl;J5gg;xP*M4#I1L^StanKWI`}dVd)ut{6S4pn$82L^iHsJw1nG==N(IQ9Ps%9infH*3=NbdTcHC%s!?KTsTO#f3#g}&6A
Cj&LK5Yf<;DeimE3pR`nFinP`+7enFT%kBx|2Vold2o<24WES6N62-r?o|EbQk#0AU!!OeSXsyEfA_e@;{$O8tyhx?_Iq;S^w9Q|
ncagx9&mI4jT-Q24B9#1c-~gE&66)u>;;q
""",
            ),
            "w2_scale": (
                "uint8",
                [3, 32, 1],
                """
c-kF{2?_u(48ne`(bvxoibsinj3c?ONETQM)l_?gw7b<0RX5T3=-3IjI)x^s^C95@h8!&b
""",
            ),
        },
    ),
]
BOUNDS = [
    {
        "low": (
            "float64",
            [1, 32],
            """
c-muN00M;|dl1FY&;+3sTK0qK1UIO79)$0Z0;Mw`;tP5pe1#qe|3NK;-!K`fuO3QwL1|Tp{DMlTIo?oyKSVyk2f{xv6)K(u5qGGD
()mz*(GWgE71aJ(sQLO(8tVQB2~c&WQ1NgmKLzUkGJ62F4k*F
""",
        ),
        "high": (
            "float64",
            [1, 32],
            """
c-muN00M;|dl1FY&;+3sTK0qK1UIO79)$0Z0;Mw`;tP5pe1#qe|3NK;-!K`fuO3QwL1|Tp{DMlTIo?oyKSVyk2f{xv6)K(u5qGGD
()mz*(GWgE71aJ(sQLO(8tVQB2~c&WQ1NgmKLzUkGJ62F4k*F
""",
        ),
        "kinds": (
            "uint8",
            [1, 32],
            """
c-muR#18-hFaRL
""",
        ),
    },
]

if __name__ == "__main__":
    sys.exit(main())
