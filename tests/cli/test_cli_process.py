"""The command as a process of its own: signals, pipes, imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("workdir")

ENV = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
ENDLESS = ["run", "--candidate", "kernels.py:Right", "--profile", "quick", "--examples", "100000", "--seed", "7"]


def start(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "difftest", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENV,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which a job in the background ignores
    )


def wait_for_scenarios(path: Path, process: subprocess.Popen[str]) -> None:
    """Until a few scenarios are in the file of `--json`."""
    while process.poll() is None:
        if path.exists() and path.read_bytes().count(b"ScenarioFinished") >= 3:
            return
        time.sleep(0.02)
    pytest.fail(f"the run ended early: {process.communicate()}")


@pytest.mark.parametrize("args", [("--version",), ("--help",), ("run", "--help"), ("run", "--examples", "0")])
def test_torch_is_not_imported_for(args):
    code = (
        "import sys\nfrom difftest.cli import main\n"
        f"try:\n    main({list(args)!r})\nexcept SystemExit:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENV, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_with_130_and_a_summary(sent):
    """So does SIGTERM, which a batch system sends when the time is up."""
    process = start(*ENDLESS, "--json", "out.jsonl")
    wait_for_scenarios(Path("out.jsonl"), process)
    process.send_signal(sent)
    out, err = process.communicate()
    assert (process.returncode, err) == (130, "")
    assert "seed: 7" in out
    assert out.splitlines()[-1].startswith("exit 130: interrupted")
    assert json.loads(Path("out.jsonl").read_text().splitlines()[-1])["event"] == "RunInterrupted"


def test_a_killed_run_leaves_whole_lines():
    process = start(*ENDLESS, "--json", "out.jsonl")
    wait_for_scenarios(Path("out.jsonl"), process)
    process.kill()
    process.communicate()
    text = Path("out.jsonl").read_text()
    assert text.endswith("\n")
    assert [json.loads(line)["version"] for line in text.splitlines()]


def test_a_reader_that_goes_away_is_no_error_of_ours():
    process = start("oracles")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 141
