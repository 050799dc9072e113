"""A fault: one named mistake in the twin."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from oracles.base import Oracle
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
    twin: type[Twin]

    def oracle(self) -> Oracle:
        """The twin with this mistake, a candidate named `fault:NAME`."""
        oracle = self.twin()
        oracle.name = f"fault:{self.name}"
        return oracle


REGISTERED: dict[str, Fault] = {}
"""Filled by `fault` while the modules of the package are imported; read `oracles.faults.FAULTS`."""


def fault(kind: Kind, models: str, *, meets: tuple[str, ...] = ()) -> Callable[[type[Twin]], type[Twin]]:
    """Register a subclass of `Twin` as a fault: named as the class in kebab case, summed up by its docstring."""

    def register(twin: type[Twin]) -> type[Twin]:
        name = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in twin.__name__).lstrip("-")
        summary = " ".join((twin.__doc__ or "").split())
        if name in REGISTERED or kind not in KINDS or not summary or twin.__doc__ == Twin.__doc__:
            raise ValueError(
                f"fault {name!r}: its name must be new, its kind one of {', '.join(KINDS)}, its docstring own"
            )
        REGISTERED[name] = Fault(name=name, kind=kind, models=models, summary=summary, meets=meets, twin=twin)
        return twin

    return register
