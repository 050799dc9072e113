"""FlashInfer's `cutlass_fused_moe`, captured once in a CUDA graph and replayed with changed contents."""

from __future__ import annotations

import torch

from oracles.cutlass import Adapter, Cutlass, Prepared
from oracles.problem import Problem


class CutlassGraph(Adapter):
    """Oracle "cutlass-graph". Its arguments are those of `Adapter`.

    The graph is captured after a warm-up, as serving does, on contents that are nobody's: x = 0 and every slot masked.
    A replay reads x, ids and router weights that were written to the captured tensors since. `eager`: the same call
    without a graph, which every replay must equal to the bit.
    """

    name = "cutlass-graph"
    reproduction = "reproductions/cutlass.py:graph"
    _mode = "graph"

    def __init__(self, *, tactics: bool = False) -> None:
        super().__init__(tactics=tactics)
        self.eager = Cutlass(tactics=tactics)

    def prepare(self, problem: Problem) -> Captured:
        return Captured(self.prepare_call(problem))

    def __call__(self, prepared: Captured) -> torch.Tensor:
        return self.replay(prepared, prepared.problem)

    def launch(self, prepared: Captured) -> None:
        """The kernel's own work of a call, into `prepared.output`; captured at the first."""
        prepared.launch()

    def replay(self, prepared: Captured, problem: Problem) -> torch.Tensor:
        """The answer to `problem`, which shares sizes, weights and activation with the one prepared."""
        prepared.write(problem)
        prepared.replay()
        return prepared.output.to(problem.hidden_states.device, copy=True)


class Captured:
    """A graph of one call, captured when it is first needed, and the tensors that it reads and writes."""

    def __init__(self, call: Prepared) -> None:
        self.problem = call.problem
        self.output = call.output
        self._call = call
        self._graph: torch.cuda.CUDAGraph | None = None

    def write(self, problem: Problem) -> None:
        """Change what the next replay reads. Captures the graph first when that was not done yet."""
        if self._graph is None:
            self._graph = self._capture()
        arguments = self._call.arguments
        contents = {
            **self._call.path.states(problem, torch.Tensor.contiguous),
            "token_selected_experts": problem.topk_ids,
            "token_final_scales": problem.router_weights,
        }
        for name, tensor in contents.items():
            captured = arguments[name]
            waits = captured.is_cuda and not tensor.is_cuda  # for a turn on the GPU, unless it is pinned
            captured.copy_(tensor.pin_memory() if waits else tensor, non_blocking=True)

    def launch(self) -> None:
        """Replay, on the contents of the problem when nothing was written yet."""
        if self._graph is None:
            self.write(self.problem)
        assert self._graph is not None  # `write` captured it
        self._graph.replay()

    def replay(self) -> None:
        """Poison output and workspace, which is no part of the graph, and replay."""
        assert self._graph is not None  # `write` captured it
        self._call.poison()
        self._call.surround()
        self._graph.replay()

    def mask(self) -> None:
        """Make what the graph reads nobody's: x = 0 and every slot masked."""
        arguments = self._call.arguments
        for name in self._call.path.states(self.problem, torch.Tensor.contiguous):
            arguments[name].zero_()
        arguments["token_selected_experts"].fill_(-1)
        arguments["token_final_scales"].zero_()

    def _capture(self) -> torch.cuda.CUDAGraph:
        self.mask()
        with torch.cuda.device(self.output.device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            # What an earlier graph's call allocated stays with the allocator until it is emptied. `torch.cuda.graph`
            # does that too, and gives up pinned memory as well, which takes longer to have again than all of this.
            torch.cuda.empty_cache()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                self._call.poison()
                self._call.launch(self.output)
                graph.capture_begin()
                try:
                    self._call.launch(self.output)
                finally:
                    graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
        return graph
