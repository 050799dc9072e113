"""Changes to a case that leave its right answer nearly alone: what the candidate makes of them says why it is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from difftest.shrinking.refit import with_edits
from strategies.scenario import (
    InvalidScenario,
    MaskRow,
    Scenario,
    SetWeight,
    Values,
)

POISON = 0x3C
"""A byte of which a bfloat16 or float16 is an ordinary number."""


def with_poison(case: Scenario) -> Iterator[Scenario]:
    """The case with memory full of a byte that is no 0: what was never written shows it."""
    if case.execution.poison == 0:
        yield dataclasses.replace(case, execution=dataclasses.replace(case.execution, poison=POISON))


def with_ordinary_padding(case: Scenario) -> Iterator[Scenario]:
    """The case with masked rows of finite values in the place of those that pad the batch, which hold NaN."""
    execution, tokens = case.execution, case.shape.tokens
    if execution.padding and execution.padding_rows == "masked":
        rows = tokens + execution.padding
        masked = tuple(MaskRow(token=token) for token in range(tokens, rows))
        try:
            longer = dataclasses.replace(
                case,
                shape=dataclasses.replace(case.shape, tokens=rows),
                execution=dataclasses.replace(execution, padding=0),
            )
            yield with_edits(longer, (*longer.routing.edits, *masked), longer.values.edits)
        except InvalidScenario:
            return


def with_ordinary_values(case: Scenario) -> Iterator[Scenario]:
    """The case with finite values of ordinary size alone: no mistake about others can show."""
    plain = Values()
    values = dataclasses.replace(
        case.values,
        x_exponent=plain.x_exponent,
        scale_low=plain.scale_low,
        scale_high=plain.scale_high,
        edits=(),
    )
    execution = dataclasses.replace(case.execution, padding=0, padding_rows="masked")  # which hold NaN
    kept = [edit for edit in case.routing.edits if not isinstance(edit, SetWeight)]
    try:
        plainer = dataclasses.replace(case, values=values, execution=execution)
        yield with_edits(plainer, kept, ())
    except InvalidScenario:
        return
