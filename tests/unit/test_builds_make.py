"""`difftest build` from end to end with a small package and compilers of its own: no CUDA, no real kernel."""

from __future__ import annotations

import contextlib
import importlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import toolchain

from difftest import builds
from difftest.builds import slim, sources, store
from difftest.cli import main
from difftest.options import InvalidOption

Run = Callable[..., int]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the wheel, a patch and the toolkit, and an empty store."""
    toolchain.wheel(tmp_path)
    (tmp_path / "mine.patch").write_text(toolchain.PATCH)
    for name, value in toolchain.toolkit(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DIFFTEST_BUILDS", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*args: str) -> int:
    """Exit code of `difftest build` for SM90."""
    with pytest.raises(SystemExit) as ended:
        main(["build", "--arch", "9.0a", *args])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def build(*args: str) -> int:
    """Exit code of `difftest build` of the test's wheel."""
    return command("--wheel", "flashinfer_python-9.9.9-py3-none-any.whl", *args)


def compiled(here: Path) -> list[str]:
    path = here / "compiled"
    return path.read_text().split() if path.exists() else []


def error(capsys: pytest.CaptureFixture[str], start: str) -> str:
    """The one line on stderr."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith(f"difftest: error: {start}")
    return lines[0]


def test_a_slim_build_holds_its_types_and_a_stub_for_the_rest(here: Path) -> None:
    assert build("--only", "bf16xmxfp4", "--patch", "mine.patch") == 0
    found = builds.find("9.9.9+mine")
    manifest = found.manifest
    assert (manifest.version, manifest.arch, manifest.only) == ("9.9.9", "9.0a", "bf16xmxfp4")
    assert manifest.tiles == ("64x16x128", "128x64x256")
    assert [text.split()[5] for text in manifest.instantiations] == ["64x16x128", "128x64x256"]
    assert manifest.left_out == 2
    assert set(compiled(here)) == {
        "binding.cu",
        "cutlass_fused_moe_instantiation.cu",
        "moe_gemm_kernels_bf16_fp4.cu",
        "a.generated.cu",
        "b.generated.cu",
    }
    library = found.library.read_text()
    assert "// patched" in library
    assert "template class CutlassMoeFCRunner<__nv_bfloat16, Fp4Type>;" in library
    assert "half" not in library
    stubs = [line for line in library.splitlines() if "__asm__" in line]
    assert len(stubs) == 2  # the cluster 2x1x1 that was left out, and the other types' function
    assert any('__asm__("_ZN12tensorrt_llm3fp8Ev")' in line for line in stubs)
    assert not [name for name in (here / "store").iterdir() if name.name not in (found.root.name, store.WORK)]
    assert not (found.root / "jit").exists()


def test_the_build_is_where_flashinfer_looks_first(here: Path) -> None:
    assert build("--only", "bf16xmxfp4") == 0
    moved = here / "moved"
    shutil.move(here / "store" / builds.find("9.9.9").root.name, moved)
    code = (moved / "site/flashinfer_jit_cache/__init__.py").read_text()
    space: dict[str, object] = {"__file__": str(moved / "site/flashinfer_jit_cache/__init__.py")}
    exec(code, space)
    assert space["__version__"] == "9.9.9"
    folder = space["get_jit_cache_dir"]
    assert callable(folder)
    assert (folder() / "fused_moe_90" / "fused_moe_90.so").is_file()
    assert folder() == moved / "site" / "flashinfer" / "data" / "aot"  # where 0.7.0 looks without being told
    providers = space["get_jit_cache_providers"]
    assert callable(providers)
    assert providers() == ()


def test_the_installed_package_is_copied_and_stays_as_it_is(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.install(here / "site")
    monkeypatch.syspath_prepend(here / "site")
    before = sources.digest(here / "site")
    assert command("--only", "bf16xmxfp4", "--patch", "mine.patch") == 0
    assert "// patched" in builds.find("9.9.9+mine").library.read_text()
    assert sources.digest(here / "site") == before
    (here / "site/flashinfer_python-9.9.9.dist-info/RECORD").write_text("flashinfer/__init__.py,,\n")
    assert command("--only", "bf16xmxfp4") == 3


def test_pip_brings_another_version(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(here))
    assert command("--only", "bf16xmxfp4", "--version", "9.9.9") == 0
    assert builds.find("9.9.9").manifest.version == "9.9.9"
    assert command("--only", "bf16xmxfp4", "--version", "9.9.8") == 3
    error(capsys, "flashinfer-python 9.9.8 is not installed, and pip does not bring it: ")


@pytest.mark.usefixtures("here")
def test_without_only_everything_is_built_and_nothing_is_a_stub() -> None:
    assert build() == 0
    manifest = builds.find("9.9.9").manifest
    assert (manifest.only, manifest.tiles, manifest.left_out) == (None, None, 0)
    assert len(manifest.instantiations) == 4
    assert "__asm__" not in builds.find("9.9.9").library.read_text()


def test_a_library_that_was_built_elsewhere_is_taken_in(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = here / "given.so"
    given.write_bytes(b"\x7fELF and more")
    assert build("--only", "bf16xmxfp4", "--library", "given.so") == 0
    found = builds.find("9.9.9")
    assert found.library.read_bytes() == given.read_bytes()
    assert (found.manifest.compiler, found.manifest.instantiations) == ("given as a library", ())
    assert compiled(here) == []
    given.write_bytes(b"text")
    assert build("--library", "given.so") == 2
    error(capsys, "--library given.so: must be a shared object")


@pytest.mark.usefixtures("here")
def test_tiles_are_added_to_those_that_always_run() -> None:
    assert build("--only", "bf16xmxfp4", "--tile", "32x32x32") == 0
    assert builds.find("9.9.9").manifest.tiles == ("128x64x256", "32x32x32", "64x16x128")
    assert build("--only", "bf16xmxfp4", "--tile", "all") == 0
    assert [b.manifest.left_out for b in store.all_builds() if b.manifest.tiles is None] == [1]


def test_what_was_built_is_not_built_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert build("--only", "bf16xmxfp4") == 0
    before = compiled(here)
    assert build("--only", "bf16xmxfp4") == 0
    assert compiled(here) == before
    assert "is built already" in capsys.readouterr().out
    # Another text under the same name is another build.
    (here / "mine.patch").write_text(toolchain.PATCH.replace("+// patched", "+// patched otherwise"))
    assert build("--only", "bf16xmxfp4", "--patch", "mine.patch") == 0
    assert len(compiled(here)) == 2 * len(before)


def test_a_failed_build_is_not_found_and_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binding = here / "cuda/bin/nvcc"
    right = binding.read_text()
    binding.write_text(right.replace('grep -q "#error" "$2"', 'grep -q calls "$2" && [ "${2##*/}" != binding.cu ]'))
    assert build("--only", "bf16xmxfp4", "--jobs", "1") == 1
    line = error(capsys, "9.9.9-9.0a-bf16xmxfp4-")
    assert "the compiler failed: " in line
    assert "moe_gemm_kernels_bf16_fp4.cu(1): error: #error directive; log: " in line
    log = Path(line.rpartition("log: ")[2])
    assert "error: #error directive" in log.read_text()
    with pytest.raises(builds.BuildNotFound):
        builds.find("9.9.9")
    before = compiled(here)
    binding.write_text(right)
    assert build("--only", "bf16xmxfp4") == 0
    assert sorted(compiled(here)) == sorted({*before, *compiled(here)})  # each source once


@pytest.mark.usefixtures("here")
def test_a_function_without_a_definition_is_a_failed_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slim, "stubs", lambda *_: "\n")
    assert build("--only", "bf16xmxfp4") == 1
    with pytest.raises(builds.BuildNotFound):
        builds.find("9.9.9")


def test_device_code_for_another_card_is_a_failed_build(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = here / "cuda/bin/cuobjdump"
    script.write_text(script.read_text().replace("sm_90a", "sm_90"))
    assert build("--only", "bf16xmxfp4") == 1
    assert "sm_90a was asked for, and the library has ['sm_90']; log: " in error(capsys, "9.9.9-9.0a-bf16xmxfp4-")
    with pytest.raises(builds.BuildNotFound):
        builds.find("9.9.9")


@pytest.mark.usefixtures("here")
def test_a_generator_that_fails_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    source = "flashinfer/jit/fused_moe.py"
    broken = toolchain.SOURCES[source].replace("import os\n", "import no_such_module\n", 1)
    with zipfile.ZipFile("flashinfer_python-9.9.9-py3-none-any.whl", "w") as archive:
        for name, text in (toolchain.SOURCES | {source: broken}).items():
            archive.writestr(name, text)
    assert build("--only", "bf16xmxfp4") == 1
    line = error(capsys, "9.9.9-9.0a-bf16xmxfp4-")
    assert "FlashInfer's generator failed: ModuleNotFoundError: No module named 'no_such_module'; log: " in line


def test_a_patch_that_does_not_apply(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.patch").write_text(toolchain.PATCH.replace("4bindEv", "5otherEv"))
    assert build("--patch", "mine.patch") == 2
    line = error(capsys, "--patch ")
    assert "does not apply: flashinfer/data/csrc/binding.cu: Hunk #1 FAILED at 1" in line
    (here / "mine.patch").write_text("no diff\n")
    assert build("--patch", "mine.patch") == 2
    error(capsys, "--patch ")
    assert build("--patch", "situ") == 2
    assert "is no file, and not a patch that is shipped for 9.9.9 (none)" in error(capsys, "--patch situ: ")
    assert compiled(here) == []
    assert list((here / "store" / store.WORK).iterdir()) == []


def test_patches_apply_one_after_the_other(here: Path) -> None:
    second = toolchain.PATCH.replace("1,2 +1,3", "1,3 +1,4").replace("+// patched", " // patched\n+// twice")
    (here / "second.patch").write_text(second)
    assert build("--only", "bf16xmxfp4", "--patch", "mine.patch", "--patch", "second.patch") == 0
    assert "// patched\n// twice\n" in builds.find("9.9.9+mine+second").library.read_text()
    assert build("--only", "bf16xmxfp4", "--patch", "second.patch", "--patch", "mine.patch") == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--only", "int4"), "--only int4: must be one of bf16xmxfp4, mxfp8xmxfp4"),
        (("--only", "mxfp8xmxfp4"), "--only mxfp8xmxfp4: is of arch 12.0a, not 9.0a"),
        (("--tile", "64x16x128"), "--tile 64x16x128: goes with --only"),
        (("--only", "bf16xmxfp4", "--tile", "64x16"), "--tile 64x16: must be MxNxK, such as 64x16x128, or `all` alone"),
        (("--jobs", "0"), "--jobs 0: must be an integer >= 1"),
        (("--version", "1.0"), "--version 1.0: flashinfer_python-9.9.9-py3-none-any.whl is 9.9.9"),
        (("--patch", "mine.patch", "--patch", "mine.patch"), "--patch: two patches are named mine"),
    ],
)
def test_mistakes_are_named(
    here: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    assert build(*args) == 2
    error(capsys, message)
    assert compiled(here) == []


def test_what_the_machine_lacks_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "cuda/include/curand.h").unlink()
    importlib.import_module("difftest.builds.make")  # while it finds what it imports
    monkeypatch.setattr("sys.path", [])
    with contextlib.suppress(ImportError):
        assert build("--only", "bf16xmxfp4") == 3
        assert "has no curand.h; pip install nvidia-curand, or" in error(capsys, str(here / "cuda"))
    monkeypatch.setenv("CUDA_HOME", str(here))
    assert build("--only", "bf16xmxfp4") == 3
    assert "has no bin/nvcc" in error(capsys, f"CUDA_HOME={here}")
    monkeypatch.setenv("PATH", str(here))
    assert command("--version", "9.9.8", "--patch", "mine.patch") == 3  # and pip is not asked for that version
    error(capsys, "there is no `patch` here, which applies the diffs; install it")


def test_the_shipped_patch_is_of_its_version() -> None:
    assert list(sources.shipped_patches("0.6.18")) == ["situ"]
    assert sources.shipped_patches("0.7.0") == {}
    file = sources.patch("situ", "0.6.18")
    assert file.name == sources.patch(str(file.path), "0.6.18").name == "situ"
    with pytest.raises(InvalidOption, match=r"shipped for 0.7.0 \(none\)"):
        sources.patch("situ", "0.7.0")


@pytest.mark.usefixtures("here")
def test_the_manifest_comes_back() -> None:
    assert build("--only", "bf16xmxfp4", "--patch", "mine.patch") == 0
    found = builds.find("9.9.9+mine")
    data = json.loads((found.root / store.MANIFEST).read_text())
    assert builds.Manifest.from_json(data) == found.manifest
    assert found.manifest.patches[0] == sources.patch("mine.patch", "9.9.9").identity
