"""`difftest calibrate`: what it shows and keeps, and what it ends with."""

from __future__ import annotations

import itertools

import pytest

from difftest import calibration
from difftest.calibration import Calibration


def test_it_measures_and_says_what_and_where(difftest, tmp_path):
    result = difftest("calibrate", "grouped-mm", "--out", str(tmp_path / "out"))
    assert result.code == 0
    (path,) = (tmp_path / "out").iterdir()
    lines = result.out.splitlines()
    assert lines[0] == "grouped-mm:"
    assert lines[-1] == f"  saved: WORKDIR/out/{path.name}"
    assert "  gemm1  128 columns apart: 24 bits, to nearest" in lines
    assert Calibration.load(path).environment["oracle"] == "grouped-mm"


def test_the_list_of_oracles_tells_who_was_calibrated(difftest, tmp_path, monkeypatch):
    monkeypatch.setenv(calibration.VARIABLE, str(tmp_path))
    assert difftest("calibrate", "grouped-mm").code == 0
    lines = difftest("oracles").out.splitlines()
    (line,) = (after for before, after in itertools.pairwise(lines) if before.startswith("grouped-mm "))
    assert "; calibrated 20" in line
    (line,) = (after for before, after in itertools.pairwise(lines) if before.startswith("reference "))
    assert line.endswith("; not calibrated")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no-such-oracle"], 2, "oracle 'no-such-oracle' is not known"),
        (["grouped-mm", "--device", "abacus"], 2, "--device abacus:"),
    ],
)
def test_a_mistake_is_one_line(difftest, arguments, code, message):
    result = difftest("calibrate", *arguments)
    assert result.code == code
    assert message in result.err


def test_what_cannot_be_measured_is_told(difftest, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    result = difftest("calibrate", "kernels.py:Absent", "--out", str(tmp_path / "out"))
    assert result.code == 3
    assert result.out.startswith("kernels.py:Absent: left out: ")
    result = difftest("calibrate", "grouped-mm", "--out", str(file / "below"))
    assert result.code == 3
    assert result.out.startswith("grouped-mm: not measured: ")
