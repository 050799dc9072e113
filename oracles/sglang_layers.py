"""The layers of the installed sglang without its server: its weight processors, its runners, and what they ask for.

`import sglang` brings the server with all that it depends on. Here the packages around the layers are entered by name
only, parts of the server that no layer's arithmetic goes through are stood in for, and so is every distribution that
such a module cannot be imported without and that is not here. What runs, from the checkpoint's tensors to the kernel's
arguments, is sglang's own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from oracles import sglang_package as package

_BY_NAME = (
    "sglang",
    "sglang.srt",
    "sglang.srt.configs",
    "sglang.srt.layers",
    "sglang.srt.layers.moe.fused_moe_triton",
    "sglang.srt.layers.quantization",
)
"""Entered without their `__init__`, which would import every model, layer and quantisation."""

_SERVER = (
    "sglang.srt.eplb.expert_distribution",
    "sglang.srt.layers.moe.token_dispatcher.deepep",
    "sglang.srt.layers.moe.token_dispatcher.deepep_v2",
    "sglang.srt.layers.moe.token_dispatcher.flashinfer",
    "sglang.srt.layers.moe.token_dispatcher.flashinfer_utils",
    "sglang.srt.layers.moe.token_dispatcher.mooncake",
    "sglang.srt.layers.moe.token_dispatcher.moriep",
    "sglang.srt.layers.moe.token_dispatcher.nixl",
    "sglang.srt.layers.moe.token_dispatcher.pplx",
    "sglang.srt.lora.marlin_lora_temp",
    "sglang.srt.model_executor",
    "sglang.srt.state_capturer",
    "sglang.srt.utils.hf_transformers",
)
"""Stood in for: statistics, exchange between ranks, adapters, the forward batch, model files."""

_LAYERS = (
    "sglang.srt.layers.quantization.mxfp4",
    "sglang.srt.layers.moe.moe_runner.flashinfer_cutlass",
    "sglang.srt.layers.moe.moe_runner.marlin",
    "sglang.srt.layers.moe.token_dispatcher.standard",
    "sglang.srt.layers.moe.topk",
)
_MOST_ABSENT = 40
_NEEDED = "msgspec"
"""The layers' own settings are its structs."""
KERNELS = "pip install sglang-kernel"
_entered = False


class _Anything:
    """What is not here: it can be imported, called, decorated with and inherited from, and does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and not keywords and callable(arguments[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __getitem__(self, key: object) -> Any:
        return self

    def __or__(self, other: object) -> Any:
        return self

    __ror__ = __or__

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class _ScalarTypes(_Anything):
    """The number formats by name, of which modules make tables, and the Marlin path reads the number of one."""

    float4_e2m1f = SimpleNamespace(id=package.E2M1)


class _Kernel(_Anything):
    """One of sgl_kernel's, which nothing can stand in for when it is called."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"sgl_kernel is not installed, and sglang calls it here: {KERNELS}")


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Kernel() if self.__name__.partition(".")[0] == "sgl_kernel" else _Anything()
        setattr(self, name, found)
        return found


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the parts of the server, and the distributions that are `absent`."""

    def __init__(self) -> None:
        self.absent: set[str] = set()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:  # noqa: ARG002
        server = any(fullname == name or fullname.startswith(f"{name}.") for name in _SERVER)
        if server or fullname.partition(".")[0] in self.absent:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        made = _StandIn(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


def has_kernels() -> bool:
    """Whether sgl_kernel is installed, sglang's kernels that are not compiled when they are first used."""
    for name in ("sglang-kernel", "sgl-kernel"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return bool(importlib.metadata.version(name))
    return False


def module(name: str) -> Any:
    """The module sglang.NAME. Raises ImportError, also when the package is not as it was written for."""
    enter()
    return importlib.import_module(f"sglang.{name}")


def enter() -> None:
    """Make sglang's layers importable. Raises ImportError, also when the package is not as it was written for."""
    global _entered  # once a process
    if _entered:
        return
    found = importlib.util.find_spec("sglang") if "sglang" not in sys.modules else None
    origin = sys.modules["sglang"].__path__ if found is None and "sglang" in sys.modules else None
    locations = origin or (found and found.submodule_search_locations)
    if not locations:
        raise ImportError("No module named 'sglang'")
    root = Path(next(iter(locations)))
    torch.compile(_StandIns)  # sglang's modules do so: what torch imports for it must not find a stand-in of triton
    stand_ins = _StandIns()
    sys.meta_path.insert(0, stand_ins)
    try:
        for _ in range(_MOST_ABSENT):
            try:
                _import(root, stand_ins.absent)
            except ModuleNotFoundError as error:
                top = (error.name or "sglang").partition(".")[0]
                if top in ("sglang", _NEEDED) or top in stand_ins.absent:
                    raise
                stand_ins.absent.add(top)
            else:
                _entered = True
                return
        raise ImportError(f"sglang's layers need more than {_MOST_ABSENT} packages that are not installed")
    finally:
        if not _entered:
            sys.meta_path.remove(stand_ins)


def _import(root: Path, absent: set[str]) -> None:
    """Import the layers, with nothing left of an earlier try. absent: distributions that are stood in for."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        del sys.modules[name]
    for name in _BY_NAME:
        made = _StandIn(name) if name.endswith("configs") else ModuleType(name)
        made.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = made
    package.serve_built_modules()
    if "sgl_kernel" in absent:
        scalars = importlib.import_module("sgl_kernel.scalar_type")
        vars(scalars)["scalar_types"] = _ScalarTypes()
    for name in _LAYERS:
        importlib.import_module(name)
    align = importlib.import_module("sglang.srt.layers.moe.moe_runner.triton_utils").moe_align_block_size
    vars(sys.modules["sglang.srt.layers.moe.fused_moe_triton"])["moe_align_block_size"] = align


@contextlib.contextmanager
def served(backend: str, **facts: bool) -> Iterator[None]:
    """What a server started with `--moe-runner-backend BACKEND` publishes, as far as these layers ask.

    facts: of the platform, in the place of the machine's own (is_sm90=True).
    """
    context = module("srt.runtime_context")
    flags = context.get_flags().moe
    chosen = module("srt.layers.moe.utils").MoeRunnerBackend(backend)
    bags = {
        "exec": SimpleNamespace(
            moe=SimpleNamespace(flashinfer_mxfp4_moe_precision="default"), comm=SimpleNamespace(enable_symm_mem=False)
        ),
        # Of a decoding server: the tuner's bucket is then the batch itself. Nothing is tuned here.
        "disagg": SimpleNamespace(disaggregation_mode="decode"),
    }
    whole = context.get_context()
    before, whole._config_bags = whole._config_bags, bags
    parallel = context.get_parallel().override(tp_group=SimpleNamespace(world_size=1))
    try:
        with flags.override(runner_backend=chosen), parallel, context.override_platform(**facts), torch.no_grad():
            yield
    finally:
        whole._config_bags = before
