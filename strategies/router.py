"""The router's scenario: from logits to a routing table, as pure data. A sibling of `strategies.scenario.Scenario`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from strategies.plain import (
    AnyScenario,
    is_finite_float32,
    require,
    require_choice,
    require_int,
    require_items,
    require_number,
    require_part,
)

FORMAT_VERSION = 1
"""Version of a `RouterScenario`'s JSON form. A reader refuses any other one."""

Scoring = Literal["sigmoid", "softmax"]
LogitsDtype = Literal["float32", "bfloat16", "float16"]
MAX_GROUPS = 16
"""DeepSeek-V3 has 8."""

LogitsRule = Literal["normal", "levels", "equal", "negative", "wide"]
BiasRule = Literal["none", "zero", "normal", "levels", "large"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterShape:
    """Sizes: tokens M, experts E, top_k K; groups: E is cut into so many equal, consecutive groups, and a token chooses
    from the best topk_groups of them alone."""

    tokens: int = 1
    experts: int = 1
    top_k: int = 1
    groups: int = 1
    topk_groups: int = 1

    def __post_init__(self) -> None:
        require_int("shape.tokens", self.tokens, 0)
        require_int("shape.experts", self.experts, 1)
        require_int("shape.groups", self.groups, 1, min(self.experts, MAX_GROUPS))
        divides = self.experts % self.groups == 0
        require(divides, "shape.groups", self.groups, f"a divisor of shape.experts = {self.experts}")
        require_int("shape.topk_groups", self.topk_groups, 1, self.groups)
        require_int("shape.top_k", self.top_k, 1, self.topk_groups * self.experts_per_group)

    @property
    def experts_per_group(self) -> int:
        return self.experts // self.groups


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """From logits to weights.

    scoring: sigmoid of each logit, or softmax over the E of them. bias: rule of the correction bias [E], float32, which
    takes part in choosing experts and in nothing else. A group's score is its largest score without a bias, and the
    sum of its two largest biased scores with one. renormalise: the weights of a token are divided by their sum +
    1e-20. routed_scaling_factor: multiplied in at the end.
    """

    scoring: Scoring = "sigmoid"
    bias: BiasRule = "none"
    renormalise: bool = False
    routed_scaling_factor: float = 1.0

    def __post_init__(self) -> None:
        require_choice("scores.scoring", self.scoring, Scoring)
        require_choice("scores.bias", self.bias, BiasRule)
        require(isinstance(self.renormalise, bool), "scores.renormalise", self.renormalise, "true or false")
        require_number("scores.routed_scaling_factor", self.routed_scaling_factor, positive=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class SetLogit:
    """logits[token, expert] = value, NaN and infinities included."""

    edit: ClassVar[str] = "set_logit"
    token: int
    expert: int
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SetRow:
    """logits[token, :] = value: a row of ties, or of NaN as the rows that pad a batch may be."""

    edit: ClassVar[str] = "set_row"
    token: int
    value: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TieExperts:
    """expert gets the logit of source for this token, and its bias for every one: the two are exactly tied."""

    edit: ClassVar[str] = "tie_experts"
    token: int
    expert: int
    source: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SetBias:
    """bias[expert] = value, finite; without effect where there is no bias."""

    edit: ClassVar[str] = "set_bias"
    expert: int
    value: float


RouterEdit = SetLogit | SetRow | TieExperts | SetBias


@dataclass(frozen=True, kw_only=True, slots=True)
class Logits:
    """Content: a rule and its seed, then edits in order. `oracles.router_problem` defines the rules."""

    rule: LogitsRule = "normal"
    dtype: LogitsDtype = "float32"
    seed: int = 0
    edits: tuple[RouterEdit, ...] = ()

    def __post_init__(self) -> None:
        require_choice("logits.rule", self.rule, LogitsRule)
        require_choice("logits.dtype", self.dtype, LogitsDtype)
        require_int("logits.seed", self.seed, 0, 2**32 - 1)
        require_items("logits.edits", self.edits, RouterEdit)


_PARTS: dict[str, Any] = {"shape": RouterShape, "scores": Scores, "logits": Logits}


@dataclass(frozen=True, kw_only=True, eq=False)
class RouterScenario(AnyScenario):
    """One differential test of a router. Raises `InvalidScenario`, naming the field, when its parts do not fit.

    calls: how often it is asked; the answers must agree bit for bit.
    """

    kind: ClassVar[str] = "router"
    format_version: ClassVar[int] = FORMAT_VERSION
    always_told: ClassVar[tuple[str, ...]] = ("shape",)

    shape: RouterShape = RouterShape()
    scores: Scores = Scores()
    logits: Logits = Logits()
    calls: int = 1

    def __post_init__(self) -> None:
        for name, cls in _PARTS.items():
            require_part(name, getattr(self, name), cls)
        require_int("calls", self.calls, 1)
        for position, edit in enumerate(self.logits.edits):
            self._check_edit(f"logits.edits[{position}]", edit)

    def _check_edit(self, where: str, edit: RouterEdit) -> None:
        limits = {"token": self.shape.tokens, "expert": self.shape.experts, "source": self.shape.experts}
        for name, limit in limits.items():
            if hasattr(edit, name):
                require(limit > 0, where, edit, "left out where shape.tokens = 0")
                require_int(f"{where}.{name}", getattr(edit, name), 0, limit - 1)
        if isinstance(edit, SetBias):
            require_number(f"{where}.value", edit.value)
        elif not isinstance(edit, TieExperts):
            value = edit.value
            ok = isinstance(value, float) and (value != value or abs(value) == float("inf") or is_finite_float32(value))
            require(ok, f"{where}.value", value, "a float that float32 can hold")

    @property
    def repeats(self) -> int:
        return self.calls

    def repeated(self, repeats: int) -> Self:
        return replace(self, calls=repeats)
