"""Tasks of a mixed run: several configurations whose steps are taken together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmgrpo.config.sections import Named, Section

SHARED = ("seed", "steps", "output", "checkpoint", "tracking", "runtime")
"""Sections of the run that all of its tasks have."""

OF_RUN = (*SHARED, "name", "runs", "tasks")
"""Keys that a task has none of itself."""

TASK_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"


class TaskConfig(Section):
    """How a configuration takes part in a mixed run."""

    every: int = Field(default=1, ge=1, description="takes part in the first and then each so many-th step of the run")
    after: str | None = Field(
        default=None,
        description="an earlier task that writes, whose samples of the step this one is shown in place of its prompts; "
        "null: its own prompts",
    )
    context: Named = Field(
        default_factory=lambda: Named.model_validate({"name": "after_answers", "text": "{answer}"}),
        description="of a task after another: what it is shown of a sample, a context of rollout.contexts",
    )
    compare: Literal["sample", "prompt"] = Field(
        default="sample",
        description="of a task after another: a group is what was drawn after one sample, or after all samples of a "
        "prompt",
    )
