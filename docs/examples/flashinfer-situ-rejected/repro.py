#!/usr/bin/env python3
"""cutlass: rejects a valid call (RuntimeError: Check failed: fc1_expert_weights.size(1) == fc2_expert_weights.size(2) *...) with SiTU

A fused MoE layer with MXFP4 experts, computed by cutlass: RuntimeError: Check failed: fc1_expert_weights.size(1) == fc2_expert_weights.size(2) * mInnerDimMultiplier (256 vs. 128) : fc1_expert_weights inter size must be equal to fc2_expert_weights inter size.

Run it with python: it needs torch and flashinfer-python. It exits 1 when the kernel's answer is wrong as reported, 0 when it
is right, and 2 when the kernel could not be asked. The inputs are at the end of the file.
"""

from __future__ import annotations

import base64
import importlib.metadata
import inspect
import sys
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from flashinfer import fused_moe

ROUNDING = {'input': 'none', 'intermediate_quantizer': 'none', 'weights': 'none', 'gemm1': 'bfloat16', 'bias': 'after', 'biased': 'float32', 'intermediate': 'bfloat16', 'gemm2': 'bfloat16', 'router_weight': 'float32', 'weighted': 'float32'}
"""Where the kernel rounds, for the layer below."""
DEVICE = "cuda"
ERROR = 'RuntimeError: Check failed: fc'
"""How the message begins with which the kernel refuses the call."""


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


def arguments(p: SimpleNamespace) -> dict[str, Any]:
    """The keywords of one call, on the GPU."""

    def up_gate(rows: torch.Tensor) -> torch.Tensor:
        """[gate; up], as checkpoints have it -> [up; gate]."""
        return torch.cat(tuple(reversed(rows.cuda().chunk(2, dim=1))), dim=1)

    def weight(packed: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = fused_moe.interleave_moe_weights_for_sm90_mixed_gemm(packed.cuda().contiguous(), "fp4")
        return out

    def scale(scales: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = fused_moe.interleave_moe_scales_for_sm90_mixed_gemm(scales.cuda().contiguous())
        return out.view(torch.int32)

    kind, names = {
        "swiglu": ("Swiglu", {}),
        "swiglu_oai": ("SwigluBias", {"alpha": "swiglu_alpha", "beta": "swiglu_beta", "limit": "swiglu_limit"}),
        "situ": ("Situ", {"beta": "situ_beta", "linear_beta": "situ_linear_beta"}),
    }[p.activation]
    weights = p.topk_weights * torch.tensor(p.routed_scaling_factor, dtype=torch.float32)
    found: dict[str, Any] = {
        "input": p.hidden_states.cuda(),
        "token_selected_experts": p.topk_ids.cuda(),
        "token_final_scales": weights.cuda(),
        "fc1_expert_weights": weight(up_gate(p.w13)),
        "fc2_expert_weights": weight(p.w2),
        "output_dtype": p.output_dtype,
        "quant_scales": [scale(up_gate(p.w13_scale)), scale(p.w2_scale)],
        "tp_size": p.moe_tp_size,
        "tp_rank": p.moe_tp_rank,
        "ep_size": p.ep_size,
        "ep_rank": p.ep_rank,
        "use_w4_group_scaling": True,
        "enable_pdl": p.pdl,
        "use_fused_finalize": p.fused_finalize is not False,
        "activation_type": getattr(fused_moe.ActivationType, kind),
    }
    if p.w13_bias is not None:
        w2_bias = p.w13_bias.new_zeros(len(p.w2), p.w2.shape[1]) if p.w2_bias is None else p.w2_bias
        found["fc1_expert_biases"] = up_gate(p.w13_bias).to(p.output_dtype)
        found["fc2_expert_biases"] = w2_bias.cuda().to(p.output_dtype)
    # 0.6.18 has the enumerator Situ and no keywords for its parameters.
    accepted = inspect.signature(fused_moe.cutlass_fused_moe).parameters
    return found | {name: p.parameters[own].cuda() for own, name in names.items() if name in accepted}


def filled(p: SimpleNamespace, call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """(output [M, H], workspace), full of the byte that memory of a caller may hold."""
    kept = ("output_dtype", "activation_type", "tp_size", "tp_rank", "ep_size", "ep_rank", "use_fused_finalize")
    (tokens, hidden), slots, inner = p.hidden_states.shape, p.topk_ids.shape[1], 2 * p.w2.shape[2]
    size = fused_moe.cutlass_fused_moe_workspace_size(
        max(1, tokens),
        hidden,
        inner,
        p.num_experts,
        slots,
        x_dtype=torch.bfloat16,
        weight_dtype=torch.uint8,
        device=call["input"].device,
        use_w4_group_scaling=True,
        **{name: call[name] for name in kept},
    )
    output = torch.empty(p.hidden_states.shape, dtype=p.output_dtype, device="cuda")
    output.view(torch.uint8).fill_(p.poison)
    return output, torch.full((size,), p.poison, dtype=torch.uint8, device="cuda")


def eager_into(p: SimpleNamespace, output: torch.Tensor) -> None:
    call = arguments(p)
    fused_moe.cutlass_fused_moe(**call, output=output, workspace_buffer=filled(p, call)[1])


def eager(p: SimpleNamespace) -> torch.Tensor:
    call = arguments(p)
    output, workspace = filled(p, call)
    fused_moe.cutlass_fused_moe(**call, output=output, workspace_buffer=workspace)
    return output


def graph_replays(questions: list[SimpleNamespace]) -> list[torch.Tensor]:
    """Captured after a warm-up on a side stream, on x = 0 and masked slots; then replayed with what each question has
    in x, ids and router weights."""
    call = arguments(questions[0])
    changed = ("input", "token_selected_experts", "token_final_scales")
    contents = [{name: arguments(p)[name].clone() for name in changed} for p in questions]
    call |= {name: torch.full_like(call[name], -1 if name == "token_selected_experts" else 0) for name in changed}
    output, workspace = filled(questions[0], call)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        fused_moe.cutlass_fused_moe(**call, output=output, workspace_buffer=workspace)
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        fused_moe.cutlass_fused_moe(**call, output=output, workspace_buffer=workspace)
    answers = []
    for p, content in zip(questions, contents, strict=True):
        for name, tensor in content.items():
            call[name].copy_(tensor)
        output.view(torch.uint8).fill_(p.poison)
        workspace.fill_(p.poison)
        captured.replay()
        answers.append(output.cpu())
    return answers


def graph(p: SimpleNamespace) -> torch.Tensor:
    return graph_replays([p])[0]


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
        torch.cuda.synchronize()
        return answer
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
        raise NoAnswer(f"REJECTED: {text}", text.startswith(ERROR)) from error


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
    print("python", sys.version.split()[0], "torch", torch.__version__, "flashinfer-python", version("flashinfer-python"))
    questions = questions_on("cpu")
    given = SimpleNamespace(
        kernel=lambda p: answered(eager, p),
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
        {'hidden_q': None, 'hidden_scale': None, 'w13_bias': None, 'w2_bias': None, 'activation': 'situ', 'first_expert': 0, 'num_experts': 1, 'ep_size': 1, 'ep_rank': 0, 'moe_tp_size': 1, 'moe_tp_rank': 0, 'routed_scaling_factor': 1.0, 'poison': 0, 'pdl': None, 'fused_finalize': None, 'tactic': None},
        {
            "hidden_states": (
                "bfloat16",
                [0, 128],
                """
c-jL100001
""",
            ),
            "topk_ids": (
                "int32",
                [0, 1],
                """
c-jL100001
""",
            ),
            "topk_weights": (
                "float32",
                [0, 1],
                """
c-jL100001
""",
            ),
            "w13": (
                "uint8",
                [1, 256, 64],
                """
c-jE~K>xp-qU+;eF-KU7;}i2aDSsvCO=Mad>r-Ld#}bM^fx|!ZBBYQJypXp3FyC|6!lwJ)5sSscG?j_F;e+0FXga<H7gVWvdsNv+
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
8)0GnNhAM~0ftZz4tlnaQokLp9wr;pxxY=WnfJOx1M>9hHaSUwqf&B?H7#xo(d@A=qQEhPgPfHCpu{c8jI)R2rphBA%wj_XRBAkK
N+d^(t19c8*LOA5wOkdpF<MuWqJsAgBv)sYpiTHu&d^uX`!;O$6ppC&nei)6mQE4j6ZT0vU>`dS$_)>lKsBjNe<A0J*eBmaSSH*y
Da0UaK8pmiucn-;(mP85qKBJv4goo5NJcZ~L-=0A&o?w9>RIw5Llo29Zt@$Acv7U@xq5@b8(LE%d8+l1!{?Vw$=aj@@@N9&IxeBS
e4xeSA6#)2HYJ;e*G_q6e85ApGe-f)5E^H;(rw44X;Wu&;s`!JDrM|mH|Q;Nkm;PhD1R~5enVL$pb-YTsXAn3Ui%opo*%kq!<$OB
>O>ym9Xi*U86*b?&2whD&ZWigKi7BMzL0~c;m)w`#?&o^miscjkW;VDN2n2ti!Gf;<uP4>ydh+#3IMtgwR^{%{<kwLJr2q`ykhP&
V6Q56FL(4czNsCurB$~Ac|gADY7*Q$JB_98SnD?CBCGeRp-&|{DtI&kn21&+G|y!zN8P`bKQWR`Bif*>H%T{xWT15{6&>X(^)$$9
j&+N(uY_uple|{OyMV(9==5eVQk0hiIp(9fGt$b0I>&2%CMTh?lHa^p1o^z_-UOdUaE3aRz;K?9DC14s43>q2L66-1r_Z^Vxflxj
Pg8W=erUFK>jqsI@=LzeuDvv%qhClayXm~X?XlnOtvMjKtBTHlQ0<~X@o*<yDngcylc<f9^nJT7z)ZbHq!sR$qqy*y>@h<agY`38
_NZ|=os&WH;q!sxiqi*PS$U5c&0J0yGp19fYzMxeZ)T!kh#b&EKN_))^=a_n0zJ*K9+YCh^yhsHQAAPSgP`X<5y?Hy3&ZE_9xhGo
V`e5Qc0A01c$Z02+2ynpaHLx8b9CNZOM>AMM3INyJ7b05s9^NQj4}d>a#Rg^1QE_*H<nlU!AfUaXgfd7Io*nS$`W9(&xmYQ=Ib8{
X6m(b$^7Xwie%CtrEYv@_s(M3Fqg=xEkrl<SDh%Mk?tEfOHv7CS$m2v7^y*zmKE`asUMx2Nr8R-C$&zX#iU`z_yImpd#XvqTqmlR
lh8gqO_%vV2<K&=TC}|JDQazbkvDz%GiZya2)`nFt?_L0x17o+AJj{aoW)*d6D0b8Be!HD`nctU=a5-?=GaH#v-&+e`<=VaHCWce
9c|wNMR<sqByE;OYjU5+qrV2eJ-*j{`9(lgVXUV|Ukldop0Bywnonuk?A`uX1(>H#@BakMI~sb)9(fDpsjXt9si1@J^F;tl@WGxE
(QVM=`1x4z^5QVc@>Jn4H=gg5csnhXchlAr8EA!MZGC)U%pg;G)b;t%f>dr#xf{@9%vCAUQC4oWDVy4nLtcL@?Ug(~6dfaWe}bWz
?LLaz$S9><cYtD68OUGh{VNpCHK}i<XTUTYOSNZ=BPpvObDz-J{d-QJ_gCv?Ds);~pzk1~BUmc`gb^i__ZDn-E2PVzZ72;Y3ri6q
RiBAAYN&2f>Yj;gK@)s6b{EIchI&;4W&%F?;Ds(-d+PUhb=nG)WP0=ajV}9vVZ4>%v0j9D0gb1UzwP#Vxgx*rYAxXpljhf6lFgFX
geG3S979@}AnzPmf)IK5yBclp*OmKy5YncSGd#KKOk>%)5`cN%UOn@*>9qV<ZMLu3=d-nax-9yvMb+vCyu7GXel`H!AmI=V6smK#
-Yg6tkJ^|9_g~HgagR<3N9E7iP6ilR4-qaT!bC6gpBR>%zNP1)fF82Gqq|iGi77>mpPQ9$9IWg-{h{G;J6Lh`l#R-G(vkN1c3otA
FG5&#31UPX53*ob!a`w1SwJ<b%z;^WLX8(!JCSAy@ITK2P7DuJNF_op=fcNsIA)P*38DmQHUggiu%{FKj-oLO-D((sVR)NF(6^pM
YlnxQCzk)>5K2`|XWLg14~4tw=vsc%MIWIq?f@#HE*a<h4D-k?@=FFb5mSE~mOKM($^AG@Ak%@G2lCF-5`hGW^XRR=OjaD*KOl~9
L5$G@8I;tpv)HcN7`7?4vRHU3RCuu753$hm^>kJ?XL0nWUM7=ZhIhM6IK~LV#A0}4fz=j0;x?yBt9)C^{QizP&mF6w-r9MSnQHvA
ID&0LKhXyF*)*+MK|jK5X!sElFWJU24JQbmJA>6uUCgW9A-bBmSouOupBsWeM?%=3ntbF@8Oo3p=+v%{zJyf%H;M5r8dLSXyVuCs
mt{C7ogp=NntR8`g61DLmq)9&1S5ct)9V$5P2D_U*z%fqrmj+70r;Al1P#VtgR9N~WJh;=>1IA`<q;|JH-Vbn86`R1FvEbrHOsEs
9IIB_6vA?vd2qLfW54!EH#iB<k^<{s8xOVYy5u!n-Q@>@L8OSi8ur_sbZYR|mq^pgOW>IEo(IWo<M>{<bofN|g{<M`<Fkf)kzX1L
UZ~lOT|9KhdW5peWJB3+-4srwC(ct68!hi7k%0m?3T{5D#WrGxGy~o?Cqb1v!nrf{$LQfXbzsLK_Y1EHHPU<!9*3Q+5TIGIpwRmI
C#Ow9+1WlGRfig=%gxm}=Qxb)wE4D9z2QNB<p6d`IQFLVL|r``h~GqnQr8ICn7(%AQzj4XMOa)5CNDMJ@lVd>dsyB#1p12pB2r}u
lV#joY^5&Y<!bgBk}q6yFYzMOJQ5@9#z$XU?{Dc@lKWZt`N;fL2sg(kz-K{DcH$)et@8$p-h71S#To2H?tJNcZ4W%Y?D-HuhM2B4
f8RdkCk3;AM`CQXI41?X16VVh#1wl2pfW6mdQx8UeYXh1N*r~GJ#B*7xmyE`%SBD%Z59XanI)8wHYH~Aw&GJVxkBeBApLP|UTLj=
t6_8|OvGpF7<xqR&wnNMgf|K3zaAOywmL_Qx=zFU7tMPVj#f8uX~cc6^4W?w@D^xzbXWrxe}isItFnW;Z0Uhw;@pdWb>8i>hZ`~c
fhTbH7*Cd(bj&Y#RIVj0Xs5XGFFarHaLZw?#J+pp$miix1(<WeMXwzk7v;!4|A|@n$5=Ys530%p3##4Ski2YGZaJ}68ZUmKCS6as
82Ciw%lp4KoS&seHcito@oaQTbysVx$tzX$^<|CFEh>L6AwA7TH@F@d2C10)#N8W%7{(zT=BhnwN5`2lX_CaGW>1n2?mf6S_&ra?
?ZHbt^|d8tK)MqR_}s}i4pjq4y7Oe&>IX;vr@mki_{yE=rFvCL!C+Ct$U2S^6kQ{bi5T1==GZQo=y9B|FN5+|pq&Q&ITIQdDHqN`
?cOLYvk)Wkn5i~b`KV@~n&rUVGTb>E0z?~!>6RCUfjO~+NPdqb3Ltpz4t~?>k!l8w)dJ@=X3aHq3lQ+wzmU9t*h!#Jo2MBkU`sNv
TBT+nNxvZ5{^Wi7|16^Xbp!U{_S)@{k96&^luR=rH5%fR9p&Q*-LO<z9?GC}62IG19oA+viWJ)low+{mUAU<F)4Ke!X8<u1a<&OD
yvE=<4atOOahBJ|jw*X7mo`tgs1Xti2jjlj#tb;8Bb9oy8mPgR{VnpxydA#%(^U6pTp8LfW*1GGn-80|ROi_|0O}GMLIz=~H*i*f
gKg6c^`6ppW019wbocU`k%q?BNX7v?Lna&T7T$|VOudH7p>H!Mg)Sr$XPJ(_CLv*zs-RNu^F`hL@nqT(Nxf_yqHvbd=%@}Wd)G;G
){39L;!ymD%_$KdyosUI3bp3eDZ~hPpWVJcVQ_K6?GQBD_xkZ~3tvtB@s{`Aw7gI!wR)9*&_xLbycQ|UVmh*RJn`I=@v%gVpLFu2
;ZfsC;iZ?;=kY{|hXL2{$rN&EL~og0q^(2v7?WqYSE&=gVQ?Hj*9eyz0<+kpiq$Tjj1I<!61TOil3H0=vuGZLH^#}uF>~A>t15ky
)aIT-W&d07V(XsOH>Npw9I1XDQK$sLx&1w56v#aGPVGQNk9tib!V$~S*^L|n;etG0@kKP4ZW#A<vV5!%6qCV0DUl>1l|_!u!3S*2
8a{HL-k;F!4sK)n8L;uJkPf3=h?q9X@M~q=t0rSfy%;091`76fWnXz5^DIhq;V6E9;2qYZZ}pPZEGYKgO;9YWri!?A(>{{myhXsj
umr<lMkfVpl-^oQd2J0fyWKQKEMJe9Cs^&~-w-H+1duiNsRJI=?v&GAOU^rl?Sb#+&!z?B67%o$?XX|?p#RwKH@?U8MI;|nEU^f`
_|a+K<Ln1;qLtu|z#cYwvV|DeD{}Bjg|XQgAiVvId8;~ZPXb8o#GY)<5pOWypu!_}9>UvMLwZ&>M$0~F6b3Sh;zNM4QeS_gC*lL`
d5idWUJa7Cl2tuu4@F~QgCKdWE@_H=Y{B5(KXC*SUv2%CH}idFMqU(%U%|RcUoZ486#SE5+5UY*XjF8#j9NFMU#->k?!gQeT?4C@
|DuxFy|?~)+P$I7a~k2jpgNVgWUGfQZ-7xOtBv{n^HAWgTD(P`Nb&hPy=wm&$UP{b%7S<1+<;|;B$FXb@$<QG2uJGj?cyfHMgAG=
J=NpU*{Jlf{osswqHJQn+VaY6aHYzB7L3uzYv3}us6K^)2BQx|ggh07fIqXRu<;v?z}}qwQv}Vlt-X%-Sa^Ef*2{?=|AuE)i`-(s
lU(P2o6CzHvi3zOaK+M`Y~`@DP-D)|rACb!U)x!S8c&ff9;enO*BnmR+t15ajPwS(2~(UH%u(Q>msj`Yh6+ND=FRWg^wzD$em?Hm
uH?{q=0ORcpvN!Nz41^8xSwfUW5#`6wuWmU({>je!otrv7<STpt{yi0*+vah*{6lMGI)_OlFCLN4$zRT7Zx0j!<(>}udJ~$`dwGO
VAX8=GB5Bb(zQ0ZGrcDENhI~;&33JJI{z<r9?Y`dHRUe}T3@(y60p+Sv}#%IkM`~U6+XaRLQ(ADsffyLcd{6)5l&2jeMwGTjHOqk
Ev$w%hBSksHe1!PfFjAv5?n6`Uu<vkR4PR<JgC@vOoJCP(o9em4Vw5XX(Ji2H49)LsPliV<$sp(m3pG*)q24!o>DQaqtFJHC!@Ll
ctB^n`v_Cfh(l2XtV5|$7v&6?-n7gS`cwZEo>c>gqT%EdwyYxD5sZnm*Dk{^ch!5B-m<BFW{6V6X5A_S#8@nvFz<q-3Odd4WBuPw
>dc?`Re^Iw==}att{GYc3Zu3kBWxkk!mDFY0N_ImB&F#z^@IA?FLgW`y)E6M^86LM1V>>laNnZ!<pKYsc#}sX$j*#&Y;a`c(!syg
=?0kHiBj29CkPEuJck&tpr}2;(S$9Q4f%`Ps=qcON$N->%^r0QUS2rmDWijDX$!<)wGQzmm!uKX-6nNRQnft9CgZ0LELyduV3%$r
^b^U8ynqtLQ<iv>==i96>OS1F^Hd6sIdx`tg`R$={gFLFvC^E8-p{&ul6p0I-y8fb=1o{DO*sgV?|oymB!AB+f`=0ppFRD+P%Asd
pHYa2`_3!8b0-ePa;i85qH9FgcshKG4;Mvnfj4LZSvUjL^oY+1H4~`Es{n8_+imhM6_dWmOUel$f(l7JAF)*MdRx?8K%<b+$)4yh
M_dwI9YD?QfGEM0hp6PHvpk++S3vuD2=YBQ|D=3;nmxfO^f`;C;bGCvKhI?kUIGHOolCgW;k_wLdWb9Zr@7S!B7JECzFOwlEeZx8
ySYweLdV&}Out2?zre1mDDC)uz1pS>ExfZlS1#*S-5Qbd_FJ@YsqUn26GgT0E_BNgJ#)is=#XwUWIKXU-`Uq-uiDJWq2X02>Y|@}
wW3nFMl2I1$uOy9?Vq`4me9^Xk(5u>GyH_-FX*|4k$*4e#+svWmX(zqcrLI(ToJ8bTZ9PVV|+o)VLAq&X6K$;^)&;`MUos3eZ?(g
#(Q~iO<!u4^A+zUbtTlV@>hs9DGX&j-2LhaGPPs@8S?d?qIi(wK`MgWnKMb7`>zP#KzBL%B~n!oqZc;m%(H)es>f;l_UR=!9t;4%
o_~}_7dOTFdQLh{oIg<#{%%s4%xevVT#1x$I(0bD1L#m?HbEz_6n~2A`q&+PS1bxbY4=G?7J*d;Xb`izuT`bmhec++^*VUy2AWF6
w}}r^3@RIVW`xEJS@Iqg{9k+a_1(BGqyxb9CS0tPhTLbk$^kyrxCvm0s9K@kk1y*#T&}uo&cVTOk)XfXx-N;&>OpK*(#xFCX`}De
7`Vr_sZ&lmKhdw43AgOuAW48;!)UyOYQb|^5Pq>=#qGC|JYC(J4}~xXSUK{Afq&VCMvUk_ifaWqo=3@5Wq3gaK0yF`>0Z*#p~zb5
P#3%FZ%oV-Un(Ee+?2i%4Ht7?D9#6H&VJp;BXV-^YdU}c7Bft+5zNo30XOO=3-HFSaDAshb?Rt!sBmBFXx!Zeo{8hP2*LgLDu6b`
ts)(J&eE-z>?CoPw&GEnpHz<Pjg~Q`U24RLI~W`CvoOT_WW0s`#{dfgrvOJ@4~bJST^w4npCu#Vo4+b1={zlpu&%`2MJGyA+n7>9
$vXqT9~rU%iMxrcZHq6Ia>N^A^6rcJN8A5~GBu`vy<FtmYcqVspKDX2qvnR}Qb&8h*L_Z)ziXWVi^IiCG#?i+-#c#S)dJVg8;q%z
e=L*W*YRdeNBthcK*vV$!z=;0CkGb8N-aJmN@ab$#eP26OwfO+kC(8BB3pebRZJE@cfy2Pht82)y_2k~-%&Tlr%x5!eBhaFx=-($
1rQK9V=bk0Q~rySrh#nVxo0%gdB9f29&#r%ymL17;(nspb=^t~w0e~lB!E<>Sq?BtiuoEhf@GdgU_(?P;W`VhCB{9~uN2R+b+A1~
NVyTdrQ{K3|1AF%WCpMAe#ou%aMoAEV%pbTY)MRMWOR(P85<f*nnaVw#u+Feu9_V$=#lJjEmf8ZZywP+t#8jnOv(>+qW&lF-yMhK
4xlpPD*(=|WJ1sBwe%~vd^kDlMSS&wD9lEQ*)2jQ02zkbBba*~ID(Dm?me4{iZc>8Z=bYoTj9|nrfsdr13scoTFApG(3_inozzc7
=)-fC2q@wBoOR<WkYAwsHBcXhyvV0Bpei{&GfB~oY)<tMf3;$(^WHOOW?lLivFg}s!Bj7-`R|o`+)Nu74)hGzu<o}_ilJa1GaoD@
E$;;N*TSYt2XCUg{Lum#lvn@<qX-#WQ5{!=+U1=B8j&9H{)raM&kXG*Za2r97{Bk^epN~oMyt+o4MUoM4ZzPn^KrG!0yG!Bgq#9m
Q0&$%Dl00)>Q1?v8eq__d48)-Vg~svj#;QibOG?*VIWMWXX<z60BxGeXU}}yJ2=<lVSPk2Df{iW;i#d^nrEW}pPMD8$poMo6_5Uv
ID6u_-9pHuxR@~;?m%%k%m=Dasd2a{Dx&8?Ddnan!MNDZa4;G#&Eo?n6S(3UGwv%KPFMk3hU4CxdUIt`_)jNUKXQ@%E=#K~f`rFM
`0mcHIETEu^g#&5;fUJIf(aEGy>fM?j+|#MeD9UH4EOYI;m65YGcu<ha?ltx#U^RZxclsO5A7$Dr*ncQC$5AB#zq)Ar)h6~?yjE~
n>8ds+DuIHnlXTB;O3-PM>HRkbOER(f&UbP%$vtvx_aBYt`#?Bgv-<bg?IdO)qX8~UOJ)d4;TL^Qg{~?&}lMOPq(ANMCIde_%||}
nr8psCHuc&y-cgv{*~QwGjsMAy1HOeOkw)6+~vs-gJ*%Bv2!%cgD5r|?B~z%K@W?;maS;A{OvHDhY?|Jk|*2~aU9soMf0lidGTg{
w8QW%^qj1BlW{#4`j6v#*W${&(YRHq1PF6Ccky~}2%)0ix--Zj)Mese>0zypRsbk+0N^ktD6>c=bcztq4LC{g+6CA{3~uu<>7IJA
g}*ulHP)T4J*P^swTAw~dT|W)Sq9p==ddGtkSFg_nGv_ReKUpRXj+i>_P*-;VYoj-Dx`JPCn91}94srhI;f|EV!7V-Y@Pzg_Rl8<
C5xQ1ivq2={-btnr<E6WIW7+UC8utzYm-YqT}Xc`lP>j#@yc3qZn2(D<v%#(9DtM;OjX<UZkwORAO}Y=V=CST4JFQt?)I=Ls<vs!
93Gt^=Jy^yG?YN%N=JG6jI1#9<s8d~=g;*zZVZf(<n4yKm26z_1Q+*1=Kt+JcNAC}JF#+vltn5r=!kN&dh{XM{ANfNr-Li9*^6mT
7Z;Jh%Kc$70a$na-r@maLtE?0TdbjkQEAU!;cFC&x&Tx1eb~0k!D5d7Ai52<t6aR`p9}Tbv+BbABxfZiB?U%ZQOpz9ylicl;?+q>
xC^4u&iy9H0stB%SPujpm{Jbpy5LSF*`p*K;td(Wz?X#=m(gmCWLc8B>4|;;!!Ms{=rF?YN`@GcexclQJ;uMItC`ovVLkJ!j@_>z
su|tKjA`igeHNTe;z0aj*ue(HFfQ>p)8$;QHXqM|=`{;#cG!87a`@xs!Uy&?xtI!Phc_mq5IdldV~_cvLGT{O!#ON>L|9I|LtB(M
m?ZzKMh_ccacU-ZuaV}i!AXdF_a;X-cjNWKf4<C<GQ!QR+K8Ry%}hE`N@$xWk;@}=E12Ep&rq;9*2S^{^mKa`o*=O{UY1WEiVn7)
%n{zoCshn`vFU&UsWqYkuLoqjZ1qWC_r~F;?giAnvr1<Dd#Kf29I{aZM3+`QxF48sww~VE+tzY$H%tE|EC7jTt|Pvx_1E+ln8XX|
4rXl7I?WQW*PZ@cZ3|qE_b3bS9x(*)R(9tzs`|&|?>{h@JNS(0)wqin8ywnjOVp5^(`5Hb=!ph*guy0g)@epghy#5CG4m*Ie${gj
^vbAvGpHC!ka&EYbb14WgTAMKTrH9a$|~s@kDGodF`0fv{IHuY_0uJmAbbwBsB*jNR(mxW>v|++it=CBUsalbpf$gyS^K{5kQzj0
%M55!&!}SYf0K48J8eKi>Yr#Ct^sPHzJ<VQ?+y1YWz+%kJh$~ce_cj;ng*QPhSWU++-@Bw(CuDMHG1VJQ1}iCswbLxhMD3aTh*v7
4FvdVR#Hk>J_Fbj6hUai#97e~NB$XdPja5LHd+qQKwe0V3q{?(a1F1+2aBUnb19|rc9<zeMiaa)*)MPY_=y2IceTQsdn>TT-5;J8
a`35JS#4W&PbIdjY;y80Zy9oAwt(dPa21sR@ul}#_%)3gEo8jG`L<0e&Qo*~qH2Yw1Yo7mn{!qU<sE|}7#!KB)8-GG@CCCw&x%?3
>Gm}<=Z-$xQUf*AmSX#a9YXO(eU_<gKXf`K8{})jmq%k@iUPPWcEC@;jNscE?(lJFNA+--Rw-<`f=PvX^Xf#+A5g?>ahVk3bCyCP
+R>Ym)R(5_OTxjs(M-E1M2eyY7V=yP;?SUO&y<5ZQUc41(xMY8LslwiAZy9sNRRx1y5|XgA~4)ui$Sx6FIp&TPKt@yHJZhi-R*{W
>8+-lFYq0mJni@Am9g_*8LSp>F{G3>(rrm&r^wf~Box2+Qui3DMT{#7rWRYFli$kzQ;B>G*Z$qZSGW}3lN$~WP9Ece)r8o1R1%k~
x60_k|5i(J&|cVW!Ab~y#0uuK#d;4s+uqxc{`h)$@kf`Zy7Xl%23FhxYc+n%Skvv1`Uwy-(&}11ETSw)nd>eeKQ>@W3#260wyf-q
r^1Cb9*7sqC4=VpLFK^nGtSOGqH4YfqHCT>A;GTu&gR%A__YRzMxKlSA;=oh@(Y6pzoz0L2=n8P$HPqSG*NlgA@$IQ+WDoyd~O1v
17;7T6;n8Jkyo{|R`%lhZ?e=df@<T>EsR^oOX=;N-tzpBu!vZo)nnO@8J?aGM+pKaUgy3K`CJNC*GWW!N&j;OKn{_O>eF)tEd@xE
_g4Sel||}H7$jX#q^AD^@q2uX<Qe`nd}xQlo0VuH>mYiMh@E`yQ%;aK5shO@SGIXM;Qo#III?^3*jyW6D(nka(`ZCAu-DzMij1I}
+Zbr)s3Tc}V)KcLn5<qxZ^!j-rit@!z(4_mo)aHzH4e<4cPsnsx}7-pY(5*1Sv#?`>5qhqEfQUOUCmKOC?ayPOLCG12&IyU#X^88
?#7Plr*Vvo7MTwHj885fx0UA7hGn@Xm^5Nmpj#l4ye~_=MRH)2J;*kf&{<PCy$B=Suz+&sL6gDhqkJX1SLI9o!{v|?`I%wkT`7(Q
?U7!;vI(E@LX>lIjAa4BT32dq_mE3w(K0)55|>DPGH6*C2T4e>?g-eEn(3&v<EY7Vs(@r;^O4SHlsbg3=oyyupF5yz5#eQTR$Xgn
8G&p2T}S}X{+qT&zvZ1M3Ku-JgE=7|;pfx75d)2jI@-)Rop+OCl`wR4wpr+VO)U(dC-eTH&5!!S{!Yz*IWpj5fH5QRt*#hZIyIfa
eT9MCOp|d?f?MY}j=pbU;~>%g$cQ;B8^z+hEYikj_akDjZ%_4vWaf!xbKr0}8C&Bp$?!cHKt;eX)|C!%2JmHjU9x^}C-Hm~5!n(f
nY0`;t|g`dplKhdzmszvh_I|xv?9`EMGlsc$Z?Ba0r9b@2gwUoOb(xdl-WEhfD+bdd-D^+nkGm%&=weYO4sFdC0I@{puP(lq-PIR
DB_>gNI=|aN_J4yXKXDY@(veQi3mY3!EWr=mEQX>{=z`>sQE|{3fJD#Y$wDIiYf_%K*B#&hXF`vr;c6q`(;j>6|c*Qdc^#-T;C8g
R@h8X#Ab2Mgy_%<9xD}Z*>czc>E>O^F8p_{0&<&Mrt=>7bkC-QZc$$U3YovF4eVP_7AFNktw#tL^J&Rw@4}a@yB6n^5fus4yGd#k
RV6t30-{+mR>dDh=zJ(>K;eu_lvPNq1#e~|8Bo94>5OE@$@4!r?!eUHIFbqkEe992rpnVYwrz3pv<(}I@P=`%2+E2}e3JFNuI-4L
?Cw&Ejzf0zSw<ICr`z?6gQv0)$N;XieA?0!3Zc>l4-3sSuLN}p7ZSwT>3nZ7F?b!8;-u4K*{a{&U#wCA5<%val;)9-WMN{id9^2Q
9{W4wZyCNl4$E{MVVx+`)0!sC#OmumQ5rgI2G-@}jg~@j@a|Sx$~St8(i+D^mQkWn^v1n7f22+f08NydZrurxbF>^<yA-r(YKQIh
&pomEff0n>uwqlVV}_?OMt6q%Tbba|-0jSONu#C-Q?(xpwWOgK6OiSs`g^JkG49Z&ExT`i^s5x?Nqu@E3oQJuX#y25+uH0_a)|dK
d0dZdJiU;2pV6;xu0xQ!H?)sA_Bz2pUpbM7q@-nAGn5j;nZtwjnngY2EOgn=MKhSToN;xn1(fGhB1N^1{eQHyUN;V4qPk4@=i-NM
EcTKC1^S9;B@4T<62L-~f!#Qa*Oc>`6%-f0*&n|QR|W?4I!LM2s}s0;yZnnh6|)A3hJ?T-|23$u*?iE47?`Y`zdSJGk4JBhOv!cM
)OwFhM${z6isDSXq$@K&w~lR_^P~N|JYMB}u$joZD>SN)5VM$s+7{c?m>+6lmfWFby+az(bs-I{UK%mW@nZ=~(X@tJ!y9d(<<X@?
qtGeU7)M}iB&IPf!Ge~ff8Sk!n*HYrm;}UW%-8ba0Zx}@hcG@G*Tsd1+A#?=E~_>*V&<fg5`PPv4;WIctZE$6-gySu4P&ZR7H2gk
<IJLcTBpFOn3eKL$ScU~uok13j@m~BXIWhr%aEHwnf?oVAuM!mfaCGHyb_wfkV!E?mX=Ry8Lgf5XqKUs*#L@8xs}K%r=mTh^4kq(
6rj74-S~t4M#H1q__&I{3<h4AO4BV=x=$DYI}P=6QYU4ZFVyNrr7=rcRfrx`2;uyk0utW%mOg><loGpK&R7@~uY0iZQtD@!&7W}Z
-zK3+*37>M&yuxo*ufPR=5{W9bVEx*a17vZw!yPIXhNoQTDz87x)ZQRE}3-Up_MGxp3LS{<)OK}h9ae{x>vW_K-b7Y5zCsUo<WpV
0rVOT$OT(F&v+_{i{9PW|FPm$dAE<5E+~0@fke77er3mp3RrxCagIQFZqLeLOa#uBX>*tpQtYx-E@Sb3e}@A)KUIaAE$NbRVCr06
fzw2xc|QA=$5%KoOSXNBko`gPpz|KZz0t1BHmhHow;e;7nXVAn;6|0;Dpm}eI$)aoUHfWL0P|Ej%yRSZQOrdH^M_510UU&@pu5LD
Dn+-$ian{a4HiDG&bvG0#s7<DoFtiaNApELC(_xA`9=$Df}38bc_hu&+e@Q<r-SkmZHZ-?cZPtYMD>_4#V@VfYi|&GatZ9_^&wC9
U9I5MEGG7TRRH|8jm7lx$q>vYdorq|Y**x3OgX^|T}vgdH=|Z0K>D8~r=2}RzO9cbT2qDp&l&?zj2538gaS0Uuu7yD>a;#GkBT3)
x0>s8e!!xQMS%~TGUR8hqx_dXYo%r_MfyLjzP0alKqosQ0{^q$vZQ11IvGD*Kp&pXf_=-`(bo&)cE0);9Py!9A{Zj&y!x)W5q`zb
!Ot(<F%St#tD)A}UVv-oJKP>Hct3>KA-!3ZF(UxPP4#09V@TLL#P#)t+tkGXw<wt|!d*6*C$~sNB0sJs_Ll-}W-_WJ-4c;D*ZR9V
^4X;SQ`-Z-KN{!i9nA54%Bs>dkWaP|WR%C1+ui+cbJHHc`eYP}TLBDZT5!nGs(}_79cAufp5|Rx#%*PW-Vb}9!#Ou^-v!vZp9y;Z
iv1GFV$KvSMVI<0{j*5l;AQqi;C)W#cjD$l9l8%%Q{Wol8Quy#2NWEZ=u(&a1f9#LgRCdKGb2IfPhax-1Dlkqad!lDIms^2DHQR*
cz#AET(s27Wx(+73{7|x+Ott7++eyT?;?6vWT!+M)OZEQTx5XB9Dhlq81kBz$U}cd)v#}}yxcV2j9|1(1jy{4pL}=fTMC!m<e;M;
4U=;}z4LgEQ@jm)%r7Wi41mXM_RD$_K>7#&2=0bLs}*+q04Du&0;k^$B(NOv@ctj6z!QaaE4mUt5NE?pjFeXG+a8)R&0jM#*H&hA
lfu-*yvEV}4)J#_C8IU!)RDpk;?PN!M3Yx(TH%=Wg(cdxVmV<~V43TkbB^J?MJdK)ZVH*bsvoa71c%ULHPg}k2o*);AQ0*XokO@e
k_`S<a6V)D+)2Hpt7B}`;1L@Xn>jSXteNH?BT%9m!*y#z5ba6%I}3)jSrj{M6x3+u)iTCawD24@oNy|j`6UPZ@k<}O;afRnj$U4S
x!4?b91vOf{9X5@6cJdE)+*iBt0ZFl1_Jb>at+452iY988hK%V2bj7E4ad~Ist6WgnYK9`l^9CxkPhuJCa`kLeg1|6QtIp5r6CWN
RBa#W$=ATk9B4um6g(zv4apRh*^@t82Ft#!u4<rMjQi?Iv}T1H!F>dyM8ePE+|inwELX8Pvbbl?0e>(IDe``Q#+Nb&q;jFP%df(#
+bz4=-dov$UGNI5oWPyQp$L{Yzp06pkwnS4R-jzL<DtjWMv}evrmq-)sw8eE2zLQSk*w1%V=>U`;&g|p*nGuUxHGD`hi#6jr+KHj
4DAxfrcO?yR6VYo>4F#Lp5|QUf@nVu*PG^qUnZ%rDLlL>5MwIJ*Ab+TL3Ha*xaZK2a5XHuBb>Y|Cl99^!+`p<t~a9I^!E)wy=7}1
BQmm`6Qr(!@DgkvuEYAiAL5Ru3bmRO8T4!)(_H*3XbXaM%nACm)?}p@cDv&)Ftt{)Bklle1dsN0#zsV(aNGe=X`b6V(4zw;4eT_%
XOoe;*k6fpydZx4V*avfmxi(-zk4ougFL;@0b=C~-mRM#;f5I+onF-|IgW;FAx?58ugJTHbg=jzG6zLMP`t0iHnNW~$x_j-k%kx)
iXT5L3@PABL}zt;sSVT#f^vjhL0>agQ~u`X&sFKL?m-5MODS~qZ$?n<D(V=>^4daobnkf<!$IkAH{6jVozC-|rjR7aORjZ+G?M9-
UzoN-X_d?bwwjxKs`4rtpi;v<e08pA*P4bxOnH0E)-U;BGIdG!LGSPpNzn#hMNM8}^Wp0mJ2kJ+2K84HuOZyg%LuX1t=lzQ9|?kQ
x*BoFO0^at2rWUO|4&FbY#$94E#j&V{fO<jFCB}qW36N14rk>@KI4uFN1)xEc-Q_wmKSp-o(zS*lSpf**tr5)3^e-8HTI*-Wj3_s
SW`8ExzkX)QwcW3y@s2Mn1oDQP;G>ko^oIJe_KbF93(8tW(_M8Ppw{bLcBAIQe9D1*|hI7g=ilj$)}zPb!B;7ex?5aBmndNrjI2|
Amoo3O=H+4*i6O5om3F|>Kt3J!gWqpA-X&yB5r@CX%U+FX+M%CLu!ry;cW8d9GIOkdXsys0hX-2{1THmKFW*j_Rv{C>Lfh0i>$g3
A$P<32H1N&U`z_mdy0B_kK|}I7(J;_;Juypz<9R6U9!E+TH9(0;j;D8`8Ql)&AbPrfvK!*yZ!2F&uwPssc0gM8reLIK-Qw(6sbdU
%01;vg!14=(Xtr+C+eT-Y5QsrSqAULRT&ta5O;WlPrtz{6&wFd#vt~~I7Ue_!7|2bphU``$GLgMt^enSQU=98uwl|OxXB(@=aN>4
AV}!)_&VSryd%O&>+@QwmZ!Oe2JfXmHLpvhb^RW^VO{nu9E4<Cdd91{7-zfjbEX(qDvk^L>{h5BTZoyD6xq9c(}RrI&p2B%q(0dI
KS!e+(Ev(r5aU(D?6xyG)VTmCeGn@sNrTXYD}QJ5Mq5VINYn2dO{?44-9$oer9pXLI)FX2ODyc*NdXp(o0B%ncrdMMevU^$qJi5V
1Tv>spS?qmCG&W>xW3Em<IK!i)VrD(^NzF4f7Ve~RARnKoy6wm@yTN{XJ077;cJ=kAbCxElSz@+1!WZ3orf#!)bcG5sH=2Y8!E1z
3AQP##eTnt2+n@k{wtyj_iH?rhc)wRtz}S+1$)!|J^Rg08<AsUX3YcLzVJO?H|M!B`nnU>ur$6N8#dZ?Y5sy&DxJBGTR_cTFMhr%
HZODi^02aD!!6DRmYy5$WhVJg;bmp~q=6GHFq-53+f<ShOQ4BOZb5b3C0rO+ci<HDAg|tq%99gjfWfJKxIynKRD8c04;v6P{%T}S
jGA$4`9AIT9;Sz<M=u#maM%)&?z7W{AHG<X4-JEC=8D_nXi>WaC_YDL;Vv%Ebm&!!;#;9-+U#j2u>p=5x!2OXX{rx=;Gnx0fs-la
9T!c%*Q|T-az+i(bjX@~IJl(%J&s#4OcKmQQ(8I$G<+j|0!vH&3_O=Vb1}I&MzzhWPMy9In<nb^?yZ^%HnrmM{{Tl<EDzh&zHigN
w8R=it@>T~c416$Z8iyqSa64WNwVm+M96<WUq3&qb{pooV&B8MOUZgoTB64=FM?dy_<g))B_jD`E(xn2>^wO3ya5|=nZ$ih4z{Hr
iV)QdhFK4vWvdQm*BR*zhFp)Zv3=^BE^2K@QM&}3zOUQ=DuE-3wb$5!LZ0866x4eTbDmLu30w2Q=B|8sW_R2i%F)H(2+}~APtBMM
$!GeZ+%OYwRHW#DQ>I;1Y1@6bR_^K6Wd(M;X8Z#02XA5fn~y@oFQHx)L<#NRtzxA*{)$lDjt+~R?H7`+x8txm`gW#P4XklFLBC$-
5UOQ2-Q`<v1F-^y_+oM1C4G?JmcPwqIlmn=eI4uwUmCXBZY!QnnNs*2#0+b>>rM-<!gkN6*c1sRP=tPXedsADyp7~DYOue~n;!3z
+&YMT^(Q@qU}?1&2M(1tu>ur4W40x)CE9>|RHU*2c^v-*)WqZ~{Bpo4VVcA6mFN|D@Z0@cAWo~FeLoVa@wGz4Pg|pO{4a#t9}tYZ
hcN{={#{iZYj48lyrq@->Tu(I(%WOt0tyb=2mgII_dx$n1oH!yC}`T!ej0eGW9VS=7R)If*v?ooWH)yu)?Z>>bw>)~y1vDj)`@b-
Pyd7vOzA*r(5;E_3ujkDGgV5p1@cv0J+)a1Q4ISG{%2^{_lo0#9O{F?B*sD39K(|?;-H*)33A%>cWZV{41G+CZ8Fe@ZvsD`mEz(u
;+e<wMc|bd|1?U$o1o6RW=Q>V=E<)SKGz%hefVkNpSdXxQ8g?NDC_w^bIoG6eH|`8K6-p$xE^rX+G?BWi8~-nVXEmmJ8G+vomFO-
aVZ3{r#<qJ_%?=XM=^vzIx`_JOn24GkPH*u=So6?`7PRycl#%l2zgVjl{DHpNr@h-Kbz#bv$6(~Eb{2vv#ZX`KH)p9FeW_KsJ#Yu
dp4FT+iTdqWtv5oY>0E#Ls0r#FyWFlBfRo?+|x%X#La;_=1b<3S7*zw;_I3gMYcf_VUR(WB1s7uHoeZ|<H4747afS*h(0@XJt}~*
?1z)cJ(s^De<2$0VvP+#ofv@e%+r05fZ{U?Ayp#wbvyrZ?Eya=W`Vc83~Hst-+7hLLn{a<WJbkUwWz=j!kt+3kQTCm6*0?R>V<s?
cK9Qy2_GjB`O`rQe+9ZE5RryeU&rOU*t`>(v7Af4@2GmcDb}W<aBZGay_5b(l!?`^q{t6D((0DUHGQ>5TGJb6(eq>KK-MtFyqTOl
uh0X{Og@*)bs=k@j4YxTo<XIR^LIv!o}##qek8E+SW}25Fg7YEiV8tmc7GEiMA}VyGsXc#>BEZY9TN`&YI;-MF!QSF3~T2Gdkq)~
*^4By82nu!CAVw~i`RqS>6&zl9qY0;y#e^L1yYRuV{^hM!L=`(Rhjze!E!jZ_X{h1h7j4qQ82H{C4|LE@(A>!Nf`~l3ytBo!v>2d
f8uM{=z4VEGl&!F$4hQtXaxEQ^ODC6(#%2_KW~cQElIkGNZ@^TdW})SCZ59Ww+}&w)OLy$WDGG5zW2P|cJ-Drg8~ZHtO2fE^7l(;
&1#Xx($#{kM_VvBqF2j-nv%xXM)9FsB$WzikwcnO&pA-=Of<;`VW8aP6q0Xr6g;FDzp%IVPhQ1qj|B#AX7^!Et+H4=Oy)jdDbOo<
x_jd~sq6br?F>W-+yz=dlVKpxa#MQy_joLs1)aR^rQrN8xq=|3n%UqcnUyq2F}=1&@S0}Ww(6R<O-k8;RN7oZbHYi?>f}L|?Rlk$
1V9g%4fLLeABB<fo3ixwU^ypPK!1NN7nFJ}55ApokM@EN@K*oKEc2Bk6YEymO~sOG(|0K@g=Q-B0F$D9x86!L9yLS18MBsyAq||l
CTjYZia0b7vrSn86N=eWWKrU*PDQeI&n8tkgX)S%B=>4{GCM6sdvXM;prC~WK49fCZJ9Us(g})7o?T<dkE?3jYaNgzV2BU5gm#wW
hEI(T)((JS@y}@hvp}Y+Rk30gpUNp-`(DI05Dx<)vq7Siok)I9HNgIW>oQlDLHFeh{xSD**R`zF_gt(>6eN0Y;qmgXCO6Pd9Np5i
*#9^lnFEcsI?k`~3+n<E=(|1P?Kf6ndOy#R7vRv0HsMb0rj;W6D>YZ>6{qM!)RoVO51#y2*=vD>Q8<+L^G<S_MGIj3Kuan*?>55*
32c@tudf|c)_zp%UkBw(+G7i@F~rsPdRLLq3~0M66~UxnlG6u_HNdvMpjt)3+;w4_kwG|{Bs9fBA#dGhm&?k1#~M0MBUG$+y;}?!
Z<h4dJaevFm(Hd9Ex69y3jLYnAFj1FE52BBpyMN1CwoDFCZ7pdSMrJ6xuMOw-g8tT_32nfa1HnkxC--}N7)h6Xm=*`UuJ$zsjFg<
S#2BO2;gT`<jo0?M*`^l8MItFfzJw%<=ZKgqKvyJB3qw3MI(peaWoGpt$9`rHm<=jg@$Rf%So|*^EL<WYvwy2x9Lqv1tdMj>V!va
Lc_f)Ptz#FB^OTA<{nKKgPnwgjh6&E@aE^Jki8?)o&f<vy3-lJdRw-QIRbw%5aMI+8d}&CUiqCEwt@li)ff=M5eE&x4{;Dzl(Oa+
(Y&~r=?WVYfLOG)a^W64nA1NkLbX=INMD5Wv>2DRbu}XB3$bYIuaS21QOnEu5?m_TNz!L#4zEtk8M8+2St`6&)gK|wO}C@#N@v*j
2_mrxZoM&Dm>7WSf}GI->QP6I<nC5Ty%6{|SC!!#(yTMP9S+*dA~qv5Z%o&MbsV57o>Ct|AWz!p`s2h&Bt`n*FN5S<XJ<xP8Z#1B
r&+d;@8kw1qab^s^-kLHn{DK}J^74Anna^iP$)(1zR^;}EtUCg(&FpTJ`C|CsytT=&G~)!{QJtVqJz*TqF^ww`*C9mle?k~e63>0
Kq!UqT|GoL2$++kD(Ek+%HPA!`F$kfIq7cSINV5tv^w^ZD|6RfFe57lkP1n#(CK5RHG1Vm*&OgA0^Q5@IL|vy2{^I&I*JNhB=wO4
W&Q8sYiCAP{-onk`#Xq|V(oR2AMzigwKO((YhA5Tl@Y8}&QCnqf#(oE(jGIq3W-!7V(P`-36h@seok(ko7n$TBQYs6P(XnsN8wWK
Qw17stw`MO19Vma^Y7<`Fs<hRwxuHeCLm1*6H-s0dVhX01q!_%WjfNo<DuE!`n6@*Bb`$6L1BJng2LMEX+Cb9<+wR{dfT-ZAr&ke
6WK_n8R!wW3-_IOJ~{v#=Uf#I6V+6EDiK%6_JePXJA9Z6yW%G*FS$5$aQ^gE#fc82gk2!NLtCvr{`&|kuYL1@|9&P5&^5bDo{GF}
@~X6w*v02x$xKgdlHJvrJZ((v;_%U$3kbMGcm)Z0+NT2yR)mFqSGu<9j_jEcF;e3@?N_W!W(^S^A`d(q?h{L6(ZU^=bN3z
""",
            ),
            "w13_scale": (
                "uint8",
                [1, 256, 4],
                """
c-l3S2NDA@2m^mjdwq80OD30sK?n(7b@djX$Ftir-F#hD-E2*@uj6QDYTD>5$vZu}6cL*nVqHbf-8M+zZR$ATsOP|1st8q^*LPzU
4J`!G2<Sw`m{6OuU4GNaYSDn8M~fc1edHMf7jk4Cbk1yGova-4Hc?+y8DlbQx`Je<=3yRSozJnz;5SJf4I1VaC{{-a**cmftz_pA
pJ4V^AZjL=^qh)n^eIV7WFrYwnI73U%&Nmvs*bKiVWon+)hjt`hYO=K1@&oq84>mq53QDD$=(kFYUzOWWR^`hwepvig&mFdCD46@
H<zwL_-94c7A>yTKYcxcGm`xLYle~vRiXu_Rot!~k*K<1$B4kIwQirn#$)?y>6l&dO!wYkal+;8Ol*iCDrRsg&OQ}P&7tX?fJ*G&
!+jg0Q)N`~T$t5RsA)h}#*sB5D^Qk_drG4-T6Xo;#>*sYS{RK1K4N!PR|&JMI-k9c_U>Jzb9J7G-W>P9Tlj8jHc1+)v@uQxls)$&
i+oWymtcR7o!{^
""",
            ),
            "w2": (
                "uint8",
                [1, 128, 64],
                """
c-jE~AphT#R``#+Y*k2bz$Pc<sy-j1e}6~IR=~<jAd(pag@^)l;R+|+Sd!)@s%6h#v>Qa$m3*f<jvoCyKsCr9M3er5Td40VGqV`2
o5)bOwY^4xt^IN!-f3-o15+ln(}`asY-hEy7H`??qeK7|)w)qwKX|`=)&pn*y3CND<{G!s!Epco;lZ`S1`8-2fO&4RJr#D7*2AKQ
8-+PsqAa8;PFg!W5pRE#CWFRQD2SH*0I^?KE%o_d1<8o;ec-|}yAM^Lbti7@r2x*b*Z(L2?m_$v5xMEJFaGph&F!=4$cBjOT(#;S
UewiJ?Y-l9#?R^N5>wJN(x8C${6<y^UVy;siW8?!_wqsBQtK$3zzN4jI6mJdg4(?Sscp%ta6*S<;%f#vv3QL(zeYC$e2$~V@{vXT
8NDr@<Pcpd3y;O*j<){mk*6L=U!>p4r4VP3?{B5dm8(hi!HRFGqfnsc@(Y57K$6Uv9BpH|L4}<B(#c@Y<B3(dP~*}S&5UJRLtt|<
E?v424tgwqD`oP8=Bk{FiNUPK^h)PPTMg=a`*h=1Cm+Sgli+S=gfbEsw7=UgThr5~ly1TOH>&8yNOvLbJkKm_TV8}1N5WNOSk-Qi
U3ddRHF%MOCLY?VOENPVyHsa?yFvj1%#iB+xJ8N%ar*NIS(G4o!KvV2xWb@8>#Oo<H+tm@PKzB5sCg^=29f}Cj-|nCAjP(!fk+k}
UNohXkli^3yx~9hl9<3HQlnIkF<XyWgF+a<<dCJ+d!qDxRM;{t{C0`oqpb?wJ*=Y9NdRlDDbSl53r1H?gkSF(N><o@qDsi1*DctU
pN~Sm!+C9%)&G1DcSFy|SA7(GDT+7>R1<S}74hZi@ldkMY{sQS;VV>h=7{(bDEY5-#E7-V_=Uun;>!|_GgFeV3w?L3;;P20vtD_9
$|bl)U_yK9Ew}Rd=v6b`a@^7Dv~0}5PUjruGW%*PF#-k5q3Yk|Y$P*si$l>)h{3`i26@b^kP~M%Nh*m|@_=+YFCo`AAxj^*SMb^z
<ua#q>y}myqpwx|*(v8YZ!>OW2IWjM`S(&GAihb2P(E13{V$yfin@W0a3xDP<Ga!JAFx)y&6;DM-J`a`d<4ovONuHpefteVL?7%=
<?C8CW?FK9xmA_R&ugnygJL}ZAd4yNLeb&t!43ZKc3!H!c!KX%4@;*SE5N=Sky+9mvTBW|DN9WHVGIsP1ifjp-;8T3WNh*i>1Se=
V~;LFLK;1T1p#t*wz-h;L)YGrjAa!I9O!e$hb6AK?O@@=vaOC)<+yE#x7YN3351e!*AN9<9a4JajB37Rr(qiXK$H5V41z<z=V|@i
$ELTa5n?3dW0U2=m6#2U22564Ep;DF_hs^?zCNEQlG1me(GK+%tMo{`5F|^+$asTHn-8922jLMhn{cc3-R4$uN`280fsZ@4?7<bk
tP#ZN`&f8pud->rrGeF}GcFD=%4YEdWRFKK^sDg*-X#qJ(*I-tfmfM7CcWA!LZV-+XydkZ{dLO%SvK1{wf0t0HARc(O{;CcqC70C
nd9ooXl%9J*cB?i^>Eo(icG>q0+R;x$azOgT`0R-dHCdAFNqA9(Fd6Q&*y_yzY&(d)H&kgG#Y@W5U`_k^cIMg!J<6BUN8RdDzGrp
ozI?69TE+1$w85v()+(L*dGq7<1`XrYA_`8d>R?xIFH^{$xrhp+R~^uxjhMP8EuNdiDeX<lK*RrzR#!&!|HR|Z(ETZ=&B$5q@*9-
5h<*5H9LvDBnQnsbU?vzddM<Cly_I;O_sWKtgDuJc@|%|2cf(F#sO9P6^To;I)4yXIK!2hFV>Cu`iSK`hCe3}@B;E35qTM;i>V4V
0^M|l8;z(FfU+ZPutI72uS|Qpn1)NIz~Y>m5TPr3I?@jx+e@dr+DqhKC~+;YM!nWVR#phrK@<_}qpf5+l#53A*0I~t?W)Qw*HU{T
;ER?j1999rLyuR4H>J2YR@c!$fu?89Qc?lXqW}HcohW4~7S02x7TdIgPx{xc$B%171canX*P6CP<(~gyhw0a?8J)h&YO)n$q{)M*
K7yqV5@RNFQ9;>w@WSpT<plqC_F&)p;JB<%Fk5IKj!~A~Vx+55eet5+jpQ^8pFrxGVeZju+oonjsIdAEX#%abOS|gT==U>Tal?KE
acjueRbLYYx#||34Yo^*@421x2F-N$44XZUoBoZN`tYKUrC=NX*+OjNWB!v>)>XZkNb3R81||Bc%rzzniv?fo#v5MsBrzrJ2(I);
V_g!zcWC8f$~mG1#(t;qQ4ze@Fygp)cD%{t_^c5d5^aQ6MNFf34XR$$ErwV8ceBss_QTkgYM#V$MUt1jksgzI%bfFOPm^(@M<k>k
9K(6*mzA$b09V|Y7;QXrw1S`WH}@KqPb^irFkh(w!uoiaZW{HLXt;}u7`wt}CDa+PrbtAZ0;t3&%Z^w+6gjp_xTS_I2`4=y9}3*X
1QK&r-R-NXiI+JTzn<B}V<VcSX8pfjNl-Y$h#Kxp*Jhs^c*+nWb3{wMYe~W7Bm2VHk4N|<HNj%7AKe=0f0oAkhi*!g3#Z2l?19;Z
kVo3~7WV28=XaQz91zdRgL(y{8vzZ<()HBUF{IY`?<sS)p<FDG;}+xQGGdmXdUHaCG;sWUTc9N{Gn&5GdovTECNOeE-hPsJk*eK=
FvyMJ;)NPxXyT4Bw^EYFt&7f*eFn5;thfhEnQ`C<sJmUL%oRXQOcFJmNpcFqxvkxUQQPIju-Aln&{u}sO81|u@#{s&WN}0rkEBHD
$%PyB`Q>BTdF0S=Fx&%JSE%Fb?GP|5qjPb6tw1{e`zjzm!m!M{)fpcV5Ajm8|JXl18{QkXEmyAz)l8VKXwiu>=$0tR_s4Tyrv!Jl
i02k?9v1?ACrs=^n25U7LPTx`ARxP%HpOkQ8lgv)A>1XLF&p}bhgo|hz!&+*h$akYsy<k7ik_loe>VXica`N?`1`@MDZU)W>>W*-
Wo8-uEx6US8yyC7SAv>D-N+-gu^Y5U*dT*U#y1MNTFs8aC!uW;_|BhLR}Pp^|G=gC3)FTjog8D{F3N?Jokj+8?!Zb9Oje|r&k_J7
w{DXx;Y_*8CgQs?B7igV0Zm2-45GqF5PUAn{4#@=d?bo0mdNDyF^(lD594m(Sc}vLo>O;HCZUE!ojyKLH-*pHw&yAt{>uUU$G=ZE
;w1I;k44gb-XgJnPnVzU0uUO}%UZLRa~1?z9A5^AkQDQA$9l1~LMYO)O{J^|yz_kQ8qQq19rtYB16HZ;aUt?L9u1xntss=*I;hNQ
>n?{%t(#+oYUXknGg?#F;XZ}bZvRkaxgOt?H9jyHq6LGq*Gll<(#TkoRkmSe1e-WD(U3UIU7xqP(mo|yg(9LPG5rLP#Q|U%&tu8t
450D*EcaVO!=OE#BdsdVM1&h~+C3|DV0{CJv%~EkY$1<*=fUWHm&G<50kNzlCa*NNOf%8Z;D|)q<J$mCAfwRJQ9*8@?A)IY;rT|g
86aI_-UBn2H;Vyx*H2_tN6?$KtdU>JDDzTL8%CLA-W`^~Sn?VR;RQ+j(%QUjKT6$`Z*xRrNqOB&R;cX+=g)9eR9EN<FsSGUE~W)E
Hha>3)3IDn6U>xUTj+Pvuhr7`a7uBK2Mz|gjf7t|^p9i&aKw_^0*~7et!qvI8W9d1<Afi!vCHh5cQ5x+M1m9~W+F1*M_;&*b>HjX
SzL97QYha67--q5@Okt=G3Cngo<7o+C0E2QwtC6fQI#7-bu+oSq?9+H3H#@tNpC`F3kjWe%1As)6Oc9&Ay7`r;)aBksFu$S+j?U9
KIn))z=-p%NKxySL!mr~+PQ0xyLlVhA}*jqJq1Vqy5Vm2Bf)6U3)^IDrgxxaFw~=o4~T2j1q_$WXWvZ{E;FWA?8cD=Q75K!1mY@#
1;lo!k8V>z?b;^C>#UkQi#YMMR+LtxH|#7?-PR8F8Iy_$ET<4Rh^>Kv$kx;;^>JImGdRau5MlZlrg3~Ji$Fo!(|pyUA^b;n3Y5vL
di5-uG=39gI(pek<_olHu3(<zlY^{hiKhv~xUb`EyNW<2#VVmxv~kk6r@MR79{L#9oZMGF&jplfCBX3~dOwWWH!NcNONI=bqFn5&
wW{U{h7tU@iG7osGdVaI<xqvvY9M{1%d^mPhNQv^f}RJC?^Vz$6Sn_rf}<zWd)l0=MOrfqDtTU5x=Mogzw$EH4U|_~63X05`RZDR
pMpGFCvd`QrZdnwIc;uS`d0H?P%}%+wAE=1w}j>yND~Z*2v}ATO4gLc-nPUJhD38Z?q@Nb{?+_>KmZqcu#MnoTp{cw3Ee9>kT8(I
<Fi%_3;{bAWe?7pXK1g?6rW>}kAUX{!E<#Cj@-kf+}mc%NUVxpyJWXIRwu-?d&3bWY~CgzJ@_be-a5g>$RCD@(`**PGAP}+@&5h;
c_)nC@~c+p`Ydp%7LOes;Bm3`4Ay*N#r&BolI1U7(B!KJpjI4nasisAC<JXJ*X{Uw)30RLTqwmYlT${9<^8-OZs{=8X79fhR)cr&
k`46>n)ZgX(-1{^)`1JG^Q4M&FdhjX+E2ROv}h^_sh=o%gfl5s#7J7Q7)fx3PPr?hezJHMCbYo0@o+&#rH5xo8ZhT|I?m!6Kdh1H
h)Q{0`e7xi2-E285rvz&d_Ee3fP?SJ1KT4((p28dQ@42epb3;WEvbA20`aS3Z;Jj7LTFDd(D^dL<LU7{q4#YHXT(=nKa*~366?H1
O-poArrh11m_JAA3LrH$V77{cD+!m4KcR1}=@A8;yCzf3vDvvSJ+G?p(`*TI)nlDHz}g)j5>2bCW-R<9aJeL~W|5%s3FWttaF_X#
SLOj%KG|J@2}+(K(-*?g!E`nONnUtlQU`<uo+o{7o$vL2)x42G(^e;}ZM=eI4yK;MF|?!R(D|DLJ0R$_4pm4wyXbDH=Mo2T0Mrm5
2KLLtc=S_bU%BM;EF|8V{I{~l+AMQWrjQHSsqau}kmt*KLnyYV;3AU=3V9L6fW8RV8T9~}j<;=;ycY8Lr@l$PBgh=w@-wE%a|FA#
?3^l+^}bspz(D3IF%e*UA^(KvpS!XJ(1g#PyPOwt-Fxe*-2{Qk!mU(Cv_xuOAB(A&!>!I$L9H=Y&B-;kL8mE!DL4)i%FNN^prR&e
KqcSLrwdOu)lao8ZOdy1V&*^W)HVLSw(elZ`=NqB6u0M^tm!M7P~*86YJXYrCP1`C4ZJPT&6xxjY>JS`H{ez7Bo9JOSm<;`odT2j
DTX<ca?Be?j6_)UX3O$+(-3$p!k>E`S@WML^Qt~_#a-Wa4|$Y1!rBuMp^8V@(HBbU1!*rBHBlngOKo2+M0r}4pskxp%a@+yUNY+E
Am_3Gdvb0Y$s5qFk-h<j6DcnOo)DT!o8b0bED;~fy}${IKqwEx2V1&$$~DB};0(aq-H|H?1xjk2X`uuUL!xf=@;%9!R5b8AcUMYo
i7#LIRWUnv$6RIM=~&mJA4HF3_Zgl%jan#_S1##SwHhNFek*}1^}xL`M5}a4I67-E=pw!BJI7pOZzwx@JWIIjHGLlvQ33#Ubc|ak
InV$8C<jTe?a?EL3P==ULtDLYG@<5Omhtll*oAyjN;Z|>%wt6N!7HMn8Rox&4)Pkw^*2R1AUw!AW)akUu*53a=K;NRNv>Fc_ByXt
a>s<hxC0k93eq950wuCy^BoGKp=y#>6@Cj899&%A9)#<41f1oIB3cy)wH`ZXkUt$l6Y4>92_CSOuK}nnSz{G*do_5t6(=>n7<&k^
WD`X5Z^@k$sj8VIJyxRHS1WI4KDG-}-Dzth%)}*`FUImYkSTnTGIGN3E2&5kAyds@Su5t!pBuF%Ea%x>_Z$5Q(6&qA?m^~JY;L`Z
rd?dO8{jNX2;@EIQ)Z%kL#yLl=ugYi9E;DK+ySIN+ht+SXZeKO*e$T}DW}#is<S@()o#l~J4mLgl>^>=PDsiAF%CxpdF6+A#VEI4
G5Q*WSWydew1N?w(q}nBQq-lrjczsk<P*-CR{L{!&~g;+0@O{xI-Gp3r{dXCX1AzOwb8GhbM>HwX(r}punnL+<*l*6^OJBKhC3&c
uKnZfcCDR6W|!dGiQ#)SD{8zW;7(hIp7Imi#vI<VS~2|4LZ#*zUXxjZf5wUo9b>d%V_9hdO~jPQ&xT}Y_2G~q^=PQAOQH_4-!s;M
UHUwz`X(>=`{5h0aw{(bhCaG>$0&y`4T#UCc*;7omv<XnEu)fZrAsIyYRRt;GfnnZk?h$C#k#=-u5B?dm{HynWw$y7(DdsH4S$7J
?~4gQnEjF04`l*_kdr#@nb&@|q>l<->v%d#Ly@5o715f5Iwahg7UulfLm4_aea^=<cu(z?-9Zv+AkZ#Ui_`9XE0c??xTM8+ctFA!
V~qwZPj44WS>a9J)%RsY<5|k#ZfUxRSobeTp>B`(Ct9Zn2IEhK8FFU%A3yR=?*e}3UP{_oQv5Geqp`B^KyMkhRo(#a*{fG=7y~G&
7|555{;&rel^oFJlmB2p_g~9AY2l&CG+JcHkYKqLluP+#==|UkuP{!Z?N$G;wFXUS^~dRF&Gd2zWyd7jbee)Ug^4om4$nH51&0>2
(;p@`g+AkYx>4TU8CtACOpieCA$(Z4S^#Rt^`4J^ADu8>60lp6Jz%YZGSkRgZGZX!YAU1Vy7#t?k6%sBjqW15PfMyWbt9P<r<&Bb
RrqR_WQd6jp}5mvqU16=>=ss<)GIRXvta2H?lC(uRs`7S=>v|dS>4L>RR>7hm8YjJ@2^D=sv3|4_l}B@)$p^>RRwNE@BjR%mEi{5
K|;X5G!<swMK(90EzcuhA-vd)j1n-kisAiiIyFr!&=-Xi06Gnj_Wha!y*l^%bC5wg*bRM=dVSfnzmB6i4tc^AP~U(h)qB}bqQ|&P
t#KYEUrVI7p^%@ZPx680ll`5oRrn()1qevsRO-z~SFTO6i8&U?q3kXRM2^U_ysFgOT27c+70pm=g<pE<bfSka?oD=o-;z=~clXxk
gZ!Xdn4FZaaR1=qpZIVxi$&j#T3hhaA0S+l=q|Zdb>j*xx=?MVMdzpxaYG(W9}{TpjlJi_j+3ba!t)kN8z5zcYRVKj3>_!*`^Pv8
UU<wfeLBZsiMm}+_{|laRn#UEtx0Q9`fX40Q;?$}8g?E5QQv}X(PvcOf{d7VHzPTfdI5S~eNwOF)jk{o$+*Q$eW$fR!Hh2M1AYov
H1zFO5UPwd5&NyBf#+pM-}-HIGJ{e<VrLd}n&KZ8`rn0gynh><R@CVar8my$s|dsseDc=m@o=z7-njOc+3PSz+M!7aWx7~6lD*g{
MJA6XAhoLcsadGr`;Hvchznv+!=mn}!{Tr#=T4sGtt8dx#QX*V`;+=2deEWGZh2>&L369B-`ttBndW6Izm;tb1o(s3vWP!(L^b1?
8(0{fUw<OJc>n6TbmZLcGg`qrvWUVrJHpX!y4{vAFUX@)Hxc+ympK^DhyKebXL3EjMSC&wNDSmJdzg;;N}U(&im}gcO5X44@JwCM
D6{s2h0&tIw`N;}V!9tfFH--ZY`bNszM3&3;r~Op^#M50(zD`cw}xh|y+Bp1j#y_p_SfyW=xSX7cut-(cwbAqm?Ob%q{^eqScHm+
HS-uIycKGVwSPU@jUTLH9J9q%P9EdHB0!%}u!+Z#bKX-~*S&$;yR)->$`IjJYf<0LVy;!OuLL3^k7w(Gk|t|FAa?7_^h}Ez=)v(t
rW%F<){mk)USj%1$Nm-=1cCR){_HYk+rHjI;RV+UelnX8CAd_<JN8}jpGCAz&^8AQ4p!uKc^mh!=)I;|KD8~KR#y2V*&utAe{o&b
o+yKehtDcZ@0Q|UgwX@WoUmcMPJOiWVG7_!)K!6?W}$TTp^gyAq^rV>k`uk|FlCfrB*~UEv)G9P_>@53V!IZu4ayr^AOxlYUTY6q
%PMZOcg?>7??EcCeeeO_2b3Z``A^J?C>5f7(*Sf;ko@YwlT#9dW3L7s+n3-LRaAWF?4!?KV$&QL>pLV(Z&-)6Qu}9zx+43v9{)F_
XM3>5jjP(~H@$lfJ!DfqM&G8GA2#9^$~RvK2k7fQJ-ORJFOd!y7%Al|A_x8>i%qO~2%U3i?#FMt$(chO*XKuR#Ecz#l<PkqfofI-
ym3Km*>x(od3eU}v%>o1;V8a!5BH-18Aau?TSVAxW>EyU$f<i67+BKSV?(3$P(!c)ZaDAv@KpJxl&hOq5k5G!M2A<oto#N2-H!qc
-Km}(I&^x0V5ZH+!ImJ{&zcw3EhyrL;j_V*l7}}Zt`R@xD%q<DxYC>zg~+ww{FD}2Oc~GB3XLM(BVFfk`or|)Du$p!_5>hyniAzF
k-voon!?k#0Z{g|#_?=6;{CJ=V~Y0mU$PHqe)W#gv#zWhjSTV@G!gOcTTgUh>`nnWh4Mf1%yz^_RuXlQD8*JVG(a~R*|z9kE|8(q
hrRZ1D>{zflwLMf!h0=9^#3vi7a!<@*^TkC)bh@T*bGo!pB9#i!J)NNo@yO)d4QA~&YJ(q=4XKqu0@Rj8BS-;%)f%%YkLvaP{m}H
=iu{#L}k79;ujG|^N%sEu53U>Ge|?kR2ik#*XWY=gh((kU?rAnR_<us<F&v9f(L_=CIl&X9nE%Nxh}Z1spnB{S91!wJFhPpFvMBO
2CH3z3giLU21z<6ivyQiZQ!V#)N>JgyN$F=y#7KLF#o*1{gOc-4~%QL|5vsb{=CVxK!v!Ryu6&htT?qhPUE0vjOYmG3H^7NHHTN_
xP-E!v(s#Vf3LKpF0HYWr#==I8~K3w*uU?5C6*}_*lnLTyOm3;fEcB_H#|5dm%kill7Pz^ugmIonEGFYo?Q3cYI%8fVpY8>IcXf=
JbfwTl)(wTzO%*8vR=ce5sG)6&>50MyPD<=e?w@pjJU>f(bv4;ST>tMYgi(f`pwLBBa$p9G&R;|$0Ya_o*1rWrD9JBO11RZs5H$H
X`p5hCBd?hej=4s%Y}fY944@Ve??}OY6O_KhX0a!aqAoxbi=#}bTr#=xyA^jkZfTm^oSXB*p^Jn5klW?5<D93ep9}cJGI?tX$6Ym
&93~`)DG)7*{v3x(CxwKl+<tB%5leNCz}wFV=lp65R39&fd5|30|J0$JuIfd8wvM`12I5od~K2yThZOuQ{{DF#4fvATa56@kEzWS
HIsZ&D$hMAc0zH^?qE9)@PVEgNe^sj$#(NY>Ma(=@w6_T|I~m}!oiC<tcyvRVP>*Z?8Pph2+BiLze2G|tp7*b%;COOt%#D1s3faZ
xuMi(gOLXKwu9KgI=cZ|!=~kp@JdC}v9O+w>6bU<zq#WaU8`Ckc#sm9`u>PzV(DnWLp*KP6PI<4MC4_a&cui<xW0TeO6;ADl9bGK
iLXeUpu6_1pv-o0%=+PB=Yl0|K4=Xy1oL<cwSzoGOB+mJc*ckZUmbOq*uez+C@Rr6cVqG5rPzE#057;3G*V)6`T($|corwKavjjY
m6B!Nz+(TZWo_LTO%71z&=>*=wMQ(;Qw-zSivKc>&K}vtMMp}xwx$;<LNoZFB;JgW0y+hvXpssxX5l!lI0zdtHCs|DJ)T3`Y2%zB
wi#~$FJNEW`RVKiE0?xI{9bZYEeLI?<gAlhE;0dL<dRCFWGWAI6s@4W+zajx%vM<3^>KMY#jfu#7-MuNr_Wu7V{XfOF{_lY7mL)F
oHReZX7qnLm_!2QDftD==vSMtnL0jgkd|88|H(lJx<DuHHE}QfX&#)Tr<ee`=r}3~`@jEubQ@PT>M1L@qOu1PM~AS|jityQYn}rB
B6B%$k$7RbB^@`9k&a+?0so^AuT@w0nL7NlKrL{O(i<F|iIPybks9PvDh8AVgt(EoiWtQ?dOcQkvDM1v0?0nF5sveVi~_Rc-JbK`
J`m@oTK8;;#2_XOI3*~|T847HlDQy+BLizVe}IV8V5GG;kVWBG{Ov75C5^2JiLY$6Cei?*L$Bru@z5)|t%wY<0lBoyq9P-ugi=EL
B8gnX0aN*V*i&+jzHYZymhM`pkD|^nP?2M*wG`{R*FRN0*oT}qqs+?I>_ip%5=&;`a3u@HR$8nq2uAJRO>~=PIf-uLpqhID5LVwz
pu=A?<sUqEp_4-JQ&><J>>_>>+<bNPsA`2e{&_&d(BUFjFnFG2={e=Iro=}L0OKOYoh0~~k9f`djqJw3Lof?dEyiN<FfmW{4?We2
nrWDw=oQK&d+ly&5YIF%xJUzoZaIB`8!G%NLPcP8PhakepT<c$9by*6Pd?3JBtvUFkN{^46O#5Hpw&F<@cW6VjQx900lzrSw6FZ}
FOqme2DBFBAY}i}a^z0hQ~xEU@A1QT>D&>x@KI-&^B#^yY$ob&_Na?*tY7zUI-4S_=G<NsgHOV*anT>9s4kt9DtLkslgda2kPKIx
M8!ZtMfp`5mnx=I2Iadrzzi(O2;Pmo11h3D&zQNs19S|OeqPm7mFk>tQg|ebO};436R=EqCD@|wE|qD1C8#7I;P~D0QU*rOw|3|9
f{7`fhveHsGM55wD#lL?8Zon`JJ{%GylsF$(vp<$Kh^$tvTX<wNdWH
""",
            ),
            "w2_scale": (
                "uint8",
                [1, 128, 4],
                """
c-k$I0TRS82m*ht=<B;{I&-nnAR?Dcr>oN4wb`DnT#}hG;qYs+<<?7K%UY7!Aq-V25-bE0VoxXz#8)AsV^iS%AyoirqPv@08YUhI
r-KhTD(Zo#PE9$9n|&(~=sHqqD<v)LLlX+y({(~PAok#Zkq#P7>teE~+L?dvo&zP>=7p%W+?R~c+z5~^P8(KA@MPz-QF-RXIjl$B
*)BMW(Gyn0S1{V+jyd}TyF4aE8dZ%#RKYA-;vdqFx%X_O?O=>3onO%g9*k!=RUfK8kQeX}
""",
            ),
            "parameters.beta": (
                "float32",
                [1],
                """
c-muNXm9`k0Ym`7
""",
            ),
            "parameters.linear_beta": (
                "float32",
                [1],
                """
c-muNIN=BY0o4Ht
""",
            ),
        },
    ),
]
BOUNDS = [
    {
        "low": (
            "float64",
            [0, 128],
            """
c-jL100001
""",
        ),
        "high": (
            "float64",
            [0, 128],
            """
c-jL100001
""",
        ),
        "kinds": (
            "uint8",
            [0, 128],
            """
c-jL100001
""",
        ),
    },
]

if __name__ == "__main__":
    sys.exit(main())
