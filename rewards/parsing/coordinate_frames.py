"""Coordinate conventions of a reward's model and data: frames, layouts, and the sources of image sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from mmgrpo.data.image_loading import load_image
from mmgrpo.data.media_options import options_of, resized_size
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt

from .boxes import NORMALIZED_FRAMES, Box, CoordinateFrame, FrameName, Layout, Point, box_of
from .coordinates import StatedBox, box_list, single_box
from .extraction import require_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """The setting ``coordinates`` of a reward; see "Coordinates" in ``docs/how-to/verifiable-rewards.md``.

    Attributes:
        frame: frame of the coordinates that the model writes.
        reference_frame: frame of the coordinates in the data.
        layout: of the model's boxes.
        reference_layout: of the data's boxes.
        original_size: column with [width, height] of the upright image; without it the size of the prompt's only image.
        resized_size: column with [width, height] of the resized image that the model receives.
        pixels: minimum and maximum pixels of the resized image, to compute its size as Qwen-VL processors do; media
            options of the row (``max_pixels``, ``resized_height``, ...) override them.
        factor: both edges of the resized image are multiples of it, for ``pixels``.
    """

    frame: FrameName = "resized"
    reference_frame: FrameName = "original"
    layout: Layout = "xyxy"
    reference_layout: Layout = "xyxy"
    original_size: str = "original_size"
    resized_size: str = "resized_size"
    pixels: Sequence[int] | None = None
    factor: int = 28

    def __post_init__(self) -> None:
        require_choice("coordinates.frame", self.frame, FrameName)
        require_choice("coordinates.reference_frame", self.reference_frame, FrameName)
        require_choice("coordinates.layout", self.layout, Layout)
        require_choice("coordinates.reference_layout", self.reference_layout, Layout)
        if self.pixels is not None and (len(self.pixels) != 2 or not 0 < self.pixels[0] <= self.pixels[1]):
            raise ConfigError(f"coordinates.pixels must be [least, most], got {self.pixels!r}")
        if self.factor < 1:
            raise ConfigError(f"coordinates.factor must be at least 1, got {self.factor}")

    def of_model(self, prompt: Prompt) -> CoordinateFrame:
        """The model's frame for one prompt."""
        return self._frame(self.frame, prompt)

    def of_reference(self, prompt: Prompt) -> CoordinateFrame:
        """The data's frame for one prompt."""
        return self._frame(self.reference_frame, prompt)

    def boxes(
        self, prompt: Prompt, stated: Sequence[StatedBox], references: Sequence[StatedBox]
    ) -> tuple[list[Box], list[Box]]:
        """The boxes of an answer and of its reference, all in the frame of the reference.

        Image sizes are needed only if boxes are converted.
        """
        target = self.of_reference(prompt) if references else self.of_model(prompt)
        source = self.of_model(prompt) if stated else target
        converted = [box_of(box.numbers, self.layout, source).to(target) for box in stated]
        return converted, [box_of(box.numbers, self.reference_layout, target) for box in references]

    def single_reference(self, value: Any) -> StatedBox | None:
        """The box of a data row; None unless there is exactly one, with an area.

        Args:
            value: the column's value.

        Returns:
            The box.
        """
        return self.with_area(single_box(value))

    def reference_list(self, value: Any) -> list[StatedBox] | None:
        """The boxes of a data row; None for anything else, and if a box has no area.

        Args:
            value: the value of the column; an empty list or its text means no boxes.

        Returns:
            The boxes.
        """
        boxes = box_list(value)
        return None if boxes is None or not all(map(self.with_area, boxes)) else boxes

    def with_area(self, box: StatedBox | None) -> StatedBox | None:
        """The box; None for a box without an area, such as one with swapped corners."""
        frame = CoordinateFrame(self.reference_frame)
        return None if box is None or box_of(box.numbers, self.reference_layout, frame).empty else box

    def points(self, prompt: Prompt, stated: Sequence[tuple[float, float]]) -> list[Point]:
        """The points of an answer in the frame of the reference."""
        if not stated:
            return []
        source, target = self.of_model(prompt), self.of_reference(prompt)
        return [Point(*point, source).to(target) for point in stated]

    def _frame(self, name: FrameName, prompt: Prompt) -> CoordinateFrame:
        return CoordinateFrame(name) if self.frame == self.reference_frame else self.sized(name, prompt)

    def sized(self, name: FrameName, prompt: Prompt) -> CoordinateFrame:
        """A frame of the prompt's image with its size, also if no conversion is needed."""
        if name in NORMALIZED_FRAMES:
            return CoordinateFrame(name, NORMALIZED_FRAMES[name], NORMALIZED_FRAMES[name])
        width, height = self._original(prompt) if name == "original" else self._resized(prompt)
        return CoordinateFrame(name, width, height)

    def _original(self, prompt: Prompt) -> Sequence[float]:
        stated = prompt.columns.get(self.original_size)
        if stated is not None:
            return _edges(self.original_size, stated)
        images = list(prompt.images)
        if len(images) != 1:
            raise DataError(
                f"the size of the original image is needed: add a column '{self.original_size}' with "
                f"[width, height]; the prompt has {len(images)} images, and the size is read from a single image only"
            )
        return load_image(images[0]).size

    def _resized(self, prompt: Prompt) -> Sequence[float]:
        stated = prompt.columns.get(self.resized_size)
        if stated is not None:
            return _edges(self.resized_size, stated)
        options = options_of(prompt, "image")
        if len(options) == 1 and options[0]:
            return self._resized_by(options[0], prompt)
        if self.pixels is None:
            raise DataError(self._unknown_size())
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        width, height = self._original(prompt)
        least, most = self.pixels
        rows, columns = smart_resize(int(height), int(width), self.factor, min_pixels=least, max_pixels=most)
        return columns, rows

    def _resized_by(self, options: Mapping[str, Any], prompt: Prompt) -> Sequence[float]:
        """The size that the media options of the prompt's only image imply; missing bounds come from ``pixels``."""
        is_stated = "resized_height" in options or {"min_pixels", "max_pixels"} <= set(options)
        if self.pixels is None and not is_stated:
            raise DataError(self._unknown_size())
        width, height = self._original(prompt)
        least, most = self.pixels or (None, None)
        try:
            return resized_size((int(width), int(height)), options, factor=self.factor, least=least, most=most)
        except (ValueError, AssertionError) as error:
            raise DataError(f"the size of the resized image cannot be computed: {error}") from error

    def _unknown_size(self) -> str:
        return (
            f"the size of the resized image is needed: add a column '{self.resized_size}' with "
            f"[width, height], or coordinates: {{pixels: [least, most]}} as the processor has them"
        )


Declared = str | Mapping[str, Any] | Coordinates
"""The setting: the name of the model's frame, or the fields of ``Coordinates``."""


def coordinates_from(owner: str, setting: Declared) -> Coordinates:
    """Parse the ``coordinates`` setting of a reward.

    Args:
        owner: class of the reward, for messages.
        setting: the setting.

    Returns:
        The coordinates.

    Raises:
        ConfigError: a field is unknown, or its value is not allowed.
    """
    if isinstance(setting, Coordinates):
        return setting
    settings: dict[str, Any] = {"frame": setting} if isinstance(setting, str) else dict(setting)
    field_names = [field.name for field in fields(Coordinates)]
    unknown_names = sorted(set(map(str, settings)) - set(field_names))
    if unknown_names:
        raise ConfigError(f"{owner}.coordinates takes {', '.join(field_names)}; got {', '.join(unknown_names)}")
    try:
        return Coordinates(**settings)
    except ConfigError as error:
        raise ConfigError(f"{owner}.{error}") from None


def _edges(column: str, value: Any) -> Sequence[float]:
    pair = list(value) if isinstance(value, list | tuple) else []
    if len(pair) != 2 or not all(isinstance(edge, int | float) and edge > 0 for edge in pair):
        raise DataError(f"column '{column}' must be [width, height], both positive, got {value!r:.60}")
    return pair
