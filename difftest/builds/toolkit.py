"""What a build needs of the machine: compilers, headers, libraries. Each lack is one line with its cure."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from difftest.preflight import Missing

_HEADERS = {
    "cublas_v2.h": "nvidia-cublas",
    "curand.h": "nvidia-curand",
    "cusolverDn.h": "nvidia-cusolver",
    "cusparse.h": "nvidia-cusparse",
    "nvrtc.h": "nvidia-cuda-nvrtc",
}
"""Headers that a small CUDA toolkit lacks, by the package that has them."""


@dataclass(frozen=True)
class Toolkit:
    """cuda: the toolkit's folder. release: of nvcc, (13, 0). compiler: nvcc's own words about itself. includes: folders
    with headers that the toolkit lacks. cuobjdump: lists what a library was compiled for; not every toolkit has it."""

    cuda: Path
    release: tuple[int, int]
    compiler: str
    cxx: str
    ninja: str
    nm: str
    includes: tuple[Path, ...]
    cuobjdump: str | None

    def variables(self, libraries: Path) -> dict[str, str]:
        """Environment variables for FlashInfer's generator. libraries: a folder of `stand_ins`."""
        includes = " ".join(f"-isystem {path}" for path in self.includes)  # last, so after the toolkit's own
        return {
            "CUDA_HOME": str(self.cuda),
            "CXX": self.cxx,
            "FLASHINFER_EXTRA_CUDAFLAGS": f"{os.environ.get('FLASHINFER_EXTRA_CUDAFLAGS', '')} {includes}".strip(),
            "FLASHINFER_EXTRA_CFLAGS": f"{os.environ.get('FLASHINFER_EXTRA_CFLAGS', '')} {includes}".strip(),
            "FLASHINFER_EXTRA_LDFLAGS": " ".join(
                # As needed: of what it links with, a slim library calls next to nothing.
                filter(None, [os.environ.get("FLASHINFER_EXTRA_LDFLAGS"), f"-L{libraries}", "-Wl,--as-needed"])
            ),
        }

    def stand_ins(self, folder: Path) -> None:
        """Empty libraries with the right soname for those that only a machine with a GPU, or torch, has."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, soname in (("cuda", "libcuda.so.1"), ("nvrtc", f"libnvrtc.so.{self.release[0]}")):
            target = folder / f"lib{name}.so"
            command = [self.cxx, "-shared", "-x", "c++", os.devnull, f"-Wl,-soname,{soname}", "-o", str(target)]
            subprocess.run(command, check=True, capture_output=True)


def find() -> Toolkit:
    """The machine's toolkit. Raises Missing."""
    nvcc = _nvcc()
    said = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.(\d+), (V\S+)", said)
    if release is None:
        raise Missing(f"{nvcc} --version does not name a release; set CUDA_HOME to a CUDA toolkit")
    cuda = nvcc.parent.parent
    cxx = os.environ.get("CXX") or "c++"
    if shutil.which(cxx) is None:
        raise Missing(f"there is no C++ compiler {cxx!r} here; install one (Debian: apt install g++), or set CXX")
    return Toolkit(
        cuda=cuda,
        release=(int(release[1]), int(release[2])),
        compiler=f"nvcc {release[3]}",
        cxx=cxx,
        ninja=_tool("ninja", "pip install ninja"),
        nm=_tool("nm", "Debian: apt install binutils"),
        includes=_includes(cuda, int(release[1])),
        cuobjdump=_cuobjdump(cuda),
    )


def _nvcc() -> Path:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        nvcc = Path(home) / "bin" / "nvcc"
        if not nvcc.is_file():
            raise Missing(f"CUDA_HOME={home} has no bin/nvcc; set it to a CUDA toolkit")
        return nvcc
    for found in (shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        # A toolkit is what has headers beside its compiler: nvcc on the path may be a link into one, or a script.
        for nvcc in (Path(found), Path(found).resolve()) if found else ():
            if nvcc.is_file() and (nvcc.parent.parent / "include" / "cuda_runtime.h").is_file():
                return nvcc
    raise Missing("there is no nvcc here; install a CUDA toolkit, and set CUDA_HOME unless nvcc is on the path")


def _tool(name: str, cure: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise Missing(f"there is no {name} here; install it ({cure})")
    return found


def _cuobjdump(cuda: Path) -> str | None:
    own = cuda / "bin" / "cuobjdump"
    if own.is_file():
        return str(own)
    packaged = [place for entry in sys.path for place in Path(entry).glob("nvidia/*/bin/cuobjdump")]
    return str(packaged[0]) if packaged else shutil.which("cuobjdump")


def _includes(cuda: Path, major: int) -> tuple[Path, ...]:
    """Folders of PyPI's nvidia packages with the headers that the toolkit lacks."""
    found: list[Path] = []
    for header, distribution in _HEADERS.items():
        if (cuda / "include" / header).is_file():
            continue
        candidates = [place for entry in sys.path for place in Path(entry).glob(f"nvidia/*/include/{header}")]
        if not candidates:
            named = distribution if major >= 13 else f"{distribution}-cu{major}"
            raise Missing(f"{cuda} has no {header}; pip install {named}, or set CUDA_HOME to a whole toolkit")
        found.append(candidates[0].parent)
    return tuple(dict.fromkeys(found))
