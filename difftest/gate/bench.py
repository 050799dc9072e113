"""Times what passed a gate, on the scenarios that it passed: correctness first, then throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from difftest import campaign
from difftest.gate.gate import Asked, Refused, executor_of
from difftest.gate.target import Kernel
from difftest.gate.verdict import AGREES, Timed, Verdict
from difftest.judging.timing import Untimed


def bench(asked: Asked, verdict: Verdict, tell: Callable[[str], None]) -> tuple[Timed, ...]:
    """Time every kernel of `asked` on each named scenario that it agreed on, alone on one device.

    Raises `Refused` when the verdict is not a passing one, when the processes that were timed had a kernel library
    that is not in it, and when a kernel cannot be timed.
    """
    if not verdict.passed:
        raise Refused(f"not timed: {verdict.line}")
    return tuple(one for kernel in asked.kernels for one in _timed(asked, kernel, verdict, tell))


def _timed(asked: Asked, kernel: Kernel, verdict: Verdict, tell: Callable[[str], None]) -> Iterator[Timed]:
    options = replace(asked.options_of(kernel), workers=1)
    agreed = {part.name for part in verdict.parts if part.kernel == kernel.spec and part.answer == AGREES}
    with campaign.executors_for(options) as executors:
        executor = executor_of(kernel, executors, options.reference)
        found = []
        for name, scenario in kernel.plan().items():
            if name not in agreed:
                continue
            try:
                timing = executor.time(scenario)
            except Untimed as error:
                raise Refused(f"{kernel.spec}: {name}: not timed: {error}") from None
            one = Timed(kernel=kernel.spec, name=name, median=timing.median, least=timing.least, calls=timing.calls)
            tell(f"{kernel.spec}  {name}: {one.median:.1f} us")
            found.append(one)
        other = _unknown(executor.libraries(), verdict.kernels[kernel.spec].get("libraries", {}))
    if other is not None:
        raise Refused(f"{kernel.spec}: not timed: {other} is not the library that passed; hold the gate again")
    yield from found


def _unknown(loaded: Mapping[str, str], passed: Mapping[str, str]) -> str | None:
    """A library that was loaded and is not one of those that passed, by content."""
    return next((path for path, digest in loaded.items() if digest not in passed.values()), None)
