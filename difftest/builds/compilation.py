"""From patched sources to a library: FlashInfer's generator, compilers, stubs for what is left out, linker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from difftest.builds import slim, toolkit
from difftest.builds.request import ARCHITECTURES, Request
from difftest.builds.store import SITE
from difftest.options import InvalidOption


class BuildFailed(RuntimeError):
    """The generator, a compiler or the linker failed. The message is one line and names the log."""


@dataclass(frozen=True)
class Made:
    """A library, the GEMM kernels in it, how many of the package's are not, and who compiled it."""

    library: Path
    instantiations: tuple[str, ...]
    left_out: int
    compiler: str


class Compilation:
    """The steps of one build in the folder `work`, each with its output in the log."""

    def __init__(self, request: Request, work: Path) -> None:
        self.request, self.work = request, work
        self.tools = toolkit.find()
        self.log = work / "build.log"
        self.stubs = work / "lib" / "left_out.o"

    def run(self, say: Callable[[str], None]) -> Made:
        """All steps. Raises InvalidOption for tiles that there are none of, Missing, and BuildFailed."""
        say(f"{self.work.name}: building with {self.tools.compiler}; log: {self.log}")
        plan = self.generate()
        kept, left_out = plan["instantiations"], plan["left_out"]
        say(f"{len(plan['objects'])} sources, {len(kept)} GEMM kernels, {len(left_out)} left out")
        self.compile(plan)
        return Made(self.link(plan), tuple(kept), len(left_out), self.tools.compiler)

    def generate(self) -> dict[str, Any]:
        """FlashInfer's own list of sources and flags, as a ninja file."""
        self.tools.stand_ins(self.work / "lib")
        only = self.request.only
        question = {
            "package": str(self.work / SITE / "flashinfer"),
            "arch": ARCHITECTURES[self.request.arch],
            "only": None if only is None else slim.request(only, self.request.tiles),
        }
        asked, answer = self.work / "request.json", self.work / "plan.json"
        asked.write_text(json.dumps(question))
        variables = self.tools.variables(self.work / "lib")
        if only is not None:
            variables["FLASHINFER_EXTRA_LDFLAGS"] += f" {self.stubs}"
        variables |= {
            "FLASHINFER_CUDA_ARCH_LIST": self.request.arch,
            "FLASHINFER_WORKSPACE_BASE": str(self.work / "jit"),
            "FLASHINFER_DISABLE_VERSION_CHECK": "1",
        }
        script = Path(__file__).with_name("generate.py")
        self._run("FlashInfer's generator", [sys.executable, str(script), str(asked), str(answer)], variables)
        plan: dict[str, Any] = json.loads(answer.read_text())
        if only is not None and not plan["instantiations"]:
            tiles = " ".join(self.request.tiles or ())
            raise InvalidOption(f"--tile: {self.request.name} has no GEMM kernel of {only.name} with tile {tiles}")
        return plan

    def compile(self, plan: dict[str, Any]) -> None:
        """All objects."""
        self._ninja("the compiler", plan, plan["objects"])

    def link(self, plan: dict[str, Any]) -> Path:
        """The shared object, with a stub for every function that was left out."""
        if self.request.only is not None:
            missing = slim.undefined(self._symbols(plan["objects"]))
            source = self.stubs.with_suffix(".cpp")
            source.write_text(slim.stubs(missing, self.request.only.name))
            command = [self.tools.cxx, "-O1", "-fPIC", "-c", str(source), "-o", str(self.stubs)]
            self._run("the compiler", command, {})
        self._ninja("the linker", plan, [])
        library = Path(plan["folder"]) / f"{self.request.module}.so"
        left = slim.undefined(self._symbols([str(library)]))
        if left:
            raise self._failed("the linker", f"{len(left)} functions have no definition, {left[0]} among them")
        self._check_target(library)
        return library

    def _check_target(self, library: Path) -> None:
        """All device code must be for the architecture that was asked for. What there is goes to `elf.txt`."""
        if self.tools.cuobjdump is None:
            return
        listing = self.work / "elf.txt"
        with open(listing, "w") as file:
            subprocess.run([self.tools.cuobjdump, "--list-elf", str(library)], stdout=file, check=True)
        target = f"sm_{self.request.arch.replace('.', '')}"
        targets = set(re.findall(r"\.(sm_\w+)\.cubin", listing.read_text()))
        if targets != {target}:
            raise self._failed("the compiler", f"{target} was asked for, and the library has {sorted(targets)}")

    def _symbols(self, files: list[str]) -> str:
        """What `nm -P` says of all of them."""
        return subprocess.run([self.tools.nm, "-P", *files], capture_output=True, text=True, check=True).stdout

    def _ninja(self, what: str, plan: dict[str, Any], targets: list[str]) -> None:
        command = [self.tools.ninja, "-v", "-j", str(self.request.jobs), "-C", plan["folder"], *targets]
        self._run(what, command, {})

    def _run(self, what: str, command: list[str], variables: dict[str, str]) -> None:
        with open(self.log, "a") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            log.flush()
            path = os.pathsep.join(filter(None, [str(self.work / SITE), os.environ.get("PYTHONPATH")]))
            done = subprocess.run(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path} | variables,
            )
        if done.returncode:
            raise self._failed(what, _trouble(self.log))

    def _failed(self, what: str, why: str) -> BuildFailed:
        return BuildFailed(f"{self.work.name}: {what} failed: {why}; log: {self.log}")


def _trouble(log: Path) -> str:
    """The last line of the log that says error, or the last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower() and not line.startswith(("$", "[", "FAILED"))]
    return (named or lines)[-1][:300]
