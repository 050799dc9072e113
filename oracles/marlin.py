"""Marlin's W4A16 MoE with MXFP4 weights: repacking, alignment, GEMMs, activation and sum by the kernels of sglang, or
vLLM's `fused_marlin_moe` (`oracles.marlin_vllm`) where only that is installed, or asked for as `oracles.marlin:vllm`.

sglang's are called directly, in the order and with the arguments of its own layer (0.5.23), in buffers that are the
caller's and filled with the scenario's poison byte before each call. I is padded with zeros to a multiple of 64. Ids
are the rank's own, -1 for a masked slot and for another rank's expert. Between the GEMMs run the kernels that sglang
runs there: its CUDA kernel for SwiGLU, and its Triton kernels for SwiGLU-OAI and SiTU, which know one set of parameters
for all experts.

What is known to go wrong is promised all the same, and so is a finding: the scale bytes 0x00 (read as 0) and 0xFF (read
as infinity), and a padded I, whose zero weights turn an infinity of x into NaN.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch

from oracles import marlin_layouts as layouts
from oracles import marlin_vllm
from oracles import sglang_package as package
from oracles.numerics import Accumulator, Numerics, Stripes, Transcendental
from oracles.problem import Problem
from strategies.capability import Capability
from strategies.scenario import Scenario

BLOCKS = (8, 16, 32, 48, 64)
"""Rows of a thread block: what the kernel is compiled for. A scenario's tactic is an index into these."""

# A tensor core cuts to float32 and adds 16 columns at a time. The warps of a thread block take these in turn, two or
# four of them; thread blocks take stripes of K, and all that is joined to nearest.
_GEMM = Accumulator(rounding="truncate", stripes=Stripes(columns=64, lanes=(2, 4)), flush_to_zero=True)

NUMERICS = Numerics(
    weights="bfloat16",
    gemm1=_GEMM,
    bias_before_rounding=False,
    biased="bfloat16",
    # CUDA with -use_fast_math, and Triton: ex2.approx, approximate division. Triton's minimum is fminf.
    activation=Transcendental(exp="fast", divide="fast", tanh="two_sigmoid", clamp_nan="limit", flush_to_zero=True),
    gemm2=_GEMM,
    router_weight="bfloat16",
    weighted="bfloat16",
)
"""Code times scale in bfloat16. GEMM1 -> bfloat16 (+ bias in bfloat16) -> activation in float32 -> bfloat16 -> GEMM2 ->
bfloat16 (+ bias) -> times the router weight, in bfloat16 -> sum over the slots in float32."""


# Two instructions in a row; a thread block's part of K is 64 columns with two warps to it, and 128 with four.
_VLLM_GEMM = Accumulator(rounding="truncate", stripes=Stripes(columns=64, lanes=(2, 4), run=2))

VLLM_NUMERICS = dataclasses.replace(
    NUMERICS,
    gemm1=_VLLM_GEMM,
    # CUDA's own expf and tanhf. SiTU multiplies by 1 / beta, rounded, which the 2 ulp of a fast division cover.
    activation=Transcendental(divide="fast", sigmoid="tanh", clamp_nan="limit", activated="bfloat16"),
    gemm2=_VLLM_GEMM,
)
"""vLLM's kernels around the same GEMMs, compiled without fast math: the activated gate of SwiGLU and SwiGLU-OAI is
rounded before it meets up, and SiTU's sigmoid is made of tanh. The sum over the slots is torch's, or its own."""

Backend = Literal["sglang", "vllm"]


class Marlin:
    """Oracle "marlin".

    tactics: whether scenarios may choose the rows of a thread block; else they follow from the batch, as in sglang.
    backend: whose kernels; sglang's, unless only vllm is installed. A fingerprint names its packages.
    """

    name = "marlin"
    numerics = NUMERICS
    packages: tuple[str, ...] = ("sglang", "apache-tvm-ffi", "triton")
    reproduction: str | None = "reproductions/marlin.py:marlin"
    reproduction_enter = "oracles.sglang_layers:enter"
    runs_on = "cuda"

    def __init__(self, *, tactics: bool = False, backend: Backend | None = None) -> None:
        self.backend = backend or ("vllm" if package.version() is None and marlin_vllm.installed() else "sglang")
        if self.backend == "vllm":
            self.numerics, self.packages, self.reproduction = VLLM_NUMERICS, ("vllm",), None
        self.capability = Capability(
            hidden_multiple=128,  # the second GEMM has no tile of 64 columns
            per_expert_activation=False,
            empty_batch=self.backend == "sglang",
            tactics=len(BLOCKS) if tactics and self.backend == "sglang" else 0,
        )

    def missing(self) -> str | None:
        """What the machine lacks, with the command that brings it."""
        return marlin_vllm.missing() if self.backend == "vllm" else package.missing()

    def unsupported(self, scenario: Scenario) -> str | None:
        """What is outside `capability`, in a few words; None otherwise."""
        return self.capability.objection(scenario)

    def prepare(self, problem: Problem) -> AnyPrepared:
        """Convert the weights, on the problem's CUDA device or else the current one."""
        device = _device(problem.hidden_states)
        with _current(device):
            return marlin_vllm.Prepared(problem, device) if self.backend == "vllm" else Prepared(problem, device)

    def __call__(self, prepared: AnyPrepared) -> torch.Tensor:
        prepared.poison()
        prepared.launch(prepared.output)
        return prepared.output.to(prepared.problem.hidden_states.device, copy=True)

    def launch(self, prepared: AnyPrepared) -> None:
        """The kernels' own work of a call, into `prepared.output`."""
        prepared.launch(prepared.output)

    def run_into(self, prepared: AnyPrepared, output: torch.Tensor) -> None:
        """As a call, with the result in the caller's contiguous `output` [M, H], which is not poisoned first."""
        prepared.poison()
        if output.device == prepared.output.device:
            prepared.launch(output)
        else:
            prepared.launch(prepared.output)
            output.copy_(prepared.output)


def vllm() -> Marlin:
    """The oracle on vLLM's kernels: `--candidate oracles.marlin:vllm`."""
    return Marlin(backend="vllm")


def _device(tensor: torch.Tensor) -> torch.device:
    return tensor.device if tensor.is_cuda else torch.device("cuda", torch.cuda.current_device())


def _current(device: torch.device) -> torch.cuda.device:
    return torch.cuda.device(device)


@dataclass(frozen=True, kw_only=True)
class Weight:
    """One GEMM's operand. codes: int32 [E, K/16, 2N]. scale: float8_e8m0fnu [E, K/32, N]. bias: bfloat16 [E, N]."""

    codes: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, packed: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> Weight:
        """From codes [E, N, K/2], scale bytes [E, N, K/32] and a bias [E, N], on the device."""
        repack = package.module("kernels.ops.quantization.gptq_marlin_repack").gptq_marlin_repack
        rows, columns = packed.shape[1], 2 * packed.shape[2]
        no_order = torch.empty(0, dtype=torch.int32, device=packed.device)
        # The repacking kernel wants K first, eight codes of it a word.
        words = [expert.view(torch.int32).T.contiguous() for expert in packed.contiguous()]
        codes = torch.stack([repack(word, no_order, columns, rows, 4) for word in words])
        return cls(
            codes=codes,
            scale=layouts.permute_scale(scale).view(torch.float8_e8m0fnu),
            bias=None if bias is None else layouts.permute_bias(bias.bfloat16()).contiguous(),
        )


class Prepared:
    """A problem's operands on the device, its output [M, H], and all memory that a call works in."""

    def __init__(self, problem: Problem, device: torch.device) -> None:
        self.problem = problem

        def there(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device).contiguous()

        operands = layouts.Operands.of(problem, there)
        inner = operands.intermediate
        self._first = Weight.of(operands.w13, operands.w13_scale, operands.w13_bias)
        self._second = Weight.of(operands.w2, operands.w2_scale, operands.w2_bias)
        self._states = there(problem.hidden_states)
        self._ids = there(problem.local_ids.to(torch.int32))
        self._weights = there(problem.router_weights)
        tokens, slots = self._ids.shape
        self._sharded = problem.ep_size > 1
        self._experts = problem.num_experts if self._sharded else problem.experts_local
        self.block = _block(problem)
        self._activation = problem.activation.kind
        params = vars(problem.activation).items()
        self._params = {name: float(value[0]) for name, value in params if isinstance(value, torch.Tensor)}

        def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self._gate_up = empty(tokens * slots, 2 * inner)
        self._activated = empty(tokens * slots, inner)
        self._answers = empty(tokens * slots, problem.hidden)
        self.output = empty(tokens, problem.hidden)
        pairs = tokens * slots
        room = pairs * self.block
        if pairs > self._experts:
            room = pairs + (self._experts + 1) * (self.block - 1)
        room = -(-room // 4) * 4
        self._order = empty(room, dtype=torch.int32)
        self._block_experts = empty(-(-room // self.block), dtype=torch.int32)
        self._counts = empty(1 if self._sharded else 2, dtype=torch.int32)
        self._sums = empty(self._experts + 2, dtype=torch.int32)
        # Locks: 0 before and after each call.
        count = torch.cuda.get_device_properties(device).multi_processor_count
        self._locks = torch.zeros(4 * count, dtype=torch.int32, device=device)

    def poison(self) -> None:
        """Fill output and workspace with the scenario's poison byte."""
        byte = self.problem.scenario.execution.poison
        for buffer in (self._gate_up, self._activated, self._answers, self.output):
            buffer.view(torch.uint8).fill_(byte)
        for table in (self._order, self._block_experts, self._counts, self._sums):
            table.view(torch.uint8).fill_(byte)

    def launch(self, output: torch.Tensor) -> None:
        """The layer of sglang's `fused_marlin_moe`, on the current stream; the result in `output` [M, H]."""
        with _current(output.device):
            tables = self._align()
            self._gemm(self._states, self._first, self._gate_up, tables, slots=self._ids.shape[1], last=False)
            self._activate()
            self._gemm(self._activated, self._second, self._answers, tables, slots=1, last=True)
            answers = self._answers.view(*self._ids.shape, output.shape[1])
            package.module("kernels.ops.moe.moe_topk_sum").moe_topk_sum(answers, output)

    def _align(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(pairs sorted by expert and padded to blocks, each block's expert, number of padded pairs)."""
        tokens, slots = self._ids.shape
        prefix = not self._sharded  # blocks of expert -1 come first, and are counted
        if tokens == 1 and slots <= 32 and prefix:
            single = package.module("kernels.ops.moe.moe_align_single_token").moe_align_single_token
            order, experts, counts = single(self._ids, self.block, return_inactive_prefix_count=True)
            return order, experts, counts
        tables = self._order, self._block_experts, self._counts
        small = package.module("kernels.ops.moe.moe_align_small_numel")
        if 0 < self._ids.numel() <= small.SMALL_NUMEL_LIMIT and self._experts + 1 > 64:
            small.moe_align_small_numel(
                self._ids, self._experts + 1, self.block, *tables, write_inactive_prefix_count=prefix
            )
        else:
            package.module("kernels.ops.moe.moe_align").moe_align_block_size(
                self._ids,
                self._experts + 1,
                self.block,
                *tables,
                self._sums,
                True,
                write_inactive_prefix_count=prefix,
            )
        return tables

    def _gemm(
        self,
        states: torch.Tensor,
        weight: Weight,
        output: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        *,
        slots: int,
        last: bool,
    ) -> None:
        """Rows of `states`, each for `slots` pairs, times the experts' weights. last: times the router weights."""
        order, experts, counts = tables
        package.module("kernels.ops.moe.moe_wna16_marlin").moe_wna16_marlin_gemm(
            states,
            output,
            weight.codes,
            weight.bias,
            weight.scale,
            None,
            None,
            None,
            None,
            self._locks,
            order,
            experts,
            counts,
            self._weights,
            moe_block_size=self.block,
            top_k=slots,
            mul_topk_weights=last,
            is_ep=self._sharded,
            b_q_type=_Type(package.E2M1),
            size_m=len(states),
            size_n=output.shape[1],
            size_k=states.shape[1],
            use_fp32_reduce=True,
            expert_ids_are_sorted=not self._sharded,
            zero_inactive_output=last,
            has_inactive_prefix_count=not self._sharded,
        )

    def _activate(self) -> None:
        source, target, params = self._gate_up, self._activated, self._params
        match self._activation:
            case "swiglu":
                module = package.module("kernels.ops.activation.activation").activation_module(torch.bfloat16)
                module.run_activation(source, target, "silu")
            case "swiglu_oai":
                split = package.module("kernels.ops.activation.minimax_m3_swiglu").swiglu_oai_split
                split(source, params["alpha"], params["beta"], params["limit"], out=target)
            case "situ":
                situ = package.module("srt.layers.moe.fused_moe_triton.fused_marlin_moe").situ_and_mul
                situ(target, source, params["beta"], params["linear_beta"])
            case kind:
                raise ValueError(f"activation {kind!r}: must be one of swiglu, swiglu_oai, situ")


AnyPrepared = Prepared | marlin_vllm.Prepared


@dataclass(frozen=True)
class _Type:
    """What the GEMM asks of a scalar type."""

    id: int


def _block(problem: Problem) -> int:
    """Rows of a thread block: the scenario's, or as sglang chooses by the mean number of pairs of an expert."""
    tactic = problem.scenario.execution.tactic
    if tactic is not None:
        return BLOCKS[tactic]
    mean = problem.topk_ids.numel() / problem.experts_local
    return next((block for block in BLOCKS if mean / block < 0.9), BLOCKS[-1])
