"""The texts of a run: the same requests before and after, and groups of training with what each text was worth."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path

from mmgrpo.report.albums import Album, Change, Shot, common_changes, first_and_last, shared_requests
from mmgrpo.report.choosing import evenly
from mmgrpo.report.drawings import MAX_MARKS, Mark, marks_of
from mmgrpo.report.media import Picture, load_picture
from mmgrpo.report.numbers import clip
from mmgrpo.report.run_files import RunFiles

Load = Callable[[Path], Picture | None]

MAX_TEXTS = 20
MAX_TRAINED_STEPS = 4
MAX_GROUPS = 4
MAX_MEMBERS = 16
MAX_IMAGES = 6
MEDIA_BYTES = 4_800_000  # base64 makes 6.4 MB of it; the page stays under 8 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
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
    pictures: tuple[Picture | None, ...]
    num_more: int
    num_videos: int
    reference: str | None
    alt: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """One request's answers, one per step; None where a step has none."""

    request: Request
    answers: tuple[Shot | None, ...]


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
    request: Request
    members: tuple[Shot, ...]
    num_members: int
    is_dead: bool

    @property
    def num_columns(self) -> int:
        """Answers beside each other, so that the lines come out even where they can."""
        return next((number for number in (4, 3) if len(self.members) % number == 0), 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
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
        groups: groups of a few training steps, step by step.
        num_kept_steps: training steps of which groups were kept.
    """

    steps: tuple[int, ...]
    rows: tuple[TextRow, ...]
    common: tuple[Change, ...]
    verdicts: frozenset[str]
    turned: Mapping[str, Turned]
    num_requests: int
    groups: tuple[TrainedGroup, ...]
    num_kept_steps: int

    @property
    def pictures(self) -> list[Picture]:
        """Every picture that is shown."""
        requests = [row.request for row in self.rows] + [group.request for group in self.groups]
        return [picture for request in requests for picture in request.pictures if picture]

    @property
    def is_brief(self) -> bool:
        """Whether every text is short, so that many fit beside each other."""
        said = [shot for row in self.rows for shot in row.answers] + [s for group in self.groups for s in group.members]
        return all(len(shot.text or "") <= 60 for shot in said if shot)


def texts_of(
    files: RunFiles, albums: Sequence[Album], trained: Sequence[Album], *, media_bytes: int = MEDIA_BYTES
) -> Texts | None:
    """What the page shows of the evaluations' texts and of the training's; None if nothing was written.

    Requests and steps are chosen by their position, never by what was written or what it earned.
    """
    ends = first_and_last(albums)
    written = [index for index in shared_requests(ends) if any(album.shots[index].text is not None for album in ends)]
    chosen = evenly(written, MAX_TEXTS)
    groups = [group for album in evenly(trained, MAX_TRAINED_STEPS) for group in _groups(album)]
    if not chosen and not groups:
        return None
    asking = [ends[0].shots[index] for index in chosen] + [shots[0] for _, shots in groups]
    num_pictures = sum(min(len(shot.images), MAX_IMAGES) for shot in asking)
    load = partial(load_picture, files, share=media_bytes // max(num_pictures, 1))
    common = common_changes(ends, written)
    said_once = {change.name for change in common}
    verdicts = _verdicts([shot for album in (*ends, *trained) for shot in album.shots])
    answered = {name for album in ends for index in written for name in album.shots[index].rewards}
    return Texts(
        steps=tuple(album.step for album in ends),
        rows=tuple(
            TextRow(
                request=_request([album.shots[index] for album in ends], load),
                answers=tuple(_answer(album.shots[index], said_once) for album in ends),
            )
            for index in chosen
        ),
        common=common,
        verdicts=frozenset(verdicts),
        turned={name: _turned(name, ends, written) for name in sorted(verdicts & answered)},
        num_requests=len(written),
        groups=tuple(_trained_group(step, shots, load) for step, shots in groups),
        num_kept_steps=len(trained),
    )


def _verdicts(shots: Sequence[Shot]) -> set[str]:
    """The rewards that only ever gave 0 or 1, and both."""
    given: dict[str, set[float]] = {}
    for shot in shots:
        for name, value in shot.rewards.items():
            given.setdefault(name, set()).add(value)
    return {name for name, values in given.items() if values == {0, 1}}


def _turned(name: str, ends: Sequence[Album], requests: Sequence[int]) -> Turned:
    """How a verdict turned, over the requests that have it at every end."""
    pairs = [tuple(album.shots[index].rewards.get(name) for album in (ends[0], ends[-1])) for index in requests]
    return Turned(
        num=sum(None not in pair for pair in pairs),
        gained=pairs.count((0, 1)),
        lost=pairs.count((1, 0)),
        right=pairs.count((1, 1)),
        wrong=pairs.count((0, 0)),
    )


def _answer(shot: Shot, said_once: Container[str]) -> Shot | None:
    """What was written, with the rewards that are not said once for all."""
    kept = {name: value for name, value in shot.rewards.items() if name not in said_once or name in shot.explanations}
    return replace(shot, rewards=kept) if shot.text is not None else None


def _groups(album: Album) -> list[tuple[int, list[Shot]]]:
    groups = [list(shots) for _, shots in groupby(album.shots, key=lambda shot: shot.group)]
    return [(album.step, shots) for shots in groups[:MAX_GROUPS]]


def _trained_group(step: int, shots: Sequence[Shot], load: Load) -> TrainedGroup:
    ranked = sorted(shots, key=lambda shot: -(shot.advantage or 0.0))
    return TrainedGroup(
        step=step,
        request=_request(shots, load, grouped=True),
        members=tuple(evenly(ranked, MAX_MEMBERS)),
        num_members=len(shots),
        is_dead=all(shot.advantage == 0 for shot in shots),
    )


def _request(shots: Sequence[Shot], load: Load, *, grouped: bool = False) -> Request:
    """What was asked, with the marks of all answers; of those to one request over time the first is before."""
    shot, shown = shots[0], shots[0].images[:MAX_IMAGES]
    kinds = ["after" if grouped or len(shots) == 1 else "before", *["after"] * (len(shots) - 1)]
    marks = [m for s, kind in zip(shots, kinds, strict=True) for m in marks_of(s.explanations, shot.image_size, kind)]
    return Request(
        prompt=shot.prompt,
        pictures=tuple(load(path) if path else None for path in shown),
        num_more=len(shot.images) - len(shown),
        num_videos=shot.num_videos,
        reference=shot.reference,
        alt=f"shown with: {clip(shot.prompt, 200)}",
        marks=tuple(dict.fromkeys(marks))[:MAX_MARKS] if shot.path is None else (),
    )
