"""The command `difftest`. Torch is imported when a command needs it, not for `--help` or a mistyped option."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn, cast

import click
from rich.console import Console

from difftest import preflight
from difftest.files import can_be_replaced, write_whole
from difftest.findings import Summary
from difftest.gate.target import TARGETS
from difftest.isolation.environment import WorkerFailed
from difftest.ledger import cases
from difftest.ledger.replay import Replay, ReplayStatus, replay
from difftest.options import OPTIONS, REFERENCE, InvalidOption, Options, processes_of, shards_of
from difftest.output import describe
from difftest.output.events import CaseExplained, CaseReplayed, Event, Handler
from difftest.output.jsonl import JsonLines
from difftest.output.page import Page
from difftest.output.step import StepSummary, path_of
from difftest.output.terminal import STATUS_STYLES, Terminal, print_lines, replay_line
from difftest.scale.part import Part
from strategies import recordings

AGREE, FINDINGS, USAGE, MISSING = range(4)
INTERNAL = 70
"""An error of difftest itself (EX_SOFTWARE of sysexits.h): a gate must not read it as findings."""
_WRITTEN = ("json", "html", "summary")
"""Options that name a file in which a run is told of."""
INTERRUPTED, BROKEN_PIPE = 130, 141
"""As a shell reports SIGINT and SIGPIPE."""

RUN_EXIT_CODES = """\b
Exit codes:
  0    all agree (what a candidate declares as unsupported is counted, not a failure)
  1    findings, or a known case that is not as the ledger says
  2    a mistake in what was given: an option, an oracle, a case file
  3    something needed is missing: a required candidate or every one, or it supports no scenario that was drawn
  130  interrupted; findings so far are saved and shown
"""

GATE_EXIT_CODES = """\b
Exit codes:
  0    passed
  1    not passed: a finding, or something skipped, unsupported or left unrun
  2    a mistake in what was given
  3    refused: the card, the build or the control is not there; nothing has run
  4    not passed (emulated): nothing was found, and no kernel was run
"""

REPLAY_EXIT_CODES = """\b
Exit codes, the first that holds:
  2    a file is damaged, or written by a newer difftest
  1    the ledger is wrong: an open case agrees now (fixed: update the case), a fixed one diverges again,
       or an open one diverges in another way
  3    something needed is missing: an oracle that --require names, the oracle of a case cannot be found,
       or no case at all could run
  0    every case is as the ledger says
"""

BUILD_EXIT_CODES = """\b
Exit codes:
  0    built, or built before
  1    the generator, the compiler or the linker failed; the message names the log
  2    a mistake in what was given: an option, a wheel, a patch that does not apply
  3    something needed is missing: the package, a compiler, a header
"""


EXPLAIN_EXIT_CODES = """\b
Exit codes:
  0  explained, or described where nothing known matches
  1  the finding was not seen again
  2  a file that is damaged, or written by a newer difftest
  3  something needed is missing: the candidate cannot be found, or cannot run here
"""


CALIBRATE_EXIT_CODES = """\b
Exit codes:
  0    measured and saved
  1    an oracle adds more coarsely than its Numerics declare
  2    a mistake in what was given
  3    nothing could be measured
"""


_HOURS_HELP = "Begin shards, the campaign's own and then further ones, until this long after the start; those then end."


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command, by default with the process's arguments. Every error is one line on stderr and an exit code."""
    try:
        with _ended_gently():
            code = difftest.main(args, prog_name="difftest", standalone_mode=False)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "difftest"
        code = _complain(f"{error.format_message().rstrip('.')} (see {path} --help)", USAGE)
    except InvalidOption as error:
        code = _complain(str(error), USAGE)
    except (preflight.Missing, WorkerFailed) as error:
        code = _complain(str(error), MISSING)
    except click.Abort:
        code = _complain("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit):
        # The reader went away, as in `| head`: click and rich exit with 1 then, which means findings here.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    except Exception:
        click.echo(traceback.format_exc(), err=True, nl=False)
        code = _complain("this is an error of difftest itself; please report it", INTERNAL)
    sys.exit(code or AGREE)


@contextmanager
def _ended_gently() -> Iterator[None]:
    """SIGTERM, which batch systems send before they kill, ends a run as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _complain(message: str, code: int) -> int:
    click.echo(f"difftest: error: {' '.join(message.split())}", err=True)
    return code


def _options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options of `difftest.options` as click's. They stay text here: `Options.parse` reads and judges them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for spec in reversed([spec for spec in OPTIONS if spec.name in names]):
            given: dict[str, Any] = {"is_flag": True} if spec.is_switch else {"metavar": spec.metavar}
            command = click.option(spec.flag, spec.name, help=spec.help, multiple=spec.repeatable, **given)(command)
        return command

    return decorate


class _Finite(click.FloatRange):
    """A range that has no nan, which is neither below nor above, and no inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


@click.group(no_args_is_help=False)
@click.version_option(package_name="difftest", message="%(package)s %(version)s")
def difftest() -> None:
    """Differential testing of fused mixture-of-experts kernels."""


@difftest.command(epilog=RUN_EXIT_CODES)
@_options(*(spec.name for spec in OPTIONS))
@click.option(
    "-n",
    "processes",
    metavar="N",
    default="1",
    help="Processes that share the campaign out; auto: one for each GPU, where no candidate needs one for each core.",
)
@click.option("--shard", metavar="K/N", help="Run the K-th of N parts alone; `difftest merge` joins their results.")
@click.option(
    "--result",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where --shard writes its result, its cases in a folder beside it. [default: shard-K-of-N.json]",
)
def run(processes: str, shard: str | None, result: Path | None, **given: Any) -> int:
    """Draw scenarios, compare every candidate with the reference, shrink and save what diverges."""
    options = Options.parse(given)
    count = processes_of(processes)
    if shard is not None:
        if count != 1:
            raise click.UsageError(f"-n {processes}: a part of a campaign is one process; give each its own --shard")
        return _run_part(options, Part.parse(shard), given["seed"] is not None, result)
    if result is not None:
        raise click.UsageError(f"--result {result}: is for a part of a campaign; name it with --shard K/N")
    preflight.check(options)
    from difftest import campaign  # imports torch
    from difftest.scale import processes as several

    count = min(count or several.most_useful(options), shards_of(options.examples))
    if count == 1:
        return _reported(options, lambda emit: campaign.run(options, emit))
    return _reported(options, lambda emit: several.run(options, emit, count))


def _run_part(options: Options, part: Part, seeded: bool, result: Path | None) -> int:
    if not seeded:
        raise click.UsageError(f"--shard {part}: needs --seed N, the same one for all parts")
    path = result or Path(f"shard-{part.number}-of-{part.of}.json")
    if not can_be_replaced(path):
        raise click.UsageError(f"--result {path}: cannot be written; name a file in a folder that exists")
    preflight.check(options)
    from difftest.scale import task  # imports torch

    shards = part.shards(options.examples)
    known = cases.known(options.cases, options.candidates)
    folder = path.with_suffix(".cases")

    def work(emit: Handler) -> Summary:
        done = task.run(options, shards, emit, known=known, folder=folder)
        write_whole(path, done.encode())
        return done.summary

    try:
        return _reported(options, work, whole=False)
    except OSError as error:
        return _complain(f"--result {path}: cannot be written: {error.strerror}", MISSING)


@difftest.command(name="merge", epilog=RUN_EXIT_CODES)
@click.argument("paths", metavar="RESULT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@_options("cases", *_WRITTEN)
def merge_command(paths: tuple[Path, ...], **given: Any) -> int:
    """Join the results of all parts of a campaign (`difftest run --shard`), as one run of the whole would have ended.

    Counts are added, findings of one bucket are joined, the smallest scenario wins, and their cases are saved. Refused:
    results of different campaigns, a shard that is there twice or not at all, a damaged file.
    """
    from difftest.scale import merge
    from difftest.scale.result import InvalidResult, load

    try:
        results = {str(path): load(path) for path in dict.fromkeys(paths)}
        merge.check(results)
    except (InvalidResult, merge.NotOneCampaign) as error:
        raise click.UsageError(str(error)) from None
    own = {name: given[name] for name in _WRITTEN}
    options = next(iter(results.values())).identity.whole(cases=given["cases"] or "cases", **own)
    preflight.check_cases(options.cases)
    try:
        return _reported(options, lambda emit: merge.tell(list(results.values()), options, emit))
    except cases.CaseNotWritten as error:
        return _complain(str(error), MISSING)


@difftest.command(name="campaign", epilog=RUN_EXIT_CODES)
@click.argument("store", metavar="STORE")
@_options(*(spec.name for spec in OPTIONS))
@click.option("--hours", metavar="H", type=_Finite(min=0, min_open=True), help=_HOURS_HELP)
@click.option("--address", metavar="ADDRESS", help="The Ray cluster. [default: $RAY_ADDRESS, or this machine alone]")
@click.option(
    "--gpus",
    metavar="F",
    type=_Finite(0, 1),
    help="Of a GPU for each shard. [default: 0.125 when a candidate runs on one]",
)
def campaign_command(store: str, hours: float | None, address: str | None, gpus: float | None, **given: Any) -> int:
    """Run a campaign on a Ray cluster: each shard a task, its result in STORE.

    STORE is a folder that all nodes share, or an object store as fsspec names it (s3://bucket/nightly). Where a
    campaign is there already, the command goes on with it and its options, and runs only what has no result.
    """
    if importlib.util.find_spec("ray") is None:
        raise preflight.Missing("difftest campaign: Ray is not installed: pip install 'difftest[ray]'")
    from difftest.scale.merge import NotOneCampaign
    from difftest.scale.store import Store
    from difftest.scale.stored import Stored, given_or_stored

    stored = Stored(Store(store))
    options = Options.parse(given_or_stored(given, stored.options()))
    preflight.check(options, elsewhere=True)
    from difftest.scale import cluster, processes  # import ray and torch

    until = None if hours is None else time.monotonic() + 3600 * hours
    if gpus is None:
        gpus = cluster.GPUS if processes.on_a_gpu(options) else 0.0
    budget = cluster.Budget(until=until, gpus=gpus)
    try:
        stored.start(options)
        cluster.connect(address)
        return _reported(options, lambda emit: cluster.run(stored, options, budget, emit))
    except NotOneCampaign as error:
        return _complain(f"{store}: {error}", USAGE)
    except OSError as error:  # of the store, or of the folder of cases
        return _complain(f"{store}: {preflight.one_line(error)}", MISSING)


def _reported(options: Options, work: Callable[[Handler], Summary], *, whole: bool = True) -> int:
    """The exit code of a run, which is told of on the terminal and in the files that were asked for.

    whole: not a part of a campaign, whose few scenarios need not suit every candidate.
    """
    page = None if options.html is None else Page(options.html, options)
    step = _step_summary(options.summary, options)
    with _json_lines(options.json) as lines, step as markdown, Terminal(options, Console()) as terminal:
        try:
            summary = work(_to_all(terminal, lines, page, markdown))
        except KeyboardInterrupt:
            code, reason = INTERRUPTED, "interrupted; findings so far are saved and shown above"
        else:
            code, reason = summary.exit_code, describe.exit_reason(summary)
            idle = describe.idle_lines(summary, options.require) if whole else []
            if code == AGREE and idle:
                code, reason = MISSING, "; ".join(idle)
    print_lines(Console(), [f"exit {code}: {reason}"])
    return _written_code(code, lines, page, markdown)


@difftest.command(name="import", epilog=RUN_EXIT_CODES)
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@_options(
    "candidate", "reference", "require", "cases", "device", "isolate", "workers", "timeout", "json", "html", "summary"
)
def import_command(path: Path, **given: Any) -> int:
    """Judge a recorded call: tensors that failed somewhere else, in a safetensors file with the canonical names.

    A part of a call is enough: what is missing is drawn by a rule. A finding is shrunk, explained and saved as one of
    `difftest run` is, with the recording beside its case.
    """
    options = dataclasses.replace(Options.parse({**given, "examples": 1, "seed": 0}), imported=path)
    preflight.check(options)
    preflight.check_layers(options)
    from difftest import campaign
    from difftest.judging import observed
    from oracles import recording

    try:
        recorded = recording.load(path)
        scenario = recorded.whole(recordings.digest_of(path))
    except recording.InvalidRecording as error:
        raise click.UsageError(str(error)) from None
    recordings.add_folder(path.parent)
    if recorded.output is not None:
        print_lines(Console(), observed.lines(recorded.output, scenario, options.candidates))
    return _reported(options, lambda emit: campaign.judge(options, scenario, emit))


def _json_lines(path: Path | None) -> AbstractContextManager[JsonLines | None]:
    return nullcontext() if path is None else JsonLines(path)


def _step_summary(path: str | Path | None, options: Options | None) -> AbstractContextManager[StepSummary | None]:
    wanted = path_of(Path(path) if path else None)
    return nullcontext() if wanted is None else StepSummary(wanted, options)


def _to_all(*handlers: Handler | None) -> Handler:
    def emit(event: Event) -> None:
        for handler in handlers:
            if handler is not None:
                handler(event)

    return emit


def _written_code(code: int, *reports: JsonLines | Page | StepSummary | None) -> int:
    """The exit code, given that a report's file may have failed on the way."""
    for report in reports:
        if report is not None and report.error is not None:
            missing = _complain(report.error, MISSING)
            code = missing if code == AGREE else code
    return code


@difftest.command(name="replay", epilog=REPLAY_EXIT_CODES)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@_options("require", "json", "summary")
def replay_command(paths: tuple[Path, ...], require: tuple[str, ...], json: str | None, summary: str | None) -> int:
    """Run saved cases again. PATH is a case file, or a folder of *.case.json.

    STILL DIVERGES: the case's own finding is there, or another one. FIXED: candidate and reference agree now.
    ERRORED: the file is damaged, or its oracle cannot be found. NOT APPLICABLE: its oracle is not installed, declares
    the scenario as unsupported, or is of another version or architecture than the case is about; counted only.
    An open case that still diverges gets the day of it, which `difftest cases` shows.
    """
    files = _case_files(paths)
    preflight.check_required(require)
    for path in files:  # before a process of a candidate starts
        recordings.add_folder(path.parent)
    console, errors = Console(), Console(stderr=True)
    replays: list[Replay] = []

    def show(event: Event) -> None:
        if isinstance(event, CaseReplayed):
            status = event.replay.status
            where = errors if status is ReplayStatus.ERRORED else console
            print_lines(where, [replay_line(event.replay)], STATUS_STYLES[status])

    from difftest.isolation.executors import Executors

    step = _step_summary(summary, None)
    with _json_lines(Path(json) if json else None) as lines, step as markdown, Executors() as executors:
        emit = _to_all(show, lines, markdown)
        for path in files:
            replays.append(replay(path, executors))
            _note_sighting(replays[-1])
            emit(CaseReplayed(replay=replays[-1]))
    print_lines(console, ["", describe.replay_counts(replays)], "bold")
    return _written_code(_replay_code(replays), lines, markdown)


def _note_sighting(done: Replay) -> None:
    """Note the day in an open case that was seen again; not in those that come with difftest."""
    if done.case is None or done.path.resolve().parent == cases.SHIPPED.resolve():
        return
    if done.expected and done.status is ReplayStatus.STILL_DIVERGES and done.case.seen != cases.today():
        with suppress(cases.CaseNotWritten):  # a ledger that cannot be written can be replayed
            cases.save(done.case.seen_today(), done.path)


def _case_files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = cases.paths(path)
            if not inside:
                raise click.UsageError(f"{path}: holds no *{cases.SUFFIX}; name a case file or a folder that does")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise click.UsageError(f"{path}: does not exist; name a case file or a folder of *{cases.SUFFIX}")
    return list(dict.fromkeys(files))


def _replay_code(replays: Sequence[Replay]) -> int:
    if any(replay.case is None for replay in replays):
        return USAGE
    if any(not replay.expected and replay.status is not ReplayStatus.ERRORED for replay in replays):
        return FINDINGS
    ran = any(replay.outcome is not None for replay in replays)
    return AGREE if ran and all(replay.expected for replay in replays) else MISSING


@difftest.command(name="cases")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--mark", metavar="STATUS", type=click.Choice([str(status) for status in cases.Status]), help="Set it.")
@click.option("--upstream", metavar="URL", help="Note the report that was filed about them.")
def cases_command(paths: tuple[Path, ...], mark: str | None, upstream: str | None) -> int:
    """List saved cases: status, finding, when it was last seen, report upstream.

    PATH is a case file, or a folder of *.case.json.
    With --mark or --upstream the files are edited, each whole or not at all.
    """
    code = AGREE
    for path in _case_files(paths):
        try:
            case = cases.load(path)
            if mark is not None or upstream is not None:
                case = case.marked(None if mark is None else cases.Status(mark), upstream)
                cases.save(case, path)
        except cases.InvalidCase as error:
            code = _complain(str(error), USAGE)
        except cases.CaseNotWritten as error:
            code = _complain(str(error), MISSING)
        else:
            print_lines(Console(), describe.case_lines(path, case))
    return code


@difftest.command(name="report")
@click.argument("path", metavar="CASE", type=click.Path(path_type=Path))
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="New folder. [default: report-DIGEST]")
@click.option("--sanitize", is_flag=True, help="Run the script under compute-sanitizer too.")
@click.option("--candidate", metavar="ORACLE", help="The case's oracle in another environment, as cutlass@0.7.0.")
def report_command(path: Path, out: Path | None, sanitize: bool, candidate: str | None) -> int:
    """Write a report for people upstream: a script that needs no difftest, an issue to paste, and the environment.

    The script is run before it is handed over. Exit code 1: it does not show the finding here.
    """
    from difftest.report import folder  # imports torch

    try:
        case = cases.load(path)
        out = out or Path(f"report-{case.scenario.digest}")
        report = folder.write(path, out, sanitized=sanitize, candidate=candidate)
    except (cases.InvalidCase, folder.NoReport, LookupError) as error:
        return _complain(str(error), USAGE)
    verdict = None if report.proof is None else report.proof.verdict
    print_lines(Console(), describe.report_lines(out, verdict, report.no_script))
    return AGREE if report.proof is None or report.proof.reproduced else FINDINGS


@difftest.command(name="build", epilog=BUILD_EXIT_CODES)
@click.option("--version", metavar="VERSION", help="Of flashinfer-python; pip brings it. [default: the installed one]")
@click.option("--wheel", metavar="FILE", help="Take the sources from this wheel instead.")
@click.option(
    "--patch",
    "patches",
    metavar="PATCH",
    multiple=True,
    help="Unified diff to apply: a file, or the short name of one that is shipped (situ). Repeatable, in order.",
)
@click.option("--arch", metavar="ARCH", help="9.0a or 12.0a. [default: that of --only, or else of the device]")
@click.option(
    "--only", metavar="TYPES", help="Build bf16xmxfp4 (9.0a) or mxfp8xmxfp4 (12.0a) alone: minutes, not hours."
)
@click.option(
    "--tile",
    "tiles",
    metavar="MxNxK",
    multiple=True,
    help="With --only, a GEMM tile to build, cluster 1x1x1, or `all`. Repeatable. [default: what runs untuned]",
)
@click.option("--library", metavar="FILE", help="Take this library, built elsewhere from the same sources.")
@click.option("--jobs", metavar="N", help="Compilers at a time. [default: the number of cores]")
def build_command(**given: Any) -> int:
    """Build FlashInfer's fused-MoE library from patched sources, privately.

    An oracle spec names it as ORACLE@VERSION+PATCH, such as cutlass@0.6.18+situ. Builds are kept in $DIFFTEST_BUILDS,
    by default in the user's cache folder, and can be carried to another machine's. What was built before is not built
    again, and a build that was interrupted goes on.
    """
    from difftest.builds.compilation import BuildFailed
    from difftest.builds.make import make
    from difftest.builds.request import Request

    request = Request.parse(given)
    try:
        build = make(request, click.echo)
    except BuildFailed as error:
        return _complain(str(error), FINDINGS)
    click.echo(f"{build.name}: {build.library}")
    click.echo(f"use it: --candidate cutlass@{build.name}")
    return AGREE


@difftest.command(name="explain", epilog=EXPLAIN_EXIT_CODES)
@click.argument("path", metavar="CASE", type=click.Path(path_type=Path))
@_options("json")
def explain_command(path: Path, json: str | None) -> int:
    """Say what a saved case is due to: a rounding that is not declared, a known mistake, or where it is wrong.

    The candidate is asked the case, and scenarios near it that tell what fits apart.
    """
    try:
        case = cases.load(path)
    except cases.InvalidCase as error:
        raise click.UsageError(str(error)) from None
    try:
        reason = preflight.missing(case.candidate)
    except LookupError as error:
        raise preflight.Missing(preflight.one_line(error)) from None
    if reason is not None:
        raise preflight.Missing(f"{case.candidate}: {reason}")
    from difftest.isolation.executors import Executors

    with _json_lines(Path(json) if json else None) as lines, Executors([case.candidate]) as executors:
        try:
            explanation = executors.of(case.candidate, case.outcome.reference).explain(case.outcome, case.worst)
        except recordings.RecordingNotFound as error:
            raise preflight.Missing(str(error)) from None
        if lines is not None:
            lines(CaseExplained(path=path, explanation=explanation))
    print_lines(Console(), describe.explained_lines(path, case.outcome, explanation))
    return _written_code(AGREE if explanation.reproduced else FINDINGS, lines)


@difftest.command(epilog=CALIBRATE_EXIT_CODES)
@click.argument("names", nargs=-1, metavar="[ORACLE]...")
@click.option("--device", default="cpu", metavar="DEVICE", help="Where the problems are, as in a run. [default: cpu]")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder to keep it in. [default: a cache]"
)
def calibrate(names: tuple[str, ...], device: str, out: Path | None) -> int:
    """Measure how oracles add up products on this machine (default: all that are installed).

    Runs then use it to narrow the sharp radius of what may differ. A run looks in the folder that the variable
    DIFFTEST_CALIBRATIONS names, or in the user's cache.
    """
    import torch

    import oracles
    from difftest import calibration, probe

    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise click.UsageError(f"--device {device}: {preflight.one_line(error)}") from None
    preflight.check_device(device)
    emulations = oracles.emulations()
    code = measured = 0
    for name in names or [name for name in oracles.names() if name not in emulations]:
        try:
            oracle = oracles.find(name)
        except oracles.OracleNotFound as error:
            raise click.UsageError(str(error)) from None
        if oracles.is_router(oracle):
            continue  # nothing of it is left to measure
        oracle = cast(oracles.Oracle, oracle)
        lacking = oracles.missing_of(oracle)
        if lacking is not None:
            click.echo(f"{name}: left out: {lacking}")
            continue
        try:
            with torch.no_grad():
                found = calibration.measure(oracle, name, place)
            path = found.save(out or calibration.folder())
        except (probe.Unmeasurable, OSError) as error:
            click.echo(f"{name}: not measured: {error}")
            continue
        measured += 1
        print_lines(Console(), [f"{name}:", *(f"  {line}" for line in found.lines())])
        wrong = found.contradictions(oracle.numerics)
        for line in wrong:
            click.echo(f"  not as declared: {line}")
        code = FINDINGS if wrong else code
        click.echo(f"  saved: {path}")
    return code if measured else MISSING


@difftest.command(name="gate", epilog=GATE_EXIT_CODES)
@click.argument("target", metavar="TARGET", type=click.Choice(list(TARGETS)))
@click.option("--environment", "environments", metavar="NAME", multiple=True, help="VERSION+PATCH, or /PATH/TO/PYTHON.")
@click.option("--control", metavar="ORACLE", help="The control, where it is not marlin of this interpreter.")
@click.option("--require-situ", is_flag=True, help="No case of the ledger that is about SiTU is an expected gap.")
@click.option("--emulate", is_flag=True, help="Run the target's emulation; it passes nothing.")
@click.option("--then-bench", is_flag=True, help="When it is passed, time the kernels on the named scenarios.")
@click.option("--out", metavar="FILE", type=click.Path(path_type=Path), default="verdict.json", help="The verdict.")
@_options("examples", "seed", "profile", "cases", "timeout", "workers")
def gate_command(
    target: str,
    environments: tuple[str, ...],
    control: str | None,
    require_situ: bool,
    emulate: bool,
    then_bench: bool,
    out: Path,
    **given: Any,
) -> int:
    """Hold TARGET's gate: the named scenarios and then drawn ones, with nothing skipped, unsupported or left unrun.

    Each kernel is calibrated on the card before. What the ledger knows is an expected gap, and is told."""
    from difftest.gate import bench, command, gate  # imports torch

    if emulate and TARGETS[target].emulation is None:
        raise click.UsageError(f"--emulate: {target} has no emulation; leave it out")
    options = Options.parse(given)
    asked = gate.Asked(
        target=TARGETS[target],
        options=options,
        environments=environments,
        control=control,
        require_situ=require_situ,
        emulate=emulate,
    )
    try:
        verdict = gate.hold(asked, click.echo, lambda _: None)
    except gate.Refused as error:
        return _complain(f"gate {target}: {error}", command.REFUSED)
    print_lines(Console(), list(command.lines(verdict)))
    code = command.code(verdict)
    try:
        command.write(verdict, out)
        if then_bench:
            verdict = dataclasses.replace(verdict, timings=bench.bench(asked, verdict, click.echo))
            print_lines(Console(), list(command.timing_lines(verdict)))
            command.write(verdict, out)
    except gate.Refused as error:
        return _complain(f"gate {target}: {error}", code or command.REFUSED)
    except OSError as error:
        return _complain(f"--out {out}: cannot be written: {error.strerror}", command.NOT_PASSED)
    return code


@difftest.command(name="oracles")
def oracles_command() -> None:
    """List the installed oracles: whether each can run here, from which packages, its roundings, and whether it was
    calibrated here."""
    import oracles
    from difftest.isolation.executors import Executors

    states: dict[str, tuple[str, str]] = {}
    emulations = oracles.emulations()
    with Executors() as executors:
        for name in oracles.names():
            able = "available, an emulation: run only when named" if name in emulations else "available"
            try:
                said = executors.of(name, REFERENCE).introduction
                numerics = describe.numerics_line(said.numerics)
                if said.missing is None:
                    numerics += "; not calibrated" if said.calibrated is None else f"; calibrated {said.calibrated}"
                packages = said.fingerprint.packages.items()
                of = ", ".join(" ".join(package) for package in packages if package[0] != "difftest")
                states[name] = said.missing or (f"{able} ({of})" if of else able), numerics
            except Exception as error:  # a third party's oracle: whatever it raises is its row, not our end
                states[name] = f"broken: {preflight.one_line(error)}", ""
    if not states:
        raise preflight.Missing("no oracle is installed; install difftest itself: pip install -e .")
    width = max(map(len, states))
    for name, (state, numerics) in states.items():
        click.echo(f"{name:<{width}}  {state}")
        if numerics:
            click.echo(f"{'':<{width}}  numerics: {numerics}")
