"""The installed flashinfer-python: its version, what lacks to run its kernels, and its list of GEMM tactics.

Nothing of the package is imported before it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import re
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oracles import machine

INSTALL = "pip install 'difftest[flashinfer]'"
OLDEST = (0, 6, 17)
"""Before it, the SM90 helpers and the caller's workspace have other forms."""
LISTS_SITU = (0, 6, 18)
"""The first with `ActivationType.Situ`, and with a runner that tells the tactics."""


def module(name: str) -> Any:
    """A module of the package, which has no type hints to speak of."""
    return importlib.import_module(f"flashinfer.{name}")


def version() -> tuple[int, ...] | None:
    """The installed version, None without one. A suffix does not count: 0.7.0rc1 is 0.7.0."""
    if importlib.util.find_spec("flashinfer") is None:
        return None
    try:
        text = importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def device_for(tensor: torch.Tensor) -> torch.device:
    """The tensor's own CUDA device, or the current one for a tensor of the CPU."""
    return tensor.device if tensor.is_cuda else torch.device("cuda", torch.cuda.current_device())


def current(device: torch.device) -> AbstractContextManager[None]:
    """Make `device` the current one: the package's helpers launch there, wherever their tensors are."""
    return torch.cuda.device(device)


@functools.cache
def compute_capability() -> tuple[int, int] | None:
    """That of the first visible GPU, None without one. Asks the driver's tool: a CUDA context would be left here, in
    whatever process wants to know what the oracle promises."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if visible:
        command.append(f"--id={visible.split(',')[0]}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        major, minor = done.stdout.split()[0].split(".")
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
    return int(major), int(minor)


def missing() -> str | None:
    """What the machine lacks to run the kernels, with the command that brings it; None when nothing does."""
    found = version()
    if found is None:
        return f"not installed: {INSTALL}"
    if found < OLDEST:
        return f"flashinfer-python is older than {'.'.join(map(str, OLDEST))}: {INSTALL} --upgrade"
    if not torch.cuda.is_available():
        return "no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) != (9, 0) and major != 12:
        return f"needs a device of SM90 (bf16 x MXFP4) or SM120 (MXFP8 x MXFP4), and this one is SM{major}{minor}"
    try:
        module("fused_moe")
    except (ImportError, OSError, RuntimeError) as error:  # its version guard raises RuntimeError
        return f"flashinfer cannot be imported ({error}): {INSTALL} --force-reinstall"
    arch = f"{major}0"
    built = _is_built(f"fused_moe_{arch}") or machine.has_nvcc()
    return None if built else f"FlashInfer's SM{arch} kernels are not built, and there is no nvcc"


def has_situ_parameters() -> bool:
    """Whether `cutlass_fused_moe` takes `situ_beta` and `situ_linear_beta`: from 0.7.0 on, and in a patched 0.6.18."""
    return "situ_beta" in _parameters(module("fused_moe").cutlass_fused_moe)


@functools.cache
def _parameters(function: Callable[..., object]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _is_built(name: str) -> bool:
    """Whether FlashInfer has the module, prebuilt or in its cache."""
    env = module("jit.env")
    folders = (env.FLASHINFER_AOT_DIR, env.FLASHINFER_JIT_DIR)
    return any((Path(folder) / name / f"{name}.so").is_file() for folder in folders)


@dataclass(frozen=True)
class Tactics:
    """The GEMM tactics of bfloat16 x MXFP4 on SM90. count: those of GEMM1; GEMM2's follow in the package's list."""

    runner: Any
    count: int

    @classmethod
    def number(cls) -> int:
        """How many a scenario may choose from: none where the package has no runner that tells them."""
        return cls.load().count if (version() or OLDEST) >= LISTS_SITU else 0

    @classmethod
    def load(cls) -> Tactics:
        options = dict.fromkeys(
            (
                "enable_alltoall",
                "use_deepseek_fp8_block_scale",
                "use_mxfp8_act_scaling",
                "min_latency_mode",
                "enable_pdl",
                "use_packed_weights",
                "use_wfp4afp8_humming",
            ),
            False,
        )
        runner = (
            module("fused_moe.core")
            .get_cutlass_fused_moe_module("90")
            .MoERunner(
                x_dtype=torch.bfloat16,
                weight_dtype=torch.uint8,
                output_dtype=torch.bfloat16,
                top_k=1,
                tp_size=1,
                tp_rank=0,
                ep_size=1,
                ep_rank=0,
                cluster_size=1,
                cluster_rank=0,
                use_w4_group_scaling=True,
                use_fused_finalize=True,
                activation_type=module("fused_moe").ActivationType.Swiglu,
                **options,
            )
            .fused_moe_runner
        )
        return cls(runner=runner, count=int(runner.get_gemm1_tactic_count()))

    def choose(self, tactic: int, hidden: int, intermediate: int) -> list[int]:
        """[GEMM1's, GEMM2's] absolute index: `tactic`, counted round in the list of those that fit the shape."""
        first = self.runner.get_valid_tactics_for_shape(1, 2 * intermediate, hidden)
        second = self.runner.get_valid_tactics_for_shape(2, hidden, intermediate)
        return [int(first[tactic % len(first)]), int(second[tactic % len(second)])]
