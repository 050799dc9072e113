"""Expert parallelism as it is served: ranks in processes of their own, and an all-reduce of what they answer.

`epN:ORACLE` takes the whole layer. Each of N processes, rank r on the device cuda:r, gets its share of the experts, the
batch and the global ids, and asks ORACLE as on any rank. Then `torch.distributed` adds the partial outputs, by NCCL on
GPUs and by gloo on a CPU. The sum is held against the layer that is not sharded: so a scenario's own ep_size is 1.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

import torch

from oracles import base
from oracles.numerics import Numerics
from oracles.problem import Problem
from oracles.ranks import Ranks, Reduce, all_reduce
from strategies.capability import Capability
from strategies.scenario import Parallel, Scenario

SECONDS = 60.0
"""For an answer of all ranks: less than a case may take, so that the process which asks them tells of it."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A problem, the processes that hold it, and its number there."""

    problem: Problem
    ranks: Ranks
    number: int


class ExpertParallel:
    """Oracle "epN:ORACLE": see the module. Its processes are started with the first problem, and end with this object.

    Raises `OracleNotFound` when `inner` is no oracle of a layer, or promises no eager calls or no expert parallelism.
    `ProcessEnded` is raised by `prepare` and by a call when a rank's process ends, or does not answer within `seconds`;
    the next problem is given to new ones. What `inner` raises on a rank is raised as it is.
    """

    def __init__(self, inner: str, ranks: int, *, reduce: Reduce = all_reduce, seconds: float = SECONDS) -> None:
        """inner: spec of the oracle that each rank asks. reduce: makes the sum, see `Reduce`."""
        oracle, self.name = base.get(inner), f"ep{ranks}:{inner}"
        capability = base.capability_of(oracle)
        assert isinstance(capability, Capability)  # base.get finds no router
        if ranks < 2:
            raise base.OracleNotFound(f"oracle {self.name!r}: ep{ranks} must be ep2 or more, the number of ranks")
        if "eager" not in capability.modes or not capability.expert_parallel:
            raise base.OracleNotFound(f"oracle {self.name!r}: {inner} promises no eager calls with expert parallelism")
        self.capability = replace(capability, modes=frozenset({"eager"}), expert_parallel=False, experts_multiple=ranks)
        self.numerics: Numerics = replace(oracle.numerics, ranks=ranks)
        self.runs_on = base.runs_on(oracle)
        # The order of a sum of two does not matter, and more are added in an order that nobody promises.
        self.deterministic = getattr(oracle, "deterministic", True) and ranks == 2
        self.batch_invariant = getattr(oracle, "batch_invariant", False) and ranks == 2
        self.packages: tuple[str, ...] = getattr(oracle, "packages", ("difftest",))
        self._inner, self._oracle, self._count = inner, oracle, ranks
        self._reduce, self._seconds = reduce, seconds
        self._ranks: Ranks | None = None

    def missing(self) -> str | None:
        """What the machine lacks: what the inner oracle does, or a device for each rank."""
        reason = base.missing_of(self._oracle)
        devices = torch.cuda.device_count()
        if reason is None and self.runs_on == "cuda" and devices < self._count:
            return f"{self._count} ranks need {self._count} CUDA devices, and there are {devices}"
        return reason

    def unsupported(self, scenario: Scenario) -> str | None:
        """What is outside `capability`, or what a rank's own share is not promised for; None otherwise."""
        reason = self.capability.objection(scenario)
        if reason is not None:
            return reason
        ranks = (Parallel(ep_size=self._count, ep_rank=rank) for rank in range(self._count))
        reasons = (self._oracle.unsupported(replace(scenario, parallel=rank)) for rank in ranks)
        return next((reason for reason in reasons if reason is not None), None)

    def prepare(self, problem: Problem) -> Prepared:
        """Give each rank its share, on its own device where `problem` or the inner oracle is on one."""
        device = "cuda" if self.runs_on == "cuda" else problem.hidden_states.device.type
        ranks = self._ranks
        if ranks is None or not ranks.alive or ranks.device != device:
            if ranks is not None:
                ranks.close()
            ranks = self._ranks = Ranks(self._inner, self._count, device, self._reduce, self._seconds)
        shares = [shared(problem, self._count, rank).to("cpu") for rank in range(self._count)]
        prepared = Prepared(problem, ranks, ranks.prepare(shares))
        weakref.finalize(prepared, ranks.forget, prepared.number).atexit = False
        return prepared

    def __call__(self, prepared: Prepared) -> torch.Tensor:
        """[M, H] in the output dtype, on the problem's device: the sum that every rank holds.

        Raises `RuntimeError` when two ranks hold other bits, which an all-reduce promises not to leave.
        """
        if not prepared.ranks.alive:
            prepared = self.prepare(prepared.problem)
        sums = prepared.ranks.answer(prepared.number)
        for rank, other in enumerate(sums):
            if not torch.equal(other.view(torch.uint8), sums[0].view(torch.uint8)):
                raise RuntimeError(f"after the all-reduce rank {rank} and rank 0 hold different sums")
        return sums[0].to(prepared.problem.hidden_states.device)


def shared(problem: Problem, ranks: int, rank: int) -> Problem:
    """What rank `rank` of `ranks` holds of a whole layer: its experts, the batch, and the ids, which are global."""
    count = problem.experts_local // ranks
    own = slice(rank * count, (rank + 1) * count)

    def cut(part: object, *names: str) -> dict[str, torch.Tensor | None]:
        given = {name: getattr(part, name) for name in names}
        return {name: None if value is None else value[own].clone() for name, value in given.items()}

    activation = replace(problem.activation, **cut(problem.activation, "alpha", "beta", "limit", "linear_beta"))  # type: ignore[arg-type]  # tensors all
    weights = cut(problem, "w13", "w13_scale", "w2", "w2_scale", "w13_bias", "w2_bias")
    parallel = Parallel(ep_size=ranks, ep_rank=rank)
    return replace(
        problem,
        scenario=replace(problem.scenario, parallel=parallel),
        activation=activation,
        ep_size=ranks,
        ep_rank=rank,
        **weights,  # type: ignore[arg-type]
    )
