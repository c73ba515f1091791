"""Where prompts come from, and which of them a step takes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from mmgrpo.config.sections import Named, Section


class ReadingConfig(Section):
    """How a source is read."""

    split: str | None = Field(default=None, description="of a folder or dataset; needed where there are several")
    text_column: str = Field(default="prompt", description="column that holds the prompt, as text or chat messages")
    pictures: tuple[str, ...] = Field(
        default=(),
        description="columns that hold pictures beside image and images (masks, edges): paths count from the file's "
        "folder, and what is encoded is opened when it is looked at",
    )
    limit: int | None = Field(default=None, ge=1, description="keep the first so many")
    on_error: Literal["raise", "skip"] = Field(
        default="raise",
        description="for a row that cannot be read, or whose local image or audio cannot be decoded: raise: an error "
        "that names it; skip: such rows are counted, named and left out, and the media of each step are decoded once "
        "more to find them",
    )
    allow_fetch: bool = Field(
        default=False, description="images of rows may be URLs, fetched whenever they are looked at; false: refused"
    )
    allow_outside: bool = Field(
        default=False,
        description="media of rows may lie outside of the folder of their file, or of the hub's cache: by absolute "
        "paths, .. and links; false: refused",
    )


class SourceConfig(ReadingConfig):
    """One of several sources: its share of every step is its weight over all weights.

    Where that is no whole number of prompts it is the number below or above, drawn by (seed, step), and on average the
    share. Each source keeps an order of its own. Metrics of one source carry its label: ``reward/NAME/mean@LABEL``.
    """

    source: str = Field(description="as prompts.source")
    weight: float = Field(default=1.0, gt=0)
    label: str | None = Field(default=None, description="in the metrics; the source if not given")

    @property
    def known_as(self) -> str:
        """What it is called in the metrics."""
        return self.label or self.source


class PromptsConfig(ReadingConfig):
    """Where prompts come from: one source, or several by weight; of live prompts only how a step's are chosen."""

    source: str | None = Field(
        default=None,
        description=".txt, .jsonl, .json, .parquet, a datasets folder or hub id, or python:module:function",
    )
    sources: tuple[SourceConfig, ...] = Field(default=(), description="several sources in place of one")
    shuffle: bool = Field(default=True, description="a new permutation every epoch; false: in the order of the source")
    sampler: Named | None = Field(
        default=None, description="which prompts a step takes, by what is remembered of them; null: as shuffle says"
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_source(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_way(self) -> PromptsConfig:
        if self.source is not None and self.sources:
            raise ValueError("name one source, or several under sources, not both")
        misplaced = [name for name, field in ReadingConfig.model_fields.items() if getattr(self, name) != field.default]
        if self.sources and misplaced:
            raise ValueError(
                f"each of several sources is read in its own way: move {', '.join(misplaced)} under sources"
            )
        labels = [part.known_as for part in self.sources]
        if len(set(labels)) < len(labels):
            raise ValueError(f"sources are told apart by label, and {labels} repeat: give each a label")
        if self.sampler is not None and not self.shuffle:
            raise ValueError("shuffle: false is the sampler in_order; leave out one of shuffle and sampler")
        return self
