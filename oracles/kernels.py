"""Whether kernels of our own can run: of Triton, which comes with torch for CUDA. On a GPU they take one pass
over memory in place of many, and compute what the torch code beside them does."""

from __future__ import annotations

import functools
import importlib.util
import shutil


@functools.cache
def usable() -> bool:
    """Whether there is Triton, and the C compiler with which it makes what launches a kernel."""
    return importlib.util.find_spec("triton") is not None and any(map(shutil.which, ("cc", "gcc", "clang")))
