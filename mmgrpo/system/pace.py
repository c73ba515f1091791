"""How fast something goes on, and how long what is left of it takes at that."""

from __future__ import annotations

from collections import deque
from typing import final

WINDOW = 20
"""Steps whose mean tells the time left; evaluations between them count in, as they will come again."""


@final
class Pace:
    """Steps of a whole, and when each was done.

    Attributes:
        total: how many there are.
        done: how many are done, those of an earlier process included.
    """

    def __init__(self, total: int, done: int = 0) -> None:
        """Stands still until ``begin``."""
        self.total = total
        self.done = done
        self._began_s: float | None = None
        self._marks: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    @property
    def is_begun(self) -> bool:
        """Whether its clock runs."""
        return self._began_s is not None

    def begin(self, now_s: float) -> None:
        """Starts the clock, unless it runs."""
        if self._began_s is None:
            self._began_s = now_s
            self._marks.append((now_s, self.done))

    def reached(self, done: int, now_s: float) -> None:
        """That many are done now."""
        self.begin(now_s)
        self.done = done
        self._marks.append((now_s, done))

    def gone_s(self, now_s: float) -> float:
        """Seconds since it began in this process."""
        return 0.0 if self._began_s is None else now_s - self._began_s

    def last_s(self) -> float | None:
        """Seconds from the last mark but one to the last; None before there are two."""
        return self._marks[-1][0] - self._marks[-2][0] if len(self._marks) > 1 else None

    def left_s(self, now_s: float) -> float | None:
        """Seconds until all are done, at the mean of the last steps; None before the first of this process is done.

        left = (mark_n - mark_0) / (done_n - done_0) * (total - done_n) - (now - mark_n), at least 0
        """
        if len(self._marks) < 2 or self._marks[-1][1] == self._marks[0][1]:
            return None
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        return max(0.0, (last_s - first_s) / (last - first) * (self.total - last) - (now_s - last_s))


def clock_text(seconds: float | None) -> str:
    """``H:MM:SS``, with days before it where it takes them; dashes for what is not known."""
    if seconds is None:
        return "-:--:--"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days} d ' if days else ''}{hour}:{minute:02d}:{second:02d}"
