"""Every command of the docs is run, in order, and ends as its page says."""

from __future__ import annotations

import contextlib
import glob
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from difftest.isolation.environment import Environment
from difftest.ledger import cases
from difftest.output import describe
from difftest.report import paths
from difftest.report.proof import Runner

DOCS = Path(__file__).parents[2] / "docs"
ENDS = {
    "difftest oracles": 0,
    "difftest run --candidate ggml-repacked": 0,  # all agree, but for the known cases
    "difftest run --candidate mine.py:Mine": 1,
    "difftest merge": 1,
    "difftest replay cases": 0,
    "pytest cases": 0,
    "difftest report": 0,
    "difftest explain": 0,
    "python upstream/repro.py": 1,
    "python mine-report/repro.py": 1,
    "difftest cases": 0,
}
"""By the command's beginning: how it ends."""


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def files(page: Path) -> dict[str, str]:
    return dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```', page.read_text(), re.DOTALL | re.MULTILINE))


def quoted(page: Path) -> list[str]:
    """What the page says that its commands print."""
    outside = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^    (.+)$", outside, re.MULTILINE)


Run = Callable[[str, list[str], str], tuple[int, str]]
"""Runs a module with arguments, as `python -P -m` does: its exit code, and what it prints into a file of that name."""


@contextlib.contextmanager
def forks(folder: Path, **variables: str) -> Iterator[Run]:
    """Inside, modules run in `folder`, in forks of one process that has torch (`forks.py`)."""
    # -P: the folder that stands for the checkout is not the package.
    start = [sys.executable, "-P", str(Path(__file__).with_name("forks.py"))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(start, cwd=folder, env=dict(os.environ) | variables, text=True, **pipes) as process:
        asked, told = process.stdin, process.stdout
        assert asked is not None
        assert told is not None

        def run(module: str, arguments: list[str], output: str) -> tuple[int, str]:
            print(json.dumps([module, arguments, output]), file=asked, flush=True)
            return int(told.readline()), (folder / output).read_text()

        yield run


def follow(page: Path, folder: Path) -> int:
    """Run the page's commands in `folder`; how many they are."""
    told = commands(page)
    with forks(folder) as run:
        for number, command in enumerate(told):
            program, *words = command.split()
            # The shell's part.
            arguments = [
                name for word in words for name in (glob.glob(word, root_dir=folder) if "*" in word else [word])
            ]
            if program == "python":  # a script stands alone
                script = [sys.executable, "-P", *arguments]
                done = subprocess.run(script, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
                code, output = done.returncode, done.stdout + done.stderr
            else:
                code, output = run(program, arguments, f"output-{number}.txt")
            (expected,) = (ends for start, ends in ENDS.items() if command.startswith(start))
            assert code == expected, f"{command}\n{output}"
    return len(told)


def test_the_tutorial(tmp_path: Path) -> None:
    page = DOCS / "tutorial.md"
    for name, text in files(page).items():
        (tmp_path / name).write_text(text)
    shutil.copytree(cases.SHIPPED, tmp_path / "difftest" / "suite" / "cases")
    assert follow(page, tmp_path) == 13
    told = "".join(file.read_text() for file in tmp_path.glob("output-*.txt"))
    for line in quoted(page):
        assert all(part in told for part in line.split("...")), line
    assert (tmp_path / "report.html").is_file()
    for folder in ("mine-report", "upstream"):
        assert {path.name for path in (tmp_path / folder).iterdir()} >= {"repro.py", "issue.md", "environment.json"}


def test_the_page_on_scale(tmp_path: Path) -> None:
    page = DOCS / "scale.md"
    for name, text in files(page).items():
        (tmp_path / name).write_text(text)
    assert follow(page, tmp_path) == 4
    assert len(list((tmp_path / "cases").glob("*.case.json"))) == len(list((tmp_path / "alone").glob("*.case.json")))


def test_the_picture_shows_the_shipped_case() -> None:
    drawn = re.sub(r"<[^>]*>", "", (DOCS / "finding.svg").read_text())
    text = " ".join(html.unescape(drawn).replace("\xa0", " ").split())
    (path,) = cases.SHIPPED.glob("ggml-repacked.reference.diverges.impossible-*")
    case = cases.load(path)
    assert case.found is not None
    for words in (case.found.command, case.outcome.detail, describe.scenario_line(case.scenario), path.name):
        assert words in text


RUN_ABOVE = ("tutorial.md", "scale.md")


@pytest.mark.parametrize("page", sorted(page for page in DOCS.glob("*.md") if page.name not in RUN_ABOVE))
def test_no_other_page_has_commands_that_nobody_runs(page: Path) -> None:
    assert commands(page) == []


SHOWN = [
    (page, line)
    for page in (DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")))
    for line in re.findall(r"^    (?:\$ )?difftest (.+)$", page.read_text(), re.MULTILINE)
    if not line.startswith("report cases/FINDING.case.json --out upstream")  # the tutorial's, where it has a case
]
ALONE: dict[str, tuple[int | None, str]] = {
    "replay difftest/suite/cases": (0, "STILL DIVERGES"),
    "build --version": (3, "there is no `patch` here"),
    "gate sm90": (3, "build 0.6.18+situ: not in"),
    "run --candidate router-torch --candidate sglang-router --examples 20": (None, "router-torch: agrees"),
    "run --candidate my_kernel.py:MyKernel --profile quick --examples 2": (0, "my_kernel.py:MyKernel: agrees 2"),
    "run --candidate ep2:grouped-mm --profile quick --examples 2": (0, "ep2:grouped-mm: agrees 2"),
    "run --candidate ep2:cutlass@0.7.0": (3, "there is no CUDA device here"),
    "campaign /shared/night": (3, ""),
}
"""By how a command begins, what is added to it so that it ends soon included: how it ends (None: it depends on what is
installed) and what it says on a machine without a GPU, a build and `patch`."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs modules in a folder that has what the commands name."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.copytree(cases.SHIPPED, folder / "difftest" / "suite" / "cases")
    kernel = "from oracles.grouped_mm import GroupedMM\n\n\nclass MyKernel(GroupedMM):\n    pass\n"
    (folder / "my_kernel.py").write_text(kernel)
    variables = {
        "PATH": str(Path(sys.executable).parent),
        "DIFFTEST_BUILDS": str(folder / "builds"),
        "HOME": str(folder),
    }
    with forks(folder, **variables) as run:
        yield run


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="it is about a machine without a GPU")
@pytest.mark.parametrize(("page", "line"), SHOWN, ids=lambda part: getattr(part, "name", part))
def test_a_command_that_is_shown_ends_as_it_should_here(page: Path, line: str, bare: Run) -> None:
    (start,) = (start for start in ALONE if start.startswith(line) or line.startswith(start))
    words = shlex.split(start if len(start) > len(line) else line, comments=True)
    expected, says = ALONE[start]
    code, output = bare("difftest", words, f"output-{SHOWN.index((page, line))}.txt")
    assert expected is None or code == expected, output
    assert says in " ".join(output.split())
    assert "Traceback" not in output


def test_the_benchmarks_that_are_named_are_there() -> None:
    pages = (DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *DOCS.glob("*.md"))
    named = {name for page in pages for name in re.findall(r"benchmarks/\w+\.py", page.read_text())}
    assert len(named) > 8
    assert [name for name in named if not (DOCS.parent / name).is_file()] == []


EXAMPLES = sorted(path for path in (DOCS / "examples").iterdir() if path.is_dir())


def test_there_are_reports_of_five_real_findings() -> None:
    assert len(EXAMPLES) >= 5
    page = (DOCS / "examples.md").read_text()
    for folder in EXAMPLES:
        assert f"(examples/{folder.name}/issue.md)" in page
        assert "**It " not in (folder / "issue.md").read_text()  # each reproduced when it was written
        cases.load(folder / "finding.case.json")


@pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
def test_a_report_names_no_path_of_the_machine_that_wrote_it(folder: Path) -> None:
    for file in folder.iterdir():
        text = file.read_text()
        if file.suffix != ".svg":  # its pixels are text in base 64
            assert paths.relative(text) == text, file
        assert not re.search(r"/(home|root|tmp|Users)/", text), file


@pytest.mark.parametrize(
    "folder", [path for path in EXAMPLES if path.name.startswith("ggml")], ids=lambda path: path.name
)
def test_a_report_runs_from_its_script_alone(folder: Path, tmp_path: Path) -> None:
    script = Path(shutil.copy(folder / "repro.py", tmp_path))
    here = Environment(name="", python=sys.executable, path=())
    proof = Runner(place=here, packages=("ggml-python",)).prove(script)
    assert proof.reproduced, proof.output


def test_the_kernel_of_the_docs_is_python() -> None:
    (text,) = files(DOCS / "kernel.md").values()
    compile(text, "my_kernel.py", "exec")
