"""Run FlashInfer's own generator for its fused-MoE module, and write down what it says. A script, not a module.

It runs under the Python that the library is built for, with the overlay first on sys.path, and imports nothing of
difftest: `python generate.py REQUEST ANSWER`, both JSON files.

Request: package (the folder `flashinfer`), arch ("90" or "120"), and `only`, null or what a slim build holds: types
(the two C++ types of the GEMM's operands), runners (as the instantiation file spells them), dropped (names of
hand-written sources that belong to other types), tiles ("MxNxK" of cluster 1x1x1; null: all).
Answer: ninja (its text), folder (where it is written and builds), objects, instantiations, left_out.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUNNER = re.compile(r"^template class CutlassMoeFCRunner<(.*?)>;$", re.MULTILINE | re.DOTALL)
INSTANTIATION = "cutlass_fused_moe_instantiation.cu"
PER_FILE = 4
"""Instantiations in a file. FlashInfer has eight, which takes minutes; with few files fewer each are done sooner."""


def main(request: dict[str, Any]) -> dict[str, Any]:
    """What the generator makes of the request."""
    # The package's own __init__ imports all of its kernels, and with them packages that no build needs.
    package = types.ModuleType("flashinfer")
    package.__path__ = [request["package"]]
    sys.modules["flashinfer"] = package
    fused_moe: Any = importlib.import_module("flashinfer.jit.fused_moe")
    kernels: Any = importlib.import_module("flashinfer.jit.gemm.cutlass.generate_kernels")
    only = request["only"]
    kept: list[str] = []
    left_out: list[str] = []
    kernels.write_file = _filtered(kernels, only, kept, left_out)
    kernels.clean_leftover_files = lambda *_: None  # it knows only the files that it names itself
    spec = getattr(fused_moe, f"gen_cutlass_fused_moe_sm{request['arch']}_module")()
    if only is not None:
        _slim(spec, only)
    spec.write_ninja()
    text = spec.ninja_path.read_text()
    return {
        "ninja": str(spec.ninja_path),
        "folder": str(spec.build_dir),
        "objects": re.findall(r"^build (\S+): (?:cuda_)?compile ", text, re.MULTILINE),
        "instantiations": kept,
        "left_out": left_out,
    }


def _filtered(kernels: Any, only: Any, kept: list[str], left_out: list[str]) -> Callable[..., None]:
    """The generator's `write_file`, for the instantiations that are wanted alone. A file without any is not written."""
    write = kernels.write_file

    def wanted(operation: Any) -> bool:
        if only is None:
            return True
        if not hasattr(operation, "act_type"):  # of another architecture family
            return False
        names = [_plain(kernels.CudaTypeName.get(kind)) for kind in (operation.act_type, operation.weight_type)]
        tile = "x".join(map(str, operation.cta_shape))
        plain = tuple(operation.cga_shape) == (1, 1, 1)
        return names == only["types"] and (only["tiles"] is None or (plain and tile in only["tiles"]))

    def write_file(headers: Any, operations: list[Any], path: str) -> None:
        chosen = [operation for operation in operations if wanted(operation)]
        kept.extend(map(_describe, chosen))
        left_out.extend(_describe(operation) for operation in operations if operation not in chosen)
        for start in range(0, len(chosen), PER_FILE):
            place = path.replace(".generated.cu", f"_{start}.generated.cu") if start else path
            write(headers, chosen[start : start + PER_FILE], place)

    return write_file


def _plain(kind: str | None) -> str:
    """A C++ type's name; E2M1's has changed."""
    return "Fp4Type" if kind in ("SafeFP4", "__nv_fp4_e2m1") else str(kind)


def _describe(operation: Any) -> str:
    """An instantiation in words: operands -> output, tile, cluster and what else tells it from its neighbours."""
    if not hasattr(operation, "act_type"):
        return str(sorted(map(str, vars(operation).values())))
    kinds = [_word(getattr(operation, name)) for name in ("act_type", "weight_type", "output_type")]
    shapes = ["x".join(map(str, shape)) for shape in (operation.cta_shape, operation.cga_shape)]
    others = [_word(value) for name in FEATURES if (value := getattr(operation, name, None)) not in (None, False)]
    return " ".join([f"{kinds[0]} x {kinds[1]} -> {kinds[2]}", shapes[0], f"cluster {shapes[1]}", *others])


FEATURES = ("mainloop_schedule", "epi_schedule", "epi_fusion", "mixed_input_scale_mode", "swap_ab", "is_mx_fpx")


def _word(value: Any) -> str:
    return str(getattr(value, "name", None) or type(value).__name__ if not isinstance(value, str) else value)


def _slim(spec: Any, only: dict[str, Any]) -> None:
    """Leave out the sources of other types, and of the runners all but the wanted."""
    sources = [source for source in spec.sources if source.name not in only["dropped"]]
    place = next(n for n, source in enumerate(sources) if source.name == INSTANTIATION)
    original = sources[place]

    def keep(match: re.Match[str]) -> str:
        runner = ", ".join(_plain(word.strip()) for word in match[1].split(","))
        return match[0] if runner in only["runners"] else ""

    text = RUNNER.sub(keep, original.read_text())
    if len(RUNNER.findall(text)) != len(only["runners"]):
        raise SystemExit(f"{original}: does not instantiate {only['runners']}")
    sources[place] = spec.build_dir / original.name
    spec.build_dir.mkdir(parents=True, exist_ok=True)
    if not sources[place].exists() or sources[place].read_text() != text:
        sources[place].write_text(text)
    spec.sources = sources
    spec.extra_include_dirs = [*(spec.extra_include_dirs or []), original.parent]


if __name__ == "__main__":
    request, answer = map(Path, sys.argv[1:])
    answer.write_text(json.dumps(main(json.loads(request.read_text())), indent=1))
