"""The texts of a run: the same requests before and after, and groups of training with their advantages."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from mmgrpo.report.embedded_media import EmbeddedImage, embed_image
from mmgrpo.report.image_marks import MAX_MARKS, ImageMark, marks_of
from mmgrpo.report.movement import movement_of, scales_of
from mmgrpo.report.number_format import clip
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.sample_selection import evenly, moved_most
from mmgrpo.report.sample_sets import (
    RewardChange,
    SampleRecord,
    SampleSet,
    TurnRecord,
    common_changes,
    first_and_last,
    shared_requests,
)

Load = Callable[[Path], EmbeddedImage | None]

MAX_TEXTS = 20
MAX_TRAINED_STEPS = 4
MAX_GROUPS = 4
MAX_MEMBERS = 16
MAX_IMAGES = 6
MEDIA_BYTES = 4_800_000  # base64 makes 6.4 MB of it; the page stays under 8 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRequest:
    """A request of the page.

    Attributes:
        prompt: the text of the prompt.
        opening: state of the environment before the first turn; None if the answers begin in different ones, or in the
            prompt.
        images: the input images; None for one that was not saved or cannot be read.
        num_more: number of further images.
        num_videos: number of input videos that are not saved.
        reference: the reference answer, if the data has one.
        alt: alternative text of the images.
        marks: marks of the rewards in the first image.
    """

    prompt: str
    opening: str | None
    images: tuple[EmbeddedImage | None, ...]
    num_more: int
    num_videos: int
    reference: str | None
    alt: str
    marks: tuple[ImageMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """The answers to a request, one per step; None for a step without one."""

    request: AnsweredRequest
    answers: tuple[SampleRecord | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedGroup:
    """The answers to a request in a training step, sorted by descending advantage.

    Attributes:
        step: the training step.
        request: the request.
        members: the answers that the page shows.
        num_members: size of the group.
        is_dead: whether all advantages are 0.
    """

    step: int
    request: AnsweredRequest
    members: tuple[SampleRecord, ...]
    num_members: int
    is_dead: bool

    @property
    def num_columns(self) -> int:
        """Answers per line: a divisor of their number if possible."""
        return next((number for number in (4, 3) if len(self.members) % number == 0), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeChanges:
    """Of ``num`` requests, the numbers that became right, became wrong, and were right or wrong at both steps."""

    num: int
    gained: int
    lost: int
    right: int
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts of the page.

    Attributes:
        steps: the first evaluated step and the last, or the only one.
        rows: requests with their answers at those steps.
        common: the rewards whose value is the same for all requests, left out of the rows.
        verdicts: the rewards whose values are 0 and 1.
        turned: binary reward -> changes of the requests' outcomes from the first step to the last.
        num_requests: number of requests to choose from.
        num_movers: number of rows, at the start, that were chosen by the change of their scores.
        groups: groups of a few training steps, by step.
        reply_images: path -> image of an environment's reply; None for one that cannot be read.
        num_saved_steps: number of training steps with saved groups.
    """

    steps: tuple[int, ...]
    rows: tuple[TextRow, ...]
    common: tuple[RewardChange, ...]
    verdicts: frozenset[str]
    turned: Mapping[str, OutcomeChanges]
    num_requests: int
    num_movers: int
    groups: tuple[TrainedGroup, ...]
    reply_images: Mapping[Path, EmbeddedImage | None]
    num_saved_steps: int

    @property
    def images(self) -> list[EmbeddedImage]:
        """Every image of the requests."""
        requests = [row.request for row in self.rows] + [group.request for group in self.groups]
        images = [image for request in requests for image in request.images]
        return [image for image in (*images, *self.reply_images.values()) if image]

    def images_of(self, turn: TurnRecord) -> list[EmbeddedImage | None]:
        """The images of the reply to a turn."""
        return [self.reply_images.get(path) if path else None for path in turn.images[:MAX_IMAGES]]

    @property
    def is_brief(self) -> bool:
        """Whether every text is short, so that many fit in a line."""
        records = [record for row in self.rows for record in row.answers] + [
            s for group in self.groups for s in group.members
        ]
        return all(len(record.text or "") <= 60 and not record.has_replies_with_media for record in records if record)


def texts_of(
    files: RunFiles, sample_sets: Sequence[SampleSet], trained: Sequence[SampleSet], *, media_bytes: int = MEDIA_BYTES
) -> Texts | None:
    """The texts of the evaluations and of training; None if there are none.

    Steps and requests are chosen by position; if there are too many requests, half of them are those whose scores
    changed most.
    """
    ends = first_and_last(sample_sets)
    written = [
        index
        for index in shared_requests(ends)
        if any(sample_set.records[index].text is not None for sample_set in ends)
    ]
    movers = _movers(ends, written)
    chosen = movers + evenly([index for index in written if index not in movers], MAX_TEXTS - len(movers))
    groups = [group for sample_set in evenly(trained, MAX_TRAINED_STEPS) for group in _groups(sample_set)]
    if not chosen and not groups:
        return None
    request_records = [ends[0].records[index] for index in chosen] + [records[0] for _, records in groups]
    reply_paths = _reply_paths([sample_set.records[index] for sample_set in ends for index in chosen], groups)
    num_images = len(reply_paths) + sum(min(len(record.images), MAX_IMAGES) for record in request_records)
    load = partial(embed_image, files, share=media_bytes // max(num_images, 1))
    common = common_changes(ends, written)
    hidden = {change.name for change in common if _is_explained_once(change.name, ends, written)}
    verdicts = binary_rewards([record for sample_set in (*ends, *trained) for record in sample_set.records])
    answered = {name for sample_set in ends for index in written for name in sample_set.records[index].rewards}
    return Texts(
        steps=tuple(sample_set.step for sample_set in ends),
        rows=tuple(
            TextRow(
                request=_request([sample_set.records[index] for sample_set in ends], load),
                answers=tuple(_answer(sample_set.records[index], hidden) for sample_set in ends),
            )
            for index in chosen
        ),
        common=common,
        verdicts=frozenset(verdicts),
        turned={name: _outcome_changes(name, ends, written) for name in sorted(verdicts & answered)},
        num_requests=len(written),
        num_movers=len(movers),
        groups=tuple(_trained_group(step, records, load) for step, records in groups),
        reply_images={path: load(path) for path in dict.fromkeys(reply_paths)},
        num_saved_steps=len(trained),
    )


def _movers(ends: Sequence[SampleSet], written: Sequence[int]) -> list[int]:
    """If there are more than MAX_TEXTS requests, those whose scores changed most, up or down."""
    if len(written) <= MAX_TEXTS or len(ends) < 2:
        return []
    scales = scales_of(ends, ())
    movement = {index: movement_of(ends, index, scales) for index in written}
    return moved_most(movement, lambda index: ends[0].records[index].prompt, MAX_TEXTS // 2)


def binary_rewards(records: Sequence[SampleRecord]) -> set[str]:
    """The rewards whose values are exactly 0 and 1."""
    values_by_name: dict[str, set[float]] = {}
    for record in records:
        for name, value in record.rewards.items():
            values_by_name.setdefault(name, set()).add(value)
    return {name for name, values in values_by_name.items() if values == {0, 1}}


def _outcome_changes(name: str, ends: Sequence[SampleSet], requests: Sequence[int]) -> OutcomeChanges:
    """Changes of a binary reward over the requests that have it at both steps."""
    pairs = [
        tuple(sample_set.records[index].rewards.get(name) for sample_set in (ends[0], ends[-1])) for index in requests
    ]
    return OutcomeChanges(
        num=sum(None not in pair for pair in pairs),
        gained=pairs.count((0, 1)),
        lost=pairs.count((1, 0)),
        right=pairs.count((1, 1)),
        wrong=pairs.count((0, 0)),
    )


def _answer(record: SampleRecord, hidden: Container[str]) -> SampleRecord | None:
    """The record without the rewards that the page shows once for all requests; None without a text."""
    rewards = {name: value for name, value in record.rewards.items() if name not in hidden}
    return replace(record, rewards=rewards) if record.text is not None else None


def _is_explained_once(name: str, ends: Sequence[SampleSet], requests: Sequence[int]) -> bool:
    """Whether the explanation of a reward is the same for all requests at each step."""
    explanations = [[sample_set.records[index].explanations.get(name) for index in requests] for sample_set in ends]
    return all(explanation == of_step[0] for of_step in explanations for explanation in of_step)


def _groups(sample_set: SampleSet) -> list[tuple[int, list[SampleRecord]]]:
    groups = [list(records) for _, records in groupby(sample_set.records, key=lambda record: record.group)]
    return [(sample_set.step, records) for records in groups[:MAX_GROUPS]]


def _members(records: Sequence[SampleRecord]) -> list[SampleRecord]:
    """The answers of a group that the page shows, sorted by descending advantage."""
    return evenly(sorted(records, key=lambda record: -(record.advantage or 0.0)), MAX_MEMBERS)


def _reply_paths(answers: Sequence[SampleRecord], groups: Sequence[tuple[int, Sequence[SampleRecord]]]) -> list[Path]:
    """The files of the environment's replies, once for each place on the page."""
    records = [*answers, *(record for _, members in groups for record in _members(members))]
    return [path for record in records for turn in record.turns for path in turn.images[:MAX_IMAGES] if path]


def _trained_group(step: int, records: Sequence[SampleRecord], load: Load) -> TrainedGroup:
    return TrainedGroup(
        step=step,
        request=_request(records, load, grouped=True),
        members=tuple(_members(records)),
        num_members=len(records),
        is_dead=all(record.advantage == 0 for record in records),
    )


def _request(records: Sequence[SampleRecord], load: Load, *, grouped: bool = False) -> AnsweredRequest:
    """The request with the marks of all answers; over time, the marks of the first answer are ``before``."""
    record, paths = records[0], records[0].images[:MAX_IMAGES]
    kinds = ["after" if grouped or len(records) == 1 else "before", *["after"] * (len(records) - 1)]
    marks = [
        m for s, kind in zip(records, kinds, strict=True) for m in marks_of(s.explanations, record.image_size, kind)
    ]
    is_shared = all(other.opening == record.opening for other in records)
    return AnsweredRequest(
        prompt=record.prompt,
        opening=record.opening if is_shared and record.opening != record.prompt else None,
        images=tuple(load(path) if path else None for path in paths),
        num_more=len(record.images) - len(paths),
        num_videos=record.num_videos,
        reference=record.reference,
        alt=f"input of: {clip(record.prompt, 200)}",
        marks=tuple(dict.fromkeys(marks))[:MAX_MARKS] if record.path is None else (),
    )
