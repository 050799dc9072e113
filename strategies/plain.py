"""What every kind of scenario shares: checked fields, a versioned JSON form, equality and a digest by that form."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Self

FLOAT32_MAX = float.fromhex("0x1.fffffep127")
"""Largest finite float32. Activation parameters and weights are float32 in every kernel."""


class InvalidScenario(ValueError):
    """A scenario, or its JSON form, breaks a rule. The message names the field, the value and what is allowed."""


def require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise InvalidScenario(f"{name} = {value!r}: must be {allowed}")


def require_int(name: str, value: object, low: int, high: int | None = None) -> None:
    allowed = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= low and (high is None or value <= high)
    require(ok, name, value, allowed)


def require_choice(name: str, value: object, literal: Any) -> None:
    choices = typing.get_args(literal)
    require(value in choices, name, value, f"one of {', '.join(map(str, choices))}")


def require_number(name: str, value: object, *, positive: bool = False, finite: bool = True) -> None:
    ok = (
        isinstance(value, float)
        and not math.isnan(value)
        and (is_finite_float32(value) or (not finite and math.isinf(value)))
    )
    allowed = ("a positive" if positive else "a") + (" finite" if finite else "") + " float in float32's range"
    require(ok and (not positive or typing.cast(float, value) > 0), name, value, allowed)


def is_finite_float32(value: float) -> bool:
    return abs(value) <= FLOAT32_MAX


def require_items(name: str, value: object, item: Any) -> None:
    """`value` must be a tuple of `item` objects; JSON gives nothing else, a caller may."""
    ok = isinstance(value, tuple) and all(isinstance(element, item) for element in value)
    require(ok, name, value, f"a tuple of {_names(item)}")


def require_part(name: str, value: object, cls: Any) -> None:
    require(isinstance(value, cls), name, value, f"a {_names(cls)}")


def _names(classes: Any) -> str:
    return " or ".join(cls.__name__ for cls in typing.get_args(classes) or (classes,))


class AnyScenario:
    """Everything that happens in one differential test, as plain data: a frozen dataclass that holds no tensor.

    Equality and hash are those of the JSON form: a NaN in an edit equals itself. kind: names the class in its JSON
    form, "" where that is left out. format_version: of the JSON form; a reader refuses any other one. always_told:
    parts that are written in full.
    """

    kind: ClassVar[str] = ""
    format_version: ClassVar[int]
    always_told: ClassVar[tuple[str, ...]] = ()

    @property
    def repeats(self) -> int:
        """Calls that must agree bit for bit."""
        raise NotImplementedError

    def repeated(self, repeats: int) -> Self:
        """The scenario with so many `repeats`."""
        raise NotImplementedError

    @functools.cached_property
    def text(self) -> str:
        """`to_json`'s form as text, keys sorted."""
        return json.dumps(self.to_json(), sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, AnyScenario) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def digest(self) -> str:
        """Eight hex digits that name this scenario, stable over machines and Python versions."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]

    def to_json(self) -> dict[str, Any]:
        """A JSON-able dict; NaN and infinities as strings. Fields at their default are left out, but `always_told`."""
        head: dict[str, Any] = {"version": self.format_version} | ({"kind": self.kind} if self.kind else {})
        told = {name: _encode(getattr(self, name), complete=True) for name in self.always_told}
        return head | told | _fields(self)

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Read `to_json`'s form. Raises `InvalidScenario`, naming the field, for anything else."""
        if not isinstance(data, Mapping):
            raise InvalidScenario(f"scenario = {data!r}: must be a JSON object")
        version = data.get("version")
        require(
            version == cls.format_version and not isinstance(version, bool),
            "version",
            version,
            f"{cls.format_version}, the only version that this release reads",
        )
        dropped = ("version", "kind") if cls.kind else ("version",)
        rest = {key: value for key, value in data.items() if key not in dropped}
        return typing.cast(Self, _decode(cls, rest, ""))


_TAGS = ("kind", "edit")


def _encode(value: Any, *, complete: bool = False) -> Any:
    if isinstance(value, str | int):  # most are
        return value
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if dataclasses.is_dataclass(value):
        cls: type = type(value)
        tags = _tags(cls)
        return tags | _fields(value, complete=complete or "kind" in tags)
    return value


def _fields(value: Any, *, complete: bool = False) -> dict[str, Any]:
    """The fields in JSON form. complete: those at their default too."""
    cls: type = type(value)
    content = ((name, getattr(value, name), default) for name, default in _defaults(cls))
    return {name: _encode(item) for name, item, default in content if complete or item != default}


@functools.cache
def _tags(cls: type) -> dict[str, Any]:
    """What tells a class apart in its JSON form."""
    return {tag: getattr(cls, tag) for tag in _TAGS if hasattr(cls, tag)}


@functools.cache
def _defaults(cls: type) -> tuple[tuple[str, Any], ...]:
    """Each field and its default; nothing equals that of a field without one."""
    return tuple((spec.name, spec.default) for spec in dataclasses.fields(cls))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _decode(hint: Any, data: Any, where: str) -> Any:
    """Read `data` as `hint`. `where` is the dotted name of the field, for messages."""
    origin = typing.get_origin(hint)
    if hint is float:
        if isinstance(data, str) and data in ("nan", "inf", "-inf"):
            return float(data)
        ok = isinstance(data, int | float) and not isinstance(data, bool)
        require(ok, where, data, 'a number, or one of "nan", "inf", "-inf"')
        try:
            return float(data)
        except OverflowError:  # an integer of hundreds of digits
            raise InvalidScenario(f"{where} = {data}: must be in the range of a float") from None
    if origin is tuple:
        require(isinstance(data, list), where, data, "a list")
        item = typing.get_args(hint)[0]
        return tuple(_decode(item, element, f"{where}[{position}]") for position, element in enumerate(data))
    if origin in (types.UnionType, typing.Union) and all(map(dataclasses.is_dataclass, typing.get_args(hint))):
        return _decode_tagged(typing.get_args(hint), data, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, data, where)
    return data  # an int, bool, str or None: the dataclass's own check names it


def _decode_tagged(classes: tuple[Any, ...], data: Any, where: str) -> Any:
    require(isinstance(data, Mapping), where, data, "an object")
    tag = next(tag for tag in _TAGS if hasattr(classes[0], tag))
    by_tag = {getattr(cls, tag): cls for cls in classes}
    chosen = data.get(tag)
    known = isinstance(chosen, str) and chosen in by_tag
    require(known, f"{where}.{tag}", chosen, f"one of {', '.join(by_tag)}")
    rest = {key: value for key, value in data.items() if key != tag}
    return _decode_dataclass(by_tag[typing.cast(str, chosen)], rest, where)


def _decode_dataclass(cls: Any, data: Any, where: str) -> Any:
    require(isinstance(data, Mapping), where or "scenario", data, "an object")
    prefix = f"{where}." if where else ""
    specs = {spec.name: spec for spec in dataclasses.fields(cls)}
    for name in data:
        require(name in specs, f"{prefix}{name}", data[name], f"left out: the fields are {', '.join(specs) or 'none'}")
    missing = [n for n, s in specs.items() if s.default is dataclasses.MISSING and n not in data]
    require(not missing, f"{prefix}{missing[0] if missing else ''}", None, "given")
    hints = _hints(cls)
    return cls(**{name: _decode(hints[name], value, f"{prefix}{name}") for name, value in data.items()})
