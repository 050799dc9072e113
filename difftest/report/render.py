"""The templates of reports."""

from __future__ import annotations

from typing import Any

import jinja2

_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("difftest.report"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=jinja2.select_autoescape(("html.j2",)),
)


def render(template: str, **values: Any) -> str:
    """The text of `template` with `values`; one that it needs and does not get is an error."""
    return _TEMPLATES.get_template(template).render(**values)
