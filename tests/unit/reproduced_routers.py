"""Routers whose reproductions are the functions of `reproduced_router.py`: `reproduced_routers.py:FUNCTION`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oracles.router_torch import RouterTorch

FILE = Path(__file__)


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    fields = {"__module__": __name__, "name": name, "reproduction": f"reproduced_router.py:{name}"}
    return type(name, (RouterTorch,), fields)
