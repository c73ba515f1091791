"""Where a run's progress is shown: bars that are redrawn on a terminal, plain lines in a file or a pipe."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, final

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from mmgrpo.system.console import PlainConsole
from mmgrpo.system.pace import Pace, clock_text

BAR_WIDTH = 28
QUIET_S = 30.0
"""Seconds after which a file gets a line of what is going on within a step."""
NUM_PARTS = 10
"""Lines that a stage of many short steps gets at least."""


@dataclass(slots=True)
class Stage:
    """A part of the run that has a bar: the warm-up or the training.

    Attributes:
        name: what it is called.
        pace: its steps.
        says: the numbers of its last step.
    """

    name: str
    pace: Pace
    says: str = ""


@dataclass(slots=True)
class Activity:
    """What goes on within a step.

    Attributes:
        stage: the stage's name.
        what: rollout, reward, update or evaluation.
        total: parts of it; None where they are not counted.
        began_s: when, on the display's clock.
        done: parts that are done.
    """

    stage: str
    what: str
    total: int | None
    began_s: float
    done: int = 0

    def text(self, now_s: float) -> str:
        """``rollout 320 of 1,152, 0:01:05``."""
        of = "" if self.total is None else f" {self.done:,} of {self.total:,}"
        return f"{self.what}{of}, {clock_text(now_s - self.began_s)}"


class Display(Protocol):
    """What shows stages, and what goes on in them."""

    def start(self) -> None:
        """Begins to show."""

    def stop(self) -> None:
        """Leaves what is shown as it is."""

    def goes_on(self, activity: Activity) -> None:
        """Something within a step began, or a part of it is done."""

    def stepped(self, stage: Stage, *, every_step: bool) -> None:
        """A step of a stage is done; one among many short ones may go without a line of its own."""


def is_watched() -> bool:
    """Whether stdout is a terminal that can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@final
class Bars:
    """A bar per stage, under it what goes on and the numbers of the last step, wrapped and never cut."""

    def __init__(self, console: PlainConsole, stages: Mapping[str, Stage], clock: Callable[[], float]) -> None:
        """Shows nothing yet."""
        self._console = console
        self._stages = stages
        self._clock = clock
        self._activity: Activity | None = None
        self._said = ""
        self._live = Live(get_renderable=self.view, console=console, refresh_per_second=4)

    def start(self) -> None:
        """Draws, four times a second."""
        self._live.start()

    def stop(self) -> None:
        """Draws for the last time."""
        self._activity = None
        self._live.stop()

    def goes_on(self, activity: Activity) -> None:
        """Shown when the bars are drawn next."""
        self._activity = activity

    def stepped(self, stage: Stage, *, every_step: bool) -> None:
        """Shown when the bars are drawn next."""
        self._said = stage.says

    def view(self) -> Table:
        """What is drawn now."""
        now = self._clock()
        rows = [
            (
                stage.name,
                f"{pace.done:,}/{pace.total:,}",
                clock_text(pace.gone_s(now)),
                f"left {clock_text(pace.left_s(now))}",
            )
            for stage in self._stages.values()
            for pace in [stage.pace]
        ]
        columns = [max(map(len, texts)) for texts in zip(*rows, strict=True)]
        width = max(4, min(BAR_WIDTH, self._console.width - sum(columns) - len(columns) - 1))
        bars = Table.grid(padding=(0, 1))
        for (name, count, gone, left), stage in zip(rows, self._stages.values(), strict=True):
            bar = ProgressBar(total=max(stage.pace.total, 1), completed=stage.pace.done, width=width)
            bars.add_row(name, bar, count, gone, left)
        view = Table.grid()
        view.add_row(bars)
        for text in (self._said, self._activity.text(now) if self._activity else ""):
            if text:
                view.add_row(text)
        return view


@final
class Lines:
    """A line a step, with the time left; within a step that takes long, a line now and then."""

    def __init__(self, console: PlainConsole, stages: Mapping[str, Stage], clock: Callable[[], float]) -> None:
        """Says nothing yet."""
        self._console = console
        self._stages = stages
        self._clock = clock
        self._said_s = clock()

    def start(self) -> None:
        """Nothing is said before something happens."""

    def stop(self) -> None:
        """Nothing is left to be said."""

    def goes_on(self, activity: Activity) -> None:
        """A line, if none was written for long."""
        now = self._clock()
        if now - self._said_s >= QUIET_S:
            pace = self._stages[activity.stage].pace
            self._say(f"{activity.stage} {pace.done:,} of {pace.total:,} done: {activity.text(now)}", now)

    def stepped(self, stage: Stage, *, every_step: bool) -> None:
        """A line; of short steps at every tenth of all, or if none was written for long."""
        now, pace = self._clock(), stage.pace
        is_due = every_step or pace.done in (1, pace.total) or pace.done % max(1, pace.total // NUM_PARTS) == 0
        if not is_due and now - self._said_s < QUIET_S:
            return
        took = pace.last_s()
        lasted = f"  {took:.1f} s" if every_step and took is not None else ""
        left = clock_text(pace.left_s(now))
        self._say(f"{stage.name} {pace.done:,} of {pace.total:,}  {stage.says}{lasted}  left {left}", now)

    def _say(self, text: str, now_s: float) -> None:
        self._console.say(text)
        self._console.file.flush()
        self._said_s = now_s


def display_of(
    console: PlainConsole, stages: Mapping[str, Stage], clock: Callable[[], float] = time.monotonic
) -> Display:
    """Bars where somebody watches them, lines elsewhere."""
    return Bars(console, stages, clock) if is_watched() and not console.quiet else Lines(console, stages, clock)
