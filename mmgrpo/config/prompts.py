"""The section ``prompts``: sources of prompts and the choice of those of a step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from mmgrpo.config.sections import Named, Section


class ReadingConfig(Section):
    """A source of prompts, and how it is read."""

    source: str | None = Field(
        default=None,
        description=".txt, .jsonl, .json, .parquet, or the https URL of such a file; a datasets folder or hub id, "
        "python:module:function, or reasoning_gym:DATASET?size=500&seed=0",
    )
    split: str | None = Field(
        default=None,
        description="split of a folder or dataset, or a part of it as in train[:-500]; needed where there are several",
    )
    columns: dict[str, str | dict[str, str]] = Field(
        default={},
        description="columns that prompts and rewards read -> columns of the source: a name; a path, "
        'reward_model.ground_truth or answer[0]; a text with these in braces, "Use the numbers {nums}."; or an object '
        "of these. The one of prompt is the prompt, those of image, images, video, videos, audio and audios its media",
    )
    image_columns: tuple[str, ...] = Field(
        default=(),
        description="columns with further images besides image and images (masks, edges): paths are relative to the "
        "file's folder, and encoded images are decoded on use",
    )
    limit: int | None = Field(default=None, ge=1, description="number of rows to keep, from the first")
    on_error: Literal["raise", "skip"] = Field(
        default="raise",
        description="for a row that cannot be read, or with a local image or audio that cannot be decoded: raise, "
        "an error that names the row; skip, the row is counted, named and left out (the media of each step are decoded "
        "once more to find such rows)",
    )
    outside_media: tuple[Literal["urls", "paths"], ...] = Field(
        default=(),
        description="media of rows outside of the folder of their file, or of the hub's cache, which are an error "
        "otherwise: urls, images fetched on every use; paths, absolute ones, .. and links",
    )


class SourceConfig(ReadingConfig):
    """One of several sources: its share of every step is its weight over all weights.

    A share that is no integer number of prompts is rounded down or up at random by (seed, step), so that its mean is
    the
    share. Each source has a separate order. Metrics of one source carry its label: ``reward/NAME/mean@LABEL``.
    """

    source: str = Field(description="as prompts.source")
    weight: float = Field(default=1.0, gt=0)
    label: str | None = Field(default=None, description="label in the metrics; null: the source")

    @property
    def logged_name(self) -> str:
        """Its name in the metrics."""
        return self.label or self.source


class HeldOutPromptsConfig(ReadingConfig):
    """The prompts of an evaluation: all rows of one source, in their order."""

    source: str | None = Field(default=None, description="as prompts.source; null: rows that are passed in Python")

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """None: an evaluation has one source."""
        return ()

    @model_validator(mode="before")
    @classmethod
    def _bare_source(cls, value: Any) -> Any:
        return _with_source(value)


class PromptsConfig(ReadingConfig):
    """Sources of prompts: one, or several by weight; for live prompts only the choice of those of a step."""

    sources: tuple[SourceConfig, ...] = Field(default=(), description="several sources in place of one")
    sampler: Named | None = Field(
        default=None,
        description="how the prompts of a step are chosen, from the statistics of earlier steps; in_order: in the "
        "order of the source; null: shuffled, a new permutation every epoch",
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_source(cls, value: Any) -> Any:
        return _with_source(value)

    @model_validator(mode="after")
    def _has_single_source(self) -> PromptsConfig:
        if self.source is not None and self.sources:
            raise ValueError("name one source, or several under sources, not both")
        misplaced = [name for name, field in ReadingConfig.model_fields.items() if getattr(self, name) != field.default]
        if self.sources and misplaced:
            raise ValueError(
                f"each of several sources is read in its own way: move {', '.join(misplaced)} under sources"
            )
        labels = [part.logged_name for part in self.sources]
        if len(set(labels)) < len(labels):
            raise ValueError(f"sources are identified by label, but {labels} repeat: give each source its own label")
        return self


def _with_source(value: Any) -> Any:
    """A bare source as a mapping; any other value unchanged."""
    return {"source": value} if isinstance(value, str) else value
