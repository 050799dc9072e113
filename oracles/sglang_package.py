"""The installed sglang: its version, what lacks to run its kernels, and their import without the server.

`import sglang` brings the server with all it depends on. The kernels need little of it, so the packages on their path
are entered by name only, without running their `__init__`, and the few functions that they take from there are given
to them. Once the server itself was imported nothing is replaced.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from oracles import machine

INSTALL = "pip install 'difftest[sglang]'"
OLDEST = (0, 5, 23)
"""Before it, the kernels have other arguments."""
MODULES = "DIFFTEST_SGLANG_MODULES"
"""Environment variable: a folder with NAME.so that sglang's JIT has built elsewhere, NAME being its own name for the
module (as in its cache). What is not there is built as usual."""
E2M1 = 2 | 1 << 8 | 1 << 16 | 1 << 49
"""The package's number for E2M1: exponent and mantissa bits, signed, finite values only, and no NaN."""

_ENTERED = (
    "sglang",
    "sglang.srt",
    "sglang.srt.utils",
    "sglang.srt.layers",
    "sglang.srt.layers.moe",
    "sglang.srt.layers.moe.fused_moe_triton",
)


def module(name: str) -> Any:
    """A module of the package, which has no type hints to speak of. Raises ImportError."""
    if "sglang" not in sys.modules:
        _enter()
    return importlib.import_module(f"sglang.{name}")


def version() -> tuple[int, ...] | None:
    """The installed version, None without one. A suffix does not count: 0.5.23.post1 is 0.5.23."""
    try:
        text = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def missing_release() -> str | None:
    """Why the package is not there in a version that can be used, with the command that brings it; None when it is."""
    found = version()
    if found is None:
        return f"not installed: {INSTALL}"
    if found < OLDEST:
        return f"sglang is older than {'.'.join(map(str, OLDEST))}: {INSTALL} --upgrade"
    return None


def missing() -> str | None:
    """What the machine lacks to run the Marlin kernels, with the command that brings it; None when nothing does."""
    lacking = missing_release() or machine.missing_for_marlin()
    if lacking is not None:
        return lacking
    try:
        module("srt.layers.moe.fused_moe_triton.fused_marlin_moe")
    except (ImportError, OSError) as error:
        return f"sglang cannot be imported ({error}): {INSTALL}"
    if MODULES in os.environ or machine.has_nvcc():
        return None
    return f"sglang compiles its kernels when they are first used, and there is no nvcc (nor {MODULES})"


def _enter() -> None:
    """Make the packages importable. Raises ImportError when there is no sglang."""
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        raise ImportError("No module named 'sglang'")
    root = Path(next(iter(found.submodule_search_locations)))
    for name in _ENTERED:
        _add(name, __path__=[str(root.joinpath(*name.split(".")[1:]))])

    def is_cuda() -> bool:
        return True

    def cuda_version() -> tuple[int, ...]:
        return tuple(int(number) for number in str(torch.version.cuda).split("."))

    def register(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
        """In the place of the registration with torch's dispatcher: the function itself."""
        return function if function is not None else register

    sys.modules["sglang.srt.utils"].is_cuda = is_cuda  # type: ignore[attr-defined]
    _add("sglang.srt.utils.common", is_cuda=is_cuda, get_cuda_version=cuda_version)
    _add("sglang.srt.utils.custom_op", register_custom_op=register)
    _add("sglang.srt.runtime_context", get_platform=None)  # of a path that is not taken
    if importlib.util.find_spec("sgl_kernel") is None:
        _add("sgl_kernel", moe_sum_reduce=None)  # the same
    serve_built_modules()


def serve_built_modules() -> None:
    """Let sglang's JIT take what `MODULES` names from there."""
    folder = os.environ.get(MODULES)
    if folder is not None:
        # The kernels' own modules take this name from there when they are imported, which is later.
        jit = importlib.import_module("sglang.kernels.jit.utils")
        jit.load_jit = _Built(Path(folder), jit.load_jit)  # type: ignore[attr-defined]


def _add(name: str, **content: Any) -> None:
    made = ModuleType(name)
    vars(made).update(content)
    sys.modules[name] = made


class _Built:
    """In the place of sglang's `load_jit`: a module of `folder`, or what `load_jit` makes."""

    def __init__(self, folder: Path, load_jit: Callable[..., Any]) -> None:
        self._folder = folder
        self._load_jit = load_jit

    def __call__(self, *names: str, **keywords: Any) -> Any:
        path = self._folder / f"sgl_kernel_jit_{'_'.join(map(str, names))}.so"
        if not path.is_file():
            return self._load_jit(*names, **keywords)
        return importlib.import_module("tvm_ffi").load_module(str(path))
