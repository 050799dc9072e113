"""Which kernel libraries a process has loaded."""

from __future__ import annotations

import hashlib

from difftest.isolation import libraries

KERNELS = b"\x7fELF" + libraries.DEVICE_CODE + b".text\0"


def test_mapped_files_with_device_code_are_told(tmp_path):
    content = {
        "site/moe/fused_moe_90.so": KERNELS,
        "a folder/kernels.so.1": KERNELS + b"2",
        "site/torch/lib/libtorch_cuda.so": KERNELS,
        "site/nvidia/cublas/lib/libcublasLt.so.13": KERNELS,
        "lib/libcuda.so.1": KERNELS,
        "site/plain.so": b"\x7fELF\0.text\0",
        "site/empty.so": b"",
        "site/weights.bin": KERNELS,
    }
    for name, data in content.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    line = "7f1ebe52f000-7f1ebe555000 r--p 00000000 fe:00 339380                     "
    names = [*content, "site/moe/fused_moe_90.so", "gone.so (deleted)"]
    maps = tmp_path / "maps"
    maps.write_text("\n".join([*(f"{line}{tmp_path / name}" for name in names), f"{line}[stack]", line.strip()]))
    assert libraries.loaded(maps) == {
        str(tmp_path / name): hashlib.sha256(content[name]).hexdigest()
        for name in ("a folder/kernels.so.1", "site/moe/fused_moe_90.so")
    }


def test_this_process_has_none():
    assert libraries.loaded() == {}
