"""Where an oracle's packages come from: an interpreter, and what is put before them. No torch.

Two versions of one package cannot share a process, and an oracle's pins need not be those of difftest. A spec may
therefore name an environment: `cutlass@0.6.18+situ` is the oracle `cutlass` in the build of that name (see
`difftest.builds`), `marlin@/path/to/python` the oracle `marlin` in another interpreter.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

_BUILD = re.compile(r"\d[\w.]*(\+[\w.-]+)*")
"""A version, and the patches that were applied to it."""

_ASK = """
import importlib.metadata, json, sys
try:
    version = importlib.metadata.version("difftest")
except importlib.metadata.PackageNotFoundError:
    version = None
print(json.dumps([sys.path, version]))
"""


class EnvironmentNotFound(LookupError):
    """A spec names an environment that is not there. The message is one line that says how it is made."""


class WorkerFailed(RuntimeError):
    """The process of a candidate does not start. The message is one line that says whose, and how it ends."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """name: as the spec has it, "" for this process's own. python: the interpreter. path: the whole `sys.path` of a
    process in it. variables: set in the process before anything of the oracle is imported. build: what a case says
    of its build, so that it is known what was asked."""

    name: str
    python: str
    path: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    build: Mapping[str, str] = field(default_factory=dict)


def split(spec: str) -> tuple[str, str]:
    """(oracle, name of its environment) of a spec; the name is "" where the spec has none.

    What follows the last @ is an environment when it reads as a version or as a path; else it is part of the oracle.
    """
    oracle, _, name = spec.rpartition("@")
    if oracle and (name.startswith(("/", "./", "../", "~")) or _BUILD.fullmatch(name)):
        return oracle, name
    return spec, ""


def of(spec: str) -> tuple[str, Environment]:
    """(the oracle's spec inside of its environment, the environment). Raises `EnvironmentNotFound`."""
    oracle, name = split(spec)
    if not name:
        return oracle, Environment(name="", python=sys.executable, path=tuple(sys.path))
    if _BUILD.fullmatch(name):
        return oracle, _build(spec, name)
    return oracle, Environment(name=name, python=name, path=_path_of(spec, name))


def _build(spec: str, name: str) -> Environment:
    from difftest import builds

    try:
        build = builds.find(name)
    except builds.BuildNotFound as error:
        raise EnvironmentNotFound(f"oracle {spec!r}: {error}") from None
    return Environment(
        name=name,
        python=sys.executable,
        path=(*map(str, build.path), *sys.path),
        variables=build.variables,
        build={
            "name": build.name,
            "arch": build.manifest.arch,
            "library": build.manifest.sha256,
            **{f"patch {patch.name}": patch.sha256 for patch in build.manifest.patches},
        },
    )


@functools.cache
def _path_of(spec: str, python: str) -> tuple[str, ...]:
    """What `sys.path` is in another interpreter, which must have this version of difftest."""
    if shutil.which(python) is None:
        raise EnvironmentNotFound(f"oracle {spec!r}: there is no interpreter {python}")
    try:
        done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True, timeout=60)
        path, version = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise EnvironmentNotFound(f"oracle {spec!r}: {python} is no Python that runs: {_told(error)}") from None
    ours = importlib.metadata.version("difftest")
    if version != ours:
        has = "has no difftest" if version is None else f"has difftest {version}, and this one is {ours}"
        raise EnvironmentNotFound(f"oracle {spec!r}: {python} {has}: {python} -m pip install difftest=={ours}")
    return tuple(path)


def _told(error: Exception) -> str:
    words = getattr(error, "stderr", None) or str(error)
    lines = [line for line in words.splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
