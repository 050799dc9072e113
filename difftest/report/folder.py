"""The folder of a report: written beside its place, proved, then renamed."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

import oracles
from difftest.ledger import cases
from difftest.ledger.cases import Case
from difftest.report.issue import issue, summary, title
from difftest.report.proof import Proof, prove, sanitize
from difftest.report.script import NoScript, script
from oracles.base import Oracle, missing_of
from oracles.problem import build
from oracles.reference import enclose
from strategies.reading import layer
from strategies.scenario import Scenario


class NoReport(ValueError):
    """A report cannot be made. The message is one line that says why, and what to do."""


@dataclass(frozen=True)
class Report:
    """A report that was written. proof: what its script came to; None when there is no script, for `no_script`."""

    folder: Path
    proof: Proof | None
    no_script: str


def write(case_path: Path, folder: Path, *, sanitized: bool = False) -> Report:
    """Write the report of the case at `case_path` into the new `folder`, and run its script.

    repro.py, issue.md, environment.json, error.svg (where the candidate can be asked here, and answers) and the case
    itself. sanitized: run the script under compute-sanitizer too. Raises `InvalidCase`, `OracleNotFound`, and
    `NoReport` when `folder` is there already or cannot be written.
    """
    case = cases.load(case_path)
    if not isinstance(case.scenario, Scenario):
        raise NoReport(f"{case_path}: is a router's case, and a report is about a layer; `difftest replay` shows it")
    oracle, folder = oracles.get(case.candidate), folder.absolute()
    if folder.exists():
        raise NoReport(f"--out {folder}: exists; name a folder that does not, or remove it")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise NoReport(f"--out {folder}: cannot be written: {error.strerror}") from error
    try:
        if sanitized and shutil.which("compute-sanitizer") is None:
            raise NoReport("--sanitize: compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
        proof, no_script = _fill(beside, case, oracle, sanitized)
        beside.chmod(0o755)
        beside.rename(folder)
    except OSError as error:
        raise NoReport(f"--out {folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Report(folder, proof, no_script)


def _fill(folder: Path, case: Case, oracle: Oracle, sanitized: bool) -> tuple[Proof | None, str]:
    packages = tuple(getattr(oracle, "packages", ()))
    cases.save(case, folder / f"finding{cases.SUFFIX}")
    proof, no_script, sanitizer = None, "", ""
    try:
        text = script(case.outcome, title(case.outcome), summary(case))
    except NoScript as error:
        no_script = str(error)
    else:
        path = folder / "repro.py"
        path.write_text(text, encoding="utf-8")
        missing = missing_of(oracle)
        if missing is None:
            proof = prove(path, packages)
            if sanitized:
                sanitizer = sanitize(path, packages)
        else:
            proof = Proof(False, f"**It was not run**: {case.candidate} cannot run here ({missing}).", "")
    needs = ", ".join(packages) or "nothing else"
    text = issue(case, proof, no_script=no_script, sanitizer=sanitizer, needs=needs)
    (folder / "issue.md").write_text(text, encoding="utf-8")
    _draw(folder / "error.svg", case, oracle)
    return proof, no_script


def _draw(path: Path, case: Case, oracle: Oracle) -> None:
    """The picture, where there is something to see: an answer of values."""
    if case.outcome.worst is None or missing_of(oracle) is not None:
        return
    from difftest.report.picture import draw  # matplotlib is of the extra "report"

    with torch.no_grad():
        problem = build(layer(case.scenario))
        output = oracle(oracle.prepare(problem))
        draw(path, output, enclose(problem, oracle.numerics), title(case.outcome))
