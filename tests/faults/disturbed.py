"""Disturbances of a run: each fault, sampled from a seed, and the removal of its cause."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmgrpo.rewards.judges.remote_reward import RemoteReward

from mmgrpo import Trainer
from mmgrpo.runs.checkpoint import FOLDER, list_checkpoints
from mmgrpo.runs.stopping import BOUNCE_S, TERMINATING
from tests.faults.runs import LINES, Case
from tests.faults.services import MODES, Faulty
from tests.faults.sittings import (
    CLEAR,
    DONE,
    LIMIT_S,
    UNCLEAR,
    Place,
    Sitting,
    begin,
    begin_both,
    ended,
    sit,
    watched,
    worked_s,
)


@dataclass(frozen=True, slots=True)
class UndisturbedRun:
    """A run without a fault.

    Attributes:
        left: what it wrote.
        duration_s: of work, from its start to its end.
        events: in its folder, in order.
        num_bytes: of its folder.
        num_forwards: of its policy.
        num_reward_calls: of its reward.
    """

    left: Mapping[str, Any]
    duration_s: float
    events: tuple[str, ...]
    num_bytes: int
    num_forwards: int
    num_reward_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """What became of a run that was disturbed, up to where its cause is gone.

    Attributes:
        what: was done to it, for a person.
        sitting: how the sitting ended.
    """

    what: str
    sitting: Sitting


Fault = Callable[[Case, Place, UndisturbedRun, random.Random], Disturbed]


def killed_at_a_moment(case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random) -> Disturbed:
    """SIGKILL; every third time again, after it resumes."""
    moments = [draw.uniform(0, undisturbed.duration_s) for _ in range(2 if draw.random() < 1 / 3 else 1)]
    done = [_signalled(case, place, [(signal.SIGKILL, after_s)]) for after_s in moments]
    return Disturbed(what=f"SIGKILL after {moments}", sitting=done[-1])


def killed_at_an_event(case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random) -> Disturbed:
    """SIGKILL right before something happens in the run folder, or in the midst of it; half of them in saves."""
    saves = [n for n, event in enumerate(undisturbed.events, 1) if FOLDER in event]
    at = draw.choice(saves) if draw.random() < 0.5 else draw.randint(1, len(undisturbed.events))
    late_s = draw.choice([None, draw.uniform(0, 0.01)])
    sitting = sit(case, place, before=watched(place, at, late_s))
    return Disturbed(what=f"SIGKILL at event {at} ({undisturbed.events[at - 1]}), {late_s} s late", sitting=sitting)


def terminated(case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random) -> Disturbed:
    """A signal such as a cluster sends before it takes the machine back."""
    after_s, number = draw.uniform(0, undisturbed.duration_s), draw.choice(TERMINATING)
    return Disturbed(what=f"{number.name} after {after_s}", sitting=_signalled(case, place, [(number, after_s)]))


def interrupted(case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random) -> Disturbed:
    """Ctrl-C; half of the time twice, which ends it at once."""
    first_s = draw.uniform(0, undisturbed.duration_s)
    signals = [(signal.SIGINT, first_s)]
    if draw.random() < 0.5:  # more slowly, so that there is something left to be interrupted a second time
        signals.append((signal.SIGINT, BOUNCE_S + draw.uniform(0.05, 0.3)))
    sitting = _signalled(case, place, signals, within=_slowed(BOUNCE_S) if len(signals) > 1 else None)
    return Disturbed(what=f"Ctrl-C {signals}", sitting=sitting)


def full_disk(case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random) -> Disturbed:
    """A disk with less room than the run takes; then with more."""
    room = int(draw.uniform(0.02, 1.1) * undisturbed.num_bytes)
    if os.geteuid() == 0 and _mounted(place.output, room):
        sitting = sit(case, place)
        subprocess.run(["mount", "-o", "remount,size=1g", str(place.output)], check=True)
        return Disturbed(what=f"a disk of {room} bytes", sitting=sitting)
    limit = draw.randint(
        1, max(1, undisturbed.num_bytes // 8)
    )  # no leave to mount: what a single file may take instead
    sitting = sit(
        case, place, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    )
    return Disturbed(what=f"files of at most {limit} bytes", sitting=sitting)


def damaged(case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random) -> Disturbed:
    """A file of the newest checkpoint is other than it was written; the run was killed where it had at least one."""
    saved = [
        n for n, event in enumerate(undisturbed.events, 1) if event.startswith("os.rename") and f"/{FOLDER}/." in event
    ]
    at = draw.randint(saved[0] + 1, len(undisturbed.events))
    sitting = sit(case, place, before=watched(place, at))
    newest = list_checkpoints(place.run)[-1]
    file = draw.choice(sorted(path for path in newest.rglob("*") if path.is_file()))
    how = draw.choice(["a bit of", "the end of", "all of"])
    data = bytearray(file.read_bytes())
    if how == "all of":
        file.unlink()
    elif how == "the end of":
        file.write_bytes(data[: draw.randrange(len(data))])
    else:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
    return Disturbed(what=f"killed at event {at}; {how} {file.relative_to(place.run)} damaged", sitting=sitting)


def torn(case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random) -> Disturbed:
    """Killed, with half a line, or bytes that are none, at the end of a log."""
    at = draw.randint(len(undisturbed.events) // 10, len(undisturbed.events))
    sitting = sit(case, place, before=watched(place, at))
    logs = [path for name in LINES if (path := place.run / f"{name}.jsonl").is_file() and path.stat().st_size]
    what = "nothing yet"
    for path in draw.sample(logs, min(len(logs), draw.randint(1, 2))):
        line = path.read_bytes().splitlines()[-1]
        end = draw.choice([line[: draw.randrange(1, len(line))], draw.randbytes(20), b"\0" * 512])
        with path.open("ab") as file:
            file.write(end)
        what = f"{path.name} torn"
    return Disturbed(what=f"killed at event {at}, {what}", sitting=sitting)


def unserved(case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random) -> Disturbed:
    """A reward service that hangs, is at fault, hangs up or answers nonsense at some calls, and is well again."""
    at, num, mode = draw.randint(1, undisturbed.num_reward_calls), draw.choice([1, 2, 4]), draw.choice(MODES)
    with Faulty(case.reward, at=at, num=num, mode=mode) as service:
        reward = RemoteReward(service.url, timeout=0.5, retries=2, backoff=0.05)
        sitting = sit(case, place, reward=reward)
    return Disturbed(what=f"service {mode} at {num} calls from {at}", sitting=sitting)


def out_of_memory(case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random) -> Disturbed:
    """Forwards that ask for more memory than there is; a single one in an update is taken again in halved slices."""
    at = draw.randint(1, undisturbed.num_forwards)

    def within(trainer: Trainer) -> None:
        on_forward(case, trainer, at, lambda: torch.empty(2**50), ever_after=True)

    return Disturbed(what=f"out of memory at forward {at}", sitting=sit(case, place, within=within))


def bereaved(
    case: Case, place: Place, undisturbed: UndisturbedRun, draw: random.Random, *, in_parts: bool = False
) -> Disturbed:
    """Two processes, one of which is killed, stopped, or fails alone; the other must say so, and soon."""
    how, victim = draw.choice(["killed", "stopped", "failing"]), draw.randrange(2)
    after_s, at = draw.uniform(0, 0.8) * undisturbed.duration_s, draw.randint(1, undisturbed.num_forwards // 2)

    def within(trainer: Trainer) -> None:
        if how == "failing" and trainer.job.rank == victim:
            # a single failure may pass for a way of computing that this model has not, and another is taken
            on_forward(case, trainer, at, lambda: {}["lost"], ever_after=True)

    pids = begin_both(case, place, in_parts=in_parts, within=within)
    began = time.monotonic()
    while how != "failing" and not (place.run / "run.json").is_file() and time.monotonic() - began < LIMIT_S:
        time.sleep(0.01)  # what comes before is the launcher's to watch
    if how != "failing":
        time.sleep(after_s)
        os.kill(pids[victim], signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    fell = time.monotonic()
    result = ended(pids[1 - victim], place, log=f"output-{1 - victim}.log")
    duration_s = time.monotonic() - fell
    os.kill(pids[victim], signal.SIGKILL)
    left = ended(pids[victim], place, log=f"output-{victim}.log")
    what = f"process {victim} {how} after {after_s} s, at forward {at}: the other ended {duration_s:.1f} s later"
    if result.code != CLEAR and result.code == left.code == DONE:
        return Disturbed(what=what, sitting=result)  # it had ended before
    if result.code == CLEAR and "process" in result.output and duration_s > 60:
        result = Sitting(UNCLEAR, f"too late: {result.output}")
    return Disturbed(what=what, sitting=result)


FAULTS: dict[str, Fault] = {
    "killed at a moment": killed_at_a_moment,
    "killed at an event of its files": killed_at_an_event,
    "SIGTERM, SIGUSR1, SIGUSR2": terminated,
    "Ctrl-C, once or twice": interrupted,
    "full disk": full_disk,
    "damaged checkpoint": damaged,
    "torn lines": torn,
    "reward service": unserved,
    "out of memory": out_of_memory,
}
IN_PARTS = "one of two that hold parts"
OF_TWO: dict[str, Fault] = {"one of two processes": bereaved, IN_PARTS: partial(bereaved, in_parts=True)}
"""Of runs on two processes, which take more of the machine."""


def on_forward(case: Case, trainer: Trainer, at: int, do: Callable[[], object], *, ever_after: bool = False) -> None:
    """Does something in the midst of the policy's forward of that number, from 1, or of each from there on."""
    count = 0

    def called(module: Any, arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == at or (ever_after and count > at):
            do()

    case.module(trainer.policy).register_forward_pre_hook(called)


def settled(place: Place) -> None:
    """Nothing of the trial is left mounted."""
    if os.path.ismount(place.output):
        subprocess.run(["umount", str(place.output)], check=True)


def _signalled(
    case: Case,
    place: Place,
    signals: list[tuple[signal.Signals, float]],
    within: Callable[[Trainer], None] | None = None,
) -> Sitting:
    pid = begin(case, place, within=within or (lambda trainer: None))
    (first, work_s), *others = signals
    while (worked := worked_s(pid)) is not None and worked < work_s:
        time.sleep(0.001)
    os.kill(pid, first)  # it waits for us, even where it has ended
    for number, after_s in others:
        time.sleep(after_s)
        os.kill(pid, number)
    return ended(pid, place)


def _slowed(seconds: float) -> Callable[[Trainer], None]:
    """Adds as much to the first update of each step, slice by slice."""

    def within(trainer: Trainer) -> None:
        clear = trainer.optimizer.clear

        def slowly() -> None:
            for _ in range(20):
                time.sleep(seconds / 20)
            clear()

        trainer.optimizer.clear = slowly

    return within


def _mounted(folder: Path, num_bytes: int) -> bool:
    """Mounts a disk of that size on a folder, if the machine allows it."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "none", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0
