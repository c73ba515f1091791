"""The texts of a run: the same requests before and after, and groups of training with what each text was worth."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from mmgrpo.report.embedded_media import EmbeddedImage, load_picture
from mmgrpo.report.image_marks import MAX_MARKS, ImageMark, marks_of
from mmgrpo.report.movement import movement_of, scales_of
from mmgrpo.report.number_format import clip
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.sample_selection import evenly, moved_most
from mmgrpo.report.sample_sets import (
    RewardChange,
    SampleRecord,
    SampleSet,
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
    """What was asked.

    Attributes:
        prompt: the text.
        pictures: what was shown; None where it was not kept or cannot be read.
        num_more: pictures beyond those.
        num_videos: videos that were shown.
        reference: the right answer, where the data has one.
        alt: the pictures in words.
        marks: what rewards saw in the first picture.
    """

    prompt: str
    pictures: tuple[EmbeddedImage | None, ...]
    num_more: int
    num_videos: int
    reference: str | None
    alt: str
    marks: tuple[ImageMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """One request's answers, one per step; None where a step has none."""

    request: AnsweredRequest
    answers: tuple[SampleRecord | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedGroup:
    """The answers that a request got in a training step, from the most to the least advantageous.

    Attributes:
        step: the training step.
        request: what was asked.
        members: the answers.
        num_members: how many there were.
        is_dead: all advantages are 0, so that the group taught nothing.
    """

    step: int
    request: AnsweredRequest
    members: tuple[SampleRecord, ...]
    num_members: int
    is_dead: bool

    @property
    def num_columns(self) -> int:
        """Answers beside each other, so that the lines come out even where they can."""
        return next((number for number in (4, 3) if len(self.members) % number == 0), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeChanges:
    """Of ``num`` requests, how many became right, became wrong, and were right or wrong at both steps."""

    num: int
    gained: int
    lost: int
    right: int
    wrong: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What the page shows of the texts.

    Attributes:
        steps: the first evaluated step and the last, or the only one.
        rows: requests with their answers at those steps.
        common: the rewards whose value is the same for all requests, left out of the rows.
        verdicts: the rewards that only ever gave 0 or 1, and both.
        turned: of those, how the requests' verdicts turned from the first step to the last.
        num_requests: how many there are to choose from.
        num_movers: how many of the rows, the first ones, are there because their scores moved.
        groups: groups of a few training steps, step by step.
        num_kept_steps: training steps of which groups were kept.
    """

    steps: tuple[int, ...]
    rows: tuple[TextRow, ...]
    common: tuple[RewardChange, ...]
    verdicts: frozenset[str]
    turned: Mapping[str, OutcomeChanges]
    num_requests: int
    num_movers: int
    groups: tuple[TrainedGroup, ...]
    num_kept_steps: int

    @property
    def pictures(self) -> list[EmbeddedImage]:
        """Every picture that is shown."""
        requests = [row.request for row in self.rows] + [group.request for group in self.groups]
        return [picture for request in requests for picture in request.pictures if picture]

    @property
    def is_brief(self) -> bool:
        """Whether every text is short, so that many fit beside each other."""
        said = [record for row in self.rows for record in row.answers] + [
            s for group in self.groups for s in group.members
        ]
        return all(len(record.text or "") <= 60 for record in said if record)


def texts_of(
    files: RunFiles, sample_sets: Sequence[SampleSet], trained: Sequence[SampleSet], *, media_bytes: int = MEDIA_BYTES
) -> Texts | None:
    """What the page shows of the evaluations' texts and of the training's; None if nothing was written.

    Steps are chosen by their position, and so are requests; where not all have room, half of it is for those whose
    scores moved most.
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
    asking = [ends[0].records[index] for index in chosen] + [records[0] for _, records in groups]
    num_pictures = sum(min(len(record.images), MAX_IMAGES) for record in asking)
    load = partial(load_picture, files, share=media_bytes // max(num_pictures, 1))
    common = common_changes(ends, written)
    said_once = {change.name for change in common if _is_explained_once(change.name, ends, written)}
    verdicts = verdicts_of([record for sample_set in (*ends, *trained) for record in sample_set.records])
    answered = {name for sample_set in ends for index in written for name in sample_set.records[index].rewards}
    return Texts(
        steps=tuple(sample_set.step for sample_set in ends),
        rows=tuple(
            TextRow(
                request=_request([sample_set.records[index] for sample_set in ends], load),
                answers=tuple(_answer(sample_set.records[index], said_once) for sample_set in ends),
            )
            for index in chosen
        ),
        common=common,
        verdicts=frozenset(verdicts),
        turned={name: _turned(name, ends, written) for name in sorted(verdicts & answered)},
        num_requests=len(written),
        num_movers=len(movers),
        groups=tuple(_trained_group(step, records, load) for step, records in groups),
        num_kept_steps=len(trained),
    )


def _movers(ends: Sequence[SampleSet], written: Sequence[int]) -> list[int]:
    """Of more requests than have room, those whose scores moved most, both ways."""
    if len(written) <= MAX_TEXTS or len(ends) < 2:
        return []
    scales = scales_of(ends, ())
    movement = {index: movement_of(ends, index, scales) for index in written}
    return moved_most(movement, lambda index: ends[0].records[index].prompt, MAX_TEXTS // 2)


def verdicts_of(records: Sequence[SampleRecord]) -> set[str]:
    """The rewards that only ever gave 0 or 1, and both."""
    given: dict[str, set[float]] = {}
    for record in records:
        for name, value in record.rewards.items():
            given.setdefault(name, set()).add(value)
    return {name for name, values in given.items() if values == {0, 1}}


def _turned(name: str, ends: Sequence[SampleSet], requests: Sequence[int]) -> OutcomeChanges:
    """How a verdict turned, over the requests that have it at every end."""
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


def _answer(record: SampleRecord, said_once: Container[str]) -> SampleRecord | None:
    """What was written, with the rewards that are not said once for all."""
    kept = {name: value for name, value in record.rewards.items() if name not in said_once}
    return replace(record, rewards=kept) if record.text is not None else None


def _is_explained_once(name: str, ends: Sequence[SampleSet], requests: Sequence[int]) -> bool:
    """Whether what a reward says of a request, it says of all of them, at each of the steps."""
    said = [[sample_set.records[index].explanations.get(name) for index in requests] for sample_set in ends]
    return all(one == of_step[0] for of_step in said for one in of_step)


def _groups(sample_set: SampleSet) -> list[tuple[int, list[SampleRecord]]]:
    groups = [list(records) for _, records in groupby(sample_set.records, key=lambda record: record.group)]
    return [(sample_set.step, records) for records in groups[:MAX_GROUPS]]


def _trained_group(step: int, records: Sequence[SampleRecord], load: Load) -> TrainedGroup:
    ranked = sorted(records, key=lambda record: -(record.advantage or 0.0))
    return TrainedGroup(
        step=step,
        request=_request(records, load, grouped=True),
        members=tuple(evenly(ranked, MAX_MEMBERS)),
        num_members=len(records),
        is_dead=all(record.advantage == 0 for record in records),
    )


def _request(records: Sequence[SampleRecord], load: Load, *, grouped: bool = False) -> AnsweredRequest:
    """What was asked, with the marks of all answers; of those to one request over time the first is before."""
    record, shown = records[0], records[0].images[:MAX_IMAGES]
    kinds = ["after" if grouped or len(records) == 1 else "before", *["after"] * (len(records) - 1)]
    marks = [
        m for s, kind in zip(records, kinds, strict=True) for m in marks_of(s.explanations, record.image_size, kind)
    ]
    return AnsweredRequest(
        prompt=record.prompt,
        pictures=tuple(load(path) if path else None for path in shown),
        num_more=len(record.images) - len(shown),
        num_videos=record.num_videos,
        reference=record.reference,
        alt=f"shown with: {clip(record.prompt, 200)}",
        marks=tuple(dict.fromkeys(marks))[:MAX_MARKS] if record.path is None else (),
    )
