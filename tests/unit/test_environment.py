from __future__ import annotations

import sys
from pathlib import Path

import pytest

from difftest import builds
from difftest.isolation import environment
from difftest.isolation.environment import EnvironmentNotFound


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("cutlass", ("cutlass", "")),
        ("cutlass@0.6.18", ("cutlass", "0.6.18")),
        ("cutlass-graph@0.7.0rc1+situ+fix-2", ("cutlass-graph", "0.7.0rc1+situ+fix-2")),
        ("marlin@/opt/sglang/bin/python", ("marlin", "/opt/sglang/bin/python")),
        ("marlin@../venv/bin/python", ("marlin", "../venv/bin/python")),
        ("my@2/kernels.py:Kernel", ("my@2/kernels.py:Kernel", "")),
        ("my@2/kernels.py:Kernel@0.7.0", ("my@2/kernels.py:Kernel", "0.7.0")),
        ("@0.7.0", ("@0.7.0", "")),
    ],
)
def test_what_follows_the_last_at_is_an_environment_when_it_reads_as_one(spec, parts):
    assert environment.split(spec) == parts


def test_without_one_it_is_that_of_this_process():
    oracle, here = environment.of("ggml")
    assert (oracle, here.name, here.python, here.path) == ("ggml", "", sys.executable, tuple(sys.path))


def test_a_build_goes_first_on_the_path(monkeypatch):
    patch = builds.Patch(name="situ", sha256="1" * 64)
    manifest = builds.Manifest(
        version="0.6.18",
        patches=(patch,),
        arch="9.0a",
        library="a.so",
        sha256="2" * 64,
        sources="",
        compiler="",
        created="",
    )
    build = builds.Build(Path("/store/it"), manifest)
    monkeypatch.setattr(builds, "find", {"0.6.18+situ": build}.__getitem__)
    oracle, place = environment.of("cutlass@0.6.18+situ")
    assert oracle == "cutlass"
    assert place.path == (str(build.path[0]), *sys.path)
    assert place.variables == build.variables
    assert place.build == {"name": "0.6.18+situ", "arch": "9.0a", "library": "2" * 64, "patch situ": "1" * 64}


def test_a_build_that_is_not_there_is_one_line_that_says_how_to_make_it(tmp_path, monkeypatch):
    monkeypatch.setenv("DIFFTEST_BUILDS", str(tmp_path))
    with pytest.raises(EnvironmentNotFound, match=r"^oracle 'cutlass@0\.6\.18': .*difftest build[^\n]*$"):
        environment.of("cutlass@0.6.18")


def test_another_interpreter_has_its_own_path():
    oracle, place = environment.of(f"ggml@{sys.executable}")
    assert (oracle, place.python) == ("ggml", sys.executable)
    assert any("site-packages" in entry for entry in place.path)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (None, "there is no interpreter"),
        ("exit 3", "is no Python that runs"),
        ("echo '[[], null]'", "has no difftest: .* -m pip install difftest=="),
        ("echo '[[], \"0.0.1\"]'", "has difftest 0.0.1, and this one is"),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_one_line(tmp_path, program, message):
    python = tmp_path / "python"
    if program is not None:
        python.write_text(f"#!/bin/sh\n{program}\n")
        python.chmod(0o755)
    with pytest.raises(EnvironmentNotFound, match=message):
        environment.of(f"ggml@{python}")
