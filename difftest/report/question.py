"""The question of a case as plain data: what a script needs to ask a kernel, and to judge its answer."""

from __future__ import annotations

import base64
import textwrap
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from oracles.enclosure import Enclosure
from oracles.problem import Problem

_TENSORS = ("hidden_states", "topk_ids", "topk_weights", "w13", "w13_scale", "w2", "w2_scale", "w13_bias", "w2_bias")
_PARAMETERS = ("alpha", "beta", "limit", "linear_beta")


@dataclass(frozen=True)
class Packed:
    """A tensor as text. dtype: torch's name. text: zlib-compressed bytes in base 85, in lines."""

    name: str
    dtype: str
    shape: list[int]
    text: str

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Packed:
        data = tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        text = base64.b85encode(zlib.compress(data, 9)).decode()
        return cls(
            name,
            str(tensor.dtype).removeprefix("torch."),
            list(tensor.shape),
            "\n".join(textwrap.wrap(text, 100, break_on_hyphens=False)),
        )


@dataclass(frozen=True)
class Question:
    """tensors: the canonical inputs. bounds: low, high (float64) and kinds (uint8), all [M, H]. values: the rest."""

    tensors: list[Packed]
    parameters: list[Packed]
    bounds: list[Packed]
    values: dict[str, Any]


def question(problem: Problem, enclosure: Enclosure, *, sharp: bool) -> Question:
    """The question that `problem` asks, and what a right answer to it may be. sharp: bounds by the sharp radius."""
    radius = enclosure.sharp if sharp else enclosure.hard
    bounds = {"low": enclosure.center - radius, "high": enclosure.center + radius, "kinds": enclosure.kinds}
    inputs = {name: getattr(problem, name) for name in _TENSORS}
    vectors = {name: getattr(problem.activation, name) for name in _PARAMETERS}
    layer = problem.scenario.layer
    return Question(
        tensors=[Packed.of(name, tensor) for name, tensor in inputs.items() if tensor is not None],
        parameters=[Packed.of(name, vector) for name, vector in vectors.items() if vector is not None],
        bounds=[Packed.of(name, tensor) for name, tensor in bounds.items()],
        values={
            "activation": problem.activation.kind,
            "first_expert": problem.first_expert,
            "num_experts": problem.num_experts,
            "ep_size": problem.ep_size,
            "ep_rank": problem.ep_rank,
            "moe_tp_size": layer.moe_tp_size,
            "moe_tp_rank": layer.moe_tp_rank,
            "routed_scaling_factor": problem.routed_scaling_factor,
        },
    )
