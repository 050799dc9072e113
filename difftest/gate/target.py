"""What a gate is about: a card, a precision, the kernels that have to pass on it. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.gate import matrix
from strategies.scenario import Mode, Precision, Scenario


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """An oracle in one environment, and its part of the matrix. control: it is not what the gate is about, but has to
    pass beside it."""

    spec: str
    precision: Precision
    mode: Mode
    control: bool = False

    def plan(self) -> dict[str, Scenario]:
        """The named scenarios that it has to run, whatever it says of itself."""
        return {name: one for name, one in matrix(self.precision).items() if one.execution.mode == self.mode}


@dataclass(frozen=True, kw_only=True)
class Target:
    """capability: of the card, (major, minor). kernels: by oracle under test the mode that it runs, each in every
    environment that is asked for. control: an oracle that has to pass beside them, in its own precision and in eager
    mode. emulation: what stands for the kernels without the card; it has no graphs.
    """

    name: str
    capability: tuple[int, int]
    precision: Precision
    kernels: tuple[tuple[str, Mode], ...] = (("cutlass", "eager"), ("cutlass-graph", "graph"))
    control: str = "marlin"
    control_precision: Precision = "bf16xmxfp4"
    emulation: str | None = None

    @property
    def arch(self) -> str:
        """As a fingerprint has it, "sm90"."""
        major, minor = self.capability
        return f"sm{major}{minor}"

    def held(self, environments: tuple[str, ...], control: str | None) -> tuple[Kernel, ...]:
        """The kernels under test, in this interpreter or in each of `environments`, and the control."""
        specs = [
            (f"{oracle}@{environment}" if environment else oracle, mode)
            for environment in environments or ("",)
            for oracle, mode in self.kernels
        ]
        return (
            *(Kernel(spec=spec, precision=self.precision, mode=mode) for spec, mode in specs),
            Kernel(spec=control or self.control, precision=self.control_precision, mode="eager", control=True),
        )

    def emulated(self) -> Kernel:
        """The emulation. Raises LookupError for a target without one."""
        if self.emulation is None:
            raise LookupError(f"{self.name} has no emulation")
        return Kernel(spec=self.emulation, precision=self.precision, mode="eager")


TARGETS = {
    target.name: target
    for target in (
        Target(name="sm90", capability=(9, 0), precision="bf16xmxfp4"),
        Target(name="sm120", capability=(12, 0), precision="mxfp8xmxfp4", emulation="emulated-sm120"),
    )
}
