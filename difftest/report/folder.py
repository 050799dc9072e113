"""The folder of a report: written beside its place, proved, then renamed."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import oracles
from difftest.engine import Executor
from difftest.isolation import environment
from difftest.isolation.executors import MOST_WORKERS, Executors, Isolation
from difftest.judging.outcome import Outcome
from difftest.ledger import cases
from difftest.ledger.cases import Case
from difftest.report.issue import issue, summary, title
from difftest.report.paths import relative
from difftest.report.proof import Proof, Runner, has_sanitizer
from difftest.report.script import NoScript, claim_of, ends_process, needs, script
from strategies.scenario import Scenario


class NoReport(ValueError):
    """A report cannot be made. The message is one line that says why, and what to do."""


@dataclass(frozen=True)
class Report:
    """A report that was written. proof: what its script came to; None when there is no script, for `no_script`."""

    folder: Path
    proof: Proof | None
    no_script: str


def write(case_path: Path, folder: Path, *, sanitized: bool = False, candidate: str | None = None) -> Report:
    """Write the report of the case at `case_path` into the new `folder`, and run its script.

    repro.py, issue.md, environment.json, error.svg (where the case has a heat map) and the case itself; none of them
    names a path of this machine. sanitized: run the script under compute-sanitizer too. candidate: the case's oracle
    in another environment, such as cutlass@0.7.0, which the script is then run in. Raises `InvalidCase`,
    `OracleNotFound`, `EnvironmentNotFound`, `WorkerFailed`, and `NoReport` when `folder` is there already or cannot be
    written.
    """
    case = cases.load(case_path)
    spec = candidate or case.candidate
    if not cases.about(case, [spec]):
        raise NoReport(f"--candidate {spec}: the case is about {case.candidate}; name that in another environment")
    oracle, place = environment.of(spec)
    found, folder = oracles.find(oracle), folder.absolute()
    if folder.exists():
        raise NoReport(f"--out {folder}: exists; name a folder that does not, or remove it")
    if sanitized and not has_sanitizer():
        raise NoReport("--sanitize: compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    with Executors([spec], Isolation(drivers=MOST_WORKERS)) as executors:  # of a device, a small share is enough
        executor = executors.of(spec, case.outcome.reference)
        missing = executor.introduction.missing
        heat = case.outcome.heat if missing or case.outcome.heat else _heat(case.outcome, executor)
    packages = tuple(getattr(found, "packages", ()))
    runner = Runner(place=place, packages=packages, enter=getattr(found, "reproduction_enter", ""))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise NoReport(f"--out {folder}: cannot be written: {error.strerror}") from error
    try:
        proof, no_script = _fill(beside, case, oracle, missing, runner, sanitized=sanitized)
        _draw(beside / "error.svg", case, heat)
        beside.chmod(0o755)
        beside.rename(folder)
    except OSError as error:
        raise NoReport(f"--out {folder}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Report(folder, proof, no_script)


def _fill(
    folder: Path, case: Case, spec: str, missing: str | None, runner: Runner, *, sanitized: bool
) -> tuple[Proof | None, str]:
    """missing: what lacks to run the kernel."""
    cases.save(_without_paths(case), folder / f"finding{cases.SUFFIX}")
    proof, no_script, sanitizer = None, "", ""
    try:
        text = script(case.outcome, spec, title(case.outcome), summary(case), earlier=len(case.sequence))
    except NoScript as error:
        no_script = str(error)
    else:
        path = folder / "repro.py"
        path.write_text(text, encoding="utf-8")
        if missing is None:
            proof = runner.prove(path, ends_process=ends_process(case.outcome))
            if sanitized:
                sanitizer = runner.sanitize(path)
        else:
            proof = Proof(False, f"**It was not run**: {spec} cannot run here ({missing}).", "")
    told = folder / "environment.json"
    seen = json.loads(told.read_text(encoding="utf-8")) if told.is_file() else None
    text = issue(
        case,
        proof,
        environment=seen,
        claim=claim_of(case.outcome),
        no_script=no_script,
        sanitizer=sanitizer,
        needs=needs(runner.packages),
        entered=bool(runner.enter),
    )
    (folder / "issue.md").write_text(text, encoding="utf-8")
    return proof, no_script


def _heat(outcome: Outcome, executor: Executor) -> tuple[str, ...]:
    """Where the output is wrong, of a finding that was saved without it and is of an element."""
    if outcome.worst is None:
        return ()
    seen = executor.submit(outcome.scenario, {outcome.check}).result().findings
    return next((each.heat for each in seen if (each.check, each.kind) == (outcome.check, outcome.kind)), ())


def _draw(path: Path, case: Case, heat: tuple[str, ...]) -> None:
    if not heat or not isinstance(case.scenario, Scenario):
        return
    from difftest.report.picture import draw  # matplotlib is of the extra "report"

    shape = case.scenario.shape
    draw(path, heat, (shape.tokens + case.scenario.execution.padding, shape.hidden), title(case.outcome))


def _without_paths(case: Case) -> Case:
    """The case without paths of the machine that it was found on."""

    def clean(outcome: Outcome) -> Outcome:
        traceback, detail = relative(outcome.traceback), relative(outcome.detail)
        return dataclasses.replace(outcome, traceback=traceback, detail=detail)

    found = case.found and dataclasses.replace(case.found, command=relative(case.found.command))
    return dataclasses.replace(case, outcome=clean(case.outcome), worst=clean(case.worst), found=found)
