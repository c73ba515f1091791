"""Tasks of a mixed run: several configurations whose steps are taken together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from mmgrpo.config.sections import Named, Section

SHARED = ("seed", "steps", "output", "checkpoint", "tracking", "runtime")
"""Sections of the run that all of its tasks have."""

OF_RUN = (*SHARED, "name", "runs", "tasks")
"""Keys that a task has none of itself."""

OF_LEADER = ("prompts", "rollout.prompts_per_step", "rollout.strategy")
"""Keys that follow for a task from the one that it is ``after``."""

OF_OWNER = ("policy", "warmup", "reference", "update")
"""Keys that follow for a task from the one that it has its policy of."""

TASK_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"


class TaskConfig(Section):
    """How a configuration takes part in a mixed run."""

    every: int = Field(default=1, ge=1, description="takes part in the first and then each so many-th step of the run")
    policy_of: str | None = Field(
        default=None,
        description="an earlier task whose policy this one trains too, in the same updates; null: a policy of its own",
    )
    weight: float = Field(
        default=1.0, ge=0, description="of tasks that train one policy: how much each row of this one counts"
    )
    after: str | None = Field(
        default=None,
        description="an earlier task that writes, whose samples of the step this one is shown in place of its prompts; "
        "null: its own prompts",
    )
    context: Named = Field(
        default_factory=lambda: Named.model_validate({"name": "after_answers", "text": "{answer}"}),
        description="of a task after another: what it is shown of a sample, a context of rollout.prompt_templates",
    )
    compare: Literal["sample", "prompt"] = Field(
        default="sample",
        description="of a task after another: a group is what was drawn after one sample, or after all samples of a "
        "prompt",
    )


def said_elsewhere(task: Any) -> tuple[str, ...]:
    """The keys that a task does not say itself, as its section ``task`` has it."""
    role: Mapping[str, Any] = task if isinstance(task, Mapping) else {}
    return (*OF_RUN, *(OF_LEADER if role.get("after") else ()), *(OF_OWNER if role.get("policy_of") else ()))
