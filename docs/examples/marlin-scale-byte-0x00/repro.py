#!/usr/bin/env python3
"""marlin: wrong output with w2_scale[0, 0, 0] = 0

A fused MoE layer with MXFP4 experts, computed by marlin: 1 of 128 elements in 1 of 1 rows are impossible: [0, 0] = 0, expected -5.98217019e-21 +- 1.11e-21, off by 5.98e-21 (1.99e-37 of rms), 5.38 radii.

Run it with python: it needs torch and sglang, apache-tvm-ffi, triton. It exits 1 when the kernel's answer is wrong as reported, 0 when it
is right, and 2 when the kernel could not be asked. The inputs are at the end of the file.
"""

from __future__ import annotations

import base64
import importlib.metadata
import sys
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from sglang.kernels.ops.quantization.gptq_marlin_repack import gptq_marlin_repack
from sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe import fused_marlin_moe

ROUNDING = {'input': 'none', 'intermediate_quantizer': 'none', 'weights': 'bfloat16', 'gemm1': 'bfloat16', 'bias': 'after', 'biased': 'bfloat16', 'intermediate': 'bfloat16', 'gemm2': 'bfloat16', 'router_weight': 'bfloat16', 'weighted': 'bfloat16'}
"""Where the kernel rounds, for the layer below."""
DEVICE = "cuda"


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
    "q8_0", or "none"; and whether a bias is added "before" the GEMM's result is rounded or "after"."""

    def rounded(x: torch.Tensor, step: str) -> torch.Tensor:
        if rounding[step] == "none":
            return x
        if rounding[step] == "q8_0":
            return q8_0(x)
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


def marlin(p: SimpleNamespace) -> torch.Tensor:
    inner = 2 * p.w2.shape[2]
    padded = -(-inner // 64) * 64
    local = p.topk_ids - p.first_expert
    ids = torch.where((p.topk_ids >= 0) & (local >= 0) & (local < len(p.w13)), local, -1)
    placement: dict[str, Any] = {}
    if p.ep_size > 1:
        mapping = torch.full((p.num_experts,), -1, dtype=torch.int32, device=ids.device)
        mapping[p.first_expert : p.first_expert + len(p.w13)] = torch.arange(len(p.w13), dtype=torch.int32)
        placement = {"expert_map": mapping, "global_num_experts": p.num_experts}
    biases: dict[str, torch.Tensor] = {}
    if p.w13_bias is not None:
        biases["w1_bias"] = permuted_bias(padded_halves(p.w13_bias, padded))
    if p.w2_bias is not None and p.moe_tp_rank == 0:
        biases["w2_bias"] = permuted_bias(p.w2_bias)
    output: torch.Tensor = fused_marlin_moe(
        p.hidden_states,
        repacked(padded_halves(p.w13, padded)),
        repacked(padded_columns(p.w2, padded // 2)),
        permuted_scale(padded_halves(p.w13_scale, padded)),
        permuted_scale(padded_columns(p.w2_scale, padded // 32)),
        torch.zeros(len(ids), p.num_experts, device=ids.device),
        p.topk_weights * torch.tensor(p.routed_scaling_factor, dtype=torch.float32),
        ids,
        num_bits=4,
        **placement,
        **biases,
        **activation(p),
    )
    return output


def activation(p: SimpleNamespace) -> dict[str, Any]:
    value = {name: float(vector[0]) for name, vector in p.parameters.items()}
    if p.activation == "swiglu":
        return {"activation": "silu"}
    if p.activation == "situ":
        return {"activation": "situ", "gemm1_alpha": value["beta"], "clamp_limit": value["linear_beta"]}
    if value["beta"] != 1:
        raise ValueError(f"swiglu_oai with beta = {value['beta']}: fused_marlin_moe has 1")
    return {"activation": "silu", "gemm1_alpha": value["alpha"], "clamp_limit": value["limit"]}


def repacked(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [E, N, K/2] -> int32 [E, K/16, 2N]."""
    rows, columns = packed.shape[1], 2 * packed.shape[2]
    no_order = torch.empty(0, dtype=torch.int32, device=packed.device)
    # K comes first, eight codes of it a word.
    words = [expert.view(torch.int32).T.contiguous() for expert in packed.contiguous()]
    return torch.stack([gptq_marlin_repack(word, no_order, columns, rows, 4) for word in words])


def permuted_scale(scale: torch.Tensor) -> torch.Tensor:
    """E8M0 [E, N, K/32] -> [E, K/32, N], in the order in which a warp's threads read them."""
    experts, rows, groups = scale.shape
    split = scale.mT.reshape(experts, groups, rows // 64, 2, 2, 2, 8).permute(0, 1, 2, 6, 3, 5, 4)
    return split.reshape(experts, groups, rows).contiguous().view(torch.float8_e8m0fnu)


def permuted_bias(bias: torch.Tensor) -> torch.Tensor:
    return bias.bfloat16().view(len(bias), -1, 4, 4, 2).transpose(2, 3).reshape(bias.shape).contiguous()


def padded_halves(rows: torch.Tensor, width: int) -> torch.Tensor:
    """[E, 2I, ...], each half padded by zeros to `width` rows."""
    halves = rows.view(rows.shape[0], 2, -1, *rows.shape[2:])
    whole = halves.new_zeros(rows.shape[0], 2, width, *rows.shape[2:])
    whole[:, :, : halves.shape[2]] = halves
    return whole.flatten(1, 2)


def padded_columns(columns: torch.Tensor, width: int) -> torch.Tensor:
    return torch.nn.functional.pad(columns, (0, width - columns.shape[-1]))


# --- what a right answer keeps ---------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """Of an answer `got` [M, N]: where it is `wrong`, what it should be (`want`), and in which interval."""

    what: str
    got: torch.Tensor
    want: torch.Tensor
    wrong: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def same(what: str, got: torch.Tensor, want: torch.Tensor, slack: torch.Tensor | None = None) -> Claim:
    """Two answers are equal to the bit (any NaN is the same), or no further apart than `slack`."""
    if slack is None:
        wrong = (got != want) & ~(got.isnan() & want.isnan())
        return Claim(what, got, want, wrong, want, want)
    far = ~((got.double() - want.double()).abs() <= slack)
    return Claim(what, got, want, far & want.isfinite() & slack.isfinite(), want - slack, want + slack)


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


def split(given: SimpleNamespace) -> Iterator[Claim]:
    """The two parts of a batch give the rows of the whole."""
    whole, *parts = map(given.kernel, given.questions)
    yield same("the parts, one after the other", torch.cat(parts), whole, given.slack)


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
        torch.cuda.synchronize()
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
    print("python", sys.version.split()[0], "torch", torch.__version__, "sglang", version("sglang"), "apache-tvm-ffi", version("apache-tvm-ffi"), "triton", version("triton"))
    questions = questions_on("cpu")
    given = SimpleNamespace(
        kernel=lambda p: answered(marlin, p),
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
        {'hidden_q': None, 'hidden_scale': None, 'w13_bias': None, 'w2_bias': None, 'activation': 'swiglu', 'first_expert': 0, 'num_experts': 1, 'ep_size': 1, 'ep_rank': 0, 'moe_tp_size': 1, 'moe_tp_rank': 0, 'routed_scaling_factor': 1.0, 'poison': 0, 'pdl': None, 'fused_finalize': None, 'tactic': None},
        {
            "hidden_states": (
                "bfloat16",
                [1, 128],
                """
c-jq)&ntrg9L967wCteFQsSg2adS{|b6D^5%ubFQinNnb?sJeu&F*R^q1I|kt>h)StoQvsLuxtf@Jh)pD?iS>f57L*xGmd@|BG0w
u6zH;*0`Z*tqO=R%7{*F#z`>O%2-1#hEq?hu%x)Z?^IaD9`E#Nx5<K*u$b!DI==jl(tO1=PWbLsoeB1{kDDsVb6n+g!MK^7>zD&5
^9u89GNx@iv^NBt<ukKvhMtPovr(SeRLK5W24%m_9|9j3)1%k18uQ8`tu~9?;x2E(>VX!*w;jzffxvp`T9-u(YK3{fVNrhDgN7LJ
GTByvE+#pGfB5``k^
""",
            ),
            "topk_ids": (
                "int32",
                [1, 1],
                """
c-muNU|;|M00aO5
""",
            ),
            "topk_weights": (
                "float32",
                [1, 1],
                """
c-muNXs`zW0Yd=5
""",
            ),
            "w13": (
                "uint8",
                [1, 64, 64],
                """
c-jE~5dZI-qU+;eF-KU7;}i2aDSsvCO=Mad>r-Ld#}bM^fx|!ZBBYQJypXp3FyC|6!lwJ)5sSscG?j_F;e+0FXga<H7gVWvdsNv+
4P5}NlR|5?`2qc}4Esg=lm^k5wkT3gFw3^PP-5@h(@B_gE<U#wQ>w}G_ufHhf{6RmLfYS>7A#II{xtklv&jdH`<zvI8)<0cYBlQn
59&xlwsH(TWIAL>53?@Lj<b_keLx(fhhp(lVJGWC9?=4MD~9mT#q_Fe`{V!$vQ9-(Ld3Ta4Hrzkj&W>>jmwU(m@~*&O85sL@dCuE
9s)nj8j8j1wuy<H$)9+eA?v5JZLVDK#!nv7`^wKq-pM!F&c0mK6xuQQ46!1#uYMGgQnfv=>(=ummIUBZ{fH>F@)6VozAM_&Rph+8
@;~kqa&!%9YG^}W`AW%-GpYBVU-|0}jsjfzMa`1_fF&dC+pc6BLXBJ(esTJ7t%SCvc)uu@6hjKZkOiEF0G!JbmygoQ%Np)~TI<kk
tUP>@x%A&!X2%;{xHj+;Wobl!x$v>Pct!l82I9MB7+#_>c`m@*ADKb5*(ir3gTkApjf&XTiN+u1a`-|_Y6Mk#T&r%JqMRWc(3Qdf
=zj@-Qr!w?JP}^`G{B~V&E-B0$i1MFu-tp1_A=amez5U<J%MYNzW+_?NLZAEe~a?vPrZ3KQ))z%Fi@wU?Us6r|5iAE$#<-L&I1^N
a_#RviJJCJrf9RAbPg}}I*5W>W47xbhY5`5*!;J|f`57<37E#SKKum?OO~S7=vB#lb%!$Xg2r9vn<@=|8qlbUg*2PWcQw<SoTiRK
!-}HVGqw;Mk->*#Pt4d^(?H%v|7$CZBRbi$0mVKv5aGbAF;Y#VmnhGQ7E0E)lp%(~R~XwL$e+Il|A=)Ge?x}|+HpmuQCLYW<+=M|
0}oLCP|M~#bD5Jm&Dqo8!zhjXFC#i}cS04|k`i*-`jvyYi!9Ap<yktwst#b9m}66&gwCkEoXv~3ueX4}C~O!^)mJe0UT(YYjtmYi
BDf#31Dp<d<mTnY<>yoPt<=I5Q8{v6-&<1knwQVV+!K8>ZtH{m^E@%)daF+-21%^qS1JtDA$&niZMeRbQj``SE%zul5)M-f^lKr)
SIUV&tIIqX3|CANK3JWDD4F5+Pk{wRn>e6!9$r@-;s<A2n?~t3)QbpLJjqhv=oPW*Y1_4}{+3$eV3~={=A}HnOe1*!icJ@a9Di8y
109)@{R<=<sZVjObj(ko+<PjM|K>B9vm9A@Pxc^m<PMU9>I0tNEEd?k%p4BiYgm*oUbhNZnSFA_725oIP2299KdL46vN;P(fyFY~
rM1DTU#4%^$O^+vaRC2wh%NKd37jXy+ik?8Qa)hCD<PcPr>nk1eB)iq@_ERR$L#2UEsO}y!W=R6PNVm7>v+i9r9+I$-1?#45~BAO
+8_s*1<;<EcE#fAGtv!86AKg7q>-(}J{E5(M9Uv)Ljhg--GPAeXsAxV;J_yNe)u8K2*M8pV$9Fjvzscvzz7$_BeD$)jUc}NgpvV>
k}Qh^zbZJ`3|n!w(>4_O5epsUlJgQEQJeJbu`s4R(bYaH@!ci(yUz?4Sg?-FqdD9+oo$<mDVFJvYhwn|#ppBMd<be2ygfmZX*GG)
|83>m1;5$$qmNO()4|6Gihq$uO2D3Bb^8$xjXY>fewz@a*ibR-FqPM87Gb+tkZ^$<O(^^FeNjWY2(si1*M7@}*)ht!!I_HYhr8Bo
{OM|<XC9!bMorG2YA%FfHi82Qv^h_DjD9%dPJXJT_?LK>d+S8x|NF2k61lGTXnGrfEde1z`x)ApKl#PyD)aJNZ{84>e~P9dKRYeA
1RncZ_S?K!1=+auq2`HjaRWiZ-;W~hK$t`|kNKo8A*SBgnAw>0@!{(l>p4^qqYkGmPHd61`1&DzszD@4W*&!=Hr2FMYp-Z|WTQ0x
&=NVVmLU}^rBT9nZM6W)b65*6qcvbs$hJxmzXx**B`Y4h_|I;*15W?;^>8OB63+!F;>pLW&%i+%)#FOxDs`Bf(TthopTxaXL3(f=
Rt{D14-t+!uQ5dV;2NhAvpD#+2+AO4A{R0Ts)}ZZ2P$j=ZN;MnObJ23dO+t}egX}l_||zNkQemeL{6S&mxIT;M|xt0Vm-)Ess1X=
3V*T@QLlvf6-QSYA=i{eswW9I#K+T`LP3t++2x->nN@SzPmrusVNWb}Oz=V^Gy@TMQPBwq*LA<)_D*cSBax2cATuY4e9&hhESj3Y
*g`5Y5iu#qomSkRo*mq)u01Uy%AL}S*n%S|{n)Kb*H3){%k2miUBk+Jee+zE!}a&y?o>e>6PxWc_WCw@I@RH&yHq_Jx`~Ey-`Ymf
Z_td|f2tcgj}bGElq7?_3uoYTo5Ain2XxRbWP_GLgjbl047ZAEKXl|#U<-hChtzwySW;mgGFU<Mv2jX&Rxk8Esw`Kqkpc^arOm)N
D()1H4X})E#uz^OCoP**VVJj8NDh0FBXWw6SWSyzfmI7F;Lbowgys#m5f^`WcAFu&@kOLDOT!(_G`k*SA>E(A{|+U3L9lY&_PH+&
8)0GnNhAM~0ftZz4tlnaQokLp9wr;pxxY=WnfJOx1M>9hHaSUwqf&B?H7#xo(d@A=qQEh7Zn2(D<v%#(9DtM;OjX<UZkwORAO}Y=
V=CST4JFQt?)I=Ls<vs!93Gt^=Jy^yG?YN%N=JG6jI1#9<s8d~=g;*zZVZf(<n4yKm26z_1Q+*1=Kt+JcNAC}JF#+vltn5r=!kN&
dh{XM{ANfNr-Li9*^6mT7Z;Jh%Kc$70a$na-r@maLtE?0TdbjkQEAU!;cFC&x&Tx1eb~0k!D5d7Ai52<t6aR`p9}Tbv+BbABxfZi
B?U%ZQOpz9ylicl;?+q>xC^4u&iy9H0stB%SPujpm{Jbpy5LSF*`p*K;td(Wz?X#=m(gmCWLc8B>4|;;!!Ms{=rF?YN`@GcexclQ
J;uMItC`ovVLkJ!j@_>zsu|tKjA`igeHNTe;z0aj*ue(HFfQ>p)8$;QHXqM|=`{;#cG!87a`@xs!Uy&?xtI!Phc_mq5IdldV~_cv
LGT{O!#ON>L|9I|LtB(Mm?ZzKMh_ccacU-ZuaV}i!AXdF_a;X-cjNWKf4<C<GQ!QR+K8Ry%}hE`N@$xWk;@}=E12Ep&rq;9*2S^{
^mKa`o*=O{UY1WEiVn7)%n{zoCshn`vFU&UsWqYkuLoqjZ1qWC_r~F;?giAnvr1<Dd#Kf29I{aZM3+`QxF48sww~VE+tzY$H%tE|
EC7jTt|Pvx_1E+ln8XX|4rXl7I?WQW*PZ@cZ3|qE_b3bS9x(*)R(9tzs`|&|?>{h@JNS(0)wqin8ywnjOVp5^(`5Hb=!ph*guy0g
)@epghy#5CG4m*Ie${gj^vbAvGpHC!ka&EYbb14WgTAMKTrH9a$|~s@kDGodF`0fv{IHuY_0uJmAbbwBsB*jNR(mxW>v|++it=CB
Usalbpf$gyS^K{5kQzj0%M55!&!}SYf0K48J8eKi>Yr#Ct^sPHzJ<VQ?+y1YWz+%kJh$~ce_cj;ng*QPhSWU++-@Bw(CuDMHG1VJ
Q1}iCswbLxhMD3aTh*v74FvdVR#Hk>J_Fbj6hUai#97e~NB$XdPja5LHd+qQKwe0V3q{?(a1F1+2aBUnb19|rc9<zeMiaa)*)MPY
_=y2IceTQsdn>TT-5;J8a`35JS#4W&PbIdjY;y80Zy9oAwt(dPa21sR@ul}#_%)3gEo8jG`L<0e&Qo*~qH2Yw1Yo7mn{!qU<sE|}
7#!KB)8-GG@CCCw&x%?3>Gm}<=Z-$xQUf*AmSX#a9YXO(eU_<gKXf`K8{})jmq%k@iUPPWcEC@;jNscE?(lJFNA+--Rw-<`f=PvX
^Xf#+A5g?>ahVk3bCyCP+R>Ym)R(5_OTxjs(M-E1M2eyY7V=yP;?SUO&y<5ZQUc41(xMY8LslwiAZy9sNRRx1y5|XgA~4)ui$Sx6
FIp&TPKt@yHJZhi-R*{W>8+-lFYq0mJni@Am9g_*8LSp>F{G3>(rrm&r^wf~Box2+Qui3DMT{#7rWRYFli$kzQ;B>G*Z$qZSGW}3
lN$~WP9Ece)r8o1R1%k~x60_k|5i(J&|cVW!Ab~y#0uuK#d;4s+uqxc{`h)$@kf`Zy7Xl%23FhxYc+n%Skvv1`Uwy-(&}11ETSw)
nd>eeKQ>@W3#260wyf-qr^1Cb9*7sqC4=VpLFK^nGtSOGqH4YfqHCT>A;GTu&gR%A__YRzMxKlSA;=oh@(Y6pzoz0L2=n8P$HPqS
G*NlgA@$IQ+WDoyd~O1v17;7T6;n8Jkyo{|R`%lhZ?e=df@<T>EsR^oOX=;N-tzpBu!vZo)nnO@8J?aGM+pKaUgy3K`CJNC*GWW!
N&j;OKn{_O>eF)tEd@xE_g4Sel||}H7$jX#q^AD^@q2uX<Qe`nd}xQlo0VuH>mYiMh@E`yQ%;aK5shO@SGIXM;Qo#III?^3*jyW6
D(nka(`ZCAu-DzMij1I}+Zbr)s3Tc}V)KcLn5<qxZ^!j-rit@!z(4_mo)aHzH4e<4cPsnsx}7-pY(5*1Sv#?`>5qhqEfQUOUCmKO
C?ayPOLCG12&IyU#X^88?#7Plr*Vvo7MTwHj885fx0UA7hGn@Xm^5Nmpj#l4ye~_=MRH)2J;*kf&{<PCy$B=Suz+&sL6gDhqkJX1
SLI9o!{v|?`I%wkT`7(Q?U7!;vI(E@LX>lIjAa4BT32dq_mE3w(K0)55|>DPGH6*C2T4e>?g-eEn(3&v<EY7Vs(@r;^O4SHlsbg3
=oyyupF5yz5#eQTR$Xgn8G&p2T}S}X{+qT&zvZ1M3Ku-JgE=7|;pfx75d)2jI@-)Rop+OCl`wR4wpr+VO)U(dC-eTH&5!!S{!Yz*
IWpj5fH5QRt*#hZIyIfaeT9MCOp|d?f?MY}j=pbU;~>%g$cQ;B8^z+hEYikj_akDjZ%_4vWaf!xbKr0}8C&Bp$?!cHKt;eX)|C!%
2JmHjU9x^}C-Hm~5!n(fnY0`;t|g`dplKhdzmszvh_I|xv?9`EMGlsc$Z?Ba0r9b@2gwUoOb(xdl-WEhfD+bdd-D^+nkGm%&=weY
O4sFdC0I@{puP(lq-PIRDB_>gNI=|aN_J4yXKXDY@(veQi3mY3!EWr=mEQX>{=z`>sQE|{3fJD#Y$wDIiYf_%K*B#&hXF`vr;c6q
`(;j>6|c*Qdc^#-T;C8gR@h8X#Ab1~1OE>
""",
            ),
            "w13_scale": (
                "uint8",
                [1, 64, 4],
                """
c-ke8i46cD48yk0H~qOB5+K^d4U^@HbL`fM%{56&75Ua^B~g6U6mjFUn5bo;W(mz!LxR`mqeIIXtm2|1pUzuEXYLUmRn+ceWVo=f
d(!>_W`?{wEwPF59=%+?k1#^L4Cp`u#&eYIo~MA<L*dQ`DP?!#
""",
            ),
            "w2": (
                "uint8",
                [1, 128, 16],
                """
c-jE~2><t#R``#+Y*k2bz$Pc<sy-isTd40VGqV`2o5)bOwY^5t!Epco;lZ`S1`8-2fO&2*yAM^Lbti7@r2x*b*Z(LAUVy;siW8?!
_wqsBQtK!x3y;O*j<){mk*6L=U!>m^&5UJRLtt|<E?v424tgy8H>&8yNOvLbJkKm_TV8~D!KvV2xWb@8>#Oo<H+tn+gF+a<<dCJ+
d!qDxRM;|>)&G1DcSFy|SA7(GDT+9);;P20vtD_9$|bl)U_yJWkP~M%Nh*m|@_=+YFCo_nin@W0a3xDP<Ga!JAFx*JLeb&t!43ZK
c3!H!c!KYP1p#t*wz-h;L)YGrjAa$241z<z=V|@i$ELTa5n?1`2jLMhn{cc3-R4$uN`27)fmfM7CcWA!LZV-+Xydl@$azOgT`0R-
dHCdAFNq9q$w85v()+(L*dGq7<1`W+=&B$5q@*9-5h<*5H9Lu!FV>Cu`iSK`hCe3}@B;F?+DqhKC~+;YM!nWVR#phkQc?lXqW}Hc
ohW4~7S026Q9;>w@WSpT<plqC_F&)D==U>Tal?KEacjueRbLa*1||Bc%rzzniv?fo#v5LE4XR$$ErwV8ceBss_QTkfPb^irFkh(w
!uoiaZW{HeiI+JTzn<B}V<VcSX8pgE3#Z2l?19;ZkVo3~7WV3VTc9N{Gn&5GdovTECNOeMOcFJmNpcFqxvkxUQQPG#qjPb6tw1{e
`zjzm!m!MJCrs=^n25U7LPTx`ARxQ6DZU)W>>W*-Wo8-uEx6Szog8D{F3N?Jokj+8?!Zd-F^(lD594m(Sc}vLo>O<0a~1?z9A5^A
kQDQA$9l1aYUXknGg?#F;XZ}bZvRk_#Q|U%&tu8t450D*EcaW{;D|)q<J$mCAfwRJQ9*7C;RQ+j(%QUjKT6$`Z*xSF2Mz|gjf7t|
^p9i&aKw@U7--q5@Okt=G3Cngo<7o*sFu$S+j?U9KIn))z=-qI1q_$WXWvZ{E;FWA?8cEdh^>Kv$kx;;^>JImGdRa*iKhv~xUb`E
yNW<2#VVn=iG7osGdVaI<xqvvY9M`E63X05`RZDRpMpGFCvd`@{?+_>KmZqcu#MnoTp{dUyJWXIRwu-?d&3bWY~Chf#r&BolI1U7
(B!KJpjI5S(-1{^)`1JG^Q4M&FdhkYI?m!6Kdh1Hh)Q{0`e7w4(D^dL<LU7{q4#YHXT(=5J+G?p(`*TI)nlDHz}g*TQU`<uo+o{7
o$vL2)x42pU%BM;EF|8V{I{~l+AMS2@-wE%a|FA#?3^l+^}btGL9H=Y&B-;kL8mE!DL4+AP~*86YJXYrCP1`C4ZJNKS@WML^Qt~_
#a-Wa4|$Xu$s5qFk-h<j6DcnOo)DUuR5b8AcUMYoi7#LIRWUp4JI7pOZzwx@JWIIjHGLoV!7HMn8Rox&4)Pkw^*2RV6@Cj899&%A
9)#<41f1m*sj8VIJyxRHS1WI4KDG<t?m^~JY;L`Zrd?dO8{jNNJ4mLgl>^>=PDsiAF%Cz;I-Gp3r{dXCX1AzOwb8GKp7Imi#vI<V
S~2|4LZ#;U`{5h0aw{(bhCaG>$0&yd(DdsH4S$7J?~4gQnEjEK-9Zv+AkZ#Ui_`9XE0c?b8FFU%A3yR=?*e}3UP{`@G+JcHkYKqL
luP+#==|V%x>4TU8CtACOpieCA$(Xcbt9P<r<&BbRrqR_WQd6nsv3|4_l}B@)$p^>RRwO4_Wha!y*l^%bC5wg*bRLs1qevsRO-z~
SFTO6i8&UpaR1=qpZIVxi$&j#T3hfr3>_!*`^Pv8UU<wfeLBZpeNwOF)jk{o$+*Q$eW$gYR@CVar8my$s|dsseDc<)!{Tr#=T4sG
tt8dx#QX-lc>n6TbmZLcGg`qrvWUWOO5X44@JwCMD6{s2h0&t8=xSX7cut-(cwbAqm?Od4yR)->$`IjJYf<0LVy;zX+rHjI;RV+U
elnX8CAd^f@0Q|UgwX@WoUmcMPJOgnAOxlYUTY6q%PMZOcg??EV$&QL>pLV(Z&-)6Qu}8Z7%Al|A_x8>i%qO~2%U2Q8Aau?TSVAx
W>EyU$f<jQV5ZH+!ImJ{&zcw3Ehyqb_5>hyniAzFk-voon!?lb%yz^_RuXlQD8*JVG(b0s!J)NNo@yO)d4QA~&YJ(kR2ik#*XWY=
gh((kU?rB=21z<6ivyQiZQ!V#)N>K%3H^7NHHTN_xP-E!v(s!EugmIonEGFYo?Q3cYI%9#ST>tMYgi(f`pwLBBa$qaY6O_KhX0a!
aqAoxbi=$j*{v3x(CxwKl+<tB%5leATa56@kEzWSHIsZ&D$hNi2+BiLze2G|tp7*b%;CNuc#sm9`u>PzV(DnWLp*IW1oL<cwSzoG
OB+mJc*cmTWo_LTO%71z&=>*=wMQ%}J)T3`Y2%zBwi#~$FJNCm#jfu#7-MuNr_Wu7V{Xg+X&#)Tr<ee`=r}3~`@jGAnL7NlKrL{O
(i<F|iIPx>#2_XOI3*~|T847HlDQzvq9P-ugi=ELB8gnX0aN+KR$8nq2uAJRO>~=PIf-s%={e=Iro=}L0OKOYoh0~x8!G%NLPcP8
PhakepT<e#AY}i}a^z0hQ~xEU@A1PClgda2kPKIxM8!ZtMfp{ECD@|wE|qD1C8#7I;P~BB5egg
""",
            ),
            "w2_scale": (
                "uint8",
                [1, 128, 1],
                """
c-k$E$qm2&2*WycuIX#4@`xaq@Fa3v$@7$!CUnh&nh9c!KISUYCZq<z&{?tzc57_XPCD!hlM?hl`CjJu7vQuzg8
""",
            ),
        },
    ),
]
BOUNDS = [
    {
        "low": (
            "float64",
            [1, 128],
            """
c-mEyJ4*vW6on^PDTtUt6v2#9L`5YM#fU~GyC4!Q;v?d#7(q?ps}T`x=BMocuo>LiLa?!$zaUsyh?4tlvD+N(+;i`od*-fE|DX3S
s{2i(UC`Tc7lQ)Jg04!wCb5YGZ9!0jc2h8U5WecC{#;^TrSFc!ZeK7tARZA6L&Eci@FUKbIX|M`prAdY&l<csIw#S+j!yXglsfXR
NPNp2=<`kP8(^Li{9$7J(i`yb(Y6GQM#nVz(4`*9cgUm1l(PFdABVp}zRrAC=zGe)PXa$wsJn+(!G|97Y5E*9$J?vKG56nqHR|z6
U4r<W%%F3DzN7dtMIHMRTI|I&bq)HQz<);11^Gqve@BA&8^$>Q5xshq_h@tfEcrS5+~H65{>-P?Ux$7>pXPiEhQ8Unz4T-6lwqD<
bbLkm|E0}6O?=-2KZNhL;ITjEUFwrUe(!w|9{-2^lzM|dNgukF(7(%`z*mhpckVjqD5rmw(4dn
""",
        ),
        "high": (
            "float64",
            [1, 128],
            """
c-mEyJud`N6owC#NJMOdDE8VVL68-T^|5kyMuZ@-Sn*Yi1Y7uOgoI{(%KQt3=EjsNmFVU-$krnEJX6dxZ_YXIdC$4;y(9Afy}q@<
72-CUZNH6)C<aAEJFE4eqH*XcMji0LXdQf1zVy(4L0m?^u5oyP?xCU`RE+wS=Z?_xG@r~d|5#(!NB=pv46mv@89|TOzz@$jFLj%v
{|+Ae$rkf^iSyt9h+n}f`xepNMc1&$SavV>#2!ujN%t8>uTGv=7MNG%JlDi8+51W0n;H5Z@To+-lQ{;R6Ldb_HNS@6x7^b_{rDtT
#7pRnGk+SrA^Jw)RZ>6Ey}{=idZ+N8>Aysm{cX!r9{vV-&edYyMSO11KS6zx_@4V)q2H&@`xW?Rin%5BvD{C3-Y)cbcVg-LWse`-
Gbu2y!98!{_dfWke7C{;9nSgfW&Wr1-Mbuh{*UNO`z`)N-Q>&QUYy}e&Cle+X8KOzKQTC+X#
""",
        ),
        "kinds": (
            "uint8",
            [1, 128],
            """
c-muR99RGVAiw~D
""",
        ),
    },
]

if __name__ == "__main__":
    sys.exit(main())
