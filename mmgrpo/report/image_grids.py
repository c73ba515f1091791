"""The images, videos and audio of a run: grids before and after, and a few requests over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmgrpo.report.embedded_media import EmbeddedImage, embed_image, with_sound
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
"""Images in a line, each of 96 CSS pixels or more."""
MEDIA_BYTES = 4_800_000  # base64 makes 6.4 MB of it; the page stays under 8 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An image of a grid; ``bars`` is the fill of each reward's bar in 0..1, None where the reward does not apply."""

    request: int
    image: EmbeddedImage | None
    alt: str
    bars: tuple[float | None, ...]
    marks: tuple[ImageMark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptImages:
    """The images of a prompt, one strip per step, its mean rewards, and the input image per request."""

    prompt: str
    strips: tuple[tuple[Cell, ...], ...]
    changes: tuple[RewardChange, ...] = ()
    inputs: tuple[Cell, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGrids:
    """The grids before and after, and a few requests over time.

    Attributes:
        steps: the first evaluated step and the last, or the only one.
        rows: the grids, prompt by prompt.
        strip_steps: steps of the gallery.
        movement: request -> rise of its scores from the first step to the last.
        strips: the gallery; each strip has one cell per step.
        scales: reward that differs between requests -> values of an empty and a full bar.
        common: the other rewards, whose value is the same for all requests.
        num_requests: number of requests recorded at those steps.
        num_unmatched: number of lines whose prompt differs between the first and the last step; left out.
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
        return [cell for row in (*self.rows, *self.strips) for strip in (row.inputs, *row.strips) for cell in strip]

    @property
    def have_sources(self) -> bool:
        """Whether a request in a grid has an input image."""
        return any(row.inputs for row in self.rows)

    @property
    def num_displayed(self) -> int:
        """Number of requests in a grid."""
        return sum(len(row.strips[0]) for row in self.rows)

    @property
    def widest(self) -> int:
        """Largest number of images of a prompt in a grid."""
        return max(len(row.strips[0]) for row in self.rows)

    @property
    def is_sparse(self) -> bool:
        """Whether prompts have so few images that several prompts fit in a line."""
        return self.widest <= SPARSE < len(self.rows)

    @property
    def num_columns(self) -> int:
        """Images in a line of a grid; with many prompts as many as fit, to keep the rows low."""
        many = len(self.rows) > MANY_PROMPTS and not self.is_sparse
        return min(FITTING, FITTING if many else self.widest)

    @property
    def parts(self) -> list[str]:
        """Names of a prompt's grids, from left to right."""
        return [*["input image"] * self.have_sources, *(f"step {step}" for step in self.steps)]

    @property
    def num_moved(self) -> tuple[int, int]:
        """Numbers of requests whose scores rose and fell."""
        rises = [by > 0 for by in self.movement.values() if by]
        return sum(rises), len(rises) - sum(rises)


def image_grids_of(files: RunFiles, sample_sets: Sequence[SampleSet]) -> ImageGrids | None:
    """The grids and the gallery of the samples; None if no sample is an image.

    A grid with a limited number of requests takes them from the prompts in turn, so every prompt has a row.
    """
    ends = first_and_last(sample_sets)
    requests = shared_requests(ends)
    with_images = [index for index in requests if any(sample_set.records[index].path for sample_set in ends)]
    if not with_images:
        return None
    by_prompt = _by_prompt(ends[0], with_images)
    paths = [record.path for sample_set in ends for record in sample_set.records if record.path]
    moving = any(path.suffix in (".gif", ".webp", ".mp4", ".wav") for path in paths)
    most = MAX_VIDEOS_PER_GRID if moving else MAX_PER_GRID
    grids = _by_prompt(ends[0], sorted(in_turn(list(by_prompt.values()), most)))
    common = common_changes(ends, with_images)
    common_names = {change.name for change in common}
    scales = scales_of(ends, common_names)
    movement = {index: movement_of(ends, index, scales) for index in with_images} if len(ends) > 1 else {}
    strips = _strips(ends[0], movement, list(by_prompt.values())) if len(sample_sets) > 1 else []
    timeline = _timeline(sample_sets) if strips else []
    have_sources = any(ends[0].records[index].images for index in with_images)
    in_grid, in_strip = len(ends) + have_sources, len(timeline) + have_sources
    num_cells = in_grid * sum(map(len, grids.values())) + len(strips) * in_strip
    builder = CellBuilder(files=files, share=MEDIA_BYTES // num_cells, scales=scales)
    return ImageGrids(
        steps=tuple(sample_set.step for sample_set in ends),
        rows=tuple(
            PromptImages(
                prompt=prompt,
                strips=tuple(tuple(builder.cell(sample_set, index) for index in grid) for sample_set in ends),
                changes=tuple(c for c in reward_changes(ends, by_prompt[prompt]) if c.name not in common_names),
                inputs=tuple(builder.source(ends[0], index) for index in grid) if have_sources else (),
            )
            for prompt, grid in grids.items()
        ),
        strip_steps=tuple(sample_set.step for sample_set in timeline),
        movement=movement,
        strips=tuple(
            PromptImages(
                prompt=ends[0].records[index].prompt,
                strips=(tuple(builder.cell(sample_set, index) for sample_set in timeline),),
                changes=tuple(c for c in reward_changes(ends, [index]) if c.name not in common_names),
                inputs=(builder.source(ends[0], index),) if have_sources else (),
            )
            for index in strips
        ),
        scales=builder.scales,
        common=common,
        num_requests=len(with_images),
        num_unmatched=min(len(sample_set.records) for sample_set in ends) - len(requests),
    )


def _strips(sample_set: SampleSet, movement: Mapping[int, float], by_prompt: Sequence[Sequence[int]]) -> list[int]:
    """The requests of the gallery: those whose scores moved most, up or down; by position if too few moved."""
    moved = moved_most(movement, lambda index: sample_set.records[index].prompt, MAX_STRIPS)
    still = [[index for index in requests if not movement[index]] for requests in by_prompt]
    return moved + in_turn([requests for requests in still if requests], MAX_STRIPS - len(moved))


def _timeline(sample_sets: Sequence[SampleSet]) -> list[SampleSet]:
    """A few sets from the first to the last, at equal distances if that leaves at least six."""
    last = len(sample_sets) - 1
    strides = [
        stride for stride in range(1, last + 1) if last % stride == 0 and 6 <= last // stride + 1 <= MAX_STRIP_STEPS
    ]
    return list(sample_sets[:: strides[0]]) if strides else evenly(sample_sets, MAX_STRIP_STEPS)


def _by_prompt(sample_set: SampleSet, requests: Sequence[int]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for index in requests:
        groups.setdefault(sample_set.records[index].prompt, []).append(index)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBuilder:
    """Makes cells of images in ``files``: ``share`` is the maximum bytes per image, ``scales`` those of the bars."""

    files: RunFiles
    share: int
    scales: Mapping[str, tuple[float, float]]

    def cell(self, sample_set: SampleSet, request: int) -> Cell:
        """The cell of a request's sample; empty if there is none."""
        record = sample_set.records[request] if request < len(sample_set.records) else None
        if record is None or record.path is None:
            return Cell(request=request, image=None, alt=f"step {sample_set.step}: no image", bars=())
        rewards = "".join(f"; {name} {number(value)}" for name, value in record.rewards.items())
        image = embed_image(self.files, record.path, self.share)
        if record.sound is not None:
            image = with_sound(image, self.files, record.sound, self.share)
        is_original = image is not None and image.exact and image.sound is None
        size = (image.width, image.height) if image is not None and is_original else None
        return Cell(
            request=request,
            image=image,
            alt=f"step {sample_set.step}: {clip(record.prompt, 200)}{rewards}",
            bars=tuple(self._filled(record.rewards.get(name), *self.scales[name]) for name in list(self.scales)[:3]),
            marks=tuple(marks_of(record.explanations, size, "after")),
        )

    def source(self, sample_set: SampleSet, request: int) -> Cell:
        """The cell of a request's first input image; empty if there is none."""
        record = sample_set.records[request]
        first = next((path for path in record.images if path is not None), None)
        image = None if first is None else embed_image(self.files, first, self.share)
        text = clip(record.prompt, 200) if image is not None else "no image"
        return Cell(request=request, image=image, alt=f"input: {text}", bars=())

    def _filled(self, value: float | None, empty: float, full: float) -> float | None:
        if value is None:
            return None
        return min(1.0, max(0.0, (value - empty) / (full - empty))) if full > empty else 1.0
