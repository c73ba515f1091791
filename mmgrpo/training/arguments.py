"""The arguments of a Trainer as components: a path as a policy, functions as rewards, a dataset as prompts.

Rewards of methods are added to live reward functions as ``mmgrpo.config.method_rewards`` adds them to configured ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from mmgrpo.config import GateConfig, Named, ReadingConfig, RewardConfig, RunConfig
from mmgrpo.config.method_rewards import VERIFIERS, with_method_rewards
from mmgrpo.config.methods import MethodConfig
from mmgrpo.config.needs import require_needs
from mmgrpo.config.registry import LIVE, live_environments
from mmgrpo.config.rewards import NO_VERIFIERS, is_verifier
from mmgrpo.data.column_maps import map_columns, prompt_column
from mmgrpo.data.prompt_loading import load_prompts, load_prompts_of, reading_settings
from mmgrpo.data.prompt_rows import prompt_of_row, require_unicode, row_format_of
from mmgrpo.data.unreadable_rows import UnreadableRows
from mmgrpo.environment import Environment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward, named_rewards
from mmgrpo.scoring.required_columns import require_rows
from mmgrpo.tools import ToolEnvironment, ToolObjectEnvironment
from mmgrpo.training.build import build_policy, build_rewards
from mmgrpo.types import Prompt, Sample

RewardArgument = NamedReward | Callable[..., Any] | str
"""A function of samples or in TRL's form, an object with such a call, or a registered name."""

MARKS = {"model_index.json": "denoising", "config.json": "language"}
"""The file that identifies the kind of a folder, and its adapter; a pipeline's folder is checked first."""

SINGLE_FILE = ".safetensors"
"""How the names of one-file checkpoints end, which are pipelines."""


def with_policy(policy: Any, config: RunConfig) -> RunConfig:
    """The configuration with a policy that is a path or hub id as its ``policy.model``, so that run folders record it.

    Raises ConfigError if the adapter of a name is unknown.
    """
    if not isinstance(policy, str | Path):
        return config
    settings = config.policy.settings if config.policy else {}
    name = config.policy.name if config.policy else _adapter_for(str(policy))
    named = Named.model_validate({**settings, "name": name, "model": str(policy)})
    return config.model_copy(update={"policy": named})


def policy_of(policy: Any, config: RunConfig, device: str | torch.device) -> Policy:
    """A live policy itself; a path or hub id of a model or pipeline, loaded with the settings of ``policy:``.

    None is the policy of ``policy:``. Raises ConfigError for anything else, and if the adapter of a name is unknown
    is for.
    """
    if isinstance(policy, Policy):
        return policy
    if policy is None and config.policy is not None:
        return build_policy(config, device)
    if not isinstance(policy, str | Path):
        raise ConfigError(
            "policy must be a Policy, or the path or hub id of a model or pipeline, got "
            f"{type(policy).__name__}; wrap a live model: LanguagePolicy(model, processor), DenoisingPolicy(pipeline)"
        )
    return build_policy(with_policy(policy, config), device)


def with_policy_name(config: Any, policy: Any) -> Any:
    """The values of a configuration whose section ``policy`` names no adapter, with the one that a model's path shows.

    Anything else is returned unchanged. Raises ConfigError if its adapter is unknown.
    """
    section = config.get("policy") if isinstance(config, Mapping) else None
    if not isinstance(policy, str | Path) or not isinstance(section, Mapping) or "name" in section:
        return config
    return {**config, "policy": {**section, "name": _adapter_for(str(policy))}}


ToolFactory = Callable[[], Any] | Mapping[str, Callable[[], Any]]
"""Makes an object whose public methods are tools; a mapping has one for each value of the column ``environment``."""


def with_tools(config: RunConfig, tools: Sequence[Callable[..., Any]] | None, factory: ToolFactory | None) -> RunConfig:
    """The configuration with functions and objects of a Trainer as its ``rollout.environment``.

    Args:
        config: the configuration.
        tools: functions that the policy may call.
        factory: TRL's ``environment_factory``.

    Returns:
        The configuration; unchanged without tools.

    Raises:
        ConfigError: the configuration has an environment too.
    """
    if not tools and factory is None:
        return config
    labels = [function.__name__ for function in tools or ()]
    make: Callable[[], Environment] = partial(ToolEnvironment, list(tools or ()))
    if factory is not None:
        labels += list(factory) if isinstance(factory, Mapping) else [getattr(factory, "__name__", "factory")]
        make = partial(ToolObjectEnvironment, factory, list(tools or ()))
    named = Named(name=f"{LIVE}{'+'.join(labels)}")
    if config.rollout.environment not in (None, named):
        raise ConfigError("tools and environment_factory are an environment: remove rollout.environment")
    live_environments[named.name] = make
    rollout = config.rollout.model_copy(update={"environment": named})
    return config.model_copy(update={"rollout": rollout})


def rewards_of_objects(factory: ToolFactory | None) -> list[NamedReward]:
    """The rewards of objects with ``get_reward``, each under the name of its class, as in TRL.

    Args:
        factory: TRL's ``environment_factory``; one object of each is made.

    Returns:
        The rewards.
    """
    factories = [] if factory is None else list(factory.values()) if isinstance(factory, Mapping) else [factory]
    kinds = dict.fromkeys(type(make()) for make in factories)
    return [NamedReward(kind.__name__, _ObjectReward(kind)) for kind in kinds if hasattr(kind, "get_reward")]


@dataclass(frozen=True, slots=True)
class _ObjectReward:
    """The sum of the environment's rewards for the turns of the samples whose object is of a class."""

    kind: type
    reads_environments: ClassVar[bool] = True

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._total(sample) for sample in samples]

    def _total(self, sample: Sample) -> float | None:
        is_other = sample.environment is not None and type(sample.environment.instance) not in (self.kind, type(None))
        rewards = [] if is_other else [reward for reward in sample.turn_rewards if reward is not None]
        return sum(rewards) if rewards else None


def rows_of_objects(prompts: Any, config: RunConfig, factory: ToolFactory | None) -> Any:
    """The rows of a run whose objects write the prompts: those without a prompt have an empty message.

    Args:
        prompts: the argument of the trainer; None: a step's number of empty messages, or without a factory those of the
            section ``prompts``.
        config: the run.
        factory: TRL's ``environment_factory``.

    Returns:
        The rows; unchanged without a factory or with prompts.

    Raises:
        DataError: there are neither prompts nor such a section nor a factory.
    """
    empty = Prompt("", messages=[{"role": "user", "content": ""}])
    if prompts is None:
        if factory is None and config.prompts is not None:
            return load_prompts_of(config.prompts)
        if factory is None or isinstance(factory, Mapping):
            raise DataError(
                "prompts are missing: pass them or set prompts.source; only a single environment_factory can write "
                "them in its reset"
            )
        return [empty] * config.rollout.prompts_per_step
    columns = getattr(prompts, "column_names", None)
    if factory is None or columns is None or row_format_of(columns, "prompt") is not None:
        return prompts
    return [replace(empty, columns=dict(row)) for row in prompts]


def rewards_of(
    rewards: Any, factory: ToolFactory | None = None, configs: Sequence[RewardConfig] = ()
) -> list[NamedReward]:
    """Rewards by name: from one function or registered name, a sequence of them, or a mapping of names to functions.

    With a factory also those of its objects. None without such objects: those of the section ``rewards``.
    """
    of_objects = rewards_of_objects(factory)
    if rewards is None and configs and not of_objects:
        return build_rewards(configs)
    if isinstance(rewards, Mapping):
        return [*named_rewards(rewards), *of_objects]
    many = rewards if isinstance(rewards, Sequence) and not isinstance(rewards, str) else [rewards] if rewards else []
    return named_rewards([*map(_reward_of, many), *of_objects])


def prompts_of(prompts: Any, section: ReadingConfig | None) -> list[Prompt]:
    """Prompts from a path, hub id or live dataset as ``prompts.source`` has them, or from a sequence.

    A sequence holds ``Prompt``s, texts, or rows of columns in any mixture. Raises DataError for anything else, of which
    the items of a sequence are left out, with a warning, under ``on_error: skip`` of the section.
    """
    if isinstance(prompts, str | Path) or hasattr(prompts, "column_names"):
        return load_prompts(prompts, **(reading_settings(section) if section else {}))
    if not isinstance(prompts, Sequence):
        raise DataError(
            f"prompts must be a path, a datasets.Dataset, or a list of texts, rows or Prompts, got "
            f"{type(prompts).__name__}; make a list of it"
        )
    unreadable = UnreadableRows(skip=section is not None and section.on_error == "skip")
    readers = (partial(_prompt_of, item, number, section) for number, item in enumerate(prompts))
    loaded = [prompt for reader in readers for prompt in unreadable.read(reader)]
    unreadable.warn("prompts", len(loaded))
    return loaded


def _adapter_for(model: str) -> str:
    if model.endswith(SINGLE_FILE) and Path(model).expanduser().is_file():
        return MARKS["model_index.json"]
    adapter = next((MARKS[file] for file in MARKS if (Path(model).expanduser() / file).is_file()), None)
    adapter = adapter or (None if Path(model).expanduser().is_dir() else _adapter_on_hub(model))
    if adapter is None:
        raise ConfigError(
            f"{model} holds neither {' nor '.join(MARKS)}, so its kind is unknown; pass a folder or hub id of "
            f"diffusers "
            "or transformers, or name the adapter: policy: {name: denoising} in the configuration"
        )
    return adapter


def _adapter_on_hub(model: str) -> str | None:
    from huggingface_hub import file_exists, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = (file for file in MARKS if isinstance(try_to_load_from_cache(model, file), str))
        online = (file for file in MARKS if file_exists(model, file))
        return MARKS[file] if (file := next(cached, None) or next(online, None)) else None
    except HFValidationError as error:
        raise ConfigError(f"policy: {model} is neither a folder nor the name of a model on the hub") from error
    except Exception as error:  # offline, no such repository, not allowed: loading the model raises the specific error
        raise ConfigError(
            f"policy: {model} is no folder, and the hub cannot be reached ({type(error).__name__}); "
            "download it and give its path, or log in with `hf auth login`"
        ) from error


def _reward_of(reward: Any) -> Callable[..., Any] | NamedReward:
    if isinstance(reward, str):
        (built,) = build_rewards([RewardConfig.model_validate({"name": reward})])
        return built
    if not isinstance(reward, NamedReward) and not callable(reward):
        raise ConfigError(f"a reward is a function or a registered name, got {type(reward).__name__}")
    return reward


def _prompt_of(item: Any, number: int, section: ReadingConfig | None) -> Prompt:
    if isinstance(item, Prompt):
        return item
    if isinstance(item, str):
        require_unicode(item, f"prompts, item {number}")
        return Prompt(item)
    if isinstance(item, Mapping):
        columns, allow_fetch = (section.columns, "urls" in section.outside_media) if section else ({}, False)
        where = f"prompts, row {number}"
        row = map_columns(item, columns, where)
        return prompt_of_row(row, prompt_column(columns), where=where, folder=None, allow_fetch=allow_fetch)
    raise DataError(f"prompts, item {number}: a prompt is a text, a row or a Prompt, got {type(item).__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRewards:
    """The rewards of a run.

    Attributes:
        named: the rewards.
        configs: the same, as a configuration states them; a live function's name begins with ``live:``.
    """

    named: list[NamedReward]
    configs: tuple[RewardConfig, ...]

    def explained(self, config: RunConfig) -> RunConfig:
        """The configuration as ``explain`` shows it: with live functions to which a method adds rewards."""
        is_added = any(reward.from_method for reward in self.configs)
        return config.model_copy(update={"rewards": self.configs}) if is_added else config


def rewards_of_run(rewards: Sequence[NamedReward], config: RunConfig, prompts: Sequence[Prompt]) -> RunRewards:
    """Live rewards with those that the run's methods add; rewards built from the configuration as they are.

    Args:
        rewards: the argument of the trainer.
        config: the run.
        prompts: its rows.

    Returns:
        The rewards that the run is trained on.

    Raises:
        ConfigError: as ``with_method_rewards``; a live reward and the method's reward of it both have a schedule; or
            the rows, or the run, lack a need of a reward or a method.
    """
    run_rewards = joined_rewards(rewards, config)
    require_rows(run_rewards.named, prompts, "prompts")
    follows = config.rollout.task is not None and config.rollout.task.after is not None
    require_needs(config, rewards=run_rewards.configs, prompts=None if follows else prompts)
    return run_rewards


def joined_rewards(rewards: Sequence[NamedReward], config: RunConfig) -> RunRewards:
    """As ``rewards_of_run``, without a look at rows and needs."""
    methods = config.about.methods
    live = {f"{LIVE}{reward.name}": reward for reward in rewards}
    stated = _with_labels_of(methods, [_config_of(key, reward) for key, reward in live.items()])
    if {reward.name for reward in rewards} == {reward.logged_name for reward in config.rewards}:
        return RunRewards(named=list(rewards), configs=config.rewards)
    if not any(method.rewards.substitutes or method.rewards.added for method in methods):
        return RunRewards(named=list(rewards), configs=tuple(stated))
    placed = with_method_rewards(stated, methods)
    return RunRewards(named=[_named(reward, live) for reward in placed], configs=placed)


def _with_labels_of(methods: Sequence[MethodConfig], stated: Sequence[RewardConfig]) -> list[RewardConfig]:
    """Live rewards; one with the label of a method's reward replaces it, except the only verifier of the run."""
    labels = {
        reward.logged_name: method.name
        for method in methods
        for reward in (*method.rewards.substitutes, *method.rewards.added)
        if reward.name != VERIFIERS
    }
    verifiers = [reward for reward in stated if is_verifier(reward)]
    others = [reward for reward in verifiers if reward.logged_name not in labels]
    verifiers_to_keep = others or verifiers[:1]
    return [
        reward
        if reward in verifiers_to_keep or reward.from_method is not None or reward.logged_name not in labels
        else reward.model_copy(update={"from_method": labels[reward.logged_name], "verifier": False})
        for reward in stated
    ]


def _config_of(name: str, reward: NamedReward) -> RewardConfig:
    """A live reward as a configuration states it."""
    gate = (
        GateConfig(reward=reward.gate.reward, at_least=reward.gate.at_least, otherwise=reward.gate.otherwise)
        if reward.gate
        else None
    )
    counting: dict[str, Any] = {"weight": reward.weight, "gate": gate, "clip": reward.clip}
    defaults = {"weight": 1.0, "gate": None, "clip": None}
    stated = {key: value for key, value in counting.items() if value != defaults[key]}
    is_verifier = reward.weight > 0 and reward.name not in NO_VERIFIERS and reward.from_method is None
    settings: dict[str, Any] = {
        "timeout_s": reward.timeout_s,
        "concurrent": reward.concurrent,
        "verifier": is_verifier if reward.verifier is None else reward.verifier,
        "from_method": reward.from_method,
    }
    return RewardConfig(name=name, label=reward.name, **settings, **stated)


def _named(config: RewardConfig, live: Mapping[str, NamedReward]) -> NamedReward:
    functions: dict[str, Callable[..., Any]] = {name: reward.function for name, reward in live.items()}
    (built,) = build_rewards([config], live=functions)
    if config.name in live:
        counting = {"weight": built.weight, "gate": built.gate, "clip": built.clip, "from_method": built.from_method}
        return replace(live[config.name], name=built.name, **counting)
    schedules = [live[value].schedule for value in config.settings.values() if isinstance(value, str) and value in live]
    if not any(schedules):
        return built
    if built.schedule is not None:
        raise ConfigError(
            f"the weight of {config.logged_name} of methods/{config.from_method} has a schedule, and that of the "
            "reward it is computed of another: leave out yours"
        )
    return replace(built, schedule=next(schedule for schedule in schedules if schedule))
