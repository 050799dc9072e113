"""A CUDA toolkit and a flashinfer-python that are small enough for a test.

The compilers are scripts that write what they are given into their output, `nm` reads symbols from such outputs, and
ninja is the real one. The package has the generator's interface, with four instantiations.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

NVCC = r"""#!/bin/sh
case "$*" in *--version*) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit;; esac
if grep -q "#error" "$2"; then echo "$2(1): error: #error directive" >&2; exit 1; fi
cp "$2" "$4"
basename "$2" >> LOG
"""
"""Called as `nvcc -c SOURCE -o OBJECT`: the object is the source."""

CXX = r"""#!/bin/sh
for word; do
  case "$before" in
    -o) out=$word;;
    -c) inputs=$word;;
    *) case "$word" in *.o) inputs="$inputs $word";; esac;;
  esac
  before=$word
done
cat $inputs /dev/null > "$out"
"""
"""The object is the source of -c; a library is all its objects."""

NM = r"""#!/bin/sh
shift
sed -n -e 's|^// defines \(.*\)$|\1 T 0 0|p' -e 's|^.*__asm__("\(.*\)").*|\1 T 0 0|p' \
  -e 's|^// calls \(.*\)$|\1 U|p' "$@"
"""
"""Called as `nm -P FILE...`."""

CUOBJDUMP = r"""#!/bin/sh
echo "ELF file    1: fused_moe_90.1.sm_90a.cubin"
"""

GENERATOR = """\
import os
from dataclasses import dataclass

CudaTypeName = {"bf16": "__nv_bfloat16", "fp4": "SafeFP4", "e4m3": "__nv_fp8_e4m3"}


@dataclass
class Operation:
    act_type: str
    weight_type: str
    output_type: str
    cta_shape: tuple
    cga_shape: tuple
    mainloop_schedule: str = "pingpong"


def write_file(headers, operations, path):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        for operation in operations:
            shape = "x".join(map(str, operation.cta_shape + operation.cga_shape))
            file.write(f"// defines _ZN12tensorrt_llm{operation.act_type}_{shape}\\n")


def generate_gemm_operations(folder, arches):
    tile, other = (64, 16, 128), (128, 64, 256)
    plain, wide = (1, 1, 1), (2, 1, 1)
    files = {
        "a": [Operation("bf16", "fp4", "bf16", tile, plain), Operation("bf16", "fp4", "bf16", tile, wide)],
        "b": [Operation("bf16", "fp4", "bf16", other, plain)],
        "c": [Operation("e4m3", "fp4", "bf16", tile, plain)],
    }
    for name, operations in files.items():
        write_file([], operations, os.path.join(folder, name + ".generated.cu"))
"""

FUSED_MOE = """\
import os
from pathlib import Path

from .gemm.cutlass.generate_kernels import generate_gemm_operations

ROOT = Path(__file__).resolve().parents[1] / "data" / "csrc"
JIT = Path(os.environ["FLASHINFER_WORKSPACE_BASE"])


class Spec:
    def __init__(self, name, sources):
        self.sources, self.name, self.extra_include_dirs = sources, name, []
        self.build_dir = JIT / "ops" / name
        self.ninja_path = self.build_dir / "build.ninja"

    def write_ninja(self):
        self.build_dir.mkdir(parents=True, exist_ok=True)
        nvcc, cxx = os.environ["CUDA_HOME"] + "/bin/nvcc", os.environ["CXX"]
        flags = os.environ["FLASHINFER_EXTRA_LDFLAGS"]
        lines = ["rule cuda_compile", f"  command = {nvcc} -c $in -o $out",
                 "rule link", f"  command = {cxx} $in {flags} -o $out"]
        objects = [str(self.build_dir / (source.stem + ".o")) for source in self.sources]
        lines += [f"build {out}: cuda_compile {source}" for out, source in zip(objects, self.sources)]
        lines += [f"build {self.build_dir}/{self.name}.so: link {' '.join(objects)}"]
        self.ninja_path.write_text("\\n".join(lines) + "\\n")


def gen_cutlass_fused_moe_sm90_module():
    generated = JIT / "generated"
    generate_gemm_operations(str(generated), "90")
    names = ("binding.cu", "cutlass_fused_moe_instantiation.cu", "moe_gemm_kernels_bf16_fp4.cu",
             "moe_gemm_kernels_fp8_fp4.cu")
    return Spec("fused_moe_90", [ROOT / name for name in names] + sorted(generated.glob("*.generated.cu")))
"""

SOURCES = {
    "flashinfer/__init__.py": "raise ImportError('the package itself is not imported')\n",
    "flashinfer/jit/__init__.py": "",
    "flashinfer/jit/gemm/__init__.py": "",
    "flashinfer/jit/gemm/cutlass/__init__.py": "",
    "flashinfer/jit/gemm/cutlass/generate_kernels.py": GENERATOR,
    "flashinfer/jit/fused_moe.py": FUSED_MOE,
    "flashinfer/data/csrc/binding.cu": "// defines _ZN12tensorrt_llm4bindEv\n// calls _ZN12tensorrt_llm3fp8Ev\n",
    "flashinfer/data/csrc/cutlass_fused_moe_instantiation.cu": (
        "// template class CutlassMoeFCRunner<none>;\n"
        "template class CutlassMoeFCRunner<__nv_bfloat16, Fp4Type>;\n"
        "template class CutlassMoeFCRunner<__nv_fp8_e4m3, Fp4Type,\n                                  half>;\n"
    ),
    "flashinfer/data/csrc/moe_gemm_kernels_bf16_fp4.cu": "// calls _ZN12tensorrt_llmbf16_64x16x128x2x1x1\n",
    "flashinfer/data/csrc/moe_gemm_kernels_fp8_fp4.cu": "// defines _ZN12tensorrt_llm3fp8Ev\n",
    "flashinfer_python-9.9.9.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "flashinfer_python-9.9.9.dist-info/RECORD": "",
    "flashinfer_python-9.9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: flashinfer-python\nVersion: 9.9.9\n",
}

PATCH = """\
What it is for.

--- a/flashinfer/data/csrc/binding.cu
+++ b/flashinfer/data/csrc/binding.cu
@@ -1,2 +1,3 @@
 // defines _ZN12tensorrt_llm4bindEv
+// patched
 // calls _ZN12tensorrt_llm3fp8Ev
"""


def wheel(folder: Path) -> Path:
    """A wheel of flashinfer-python 9.9.9."""
    path = folder / "flashinfer_python-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in SOURCES.items():
            archive.writestr(name, text)
    return path


def install(site: Path) -> None:
    """The package as pip leaves it in `site`."""
    for name, text in SOURCES.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("".join(f"{file},,\n" for file in SOURCES) if name.endswith("RECORD") else text)


def toolkit(folder: Path) -> dict[str, str]:
    """Environment variables of a toolkit made in `folder`. What nvcc compiles is noted in `compiled`, one a line."""
    binaries, headers = folder / "cuda" / "bin", folder / "cuda" / "include"
    binaries.mkdir(parents=True)
    headers.mkdir()
    for header in ("cuda_runtime.h", "cublas_v2.h", "curand.h", "cusolverDn.h", "cusparse.h", "nvrtc.h"):
        (headers / header).touch()
    for name, text in (("nvcc", NVCC), ("c++", CXX), ("nm", NM), ("cuobjdump", CUOBJDUMP)):
        script = binaries / name
        script.write_text(text.replace("LOG", f"'{folder}/compiled'"))
        script.chmod(0o755)
    path = os.pathsep.join([str(binaries), os.environ["PATH"]])
    return {"CUDA_HOME": str(folder / "cuda"), "CXX": str(binaries / "c++"), "PATH": path}
