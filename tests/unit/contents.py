"""Contents of a problem that are hard on an error bound, each a rule of a few lines.

Made with a seeded generator of torch, not with the hash of `oracles.content`: these are no scenarios, they include what
no scenario can draw.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from oracles.problem import Problem, build
from strategies.scenario import Activation, Scenario, Shape, Situ, Swiglu, SwigluOai

Tensor = torch.Tensor

ACTIVATIONS: dict[str, Activation] = {"swiglu": Swiglu(), "swiglu_oai": SwigluOai(), "situ": Situ()}


def problem(name: str, shape: Shape, activation: str = "swiglu", *, seed: int = 0, mirror: bool = False) -> Problem:
    """The content `name` of `CONTENTS` in `shape`.

    mirror: every token goes to two experts of equal weight, the second of which is the first with its intermediate
    columns in another order and w2 negated. All outputs are 0 but for rounding errors, which so become visible.
    """
    base = build(Scenario(shape=shape, activation=ACTIVATIONS[activation]))
    maker = _Maker(base, seed)
    CONTENTS[name](maker)
    made = dataclasses.replace(base, **maker.made)
    return _mirrored(made, seed) if mirror else made


def pack(codes: Tensor) -> Tensor:
    pairs = codes.to(torch.uint8).reshape(*codes.shape[:-1], -1, 2)
    return pairs[..., 0] | pairs[..., 1] << 4


def unpack(packed: Tensor) -> Tensor:
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


class _Maker:
    """Draws the tensors; `made` has those that replace the base's."""

    def __init__(self, base: Problem, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.tokens, self.hidden = base.hidden_states.shape
        self.experts, self.inner = base.experts_local, base.intermediate
        self.made: dict[str, Tensor] = {}
        self.x(self.normal())
        self.codes(0, 15)
        self.scales(118, 122)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=self.generator)

    def normal(self, columns: int = 0) -> Tensor:
        shape = self.tokens, columns or self.hidden
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def powers(self, low: int, high: int) -> Tensor:
        return torch.exp2(self.integers(low, high, self.tokens, self.hidden).double())

    def x(self, value: Tensor) -> None:
        self.made["hidden_states"] = value.expand(self.tokens, self.hidden).to(torch.bfloat16).contiguous()

    def weight(self, name: str, codes: Tensor) -> None:
        self.made[name] = pack(codes.contiguous())

    def codes(self, low: int, high: int) -> None:
        """Codes 0..7 are positive, 8..15 negative."""
        self.weight("w13", self.integers(low, high, self.experts, 2 * self.inner, self.hidden))
        self.weight("w2", self.integers(low, high, self.experts, self.hidden, self.inner))

    def scales(self, low: int, high: int, names: tuple[str, ...] = ("w13", "w2")) -> None:
        for name in names:
            rows, columns = (2 * self.inner, self.hidden) if name == "w13" else (self.hidden, self.inner)
            scale = self.integers(low, high, self.experts, rows, columns // 32)
            self.made[f"{name}_scale"] = scale.to(torch.uint8)

    def repeat_rows(self, rows: slice, of: int) -> None:
        """w13's `rows` become copies of one of them."""
        for name in ("w13", "w13_scale"):
            self.made[name][:, rows] = self.made[name][:, of : of + 1].clone()


def _normal(make: _Maker) -> None:
    del make


def _positive(make: _Maker) -> None:
    make.x(make.normal().abs())
    make.codes(0, 7)


def _narrow(make: _Maker) -> None:
    """All products within a factor of 2: every partial sum is larger than the last."""
    make.x(1 + make.uniform(make.tokens, make.hidden))
    make.codes(2, 2)
    make.scales(120, 120)


def _constant(make: _Maker) -> None:
    make.x(1 + make.uniform(make.tokens, 1))


def _constant_positive(make: _Maker) -> None:
    make.x(1 + make.uniform(make.tokens, 1))
    make.codes(1, 7)


def _repeated_rows(make: _Maker) -> None:
    make.weight("w2", make.integers(0, 7, make.experts, make.hidden, make.inner))
    make.repeat_rows(slice(0, make.inner), 0)
    make.repeat_rows(slice(make.inner, None), make.inner)


def _repeated_up(make: _Maker) -> None:
    """Only up is one variable: gates differ, and are positive."""
    make.x(make.normal().abs())
    gate = make.integers(0, 7, make.experts, make.inner, make.hidden)
    up = make.integers(0, 15, make.experts, make.inner, make.hidden)
    make.weight("w13", torch.cat((gate, up), 1))
    make.weight("w2", make.integers(0, 7, make.experts, make.hidden, make.inner))
    make.repeat_rows(slice(make.inner, None), make.inner)


def _scaled_rows(make: _Maker) -> None:
    """Rows that are powers of two of one another: their sums err alike too."""
    _repeated_rows(make)
    power = make.integers(-2, 2, make.experts, 2 * make.inner, 1)
    make.made["w13_scale"] = (make.made["w13_scale"].int() + power).to(torch.uint8)


def _one_hot(make: _Maker) -> None:
    make.x(torch.nn.functional.one_hot(make.integers(0, make.hidden - 1, make.tokens), make.hidden).double())


def _integer(make: _Maker) -> None:
    make.x(make.integers(-3, 3, make.tokens, make.hidden).double())
    make.scales(127, 127)


def _wide(make: _Maker) -> None:
    make.x(make.normal() * make.powers(-12, 12))
    make.scales(108, 132)


def _wide_positive(make: _Maker) -> None:
    make.x(make.normal().abs() * make.powers(-12, 12))
    make.codes(0, 7)
    make.scales(108, 132)


def _alternating(make: _Maker) -> None:
    """Two lanes that grow apart while the sum in order stays small."""
    sign = 1 - 2 * (torch.arange(make.hidden) % 2)
    make.x(make.normal().abs() * sign)
    make.weight("w13", make.integers(0, 7, make.experts, 2 * make.inner, make.hidden))
    odd = torch.arange(make.inner) % 2 * 8
    make.weight("w2", make.integers(0, 7, make.experts, make.hidden, make.inner) | odd)


def _blocks_alternate(make: _Maker) -> None:
    make.x(make.normal().abs() * (1 - 2 * (torch.arange(make.hidden) // 32 % 2)))
    make.weight("w13", make.integers(0, 7, make.experts, 2 * make.inner, make.hidden))
    odd = torch.arange(make.inner) // 32 % 2 * 8
    make.weight("w2", make.integers(0, 7, make.experts, make.hidden, make.inner) | odd)


def _periodic(make: _Maker) -> None:
    make.x(make.normal(32).repeat(1, make.hidden // 32))
    rows = make.integers(0, 15, make.experts, 2 * make.inner, 32)
    make.weight("w13", rows.repeat(1, 1, make.hidden // 32))
    make.scales(120, 120)


def _large_gates(make: _Maker) -> None:
    make.made["w13_scale"][:, : make.inner] += 5


def _small_up(make: _Maker) -> None:
    """Arguments of tanh where 2 sigmoid(2 z) - 1 has few bits left, and all weights of one sign."""
    make.x(make.normal() * 2.0**-9)
    make.weight("w2", make.integers(0, 7, make.experts, make.hidden, make.inner))


def _stagnating(make: _Maker) -> None:
    """One large product, then many that are each below an ulp of it, all of one sign."""
    x = (1 + make.uniform(make.tokens, make.hidden)) * 2.0**-15
    x[:, 0] = 1.0
    make.x(x)
    codes = make.integers(1, 7, make.experts, 2 * make.inner, make.hidden)
    codes[..., 1:32] = 0
    codes[..., 0] = 6
    make.weight("w13", codes)
    make.scales(112, 112)
    make.made["w13_scale"][..., 0] = 120
    make.made["w2_scale"] = torch.full_like(make.made["w2_scale"], 120)


def _tiny(make: _Maker) -> None:
    make.x(make.normal() * 2.0**-100)
    make.scales(80, 110, ("w13",))
    make.scales(100, 250, ("w2",))


def _subnormal(make: _Maker) -> None:
    make.x(make.normal() * make.powers(-132, -110))
    make.scales(0, 254)


def _huge(make: _Maker) -> None:
    """Overflow, and scale bytes that are NaN."""
    make.x(make.normal() * make.powers(-30, 60))
    make.scales(127, 254, ("w13",))
    make.scales(100, 255, ("w2",))


CONTENTS: dict[str, Callable[[_Maker], None]] = {
    "normal": _normal,
    "positive": _positive,
    "narrow": _narrow,
    "constant": _constant,
    "constant_positive": _constant_positive,
    "repeated_rows": _repeated_rows,
    "repeated_up": _repeated_up,
    "scaled_rows": _scaled_rows,
    "one_hot": _one_hot,
    "integer": _integer,
    "wide": _wide,
    "wide_positive": _wide_positive,
    "alternating": _alternating,
    "blocks_alternate": _blocks_alternate,
    "periodic": _periodic,
    "large_gates": _large_gates,
    "small_up": _small_up,
    "stagnating": _stagnating,
    "tiny": _tiny,
    "subnormal": _subnormal,
    "huge": _huge,
}


def _mirrored(made: Problem, seed: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randperm(made.intermediate // 32, generator=generator)
    columns = (groups[:, None] * 32 + torch.arange(32)).flatten()
    w13, w13_scale, w2, w2_scale = (t.clone() for t in (made.w13, made.w13_scale, made.w2, made.w2_scale))
    rows = torch.cat((columns, columns + made.intermediate))
    for expert in range(0, made.experts_local, 2):
        w13[expert + 1], w13_scale[expert + 1] = w13[expert, rows], w13_scale[expert, rows]
        w2[expert + 1] = pack(unpack(w2[expert])[:, columns] ^ 8)
        w2_scale[expert + 1] = w2_scale[expert][:, groups]
    first = torch.arange(made.tokens) % (made.experts_local // 2) * 2
    return dataclasses.replace(
        made,
        w13=w13,
        w13_scale=w13_scale,
        w2=w2,
        w2_scale=w2_scale,
        topk_ids=torch.stack((first, first + 1), 1).int(),
        topk_weights=torch.ones(made.tokens, 2),
    )
