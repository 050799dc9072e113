"""Whether kernels of our own can run: of Triton, which comes with torch for CUDA. On a GPU they take one pass over
memory in the place of many, and compute what the torch code beside them does."""

from __future__ import annotations

import functools
import importlib.util
import logging

import torch

LARGE = 1 << 13
"""Elements from which kernels are used. With fewer they are as quick, but a case of few tokens that is run by itself
would have to load them: each process does so anew."""

_LOOK = 1 << 22
"""Elements of float64 that a GPU passes over in about the time that it takes to begin."""

_log = logging.getLogger(__name__)


def worth(value: torch.Tensor) -> bool:
    """Whether `value` is on a GPU, and so large that one launch in the place of several is worth a kernel."""
    return value.is_cuda and value.numel() >= LARGE and usable()


def look_first(value: torch.Tensor) -> bool:
    """Whether to look at a tensor before passes over `value` that may not be needed, as it pays mostly. A GPU would be
    waited for, and what other processes have asked of it: longer than it takes to do without."""
    return not value.is_cuda or value.numel() >= _LOOK


@functools.cache
def usable() -> bool:
    """Whether one could be made and launched on this process's GPU: Triton needs a C compiler, Python's headers and a
    folder to write to for that."""
    if importlib.util.find_spec("triton") is None:
        return False
    from oracles import formats_triton  # of a package that comes with torch for CUDA alone

    try:
        formats_triton.round_to(torch.zeros(1, dtype=torch.float64, device="cuda"), "float32")
    except Exception as error:  # of the compiler, of the file system: whatever it lacks
        _log.warning("Triton makes no kernel here (%s): large cases take longer", " ".join(str(error).split())[:200])
        return False
    return True
