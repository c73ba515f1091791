"""The samples that a run kept, step by step, and what the rewards said of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.report.reading import Log, is_number, mean_or_none, read_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One recorded sample."""

    prompt: str
    path: Path | None
    text: str | None
    rewards: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Album:
    """The samples of one evaluated step; line i of two albums answers the same request."""

    step: int
    log: Log
    shots: tuple[Shot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A reward before and after; None where it was not given."""

    name: str
    before: float | None
    after: float | None


def read_albums(run: Path) -> list[Album]:
    """Every step that has samples, in order."""
    folders = [path.parent for path in run.glob("samples/step-*/samples.jsonl") if path.parent.name[5:].isdigit()]
    albums = []
    for folder in folders:
        log = read_log(run, f"samples/{folder.name}/samples.jsonl")
        if log.rows:
            shots = tuple(_shot(row, folder) for row in log.rows)
            albums.append(Album(step=int(folder.name[5:]), log=log, shots=shots))
    return sorted(albums, key=lambda album: album.step)


def first_and_last(albums: Sequence[Album]) -> list[Album]:
    """The two ends of the run; fewer if fewer steps have samples."""
    return [albums[0], albums[-1]] if len(albums) > 1 else list(albums)


def shared_requests(ends: Sequence[Album]) -> list[int]:
    """Lines that ask the same at the first step and the last."""
    if not ends:
        return []
    num_lines = min(len(album.shots) for album in ends)
    return [index for index in range(num_lines) if ends[0].shots[index].prompt == ends[-1].shots[index].prompt]


def reward_changes(ends: Sequence[Album], requests: Sequence[int]) -> tuple[Change, ...]:
    """Mean reward of the requests at the first step and the last, reward by reward."""
    names = dict.fromkeys(name for album in ends for index in requests for name in album.shots[index].rewards)
    means = {
        name: [
            mean_or_none(a.shots[index].rewards[name] for index in requests if name in a.shots[index].rewards)
            for a in ends
        ]
        for name in names
    }
    return tuple(Change(name=name, before=mean[0], after=mean[-1]) for name, mean in means.items())


def _shot(row: Mapping[str, Any], folder: Path) -> Shot:
    rewards = row.get("rewards")
    numbers = rewards.items() if isinstance(rewards, dict) else ()
    return Shot(
        prompt=str(row.get("prompt", "")),
        path=folder / row["file"] if isinstance(row.get("file"), str) else None,
        text=row["text"] if isinstance(row.get("text"), str) else None,
        rewards={name: value for name, value in numbers if is_number(value) and math.isfinite(value)},
    )
