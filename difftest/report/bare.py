"""Runs a script as if difftest were not installed, and notes the environment that it ran in.

usage: python bare.py [--enter MODULE:FUNCTION] SCRIPT ENVIRONMENT_JSON PACKAGE... Exits as the script does. The
function, of an oracle's, makes its package importable where that alone would not be, and is called before difftest is
hidden. Stands alone: it must not bring in what it hides.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import runpy
import sys
from pathlib import Path
from typing import Any

_HIDDEN = ("difftest", "oracles", "strategies")
_VARIABLES = (
    "CUDA",
    "CUBLAS",
    "FLASHINFER",
    "GGML",
    "NCCL",
    "NVIDIA_TF32",
    "OMP_",
    "PYTORCH",
    "SGLANG",
    "TORCH",
    "TRITON",
    "VLLM",
)
"""Beginnings of the names of variables that may change an answer."""


def _environment(packages: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "packages": {name: _version(name) for name in dict.fromkeys(("torch", *packages))},
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)},
        "libraries": _libraries(packages),
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        driver = Path("/proc/driver/nvidia/version")
        found["gpu"] = {
            "name": device.name,
            "capability": f"{device.major}.{device.minor}",
            "memory": device.total_memory,
            "cuda": torch.version.cuda,
            "driver": _driver(driver.read_text()) if driver.is_file() else "unknown",
        }
    return found


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of no known version"


def _driver(told: str) -> str:
    """Its version, which comes after the words and the architecture that it is for."""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", told)
    return found.group(1) if found else "unknown"


def _processor() -> str:
    """What it calls itself, its architecture, and the vector instructions that torch uses."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    torch = sys.modules.get("torch")
    vectors = "" if torch is None else f", {torch.backends.cpu.get_cpu_capability()}"
    return f"{model} ({platform.machine()}{vectors})"


def _libraries(packages: list[str]) -> dict[str, str]:
    """sha256 of the shared objects in this process whose path names one of `packages`, or that a package compiled when
    it was first called."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.is_file() else []
    loaded = sorted({parts[5] for parts in (line.split(maxsplit=5) for line in lines) if len(parts) > 5})
    names = [name.replace("-", "_").split("_")[0] for name in packages if name != "torch"]
    marks = [*names, "fused_moe", "sgl_kernel"]
    kernels = [path for path in loaded if ".so" in path and any(mark in path for mark in marks)]
    return {Path(path).name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in kernels}


def _hide() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in _HIDDEN:
            del sys.modules[name]
    for name in _HIDDEN:
        sys.modules[name] = None  # type: ignore[assignment]  # how Python is told that an import must fail


def main(script: str, environment: str, *packages: str, enter: str = "") -> None:
    if enter:
        module, _, function = enter.partition(":")
        getattr(importlib.import_module(module), function)()
    _hide()
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        Path(environment).write_text(json.dumps(_environment(list(packages)), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder
    arguments = sys.argv[1:]
    entered = arguments[1] if arguments[0] == "--enter" else ""
    main(*(arguments[2:] if entered else arguments), enter=entered)
