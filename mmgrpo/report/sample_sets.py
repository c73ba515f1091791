"""The samples that a run kept, step by step, and what the rewards said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmgrpo.report.logs import Log, is_finite, is_step, mean_or_none, read_log
from mmgrpo.report.reward_notes import RewardNote, Timeline, note_of, timeline_of
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.sample_selection import evenly

MAX_ALBUMS = 500
"""Steps whose samples are read; of more, evenly spaced ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One recorded sample.

    Attributes:
        prompt: what was asked.
        path: the picture, video or sound that was made.
        sound: the sound of a video that was made.
        text: the text that was written.
        turns: of an exchange, the state that each of its texts was written in, where it is known, and the text.
        rewards: what the rewards that applied gave.
        group: number of the group within the step.
        images: the pictures and sounds that were shown; None for one that was not kept.
        num_videos: videos that were shown, which are not kept.
        reference: the right answer, where the data has one.
        finished: False where the text was cut off by its length limit.
        num_tokens: length of the text.
        advantage: what it was worth in training.
        explanations: reward -> what its score rests on, where it says.
        image_size: width and height of the first picture that was shown, before it was reduced.
    """

    prompt: str
    path: Path | None
    text: str | None
    turns: tuple[tuple[str | None, str], ...] = ()
    rewards: Mapping[str, float]
    group: int = 0
    images: tuple[Path | None, ...] = ()
    num_videos: int = 0
    reference: str | None = None
    finished: bool = True
    num_tokens: int | None = None
    advantage: float | None = None
    explanations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    image_size: tuple[float, float] | None = None
    sound: Path | None = None

    @property
    def notes(self) -> dict[str, RewardNote]:
        """Reward -> what it said in words."""
        return {name: note_of(said, self.reference) for name, said in self.explanations.items()}

    @property
    def timelines(self) -> dict[str, Timeline]:
        """Reward -> the spans and moments it saw, where it saw any."""
        found = {name: timeline_of(said) for name, said in self.explanations.items()}
        return {name: line for name, line in found.items() if line is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet:
    """The samples of one step; line i of two sets, of evaluations, answers the same request."""

    step: int
    log: Log
    records: tuple[SampleRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardChange:
    """A reward before and after; None where it was not given."""

    name: str
    before: float | None
    after: float | None


def read_sample_sets(files: RunFiles, kind: str = "step") -> list[SampleSet]:
    """Every step that has samples of the kind (``step``: evaluations; ``train``: groups of training), in order."""
    steps = [number for number in map(_number_of, files.folders("samples", f"{kind}-")) if number is not None]
    sample_sets = []
    for step, name in evenly(sorted(steps), MAX_ALBUMS):
        log = read_log(files, f"samples/{name}/samples.jsonl")
        if log.rows:
            folder = files.root / "samples" / name
            sample_sets.append(SampleSet(step=step, log=log, records=tuple(_record(row, folder) for row in log.rows)))
    return sample_sets


def _number_of(name: str) -> tuple[int, str] | None:
    """The step of a folder, and its name."""
    digits = name.rpartition("-")[2]
    return (int(digits), name) if digits.isdecimal() and len(digits) < 16 else None


def first_and_last(sample_sets: Sequence[SampleSet]) -> list[SampleSet]:
    """The two ends of the run; fewer if fewer steps have samples."""
    return [sample_sets[0], sample_sets[-1]] if len(sample_sets) > 1 else list(sample_sets)


def shared_requests(ends: Sequence[SampleSet]) -> list[int]:
    """Lines that ask the same at the first step and the last."""
    if not ends:
        return []
    num_lines = min(len(sample_set.records) for sample_set in ends)
    asked = [[(record.prompt, record.images) for record in sample_set.records] for sample_set in (ends[0], ends[-1])]
    return [index for index in range(num_lines) if _same(*asked[0][index], *asked[1][index])]


def reward_changes(ends: Sequence[SampleSet], requests: Sequence[int]) -> tuple[RewardChange, ...]:
    """Mean reward of the requests at the first step and the last, reward by reward."""
    names = dict.fromkeys(
        name for sample_set in ends for index in requests for name in sample_set.records[index].rewards
    )
    means = {
        name: [
            mean_or_none(a.records[index].rewards[name] for index in requests if name in a.records[index].rewards)
            for a in ends
        ]
        for name in names
    }
    return tuple(RewardChange(name=name, before=mean[0], after=mean[-1]) for name, mean in means.items())


def common_changes(ends: Sequence[SampleSet], requests: Sequence[int]) -> tuple[RewardChange, ...]:
    """The rewards that gave all of the requests one and the same value, at the first step and at the last.

    So does whatever judges the samples as a whole. None where there are fewer than two requests.
    """
    names = {name for sample_set in ends for index in requests for name in sample_set.records[index].rewards}
    values = {
        name: [{sample_set.records[index].rewards.get(name) for index in requests} for sample_set in ends]
        for name in names
    }
    common = {name for name, found in values.items() if all(len(seen) == 1 for seen in found) and len(requests) > 1}
    return tuple(change for change in reward_changes(ends, requests) if change.name in common)


def _same(prompt: str, images: Sequence[Path | None], other: str, others: Sequence[Path | None]) -> bool:
    names = [[path and path.name for path in paths] for paths in (images, others)]
    return prompt == other and names[0] == names[1]


def _record(row: Mapping[str, Any], folder: Path) -> SampleRecord:
    rewards = row.get("rewards")
    numbers = rewards.items() if isinstance(rewards, dict) else ()
    shown = [one for key in ("images", "sounds") for one in _list(row.get(key))]
    explained, sizes = row.get("explanations"), row.get("image_sizes")
    known = explained if isinstance(explained, dict) else {}
    size = sizes[0] if isinstance(sizes, list) and sizes and isinstance(sizes[0], list) else []
    return SampleRecord(
        prompt=str(row.get("prompt", "")),
        path=folder / row["file"] if isinstance(row.get("file"), str) else None,
        text=_text(row, "text"),
        turns=_turns(row.get("turns")),
        rewards={name: value for name, value in numbers if is_finite(value)},
        group=_whole(row, "group") or 0,
        images=tuple(folder / name if isinstance(name, str) else None for name in shown),
        num_videos=_whole(row, "num_videos") or 0,
        reference=_text(row, "reference"),
        finished=row.get("finished") is not False,
        num_tokens=_whole(row, "num_tokens"),
        advantage=row["advantage"] if is_finite(row.get("advantage")) else None,
        explanations={name: said for name, said in known.items() if isinstance(said, dict)},
        image_size=(size[0], size[1]) if len(size) == 2 and all(map(is_finite, size)) else None,
        sound=folder / row["sound"] if isinstance(row.get("sound"), str) else None,
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _turns(rows: object) -> tuple[tuple[str | None, str], ...]:
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return tuple((_text(row, "state"), _text(row, "text") or "") for row in found)


def _text(row: Mapping[str, Any], key: str) -> str | None:
    return row[key] if isinstance(row.get(key), str) else None


def _whole(row: Mapping[str, Any], key: str) -> int | None:
    return row[key] if is_step(row.get(key)) and isinstance(row[key], int) else None
