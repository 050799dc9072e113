"""A report's script, run before it is handed over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from difftest.isolation.environment import Environment
from difftest.report import bare
from difftest.report.paths import relative, relative_in

TIMEOUT = 600.0
"""Seconds that a script may take; one about a hang ends here."""
SANITIZER = ("compute-sanitizer", "--tool", "memcheck", "--target-processes", "all")


@dataclass(frozen=True)
class Proof:
    """What running the script came to. reproduced: it ended as the finding does. verdict: a sentence. output: its own,
    without paths of this machine."""

    reproduced: bool
    verdict: str
    output: str


@dataclass(frozen=True, kw_only=True)
class Runner:
    """How scripts are run: where difftest cannot be imported, and with its environment noted.

    place: the interpreter, and what is put before its packages. packages: distributions of the kernel. enter:
    MODULE:FUNCTION that makes the kernel's package importable here, called before difftest is hidden; "" for none.
    """

    place: Environment
    packages: Sequence[str] = ()
    enter: str = ""
    timeout: float = TIMEOUT

    def prove(self, script: Path, *, ends_process: bool = False) -> Proof:
        """Run `script`; `environment.json` beside it says where. ends_process: a crash or a hang is the finding."""
        environment = script.with_name("environment.json")
        try:
            done = self._run((), script, environment)
        except subprocess.TimeoutExpired as expired:
            output = expired.stdout.decode(errors="replace") if isinstance(expired.stdout, bytes) else ""
            verdict = f"Run on the machine below, it did not end within {self.timeout:g} s."
            return Proof(ends_process, verdict, relative(output.strip()))
        if environment.is_file():  # else the process was ended before it could tell
            told = relative_in(json.loads(environment.read_text(encoding="utf-8")))
            environment.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        output, errors = relative(done.stdout.strip()), relative(done.stderr.strip()[-2000:])
        both = "\n".join((output, errors)).strip()
        code = done.returncode
        if code == 1 and "Traceback" not in errors:
            return Proof(not ends_process, "Run on the machine below, it printed this and exited with 1:", output)
        if code == 0:
            return Proof(
                False, "**It did not reproduce on the machine below**: it printed this and exited with 0:", output
            )
        if code < 0:
            return Proof(ends_process, f"Run on the machine below, its process was ended by signal {-code}:", both)
        return Proof(
            False, f"**It failed on the machine below before it could ask the kernel** (exit status {code}):", both
        )

    def sanitize(self, script: Path) -> str:
        """What compute-sanitizer's memcheck says of `script`: the last lines of its report."""
        environment = script.with_name("environment.sanitizer.json")
        try:
            done = self._run(SANITIZER, script, environment)
        except subprocess.TimeoutExpired:
            return f"compute-sanitizer did not end within {self.timeout:g} s."
        finally:
            environment.unlink(missing_ok=True)
        said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
        text = "\n".join(said[-20:]) or f"compute-sanitizer said nothing (exit status {done.returncode})."
        return relative(text)

    def _run(self, under: Sequence[str], script: Path, environment: Path) -> subprocess.CompletedProcess[str]:
        enter = ["--enter", self.enter] if self.enter else []
        command = [*under, self.place.python, bare.__file__, *enter, str(script), str(environment), *self.packages]
        path = os.pathsep.join(self.place.path) if self.place.name else os.environ.get("PYTHONPATH", "")
        variables = os.environ | dict(self.place.variables) | ({"PYTHONPATH": path} if path else {})
        return subprocess.run(
            command,
            cwd=script.parent,
            env=variables,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=self.timeout,
            check=False,
        )


def has_sanitizer() -> bool:
    """Whether this machine has compute-sanitizer."""
    return shutil.which(SANITIZER[0]) is not None
