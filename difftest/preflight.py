"""What must hold before a run starts, so that it does not fail at its end. No torch until an oracle is looked up."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from difftest.options import REFERENCE, InvalidOption, Options


class Missing(RuntimeError):
    """Something that the run needs is not on this machine. The message is one line with the command that brings it."""


def check(options: Options, *, elsewhere: bool = False) -> None:
    """Look up every oracle and the folder of cases. Raises `InvalidOption` or `Missing`.

    elsewhere: other machines run it, and say themselves what they lack.
    """
    check_cases(options.cases)
    check_oracle("--reference", options.reference)
    for spec in options.candidates:
        check_oracle("--candidate", spec)
    check_kinds(options)
    if not elsewhere:
        check_device(options.device)
        check_required(options.require)


def check_device(name: str | None) -> None:
    """Raises `Missing` where tensors are to be on a GPU and there is none. Devices are counted, without a context."""
    import torch

    if name is not None and torch.device(name).type == "cuda" and not torch.cuda.device_count():
        raise Missing(f"--device {name}: there is no CUDA device here; leave it out, or run where there is one")


def check_kinds(options: Options) -> None:
    """Raises `InvalidOption` unless all candidates are of a layer, or all are routers and judged by the recipe."""
    import oracles
    from difftest.isolation import environment

    # What is in another environment only its own process can load: it says so itself if it is of another kind.
    here = [spec for spec in (*options.candidates, options.reference) if not environment.split(spec)[1]]
    routers = {spec: oracles.is_router(oracles.find(spec)) for spec in here}
    reference = routers.pop(options.reference)
    if all(routers.values()):
        if options.reference != REFERENCE:
            raise InvalidOption(f"--reference {options.reference}: must be {REFERENCE!r} for routers")
        return
    wrong = next((spec for spec, router in routers.items() if router), None)
    if wrong is not None:
        raise InvalidOption(f"--candidate {wrong}: is a router, others are not; run routers in a campaign of their own")
    if reference:
        raise InvalidOption(f"--reference {options.reference}: is a router, the candidates are not")


def check_layers(options: Options) -> None:
    """Raises `InvalidOption` unless all candidates are of a layer, as far as this process can tell."""
    import oracles
    from difftest.isolation import environment

    for spec in options.candidates:
        if not environment.split(spec)[1] and oracles.is_router(oracles.find(spec)):
            raise InvalidOption(f"--candidate {spec}: is a router; a recorded call is of a layer")


def check_cases(folder: Path) -> None:
    """Raises `InvalidOption` unless case files can be written into `folder`, which need not exist yet."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InvalidOption(f"--cases {folder}: {nearest} is not a folder; name one that can be written")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidOption(
            f"--cases {folder}: {nearest} cannot be written; name a folder that can, or change its mode"
        )


def check_oracle(flag: str, spec: str) -> None:
    """Raises `InvalidOption` unless `spec` names an oracle that can be made and asked, as far as this process can."""
    import oracles
    from difftest.isolation import environment

    if flag == "--reference" and environment.split(spec)[1]:
        raise InvalidOption(f"{flag} {spec}: must be of no environment, since it runs in each candidate's")

    try:
        missing(spec)
    except oracles.OracleNotFound as error:
        raise InvalidOption(f"{flag}: {one_line(error)}") from None
    except (Exception, SystemExit) as error:  # the oracle's own code; whatever it raises, the user gets one line
        raise InvalidOption(f"{flag}: oracle {spec!r} fails: {type(error).__name__}: {one_line(error)}") from None


def check_required(specs: Iterable[str]) -> None:
    """Raises `Missing` unless each of the oracles can run here."""
    for spec in specs:
        check_oracle("--require", spec)
        reason = missing(spec)
        if reason is not None:
            raise Missing(f"--require {spec}: {reason}")


def missing(spec: str) -> str | None:
    """What the machine lacks to run the oracle; None when it can, or when only its own process can tell."""
    import oracles
    from difftest.isolation import environment
    from difftest.isolation.executors import needs_gpu

    if environment.split(spec)[1]:
        try:
            environment.of(spec)
        except environment.EnvironmentNotFound as error:
            return one_line(error)
        return None
    return None if needs_gpu(spec) else oracles.missing_of(oracles.find(spec))


def one_line(error: BaseException) -> str:
    """The message of an exception, its line breaks made blanks."""
    return " ".join(str(error).split()) or type(error).__name__
