"""Slim builds: the operand types under test alone. What is left out is there all the same, and says so when called.

All 247 sources of the SM90 module take the better part of an hour on 16 cores. One pair of operand types needs some
fifteen hand-written sources and, of the generated ones, the GEMM tiles that are asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_TILE = re.compile(r"[1-9]\d*x[1-9]\d*x[1-9]\d*")


@dataclass(frozen=True, kw_only=True)
class Only:
    """One pair of operand types.

    arch: the architecture that has it. types: the C++ names of activation and weight, E2M1's as Fp4Type. runners:
    template arguments of its CutlassMoeFCRunner in the instantiation file. kernels: the hand-written file of its GEMM
    runner. tiles: what is built by default: the tile that runs without autotuning, and the one that the runner asks
    for the size of its workspace; None: all.
    """

    name: str
    arch: str
    types: tuple[str, str]
    runners: tuple[str, ...]
    kernels: str
    tiles: tuple[str, ...] | None


ONLY = {
    only.name: only
    for only in (
        Only(
            name="bf16xmxfp4",
            arch="9.0a",
            types=("__nv_bfloat16", "Fp4Type"),
            runners=("__nv_bfloat16, Fp4Type",),
            kernels="moe_gemm_kernels_bf16_fp4.cu",
            tiles=("64x16x128", "128x64x256"),
        ),
        Only(
            name="mxfp8xmxfp4",
            arch="12.0a",
            types=("__nv_fp8_e4m3", "Fp4Type"),
            runners=("__nv_fp8_e4m3, Fp4Type, half", "__nv_fp8_e4m3, Fp4Type, __nv_bfloat16"),
            kernels="moe_gemm_kernels_fp8_fp4.cu",
            tiles=None,
        ),
    )
}

_GEMM_RUNNERS = tuple(
    f"moe_gemm_kernels_{pair}.cu"
    for pair in (
        *("bf16_bf16", "bf16_fp4", "bf16_fp8", "bf16_uint4", "bf16_uint8"),
        *("fp16_fp16", "fp16_fp4", "fp16_uint4", "fp16_uint8", "fp32_fp32"),
        *("fp4_fp4", "fp8_fp4", "fp8_fp8", "fp8_uint4"),
    )
)


def is_tile(text: str) -> bool:
    """Whether this is "MxNxK"."""
    return _TILE.fullmatch(text) is not None


def request(only: Only, tiles: tuple[str, ...] | None) -> dict[str, Any]:
    """What `generate.py` is told to keep."""
    return {
        "types": list(only.types),
        "runners": list(only.runners),
        "dropped": ["fp8_blockscale_gemm.cu", *(name for name in _GEMM_RUNNERS if name != only.kernels)],
        "tiles": None if tiles is None else list(tiles),
    }


def stubs(symbols: list[str], only: str) -> str:
    """C++ that defines each of these functions, by its mangled name, to throw and say which one was called."""
    lines = [
        "#include <cxxabi.h>",
        "#include <stdexcept>",
        "#include <string>",
        "",
        "[[noreturn]] static void left_out(char const* symbol) {",
        "  char const* name = abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr);",
        f'  throw std::runtime_error(std::string("not in this build of FlashInfer, which holds only {only}: ") +',
        "                           (name ? name : symbol));",
        "}",
        "",
    ]
    for number, symbol in enumerate(symbols):
        lines.append(f'extern "C" void left_out_{number}() __asm__("{symbol}");')
        lines.append(f'extern "C" void left_out_{number}() {{ left_out("{symbol}"); }}')
    return "\n".join(lines) + "\n"


def undefined(table: str) -> list[str]:
    """Functions of the package that no object defines, sorted, from `nm -P` of all of them.

    A name that also occurs as a definition is none; nor is one of another library.
    """
    needed: set[str] = set()
    defined: set[str] = set()
    for line in table.splitlines():
        words = line.split()
        if len(words) < 2 or "12tensorrt_llm" not in words[0]:
            continue
        (needed if words[1] in "Uw" else defined).add(words[0])
    return sorted(needed - defined)
