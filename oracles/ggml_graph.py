"""A ggml compute graph, as a small object around ggml-python's C bindings."""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import sys
import weakref
from typing import Any

import torch


@functools.cache
def library() -> Any:
    """ggml-python's module, loaded on first use: the extra is optional, and loading it takes a shared library.

    Of ggml's log, which goes to stderr, only warnings and errors are kept.
    """
    ggml = importlib.import_module("ggml")
    ggml.ggml_log_set(_LOG, None)
    return ggml


def _log(level: int, text: bytes, _: object) -> None:
    if level in (3, 4):  # GGML_LOG_LEVEL_WARN, GGML_LOG_LEVEL_ERROR
        sys.stderr.write(text.decode(errors="replace"))


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_log)  # lives as long as ggml may call it


@functools.cache
def repack_buffer_type() -> Any | None:
    """ggml's buffer type that repacks weights for this CPU, None when the build or the CPU has none for MXFP4.

    The kernels are chosen in ggml_repack_get_optimal_repack_type (ggml-cpu/repack.cpp).
    """
    ggml = library()
    if not (ggml.ggml_cpu_has_avx2() or (ggml.ggml_cpu_has_neon() and ggml.ggml_cpu_has_dotprod())):
        return None
    registry = ggml.ggml_backend_cpu_reg()
    address = ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return None
    extra = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
    types = itertools.takewhile(bool, extra(ggml.ggml_backend_reg_dev_get(registry, 0)))  # ends with a null pointer
    return next((kind for kind in types if ggml.ggml_backend_buft_name(kind) == b"CPU_REPACK"), None)


class GuardBandError(RuntimeError):
    """ggml wrote beyond memory that it was given."""


class Graph:
    """A ggml graph and the memory of its tensors, which live in torch tensors that this object holds.

    ggml only ever gets pointers into that memory, and frees none of it. Shapes are in ggml's order, fastest first.
    ggml aborts the process on a broken precondition: nothing here is checked twice, the callers keep within it.
    operators: at most so many calls of `op`, `leaf`, `repacked`, `empty` and `scalar`. poison: the byte that fills
    every result and the work space before each computation. guard: bytes that follow each of them and must not change.
    """

    def __init__(self, operators: int, poison: int, guard: int = 64) -> None:
        self._ggml = ggml = library()
        self._poison, self._guard = poison, guard
        self._left = operators
        self._inputs: list[torch.Tensor] = []
        self._results: dict[int, torch.Tensor] = {}  # by address
        self._plan: Any = None
        size = operators * ggml.ggml_tensor_overhead() + ggml.ggml_graph_overhead_custom(operators, False)
        self._context = ggml.ggml_init(ggml.ggml_init_params(mem_size=size, mem_buffer=None, no_alloc=True))
        self._graph = ggml.ggml_new_graph_custom(self._context, operators, False)
        weakref.finalize(self, ggml.ggml_free, self._context)

    def leaf(self, values: torch.Tensor, *shape: int, kind: str = "F32") -> Any:
        """An input: `values` as they lie in memory, int32 ones as I32."""
        data = values.cpu().contiguous()
        self._inputs.append(data)
        kind = "I32" if data.dtype == torch.int32 else kind
        tensor = self._new(shape, kind)
        tensor.contents.data = data.data_ptr()
        return tensor

    def repacked(self, values: torch.Tensor, *shape: int, kind: str) -> Any:
        """A weight that ggml converts from `values` and keeps in its own memory. Needs a `repack_buffer_type`."""
        ggml, data = self._ggml, values.cpu().contiguous()
        tensor = self._new(shape, kind)
        buffer_type = repack_buffer_type()
        size = ggml.ggml_backend_buft_get_alloc_size(buffer_type, tensor)
        buffer = ggml.ggml_backend_buft_alloc_buffer(buffer_type, size)
        weakref.finalize(self, ggml.ggml_backend_buffer_free, buffer)
        ggml.ggml_backend_tensor_alloc(buffer, tensor, ggml.ggml_backend_buffer_get_base(buffer))
        ggml.ggml_backend_tensor_set(tensor, data.data_ptr(), 0, data.numel())
        return tensor

    def scalar(self, value: float) -> Any:
        return self.leaf(torch.tensor([value], dtype=torch.float32), 1)

    def empty(self, *shape: int) -> Any:
        """Memory for `set_rows` to write to, float32."""
        return self._with_memory(self._new(shape, "F32"))

    def op(self, name: str, *arguments: Any) -> Any:
        """The tensor ggml_`name`(arguments)."""
        self._count()
        tensor = getattr(self._ggml, f"ggml_{name}")(self._context, *arguments)
        return tensor if tensor.contents.data else self._with_memory(tensor)  # a view has its source's

    def columns(self, matrix: Any, first: int, count: int) -> Any:
        """Columns [first, first + count) of a float32 matrix, as a view."""
        rows, stride = matrix.contents.ne[1], matrix.contents.nb[1]
        return self.op("view_2d", matrix, count, rows, stride, first * 4)

    def result(self, tensor: Any) -> torch.Tensor:
        """Plan to compute `tensor`, which is no view. Returns its memory, float32 and flat."""
        ggml = self._ggml
        ggml.ggml_build_forward_expand(self._graph, tensor)
        self._plan = ggml.ggml_graph_plan(self._graph, 1, None)
        self._plan.work_data = ctypes.cast(self._allocate(self._plan.work_size), ctypes.POINTER(ctypes.c_uint8))
        return self._results[tensor.contents.data][: -self._guard].view(torch.float32)

    def compute(self) -> None:
        """Fill the memory that `result` returned. Raises `GuardBandError`, and `RuntimeError` when ggml reports a
        failure."""
        for memory in self._results.values():
            memory.fill_(self._poison)
        status = self._ggml.ggml_graph_compute(self._graph, ctypes.byref(self._plan))
        if status != self._ggml.GGML_STATUS_SUCCESS:
            raise RuntimeError(f"ggml_graph_compute returned status {status}")
        for memory in self._results.values():
            changed = (memory[-self._guard :] != self._poison).nonzero()
            if len(changed):
                size, last = len(memory) - self._guard, int(changed[-1]) + 1
                raise GuardBandError(f"ggml wrote {last} bytes past the end of its {size} bytes of memory")

    def _new(self, shape: tuple[int, ...], kind: str) -> Any:
        self._count()
        make = getattr(self._ggml, f"ggml_new_tensor_{len(shape)}d")
        return make(self._context, getattr(self._ggml, f"GGML_TYPE_{kind}"), *shape)

    def _with_memory(self, tensor: Any) -> Any:
        tensor.contents.data = self._allocate(self._ggml.ggml_nbytes(tensor))
        return tensor

    def _allocate(self, size: int) -> int:
        memory = torch.empty(size + self._guard, dtype=torch.uint8)
        self._results[memory.data_ptr()] = memory
        return memory.data_ptr()

    def _count(self) -> None:
        self._left -= 1
        assert self._left >= 0, "ggml would abort the process: raise the number of operators in _Layer"
