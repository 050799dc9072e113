"""What a gate is about: a card, a precision, the kernels that have to pass on it. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.scenario import Precision


@dataclass(frozen=True, kw_only=True)
class Target:
    """capability: of the card, (major, minor). kernels: oracles under test, eager and captured in a graph, each in
    every environment that is asked for. control: an oracle that has to pass beside them, in its own precision, where
    its kernels run in eager mode. emulation: what stands for the kernels without the card.
    """

    name: str
    capability: tuple[int, int]
    precision: Precision
    kernels: tuple[str, ...] = ("cutlass", "cutlass-graph")
    control: str = "marlin"
    emulation: str | None = None

    def specs(self, environments: tuple[str, ...]) -> tuple[str, ...]:
        """The kernels under test: in this interpreter, or in each of `environments`."""
        if not environments:
            return self.kernels
        return tuple(f"{kernel}@{environment}" for environment in environments for kernel in self.kernels)


TARGETS = {
    target.name: target
    for target in (
        Target(name="sm90", capability=(9, 0), precision="bf16xmxfp4"),
        Target(name="sm120", capability=(12, 0), precision="mxfp8xmxfp4", emulation="emulated-sm120"),
    )
}
