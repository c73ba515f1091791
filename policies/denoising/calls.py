"""What a pipeline's call takes, and the arguments that rows make of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffusers.utils.loading_utils import load_video
from PIL import Image

from mmgrpo.data.media import local_file, opened
from mmgrpo.errors import ConfigError, DataError, ReplayError
from mmgrpo.policies.denoising.rows import Row

IMAGE_ARGUMENTS = ("image", "images", "input_images")


class RowsError(ReplayError):
    """Several rows in one run of a pipeline that do not come out as several rows."""


class RewoundError(Exception):
    """A pipeline moved its scheduler back: it had called ``step`` for the clean sample that it gives, not to step."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How rows become the arguments of a pipeline.

    Attributes:
        names: the arguments that the call takes; None takes all.
        columns: data columns that go to the call as arguments of their names, one entry a row.
        single: a row comes alone, as a string and a generator instead of lists of one.
    """

    names: frozenset[str] | None = None
    columns: tuple[str, ...] = ()
    single: bool = False

    def takes(self, name: str) -> bool:
        """Whether the call has an argument of this name."""
        return self.names is None or name in self.names

    def arguments(self, rows: Sequence[Row], call: Mapping[str, Any]) -> dict[str, Any]:
        """The pipeline's arguments for these rows; a row whose prompt shows images or videos comes alone.

        Args:
            rows: what is drawn.
            call: the arguments that all rows share.

        Returns:
            Arguments by name: those of ``call``, and what each row brings.

        Raises:
            ConfigError: rows bring what the call has no argument for.
            DataError: a row lacks a column that goes to the call.
        """
        prompts = [row.prompt for row in rows]
        per_row = {name: [_column(row, name) for row in rows] for name in self.columns}
        if self.takes("prompt") and "prompt" not in per_row:
            per_row["prompt"] = [prompt.text for prompt in prompts]
        default = call.get("negative_prompt")
        if default is not None or any(prompt.negative is not None for prompt in prompts):
            per_row["negative_prompt"] = [
                prompt.negative if prompt.negative is not None else default or "" for prompt in prompts
            ]
        if self.takes("generator"):
            per_row["generator"] = [row.generator() for row in rows]
        shown: dict[str, Any] = {}
        if images := [opened(image) for image in prompts[0].images]:
            name = next((name for name in IMAGE_ARGUMENTS if self.takes(name)), "image")
            shown[name] = images[0] if len(images) == 1 else images
        if videos := [_frames(video) for video in prompts[0].videos]:
            shown["video"] = videos[0] if len(videos) == 1 else videos
        if unknown := sorted(name for name in {*per_row, *shown} if not self.takes(name)):
            raise ConfigError(f"the pipeline's call takes no {' and no '.join(unknown)}; it takes {self._known()}")
        return {**call, **({name: value[0] for name, value in per_row.items()} if self.single else per_row), **shown}

    def _known(self) -> str:
        return ", ".join(sorted(self.names or ()))


def form_of(call: Callable[..., Any], columns: Sequence[str]) -> CallForm:
    """The form of a pipeline's call. Raises ConfigError for a column that it has no argument for."""
    parameters = inspect.signature(call).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return CallForm(None, tuple(columns))
    names = frozenset(parameters) - {"self"}
    if unknown := sorted(set(columns) - names):
        known = ", ".join(sorted(names))
        raise ConfigError(f"policy.columns: the pipeline's call has no argument {', '.join(unknown)}; it has {known}")
    return CallForm(names, tuple(columns))


def _column(row: Row, name: str) -> Any:
    if name not in row.prompt.columns:
        raise DataError(
            f"policy.columns asks for {name!r}, and the row {row.prompt.text!r} has {sorted(row.prompt.columns)}"
        )
    return row.prompt.columns[name]


def _frames(video: Any) -> list[Image.Image]:
    frames: Any = load_video(local_file(video)) if isinstance(video, str) else video
    return [opened(frame) for frame in frames]
