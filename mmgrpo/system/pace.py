"""Speed and remaining time of a number of steps."""

from __future__ import annotations

from collections import deque
from typing import final

WINDOW = 20
"""Steps over which the speed is averaged; evaluations between them count, because they recur."""


@final
class Pace:
    """A number of steps, and the time at which each was finished.

    Attributes:
        total: number of steps.
        done: number of finished steps, including those of an earlier process.
    """

    def __init__(self, total: int, done: int = 0) -> None:
        """Starts no clock yet."""
        self.total = total
        self.done = done
        self._started_s: float | None = None
        self._marks: deque[tuple[float, int]] = deque(maxlen=WINDOW + 1)

    @property
    def is_started(self) -> bool:
        """Whether the clock runs."""
        return self._started_s is not None

    def start(self, now_s: float) -> None:
        """Starts the clock, unless it runs already."""
        if self._started_s is None:
            self._started_s = now_s
            self._marks.append((now_s, self.done))

    def record(self, done: int, now_s: float) -> None:
        """Records the number of finished steps."""
        self.start(now_s)
        self.done = done
        self._marks.append((now_s, done))

    def elapsed_s(self, now_s: float) -> float:
        """Returns the seconds since its start in this process."""
        return 0.0 if self._started_s is None else now_s - self._started_s

    def last_s(self) -> float | None:
        """Returns the seconds between the last two records; None before there are two."""
        return self._marks[-1][0] - self._marks[-2][0] if len(self._marks) > 1 else None

    def remaining_s(self, now_s: float) -> float | None:
        """Returns the seconds until all steps are finished, at the mean speed of the last steps; None before the first
        step of this process.

        remaining = (mark_n - mark_0) / (done_n - done_0) * (total - done_n) - (now - mark_n), at least 0
        """
        if len(self._marks) < 2 or self._marks[-1][1] == self._marks[0][1]:
            return None
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        return max(0.0, (last_s - first_s) / (last - first) * (self.total - last) - (now_s - last_s))


def clock_text(seconds: float | None) -> str:
    """Formats seconds as ``H:MM:SS``, with days if there are any; dashes for None."""
    if seconds is None:
        return "-:--:--"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days} d ' if days else ''}{hour}:{minute:02d}:{second:02d}"
