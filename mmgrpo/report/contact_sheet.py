"""Pictures of a run to share: the same requests before and after as PNG, and over the steps as an animated GIF.

Requests are chosen by position, in turn over the prompts, never by reward.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from mmgrpo.errors import DataError
from mmgrpo.report.embedded_media import EmbeddedImage, data_uri, load_frames
from mmgrpo.report.logs import read_log
from mmgrpo.report.number_format import clip, number
from mmgrpo.report.run_charts import Headline, headlines
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.run_info import run_name, training_summary
from mmgrpo.report.sample_selection import evenly, in_turn
from mmgrpo.report.sample_sets import SampleSet, first_and_last, read_sample_sets, shared_requests
from mmgrpo.system.files import replace_bytes

Frames = Sequence[Image.Image]

PAPER, INK, SOFT, EMPTY = "#fbfaf8", "#1d1e21", "#5f6269", "#dedbd4"
MARGIN, GAP = 40, 8
SHEET_WIDTH, SHEET_SIDE, SHEET_REQUESTS = 1200, 180, 6
"""Pixels of the PNG and of its tiles: wide enough for the preview of a link."""

STRIP_SIDE = 128
GIF_SIDE, GIF_REQUESTS, GIF_COLUMNS, GIF_STEPS, GIF_HEAD = 128, 8, 4, 12, 34
CLIP_FRAMES = 8
STEP_MS, LAST_STEP_MS, CLIP_FRAME_MS = 600, 2000, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSteps:
    """The media of the same requests at some steps.

    Attributes:
        steps: the steps, ascending.
        prompts: the prompt of each request.
        frames: step by step the frames of each request: one for an image, none for one that cannot be read.
    """

    steps: tuple[int, ...]
    prompts: tuple[str, ...]
    frames: tuple[tuple[Frames, ...], ...]

    def tiles(self, index: int, side: int, frame: int = 0) -> list[Image.Image]:
        """Square tiles of the requests at a step; a video repeats."""
        return [_tile(frames[frame % len(frames)] if frames else None, side) for frames in self.frames[index]]


def sampled_steps(
    files: RunFiles, sample_sets: Sequence[SampleSet], *, num_requests: int, num_frames: int
) -> SampledSteps | None:
    """The media of the requests that the first and the last of the sets share; None if none is an image or a video.

    Args:
        files: the run folder.
        sample_sets: the steps to read.
        num_requests: maximum number of requests.
        num_frames: maximum number of frames of a video.

    Returns:
        The media, or None.
    """
    if not sample_sets:
        return None
    first, by_prompt = sample_sets[0].records, dict[str, list[int]]()
    for index in shared_requests(sample_sets):
        path = first[index].path
        if path is not None and path.suffix != ".wav":
            by_prompt.setdefault(first[index].prompt, []).append(index)
    requests = sorted(in_turn(list(by_prompt.values()), num_requests))
    frames = tuple(
        tuple(_frames_of(files, sample_set, request, num_frames) for request in requests) for sample_set in sample_sets
    )
    if not any(each for of_step in frames for each in of_step):
        return None
    return SampledSteps(
        steps=tuple(sample_set.step for sample_set in sample_sets),
        prompts=tuple(first[request].prompt for request in requests),
        frames=frames,
    )


def write_png(run: Path, out: Path) -> Path:
    """Writes the requests before and after as PNG, with the name of the run, what was trained, and its measures.

    Args:
        run: a run folder.
        out: the file; its folder exists.

    Returns:
        ``out``.

    Raises:
        DataError: there is no such folder, or it has no images and no videos.
    """
    files = _require_run(run)
    sheet = contact_sheet(files)
    if sheet is None:
        raise DataError(f"{run} has no evaluated images or videos, which --png shows; mmgrpo report {run} shows texts")
    replace_bytes(out, encoded_image(sheet, "PNG"))
    return out


def write_gif(run: Path, out: Path) -> Path:
    """Writes the requests over the steps as an animated GIF. Arguments, result and errors as of ``write_png``."""
    files = _require_run(run)
    data = steps_gif(files, read_sample_sets(files))
    if data is None:
        raise DataError(f"{run} has no evaluated images or videos, which --gif shows; mmgrpo report {run} shows texts")
    replace_bytes(out, data)
    return out


def contact_sheet(files: RunFiles) -> Image.Image | None:
    """The picture that ``write_png`` writes; None without images and videos."""
    ends = sampled_steps(files, first_and_last(read_sample_sets(files)), num_requests=SHEET_REQUESTS, num_frames=1)
    if ends is None:
        return None
    measures = headlines(read_log(files, "evaluation.jsonl"))
    height = 190 + len(ends.steps) * (SHEET_SIDE + GAP) + 70
    sheet = Image.new("RGB", (SHEET_WIDTH, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    width = SHEET_WIDTH - 2 * MARGIN
    _text(draw, (MARGIN, 30), run_name(files), 38, INK, width)
    _text(draw, (MARGIN, 84), training_summary(files.text("config.yaml")) or "", 20, SOFT, width)
    _text(draw, (MARGIN, 118), ", ".join(map(_measure_text, measures[:3])), 24, INK, width)
    left = MARGIN + 110
    side = min(SHEET_SIDE, (SHEET_WIDTH - MARGIN - left) // len(ends.prompts) - GAP)
    for row, step in enumerate(ends.steps):
        top = 180 + row * (side + GAP)
        if len(ends.steps) > 1:
            _text(draw, (MARGIN, top + side // 2 - 24), ("before", "after")[row], 20, INK, 100)
        _text(draw, (MARGIN, top + side // 2), f"step {step}", 18, SOFT, 100)
        for column, tile in enumerate(ends.tiles(row, side)):
            sheet.paste(tile, (left + column * (side + GAP), top))
    for column, prompt in enumerate(ends.prompts):
        top = 180 + len(ends.steps) * (side + GAP) + 4
        for line, text in enumerate(_lines(draw, prompt, 15, side, 2)):
            _text(draw, (left + column * (side + GAP), top + 20 * line), text, 15, SOFT, side)
    return sheet


def opening_strip(files: RunFiles, sample_sets: Sequence[SampleSet]) -> EmbeddedImage | None:
    """The tiles of the first step above those of the last, without text; None with fewer than two steps."""
    ends = sampled_steps(files, first_and_last(sample_sets), num_requests=SHEET_REQUESTS, num_frames=1)
    if ends is None or len(ends.steps) < 2:
        return None
    step = STRIP_SIDE + GAP
    strip = Image.new("RGBA", (len(ends.prompts) * step - GAP, 2 * step - GAP), (0, 0, 0, 0))
    for row in range(2):
        for column, tile in enumerate(ends.tiles(row, STRIP_SIDE)):
            strip.paste(tile, (column * step, row * step))
    uri = data_uri(encoded_image(strip, "WEBP"), "WEBP")
    return EmbeddedImage(uri=uri, width=strip.width, height=strip.height, exact=False)


def steps_gif(files: RunFiles, sample_sets: Sequence[SampleSet]) -> bytes | None:
    """The animation that ``write_gif`` writes; None without images and videos."""
    sampled = sampled_steps(files, evenly(sample_sets, GIF_STEPS), num_requests=GIF_REQUESTS, num_frames=CLIP_FRAMES)
    if sampled is None:
        return None
    pages, lengths_ms = [], []
    for index, step in enumerate(sampled.steps):
        num_frames = max(map(len, sampled.frames[index]), default=1) or 1
        rest_ms = LAST_STEP_MS if step == sampled.steps[-1] else STEP_MS
        for frame in range(num_frames):
            pages.append(_gif_page(sampled, index, frame))
            lengths_ms.append(CLIP_FRAME_MS if frame < num_frames - 1 else rest_ms)
    # 256 colors that cover the rare ones too, without dithering, which GIF compresses badly
    pages = [page.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE) for page in pages]
    buffer = io.BytesIO()
    pages[0].save(buffer, "GIF", save_all=True, append_images=pages[1:], duration=lengths_ms, loop=0)
    return buffer.getvalue()


def _gif_page(sampled: SampledSteps, index: int, frame: int) -> Image.Image:
    columns = min(GIF_COLUMNS, len(sampled.prompts))
    num_rows = -(-len(sampled.prompts) // columns)
    page = Image.new("RGB", (columns * (GIF_SIDE + GAP) + GAP, GIF_HEAD + num_rows * (GIF_SIDE + GAP)), PAPER)
    _text(ImageDraw.Draw(page), (GAP, 6), f"step {sampled.steps[index]}", 18, INK, page.width)
    for request, tile in enumerate(sampled.tiles(index, GIF_SIDE, frame)):
        row, column = divmod(request, columns)
        page.paste(tile, (GAP + column * (GIF_SIDE + GAP), GIF_HEAD + row * (GIF_SIDE + GAP)))
    return page


def _require_run(run: Path) -> RunFiles:
    if not run.is_dir():
        raise DataError(f"no run folder at {run}; pass the folder that mmgrpo train wrote")
    return RunFiles(run)


def _frames_of(files: RunFiles, sample_set: SampleSet, request: int, num_frames: int) -> Frames:
    path = sample_set.records[request].path if request < len(sample_set.records) else None
    return load_frames(files, path, num_frames) if path is not None else ()


def _tile(image: Image.Image | None, side: int) -> Image.Image:
    """The image in the middle of a square; gray without an image."""
    tile = Image.new("RGB", (side, side), EMPTY)
    if image is None:
        return tile
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    tile.paste(image.resize(size, Image.Resampling.LANCZOS), ((side - size[0]) // 2, (side - size[1]) // 2))
    return tile


def _measure_text(measure: Headline) -> str:
    if measure.first_step == measure.last_step:
        return f"{measure.name} {number(measure.last)}"
    return f"{measure.name} {number(measure.first)} to {number(measure.last)}"


def _text(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, size: int, color: str, width: int) -> None:
    """A line of text, shortened to a width in pixels."""
    lines = _lines(draw, text, size, width, 1)
    draw.text(at, lines[0] if lines else "", fill=color, font=ImageFont.load_default(size))


def _lines(draw: ImageDraw.ImageDraw, text: str, size: int, width: int, most: int) -> list[str]:
    """The text broken between words into lines of a width in pixels; the last line ends in ... if words are left."""
    font, lines = ImageFont.load_default(size), [""]
    words = clip(" ".join(text.split()), 400).split()
    for index, word in enumerate(words):
        longer = f"{lines[-1]} {word}".strip()
        if draw.textlength(longer, font) <= width or not lines[-1]:
            lines[-1] = longer
        elif len(lines) < most:
            lines.append(word)
        else:
            lines[-1] += " ..." if index else ""
            break
    return [_shortened(draw, line, font, width) for line in lines if line]


def _shortened(
    draw: ImageDraw.ImageDraw, line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int
) -> str:
    if draw.textlength(line, font) <= width:
        return line
    line = line.removesuffix("...").rstrip()
    while line and draw.textlength(f"{line}...", font) > width:
        line = line[:-1]
    return f"{line}..."


def encoded_image(image: Image.Image, form: str) -> bytes:
    """The file of an image in a format of Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()
