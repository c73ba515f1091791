"""The recorded samples of a run by step, with their rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmgrpo.report.logs import Log, is_finite, is_step, mean_or_none, read_log
from mmgrpo.report.reward_notes import RewardNote, Timeline, note_of, timeline_of
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.sample_selection import evenly

MAX_STEPS = 500
"""Maximum number of steps whose samples are read, evenly spaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One recorded turn of a conversation, and the reply of the environment.

    Attributes:
        text: the turn.
        reward: the environment's reward for it; None if it has none.
        reply: text of the reply; None if there is none.
        images: images, audio and videos of the reply; None for one that was not saved.
        num_videos: number of videos of the reply that are not saved.
        is_unread: whether the conversation ends before the policy reads the reply.
    """

    text: str
    reward: float | None = None
    reply: str | None = None
    images: tuple[Path | None, ...] = ()
    num_videos: int = 0
    is_unread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRecord:
    """One recorded sample.

    Attributes:
        prompt: the text of the prompt; of a sample under a prompt template, after the name of that.
        path: the generated image, video or audio.
        sound: the audio of a generated video.
        text: the generated text.
        turns: the turns of a conversation.
        opening: state of the environment before the first turn: the text of its opening turn, or a key.
        rewards: reward -> value, for rewards that applied.
        group: number of the group within the step.
        images: the input images, audio and videos; None for one that was not saved.
        num_videos: number of input videos that are not saved.
        reference: the reference answer, if the data has one.
        finished: False if the text was truncated by its length limit.
        num_tokens: length of the text.
        advantage: advantage of the sample in training.
        explanations: reward -> explanation of its score, if it has one.
        image_size: width and height of the first input image, before it was reduced.
    """

    prompt: str
    path: Path | None
    text: str | None
    turns: tuple[TurnRecord, ...] = ()
    opening: str | None = None
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
    def has_replies_with_media(self) -> bool:
        """Whether a reply of its conversation has images, audio or videos."""
        return any(turn.images or turn.num_videos for turn in self.turns)

    @property
    def notes(self) -> dict[str, RewardNote]:
        """Reward -> its explanation in words."""
        return {name: note_of(explanation, self.reference) for name, explanation in self.explanations.items()}

    @property
    def timelines(self) -> dict[str, Timeline]:
        """Reward -> the timeline of its explanation, if it has one."""
        timelines = {name: timeline_of(explanation) for name, explanation in self.explanations.items()}
        return {name: line for name, line in timelines.items() if line is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSet:
    """The samples of a step; in evaluations, line i of every set belongs to the same request."""

    step: int
    log: Log
    records: tuple[SampleRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardChange:
    """The value of a reward before and after; None if it did not apply."""

    name: str
    before: float | None
    after: float | None


def read_sample_sets(files: RunFiles, kind: str = "step") -> list[SampleSet]:
    """The sample sets of a kind (``step``: evaluations; ``train``: groups of training), in order of steps."""
    steps = [number for number in map(_number_of, files.folders("samples", f"{kind}-")) if number is not None]
    sample_sets = []
    for step, name in evenly(sorted(steps), MAX_STEPS):
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
    """The first and the last set; fewer if fewer steps have samples."""
    return [sample_sets[0], sample_sets[-1]] if len(sample_sets) > 1 else list(sample_sets)


def shared_requests(ends: Sequence[SampleSet]) -> list[int]:
    """Indices of the lines whose request is the same at the first and the last step."""
    if not ends:
        return []
    num_lines = min(len(sample_set.records) for sample_set in ends)
    requests = [[(record.prompt, record.images) for record in sample_set.records] for sample_set in (ends[0], ends[-1])]
    return [index for index in range(num_lines) if _same(*requests[0][index], *requests[1][index])]


def reward_changes(ends: Sequence[SampleSet], requests: Sequence[int]) -> tuple[RewardChange, ...]:
    """Mean of each reward over the requests, at the first and the last step."""
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
    """The rewards with the same value for all requests, at the first and at the last step.

    Rewards of the batch are such rewards. Empty with fewer than two requests.
    """
    names = {name for sample_set in ends for index in requests for name in sample_set.records[index].rewards}
    values = {
        name: [{sample_set.records[index].rewards.get(name) for index in requests} for sample_set in ends]
        for name in names
    }
    common = {
        name
        for name, values_by_step in values.items()
        if all(len(step_values) == 1 for step_values in values_by_step) and len(requests) > 1
    }
    return tuple(change for change in reward_changes(ends, requests) if change.name in common)


def _same(prompt: str, images: Sequence[Path | None], other: str, others: Sequence[Path | None]) -> bool:
    names = [[path and path.name for path in paths] for paths in (images, others)]
    return prompt == other and names[0] == names[1]


def _record(row: Mapping[str, Any], folder: Path) -> SampleRecord:
    rewards = row.get("rewards")
    numbers = rewards.items() if isinstance(rewards, dict) else ()
    explained, sizes = row.get("explanations"), row.get("image_sizes")
    explanations = explained if isinstance(explained, dict) else {}
    size = sizes[0] if isinstance(sizes, list) and sizes and isinstance(sizes[0], list) else []
    turns = [turn for turn in _list(row.get("turns")) if isinstance(turn, dict)]
    return SampleRecord(
        prompt=": ".join(filter(None, [_text(row, "prompt_template"), str(row.get("prompt", ""))])),
        path=folder / row["file"] if isinstance(row.get("file"), str) else None,
        text=_text(row, "text"),
        turns=_turns(turns, folder),
        opening=_text(turns[0], "state") if turns else None,
        rewards={name: value for name, value in numbers if is_finite(value)},
        group=_integer(row, "group") or 0,
        images=_input_files(row, folder),
        num_videos=_num_unsaved_videos(row),
        reference=_text(row, "reference"),
        finished=row.get("finished") is not False,
        num_tokens=_integer(row, "num_tokens"),
        advantage=row["advantage"] if is_finite(row.get("advantage")) else None,
        explanations={name: explanation for name, explanation in explanations.items() if isinstance(explanation, dict)},
        image_size=(size[0], size[1]) if len(size) == 2 and all(map(is_finite, size)) else None,
        sound=folder / row["sound"] if isinstance(row.get("sound"), str) else None,
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _turns(turns: Sequence[Mapping[str, Any]], folder: Path) -> tuple[TurnRecord, ...]:
    """The turns; of a line without replies, the reply to a turn is the state before the next one."""
    states = [*(_text(turn, "state") for turn in turns[1:]), None]
    return tuple(_turn(turn, state, folder) for turn, state in zip(turns, states, strict=False))


def _turn(row: Mapping[str, Any], next_state: str | None, folder: Path) -> TurnRecord:
    reply = row.get("reply")
    reply = reply if isinstance(reply, dict) else {"text": next_state}
    return TurnRecord(
        text=_text(row, "text") or "",
        reward=row["reward"] if is_finite(row.get("reward")) else None,
        reply=_text(reply, "text"),
        images=_input_files(reply, folder),
        num_videos=_num_unsaved_videos(reply),
        is_unread=reply.get("unread") is True,
    )


def _input_files(row: Mapping[str, Any], folder: Path) -> tuple[Path | None, ...]:
    """Paths of the saved media of a prompt or a reply."""
    names = [name for key in ("images", "sounds") for name in _list(row.get(key))]
    names += _saved_videos(row)
    return tuple(folder / name if isinstance(name, str) else None for name in names)


def _saved_videos(row: Mapping[str, Any]) -> list[str]:
    return [name for name in _list(row.get("videos")) if isinstance(name, str)]


def _num_unsaved_videos(row: Mapping[str, Any]) -> int:
    return max((_integer(row, "num_videos") or 0) - len(_saved_videos(row)), 0)


def _text(row: Mapping[str, Any], key: str) -> str | None:
    return row[key] if isinstance(row.get(key), str) else None


def _integer(row: Mapping[str, Any], key: str) -> int | None:
    return row[key] if is_step(row.get(key)) and isinstance(row[key], int) else None
