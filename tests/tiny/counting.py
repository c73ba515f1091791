"""The counter of TRL's documentation (grpo_trainer.md, Environments), and a model that increments it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from transformers.utils import get_json_schema

from mmgrpo.types import Example
from tests.tiny.tool_callers import answered, ask, example, hermes


class IncrementEnv:
    """A task that is a random target."""

    targets: ClassVar[Sequence[int]] = (1, 2, 3)

    def reset(self, **kwargs: Any) -> str | None:
        self.counter = 0
        self.target = random.choice(self.targets)
        return question(self.target)

    def get_reward(self) -> float:
        return float(self.counter == self.target)

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


class TargetEnv(IncrementEnv):
    """A task that is a column of the dataset."""

    def reset(self, target: int, **kwargs: Any) -> None:
        self.counter = 0
        self.target = target


class TwoEnv(IncrementEnv):
    """A task that is the same in every conversation."""

    targets = (2,)


TOOLS = [get_json_schema(IncrementEnv.increment)]


def question(target: int) -> str:
    """The prompt."""
    return f"Increment the counter by {target}."


def counted(target: int) -> list[dict[str, Any]]:
    """The conversation up to the result of the tool."""
    return answered(question(target), "increment", {"step": target}, str(target))


def examples_of(targets: Sequence[int]) -> list[Example]:
    """The turns of the policy for some targets."""
    return [
        *(example(ask(question(i)), TOOLS, hermes("increment", f'{{"step": {i}}}')) for i in targets),
        *(example(counted(i), TOOLS, "Done.") for i in targets),
    ]
