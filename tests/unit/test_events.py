"""The schema of events in the documentation is that of the code."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

from difftest.output import events

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def test_every_event_is_documented_with_its_fields() -> None:
    text = PAGE.read_text()
    rows = re.findall(r"^\| `([A-Z]\w+)` \| (.*?) \|", text, re.MULTILINE)
    documented = {name: re.findall(r"`(\w+)`", fields) for name, fields in rows}
    assert documented == {
        event.__name__: [field.name for field in dataclasses.fields(event)] for event in typing.get_args(events.Event)
    }
    assert f'{{"version": {events.FORMAT_VERSION}, "event"' in text
