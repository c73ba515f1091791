"""The pictures, videos and sounds of a run: grids before and after, and a few requests over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmgrpo.report.embedded_media import EmbeddedImage, load_picture, with_sound
from mmgrpo.report.image_marks import ImageMark, marks_of
from mmgrpo.report.movement import movement_of, scales_of
from mmgrpo.report.number_format import clip, number
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.sample_selection import evenly, in_turn, moved_most
from mmgrpo.report.sample_sets import (
    RewardChange,
    SampleSet,
    common_changes,
    first_and_last,
    reward_changes,
    shared_requests,
)

MAX_PER_GRID = 100
MAX_VIDEOS_PER_GRID = 36
MAX_STRIPS = 6
MAX_STRIP_STEPS = 10
MANY_PROMPTS = 20
SPARSE = 2
FITTING = 5
"""Pictures in a line, each of 96 CSS pixels or more."""
MEDIA_BYTES = 4_800_000  # base64 makes 6.4 MB of it; the page stays under 8 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A picture in its place; ``bars`` holds how full each reward's bar is, or None where it does not apply."""

    request: int
    picture: EmbeddedImage | None
    alt: str
    bars: tuple[float | None, ...]
    marks: tuple[ImageMark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptImages:
    """One prompt's pictures, a strip per step, and its mean rewards; ``shown`` is what each request was shown."""

    prompt: str
    strips: tuple[tuple[Cell, ...], ...]
    changes: tuple[RewardChange, ...] = ()
    shown: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGrids:
    """The grids before and after, and a few requests over time.

    Attributes:
        steps: the first evaluated step and the last, or the only one.
        rows: the grids, prompt by prompt.
        strip_steps: steps of the gallery.
        movement: how far each request's scores rose from the first step to the last, where any did.
        strips: the gallery; each strip holds one cell per step.
        scales: per reward that tells the requests apart, what an empty and a full bar stand for.
        common: the other rewards, whose value is the same for all requests.
        num_requests: requests recorded at those steps.
        num_unmatched: lines that ask something else at the last step than at the first, left out.
    """

    steps: tuple[int, ...]
    rows: tuple[PromptImages, ...]
    strip_steps: tuple[int, ...]
    movement: Mapping[int, float]
    strips: tuple[PromptImages, ...]
    scales: Mapping[str, tuple[float, float]]
    common: tuple[RewardChange, ...]
    num_requests: int
    num_unmatched: int

    @property
    def cells(self) -> list[Cell]:
        """Every cell, row by row."""
        return [cell for row in (*self.rows, *self.strips) for strip in (row.shown, *row.strips) for cell in strip]

    @property
    def have_sources(self) -> bool:
        """Whether a request in a grid was shown a picture."""
        return any(row.shown for row in self.rows)

    @property
    def num_shown(self) -> int:
        """Requests in a grid."""
        return sum(len(row.strips[0]) for row in self.rows)

    @property
    def widest(self) -> int:
        """Pictures of the prompt that has most of them in a grid."""
        return max(len(row.strips[0]) for row in self.rows)

    @property
    def is_sparse(self) -> bool:
        """Whether each prompt has so few pictures that several prompts fit beside each other."""
        return self.widest <= SPARSE < len(self.rows)

    @property
    def num_columns(self) -> int:
        """Pictures in a line of a grid; as many as fit where prompts are many, so that they stay low."""
        many = len(self.rows) > MANY_PROMPTS and not self.is_sparse
        return min(FITTING, FITTING if many else self.widest)

    @property
    def parts(self) -> list[str]:
        """What a prompt's grids are, from left to right."""
        return [*["what was shown"] * self.have_sources, *(f"step {step}" for step in self.steps)]

    @property
    def num_moved(self) -> tuple[int, int]:
        """Requests that rose and that fell."""
        rises = [by > 0 for by in self.movement.values() if by]
        return sum(rises), len(rises) - sum(rises)


def pictures_of(files: RunFiles, sample_sets: Sequence[SampleSet]) -> ImageGrids | None:
    """What the page shows of the samples; None if none is a picture.

    A grid that cannot hold every request takes them from the prompts in turn, so that each prompt has its row.
    """
    ends = first_and_last(sample_sets)
    requests = shared_requests(ends)
    drawn = [index for index in requests if any(sample_set.records[index].path for sample_set in ends)]
    if not drawn:
        return None
    by_prompt = _by_prompt(ends[0], drawn)
    paths = [record.path for sample_set in ends for record in sample_set.records if record.path]
    moving = any(path.suffix in (".gif", ".webp", ".mp4", ".wav") for path in paths)
    most = MAX_VIDEOS_PER_GRID if moving else MAX_PER_GRID
    shown = _by_prompt(ends[0], sorted(in_turn(list(by_prompt.values()), most)))
    common = common_changes(ends, drawn)
    said_once = {change.name for change in common}
    scales = scales_of(ends, said_once)
    movement = {index: movement_of(ends, index, scales) for index in drawn} if len(ends) > 1 else {}
    strips = _strips(ends[0], movement, list(by_prompt.values())) if len(sample_sets) > 1 else []
    timeline = _timeline(sample_sets) if strips else []
    have_sources = any(ends[0].records[index].images for index in drawn)
    in_grid, in_strip = len(ends) + have_sources, len(timeline) + have_sources
    num_cells = in_grid * sum(map(len, shown.values())) + len(strips) * in_strip
    builder = CellBuilder(files=files, share=MEDIA_BYTES // num_cells, scales=scales)
    return ImageGrids(
        steps=tuple(sample_set.step for sample_set in ends),
        rows=tuple(
            PromptImages(
                prompt=prompt,
                strips=tuple(tuple(builder.cell(sample_set, index) for index in grid) for sample_set in ends),
                changes=tuple(c for c in reward_changes(ends, by_prompt[prompt]) if c.name not in said_once),
                shown=tuple(builder.source(ends[0], index) for index in grid) if have_sources else (),
            )
            for prompt, grid in shown.items()
        ),
        strip_steps=tuple(sample_set.step for sample_set in timeline),
        movement=movement,
        strips=tuple(
            PromptImages(
                prompt=ends[0].records[index].prompt,
                strips=(tuple(builder.cell(sample_set, index) for sample_set in timeline),),
                changes=tuple(c for c in reward_changes(ends, [index]) if c.name not in said_once),
                shown=(builder.source(ends[0], index),) if have_sources else (),
            )
            for index in strips
        ),
        scales=builder.scales,
        common=common,
        num_requests=len(drawn),
        num_unmatched=min(len(sample_set.records) for sample_set in ends) - len(requests),
    )


def _strips(sample_set: SampleSet, movement: Mapping[int, float], by_prompt: Sequence[Sequence[int]]) -> list[int]:
    """The requests of the gallery: those that moved most, both ways; by position where too few moved."""
    moved = moved_most(movement, lambda index: sample_set.records[index].prompt, MAX_STRIPS)
    still = [[index for index in requests if not movement[index]] for requests in by_prompt]
    return moved + in_turn([requests for requests in still if requests], MAX_STRIPS - len(moved))


def _timeline(sample_sets: Sequence[SampleSet]) -> list[SampleSet]:
    """A few sets from the first to the last, at equal distances where that leaves at least six."""
    last = len(sample_sets) - 1
    strides = [
        stride for stride in range(1, last + 1) if last % stride == 0 and 6 <= last // stride + 1 <= MAX_STRIP_STEPS
    ]
    return list(sample_sets[:: strides[0]]) if strides else evenly(sample_sets, MAX_STRIP_STEPS)


def _by_prompt(sample_set: SampleSet, requests: Sequence[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for index in requests:
        found.setdefault(sample_set.records[index].prompt, []).append(index)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBuilder:
    """Makes cells of ``files``: ``share`` is how many bytes a picture may take, ``scales`` the rewards' bars."""

    files: RunFiles
    share: int
    scales: Mapping[str, tuple[float, float]]

    def cell(self, sample_set: SampleSet, request: int) -> Cell:
        """The answer to a request; empty where it has none."""
        record = sample_set.records[request] if request < len(sample_set.records) else None
        if record is None or record.path is None:
            return Cell(request=request, picture=None, alt=f"step {sample_set.step}: no picture", bars=())
        rewards = "".join(f"; {name} {number(value)}" for name, value in record.rewards.items())
        picture = load_picture(self.files, record.path, self.share)
        if record.sound is not None:
            picture = with_sound(picture, self.files, record.sound, self.share)
        is_whole = picture is not None and picture.exact and picture.sound is None
        size = (picture.width, picture.height) if picture is not None and is_whole else None
        return Cell(
            request=request,
            picture=picture,
            alt=f"step {sample_set.step}: {clip(record.prompt, 200)}{rewards}",
            bars=tuple(self._filled(record.rewards.get(name), *self.scales[name]) for name in list(self.scales)[:3]),
            marks=tuple(marks_of(record.explanations, size, "after")),
        )

    def source(self, sample_set: SampleSet, request: int) -> Cell:
        """The first picture that a request showed; empty where it showed none."""
        record = sample_set.records[request]
        first = next((path for path in record.images if path is not None), None)
        picture = None if first is None else load_picture(self.files, first, self.share)
        said = clip(record.prompt, 200) if picture is not None else "no picture"
        return Cell(request=request, picture=picture, alt=f"shown: {said}", bars=())

    def _filled(self, value: float | None, empty: float, full: float) -> float | None:
        if value is None:
            return None
        return min(1.0, max(0.0, (value - empty) / (full - empty))) if full > empty else 1.0
