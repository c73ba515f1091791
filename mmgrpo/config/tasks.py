"""Tasks of a mixed run: several configurations trained in common steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from mmgrpo.config.sections import Named, Section

SHARED = ("seed", "steps", "output", "checkpoint", "runtime")
"""Sections of the run that all of its tasks share."""

OF_RUN = (*SHARED, "about.name", "tasks")
"""Keys that a task must not set."""

OF_LEADER = ("prompts", "rollout.prompts_per_step", "rollout.strategy")
"""Keys that a task takes from the task named in ``after``."""

OF_OWNER = ("policy", "update")
"""Keys that a task takes from the task named in ``policy_of``."""

TASK_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"


class TaskConfig(Section):
    """How a configuration takes part in a mixed run."""

    every: int = Field(
        default=1, ge=1, description="interval of the steps of the run that it takes part in, from the first on"
    )
    policy_of: str | None = Field(
        default=None,
        description="an earlier task that shares its policy with this one, trained in the same updates; null: a "
        "separate policy",
    )
    weight: float = Field(
        default=1.0, ge=0, description="of tasks that train one policy: weight of each row of this one"
    )
    after: str | None = Field(
        default=None,
        description="an earlier task that generates text: its samples of the step are the prompts of this "
        "task; null: the prompts of this task",
    )
    prompt_template: Named = Field(
        default_factory=lambda: Named.model_validate({"name": "after_answers", "text": "{answer}"}),
        description="of a task after another: prompt template that turns a sample into a prompt, one of "
        "rollout.prompt_templates",
    )
    compare: Literal["sample", "prompt"] = Field(
        default="sample",
        description="of a task after another: a group is sampled from one sample, or from all samples of a prompt",
    )


def inherited_keys(task: Any) -> tuple[str, ...]:
    """The keys that a task with this section ``rollout.task`` must not set."""
    role: Mapping[str, Any] = task if isinstance(task, Mapping) else {}
    return (*OF_RUN, *(OF_LEADER if role.get("after") else ()), *(OF_OWNER if role.get("policy_of") else ()))
