"""Leases are locks of files, so these tests need no device; each process holds its own."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from difftest.isolation import health, lease

FORK = multiprocessing.get_context("fork")


def holds(folder: Path, told: Connection) -> None:
    taken = lease._first_free(folder, {0: "a", 1: "b"})
    told.send((taken.index, taken.slot))
    signal.pause()


def test_workers_spread_over_devices_and_then_share_them(tmp_path):
    """The lowest free share of the device with the fewest; that of a process that was killed is free again."""
    holders = []
    try:
        for expected in ((0, 0), (1, 0), (0, 1)):
            here, there = FORK.Pipe()
            process = FORK.Process(target=holds, args=(tmp_path, there))
            process.start()
            holders.append(process)
            assert here.recv() == expected
        holders[1].kill()
        holders[1].join()
        mine = lease._first_free(tmp_path, {0: "a", 1: "b"})
        assert (mine.index, mine.slot) == (1, 0)
    finally:
        for process in holders:
            process.kill()
            process.join()


def test_shares_of_memory_leave_room_for_what_torch_does_not_count():
    total = 140 << 30
    for sharers in (1, 2, 8, 32):
        taken = sharers * (lease.memory_fraction(total, sharers) * total + (1 << 30))
        assert taken <= total * (1 + 1e-9)
        assert lease.memory_fraction(total, sharers) == pytest.approx((total / sharers - (1 << 30)) / total)
    assert lease.memory_fraction(8 << 30, 64) == 0.01  # so little that all fail, and say so


@pytest.fixture
def cards(monkeypatch):
    monkeypatch.setattr(lease, "devices", lambda: ["a", "b"])


def test_a_device_that_was_taken_out_is_leased_no_more(cards, tmp_path):  # noqa: ARG001
    locks, lost = tmp_path / "locks", tmp_path / "lost"
    assert lease.taken_out(lost) == {}
    lease.take_out(lost, "a", "it does not answer")
    mine = lease.take(locks, lost)
    assert (mine.index, mine.device) == (1, "b")
    assert lease.take(locks).device == "a"  # another run asks for itself
    lease.take_out(lost, "b", "nor does this")
    with pytest.raises(lease.NoDevice, match="no device is left: a: it does not answer; b: nor does this"):
        lease.take(locks, lost)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RuntimeError("CUDA error: device lost\nCompile with..."), "CUDA error: device lost"),
        (RuntimeError("CUDA error: out of memory"), None),
        (torch.OutOfMemoryError("no room"), None),
    ],
)
def test_what_a_new_process_cannot_use_is_unusable(error, told, monkeypatch):
    def ones(*_: object, **__: object):
        raise error

    monkeypatch.setattr(torch, "ones", ones)
    assert health.unusable(0) == told


def test_a_device_that_does_not_answer_is_unusable(monkeypatch):
    answered, ended = threading.Event(), threading.Event()

    def ones(*_: object, **__: object):
        answered.wait()
        ended.set()
        raise RuntimeError("too late")

    monkeypatch.setattr(torch, "ones", ones)
    monkeypatch.setattr(health, "PROBE_SECONDS", 0.1)
    assert health.unusable(0) == "no answer within 0.1 s"
    answered.set()
    assert ended.wait(60)
