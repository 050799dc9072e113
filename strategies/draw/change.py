"""Fields of the plain base set to something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Change:
    """These fields of one part of the scenario, instead of their defaults."""

    part: Literal["layer", "values", "execution"]
    fields: dict[str, Any]
