"""Content of x, weights and biases: a value rule, then the edits of the scenario.

Every element is a hash of its place in the whole layer, so a rank holds exactly its slice of it, and a layer that is
larger in any direction holds the smaller one's elements (but for the few ones of x under the one_hot and integer
rules, which fall anywhere in the H columns that there are).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch

from oracles import formats, hashing
from oracles.kept import Kept
from strategies.scenario import GROUP, Scenario

# Streams of the hash; `oracles.routing` has the others.
_STREAMS = {"x": 0, "w13": 1, "w13_scale": 2, "w2": 3, "w2_scale": 4, "w13_bias": 5, "w2_bias": 6}

_LOWEST_HIDDEN_SCALE = 3
"""E8M0 byte under which a subnormal E4M3 payload, a multiple of 2**-9, is no bfloat16: their least is 2**-133."""

_BFLOAT16_NAN = 0x7FC0
_E4M3_NAN = 0x7F

_CHUNK, _GPU_CHUNK = 1 << 20, 1 << 26
"""Packed bytes of a weight that are made together, on a CPU what stays in a cache; the temporaries take a few times
this. A GPU makes the experts of a Kimi-K3 rank in 21 ms one at a time, and in 3 with so many."""


Given = Mapping[str, torch.Tensor]
"""Tensors by their names in `Problem` that stand for what a rule makes, before the edits and the padding."""


def hidden(
    scenario: Scenario, device: torch.device, given: Given
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """(hidden_states, hidden_q, hidden_scale) as `Problem` has them; padding rows are NaN.

    Rules: normal; integer, 1 in at most six columns of a row; index, small integers in a pattern that tells rows
    and columns apart; one_hot, a single 1 in each row; wide, normal times 2**-12 ... 2**12. All times 2**x_exponent.
    """
    return _Maker(scenario, device, given).hidden()


def weight(
    scenario: Scenario, name: Literal["w13", "w2"], device: torch.device, given: Given, kept: Kept | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(packed [E_local, N, K/2], scale [E_local, N, K/32]), both uint8.

    Rules: integer, sparse 0, +-1, +-2 with scale 1; index, codes in a pattern that tells experts, rows and columns
    apart; all others, any code. Scale bytes, but for the integer rule, from [scale_low, scale_high].
    kept: where to look for what the rule made before. The tensors are the caller's own all the same.
    """
    return _Maker(scenario, device, given).weight(name, kept)


def biases(scenario: Scenario, device: torch.device, given: Given) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(w13_bias [E_local, 2I], w2_bias [E_local, H]), bfloat16: normal, or 0..3 under the integer rule."""
    return _Maker(scenario, device, given).biases()


class _Maker:
    def __init__(self, scenario: Scenario, device: torch.device, given: Given) -> None:
        self.scenario = scenario
        self.values = scenario.values
        self.device = device
        self.given = given

    def _arange(self, *bounds: int) -> torch.Tensor:
        return torch.arange(*bounds, dtype=torch.int64, device=self.device)

    def _key(self, name: str) -> int:
        return hashing.key(self.values.seed, _STREAMS[name])

    @property
    def _own(self) -> range:
        """This moe_tp rank's columns of the intermediate."""
        size = self.scenario.intermediate_local
        return range(self.scenario.layer.moe_tp_rank * size, (self.scenario.layer.moe_tp_rank + 1) * size)

    @property
    def _w13_rows(self) -> torch.Tensor:
        """int64 [2 I_local]: the hash's name of each row, 2 i for gate i and 2 i + 1 for up i."""
        gate = 2 * self._arange(self._own.start, self._own.stop)
        return torch.cat((gate, gate + 1))

    # --- x ---------------------------------------------------------------------------------------------------------

    def hidden(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        given = self.given.get("hidden_states")
        x = self._x() * 2.0**self.values.x_exponent if given is None else given
        padding = (self.scenario.execution.padding, self.scenario.shape.hidden)
        if self.scenario.precision == "bf16xmxfp4":
            states = x.to(torch.bfloat16, copy=True)
            self._edit(states, _BFLOAT16_SPECIALS)
            return torch.cat((states, states.new_full(padding, torch.nan))), None, None
        q, scale = formats.mxfp8_quantize(x.double(), lowest=_LOWEST_HIDDEN_SCALE)
        self._edit(q, _E4M3_SPECIALS)
        q = torch.cat((q, q.new_full(padding, _E4M3_NAN)))
        scale = torch.cat((scale, scale.new_full((padding[0], padding[1] // GROUP), 127)))
        states = formats.mxfp8_dequantize(q, scale).to(torch.bfloat16)
        # The bits of a NaN that comes from a conversion differ between devices.
        states.view(torch.int16).masked_fill_(q & 0x7F == _E4M3_NAN, _BFLOAT16_NAN)
        return states, q.view(torch.float8_e4m3fn), scale

    def _x(self) -> torch.Tensor:
        """float32 [tokens, H]."""
        tokens, columns = self._arange(self.scenario.shape.tokens)[:, None], self._arange(self.scenario.shape.hidden)
        match self.values.rule:
            case "index":
                size = 1 + (tokens * 5 + columns * 3) % 13
                return (size * (1 - 2 * ((tokens + columns // GROUP) % 2))).float()
            case "one_hot":
                return self._hot(columns, tokens, 1)
            case "integer":
                return self._hot(columns, tokens, 6)
        h = hashing.hashed(self._key("x"), columns, tokens)
        match self.values.rule:
            case "wide":
                exponent = hashing.below(h, 25, shift=32) - 12
                return hashing.normal(h) * formats.exp2(exponent).float()
        return hashing.normal(h)

    def _hot(self, columns: torch.Tensor, tokens: torch.Tensor, count: int) -> torch.Tensor:
        """float32 [tokens, H]: 1 in `count` columns of a row (fewer where two fall together), else 0."""
        hot = hashing.below(hashing.hashed(self._key("x"), columns[:count], tokens), len(columns))
        return (columns[:, None] == hot[:, None, :]).any(-1).float()

    def _edit(self, x: torch.Tensor, special: Mapping[str, float]) -> None:
        for edit in self.values.edits:
            if edit.tensor == "hidden_states" and isinstance(edit.value, str):
                x[edit.index] = special[edit.value]

    # --- weights ---------------------------------------------------------------------------------------------------

    def weight(self, name: Literal["w13", "w2"], kept: Kept | None) -> tuple[torch.Tensor, torch.Tensor]:
        if name in self.given:
            packed, scale = self._given(name)
        elif kept is None:
            packed, scale = self._drawn(name)
        else:
            packed, scale = (tensor.clone() for tensor in self._kept(name, kept))
        scenario = self.scenario
        for edit in self.values.edits:
            if edit.tensor == f"{name}_scale" and isinstance(edit.value, int):
                local = edit.index[0] - scenario.first_expert
                if 0 <= local < scenario.experts_local:
                    scale[(local, *edit.index[1:])] = edit.value
        return packed, scale

    def _given(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        return self.given[name], self.given[f"{name}_scale"].clone()

    def _kept(self, name: Literal["w13", "w2"], kept: Kept) -> tuple[torch.Tensor, torch.Tensor]:
        scenario, values = self.scenario, self.values
        rule = (values.rule, values.seed, values.scale_low, values.scale_high)
        place = (scenario.first_expert, scenario.experts_local, scenario.shape.hidden, self._own)
        return kept.of(name, (self.device, rule, place), (), lambda: self._drawn(name))

    def _drawn(self, name: Literal["w13", "w2"]) -> tuple[torch.Tensor, torch.Tensor]:
        scenario = self.scenario
        if name == "w13":
            rows, columns = self._w13_rows[:, None], range(scenario.shape.hidden)
        else:
            rows, columns = 2 * self._arange(scenario.shape.hidden)[:, None], self._own
        sizes = (scenario.experts_local, len(rows))
        packed = torch.empty(*sizes, len(columns) // 2, dtype=torch.uint8, device=self.device)
        scale = torch.empty(*sizes, len(columns) // GROUP, dtype=torch.uint8, device=self.device)
        chunk = _CHUNK if self.device.type == "cpu" else _GPU_CHUNK
        step = max(1, chunk // packed[0].numel())
        for start in range(0, scenario.experts_local, step):
            part = slice(start, min(start + step, scenario.experts_local))
            experts = scenario.first_expert + self._arange(part.start, part.stop)[:, None, None]
            packed[part] = self._codes(name, experts, rows, columns)
            scale[part] = self._scales(name, experts, rows, range(columns.start // GROUP, columns.stop // GROUP))
        return packed, scale

    def _scales(self, name: str, experts: torch.Tensor, rows: torch.Tensor, groups: range) -> torch.Tensor:
        """uint8 [E, N, K/32]."""
        if self.values.rule == "integer":
            return torch.full((len(experts), len(rows), len(groups)), 127, dtype=torch.uint8, device=self.device)
        low, span = self.values.scale_low, self.values.scale_high - self.values.scale_low + 1
        # A hash is the bytes of eight groups.
        words = self._arange(groups.start // 8, -(-groups.stop // 8))
        h = hashing.hashed(self._key(f"{name}_scale"), words, rows, experts)
        byte = h.view(torch.uint8)[..., groups.start % 8 :][..., : len(groups)]
        return (low + (byte.int() * span >> 8)).to(torch.uint8)

    def _codes(self, name: str, experts: torch.Tensor, rows: torch.Tensor, columns: range) -> torch.Tensor:
        """uint8 [E, N, K/2]."""
        if self.values.rule == "index":
            place = rows // 2 * 5 + rows % 2 * 9 + self._arange(columns.start, columns.stop) * 7
            return formats.pack(((experts * 3 % 16).to(torch.uint8) + (place % 16).to(torch.uint8)) & 15)
        # A hash is the 16 codes of eight bytes, the least significant first on every device that torch runs on.
        words = self._arange(columns.start // 16, columns.stop // 16)
        packed = hashing.hashed(self._key(name), words, rows, experts).view(torch.uint8)
        if self.values.rule != "integer":
            return packed
        # Chosen so that both GEMMs and the final sum are exact in float32 in any order, and so that every output is
        # demanded to the bit. With six ones in a row of x, gates are integers in [0, 12] and up in [-12, 12] (a bias
        # adds 3): below 256 their product is a bfloat16, so that where the sigmoid is 1 to the last place no activation
        # sits on a tie. One code in eight of w2 is not 0. A byte is looked up as a whole.
        nibble = formats.unpack(torch.arange(256, dtype=torch.uint8, device=self.device)[:, None])
        size = torch.where(nibble % 2 == 0, 2, 4)  # the E2M1 codes of 1 and 2
        if name == "w13":
            gate = torch.where(nibble < 8, size, 0)
            up = torch.where(nibble < 8, size | (nibble & 2) << 2, 0)  # of either sign
            chosen = rows % 2 * 256 + packed.long()
        else:
            size = 2 + self._arange(2) * 2
            gate = up = torch.where(nibble & 7 == 0, size | (nibble & 8), 0)
            chosen = packed.long()
        table = formats.pack(torch.cat((gate, up)).to(torch.uint8)).squeeze(1)
        return table.index_select(0, chosen.flatten()).view(packed.shape)

    def biases(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        scenario = self.scenario
        if scenario.layer.biases == "none":
            return None, None
        experts = (scenario.first_expert + self._arange(scenario.experts_local))[:, None]

        def make(name: str, places: torch.Tensor) -> torch.Tensor:
            if name in self.given:
                return self.given[name]
            h = hashing.hashed(self._key(name), places, expert=experts)
            value = hashing.below(h, 4).float() if self.values.rule == "integer" else hashing.normal(h)
            return value.to(torch.bfloat16)

        w13_bias = make("w13_bias", self._w13_rows)
        if scenario.layer.moe_tp_rank > 0:  # the bias of the second GEMM is added once, by rank 0
            return w13_bias, None
        return w13_bias, make("w2_bias", self._arange(scenario.shape.hidden))


_BFLOAT16_MAX = 3.3895313892515355e38
_BFLOAT16_SPECIALS = {
    "nan": torch.nan,
    "inf": torch.inf,
    "-inf": -torch.inf,
    "0": 0.0,
    "-0": -0.0,
    "max": _BFLOAT16_MAX,
    "-max": -_BFLOAT16_MAX,
    "min_subnormal": 2.0**-133,
}
_E4M3_SPECIALS = {
    "nan": _E4M3_NAN,
    "inf": _E4M3_NAN,
    "-inf": 0xFF,  # the other NaN
    "0": 0x00,
    "-0": 0x80,
    "max": 0x7E,
    "-max": 0xFE,
    "min_subnormal": 0x01,
}
