"""What SGLang's layers ask of the server that they run in, without one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import torch
from sglang.srt import runtime_context
from sglang.srt.layers.moe.utils import MoeRunnerBackend


def there(p: SimpleNamespace) -> SimpleNamespace:
    """`p` with its tensors on the GPU, where there is one."""
    if not torch.cuda.is_available():
        return p
    moved = {name: value.cuda() for name, value in vars(p).items() if isinstance(value, torch.Tensor)}
    return SimpleNamespace(**vars(p) | moved)


@contextlib.contextmanager
def served(backend: str, **facts: bool) -> Iterator[None]:
    """What a server started with `--moe-runner-backend BACKEND` publishes, as far as these layers ask.

    facts: of the platform, in the place of the machine's own.
    """
    whole = runtime_context.get_context()
    before = whole._config_bags
    whole._config_bags = {
        "exec": SimpleNamespace(
            moe=SimpleNamespace(flashinfer_mxfp4_moe_precision="default"), comm=SimpleNamespace(enable_symm_mem=False)
        ),
        "disagg": SimpleNamespace(disaggregation_mode="decode"),
    }
    flags = runtime_context.get_flags().moe.override(runner_backend=MoeRunnerBackend(backend))
    parallel = runtime_context.get_parallel().override(tp_group=SimpleNamespace(world_size=1))
    try:
        with flags, parallel, runtime_context.override_platform(**facts), torch.no_grad():
            yield
    finally:
        whole._config_bags = before
