"""A share of a CUDA device, leased by file lock, so that workers spread over the devices of a machine."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import filelock
import torch

from difftest.files import write_whole
from difftest.isolation.environment import WorkerFailed

_CONTEXT_BYTES = 1 << 30
"""Device memory that a process takes beside what torch allocates: its context, and the kernels that it loads."""


class NoDevice(WorkerFailed):
    """All devices were taken out. The message is one line that says why."""


@dataclass(frozen=True)
class Lease:
    """index: the device, as torch counts. device: its UUID. slot: how many other shares of it were taken before. lock:
    held as long as this process lives, however it ends."""

    index: int
    device: str
    slot: int
    lock: filelock.BaseFileLock


def devices() -> list[str]:
    """The UUIDs of the devices that the process sees, as torch counts them: each process may count them in its own way
    (CUDA_VISIBLE_DEVICES)."""
    return [str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count())]


def take(folder: Path | None = None, lost: Path | None = None) -> Lease:
    """Lease a share of the device with the fewest shares taken. The process must see a device.

    folder: where the locks are, by default one for each user of the machine. lost: where the run notes the devices that
    were taken out (`take_out`). Raises `NoDevice` when that are all.
    """
    folder = folder or Path(tempfile.gettempdir()) / f"difftest-{os.getuid()}" / "devices"
    folder.mkdir(parents=True, exist_ok=True)
    out = taken_out(lost)
    left = {index: device for index, device in enumerate(devices()) if device not in out}
    if not left:
        raise NoDevice(f"no device is left: {'; '.join(f'{device}: {reason}' for device, reason in out.items())}")
    return _first_free(folder, left)


def take_out(lost: Path, device: str, reason: str) -> None:
    """Note that no process of the run is to use the device any more."""
    lost.mkdir(parents=True, exist_ok=True)
    write_whole(lost / device, reason)


def taken_out(lost: Path | None) -> dict[str, str]:
    """Why each device was taken out, by its UUID."""
    notes = sorted(lost.iterdir()) if lost is not None and lost.is_dir() else []
    return {note.name: note.read_text() for note in notes if not note.name.startswith(".")}


def _first_free(folder: Path, devices: Mapping[int, str]) -> Lease:
    for slot in itertools.count():
        for index, device in devices.items():
            lock = filelock.FileLock(folder / f"{device}.{slot}.lock")
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:
                continue
            return Lease(index, device, slot, lock)
    raise AssertionError("unreachable: slots do not end")


def memory_fraction(total: int, sharers: int) -> float:
    """The fraction of a device of `total` bytes that torch may allocate in each of `sharers` processes on it."""
    return max(0.01, (total / sharers - _CONTEXT_BYTES) / total)
