"""What each implementation of the fused MoE layer answers to a scenario."""

from oracles.base import Oracle, OracleNotFound, capability_of, emulations, get, missing_of, names
from oracles.problem import Problem, build

__all__ = ["Oracle", "OracleNotFound", "Problem", "build", "capability_of", "emulations", "get", "missing_of", "names"]
