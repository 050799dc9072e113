"""What each implementation of the fused MoE layer answers to a scenario."""

from oracles.base import (
    AnyOracle,
    Oracle,
    OracleNotFound,
    capability_of,
    emulations,
    find,
    get,
    is_router,
    missing_of,
    names,
)
from oracles.problem import Problem, build

__all__ = [
    "AnyOracle",
    "Oracle",
    "OracleNotFound",
    "Problem",
    "build",
    "capability_of",
    "emulations",
    "find",
    "get",
    "is_router",
    "missing_of",
    "names",
]
