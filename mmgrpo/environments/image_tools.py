"""Tools that look at the images of a prompt: zoom, rotate, flip, and drawings of boxes, points and grids.

Names and arguments of calls follow two codebases: ``image_zoom_in_tool`` and ``image_rotate_tool`` with ``bbox_2d`` and
``angle`` of DeepEyes, and ``crop_image_normalized`` with ``bbox_2d`` and ``target_image``, counted from 1, of Pixel
Reasoner. ``tools: {zoom: image_zoom_in_tool}`` offers a tool under such a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any, Literal, final

from PIL import Image, ImageDraw, ImageOps

from mmgrpo.data.image_loading import load_image
from mmgrpo.data.media_options import options_of, resized_size
from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.environments.media_tools import MediaTools
from mmgrpo.errors import ConfigError
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.types import Prompt

Frame = Literal["original", "resized", "norm1000", "norm1"]
"""Coordinate frames, as those of the rewards: pixels of the image, pixels of the model's input, 0 to 1000, 0 to 1."""

FRAMES: Mapping[str, str] = {
    "original": "in pixels of the image",
    "resized": "in pixels of the image as you receive it",
    "norm1000": "from 0 to 1000 of the width and the height of the image",
    "norm1": "from 0 to 1 of the width and the height of the image",
}
"""Descriptions of the frames in the signatures that the model reads."""

FILTERS: Mapping[str, Image.Resampling] = {resampling.name.lower(): resampling for resampling in Image.Resampling}
"""Filters of enlarged and reduced images."""

MAX_CALLS = 64
"""The largest ``max_calls``: a turn has at most this many images."""

MAX_ASPECT = 100
"""Maximum ratio of a region's sides, as in DeepEyes."""

MAX_SHAPES = 64
"""Maximum number of boxes, points, rows or columns in a call."""

COLORS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080")
"""Colors of drawings, in the order of the shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageToolSettings:
    """Settings of image tools.

    Attributes:
        frame: frame of the model's coordinates.
        padding: padding of a zoomed region on each side, as a share of the image's side.
        min_side: shortest side of a zoomed region, in pixels of its image.
        resample: filter of enlarged and reduced images: nearest, box, bilinear, hamming, bicubic or lanczos.
        pixels: minimum and maximum number of pixels of an image in an answer.
        input_pixels: for the frame ``resized``, minimum and maximum number of pixels of the processor.
        factor: for the frame ``resized``, the divisor of both sides of the processor.
        max_calls: maximum number of images that the calls of a conversation return.
        reply: text after each image, with the fields number, width, height and label.

    Raises: ConfigError for a value that is not allowed.
    """

    frame: Frame = "original"
    padding: float = 0.0
    min_side: int = 28
    resample: str = "bicubic"
    pixels: Sequence[int] = (1, 2**20)
    input_pixels: Sequence[int] | None = None
    factor: int = 28
    max_calls: int = 8
    reply: str = "Image {number}, {width} x {height} pixels."

    def __post_init__(self) -> None:
        if self.frame not in FRAMES:
            raise ConfigError(f"frame must be one of {', '.join(FRAMES)}, got {self.frame!r}")
        if self.frame == "resized" and self.input_pixels is None:
            raise ConfigError("frame: resized needs input_pixels: [least, most], as the processor has them")
        if self.resample not in FILTERS:
            raise ConfigError(f"resample must be one of {', '.join(FILTERS)}, got {self.resample!r}")
        if not 0 <= self.padding < 1:
            raise ConfigError(f"padding must be a share of the image from 0, below 1, got {self.padding}")
        for name, most in (("min_side", 2**16), ("factor", 2**16), ("max_calls", MAX_CALLS)):
            if not 1 <= getattr(self, name) <= most:
                raise ConfigError(f"{name} must be from 1 to {most}, got {getattr(self, name)}")
        for name, bounds in (("pixels", self.pixels), ("input_pixels", self.input_pixels or (1, 1))):
            if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
                raise ConfigError(f"{name} must be [least, most], got {list(bounds)}")
        try:
            self.reply_text(Image.new("RGB", (1, 1)), 1, "")
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            fields = "{number}, {width}, {height} and {label}"
            raise ConfigError(f"reply may have the fields {fields}, got {self.reply!r}: {error}") from error

    def reply_text(self, image: Image.Image, number: int, label: str) -> str:
        """The text after an image."""
        return self.reply.format(number=number, width=image.width, height=image.height, label=label)

    def frame_size(self, size: tuple[int, int], options: Mapping[str, Any]) -> tuple[float, float]:
        """Width and height of an image in the coordinates of the model.

        Args:
            size: (width, height) of the image in pixels.
            options: options of the image in its row.

        Returns:
            (width, height).
        """
        if self.frame == "original":
            return size
        if self.frame != "resized":
            return (1000, 1000) if self.frame == "norm1000" else (1, 1)
        least, most = self.input_pixels or (None, None)
        return resized_size(size, options, factor=self.factor, least=least, most=most)


@final
class ImageTools:
    """The images of one conversation, numbered from 1 (those of the prompt, then those of the answers), and the
    functions that make further ones.
    """

    def __init__(
        self, images: Sequence[Any], options: Sequence[Mapping[str, Any]], settings: ImageToolSettings
    ) -> None:
        """The images of a prompt.

        Args:
            images: the images, in any form that ``load_image`` opens; opened when they are used.
            options: options of each image in its row.
            settings: settings of the tools.
        """
        self._images: list[Any] = list(images)
        self._options = list(options)
        self._settings = settings
        self._calls_left = settings.max_calls

    def zoom(self, bbox_2d: list[float], target_image: int = 1, label: str = "") -> list[dict[str, Any]]:
        """Zooms in on a region of an image.

        Args:
            bbox_2d: left, top, right and bottom of the region, {frame}.
            target_image: number of the image, from 1; the images of answers follow those of the question.
            label: name of the object in the region.

        Returns:
            The region as an image.
        """
        image = self._image(target_image)
        return self._answer(_cropped(image, self._box(bbox_2d, target_image, image), self._settings), label)

    def rotate(self, angle: float, target_image: int = 1) -> list[dict[str, Any]]:
        """Rotates an image counterclockwise.

        Args:
            angle: degrees, for example 90; negative ones turn clockwise.
            target_image: number of the image, from 1; the images of answers follow those of the question.

        Returns:
            The rotated image.
        """
        image = self._image(target_image)
        return self._answer(image.rotate(_numbers("angle", [angle], 1)[0] % 360, Image.Resampling.BICUBIC, expand=True))

    def flip(self, direction: str, target_image: int = 1) -> list[dict[str, Any]]:
        """Mirrors an image.

        Args:
            direction: horizontal swaps left and right, vertical swaps top and bottom.
            target_image: number of the image, from 1; the images of answers follow those of the question.

        Returns:
            The mirrored image.
        """
        image = self._image(target_image)
        if direction not in ("horizontal", "vertical"):
            raise ValueError(f"direction must be horizontal or vertical, got {direction!r:.60}")
        return self._answer(ImageOps.mirror(image) if direction == "horizontal" else ImageOps.flip(image))

    def draw_boxes(self, boxes_2d: list[list[float]], target_image: int = 1) -> list[dict[str, Any]]:
        """Draws boxes into an image.

        Args:
            boxes_2d: left, top, right and bottom of each box, {frame}.
            target_image: number of the image, from 1; the images of answers follow those of the question.

        Returns:
            The image with the boxes, each in another color.
        """
        image = self._image(target_image)
        drawing, width = ImageDraw.Draw(image), _line_width(image)
        for number, box in enumerate(_shapes("boxes_2d", boxes_2d)):
            left, top, right, bottom = self._box(box, target_image, image)
            corners = (floor(left), floor(top), ceil(right) - 1, ceil(bottom) - 1)
            drawing.rectangle(corners, outline=COLORS[number % len(COLORS)], width=width)
        return self._answer(image)

    def draw_points(self, points_2d: list[list[float]], target_image: int = 1) -> list[dict[str, Any]]:
        """Marks points in an image.

        Args:
            points_2d: x and y of each point, {frame}.
            target_image: number of the image, from 1; the images of answers follow those of the question.

        Returns:
            The image with a dot at each point, each in another color.
        """
        image = self._image(target_image)
        drawing, radius = ImageDraw.Draw(image), 2 * _line_width(image)
        for number, point in enumerate(_shapes("points_2d", points_2d)):
            numbers = _numbers("points_2d", point, 2)
            x, y = self._in_pixels(numbers, target_image, image)
            if not (0 <= x <= image.width and 0 <= y <= image.height):
                raise ValueError(f"the point {numbers} is outside of image {target_image}")
            drawing.circle((x, y), radius, fill=COLORS[number % len(COLORS)])
        return self._answer(image)

    def draw_grid(self, rows: int, columns: int, target_image: int = 1) -> list[dict[str, Any]]:
        """Draws a grid of cells with equal sizes over an image.

        Args:
            rows: number of rows.
            columns: number of columns.
            target_image: number of the image, from 1; the images of answers follow those of the question.

        Returns:
            The image with the grid; cells that are large enough have their number, from 1, row by row.
        """
        image = self._image(target_image)
        width, height = image.size
        R, C = _count("rows", rows, height), _count("columns", columns, width)
        drawing, line, color = ImageDraw.Draw(image), _line_width(image), COLORS[0]
        for row in range(1, R):
            drawing.line([(0, row * height // R), (width, row * height // R)], color, line)
        for column in range(1, C):
            drawing.line([(column * width // C, 0), (column * width // C, height)], color, line)
        if height // R >= 16 and width // C >= 8 * len(str(R * C)) + 4:
            for cell in range(R * C):
                corner = (cell % C * width // C + line + 2, cell // C * height // R + line)
                drawing.text(corner, str(cell + 1), fill=color)
        return self._answer(image)

    def _image(self, number: Any) -> Image.Image:
        """A copy of the image with a number. Raises ValueError for another number, and if no call is left."""
        if self._calls_left <= 0:
            raise ValueError("the maximum number of calls is reached; answer now")
        if isinstance(number, bool) or not isinstance(number, int | float) or number != number // 1:
            raise ValueError(f"target_image must be the number of an image, got {number!r:.60}")
        if not 1 <= number <= len(self._images):
            raise ValueError(f"target_image must be from 1 to {len(self._images)}, got {number:g}")
        return load_image(self._images[int(number) - 1])

    def _answer(self, image: Image.Image, label: Any = "") -> list[dict[str, Any]]:
        sized = within_pixels(image, self._settings.pixels, FILTERS[self._settings.resample])
        self._calls_left -= 1
        self._images.append(sized)
        self._options.append({})
        text = self._settings.reply_text(sized, len(self._images), str(label)[:200])
        return [{"type": "image", "image": sized}, *([{"type": "text", "text": text}] if text else [])]

    def _box(self, bbox: Any, number: int, image: Image.Image) -> tuple[float, float, float, float]:
        """A box in pixels, cut at the edges. Raises ValueError for one without an area in the image."""
        numbers = _numbers("bbox_2d", bbox, 4)
        (left, top), (right, bottom) = (self._in_pixels(numbers[at : at + 2], number, image) for at in (0, 2))
        left, right = (min(max(x, 0.0), image.width) for x in (left, right))
        top, bottom = (min(max(y, 0.0), image.height) for y in (top, bottom))
        if left >= right or top >= bottom:
            form = f"left, top, right, bottom {FRAMES[self._settings.frame]}"
            raise ValueError(f"the box {numbers} has no area in image {number:g}; give {form}")
        if max(right - left, bottom - top) > MAX_ASPECT * min(right - left, bottom - top):
            raise ValueError(f"one side of the box {numbers} is more than {MAX_ASPECT} times as long as the other")
        return left, top, right, bottom

    def _in_pixels(self, point: Sequence[float], number: int, image: Image.Image) -> tuple[float, float]:
        width, height = self._settings.frame_size(image.size, self._options[int(number) - 1])
        return point[0] * image.width / width, point[1] * image.height / height


TOOLS: Mapping[str, Callable[..., list[dict[str, Any]]]] = {
    "zoom": ImageTools.zoom,
    "rotate": ImageTools.rotate,
    "flip": ImageTools.flip,
    "draw_boxes": ImageTools.draw_boxes,
    "draw_points": ImageTools.draw_points,
    "draw_grid": ImageTools.draw_grid,
}


@final
class ImageToolsEnvironment(Environment, SupportsCalls):
    """Answers calls of image tools with images; a turn without calls ends the conversation.

    A call that cannot be answered (a box without an area, an unknown image, more than ``max_calls`` calls) is answered
    with ``{"error": ..}``, as ``ToolEnvironment`` does; its calls and answers have that format. Coordinates of images
    in answers are in the same frame as those of the prompt's images.

    Source: DeepEyes (Zheng et al. 2025, arXiv:2505.14362; github.com/Visual-Agent/DeepEyes, visual_toolbox_v2.py): a
    region with a side below 28 pixels is scaled to it around its center, sides differ by at most 100 times. Pixel
    Reasoner (Su et al. 2025, arXiv:2505.15966; github.com/TIGER-AI-Lab/Pixel-Reasoner, experience_maker.py): padding of
    0.1 of the image on each side, images numbered from 1, results resized to bounds of pixels. Deviations: a scaled
    region is moved into the image, where theirs is filled with black; a rotated image is complete, where theirs is cut;
    coordinates are never guessed from their values.
    """

    gives_rewards = False

    def __init__(
        self,
        tools: Sequence[str] | Mapping[str, str] = ("zoom",),
        *,
        describe: bool = True,
        role: str = "tool",
        **settings: Any,
    ) -> None:
        """Checks the settings.

        Args:
            tools: names of ``TOOLS``; as a mapping, the names by which the model calls them.
            describe: whether ``reset`` appends the signatures to the prompt, as in ``ToolEnvironment``.
            role: role of the answers in the chat template; ``user`` for templates without tools.
            **settings: fields of ``ImageToolSettings``.

        Raises:
            ConfigError: a setting is not allowed.
        """
        self._settings = ImageToolSettings(**settings)
        texts = {"frame": FRAMES[self._settings.frame]}
        self._tools = MediaTools("image", TOOLS, tools, self._state, texts=texts, describe=describe, role=role)

    def reset(self, prompt: Prompt) -> Turn:
        """The functions, if ``describe`` is set. Raises DataError for a prompt without an image."""
        return self._tools.reset(prompt)

    def step(self, text: str) -> Turn:
        """The images of the tools that a text calls, as ``respond``."""
        return self.respond(AssistantMessage(text))

    def respond(self, message: AssistantMessage) -> Turn:
        """The images of the called tools, in order, each with its text."""
        return self._tools.respond(message)

    def interrupted(self, error: TimeoutError) -> Turn | None:
        """As ``ToolEnvironment.interrupted``."""
        return self._tools.interrupted(error)

    def _state(self, prompt: Prompt) -> ImageTools:
        return ImageTools(prompt.images, options_of(prompt, "image"), self._settings)


def _cropped(image: Image.Image, box: tuple[float, float, float, float], settings: ImageToolSettings) -> Image.Image:
    """The region, with padding, widened to the shortest side.

    Padding is a share of the image, as in Pixel Reasoner. A region with a shorter side is scaled around its center
    to that side, as in DeepEyes, and moved into the image.
    """
    left, top, right, bottom = box
    across, down = settings.padding * image.width, settings.padding * image.height
    left, top = floor(max(left - across, 0.0)), floor(max(top - down, 0.0))
    right, bottom = ceil(min(right + across, image.width)), ceil(min(bottom + down, image.height))
    scale = max(1.0, settings.min_side / min(right - left, bottom - top))
    left, right = _widened(left, right, image.width, scale)
    top, bottom = _widened(top, bottom, image.height, scale)
    return image.crop((left, top, right, bottom))


def within_pixels(image: Image.Image, pixels: Sequence[int], resample: Image.Resampling) -> Image.Image:
    """An image enlarged or reduced, in its proportions, to a number of pixels within bounds.

    Args:
        image: the image.
        pixels: (least, most).
        resample: the filter.

    Returns:
        The image; the same object within the bounds.
    """
    least, most = pixels
    num_pixels = image.width * image.height
    if least <= num_pixels <= most:
        return image
    scale = ((least if num_pixels < least else most) / num_pixels) ** 0.5
    nearest = ceil if num_pixels < least else floor
    width, height = (max(1, nearest(side * scale)) for side in image.size)
    return image.resize((width, height), resample)


def _widened(low: int, high: int, limit: int, scale: float) -> tuple[int, int]:
    """A span scaled around its center, then moved into 0 to ``limit``, and cut if it is longer."""
    length = min(ceil((high - low) * scale), limit)
    start = low if length == high - low else floor((low + high - length) / 2)
    start = min(max(start, 0), limit - length)
    return start, start + length


def _line_width(image: Image.Image) -> int:
    return max(1, min(image.size) // 150)


def _numbers(name: str, values: Any, count: int) -> list[float]:
    """Finite numbers. Raises ValueError for another type or count."""
    numbers = list(values) if isinstance(values, list | tuple) else []
    if len(numbers) != count or not all(_is_number(number) for number in numbers):
        raise ValueError(f"{name} must have {count} finite numbers, got {values!r:.100}")
    return numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _shapes(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list | tuple) or not 1 <= len(values) <= MAX_SHAPES:
        raise ValueError(f"{name} must be a list of 1 to {MAX_SHAPES} lists of numbers, got {values!r:.100}")
    return list(values)


def _count(name: str, value: Any, num_pixels: int) -> int:
    most = min(MAX_SHAPES, num_pixels)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ValueError(f"{name} must be an integer from 1 to {most}, got {value!r:.60}")
    return value
