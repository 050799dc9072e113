"""What an oracle is, and how one is found by name."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
import typing
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch

from oracles.numerics import Numerics
from oracles.problem import Problem
from oracles.router_numerics import RouterNumerics
from oracles.router_problem import RouterProblem, RoutingTable
from strategies.capability import Capability
from strategies.router import RouterScenario
from strategies.router_capability import RouterCapability
from strategies.scenario import Scenario

ENTRY_POINT_GROUP = "difftest.oracles"
EMULATIONS_GROUP = "difftest.emulations"
"""Oracles that stand for hardware which is not there. They are run when asked for, and never by default."""
ROUTER_GROUP = "difftest.routers"
"""Oracles of the router. They are run in a campaign of their own, when asked for."""
_GROUPS = (ENTRY_POINT_GROUP, EMULATIONS_GROUP, ROUTER_GROUP)


@runtime_checkable
class Oracle(Protocol):
    """One implementation of the fused MoE layer.

    name: as the user gives it. numerics: the roundings that it declares.

    Optional: `capability`, a `Capability` that shapes what is drawn, and `missing() -> str | None`, what this machine
    lacks (read both through `capability_of` and `missing_of`); `deterministic = False` for one whose order of additions
    is not fixed; `batch_invariant = True` for one that promises the same bits for a row in any batch;
    `run_into(prepared, output)`, which writes into a caller's [M, H] and lets its guard bands be checked;
    `replay(prepared, problem)`, of one that captures its call once and replays it: the answer to a problem of the same
    sizes, weights and activation as the one prepared, whose x, ids and router weights are written to the captured
    tensors first; `eager`, the oracle that makes the same call without a capture, which a replay must equal to the bit;
    `launch(prepared)`, the kernel's own work of a call, without what is filled and copied around it, which is then what
    is timed;
    `packages`, the distributions whose versions a case of it should name; `reproduction`, "file.py:function" beside
    the oracle's own file, which calls the kernel without difftest (see `oracles.reproductions`), for reports; and
    `reproduction_enter`, "module:function" that makes the package importable where it alone would not be;
    `runs_on = "cuda"` for one that needs a GPU (read it through `runs_on`), which difftest then asks in a process of
    its own, with tensors on that device.
    """

    name: str
    numerics: Numerics

    def unsupported(self, scenario: Scenario) -> str | None:
        """Why this scenario is outside the oracle's promise; None means that it must work."""

    def prepare(self, problem: Problem) -> Any:
        """Convert the canonical tensors to the kernel's own layout, once per problem. `problem` is not modified."""

    def __call__(self, prepared: Any) -> torch.Tensor:
        """Run the kernel: [M, H] in the scenario's output dtype, on the problem's device."""


class RouterOracle(Protocol):
    """One implementation of the router: the same five attributes and the same optional ones, for its scenarios."""

    name: str
    numerics: RouterNumerics

    def unsupported(self, scenario: RouterScenario) -> str | None:
        """Why this scenario is outside the oracle's promise; None means that it must work."""

    def prepare(self, problem: RouterProblem) -> Any:
        """Convert the canonical tensors to what the router takes. `problem` is not modified."""

    def __call__(self, prepared: Any) -> RoutingTable:
        """Run the router: a `RoutingTable`, or any pair of its two tensors, on the problem's device."""


AnyOracle = Oracle | RouterOracle
AnyNumerics = Numerics | RouterNumerics
AnyCapability = Capability | RouterCapability


def is_router(oracle: AnyOracle) -> TypeGuard[RouterOracle]:
    """Whether it is a router, which its numerics tell."""
    return isinstance(oracle.numerics, RouterNumerics)


def capability_of(oracle: AnyOracle) -> AnyCapability:
    """What the oracle promises, to shape what is drawn; the default `Capability` when it does not say."""
    found: AnyCapability | None = getattr(oracle, "capability", None)
    if found is not None:
        return found
    return RouterCapability() if is_router(oracle) else Capability()


def missing_of(oracle: AnyOracle) -> str | None:
    """What this machine lacks to run the oracle, with the command that brings it; None when it can run."""
    missing: Callable[[], str | None] | None = getattr(oracle, "missing", None)
    return None if missing is None else missing()


def runs_on(oracle: AnyOracle) -> str:
    """The type of device that the oracle needs: "cuda", or "cpu" when it does not say."""
    return str(getattr(oracle, "runs_on", "cpu"))


class OracleNotFound(LookupError):
    """A spec names no oracle. The message says what is known and what forms a spec may take."""


class ProcessEnded(RuntimeError):
    """A process that an oracle computes in ended, or does not answer. The message says which.

    how: the signal that ended it ("SIGKILL") or its exit status ("exit 3"); None when it did not answer in time.
    """

    def __init__(self, message: str, how: str | None) -> None:
        self.how = how
        super().__init__(message)


def names() -> list[str]:
    """Names of the installed oracles, emulations and routers included, sorted."""
    return sorted({entry.name for group in _GROUPS for entry in importlib.metadata.entry_points(group=group)})


def emulations() -> frozenset[str]:
    """Names of those that emulate hardware: nothing is proved of a kernel by a run of one."""
    return frozenset(entry.name for entry in importlib.metadata.entry_points(group=EMULATIONS_GROUP))


def get(spec: str) -> Oracle:
    """The oracle of a layer that `spec` names. See `find`, which finds a router too."""
    found = find(spec)
    if is_router(found):
        raise OracleNotFound(f"oracle {spec!r}: is a router, and an oracle of a layer is wanted")
    return typing.cast(Oracle, found)


def find(spec: str) -> AnyOracle:
    """The oracle or router of a spec: an entry point's name, `fault:NAME`, `module:attribute` or `file.py:attribute`;
    `epN:ORACLE` for the whole layer with its experts shared out to N processes, each with that oracle.

    The attribute is an oracle, or a class or function that returns one without arguments. Raises `OracleNotFound`
    for anything else.
    """
    shared = _RANKS.fullmatch(spec)
    if shared:
        module = importlib.import_module("oracles.expert_parallel")  # it imports this module
        whole: Oracle = module.ExpertParallel(shared[2], ranks=int(shared[1]))
        return whole
    target, colon, attribute = spec.rpartition(":")
    if not colon:
        return _instance(spec, _load_entry_point(spec))
    if target == "fault":
        return _fault(spec, attribute)
    module = _load_file(spec, Path(target)) if target.endswith(".py") else _load_module(spec, target)
    if not hasattr(module, attribute):
        raise OracleNotFound(f"oracle {spec!r}: {target} has no attribute {attribute!r}")
    return _instance(spec, getattr(module, attribute))


def _fault(spec: str, name: str) -> Oracle:
    package = importlib.import_module("oracles.faults")  # it imports this module
    faults = {**package.FAULTS, **package.SM120_FAULTS, **package.UNSEEN_FAULTS}
    if name not in faults:
        close = difflib.get_close_matches(name, faults) or list(faults)[:3]
        raise OracleNotFound(
            f"oracle {spec!r}: no fault of this name: use one of {len(faults)}, such as {', '.join(close)}"
        )
    found: Oracle = faults[name].oracle()
    return found


def _load_entry_point(spec: str) -> Any:
    for group in _GROUPS:
        for entry in importlib.metadata.entry_points(group=group, name=spec):
            try:
                return entry.load()
            except Exception as error:
                raise OracleNotFound(f"oracle {spec!r}: {entry.value} fails to load: {_told(error)}") from error
    raise OracleNotFound(
        f"oracle {spec!r} is not known: use one of {', '.join(names())}, module:attribute or file.py:attribute"
    )


def _load_module(spec: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise OracleNotFound(f"oracle {spec!r}: module {name!r} cannot be imported: {_told(error)}") from error


def _load_file(spec: str, path: Path) -> Any:
    if not path.is_file():
        raise OracleNotFound(f"oracle {spec!r}: there is no file {path}")
    # Two files of one name are two modules, and neither hides an installed one.
    name = f"difftest_oracle_{zlib.crc32(bytes(path.resolve())):08x}_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path)
    assert module_spec is not None  # a .py suffix always has a loader
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise OracleNotFound(f"oracle {spec!r}: {path} fails to load: {_told(error)}") from error
    return module


_RANKS = re.compile(r"ep(\d+):(.+)")

_REQUIRED = ("name", "numerics", "unsupported", "prepare", "__call__")


def _instance(spec: str, found: Any) -> AnyOracle:
    if inspect.isclass(found) or inspect.isfunction(found):
        try:
            found = found()
        except Exception as error:
            raise OracleNotFound(f"oracle {spec!r}: {found.__name__}() fails: {_told(error)}") from error
    kind = type(found).__name__
    lacking = [name for name in _REQUIRED if not hasattr(found, name)]
    if lacking:
        raise OracleNotFound(f"oracle {spec!r}: {kind} has no {', '.join(lacking)}: see oracles.base.Oracle")
    router = isinstance(getattr(found, "numerics", None), RouterNumerics)
    capability = RouterCapability if router else Capability
    for name, expected in (
        ("name", str),
        ("numerics", RouterNumerics if router else Numerics),
        ("capability", capability),
    ):
        value = getattr(found, name, None)
        if not isinstance(value, expected) and (name in _REQUIRED or value is not None):
            raise OracleNotFound(f"oracle {spec!r}: {kind}.{name} = {value!r}: must be of type {expected.__name__}")
    return found  # type: ignore[no-any-return]  # checked just above


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
