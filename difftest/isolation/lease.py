"""A share of a CUDA device, leased by file lock, so that workers spread over the devices of a machine."""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import filelock
import torch

_CONTEXT_BYTES = 1 << 30
"""Device memory that a process takes beside what torch allocates: its context, and the kernels that it loads."""


@dataclass(frozen=True)
class Lease:
    """index: the device, as torch counts. slot: how many other shares of it were taken before. lock: held as long as
    this process lives, however it ends."""

    index: int
    slot: int
    lock: filelock.BaseFileLock


def take(folder: Path | None = None) -> Lease:
    """Lease a share of the device with the fewest shares taken. The process must see a device.

    folder: where the locks are, by default one for each user of the machine. Devices are known by their UUID, since
    each process may count them in its own way (CUDA_VISIBLE_DEVICES).
    """
    folder = folder or Path(tempfile.gettempdir()) / f"difftest-{os.getuid()}" / "devices"
    folder.mkdir(parents=True, exist_ok=True)
    uuids = [torch.cuda.get_device_properties(index).uuid for index in range(torch.cuda.device_count())]
    return _first_free(folder, [str(uuid) for uuid in uuids])


def _first_free(folder: Path, devices: list[str]) -> Lease:
    for slot in itertools.count():
        for index, device in enumerate(devices):
            lock = filelock.FileLock(folder / f"{device}.{slot}.lock")
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:
                continue
            return Lease(index, slot, lock)
    raise AssertionError("unreachable: slots do not end")


def memory_fraction(total: int, sharers: int) -> float:
    """The fraction of a device of `total` bytes that torch may allocate in each of `sharers` processes on it."""
    return max(0.01, (total / sharers - _CONTEXT_BYTES) / total)
