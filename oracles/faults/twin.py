"""The twin: the MoE layer step by step, slow and plain, so that a mistake in it is a few lines.

Each step is a method, and a fault (`oracles.faults.fault`) is a subclass that replaces one or two of them. The twin has
what a kernel's mistakes live in: a workspace and an output that hold garbage before they are written, static buffers
that a captured graph replays from, tactics, and state that stays with what was prepared.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch

from oracles.numerics import Accumulator, Numerics, Transcendental
from oracles.problem import ActivationParams, Problem
from strategies.capability import Capability
from strategies.scenario import GROUP, Scenario

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

PAIRS = torch.tensor([(E2M1[byte & 15], E2M1[byte >> 4]) for byte in range(256)], dtype=torch.float64)
"""float64 [256, 2]: the two values in a byte, the low nibble's first."""

SCALES = torch.tensor([2.0 ** (byte - 127) for byte in range(255)] + [torch.nan], dtype=torch.float64)
"""float64 [256]: the E8M0 scale of a byte."""

SPLITS = (1, 2, 4)
TILES = (16, 32, 64, 128)
"""A tactic t cuts K into SPLITS[t % 3] ranges and an expert's rows into tiles of TILES[t // 3]."""

# 32 columns are added in float64, which is as good as exact, and each such sum is rounded once into a float32 one.
_GEMM = Accumulator(group=GROUP, splits=SPLITS)


def in_groups(tensor: torch.Tensor, size: int = GROUP) -> torch.Tensor:
    """[..., K] as [..., K / size, size]."""
    return tensor.reshape(*tensor.shape[:-1], tensor.shape[-1] // size, size)


@dataclass(eq=False)
class Prepared:
    """A problem with its weights in float64, w13 [E_local, 2I, H] and w2 [E_local, H, I]: exact, as where a scale is
    applied to the sum of its group.

    static: the buffers of a captured graph (mode graph, after the first call). kept: what a mistaken launch leaves for
    the next one; the twin itself keeps nothing.
    """

    problem: Problem
    w13: torch.Tensor
    w2: torch.Tensor
    static: Problem | None = None
    kept: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Call:
    """One launch on its way. P live (token, slot) pairs, sorted by expert.

    problem: the contents that this launch reads. local: int64 [M, K], the rank's own expert, -1 for none.
    token, slot, expert: int64 [P].
    """

    prepared: Prepared
    problem: Problem
    local: torch.Tensor = field(init=False)
    token: torch.Tensor = field(init=False)
    slot: torch.Tensor = field(init=False)
    expert: torch.Tensor = field(init=False)

    @property
    def graph(self) -> bool:
        return self.problem.scenario.execution.mode == "graph"

    @property
    def tactic(self) -> int:
        return self.problem.scenario.execution.tactic or 0

    @property
    def splits(self) -> int:
        """Ranges that K is cut into."""
        return SPLITS[self.tactic % len(SPLITS)]

    @property
    def tile(self) -> int:
        """Rows of one expert that a kernel would compute together; no row depends on another here."""
        return TILES[self.tactic // len(SPLITS)]

    @property
    def place(self) -> torch.Tensor:
        """int64 [P]: how many pairs of the same expert come before."""
        start = torch.searchsorted(self.expert, self.expert)
        return torch.arange(len(self.expert), device=start.device) - start


class Twin:
    """A right implementation, the base of every fault.

    Rounded to bfloat16: the result of each GEMM, and the activation's. Biases, activation, router weights and the
    final sum are in float32. A tactic cuts K into ranges, where they come out equal, and an expert's rows into tiles;
    pdl and fused_finalize change nothing here.
    """

    name = "twin"
    capability = Capability(
        precisions=frozenset({"bf16xmxfp4", "mxfp8xmxfp4"}),
        output_dtypes=frozenset({"bfloat16", "float16"}),
        modes=frozenset({"eager", "graph"}),
        stray_ids=True,
        tactics=len(SPLITS) * len(TILES),
        pdl=True,
        fused_finalize=True,
    )
    numerics = Numerics(
        weights="exact",
        gemm1=_GEMM,
        bias_before_rounding=False,
        activation=Transcendental(exp_ulps=1.0, tanh_ulps=1.0),
        gemm2=_GEMM,
    )

    def unsupported(self, scenario: Scenario) -> str | None:
        """What is outside `capability`, in a few words; None otherwise."""
        return self.capability.objection(scenario)

    # --- weights ---------------------------------------------------------------------------------------------------

    def prepare(self, problem: Problem) -> Prepared:
        """Dequantise the weights."""
        return Prepared(problem=problem, w13=self.dequantized(problem, "w13"), w2=self.dequantized(problem, "w2"))

    def dequantized(self, problem: Problem, name: str) -> torch.Tensor:
        """float64 [E_local, N, K] of "w13" or "w2"."""
        values = self.unpacked(name, getattr(problem, name))
        scale = self.scale_of(self.scale_bytes(name, getattr(problem, f"{name}_scale")))
        return (in_groups(values) * scale.unsqueeze(-1)).flatten(-2)

    def unpacked(self, name: str, packed: torch.Tensor) -> torch.Tensor:
        """float64 [E, N, K] of the E2M1 codes uint8 [E, N, K/2]."""
        return (
            PAIRS.to(packed.device)
            .index_select(0, packed.flatten().int())
            .view(*packed.shape[:-1], 2 * packed.shape[-1])
        )

    def scale_bytes(self, name: str, scale: torch.Tensor) -> torch.Tensor:
        """uint8 [E, N, K/32]: each group's E8M0 byte."""
        return scale

    def scale_of(self, byte: torch.Tensor) -> torch.Tensor:
        """float64 of E8M0 bytes: 2**(byte - 127), NaN for 0xFF."""
        return SCALES.to(byte.device).index_select(0, byte.flatten().int()).view(byte.shape)

    # --- execution -------------------------------------------------------------------------------------------------

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        """[M, H] in the output dtype."""
        problem = prepared.problem
        if problem.scenario.execution.mode == "graph":
            return self.replay(prepared, problem)
        output = self.allocate(problem, tuple(problem.hidden_states.shape), problem.output_dtype)
        self.launch(prepared, problem, output)
        return output

    def run_into(self, prepared: Prepared, output: torch.Tensor) -> None:
        """Write the answer into the caller's contiguous `output` [M, H]."""
        self.launch(prepared, prepared.problem, output)

    @property
    def eager(self) -> Self:
        """The oracle that makes the same call without a capture."""
        return self

    def replay(self, prepared: Prepared, problem: Problem) -> torch.Tensor:
        """The answer to `problem`, which shares sizes, weights and activation with the one prepared.

        A graph is captured first, as serving does, on contents that are nobody's: x = 0 and every slot masked. Each
        replay then reads the static buffers, which hold that problem's contents.
        """
        output = self.allocate(problem, tuple(problem.hidden_states.shape), problem.output_dtype)
        if prepared.static is None:
            prepared.static = self.captured(prepared.problem)
            self.launch(prepared, prepared.static, torch.empty_like(output))
        self.refill(prepared.static, problem)
        self.launch(prepared, prepared.static, output)
        return output

    def captured(self, problem: Problem) -> Problem:
        """Static buffers, with the contents of a capture."""
        return replace(
            problem,
            hidden_states=torch.zeros_like(problem.hidden_states),
            hidden_q=None if problem.hidden_q is None else torch.zeros_like(problem.hidden_q),
            hidden_scale=None if problem.hidden_scale is None else torch.zeros_like(problem.hidden_scale),
            topk_ids=torch.full_like(problem.topk_ids, -1),
            topk_weights=torch.zeros_like(problem.topk_weights),
        )

    def refill(self, static: Problem, problem: Problem) -> None:
        """Write the contents of `problem` into the static buffers."""
        for name in ("hidden_states", "hidden_q", "hidden_scale", "topk_ids", "topk_weights"):
            if getattr(static, name) is not None:
                getattr(static, name).copy_(getattr(problem, name))

    def allocate(self, problem: Problem, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory that holds garbage: the scenario's poison byte."""
        memory = torch.empty(shape, dtype=dtype, device=problem.hidden_states.device)
        memory.view(torch.uint8).fill_(problem.scenario.execution.poison)
        return memory

    def launch(self, prepared: Prepared, problem: Problem, output: torch.Tensor) -> None:
        """Compute the answer to `problem` into `output`, step by step."""
        call = Call(prepared, problem)
        call.local = self.local_ids(call)
        call.token, call.slot, call.expert = self.pairs(call)
        x = self.gather(call, self.states(call))
        gate, up = self.halves(call, self.gemm1(call, x))
        a = self.intermediate(call, self.activate(call, problem.activation, gate, up))
        slots = self.scatter(call, self.gemm2(call, a))
        self.store(call, self.combine(call, slots, self.router_weights(call)), output)

    # --- routing ---------------------------------------------------------------------------------------------------

    def local_ids(self, call: Call) -> torch.Tensor:
        """int64 [M, K]: the rank's own index of the expert, -1 where the slot is masked or another rank's."""
        problem = call.problem
        local = problem.topk_ids.long() - problem.first_expert
        mine = (problem.topk_ids >= 0) & (local >= 0) & (local < problem.experts_local)
        return torch.where(mine, local, -1)

    def pairs(self, call: Call) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(token, slot, expert), each int64 [P], sorted by expert and then by token and slot."""
        token, slot = (call.local >= 0).nonzero(as_tuple=True)
        expert, order = call.local[token, slot].sort(stable=True)
        return token[order], slot[order], expert

    def states(self, call: Call) -> torch.Tensor:
        """float32 [M, H]: x, dequantised where it is MXFP8."""
        q, scale = call.problem.hidden_q, call.problem.hidden_scale
        if q is None or scale is None:
            return call.problem.hidden_states.float()
        factor = self.hidden_scales(call, scale).unsqueeze(-1)
        return (in_groups(q.float()) * factor.float()).flatten(-2)

    def hidden_scales(self, call: Call, scale: torch.Tensor) -> torch.Tensor:
        """float64 [M, H/32] of the E8M0 bytes of an MXFP8 x."""
        return self.scale_of(scale)

    def gather(self, call: Call, states: torch.Tensor) -> torch.Tensor:
        """[P, H]: each pair's row of x."""
        return states[call.token]

    def router_weights(self, call: Call) -> torch.Tensor:
        """float32 [M, K]: topk_weights times routed_scaling_factor, rounded once."""
        return call.problem.topk_weights * torch.tensor(call.problem.routed_scaling_factor)

    # --- arithmetic ------------------------------------------------------------------------------------------------

    def gemm1(self, call: Call, x: torch.Tensor) -> torch.Tensor:
        """float32 [P, 2I]: rows of w13 times x, rounded to bfloat16, plus the bias."""
        return self.biased(call, self.rounded(self.dot(call, x, call.prepared.w13)), call.problem.w13_bias)

    def gemm2(self, call: Call, a: torch.Tensor) -> torch.Tensor:
        """float32 [P, H]: rows of w2 times the intermediate, rounded to bfloat16, plus the bias."""
        return self.biased(call, self.rounded(self.dot(call, a, call.prepared.w2)), call.problem.w2_bias)

    def dot(self, call: Call, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """float32 [P, N]: each pair's x [P, K] times its expert's weight [N, K]."""
        out = self.allocate(call.problem, (len(x), weight.shape[1]), torch.float32)
        if not len(x):
            return out
        used, which = torch.unique_consecutive(call.expert, return_inverse=True)
        place = call.place
        # Each expert's rows side by side, with rows of 0 below those of an expert that has fewer.
        rows = x.new_zeros(len(used), int(place.max()) + 1, x.shape[1], dtype=torch.float64)
        rows[which, place] = x.double()
        blocks = in_groups(rows).transpose(1, 2) @ in_groups(weight[used]).movedim(1, 3)
        out.copy_(self.accumulated(call, blocks.transpose(0, 1))[which, place])
        return out

    def accumulated(self, call: Call, blocks: torch.Tensor) -> torch.Tensor:
        """float32 [..., N]: the sum over the K blocks, float64 [K/32, ..., N], as the tactic orders it."""
        if call.splits == 1 or len(blocks) % call.splits:
            return self.summed(blocks)
        return self.summed(torch.stack([self.summed(part) for part in blocks.chunk(call.splits)]).double())

    def summed(self, blocks: torch.Tensor) -> torch.Tensor:
        """float32 [..., N]: the sum of float64 [B, ..., N], rounded at each addition."""
        total = torch.zeros(blocks.shape[1:], device=blocks.device)
        for block in blocks:
            total = (total.double() + block).float()
        return total

    def rounded(self, value: torch.Tensor) -> torch.Tensor:
        """float32: the result of a GEMM, as bfloat16 holds it."""
        return value.to(torch.bfloat16).float()

    def biased(self, call: Call, value: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """float32 [P, N]: plus the bias [E_local, N] of each pair's expert, if there is one."""
        return value if bias is None else value + bias[call.expert].float()

    def halves(self, call: Call, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(gate, up), each [P, I]."""
        gate, up = h.chunk(2, dim=-1)
        return gate, up

    def parameter(self, call: Call, vector: torch.Tensor | None) -> torch.Tensor:
        """float32 [P, 1]: each pair's own of an activation parameter [E_local]."""
        assert vector is not None  # the kind says which parameters there are
        return vector[call.expert].unsqueeze(1)

    def activate(self, call: Call, params: ActivationParams, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """float32 [P, I], in float32."""
        match params.kind:
            case "swiglu":
                return self.swiglu(gate, up)
            case "swiglu_oai":
                alpha, beta, limit = (self.parameter(call, v) for v in (params.alpha, params.beta, params.limit))
                return self.swiglu_oai(gate, up, alpha, beta, limit)
            case "situ":
                return self.situ(gate, up, self.parameter(call, params.beta), self.parameter(call, params.linear_beta))
        raise ValueError(f"activation {params.kind!r}: must be one of swiglu, swiglu_oai, situ")

    def swiglu(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return gate * torch.sigmoid(gate) * up

    def swiglu_oai(
        self, gate: torch.Tensor, up: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor, limit: torch.Tensor
    ) -> torch.Tensor:
        gate, up = torch.minimum(gate, limit), torch.clamp(up, -limit, limit)
        return gate * torch.sigmoid(alpha * gate) * (up + beta)

    def situ(self, gate: torch.Tensor, up: torch.Tensor, beta: torch.Tensor, linear_beta: torch.Tensor) -> torch.Tensor:
        return beta * torch.tanh(gate / beta) * torch.sigmoid(gate) * (linear_beta * torch.tanh(up / linear_beta))

    def intermediate(self, call: Call, a: torch.Tensor) -> torch.Tensor:
        """float32 [P, I]: the activation's result, as bfloat16 holds it."""
        return a.to(torch.bfloat16).float()

    # --- the sum over the slots ------------------------------------------------------------------------------------

    def scatter(self, call: Call, y: torch.Tensor) -> torch.Tensor:
        """float32 [M, K, H], a workspace: only the rows of live slots are written."""
        slots = self.allocate(call.problem, (*call.local.shape, y.shape[1]), torch.float32)
        slots[call.token, call.slot] = y
        return slots

    def combine(self, call: Call, slots: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """float32 [M, H]: the weighted sum over the live slots, in their order."""
        total = torch.zeros(slots.shape[0], slots.shape[2], device=slots.device)
        for slot in range(slots.shape[1]):
            live = call.local[:, slot, None] >= 0
            total = total + torch.where(live, slots[:, slot] * weights[:, slot, None], 0.0)
        return total

    def store(self, call: Call, total: torch.Tensor, output: torch.Tensor) -> None:
        """Write every row of `output` [M, H]."""
        output.copy_(total)
