"""Property-based differential testing of fused mixture-of-experts kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difftest.engine import check

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    """`check` on first use: `import difftest`, which the pytest plugin does in every run, must not import torch."""
    if name in __all__:
        from difftest import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
