"""Which smaller numbers to try, the boldest first."""

from __future__ import annotations

import itertools

from strategies.scenario import GROUP


def smaller(value: int, least: int) -> list[int]:
    """Integers in [least, value): the least, then ever closer to `value`, so that to repeat it is to bisect."""
    steps = []
    step = value - least
    while step > 0:
        steps.append(value - step)
        step //= 2
    return steps


def smaller_widths(width: int) -> list[int]:
    """Multiples of 32 below `width`, for a kernel whose unit is 32 times any power of two.

    The powers of two from 32 up, of which the first that is supported is the kernel's unit, then `width` less a power.
    """
    powers = list(itertools.takewhile(lambda power: power < width, (GROUP << n for n in itertools.count())))
    return list(dict.fromkeys(powers + [width - power for power in reversed(powers)]))
