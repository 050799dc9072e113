"""Where an output is wrong, and how much: a heat map in characters, small enough for a case file."""

from __future__ import annotations

import torch

ROWS, COLUMNS = 48, 96
"""At most; a larger output is shown in blocks, each by its worst element."""
RIGHT, CONFUSED = ".", "#"
"""Nothing is wrong here; and: finite where it must not be, or the other way round."""


def heat(wrong: torch.Tensor, excess: torch.Tensor, rms: float) -> tuple[str, ...]:
    """A line for each row (or block of rows) of an output [M, H], a character for each column (or block).

    wrong: bool [M, H]. excess: [M, H] distance to what it may be; not finite where kinds are confused. A digit d says
    that the excess is from 10**(d - 7) to 10**(d - 6) times rms, below and above that 0 and 9.
    """
    size = torch.where(excess.isfinite(), excess.abs(), torch.inf)
    digit = torch.log10(size / (rms or 1.0)).add(7).floor().clamp(0, 9)
    level = torch.where(wrong, torch.where(size.isinf(), 10.0, digit), -1.0)
    tall, wide = (-(-have // most) or 1 for have, most in zip(level.shape, (ROWS, COLUMNS), strict=True))
    padded = torch.nn.functional.pad(level, (0, -level.shape[1] % wide, 0, -level.shape[0] % tall), value=-1.0)
    blocks = padded.view(padded.shape[0] // tall, tall, padded.shape[1] // wide, wide).amax((1, 3)).long().tolist()
    signs = [*"0123456789", CONFUSED, RIGHT]
    return tuple("".join(signs[level] for level in row) for row in blocks)
