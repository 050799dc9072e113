"""What was handed over to the processes that judge, and is not over yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Line:
    """Cases of one campaign, or of several whose executors are the same, in the order in which they were handed over.

    A process takes its cases in that order too. So what is asked about one that is over stands behind those that wait
    already, and its answer is there when its turn comes: nobody waits for it meanwhile.
    """

    def __init__(self) -> None:
        self._ends: deque[Callable[[], None]] = deque()

    def append(self, end: Callable[[], None]) -> None:
        """end: takes the outcome, waiting for it where need be, and may append what has to be asked then."""
        self._ends.append(end)

    def keep(self, length: int) -> None:
        """End the oldest until no more than `length` are left."""
        while len(self._ends) > length:
            self.end_oldest()

    def end_oldest(self) -> None:
        """Raises what the case's own end does; it is not in the line any more then."""
        self._ends.popleft()()
