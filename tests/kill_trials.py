"""Kills training processes, goes on from what they left, and compares that with a run that nobody killed, bit for bit.

    python -m tests.kill_trials --random 100 --points 50

A process is killed at a random moment, or at a point: right before the n-th time it opens, renames, removes or syncs
something of its run folder, or a moment after that, in the midst of a write; at every point of one save, and at others
spread over the whole run. Some are killed again while they go on.
Processes are forked, so that the libraries are imported once.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmgrpo.run.checkpoint import MANIFEST, list_checkpoints
from mmgrpo.system.files import read_lines
from tests.test_trainer import run

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.fsync")
KEPT = 2
MEMORY = "/dev/shm"  # a killed process loses nothing that it wrote, and syncing a disk takes most of the time
SETTINGS: dict[str, Any] = {
    "steps": 3,
    "warmup": {"examples": {"name": "mislabelled_digits", "fraction": 0.45}, "steps": 4, "batch_size": 4},
    "evaluation": {"prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts", "limit": 2}, "every": 2},
    "checkpoint": {"every": 1, "warmup_every": 2, "keep": KEPT},
    "watchdog": {"window": 2, "interval": 1, "on_policy_gap": 1e-12, "dead_groups": 1e-9},
}


@dataclass(frozen=True, slots=True)
class Kill:
    """When a process is killed.

    Attributes:
        after_s: so many seconds after its start; None: at a point.
        event: the number of the event, counted from 1, right before which it is.
        late_s: or so many seconds after that event began.
    """

    after_s: float | None = None
    event: int | None = None
    late_s: float | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """A run that nobody killed: what it left, and how long and through how many events it went."""

    left: dict[str, Any]
    took_s: float
    events: tuple[str, ...]


def trained(output: Path, kill: Kill | None = None) -> int:
    """Trains in a process of its own, from the start or from what is there; returns how that ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with _silent(output):
                _watch(output, kill)
                folder = output / "run"
                run(output, resume=folder if (folder / "config.yaml").is_file() else None, **SETTINGS)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if kill is not None and kill.after_s is not None:
        time.sleep(kill.after_s)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def left_behind(folder: Path) -> dict[str, Any]:
    """Everything that a run leaves, but for the times it took."""
    rows = {name: read_lines(folder / f"{name}.jsonl") for name in ("metrics", "evaluation", "warmup", "alarms")}
    return {
        "lines": {
            name: [{k: v for k, v in row.items() if not k.startswith("time")} for row in found.rows]
            for name, found in rows.items()
        },
        "unreadable": sum(found.num_dropped for found in rows.values()),
        "checkpoints": {
            one.name: json.loads((one / MANIFEST).read_text())["sha256"] for one in list_checkpoints(folder)
        },
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
        "samples": {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((folder / "samples").rglob("*"))
            if path.is_file()
        },
        "status": json.loads((folder / "run.json").read_text())["status"],
    }


def whole_run(output: Path) -> Whole:
    """The run that the others are compared with."""
    began = time.monotonic()
    assert trained(output) == 0
    took_s = time.monotonic() - began
    events = tuple((output / "events.log").read_text().splitlines())
    return Whole(left_behind(output / "run"), took_s, events)


def differences(output: Path, whole: Whole, kill: Kill, again: Kill | None) -> Iterator[str]:
    """Kills a run once or twice, lets it go on to its end, and says what is other than it should be."""
    ended = trained(output, kill)
    if os.WIFSIGNALED(ended) and again is not None:
        trained(output, again)
    if not (output / "run" / "config.yaml").is_file():  # killed before there was a run
        shutil.rmtree(output / "run", ignore_errors=True)
    ended = trained(output)
    if ended:
        yield f"went on to status {ended}: {(output / 'said.log').read_text()[-2000:]}"
        return
    left = left_behind(output / "run")
    for key, value in whole.left.items():
        if left[key] != value:
            yield f"{key}: {left[key]!r} instead of {value!r}"[:2000]


def save_points(whole: Whole, name: str) -> list[int]:
    """The events of one save: from the first that touches the checkpoint to the last of what goes for it."""
    first = next(number for number, event in enumerate(whole.events, 1) if f"checkpoints/.{name}" in event)
    after = (number for number in range(first, len(whole.events) + 1) if "checkpoints" not in whole.events[number - 1])
    return list(range(first, next(after)))


def spread_points(whole: Whole, num: int) -> list[int]:
    """``num`` of the events of a whole run, evenly spread."""
    return [1 + i * len(whole.events) // num for i in range(num)]


def trials(whole: Whole, *, num_random: int, num_points: int, save: str | None, draw: random.Random) -> Iterator[Kill]:
    """The kills to try."""
    for _ in range(num_random):
        yield Kill(after_s=draw.uniform(0, whole.took_s))
    for event in [] if save is None else save_points(whole, save):
        yield Kill(event=event)
    for number, event in enumerate(spread_points(whole, num_points)):
        yield Kill(event=event, late_s=draw.uniform(0, 0.01) if number % 2 else None)


def _watch(output: Path, kill: Kill | None) -> None:
    """Notes each event that touches the run folder, and dies where the kill says."""
    log = os.open(output / "events.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    inside, count = str(output / "run"), 0

    def happened(event: str, path: str) -> None:
        nonlocal count
        count += 1
        os.write(log, f"{event} {path.removeprefix(inside)}\n".encode())
        if kill is None or kill.event != count:
            return
        if kill.late_s is None:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends it, in the midst of whatever it does
        signal.setitimer(signal.ITIMER_REAL, max(kill.late_s or 0, 1e-6))

    def audited(event: str, arguments: tuple[Any, ...]) -> None:
        touched = [str(one) for one in arguments[:2] if str(one).startswith(inside)]
        if event in EVENTS and touched:
            happened(event, touched[0])

    def synced(handle: int, before: Callable[[int], None] = os.fsync) -> None:
        happened("os.fsync", os.readlink(f"/proc/self/fd/{handle}"))
        before(handle)

    sys.addaudithook(audited)
    os.fsync = synced


@contextmanager
def _silent(output: Path) -> Iterator[None]:
    log = os.open(output / "said.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    yield


def main() -> int:
    """Runs the trials; returns how many runs were other than the whole one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, default=100, help="kills at random moments")
    parser.add_argument("--points", type=int, default=50, help="kills at points spread over the folder's history")
    parser.add_argument("--save", default="step-000002", help="the checkpoint whose every point is tried; none")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    draw, wrong, hit = random.Random(asked.seed), 0, Counter[str]()
    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as root:
        with redirect_stdout(io.StringIO()):
            run(_made(Path(root) / "first"), **SETTINGS)  # imports everything, once for all processes
        whole = whole_run(_made(Path(root) / "whole"))
        print(f"a whole run: {whole.took_s:.1f} s, {len(whole.events)} events", flush=True)
        save = None if asked.save == "none" else asked.save
        kills = trials(whole, num_random=asked.random, num_points=asked.points, save=save, draw=draw)
        for number, kill in enumerate(kills):
            output = _made(Path(root) / str(number))
            again = Kill(after_s=draw.uniform(0, whole.took_s)) if number % 4 == 3 else None
            found = list(differences(output, whole, kill, again))
            hit["a random moment" if kill.event is None else whole.events[kill.event - 1].split()[0]] += 1
            wrong += bool(found)
            for said in found:
                print(f"{kill}: {said}", flush=True)
            shutil.rmtree(output)
    print(f"{sum(hit.values())} kills, {wrong} of them changed something; at: {dict(hit)}")
    return wrong


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(min(main(), 1))
