"""Private builds of FlashInfer's fused-MoE library: patched sources, made with the package's own JIT machinery.

`find` is what an oracle spec such as `cutlass@0.6.18+situ` asks for; `difftest.builds.make` makes one.
"""

from __future__ import annotations

from difftest.builds.store import Build, BuildNotFound, Manifest, Patch, find

__all__ = ["Build", "BuildNotFound", "Manifest", "Patch", "find"]
