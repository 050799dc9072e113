"""Candidates for the drills on a GPU: grouped-mm that breaks something on its device, by the rows of the batch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from oracles.grouped_mm import GroupedMM

FILE = Path(__file__)

WILD = """
extern "C" __global__ void wild(float* somewhere) { somewhere[1ll << 40] = 1; }
"""
SPIN = """
extern "C" __global__ void spin(volatile float* flag) { while (*flag >= 0) {} }
"""


def _launch(source, name):
    kernel = torch.cuda._compile_kernel(source, name)
    kernel(grid=(1, 1, 1), block=(1, 1, 1), args=[torch.ones(1, device="cuda")])


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def device_assert():
    """An index out of bounds, which torch's own kernel asserts on the device."""
    torch.zeros(4, device="cuda")[torch.full((1,), 9, device="cuda")]


def illegal_address():
    _launch(WILD, "wild")


def spins():
    _launch(SPIN, "spin")


def out_of_memory():
    torch.empty(1 << 44, dtype=torch.uint8, device="cuda")


ENDS = (killed, device_assert, illegal_address, spins, out_of_memory)
FIRST = 4
"""Rows of the batch that the first end is for."""


class Breaking(GroupedMM):
    """Breaks in its own way of each number of rows from `FIRST` on, before it answers."""

    runs_on = "cuda"

    def __call__(self, prepared):
        number = prepared.problem.tokens - FIRST
        if 0 <= number < len(ENDS):
            ENDS[number]()
        return super().__call__(prepared)


class Hungry(GroupedMM):
    """Takes 0.6 of the device for a batch of four rows."""

    runs_on = "cuda"

    def __call__(self, prepared):
        if prepared.problem.tokens == 4:
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
        return super().__call__(prepared)
