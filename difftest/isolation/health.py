"""Whether a device still works after a case that may have broken it."""

from __future__ import annotations

import ctypes
import threading

import torch

_NAMES = {"assert": "device assert"}


PROBE_SECONDS = 120.0
"""For a process that has just started to make a context on a device and use it, with others that do the same."""


def unusable(device: int) -> str | None:
    """Why a process that has just started cannot use the CUDA device, in one line; None when it can. A device whose
    memory is taken works."""
    told: list[str | None] = []

    def probe() -> None:
        try:
            told.append(None if _adds_up(device) else "1 + 1 is not 2 on it")
        except torch.OutOfMemoryError:
            told.append(None)
        except RuntimeError as error:
            line = str(error).splitlines()[0]
            told.append(None if "out of memory" in line else line)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return told[0] if told else f"no answer within {PROBE_SECONDS:g} s"


def _adds_up(device: int) -> bool:
    """Does a small piece of work on the device, and waits for all that it has to do. Raises what CUDA raises."""
    works = torch.ones(1, device=f"cuda:{device}").add_(1).item() == 2
    torch.cuda.synchronize(device)
    return works


def sticky_error(device: int) -> str | None:
    """The error for which this process can no longer use the CUDA device ("illegal address"); None when it works.

    Does a small piece of work on the device and waits for all that it has to do. When that fails, the driver is asked
    what state the context is in: it answers every call with the error that broke it. One that it does not repeat was
    the last call's own.
    """
    try:
        works = _adds_up(device)
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        works = True
    except RuntimeError:
        works = False
    if works:
        return None
    driver = ctypes.CDLL("libcuda.so.1")
    code = driver.cuCtxSynchronize()
    if code == 0:
        return None
    name = ctypes.c_char_p()
    driver.cuGetErrorName(code, ctypes.byref(name))
    words = (name.value or f"CUDA_ERROR_{code}".encode()).decode().removeprefix("CUDA_ERROR_").lower().replace("_", " ")
    return _NAMES.get(words, words)
