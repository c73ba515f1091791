"""The pictures of a run to share, the strip that opens the page, and what the preview of a link shows."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.data.clips import encoded
from mmgrpo.errors import DataError
from mmgrpo.report import write_gif, write_png
from mmgrpo.report.contact_sheet import GAP, GIF_HEAD, GIF_SIDE, STRIP_SIDE
from mmgrpo.report.run_info import training_summary
from tests.report.folder import STEPS, pixels, sample, write_lines
from tests.report.page import decoded, render
from tests.report.test_texts import write_texts


def gray(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L")).astype(int)


def enlarged(step: int, request: int, side: int) -> np.ndarray:
    """A saved image in the size of a tile."""
    return gray(Image.fromarray(pixels(step, request)).convert("RGB").resize((side, side), Image.Resampling.LANCZOS))


def write_image(run: Path, step: int, image: Image.Image) -> None:
    folder = run / f"samples/step-{step:06d}"
    folder.mkdir(parents=True)
    image.save(folder / "0000.png")
    write_lines(folder / "samples.jsonl", [sample("0000.png", 0, 0.5)])


def test_png_has_the_first_step_above_the_last(tmp_path: Path) -> None:
    for step, color in ((0, "red"), (10, "lime"), (20, "blue")):
        write_image(tmp_path, step, Image.new("RGB", (16, 16), color))
    image = Image.open(write_png(tmp_path, tmp_path / "sheet.png")).convert("RGB")
    assert image.width == 1200
    column = [image.getpixel((240, y)) for y in range(image.height)]
    reds, blues = ([y for y, color in enumerate(column) if color == of] for of in ((255, 0, 0), (0, 0, 255)))
    assert len(reds) == len(blues) == 180
    assert max(reds) < min(blues)
    assert (0, 255, 0) not in column


def test_gif_has_a_page_for_each_step_with_the_same_requests(run: Path, tmp_path: Path) -> None:
    with Image.open(write_gif(run, tmp_path / "steps.gif")) as image:
        pages = [(page.convert("RGB"), page.info["duration"]) for page in ImageSequence.Iterator(image)]
    assert [ms for _, ms in pages] == [600, 600, 2000]
    for step, (page, _) in zip(STEPS, pages, strict=True):
        for request in (0, 3):
            row, column = divmod(request, 4)
            left, top = GAP + column * (GIF_SIDE + GAP), GIF_HEAD + row * (GIF_SIDE + GAP)
            tile = page.crop((left, top, left + GIF_SIDE, top + GIF_SIDE))
            assert np.abs(gray(tile) - enlarged(step, request, GIF_SIDE)).mean() < 4


def test_gif_keeps_a_rare_color_on_a_noisy_page(tmp_path: Path) -> None:
    random, blue = np.random.RandomState(0), (42, 92, 214)
    pixels = random.randint(215, 256, (36, 36, 3))
    pixels[:12, :12] = np.array((222, 45, 48)) + random.randint(-20, 20, (12, 12, 3))
    pixels[12:24, :12] = np.array((38, 166, 91)) + random.randint(-20, 20, (12, 12, 3))
    pixels[-4:, -4:] = blue
    for step in (0, 10):
        write_image(tmp_path, step, Image.fromarray(pixels.astype(np.uint8)))
    with Image.open(write_gif(tmp_path, tmp_path / "steps.gif")) as animation:
        seen = animation.convert("RGB").getpixel((GAP + GIF_SIDE - 5, GIF_HEAD + GIF_SIDE - 5))
    assert isinstance(seen, tuple)
    assert max(abs(got - true) for got, true in zip(seen, blue, strict=True)) < 20


def test_gif_of_videos_plays_each_step(tmp_path: Path) -> None:
    for step, colors in ((0, ("red", "lime")), (10, ("blue", "white"))):
        folder = tmp_path / f"samples/step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "0000.mp4").write_bytes(encoded([Image.new("RGB", (32, 32), color) for color in colors]))
        write_lines(folder / "samples.jsonl", [sample("0000.mp4", 0, 0.5)])
    with Image.open(write_gif(tmp_path, tmp_path / "steps.gif")) as image:
        pages = [(page.convert("RGB"), page.info["duration"]) for page in ImageSequence.Iterator(image)]
    assert [ms for _, ms in pages] == [120, 600, 120, 2000]
    middles = [np.asarray(page.getpixel((72, 100))).astype(int) for page, _ in pages]
    expected = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)]
    assert all(np.abs(middle - np.asarray(color)).max() < 24 for middle, color in zip(middles, expected, strict=True))


def test_page_opens_with_the_strip_and_saves_the_animation(run: Path) -> None:
    page = render(run)
    (strip,) = page.attributes("img", "strip")
    image, step = decoded(strip["src"]), STRIP_SIDE + GAP
    assert image.size == (6 * step - GAP, 2 * step - GAP)
    for row, evaluated in enumerate((STEPS[0], STEPS[-1])):
        tile = image.crop((step, row * step, step + STRIP_SIDE, row * step + STRIP_SIDE))
        assert np.abs(gray(tile) - enlarged(evaluated, 1, STRIP_SIDE)).mean() < 8
    (link,) = [attrs for attrs in page.attributes("a") if "download" in attrs]
    with Image.open(io.BytesIO(base64.b64decode(link["href"].removeprefix("data:image/gif;base64,")))) as animation:
        assert getattr(animation, "n_frames", 1) == len(STEPS)
    assert link["download"] == "digits-2.gif"


def test_page_of_texts_opens_with_an_answer_before_and_after(tmp_path: Path) -> None:
    write_texts(tmp_path, "step-000000", [["3"]])
    write_texts(tmp_path, "step-000010", [["7"]])
    page = render(tmp_path)
    (opening,) = page.texts("figure", "opening")
    assert opening.index("before") < opening.index("after")
    assert page.attributes("img", "strip") == []
    assert not (tmp_path / "preview.png").exists()


def test_preview_of_a_link_has_title_summary_and_picture(run: Path) -> None:
    (run / "config.yaml").write_text(
        "about: {method: {name: grpo}}\npolicy: {model: owner/name}\nprompts: {source: prompts.txt}\n"
        "rewards: [{name: color}, {name: judge, label: beauty}]\n"
    )
    properties = {
        attrs["property"]: attrs["content"] for attrs in render(run).attributes("meta") if "property" in attrs
    }
    assert properties["og:title"] == "digits · mmgrpo"
    assert properties["og:description"].startswith(
        "owner/name trained by grpo for color, beauty on the prompts of prompts.txt; held_out_accuracy 0.560 → 0.950"
    )
    assert properties["og:image"] == "preview.png"
    with Image.open(run / "preview.png") as preview:
        assert preview.width == 1200


def test_summary_names_objects_in_python_without_their_module() -> None:
    config = "policy: {model: 'python:a.b:build'}\nprompts: {source: 'python:a.b:prompts'}\nrewards: [{name: color}]"
    assert training_summary(config) == "build trained for color on the prompts of prompts"
    assert training_summary("tasks: {a: {}}") is None
    assert training_summary("policy: [1]\nprompts: {sources: 3}") is None


def test_command_writes_the_pictures_alone(run: Path, tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.png", "a.gif")]
    result = CliRunner().invoke(app, ["report", str(run), "--png", names[0], "--gif", names[1]])
    assert result.output.split() == names
    assert not (run / "report.html").exists()
    assert CliRunner().invoke(app, ["report", str(run), str(run), "--png", names[0]]).exit_code == 2


def test_run_without_images_is_an_error(tmp_path: Path) -> None:
    write_texts(tmp_path, "step-000000", [["3"]])
    for write in (write_png, write_gif):
        with pytest.raises(DataError, match="has no evaluated images or videos"):
            write(tmp_path, tmp_path / "out")
