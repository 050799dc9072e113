"""A scenario made into tensors, the same bits on every device.

All content comes from a counter-based integer hash (`oracles.hashing`) and a table of normal quantiles: no framework
generator and no transcendental is involved. `oracles.content` and `oracles.routing` define the rules. What a scenario
takes from a recorded call, `oracles.captures` brings.
"""

from __future__ import annotations

import itertools
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from oracles import captures, content, routing
from oracles.kept import Kept
from strategies.scenario import Scenario, Situ, SwigluOai, expert_factor


@dataclass(frozen=True, kw_only=True)
class ActivationParams:
    """Activation of the rank's experts: kind, and its parameters as float32 [E_local] (None: the kind has none).

    swiglu: none. swiglu_oai: alpha, beta, limit. situ: beta, linear_beta.
    """

    kind: str
    alpha: torch.Tensor | None = None
    beta: torch.Tensor | None = None
    limit: torch.Tensor | None = None
    linear_beta: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The canonical tensors, the same for every oracle. Ids are global, weights are in checkpoint order.

    M counts the padding rows of the scenario. I is the rank's own. topk_weights do not hold routed_scaling_factor:
    the layer multiplies it in (see `router_weights`).
    recorded: some tensors are of a recorded call, of this rank alone; `scenario` then tells what is peculiar in them,
    and building it would not give them.

    field            shape                dtype
    hidden_states    [M, H]               bfloat16; for mxfp8xmxfp4 the exact value of hidden_q, hidden_scale
    hidden_q         [M, H]               float8_e4m3fn, mxfp8xmxfp4 only
    hidden_scale     [M, H/32]            uint8 E8M0, mxfp8xmxfp4 only
    topk_ids         [M, K]               int32, a global id, or -1 for a masked slot
    topk_weights     [M, K]               float32
    w13              [E_local, 2I, H/2]   uint8, two E2M1 codes a byte, low nibble = even column; rows [gate; up]
    w13_scale        [E_local, 2I, H/32]  uint8 E8M0
    w2               [E_local, H, I/2]    uint8
    w2_scale         [E_local, H, I/32]   uint8 E8M0
    w13_bias         [E_local, 2I]        bfloat16, or None
    w2_bias          [E_local, H]         bfloat16, or None (also on moe_tp ranks above 0)
    """

    scenario: Scenario
    hidden_states: torch.Tensor
    topk_ids: torch.Tensor
    topk_weights: torch.Tensor
    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    activation: ActivationParams
    ep_size: int
    ep_rank: int
    num_experts: int
    routed_scaling_factor: float
    hidden_q: torch.Tensor | None = None
    hidden_scale: torch.Tensor | None = None
    w13_bias: torch.Tensor | None = None
    w2_bias: torch.Tensor | None = None
    recorded: bool = False

    @property
    def tokens(self) -> int:
        return self.hidden_states.shape[0]

    @property
    def hidden(self) -> int:
        return self.hidden_states.shape[1]

    @property
    def intermediate(self) -> int:
        return self.w2.shape[2] * 2

    @property
    def experts_local(self) -> int:
        return self.w13.shape[0]

    @property
    def first_expert(self) -> int:
        return self.ep_rank * self.experts_local

    @property
    def output_dtype(self) -> torch.dtype:
        return getattr(torch, self.scenario.output_dtype)  # type: ignore[no-any-return]  # a dtype by its name

    @property
    def local_ids(self) -> torch.Tensor:
        """int64 [M, K]: the rank's own index of the expert, -1 where the slot is masked or another rank's."""
        local = self.topk_ids.long() - self.first_expert
        mine = (self.topk_ids >= 0) & (local >= 0) & (local < self.experts_local)
        return torch.where(mine, local, -1)

    @property
    def router_weights(self) -> torch.Tensor:
        """float32 [M, K]: topk_weights times routed_scaling_factor, rounded once."""
        return self.topk_weights * torch.tensor(self.routed_scaling_factor, dtype=torch.float32)

    def to(self, device: torch.device | str) -> Problem:
        """The problem with all its tensors on `device`."""

        def moved(part: object) -> dict[str, Any]:
            return {name: value.to(device) for name, value in vars(part).items() if isinstance(value, torch.Tensor)}

        return replace(self, activation=replace(self.activation, **moved(self.activation)), **moved(self))


def build(scenario: Scenario, device: torch.device | str = "cpu", kept: Kept | None = None) -> Problem:
    """Make the tensors of `scenario` on `device`. Raises what `captures.taken` does for what it has of a recording.

    kept: where weights that were drawn before are looked for; a problem's tensors are its own in any case.
    """
    device = torch.device(device)
    given = captures.taken(scenario, device)
    hidden_states, hidden_q, hidden_scale = content.hidden(scenario, device, given)
    topk_ids, topk_weights = routing.route(scenario, device, given)
    w13, w13_scale = content.weight(scenario, "w13", device, given, kept)
    w2, w2_scale = content.weight(scenario, "w2", device, given, kept)
    w13_bias, w2_bias = content.biases(scenario, device, given)
    return Problem(
        scenario=captures.described(scenario),
        recorded=bool(given),
        hidden_states=hidden_states,
        hidden_q=hidden_q,
        hidden_scale=hidden_scale,
        topk_ids=topk_ids,
        topk_weights=topk_weights,
        w13=w13,
        w13_scale=w13_scale,
        w2=w2,
        w2_scale=w2_scale,
        w13_bias=w13_bias,
        w2_bias=w2_bias,
        activation=_activation(scenario, device),
        ep_size=scenario.parallel.ep_size,
        ep_rank=scenario.parallel.ep_rank,
        num_experts=scenario.shape.experts,
        routed_scaling_factor=scenario.layer.routed_scaling_factor,
    )


_ALIGNMENT = 512
"""Bytes; that of a tensor in an allocation of its own."""


class _Layer(Protocol):
    """A dataclass, some of whose fields are tensors."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def activation(self) -> ActivationParams: ...


_L = TypeVar("_L", bound=_Layer)


def on_gpu(layer: _L, device: torch.device) -> _L:
    """A copy of a problem of the CPU, or of what is like one, on a GPU, by one transfer that nothing here waits for.

    Processes that share a GPU take turns on it, and every transfer from memory that is not pinned waits for a turn.
    """
    outer, inner = (
        {name: tensor for name, tensor in vars(of).items() if isinstance(tensor, torch.Tensor)}
        for of in (layer, layer.activation)
    )
    tensors = [*outer.values(), *inner.values()]
    sizes = (-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors)
    *places, size = itertools.accumulate(sizes, initial=0)
    staged = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")

    def place(memory: torch.Tensor, start: int, tensor: torch.Tensor) -> torch.Tensor:
        return memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    for start, tensor in zip(places, tensors, strict=True):
        place(staged, start, tensor).copy_(tensor)
    memory = staged.to(device, non_blocking=True, copy=True)
    copies = iter([place(memory, start, tensor) for start, tensor in zip(places, tensors, strict=True)])
    changes: dict[str, Any] = {name: next(copies) for name in outer}
    parameters: dict[str, Any] = {name: next(copies) for name in inner}
    return replace(layer, **changes, activation=replace(layer.activation, **parameters))


def _activation(scenario: Scenario, device: torch.device) -> ActivationParams:
    activation = scenario.activation
    experts = range(scenario.first_expert, scenario.first_expert + scenario.experts_local)

    def vector(value: float, per_expert: bool) -> torch.Tensor:
        values = [value * (expert_factor(expert) if per_expert else 1.0) for expert in experts]
        return torch.tensor(values, dtype=torch.float32, device=device)

    match activation:
        case SwigluOai(alpha=alpha, beta=beta, limit=limit, per_expert=per_expert):
            return ActivationParams(
                kind=activation.kind,
                alpha=vector(alpha, per_expert),
                beta=vector(beta, per_expert),
                limit=vector(limit, per_expert),
            )
        case Situ(beta=beta, linear_beta=linear_beta, per_expert=per_expert):
            return ActivationParams(
                kind=activation.kind, beta=vector(beta, per_expert), linear_beta=vector(linear_beta, per_expert)
            )
        case _:
            return ActivationParams(kind=activation.kind)
