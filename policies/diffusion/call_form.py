"""What a pipeline's call takes, and the arguments that rows make of it."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mmgrpo.errors import ConfigError, DataError, ReplayError
from mmgrpo.types import Prompt

from .conditioning import (
    MediaBatching,
    MediaCache,
    batch_media,
    contrasting_prompt,
    is_prompt_column,
    load_media,
    media_sizes,
    num_images,
)
from .denoising_rows import DenoisingRow
from .signature import arguments_of, unknown_arguments

logger = logging.getLogger(__name__)

IMAGE_ARGUMENTS = ("image", "images", "input_images")
ALBUM_BYTES = 2**28


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
        pictures: further arguments, with the data columns that hold their pictures.
        tuples: arguments that the call takes as tuples, for which YAML and JSON have lists alone.
        single: a row comes alone, as a string and a generator instead of lists of one.
        showing: how several rows bring what they show.
        is_proven: whether the pipeline was found to take it so, and to keep its rows apart.
        album: what the rows' prompts show, opened.
    """

    names: frozenset[str] | None = None
    columns: tuple[str, ...] = ()
    pictures: Mapping[str, str] = field(default_factory=dict)
    tuples: frozenset[str] = frozenset()
    single: bool = False
    showing: MediaBatching = MediaBatching.EACH
    is_proven: bool = False
    album: MediaCache = field(default_factory=lambda: MediaCache(ALBUM_BYTES), repr=False, compare=False)

    def takes(self, name: str) -> bool:
        """Whether the call has an argument of this name."""
        return self.names is None or name in self.names

    def arguments(self, rows: Sequence[DenoisingRow], call: Mapping[str, Any]) -> dict[str, Any]:
        """The pipeline's arguments for these rows, which may share a run: see ``together``.

        Args:
            rows: what is drawn.
            call: the arguments that all rows share.

        Returns:
            Arguments by name: those of ``call``, and what each row brings.

        Raises:
            ConfigError: rows bring what the call has no argument for.
            DataError: a row lacks a column that goes to the call.
        """
        prompts, names = [row.prompt for row in rows], self.row_arguments(rows[0])
        assert all(self.row_arguments(row) == names for row in rows), "rows of unlike arguments share a run"
        per_row = {name: [prompt.columns[name] for prompt in prompts] for name in self.columns if name in names}
        if self.takes("prompt") and "prompt" not in self.columns:
            per_row["prompt"] = [prompt.text for prompt in prompts]
        default = call.get("negative_prompt")
        if "negative_prompt" in names and "negative_prompt" not in per_row:
            per_row["negative_prompt"] = [prompt.negative for prompt in prompts]
        elif default is not None and "negative_prompt" not in per_row:
            per_row["negative_prompt"] = [default] * len(rows)
        if self.takes("generator"):
            per_row["generator"] = [row.generator() for row in rows]
        items = [self._shown(row) for row in rows]
        shown = {name: batch_media([item[name] for item in items], self.showing) for name in items[0]}
        if unknown := sorted(name for name in {*per_row, *shown} if not self.takes(name)):
            raise ConfigError(f"the pipeline's call takes no {' and no '.join(unknown)}; it takes {self._known()}")
        own = {name: value[0] for name, value in per_row.items()} if self.single else {}
        alike = {**call, **own}  # one value for all rows of the run
        alike |= {name: tuple(value) for name in self.tuples if isinstance(value := alike.get(name), list)}
        return {**alike, **({} if self.single else per_row), **shown}

    def shows(self, row: DenoisingRow) -> bool:
        """Whether a row shows the pipeline pictures or videos."""
        return bool(self.pictures) or len(row.prompt.images) > 0 or len(row.prompt.videos) > 0

    def row_arguments(self, row: DenoisingRow) -> frozenset[str]:
        """The optional arguments that a row brings: its columns that are not None, and its negative prompt.

        A pipeline does something else without an argument than with an empty one, so rows that bring different
        arguments do not share a run.

        Raises: DataError for a row without a column that goes to the call, and for audio, which no pipeline takes.
        """
        prompt = row.prompt
        if prompt.audios:
            raise DataError(
                f"the prompt {prompt.text!r:.60} has {len(prompt.audios)} audios, which pipelines are not shown: "
                "remove them from the row"
            )
        names = [name for name in self.columns if _column(prompt, name, "columns") is not None]
        return frozenset(names if prompt.negative is None else [*names, "negative_prompt"])

    def together(self, row: DenoisingRow, other: DenoisingRow) -> bool:
        """Whether two rows may share a run: the same arguments, and as many pictures each, of the same sizes."""
        if self.row_arguments(row) != self.row_arguments(other):
            return False
        if not (self.shows(row) or self.shows(other)):
            return True
        if self.showing is MediaBatching.ALONE or self.shows(row) is not self.shows(other):
            return False
        if row.prompt is other.prompt:
            return True
        return self.showing is not MediaBatching.SHARED and self._layout(row) == self._layout(other)

    def manner(self, row: DenoisingRow) -> Any:
        """Tells apart rows that bring other arguments, more or fewer pictures, or bring these otherwise."""
        names = self.row_arguments(row)
        if not self.shows(row):
            return names
        return names, self.showing, tuple((name, num_images(item)) for name, item in self._shown(row).items())

    def texts(self, row: DenoisingRow) -> Mapping[str, str]:
        """The texts that a row brings, by argument: prompt, negative prompt, and columns that are further prompts."""
        prompt = row.prompt
        texts = {"prompt": prompt.text, "negative_prompt": prompt.negative or ""}
        columns = {name: prompt.columns[name] for name in self.row_arguments(row) if name in self.columns}
        return texts | {name: text for name, text in columns.items() if is_prompt_column(name, text)}

    def stranger(self, row: DenoisingRow) -> DenoisingRow:
        """A row that may share a run with this one, and asks for something else behind other pictures."""
        if self.shows(row) and self.showing in (MediaBatching.SHARED, MediaBatching.ALONE):
            return row
        return replace(row, prompt=contrasting_prompt(row.prompt, self.pictures, self.columns))

    def _shown(self, row: DenoisingRow) -> Mapping[str, Any]:
        return self.album.shown(row.prompt, self._opened) if self.shows(row) else {}

    def _opened(self, prompt: Prompt) -> Mapping[str, Any]:
        image = next((name for name in IMAGE_ARGUMENTS if self.takes(name)), "image")
        if twice := {image} & set(self.pictures) if len(prompt.images) > 0 else ():
            raise ConfigError(
                f"the prompt's images go to the argument {image!r}, and policy.pictures gives {sorted(twice)} too; "
                "leave one of the two out"
            )
        for name in self.pictures.values():
            _column(prompt, name, "pictures")
        return load_media(prompt, image=image, columns=self.pictures)

    def _layout(self, row: DenoisingRow) -> Any:
        return {name: media_sizes(item) for name, item in self._shown(row).items()}

    def _known(self) -> str:
        return ", ".join(sorted(self.names or ()))


def form_of(call: Callable[..., Any], columns: Sequence[str], pictures: Mapping[str, str] | None = None) -> CallForm:
    """The form of a pipeline's call.

    Raises ConfigError for a column or pictures that it has no argument for; a call that takes any is warned of.
    """
    pictures = pictures or {}
    names, parameters = arguments_of(call), inspect.signature(call).parameters
    for key, chosen in (("columns", columns), ("pictures", pictures)):
        if unknown := sorted(set(chosen) - set(parameters if names is None else names)):
            message = f"policy.{key}: {unknown_arguments('the pipeline', unknown, names or parameters)}"
            if names is not None:
                raise ConfigError(message)
            logger.warning("%s, and takes any other, which it may leave unread", message)
    tuples = frozenset(name for name, parameter in parameters.items() if _is_tuple(parameter))
    return CallForm(names, tuple(columns), pictures, tuples)


def _is_tuple(parameter: inspect.Parameter) -> bool:
    """Whether an argument is a tuple and never a list, as the sizes and crops of SDXL's call."""
    kinds = str(parameter.annotation).lower()
    return "list" not in kinds and (isinstance(parameter.default, tuple) or "tuple[" in kinds)


def _column(prompt: Prompt, name: str, key: str) -> Any:
    if name not in prompt.columns:
        raise DataError(f"policy.{key} asks for {name!r}, and the row {prompt.text!r} has {sorted(prompt.columns)}")
    return prompt.columns[name]
