"""What `difftest gate` says, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from difftest.files import write_whole
from difftest.gate.verdict import Verdict

PASSED, NOT_PASSED, REFUSED, EMULATED = 0, 1, 3, 4
"""Exit codes; 2 is a mistake in what was given."""
_TIMING = "microseconds of a call, median"


def lines(verdict: Verdict) -> Iterator[str]:
    """The verdict for people: a line for each group, the expected gaps, the failures, and the end."""
    groups = verdict.groups()
    width = max(map(len, groups), default=0)
    for name, row in groups.items():
        words = [f"{row['agree']} of {row['ran']} agree"]
        if row["gaps"]:
            words.append(f"{row['gaps']} expected gaps")
        if row["ratio"] is not None:
            words.append(f"error/radius at most {row['ratio']:.3g}")
        elif row["agree"]:
            words.append("all exact")
        yield f"{name:<{width}}  {', '.join(words)}"
    for spec, counts in verdict.drawn.items():
        yield f"{spec} drawn: " + ", ".join(f"{number} {word}" for word, number in counts.items() if number)
    for name, gap in verdict.gaps.items():
        what = "" if gap["deviation"] is None else f"{gap['deviation']}, "
        yield f"expected gap: {what}seen {gap['sightings']} times: {name}"
    if verdict.not_emulable:
        yield f"not emulable: {len(verdict.not_emulable)} named scenarios (capture and replay)"
    yield from (f"failed: {line}" for line in verdict.failures)
    yield verdict.line


def timing_lines(verdict: Verdict) -> Iterator[str]:
    """Microseconds by named scenario, a column for each kernel."""
    kernels = list(dict.fromkeys(one.kernel for one in verdict.timings))
    table: dict[str, dict[str, float]] = {}
    for one in verdict.timings:
        table.setdefault(one.name, {})[one.kernel] = one.median
    width = max(map(len, (_TIMING, *table)))
    yield "  ".join([f"{_TIMING:<{width}}", *kernels])
    for name, row in table.items():
        cells = (f"{row[kernel]:>{len(kernel)}.1f}" if kernel in row else " " * len(kernel) for kernel in kernels)
        yield "  ".join([f"{name:<{width}}", *cells]).rstrip()


def code(verdict: Verdict) -> int:
    """The exit code."""
    if verdict.failures:
        return NOT_PASSED
    return EMULATED if verdict.emulated else PASSED


def write(verdict: Verdict, path: Path) -> None:
    """Write the verdict's file. Raises OSError."""
    write_whole(path, json.dumps(verdict.to_json(), indent=1) + "\n")
