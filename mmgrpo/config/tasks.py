"""Tasks of a mixed run: several configurations whose steps are taken together."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.sections import Section

SHARED = ("seed", "steps", "output", "checkpoint", "tracking", "runtime")
"""Sections of the run that all of its tasks have."""

OF_RUN = (*SHARED, "name", "runs", "tasks")
"""Keys that a task has none of itself."""

TASK_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"


class TaskConfig(Section):
    """How a configuration takes part in a mixed run."""

    every: int = Field(default=1, ge=1, description="takes part in the first and then each so many-th step of the run")
