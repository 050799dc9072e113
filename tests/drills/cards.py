"""Two cards that are not there, each of which fails for good at its third case; and a candidate that runs on them.

Whoever loads this has them in the place of CUDA: to be loaded in processes of a drill alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from difftest.isolation import health, lease
from oracles.grouped_mm import GroupedMM

CARDS = ("GPU-a", "GPU-b")
NOTES = Path(os.environ["DIFFTEST_DRILL"])


class Properties:
    total_memory = 1 << 37


def broken(index):
    return f"CUDA error: {CARDS[index]} fell off the bus" if (NOTES / CARDS[index]).exists() else None


current = 0


def set_device(index):
    global current
    current = index


torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: len(CARDS)
torch.cuda.set_device = set_device
torch.cuda.synchronize = lambda _index: None
torch.cuda.get_device_properties = lambda _index: Properties
torch.cuda.set_per_process_memory_fraction = lambda _fraction, _index: None
torch.cuda.get_device_capability = lambda: (9, 0)
torch.cuda.get_device_name = lambda: "a card"
lease.devices = lambda: list(CARDS)
health.unusable = broken
health.sticky_error = lambda index: broken(index) and "launch failed"


class Card(GroupedMM):
    """Notes on which card each case was answered."""

    runs_on = "cuda"
    calls = 0

    def __call__(self, prepared):
        self.calls += 1
        if self.calls == 3:
            (NOTES / CARDS[current]).touch()
        if broken(current):
            raise RuntimeError("CUDA error: unspecified launch failure")
        with (NOTES / "answered").open("a") as file:
            file.write(f"{CARDS[current]}\n")
        return super().__call__(prepared)
