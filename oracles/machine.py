"""What several kernel packages need of the machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import torch


def has_nvcc() -> bool:
    """Whether CUDA's compiler is there, for a package that builds its kernels when they are first used."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") is not None or (Path(home) / "bin" / "nvcc").is_file()


def missing_for_marlin() -> str | None:
    """Why no Marlin kernel runs here, whoever ships it; None when nothing is against it."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    return f"Marlin needs a device of SM80 or later, and this one is SM{major}{minor}" if major < 8 else None
