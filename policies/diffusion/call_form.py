"""The arguments of a pipeline's call, built from rows."""

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
MEDIA_CACHE_BYTES = 2**28


class RowsError(ReplayError):
    """Several rows in one run of a pipeline that do not come out as several rows."""


class RewoundError(Exception):
    """The pipeline moved its scheduler back: its first call of ``step`` reads the clean sample and takes no step."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How rows become the arguments of a pipeline's call.

    Attributes:
        names: argument names of the call; None accepts all.
        columns: data columns passed to the call as arguments of the same name, one entry per row.
        image_arguments: further arguments, with the data columns that hold their images.
        tuples: arguments that the call takes as tuples; YAML and JSON only have lists.
        single: pass one row as a string and a generator instead of lists of one.
        media_batching: how the media of several rows are batched.
        is_verified: whether the pipeline accepts this batching and keeps its rows independent.
        media_cache: the opened media of the rows' prompts.
    """

    names: frozenset[str] | None = None
    columns: tuple[str, ...] = ()
    image_arguments: Mapping[str, str] = field(default_factory=dict)
    tuples: frozenset[str] = frozenset()
    single: bool = False
    media_batching: MediaBatching = MediaBatching.EACH
    is_verified: bool = False
    media_cache: MediaCache = field(default_factory=lambda: MediaCache(MEDIA_CACHE_BYTES), repr=False, compare=False)

    def takes(self, name: str) -> bool:
        """Whether the call has an argument of this name."""
        return self.names is None or name in self.names

    def arguments(self, rows: Sequence[DenoisingRow], call: Mapping[str, Any]) -> dict[str, Any]:
        """The pipeline's arguments for rows that can share a run: see ``can_share_run``.

        Args:
            rows: the rows to sample.
            call: arguments that all rows share.

        Returns:
            Arguments by name: those of ``call``, and those of each row.

        Raises:
            ConfigError: rows have an argument that the call does not take.
            DataError: a row lacks a column that is passed to the call.
        """
        prompts, names = [row.prompt for row in rows], self.row_arguments(rows[0])
        assert all(self.row_arguments(row) == names for row in rows), "rows with different arguments share a run"
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
        items = [self._media(row) for row in rows]
        media = {name: batch_media([item[name] for item in items], self.media_batching) for name in items[0]}
        if unknown := sorted(name for name in {*per_row, *media} if not self.takes(name)):
            raise ConfigError(f"the pipeline's call has no argument {', '.join(unknown)}; it takes {self._names()}")
        single_row = {name: value[0] for name, value in per_row.items()} if self.single else {}
        shared = {**call, **single_row}  # one value for all rows
        shared |= {name: tuple(value) for name in self.tuples if isinstance(value := shared.get(name), list)}
        return {**shared, **({} if self.single else per_row), **media}

    def has_media(self, row: DenoisingRow) -> bool:
        """Whether a row has images or videos for the pipeline."""
        return bool(self.image_arguments) or len(row.prompt.images) > 0 or len(row.prompt.videos) > 0

    def row_arguments(self, row: DenoisingRow) -> frozenset[str]:
        """The optional arguments of a row: its columns that are not None, and its negative prompt.

        A missing argument and an empty one give different results, so rows with different arguments do not share a run.

        Raises: DataError for a row without a column that is passed to the call, and for audio, which no pipeline takes.
        """
        prompt = row.prompt
        if prompt.audios:
            raise DataError(
                f"the prompt {prompt.text!r:.60} has {len(prompt.audios)} audios, which diffusion pipelines do not "
                "take; remove them from the row"
            )
        names = [name for name in self.columns if _column(prompt, name, "columns") is not None]
        return frozenset(names if prompt.negative is None else [*names, "negative_prompt"])

    def can_share_run(self, row: DenoisingRow, other: DenoisingRow) -> bool:
        """Whether two rows may share a run: the same arguments, and the same number and sizes of images."""
        if self.row_arguments(row) != self.row_arguments(other):
            return False
        if not (self.has_media(row) or self.has_media(other)):
            return True
        if self.media_batching is MediaBatching.ALONE or self.has_media(row) is not self.has_media(other):
            return False
        if row.prompt is other.prompt:
            return True
        return self.media_batching is not MediaBatching.SHARED and self._media_sizes(row) == self._media_sizes(other)

    def input_kind(self, row: DenoisingRow) -> Any:
        """A key that distinguishes rows by their arguments, number of images and media batching."""
        names = self.row_arguments(row)
        if not self.has_media(row):
            return names
        return names, self.media_batching, tuple((name, num_images(item)) for name, item in self._media(row).items())

    def texts(self, row: DenoisingRow) -> Mapping[str, str]:
        """The texts of a row by argument: prompt, negative prompt, and columns that are further prompts."""
        prompt = row.prompt
        texts = {"prompt": prompt.text, "negative_prompt": prompt.negative or ""}
        columns = {name: prompt.columns[name] for name in self.row_arguments(row) if name in self.columns}
        return texts | {name: text for name, text in columns.items() if is_prompt_column(name, text)}

    def contrasting_row(self, row: DenoisingRow) -> DenoisingRow:
        """A row that may share a run with this one, with a different prompt and different images."""
        if self.has_media(row) and self.media_batching in (MediaBatching.SHARED, MediaBatching.ALONE):
            return row
        return replace(row, prompt=contrasting_prompt(row.prompt, self.image_arguments, self.columns))

    def _media(self, row: DenoisingRow) -> Mapping[str, Any]:
        return self.media_cache.media(row.prompt, self._opened) if self.has_media(row) else {}

    def _opened(self, prompt: Prompt) -> Mapping[str, Any]:
        image = next((name for name in IMAGE_ARGUMENTS if self.takes(name)), "image")
        if duplicates := {image} & set(self.image_arguments) if len(prompt.images) > 0 else ():
            raise ConfigError(
                f"both the prompt's images and policy.image_arguments set the argument {sorted(duplicates)}; remove "
                "one of the two"
            )
        for name in self.image_arguments.values():
            _column(prompt, name, "image_arguments")
        return load_media(prompt, image=image, columns=self.image_arguments)

    def _media_sizes(self, row: DenoisingRow) -> Any:
        return {name: media_sizes(item) for name, item in self._media(row).items()}

    def _names(self) -> str:
        return ", ".join(sorted(self.names or ()))


def form_of(
    call: Callable[..., Any], columns: Sequence[str], image_arguments: Mapping[str, str] | None = None
) -> CallForm:
    """The ``CallForm`` of a pipeline's call.

    Raises ConfigError for a column or image argument that the call does not have; warns if it takes ``**kwargs``.
    """
    image_arguments = image_arguments or {}
    names, parameters = arguments_of(call), inspect.signature(call).parameters
    for key, values in (("columns", columns), ("image_arguments", image_arguments)):
        if unknown := sorted(set(values) - set(parameters if names is None else names)):
            message = f"policy.{key}: {unknown_arguments('the pipeline', unknown, names or parameters)}"
            if names is not None:
                raise ConfigError(message)
            logger.warning("%s; it accepts other arguments, but may ignore them", message)
    tuples = frozenset(name for name, parameter in parameters.items() if _is_tuple(parameter))
    return CallForm(names, tuple(columns), image_arguments, tuples)


def _is_tuple(parameter: inspect.Parameter) -> bool:
    """Whether an argument is a tuple and never a list, such as the sizes and crops of SDXL's call."""
    kinds = str(parameter.annotation).lower()
    return "list" not in kinds and (isinstance(parameter.default, tuple) or "tuple[" in kinds)


def _column(prompt: Prompt, name: str, key: str) -> Any:
    if name not in prompt.columns:
        raise DataError(f"policy.{key} needs the column {name!r}; the row {prompt.text!r} has {sorted(prompt.columns)}")
    return prompt.columns[name]
