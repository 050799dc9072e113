"""What surrounds the two GEMMs."""

from __future__ import annotations

from strategies.capability import Capability
from strategies.draw.change import Change


def layer_changes(capability: Capability) -> list[tuple[Change, int]]:
    """(change, weight): biases, I sharded, DeepSeek-V4's scaling factors and others."""
    changes = [(Change("layer", {"routed_scaling_factor": factor}), 2) for factor in (2.0, 0.5, 1.5, 2.5)]
    if capability.biases:
        changes.append((Change("layer", {"biases": "per_expert"}), 10))
    if capability.moe_tp:
        shards = ((2, 0), (2, 1), (4, 1), (4, 3))
        changes += [(Change("layer", {"moe_tp_size": size, "moe_tp_rank": rank}), 3) for size, rank in shards]
    return changes
