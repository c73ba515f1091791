"""For each method of conversations a tiny run with its environment, its rows and the rewards that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from mmgrpo.rewards.text.environment_return import EnvironmentReturn

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config
from mmgrpo.environment import Environment, Turn
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample
from tests.configs.ablation import TinyRun
from tests.configs.language_models import CRITIC
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import prompts_of
from tests.training.test_credit_of_turns import Corridor

CONVERSATION: Mapping[str, Any] = {
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 4,
    "rollout.environment": "python:tests.configs.turn_runs:Maze",
    "rollout.max_turns": 3,
}
"""Of every run."""

VISION = "qwen2.5-vl"
OTHERWISE: Mapping[str, Mapping[str, Any]] = {
    "agentcpm-explore": {"rollout.environment": "python:tests.training.test_credit_of_turns:Corridor"},
    "agentrl": {"update.reference.reset_every": 1},
    "mobilerl": {"advantage.estimators": [{"name": "shortest_path", "right": -0.5}]},
    "rex-rag": {
        "rollout.strategy.probability": 1.0,
        "rollout.strategy.limit": 1.0,
        "rollout.strategy.texts": ["no"],
        "rollout.strategy.room": 3,
    },
    "spa-rl": {
        "advantage.critic.policy": CRITIC,
        "advantage.critic.warmup_steps": 1,
        "advantage.critic.freeze_after": 1,
    },
    "ssp": {"rollout.prompt_templates.solved.pattern": None},
    "timesearch-r": {"rollout.environment": "python:tests.training.test_conversation_branches:Showing"},
}
"""Settings with which every mechanism of a method acts in a tiny run of two steps."""


@final
class Maze(Environment):
    """A corridor that says after every step that it was wrong."""

    def __init__(self) -> None:
        self.corridor = Corridor()

    def reset(self, prompt: Prompt) -> Turn:
        return self.corridor.reset(prompt)

    def step(self, text: str) -> Turn:
        reply = self.corridor.step(text)
        return replace(reply, text=f"error: {reply.text}")


def labels(value: Any) -> Iterator[str]:
    """The rewards that estimators and filters name."""
    if isinstance(value, Mapping):
        yield from (name for key, name in value.items() if key == "reward" and isinstance(name, str))
        for inner in value.values():
            yield from labels(inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for inner in value:
            yield from labels(inner)


def even_length(samples: Sequence[Sample]) -> list[float]:
    """1 for samples with an even number of characters."""
    return [float(len(sample.text or "") % 2 == 0) for sample in samples]


def rewards_of(config: RunConfig) -> list[NamedReward]:
    """The return of the environment, and one in place of each reward that the method adds or reads by its label; those
    of which it reads parts are the method's own.
    """
    added = {reward.logged_name: reward for reward in config.rewards if reward.from_method}
    of_parts = [name for name in added if name in Algorithm.of(config).advantages.span_rewards]
    names = sorted(set(labels(config.advantage.model_dump())) - added.keys())
    return [
        NamedReward("returns", EnvironmentReturn()),
        *(NamedReward(name, even_length, weight=0.0) for name in names),
        *(
            NamedReward(name, even_length, weight=reward.weight, from_method=reward.from_method)
            for name, reward in added.items()
            if name not in of_parts
        ),
        *build_rewards([added[name] for name in of_parts]),
    ]


def turn_run(name: str) -> TinyRun:
    """The tiny run of a method of conversations, by its file's name."""
    changes = {**CONVERSATION, **OTHERWISE.get(name, {})}
    model = VISION if name == "timesearch-r" else "llama"
    columns = {"answer": "7", "guidance": "Look again."}
    return TinyRun(
        changes=changes,
        policy=lambda config: terse(model, max_new_tokens=60),
        rewards=rewards_of(load_config(f"methods/{name}", {**changes, "rewards": []})),
        prompts=[replace(prompt, columns={**columns, "task": task}) for task, prompt in enumerate(prompts_of(model))],
    )
