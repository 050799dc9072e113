"""A fault: one named mistake in the twin."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from oracles.base import Oracle
from oracles.emulated_sm120 import EmulatedSm120
from oracles.faults.twin import Twin

Kind = Literal["layout", "activation", "routing", "numerics", "non-finite", "memory", "execution"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """kind: the class of mistake. models: the public bug or the line of a kernel's contract that it stands for.

    summary: what is done wrong, in one sentence. meets: what must come together for it to show, where that is rare
    (under 1 % of scenarios whose fields are drawn evenly); empty for a fault that one feature, or any scenario, shows.
    """

    name: str
    kind: Kind
    models: str
    summary: str
    meets: tuple[str, ...]
    twin: type[Twin] | type[EmulatedSm120]

    def oracle(self) -> Oracle:
        """The twin with this mistake, a candidate named `fault:NAME`."""
        oracle = self.twin()
        oracle.name = f"fault:{self.name}"
        return oracle


REGISTERED: dict[str, Fault] = {}
"""Filled by `fault` while the modules of the package are imported; read `oracles.faults.FAULTS`."""


_T = TypeVar("_T", bound=type[Twin] | type[EmulatedSm120])


def registrar(found: dict[str, Fault]) -> Callable[..., Callable[[_T], _T]]:
    """A decorator `(kind, models, *, meets=())` that puts the class below it into `found`, by its fault's name."""

    def decorator(kind: Kind, models: str, *, meets: tuple[str, ...] = ()) -> Callable[[_T], _T]:
        def register(twin: _T) -> _T:
            made = described(twin, kind, models, meets)
            if made.name in found:
                raise ValueError(f"fault {made.name!r}: is there already; name it otherwise")
            found[made.name] = made
            return twin

        return register

    return decorator


fault = registrar(REGISTERED)
"""Registers a subclass of `Twin` as a fault: named as the class in kebab case, summed up by its docstring."""


def described(twin: type[Twin] | type[EmulatedSm120], kind: Kind, models: str, meets: tuple[str, ...] = ()) -> Fault:
    """The fault that `twin` is: named as the class in kebab case, summed up by its docstring."""
    name = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in twin.__name__).lstrip("-")
    summary = " ".join((vars(twin).get("__doc__") or "").split())
    if kind not in KINDS or not summary:
        raise ValueError(f"fault {name!r}: its kind must be one of {', '.join(KINDS)}, and its docstring own")
    return Fault(name=name, kind=kind, models=models, summary=summary, meets=meets, twin=twin)
