"""HypoFuzz on the suite: what it finds is shrunk and saved like any finding."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from difftest.ledger import cases
from difftest.options import Options
from difftest.plugin import fuzzing
from difftest.plugin.session import SUITE
from strategies import Scenario, Shape

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("workdir")
ASKED = [str(SUITE / "fuzz_moe.py"), "--candidate", "kernels.py:Rejects", "--profile", "quick", "--cases", "found"]
HYPOTHESIS = "from hypothesis.extra.cli import main; main()"
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def found() -> list[cases.Case]:
    return [cases.load(path) for path in cases.paths(Path("found"))]


def test_a_new_finding_fails_the_property_and_is_saved_shrunk(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(Path().absolute()))
    options = Options(candidates=("kernels.py:Rejects",), profile="quick", examples=8, seed=1, cases=Path("found"))
    fuzzing.begin(options, ())
    for tokens in (3, 2, 3):
        with pytest.raises(AssertionError, match=r"kernels\.py:Rejects rejected \(RuntimeError: no kernel"):
            fuzzing.judge(Scenario(shape=Shape(tokens=tokens)))
    (case,) = found()
    assert case.scenario.shape.tokens == 0
    assert case.explanation
    fuzzing.begin(options, cases.paths(Path("found")))
    fuzzing.judge(Scenario(shape=Shape(tokens=3)))  # as a known case

    for path in cases.paths(Path("found")):
        path.unlink()
    assert re.fullmatch(rf"{os.getppid()}-\d+", fuzzing._parent())
    monkeypatch.setattr(fuzzing, "_parent", lambda: f"{os.getppid()}-later")  # another fuzzer that got the same number
    fuzzing.begin(options, ())
    with pytest.raises(AssertionError):
        fuzzing.judge(Scenario(shape=Shape(tokens=3)))
    assert len(found()) == 1


def test_the_property_is_collected_where_it_is_named(pytester, workdir):
    pytester.makepyfile(kernels=(workdir / "kernels.py").read_text())
    done = pytester.runpytest("-q", "--collect-only", "-p", "no:cacheprovider", *ASKED)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["*fuzz_moe.py::test_moe"])


@pytest.mark.skipif(importlib.util.find_spec("hypofuzz") is None, reason="HypoFuzz is not installed: tox run -e fuzz")
def test_hypofuzz_finds_shrinks_and_saves():
    log = Path("fuzz.log").open("wb")  # noqa: SIM115  # the process has it
    command = [sys.executable, "-c", HYPOTHESIS, "fuzz", "-n", "1", "--no-dashboard", "--", *ASKED]
    fuzzer = subprocess.Popen(command, env=ENV, stdout=log, stderr=log, start_new_session=True)
    try:
        while not any(case.explanation for case in found()):
            assert fuzzer.poll() is None, Path("fuzz.log").read_text()
            time.sleep(0.2)
        database = Path(".hypothesis", "examples")
        while not database.is_dir():  # where it keeps what it learned, for the next night
            assert fuzzer.poll() is None, Path("fuzz.log").read_text()
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(fuzzer.pid, signal.SIGKILL)
        fuzzer.wait()
    assert len(found()) == 1
