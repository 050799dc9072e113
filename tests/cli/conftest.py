from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from difftest.cli import main

SCRUBBED = (
    (r"asked          \d+ further scenarios?", "asked          N further scenarios"),
    (r"last seen: \d{4}-\d\d-\d\d, with .*", "last seen: TODAY, HERE"),
    (r"so in \d+ of \d+ further scenarios", "so in N of N further scenarios"),
    (r"use one of .*, module:attribute", "use one of ORACLES, module:attribute"),
    (r"-[0-9a-f]{8}\.case\.json", "-DIGEST.case.json"),
    (r"of recording [0-9a-f]{12}", "of recording DIGEST"),
    (r"(found: .* in check 'reference'): .*", r"\1: DETAIL"),
    (r"in [\d.]+ s, [\d.]+/s", "in N s, N/s"),
    (r"(agrees \d+ \([\d.]+%\), )?diverges \d+ \([\d.]+%\)", "diverges N (N%)"),
    (r"(known: \S+): \d+ scenarios?", r"\1: N scenarios"),
    (r"seen in        \d+ scenarios?; shrunk in \d+ runs?", "seen in        N scenarios; shrunk in N runs"),
)
"""What differs between two runs, two versions of Hypothesis, or with the oracles that are installed."""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def __str__(self) -> str:
        """What the user sees, for a snapshot."""
        parts = [f"exit code: {self.code}"]
        parts += [f"--- {name}\n{text}" for name, text in (("stdout", self.out), ("stderr", self.err)) if text]
        shown = "\n".join(parts)
        for pattern, replacement in SCRUBBED:
            shown = re.sub(pattern, replacement, shown)
        return shown


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory that holds kernels.py; the output is 200 columns wide and not a terminal."""
    shutil.copy(Path(__file__).with_name("kernels.py"), tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def difftest(workdir: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs the command in this process."""

    def run(*args: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            main(args)
        out, err = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, out.replace(str(workdir), "WORKDIR"), err.replace(str(workdir), "WORKDIR"))

    return run


@pytest.fixture
def run(difftest: Callable[..., Result]) -> Callable[..., Result]:
    """`difftest run` of a class of kernels.py on a small budget."""

    def run(candidate: str, *args: str, examples: int = 4) -> Result:
        budget = ("--profile", "quick", "--examples", str(examples), "--seed", "7")
        return difftest("run", "--candidate", f"kernels.py:{candidate}", *budget, *args)

    return run


@pytest.fixture(scope="session")
def saved_cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By class of kernels.py: the text of the case that `difftest run` saves for it."""
    folder = tmp_path_factory.mktemp("saved")
    shutil.copy(Path(__file__).with_name("kernels.py"), folder)
    texts = {}
    with contextlib.chdir(folder):
        for name in ("Off", "Rejects"):
            budget = ["--profile", "quick", "--examples", "1", "--seed", "7", "--cases", name]
            with contextlib.suppress(SystemExit):
                main(["run", "--candidate", f"kernels.py:{name}", *budget])
            (path,) = Path(name).glob("*.case.json")
            texts[name] = path.read_text()
    return texts


@pytest.fixture
def case(workdir: Path, saved_cases: dict[str, str]) -> Callable[..., str]:
    """Writes a case of a class of kernels.py, and returns its path: `case("a", "Off", {"status": "fixed"})`.

    The dict changes values, each named with dots.
    """

    def write(name: str, candidate: str = "Rejects", changes: dict[str, Any] | None = None) -> str:
        data = json.loads(saved_cases[candidate])
        for dotted, value in (changes or {}).items():
            *parents, last = dotted.split(".")
            part = data
            for parent in parents:
                part = part[parent]
            part[last] = value
        path = workdir / f"{name}.case.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(data))
        return str(path.relative_to(workdir))

    return write
