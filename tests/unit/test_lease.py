"""Leases are locks of files, so these tests need no device; each process holds its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from difftest.isolation import lease

HOLDS = """
import sys, time
from pathlib import Path
from difftest.isolation.lease import _first_free
taken = _first_free(Path(sys.argv[1]), ["a", "b"])
print(taken.index, taken.slot, flush=True)
time.sleep(3600)
"""


def test_workers_spread_over_devices_and_then_share_them(tmp_path):
    """The lowest free share of the device with the fewest; that of a process that was killed is free again."""
    holders = []
    try:
        for expected in ("0 0", "1 0", "0 1"):
            process = subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdout=subprocess.PIPE, text=True)
            holders.append(process)
            assert process.stdout.readline().strip() == expected
        holders[1].kill()
        holders[1].wait()
        mine = lease._first_free(tmp_path, ["a", "b"])
        assert (mine.index, mine.slot) == (1, 0)
    finally:
        for process in holders:
            process.kill()
            process.wait()


def test_shares_of_memory_leave_room_for_what_torch_does_not_count():
    total = 140 << 30
    for sharers in (1, 2, 8, 32):
        taken = sharers * (lease.memory_fraction(total, sharers) * total + (1 << 30))
        assert taken <= total * (1 + 1e-9)
        assert lease.memory_fraction(total, sharers) == pytest.approx((total / sharers - (1 << 30)) / total)
    assert lease.memory_fraction(8 << 30, 64) == 0.01  # so little that all fail, and say so
