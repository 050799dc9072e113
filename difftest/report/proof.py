"""A report's script, run before it is handed over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from difftest.report import bare

TIMEOUT = 600.0
"""Seconds that a script may take; one about a hang ends here."""


@dataclass(frozen=True)
class Proof:
    """What running the script came to. reproduced: it ended as a finding does. verdict: a sentence. output: its own."""

    reproduced: bool
    verdict: str
    output: str


def prove(script: Path, packages: Sequence[str], timeout: float = TIMEOUT) -> Proof:
    """Run `script` where difftest cannot be imported; `environment.json` beside it says where that was."""
    command = _command(script, "environment.json", packages)
    try:
        done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as expired:
        output = expired.stdout.decode(errors="replace") if isinstance(expired.stdout, bytes) else ""
        return Proof(True, f"Run on the machine below, it did not end within {timeout:g} s.", output.strip())
    output = done.stdout.strip()
    if done.returncode == 1 and "Traceback" not in done.stderr:
        return Proof(True, "Run on the machine below, it printed this and exited with 1:", output)
    if done.returncode == 0:
        return Proof(False, "**It did not reproduce on the machine below**: it printed this and exited with 0:", output)
    if done.returncode < 0:
        verdict = f"Run on the machine below, its process was ended by signal {-done.returncode}:"
        return Proof(True, verdict, "\n".join((output, done.stderr.strip()[-2000:])).strip())
    verdict = f"**It failed on the machine below before it could ask the kernel** (exit status {done.returncode}):"
    return Proof(False, verdict, "\n".join((output, done.stderr.strip()[-2000:])).strip())


def sanitize(script: Path, packages: Sequence[str], timeout: float = TIMEOUT) -> str:
    """What compute-sanitizer's memcheck says of `script`: the last lines of its report.

    Raises `FileNotFoundError` where the machine has no compute-sanitizer.
    """
    tool = ["compute-sanitizer", "--tool", "memcheck", "--target-processes", "all"]
    command = [*tool, *_command(script, "environment.sanitizer.json", packages)]
    try:
        done = subprocess.run(command, cwd=script.parent, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return f"compute-sanitizer did not end within {timeout:g} s."
    finally:
        script.with_name("environment.sanitizer.json").unlink(missing_ok=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    return "\n".join(said[-20:]) or f"compute-sanitizer said nothing (exit status {done.returncode})."


def _command(script: Path, environment: str, packages: Sequence[str]) -> list[str]:
    return [sys.executable, bare.__file__, str(script), str(script.with_name(environment)), *packages]
