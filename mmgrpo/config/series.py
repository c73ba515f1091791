"""A list under ``tasks``: runs one after another, each from the weights of the previous one."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from mmgrpo.config.sections import Section


class SeriesRun(Section):
    """One run of a series: its overrides of the configuration that contains it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="of its folder, within that of the series")
    set: dict[str, Any] = Field(
        default_factory=dict, description="dotted key -> value, for example {prompts.source: hard.jsonl, steps: 200}"
    )
