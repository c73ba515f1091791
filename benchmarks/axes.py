"""Peak memory and processor time of an iteration against steps, group and rows of a call.

    python -m benchmarks.axes [--plot docs/images/axes.png]

Memory is that of live tensors (``mmgrpo.explain.memory_meter``), above weights and moments of the optimizer, so other
load on the machine does not change it. Time is processor time of the fastest of three iterations.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.iteration import Learner
from benchmarks.settings import Setting
from benchmarks.timing import timed
from mmgrpo.explain.memory_meter import MemoryMeter

BASE = Setting(steps=4, group=4, batch=2)
AXES = {"steps": (4, 8, 16, 32), "group": (4, 8, 16, 32), "batch": (1, 2, 4, 8)}
"""The values of each axis; the others are those of the base. A call of ``batch`` rows has a group of 8."""

TITLES = {"steps": "denoising steps", "group": "samples of a group", "batch": "rows of a call"}
REPEAT = 3
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Point:
    """The measurement of one setting.

    Attributes:
        rollout: peak bytes of the rollout above what exists before it.
        update: peak bytes of the update above what exists before it, the rollout among that.
        cpu_s: processor seconds of rollout, reward and update.
    """

    rollout: int
    update: int
    cpu_s: float


def settings_of(axis: str) -> Iterator[tuple[int, Setting]]:
    """The values of an axis with their settings."""
    base = replace(BASE, group=8) if axis == "batch" else BASE
    for value in AXES[axis]:
        changed: dict[str, Any] = {axis: value}
        yield value, replace(base, **changed)


def measure(setting: Setting, *, repeat: int = REPEAT) -> Point:
    """The peaks of an iteration, and the time of the fastest of ``repeat`` others."""
    learner = Learner.mid_size(setting)
    learner.learn(
        rollout := learner.draw(setting.group), learner.judge(rollout)
    )  # allocates moments, checks the replay
    with MemoryMeter() as meter:
        rollout = learner.draw(setting.group)
    credit = learner.judge(rollout)
    with MemoryMeter() as update:
        learner.learn(rollout, credit)
    seconds = min(_seconds(learner, setting) for _ in range(repeat))
    return Point(meter.peak, update.peak, seconds)


def _seconds(learner: Learner, setting: Setting) -> float:
    def iteration() -> None:
        rollout = learner.draw(setting.group)
        learner.learn(rollout, learner.judge(rollout))

    return timed(setting.device, iteration).spent.cpu_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row per setting, and draws the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="an image of the curves, .svg or .png; needs matplotlib")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    points: dict[str, dict[int, Point]] = {}
    print("| axis | value | peak of the rollout, MiB | peak of the update, MiB | CPU, s |")
    print("| --- | --- | --- | --- | --- |")
    for axis in AXES:
        for value, setting in settings_of(axis):
            point = points.setdefault(axis, {})[value] = measure(setting)
            sizes = f"{point.rollout / MIB:.1f} | {point.update / MIB:.1f}"
            print(f"| {TITLES[axis]} | {value} | {sizes} | {point.cpu_s:.2f} |", flush=True)
    if options.plot is not None:
        draw(points, options.plot)


def draw(points: dict[str, dict[int, Point]], path: Path) -> None:
    """Draws peaks above and seconds below, an axis a column."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4.6), layout="constrained")
    rows = figure.subplots(2, len(points), sharex="col", squeeze=False)
    for column, (axis, curve) in enumerate(points.items()):
        values = list(curve)
        memory, seconds = rows[0][column], rows[1][column]
        memory.plot(values, [p.rollout / MIB for p in curve.values()], "o-", label="rollout")
        memory.plot(values, [p.update / MIB for p in curve.values()], "s-", label="update")
        seconds.plot(values, [p.cpu_s for p in curve.values()], "o-", color="black")
        seconds.set_xlabel(TITLES[axis])
        for axes in (memory, seconds):
            axes.margins(y=0.15)
            axes.set_xlim(left=0)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
    rows[0][0].set_ylabel("peak, MiB")
    rows[1][0].set_ylabel("CPU seconds")
    rows[0][0].legend(loc="center right")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
