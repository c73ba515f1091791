"""Display of a run's progress: bars that are redrawn on a terminal, plain lines in a file or a pipe."""

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
"""Seconds after which a file gets a line about the phase within a step."""
NUM_LINES = 10
"""Minimal number of lines for a stage of many short steps."""


@dataclass(slots=True)
class ProgressStage:
    """A part of the run with its own bar: the warm-up or the training.

    Attributes:
        name: label of the bar.
        pace: its steps.
        text: the metrics of its last step.
    """

    name: str
    pace: Pace
    text: str = ""


@dataclass(slots=True)
class Activity:
    """A phase within a step.

    Attributes:
        stage: name of the stage.
        phase: rollout, reward, update or evaluation.
        total: number of its samples; None if they are not counted.
        started_s: start, on the display's clock.
        done: number of finished samples.
    """

    stage: str
    phase: str
    total: int | None
    started_s: float
    done: int = 0

    def text(self, now_s: float) -> str:
        """Returns a text such as ``rollout 320 of 1,152, 0:01:05``."""
        of = "" if self.total is None else f" {self.done:,} of {self.total:,}"
        return f"{self.phase}{of}, {clock_text(now_s - self.started_s)}"


class Display(Protocol):
    """Shows stages, and the current phase."""

    def start(self) -> None:
        """Starts the display."""

    def stop(self) -> None:
        """Stops the display; the last state stays visible."""

    def show_activity(self, activity: Activity) -> None:
        """Shows that a phase started, or that some of its samples are finished."""

    def show_step(self, stage: ProgressStage, *, every_step: bool) -> None:
        """Shows a finished step; without ``every_step`` a display may omit some."""


def is_terminal() -> bool:
    """Whether stdout is a terminal that can be redrawn."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


@final
class BarDisplay:
    """A bar per stage; below them the metrics of the last step and the current phase, wrapped and never truncated."""

    def __init__(self, console: PlainConsole, stages: Mapping[str, ProgressStage], clock: Callable[[], float]) -> None:
        """Shows nothing yet."""
        self._console = console
        self._stages = stages
        self._clock = clock
        self._activity: Activity | None = None
        self._step_text = ""
        self._live = Live(get_renderable=self.view, console=console, refresh_per_second=4)

    def start(self) -> None:
        """Redraws four times a second."""
        self._live.start()

    def stop(self) -> None:
        """Redraws a last time."""
        self._activity = None
        self._live.stop()

    def show_activity(self, activity: Activity) -> None:
        """Shows the phase at the next redraw."""
        self._activity = activity

    def show_step(self, stage: ProgressStage, *, every_step: bool) -> None:
        """Shows the metrics at the next redraw."""
        self._step_text = stage.text

    def view(self) -> Table:
        """Returns the current content."""
        now = self._clock()
        rows = [
            (
                stage.name,
                f"{pace.done:,}/{pace.total:,}",
                clock_text(pace.elapsed_s(now)),
                f"left {clock_text(pace.remaining_s(now))}",
            )
            for stage in self._stages.values()
            for pace in [stage.pace]
        ]
        columns = [max(map(len, texts)) for texts in zip(*rows, strict=True)]
        width = max(4, min(BAR_WIDTH, self._console.width - sum(columns) - len(columns) - 1))
        bars = Table.grid(padding=(0, 1))
        for (name, count, elapsed, remaining), stage in zip(rows, self._stages.values(), strict=True):
            bar = ProgressBar(total=max(stage.pace.total, 1), completed=stage.pace.done, width=width)
            bars.add_row(name, bar, count, elapsed, remaining)
        view = Table.grid()
        view.add_row(bars)
        for text in (self._step_text, self._activity.text(now) if self._activity else ""):
            if text:
                view.add_row(text)
        return view


@final
class LineDisplay:
    """A line per step, with the remaining time; within a long step, a line about the phase from time to time."""

    def __init__(self, console: PlainConsole, stages: Mapping[str, ProgressStage], clock: Callable[[], float]) -> None:
        """Prints nothing yet."""
        self._console = console
        self._stages = stages
        self._clock = clock
        self._last_print_s = clock()

    def start(self) -> None:
        """Prints nothing."""

    def stop(self) -> None:
        """Prints nothing."""

    def show_activity(self, activity: Activity) -> None:
        """Prints a line if the last one is older than ``QUIET_S``."""
        now = self._clock()
        if now - self._last_print_s >= QUIET_S:
            pace = self._stages[activity.stage].pace
            self._print(f"{activity.stage} {pace.done:,} of {pace.total:,} done: {activity.text(now)}", now)

    def show_step(self, stage: ProgressStage, *, every_step: bool) -> None:
        """Prints a line; without ``every_step`` at every tenth of the steps, or if the last one is old."""
        now, pace = self._clock(), stage.pace
        is_due = every_step or pace.done in (1, pace.total) or pace.done % max(1, pace.total // NUM_LINES) == 0
        if not is_due and now - self._last_print_s < QUIET_S:
            return
        step_s = pace.last_s()
        step_time = f"  {step_s:.1f} s" if every_step and step_s is not None else ""
        remaining = clock_text(pace.remaining_s(now))
        self._print(f"{stage.name} {pace.done:,} of {pace.total:,}  {stage.text}{step_time}  left {remaining}", now)

    def _print(self, text: str, now_s: float) -> None:
        self._console.print_line(text)
        self._console.file.flush()
        self._last_print_s = now_s


def make_display(
    console: PlainConsole, stages: Mapping[str, ProgressStage], clock: Callable[[], float] = time.monotonic
) -> Display:
    """Returns bars for a terminal, else lines."""
    return (BarDisplay if is_terminal() and not console.quiet else LineDisplay)(console, stages, clock)
