"""What a scenario's `Capture` takes from the recording of a call."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from oracles import recording
from oracles.recording import Recording
from strategies import recordings
from strategies.capture import AXES, NO_CAPTURE, Capture
from strategies.scenario import GROUP, DuplicateSlot, MaskSlot, RoutingEdit, Scenario, SetWeight, Special, ValueEdit


class InvalidCapture(LookupError):
    """A scenario takes what the recording does not have. The message is one line that names the field."""


@functools.lru_cache(maxsize=1)
def _load(path: Path, _digest: str) -> Recording:
    return recording.load(path)


def taken(scenario: Scenario, device: torch.device) -> Mapping[str, torch.Tensor]:
    """The tensors that `scenario` takes from its recording, by their names, w13_scale and w2_scale with the weights.

    An expert that is not kept is another rank's, whatever id that gives it; where there is no other rank its slots are
    masked. Raises `RecordingNotFound` or `InvalidCapture`.
    """
    capture = scenario.capture
    if not capture:
        return {}
    source = _load(recordings.find(capture.digest), capture.digest)
    found = {}
    for name in capture.tensors:
        for stored in (name, f"{name}_scale") if name in ("w13", "w2") else (name,):
            if stored not in source.tensors:
                raise InvalidCapture(f"capture.tensors = {name}: must be in the recording {source.path}")
            try:
                found[stored] = _part(stored, source, capture)
            except IndexError:
                raise InvalidCapture(
                    f"capture.{'/'.join(AXES[name])}: must be places of {name} in {source.path}"
                ) from None
    if "topk_ids" in found:
        found["topk_ids"] = _renumbered(found["topk_ids"], source.scenario, scenario)
    return {name: tensor.contiguous().to(device) for name, tensor in found.items()}


def _part(name: str, source: Recording, capture: Capture) -> torch.Tensor:
    """The places of a tensor that are kept."""
    tensor, recorded = source.tensors[name], source.scenario
    tokens, slots = torch.tensor(capture.tokens, dtype=torch.int64), torch.tensor(capture.slots, dtype=torch.int64)
    experts = torch.tensor(capture.experts, dtype=torch.int64) - recorded.first_expert
    if experts.numel() and not 0 <= int(experts.min()) <= int(experts.max()) < recorded.experts_local:
        raise IndexError

    def columns(groups: tuple[int, ...], size: int = GROUP) -> torch.Tensor:
        return (torch.tensor(groups, dtype=torch.int64)[:, None] * size + torch.arange(size)).flatten()

    gate = columns(capture.intermediate)
    rows = torch.cat((gate, gate + recorded.intermediate_local))
    match name:
        case "hidden_states":
            return tensor[tokens][:, columns(capture.hidden)]
        case "topk_ids" | "topk_weights":
            return tensor[tokens][:, slots]
        case "w13":
            return tensor[experts][:, rows][:, :, columns(capture.hidden, GROUP // 2)]
        case "w13_scale":
            return tensor[experts][:, rows][:, :, columns(capture.hidden, 1)]
        case "w2":
            return tensor[experts][:, columns(capture.hidden)][:, :, columns(capture.intermediate, GROUP // 2)]
        case "w2_scale":
            return tensor[experts][:, columns(capture.hidden)][:, :, columns(capture.intermediate, 1)]
        case "w13_bias":
            return tensor[experts][:, rows]
    return tensor[experts][:, columns(capture.hidden)]


def _renumbered(ids: torch.Tensor, recorded: Scenario, scenario: Scenario) -> torch.Tensor:
    """Recorded ids as those of the experts that are kept. Nothing changes where all are, of the same ranks."""
    first, local, experts = recorded.first_expert, recorded.experts_local, recorded.shape.experts
    kept = torch.tensor(scenario.capture.experts, dtype=torch.int64)
    old = torch.arange(experts)
    mine = (old >= first) & (old < first + local)
    # The foreign ones in their order, then those of this rank that are dropped.
    foreign = torch.where(mine, experts - local + old - first, torch.where(old < first, old, old - local))
    others = scenario.shape.experts - scenario.experts_local
    if others:
        new = foreign % others
        new = torch.where(new < scenario.first_expert, new, new + scenario.experts_local)
    else:
        new = torch.full_like(old, -1)
    new[kept] = scenario.first_expert + torch.arange(len(kept))
    return torch.where(ids < 0, -1, new[ids.long().clamp(min=0)]).to(torch.int32)


def described(scenario: Scenario) -> Scenario:
    """`scenario` without its recording, and with an edit for each kind of thing that is peculiar in it: a masked slot,
    an expert twice in a row, a NaN or infinity, a scale byte 0x00 or 0xFF.

    That is what an oracle's `unsupported` asks for. Building it gives other tensors.
    """
    given = taken(scenario, torch.device("cpu"))
    if not given:
        return scenario
    return replace(
        scenario,
        capture=NO_CAPTURE,
        routing=replace(scenario.routing, edits=(*_routing_edits(given), *scenario.routing.edits)),
        values=replace(scenario.values, edits=(*_value_edits(given, scenario), *scenario.values.edits)),
    )


def _first(where: torch.Tensor) -> list[list[int]]:
    places: list[list[int]] = where.nonzero()[:1].tolist()
    return places


def _routing_edits(given: Mapping[str, torch.Tensor]) -> Iterator[RoutingEdit]:
    ids, weights = given.get("topk_ids"), given.get("topk_weights")
    if ids is not None:
        for token, slot in _first(ids == -1):
            yield MaskSlot(token=token, slot=slot)
        same = (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] >= 0)
        for token, slot, source in _first(same.tril(-1)):
            yield DuplicateSlot(token=token, slot=slot, source=source)
    if weights is not None:
        for token, slot in _first(~weights.isfinite()):
            yield SetWeight(token=token, slot=slot, weight=float(weights[token, slot]))


def _value_edits(given: Mapping[str, torch.Tensor], scenario: Scenario) -> Iterator[ValueEdit]:
    states = given.get("hidden_states")
    if states is not None:
        for token, column in _first(~states.isfinite()):
            value = float(states[token, column])
            special: Special = "nan" if value != value else "inf" if value > 0 else "-inf"
            yield ValueEdit(tensor="hidden_states", index=(token, column), value=special)
    if "w13_scale" in given:
        for byte in (0x00, 0xFF):
            for expert, row, group in _first(given["w13_scale"] == byte):
                index = (scenario.first_expert + expert, row, group)
                yield ValueEdit(tensor="w13_scale", index=index, value=byte)
    if "w2_scale" in given:
        for byte in (0x00, 0xFF):
            for expert, row, group in _first(given["w2_scale"] == byte):
                yield ValueEdit(tensor="w2_scale", index=(scenario.first_expert + expert, row, group), value=byte)
