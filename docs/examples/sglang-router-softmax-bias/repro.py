#!/usr/bin/env python3
"""sglang-router-interpreted: chooses an expert that is not among the best

The router of an MoE layer, computed by sglang-router-interpreted: 1 of 1 tokens chose an expert that scores too low: [0, 0] is expert 2 with -0.0254208967, left out was expert 1 with 0.462686241.

Run it with python: it needs torch and sglang, triton. It exits 1 when the kernel's answer is wrong as reported, 0 when it
is right, and 2 when the kernel could not be asked. The inputs are at the end of the file.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.metadata
import itertools
import sys
import zlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
from sglang.srt import runtime_context
from sglang.srt.layers.moe import topk
from sglang.srt.layers.moe.topk import TopKConfig, select_experts
from sglang.srt.layers.moe.utils import MoeRunnerBackend

DEVICE = "cpu"


# --- by definition ---------------------------------------------------------------------------------------------------


def scores(p: SimpleNamespace) -> torch.Tensor:
    """float64 [M, E]: what the weights are made of."""
    logits: torch.Tensor = p.logits.cpu().double()
    return torch.sigmoid(logits) if p.scoring == "sigmoid" else torch.softmax(logits, 1)


def choose(p: SimpleNamespace) -> torch.Tensor:
    """int64 [M, K]: the experts by falling score. The correction bias takes part in choosing alone."""
    choice = scores(p) if p.bias is None else scores(p) + p.bias.cpu().double()
    choice = torch.where(choice.isnan(), -torch.inf, choice)
    grouped = choice.view(len(choice), p.groups, choice.shape[1] // p.groups)
    best = 1 if p.bias is None else min(2, grouped.shape[2])
    kept = grouped.topk(best, 2).values.sum(2).topk(p.topk_groups, 1).indices
    left_out = torch.ones(len(choice), p.groups, dtype=torch.bool).scatter(1, kept, False)
    return grouped.masked_fill(left_out[:, :, None], -torch.inf).flatten(1).topk(p.top_k, 1).indices


def weights(p: SimpleNamespace, topk_ids: torch.Tensor) -> torch.Tensor:
    """float64 [M, K] of these experts: from the unbiased scores."""
    chosen = scores(p).gather(1, topk_ids)
    if p.renormalise:
        chosen = chosen / (chosen.sum(1, keepdim=True) + 1e-20)
    return chosen * float(p.routed_scaling_factor)


def there(p: SimpleNamespace) -> SimpleNamespace:
    """`p` with its tensors on the GPU, where there is one."""
    if not torch.cuda.is_available():
        return p
    moved = {name: value.cuda() for name, value in vars(p).items() if isinstance(value, torch.Tensor)}
    return SimpleNamespace(**vars(p) | moved)


@contextlib.contextmanager
def served(backend: str) -> Iterator[None]:
    """What a server started with `--moe-runner-backend BACKEND` publishes, as far as these layers ask."""
    whole = runtime_context.get_context()
    before = whole._config_bags
    whole._config_bags = {
        "exec": SimpleNamespace(
            moe=SimpleNamespace(flashinfer_mxfp4_moe_precision="default"), comm=SimpleNamespace(enable_symm_mem=False)
        ),
        "disagg": SimpleNamespace(disaggregation_mode="decode"),
    }
    flags = runtime_context.get_flags().moe.override(runner_backend=MoeRunnerBackend(backend))
    parallel = runtime_context.get_parallel().override(tp_group=SimpleNamespace(world_size=1))
    try:
        with flags, parallel, torch.no_grad():
            yield
    finally:
        whole._config_bags = before


# --- the kernel ------------------------------------------------------------------------------------------------------


def selected(p: SimpleNamespace, *, torch_native: bool) -> tuple[torch.Tensor, torch.Tensor]:
    # DeepSeek-V3 and Kimi-K3 have groups, if only one, and a bias.
    grouped = p.groups > 1 or (p.scoring == "sigmoid" and p.bias is not None)
    config = TopKConfig(
        top_k=p.top_k,
        use_grouped_topk=grouped,
        num_expert_group=p.groups if grouped else None,
        topk_group=p.topk_groups if grouped else None,
        renormalize=p.renormalise,
        correction_bias=p.bias,
        torch_native=torch_native,
        routed_scaling_factor=p.routed_scaling_factor,
        apply_routed_scaling_factor_on_output=True,
        scoring_func=p.scoring,
    )
    states = p.logits.new_zeros(len(p.logits), 8)  # of which only the number of rows is looked at
    with served("auto" if torch_native else "flashinfer_mxfp4"), torch.compiler.set_stance("force_eager"):
        output = select_experts(states, p.logits, config)
    return output.topk_ids.int(), output.topk_weights.float()


def cuda(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    return selected(there(p), torch_native=False)


def native(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    """In plain torch, as on a CPU."""
    return selected(p, torch_native=True)


def interpreted(p: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    """The Triton kernels of a CUDA device: there, or by Triton's interpreter with TRITON_INTERPRET=1."""
    if torch.cuda.is_available():
        return cuda(p)
    from sglang.kernels.ops.moe import moe_fused_gate

    with (
        mock.patch.multiple(topk, _is_cuda=True, _is_cpu=False),
        mock.patch.object(topk, "fused_topk_deepseek", None, create=True),
        mock.patch.object(moe_fused_gate, "is_arch_support_pdl", return_value=False),
        mock.patch.object(moe_fused_gate.moe_route_radix, "covered", return_value=False),
    ):
        return cuda(p)


# --- what a right answer keeps ---------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """Of an answer `got` [M, N]: where it is `wrong`, what it should be (`want`), and in which interval."""

    what: str
    got: torch.Tensor
    want: torch.Tensor
    wrong: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def is_best(p: SimpleNamespace, token: int, experts: list[int], bounds: dict[str, torch.Tensor]) -> bool:
    """Whether some scores in their bounds make the experts a token's best: with some set of the best groups, none of
    them lies certainly below one that was left out."""
    low, high, group_low, group_high = (
        bounds[name][token].tolist() for name in ("choice_low", "choice_high", "group_low", "group_high")
    )
    size = len(low) // p.groups
    for kept in itertools.combinations(range(p.groups), p.topk_groups):
        others = [group for group in range(p.groups) if group not in kept]
        right = min(group_high[group] for group in kept) >= max((group_low[group] for group in others), default=-1e999)
        if not right or any(expert // size not in kept for expert in experts):
            continue
        left_out = [low[expert] for expert in range(len(low)) if expert // size in kept and expert not in experts]
        if min(high[expert] for expert in experts) >= max(left_out, default=-1e999):
            return True
    return False


def weight_ends(
    p: SimpleNamespace, topk_ids: torch.Tensor, bounds: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(low, high) [M, K] of the weights of these experts; NaN where nothing is claimed."""
    low, high, nan = (bounds[name].gather(1, topk_ids) for name in ("low", "high", "nan"))
    if not p.renormalise:
        return torch.where(nan, torch.nan, low), torch.where(nan, torch.nan, high)
    adding, dividing, product, quantum = (bounds[name] for name in ("sum", "division", "product", "quantum"))
    # Of a score and the others each is at the end that moves its share furthest.
    apart = 1 - torch.eye(topk_ids.shape[1], dtype=low.dtype)
    most, least = (own + (others[:, None] * apart).sum(2) + 1e-20 for own, others in ((low, high), (high, low)))
    factor = float(torch.tensor(p.routed_scaling_factor, dtype=torch.float32))
    low = low / (most * (1 + adding)) * (1 - dividing) * factor * (1 - product)
    high = high / (least * (1 - adding)) * (1 + dividing) * factor * (1 + product)
    low = torch.where(low < 2.0**-126, (low - quantum).clamp(min=0), low)
    high = torch.where((high > 0) & (high < 2.0**-126), high + quantum, high)
    unknown = nan.any(1, keepdim=True)
    return torch.where(unknown, torch.nan, low), torch.where(unknown, torch.nan, high)


def judged(
    p: SimpleNamespace, answer: tuple[torch.Tensor, torch.Tensor], bounds: dict[str, torch.Tensor]
) -> Iterator[Claim]:
    """The experts are distinct and a token's best, and their weights what the definition says."""
    ids, got = answer[0].long(), answer[1]
    plain, experts = choose(p), bounds["low"].shape[1]
    wrong = torch.zeros_like(ids, dtype=torch.bool)
    known = torch.ones(len(ids), 1, dtype=torch.bool)
    for token, chosen in enumerate(ids.tolist()):
        impossible = [not 0 <= e < experts or e in chosen[:slot] for slot, e in enumerate(chosen)]
        if any(impossible):
            wrong[token], known[token] = torch.tensor(impossible), False
        elif not is_best(p, token, chosen, bounds):
            wrong[token] = torch.tensor([expert not in plain[token].tolist() for expert in chosen])
    yield Claim("expert", ids, plain, wrong, plain, plain)
    sound = torch.where(known, ids, torch.arange(ids.shape[1]))
    low, high = weight_ends(p, sound, bounds)
    must_be_nan = bounds["nan"].gather(1, sound)
    value = got.double()
    off = torch.where(must_be_nan, ~value.isnan(), ~((value >= low) & (value <= high)) & ~low.isnan())
    yield Claim("weight", got, weights(p, sound), off & known, low, high)


def reference(given: SimpleNamespace) -> Iterator[Claim]:
    """The chosen experts are a token's best, and their weights what the definition of the router says."""
    p = given.questions[0]
    yield from judged(p, given.kernel(p), given.bounds[0])


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
    for part, (shape, dtype) in zip(parts, [((len(p.logits), p.top_k), torch.int32), ((len(p.logits), p.top_k), torch.float32)]):
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
    print("python", sys.version.split()[0], "torch", torch.__version__, "sglang", version("sglang"), "triton", version("triton"))
    given = SimpleNamespace(
        kernel=lambda p: answered(interpreted, p),
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
        {'bias': None, 'top_k': 1, 'groups': 1, 'topk_groups': 1, 'scoring': 'softmax', 'renormalise': False, 'routed_scaling_factor': 1.0},
        {
            "logits": (
                "float32",
                [1, 3],
                """
c-q_XLTmpCGgEu1Lr3fZDW?V7
""",
            ),
            "bias": (
                "float32",
                [3],
                """
c-mXJq+?&?V+*?$cAfnIDZvH2
""",
            ),
        },
    ),
]
BOUNDS = [
    {
        "choice_low": (
            "float64",
            [1, 3],
            """
c-muNU}(6=adJNc1H*x(bMD#$=>=RIv-Sf3Ua<%Y
""",
        ),
        "choice_high": (
            "float64",
            [1, 3],
            """
c-muNU|_hwadJP9I<S1sU3(y%aD{!=egIY)2ow
""",
        ),
        "group_low": (
            "float64",
            [1, 1],
            """
c-muNU{Fx~bK4#O1|<Sq
""",
        ),
        "group_high": (
            "float64",
            [1, 1],
            """
c-muNU}(_#bK4#O2pIyw
""",
        ),
        "low": (
            "float64",
            [1, 3],
            """
c-oWf_o>?Gu*rT-W~ojA-z9s8Ol7eR8=lw$0C?UB>i
""",
        ),
        "high": (
            "float64",
            [1, 3],
            """
c-kv|T-LG0VUzt09c!l|zDxFIceOul-0;L60F!GB00
""",
        ),
        "nan": (
            "bool",
            [1, 3],
            """
c-muNU;qFB0{{U
""",
        ),
        "sum": (
            "float64",
            [1],
            """
c-muNU=UznD6j(n0d@et
""",
        ),
        "division": (
            "float64",
            [1],
            """
c-muN0D%d100CwI&j
""",
        ),
        "product": (
            "float64",
            [1],
            """
c-muN0D%HK00AZduK
""",
        ),
        "quantum": (
            "float64",
            [1],
            """
c-muN0099D003YBNd
""",
        ),
    },
]

if __name__ == "__main__":
    sys.exit(main())
