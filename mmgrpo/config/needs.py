"""The needs of a method, checked before the run, with an error that names the missing part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.config import RewardConfig, RunConfig
from mmgrpo.config.methods import Need
from mmgrpo.config.registry import may_reward_turns, names
from mmgrpo.config.rewards import is_verifier, no_verifier
from mmgrpo.errors import ConfigError

MODEL_REWARDS = frozenset(
    {
        "aesthetic",
        "api_judge",
        "call_judge",
        "clap_score",
        "clip_score",
        "hps_v2",
        "image_reward",
        "pick_score",
        "prompt_likelihood",
        "remote",
        "reward_model",
        "solver",
        "step_reward_model",
        "text_judge",
        "video_align",
        "vlm_judge",
    }
)
"""Rewards that ask a model that judges or was trained to score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The parts of a run against which needs are checked.

    Attributes:
        config: the run.
        rewards: of the run, live functions among them; None: not known.
        prompts: the rows; None: not read.
    """

    config: RunConfig
    rewards: Sequence[RewardConfig] | None = None
    prompts: Sequence[Any] | None = None


def require_needs(
    config: RunConfig, *, rewards: Sequence[RewardConfig] | None = None, prompts: Sequence[Any] | None = None
) -> None:
    """Checks the needs of the run's methods, and the columns that its functions read.

    Args:
        config: the run.
        rewards: of the run, live functions among them; None: those of the configuration, if it has any.
        prompts: its rows, each a ``Prompt``; None: not read, so that needs of rows are not checked.

    Raises:
        ConfigError: the run lacks something, or the rows a column that its functions read; the message names it.
    """
    inputs = Inputs(config=config, rewards=rewards or config.rewards or None, prompts=prompts)
    for method in config.about.methods:
        for need in method.needs:
            if (lack := CHECKS[need](inputs)) is not None:
                raise ConfigError(f"methods/{method.name} needs {lack}")
    if prompts:
        _require_columns(config, prompts)


def row_columns(config: RunConfig) -> Iterator[tuple[str, str]]:
    """The columns of the data rows that the functions of a run read: dotted key of the setting, column.

    Those of estimators and filters are checked with their numbers when the prompts are sampled.
    """
    strategy = config.rollout.strategy
    parts = {f"rollout.prompt_templates.{name}": part for name, part in config.rollout.prompt_templates.items()}
    if strategy.name in ROW_STRATEGIES:
        parts["rollout.strategy"] = strategy
    for auxiliary in config.objective.auxiliary:
        if auxiliary.name == "answers":
            parts[f"objective.auxiliary.{auxiliary.label or auxiliary.name}"] = auxiliary
    for key, part in parts.items():
        settings = part.settings
        yield from ((f"{key}.column", name) for name in _texts(settings.get("column")))
        yield from ((f"{key}.further", name) for name in _texts(settings.get("further")))
        yield from ((f"{key}.columns", name) for name in _texts(settings.get("columns")))
        if part.name == "template":
            fields = re.findall(r"{(\w+)}", settings.get("text", ""))
            yield from ((f"{key}.text", name) for name in fields if name != "prompt")


ROW_STRATEGIES = ("with_answer", "stored_answers", "student_or_answer")
"""Strategies that take answers from columns of the rows."""


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _require_columns(config: RunConfig, prompts: Sequence[Any]) -> None:
    """Raises ConfigError for a column that functions of the run read and none of the prompts has."""
    columns = list(row_columns(config))
    if not columns:
        return
    available = {name for prompt in prompts for name in prompt.columns if prompt.columns[name] is not None}
    for key, column in columns:
        if column not in available:
            raise ConfigError(
                f"{key} reads the column {column!r}, which none of the {len(prompts)} prompts has: add it to the rows, "
                f"or name another one there; the columns are {', '.join(sorted(available)) or 'none'}"
            )


def _verifier(inputs: Inputs) -> str | None:
    rewards = inputs.rewards
    if rewards is None or any(is_verifier(reward) or reward.from_method for reward in rewards):
        return None
    return no_verifier([reward.logged_name for reward in rewards])


def _judge(inputs: Inputs) -> str | None:
    rewards = inputs.rewards
    if rewards is None or any(_asks_model({"name": reward.name, **reward.settings}) for reward in rewards):
        return None
    return (
        f"a judge, a reward by a model, and rewards: has {', '.join(reward.logged_name for reward in rewards)}: add "
        "one, "
        "for example {name: text_judge, model: ..}, {name: reward_model, model: ..} or {name: remote, url: ..}"
    )


def _asks_model(reward: Any) -> bool:
    """Whether a reward, or one within it, asks a model; custom and live functions may."""
    if isinstance(reward, str):
        reward = {"name": reward}
    if not isinstance(reward, Mapping) or not isinstance(reward.get("name"), str):
        return False
    if reward["name"] in MODEL_REWARDS or reward["name"] not in names("rewards"):
        return True
    return any(_asks_model(reward[key]) for key in ("of", "grade", "likelihood") if reward.get(key) is not None)


def _step_rewards(inputs: Inputs) -> str | None:
    if inputs.rewards is None:
        return None
    labels = [reward.logged_name for reward in inputs.rewards]
    for estimator in inputs.config.advantage.estimators:
        label = estimator.settings.get("reward")
        if isinstance(label, str) and label not in labels:
            return (
                f"scores of steps: advantage.estimators {estimator.name} reads the reward labeled {label}, and "
                f"rewards: has {', '.join(labels)}: add it, for example {{name: step_reward_model, label: {label}, "
                "weight: 0, model: ..}"
            )
    return None


def _critic(inputs: Inputs) -> str | None:
    if inputs.config.advantage.critic is not None:
        return None
    return "a critic, and the run has none: leave out advantage.critic: null, or set advantage.critic: {}"


def _rows(what: str) -> Callable[[Inputs], str | None]:
    def check(inputs: Inputs) -> str | None:
        if inputs.prompts is None or any(getattr(prompt, what) for prompt in inputs.prompts):
            return None
        kind = what.removesuffix("s")
        if any(part.get("type") == kind for prompt in inputs.prompts for part in _parts(prompt.messages)):
            return None
        return (
            f"rows with {what}, and none of the {len(inputs.prompts)} prompts has any: add a column {what[:-1]!r} or "
            f"{what!r}, or leave the method out"
        )

    return check


def _parts(messages: Sequence[Mapping[str, Any]] | None) -> Iterator[Mapping[str, Any]]:
    """The parts of chat messages whose content is a list."""
    for message in messages or ():
        content = message.get("content")
        yield from (part for part in content if isinstance(part, Mapping)) if isinstance(content, list) else ()


def _turns(inputs: Inputs) -> str | None:
    if inputs.config.rollout.environment is not None:
        return None
    return "turns of a conversation, and the run has no environment: set rollout.environment"


def _environment_reward(inputs: Inputs) -> str | None:
    environment = inputs.config.rollout.environment
    if environment is None:
        return _turns(inputs)
    if may_reward_turns(environment.name, environment.settings):
        return None
    if any(named.settings.get("reward") for named in inputs.config.advantage.estimators):
        return None
    return (
        f"a reward of each turn, and the environment {environment.name} gives none: use an environment that does, or "
        "state which reward of the run is that of the last turn: advantage.estimators: [{name: anchor_states, reward: "
        "LABEL}]"
    )


def _engine(inputs: Inputs) -> str | None:
    if inputs.config.rollout.engine is not None:
        return None
    return "a server that samples, and the run has none: set rollout.engine"


def _segments(inputs: Inputs) -> str | None:
    policy = inputs.config.policy
    if policy is None or policy.name != "language" or policy.settings.get("segment_end"):
        return None
    return (
        "segments of answers, and policy.segment_end is not set: set the text that ends a segment, for example "
        r'policy.segment_end: "\n" for lines'
    )


CHECKS: Mapping[Need, Callable[[Inputs], str | None]] = {
    "verifier": _verifier,
    "judge": _judge,
    "step_rewards": _step_rewards,
    "critic": _critic,
    "images": _rows("images"),
    "videos": _rows("videos"),
    "turns": _turns,
    "environment_reward": _environment_reward,
    "engine": _engine,
    "segments": _segments,
}
"""The check of each need: the lack with its fix, or None."""
