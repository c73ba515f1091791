"""Image tools: pixels of their results, coordinate frames, limits, and errors that the model reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmgrpo.config.registry import resolve
from mmgrpo.environment import Turn
from mmgrpo.environments.image_tools import COLORS, TOOLS, ImageToolsEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.tool_calls import description
from mmgrpo.types import Prompt
from tests.test_tools import call

RED = (230, 25, 75)  # the first of COLORS


def gradient(width: int = 200, height: int = 100) -> Image.Image:
    """An image whose pixels are their coordinates: red is x, green is y."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([x, y, 0 * x], axis=-1).astype(np.uint8))


def started(*images: Image.Image, **settings: Any) -> ImageToolsEnvironment:
    environment = ImageToolsEnvironment(**{"tools": list(TOOLS), "min_side": 1, "reply": "", **settings})  # pyrefly: ignore[bad-argument-type]
    environment.reset(Prompt("what is it", images=images or (gradient(),)))
    return environment


def pixels(turn: Turn, index: int = 0) -> np.ndarray:
    assert "error" not in turn.text, turn.text
    return np.asarray(turn.images[index])


def error(turn: Turn) -> str:
    assert not turn.images
    return json.loads(turn.text)["error"]


@pytest.mark.parametrize(
    ("settings", "box"),
    [
        ({}, [20, 10, 60, 40]),
        ({"frame": "norm1"}, [0.1, 0.1, 0.3, 0.4]),
        ({"frame": "norm1000"}, [100, 100, 300, 400]),
        # 200 x 100 within 20,000 to 80,000 pixels, both sides multiples of 28, is 196 x 112
        ({"frame": "resized", "input_pixels": (20_000, 80_000)}, [19.6, 11.2, 58.8, 44.8]),
    ],
)
def test_zoom_is_the_region_in_every_frame(settings: dict[str, Any], box: list[float]) -> None:
    turn = started(**settings).step(call("zoom", bbox_2d=box))
    expected = np.asarray(gradient())[10:40, 20:60]
    assert np.array_equal(pixels(turn), expected)
    assert (turn.role, turn.done, turn.reward) == ("tool", False, None)


def test_options_of_a_row_set_the_frame_of_its_image() -> None:
    part = {"type": "image", "resized_height": 56, "resized_width": 56}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "what"}]}]
    environment = ImageToolsEnvironment(min_side=1, frame="resized", input_pixels=(784, 10**6))
    environment.reset(Prompt("what", images=[gradient()], messages=messages))
    turn = environment.step(call("zoom", bbox_2d=[0, 28, 28, 56]))
    assert np.array_equal(pixels(turn), np.asarray(gradient())[50:100, 0:100])


def test_a_box_is_cut_at_the_edges() -> None:
    turn = started().step(call("zoom", bbox_2d=[150, -20, 1000, 30.5]))
    assert np.array_equal(pixels(turn), np.asarray(gradient())[0:31, 150:200])


def test_short_sides_are_widened_around_the_center() -> None:
    """DeepEyes scales a box of 14 x 7 pixels by 28 / 7 around its center (57, 50): 56 x 28 pixels."""
    turn = started(min_side=28).step(call("zoom", bbox_2d=[50, 47, 64, 54]))
    assert np.array_equal(pixels(turn), np.asarray(gradient())[36:64, 29:85])
    corner = started(min_side=28).step(call("zoom", bbox_2d=[0, 0, 10, 10]))
    assert np.array_equal(pixels(corner), np.asarray(gradient())[0:28, 0:28])
    narrow = started(gradient(200, 20), min_side=28).step(call("zoom", bbox_2d=[10, 5, 20, 15]))
    assert narrow.images[0].size == (28, 20)


def test_padding_is_a_share_of_the_image() -> None:
    turn = started(padding=0.1).step(call("zoom", bbox_2d=[10, 20, 60, 40]))
    assert np.array_equal(pixels(turn), np.asarray(gradient())[10:50, 0:80])


def test_sizes_of_answers_are_bounded() -> None:
    small = started(pixels=(1600, 10_000), resample="nearest").step(call("zoom", bbox_2d=[0, 0, 20, 20]))
    assert np.array_equal(pixels(small), np.asarray(gradient())[0:20, 0:20].repeat(2, 0).repeat(2, 1))
    large = started(pixels=(1, 5000)).step(call("zoom", bbox_2d=[0, 0, 200, 100]))
    assert large.images[0].size == (100, 50)


def test_rotations_and_flips() -> None:
    source = np.asarray(gradient())
    assert np.array_equal(pixels(started().step(call("rotate", angle=90))), np.rot90(source))
    assert np.array_equal(pixels(started().step(call("rotate", angle=-90.0))), np.rot90(source, -1))
    assert started().step(call("rotate", angle=45)).images[0].size == (214, 214)
    assert np.array_equal(pixels(started().step(call("flip", direction="horizontal"))), source[:, ::-1])
    assert np.array_equal(pixels(started().step(call("flip", direction="vertical"))), source[::-1])


def test_boxes_are_outlined_at_their_edges() -> None:
    turn = started(frame="norm1000").step(call("draw_boxes", boxes_2d=[[100, 100, 300, 400], [0, 0, 1000, 1000]]))
    image, source = pixels(turn), np.asarray(gradient())
    expected = source.copy()
    for (top, bottom, left, right), color in zip(((10, 39, 20, 59), (0, 99, 0, 199)), COLORS, strict=False):
        rgb = tuple(int(color[at : at + 2], 16) for at in (1, 3, 5))
        expected[[top, bottom], left : right + 1] = rgb
        expected[top : bottom + 1, [left, right]] = rgb
    assert np.array_equal(image, expected)


def test_points_are_dots() -> None:
    image = pixels(started().step(call("draw_points", points_2d=[[50, 60]])))
    changed = (image != np.asarray(gradient())).any(-1)
    rows, columns = np.nonzero(changed)
    assert (rows.mean(), columns.mean(), rows.max() - rows.min()) == (60, 50, 4)
    assert (image[changed] == RED).all()


def test_grids_have_lines_and_numbers() -> None:
    blank = Image.new("RGB", (200, 100), "white")
    image = pixels(started(blank).step(call("draw_grid", rows=2, columns=4)))
    assert (image[50] == RED).all()
    for column in (50, 100, 150):
        assert (image[:, column] == RED).all()
    cells = [image[top + 1 : top + 50, left + 1 : left + 50] for top in (0, 50) for left in (0, 50, 100, 150)]
    assert all((cell != 255).any() for cell in cells)
    assert not np.array_equal(cells[0], cells[1])
    tight = pixels(started(blank).step(call("draw_grid", rows=10, columns=10)))
    assert (tight[1:9, 1:19] == 255).all()


def test_answers_are_images_with_the_next_numbers() -> None:
    environment = started(gradient(), gradient(50, 50), reply="{number}: {width} x {height} {label}")
    turn = environment.step(call("zoom", bbox_2d=[0, 0, 30, 40], label="cat") + call("flip", direction="vertical"))
    assert turn.text == "3: 30 x 40 cat\n4: 200 x 100 "
    nested = environment.step(call("zoom", bbox_2d=[10, 10, 20, 20], target_image=3))
    assert np.array_equal(pixels(nested), np.asarray(gradient())[10:20, 10:20])
    second = environment.step(call("zoom", bbox_2d=[0, 0, 50, 50], target_image=2.0))
    assert second.images[0].size == (50, 50)
    assert environment.step("It is a cat.").done


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("zoom", {"bbox_2d": [60, 10, 20, 40]}, r"no area in image 1; give left, top, right, bottom in pixels"),
        ("zoom", {"bbox_2d": [300, 10, 400, 40]}, "no area in image 1"),
        ("zoom", {"bbox_2d": [1, 2, 3]}, "bbox_2d must have 4 finite numbers"),
        ("zoom", {"bbox_2d": "1,2,3,4"}, "bbox_2d must be array, got '1,2,3,4'"),
        ("zoom", {"bbox_2d": [0, 0, float("inf"), 4]}, "4 finite numbers"),
        ("zoom", {"bbox_2d": [0, 0, 10**400, 4]}, "4 finite numbers"),
        ("zoom", {"bbox_2d": [0, 0, True, 4]}, r"bbox_2d\[2\] must be number, got True"),
        ("zoom", {"bbox_2d": [0, 0, 200, 1]}, "more than 100 times as long"),
        ("zoom", {"bbox_2d": [0, 0, 9, 9], "target_image": 0}, "target_image must be from 1 to 1, got 0"),
        ("zoom", {"bbox_2d": [0, 0, 9, 9], "target_image": "cat.png"}, "target_image must be integer, got 'cat.png'"),
        ("zoom", {"bbox_2d": [0, 0, 9, 9], "target_image": 1.5}, "target_image must be integer, got 1.5"),
        ("zoom", {"box": [0, 0, 9, 9]}, "missing arguments: bbox_2d"),
        ("rotate", {"angle": "90"}, "angle must be number, got '90'"),
        ("flip", {"direction": "left"}, "direction must be horizontal or vertical, got 'left'"),
        ("draw_boxes", {"boxes_2d": []}, "boxes_2d must be a list of 1 to 64"),
        ("draw_boxes", {"boxes_2d": [[0, 0, 5, 5]] * 65}, "boxes_2d must be a list of 1 to 64"),
        ("draw_boxes", {"boxes_2d": [7]}, r"boxes_2d\[0\] must be array, got 7"),
        ("draw_points", {"points_2d": [[500, 0]]}, r"the point \[500, 0\] is outside of image 1"),
        ("draw_grid", {"rows": 0, "columns": 3}, "rows must be an integer from 1 to 64, got 0"),
        ("draw_grid", {"rows": 1e9, "columns": 3}, "rows must be an integer from 1 to 64"),
        ("paint", {}, "there is no function 'paint'; known are zoom, rotate"),
    ],
)
def test_errors_of_calls_are_answered(tool: str, arguments: dict[str, Any], message: str) -> None:
    environment = started(max_calls=1)
    turn = environment.step(call(tool, **arguments))
    with pytest.raises(ValueError, match=message):
        raise ValueError(error(turn))
    assert len(environment.step(call("zoom", bbox_2d=[0, 0, 9, 9])).images) == 1  # an error is no call


def test_calls_are_limited_over_all_turns() -> None:
    environment = started(max_calls=2)
    box = call("zoom", bbox_2d=[0, 0, 9, 9])
    assert len(environment.step(box).images) == 1
    turn = environment.step(box * 2)
    assert len(turn.images) == 1
    assert "the maximum number of calls is reached" in turn.text
    assert "the maximum number of calls" in error(environment.step(box))
    environment.reset(Prompt("what", images=[gradient()]))
    assert len(environment.step(box).images) == 1


def test_conversations_are_separate() -> None:
    first, second = started(gradient()), started(gradient(50, 50))
    first.step(call("zoom", bbox_2d=[0, 0, 30, 30]))
    assert "from 1 to 1" in error(second.step(call("zoom", bbox_2d=[0, 0, 9, 9], target_image=2)))


def test_names_and_signatures_of_other_codebases() -> None:
    tools = {"zoom": "image_zoom_in_tool", "rotate": "image_rotate_tool"}
    environment = ImageToolsEnvironment(tools, frame="norm1000", min_side=1, role="user")
    text = description(environment.reset(Prompt("what", images=[gradient()])).tools)
    zoom, rotate = map(json.loads, text.split("<tools>\n")[1].split("\n</tools>")[0].split("\n"))
    assert (zoom["name"], rotate["name"]) == ("image_zoom_in_tool", "image_rotate_tool")
    box = zoom["parameters"]["properties"]["bbox_2d"]
    assert box["items"] == {"type": "number"}
    assert "from 0 to 1000 of the width and the height of the image" in box["description"]
    assert zoom["parameters"]["required"] == ["bbox_2d"]
    turn = environment.step(call("image_zoom_in_tool", bbox_2d=[0, 0, 500, 500], label="the cat"))
    assert (turn.role, turn.text, turn.images[0].size) == ("user", "Image 2, 100 x 50 pixels.", (100, 50))
    pixel_reasoner = ImageToolsEnvironment({"zoom": "crop_image_normalized"}, frame="norm1", padding=0.1, min_side=1)
    assert "from 0 to 1 of" in description(pixel_reasoner.reset(Prompt("what", images=[gradient()])).tools)


def test_prompts_without_images_raise() -> None:
    with pytest.raises(DataError, match="has no image for image_tools: add a column 'image'"):
        ImageToolsEnvironment().reset(Prompt("what"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tools": []}, "one or more of zoom, rotate, flip, .*, got none"),
        ({"tools": ["zoom", "paint"]}, "got zoom, paint"),
        ({"tools": {"zoom": "look", "flip": "look"}}, "with distinct names"),
        ({"frame": "relative"}, "frame must be one of original, resized, norm1000, norm1"),
        ({"frame": "resized"}, r"needs input_pixels: \[least, most\]"),
        ({"resample": "sinc"}, "resample must be one of nearest"),
        ({"padding": 1}, "padding must be a share"),
        ({"max_calls": 0}, "max_calls must be from 1 to 64, got 0"),
        ({"pixels": [10, 5]}, r"pixels must be \[least, most\]"),
        ({"reply": "{size}"}, r"reply may have the fields \{number\}, .*size"),
    ],
)
def test_invalid_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve("environments", "image_tools")(**settings)
