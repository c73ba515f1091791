"""From configuration to the objects of a run: each named function bound to its numbers, each section built once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mmgrpo.algorithm import Algorithm, reward_schedule
from mmgrpo.config import Named, RewardConfig, RunConfig
from mmgrpo.config.numbers import bound
from mmgrpo.config.registry import policy_class, resolve
from mmgrpo.config.validating import explain_validation
from mmgrpo.distributed.job import Job
from mmgrpo.distributed.parameter_shards import local_shards
from mmgrpo.environment import Environment
from mmgrpo.errors import ConfigError
from mmgrpo.maths.schedules import learning_rate_factor
from mmgrpo.policy import Policy
from mmgrpo.runs.checkpoint import FOLDER, is_checkpoint
from mmgrpo.runs.resuming import policy_weights_folder
from mmgrpo.scoring import Gate, NamedReward, as_reward
from mmgrpo.system.process_settings import restored_settings
from mmgrpo.system.targets import is_python_target
from mmgrpo.training.ema import Average
from mmgrpo.training.optimizer import GuardedOptimizer
from mmgrpo.training.update_hooks import HOOKS
from mmgrpo.types import Plan

_NESTED = ("of", "likelihood", "grade")  # settings of a reward that name another one
_created_environments: list[Named] = []  # environments of this process that could be made once
LIVE = "live:"
"""How the names of live functions begin, where a configuration stands for them."""

Functions = Mapping[str, Callable[..., Any]]


def build_policy(config: RunConfig, device: str | torch.device) -> Policy:
    """The policy of a run, loaded on its device.

    Raises ConfigError if its settings are wrong or what they name cannot be loaded.
    """
    if config.policy is None:
        raise ConfigError(
            "the configuration has no policy: section; name an adapter, for example policy: {name: denoising}"
        )
    adapter = policy_class(config.policy.name)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)  # fresh adapters are a function of the run's seed
            return adapter.from_config(_with_run_weights(config.policy.numbers), device=device)
    except ValidationError as error:
        message = explain_validation(error, adapter.settings_type)
        raise ConfigError(f"policy ({config.policy.name}): {message}") from None


def _with_run_weights(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The policy's settings with the run that they start from replaced by the weights of it."""
    adapter = settings.get("adapter")
    if not isinstance(adapter, str):
        return dict(settings)
    path = Path(adapter).expanduser()
    if not path.exists():
        raise ConfigError(f"policy.adapter: there is no {path}")
    is_run = (path / FOLDER).is_dir() or is_checkpoint(path)
    return {**settings, "adapter": str(policy_weights_folder(path) if is_run else path)}


def build_rewards(configs: Sequence[RewardConfig], *, live: Functions | None = None) -> list[NamedReward]:
    """The rewards, each built with its own settings.

    A setting ``of``, ``likelihood`` or ``grade`` is another reward, by its name or with its settings, and built first.
    Any setting ``python:module:attribute``, or a mapping with such a name and settings, is what that stands for; a name
    of ``live``, as the reward's own or as a setting, is that function.

    Raises ConfigError for unknown names or settings.
    """
    return [_named_reward(reward, live or {}) for reward in configs]


def exchange_plan(config: RunConfig) -> Plan:
    """The plan of samples that are exchanges with the run's environment, if it has one.

    Raises ConfigError if that cannot be made of its arguments, or is none.
    """
    named, turns = config.rollout.environment, config.rollout.max_turns
    if named is None:
        return Plan(max_turns=turns)
    make = partial(resolve("environments", named.name), **named.numbers)
    try:
        with restored_settings(f"environment '{named.name}'", set()):
            environment = make()
    except TypeError as error:
        raise ConfigError(f"rollout.environment ({named.name}): {error}") from error
    except Exception as error:  # foreign code
        if named in _created_environments:  # it has been made before: a failure now ends one exchange, not the run
            return Plan(environment=make, max_turns=turns)
        raise ConfigError(
            f"rollout.environment ({named.name}) cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(environment, Environment):
        raise ConfigError(
            f"rollout.environment ({named.name}) makes a {type(environment).__name__}; give a class of "
            "mmgrpo.environment.Environment, or a function that makes one"
        )
    if named not in _created_environments:
        _created_environments.append(named)
    return Plan(environment=make, max_turns=turns)


def plan_at(algorithm: Algorithm, policy: Policy, step: int) -> Plan:
    """How decisions are sampled at a step; the window is a function of the run's seed and the step, on every rank.

    Args:
        algorithm: at the step.
        policy: the policy that samples; a window needs one that ``SupportsWindows``.
        step: counted from 0.

    Returns:
        The plan, for any prompts.

    Raises:
        ConfigError: the window or the tree lies outside the schedule, the tree is of another size than the group, or
            the policy has no fixed number of decisions.
    """
    return replace(
        exchange_plan(algorithm.config),
        stochastic=algorithm.window_at(policy, step),
        same_initial_noise=algorithm.config.rollout.same_initial_noise,
        splits=algorithm.splits(policy),
        values=algorithm.values,
        settings=algorithm.moved.drawing,
    )


def build_optimizer(
    parameters: Sequence[nn.Parameter], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW over what is trained. Raises ConfigError if nothing is."""
    if not parameters:
        raise ConfigError("the policy has no trainable parameters; check policy.lora.targets and policy.denoisers")
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    return torch.optim.AdamW(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)


def optimizer_of(
    config: RunConfig, parameters: Sequence[nn.Parameter], *, job: Job, average: Average | None = None
) -> GuardedOptimizer:
    """The optimiser of a run with its schedule, as the section ``update`` says.

    Args:
        config: the run.
        parameters: what is trained, in a fixed order.
        job: the processes, whose gradients are added.
        average: follows the weights.

    Returns:
        The optimiser.

    Raises:
        ConfigError: nothing is trained.
    """
    update, shards = config.update, local_shards(parameters)
    optimizer = build_optimizer(
        shards, lr=update.lr, betas=update.betas, eps=update.eps, weight_decay=update.weight_decay
    )
    schedule = build_schedule(
        optimizer,
        name=update.schedule,
        num_updates=config.steps * update.epochs * update.minibatches,
        num_warmup=update.lr_warmup_steps,
        floor=update.lr_floor,
    )
    return GuardedOptimizer(
        parameters,
        optimizer,
        schedule,
        job=job,
        max_grad_norm=update.max_grad_norm,
        max_skipped_frac=config.runtime.max_skipped_update_frac,
        average=average,
        hooks={
            f"{number}.{named.name}": bound("update.hooks", HOOKS, named)(shards)
            for number, named in enumerate(update.hooks)
        },
    )


def build_schedule(
    optimizer: torch.optim.Optimizer, *, name: str, num_updates: int, num_warmup: int, floor: float
) -> LambdaLR:
    """The learning-rate schedule, stepped once per optimiser update."""
    factor = partial(learning_rate_factor, schedule=name, num_updates=num_updates, num_warmup=num_warmup, floor=floor)
    return LambdaLR(optimizer, factor)


def _named_reward(config: RewardConfig, live: Functions) -> NamedReward:
    schedule = None if config.schedule is None else reward_schedule(config)
    with restored_settings(
        f"reward '{config.known_as}'", set()
    ):  # modules and constructors change global state as calls do
        function = _built_reward(config, live)
    return NamedReward(
        config.known_as,
        function,
        config.weight,
        gate=config.gate and Gate(config.gate.reward, config.gate.at_least, config.gate.otherwise),
        clip=config.clip,
        schedule=schedule,
        timeout_s=config.timeout_s,
        concurrent=config.concurrent,
        deterministic=config.deterministic,
        from_method=config.from_method,
    )


def _built_reward(config: RewardConfig, live: Functions) -> Any:
    if config.name in live:
        return live[config.name]
    target = resolve("rewards", config.name)
    settings = {name: _reward_setting(config.name, name, value, live) for name, value in config.numbers.items()}
    if is_python_target(config.name) and not inspect.isclass(target):
        return partial(target, **settings) if settings else target
    try:
        return target(**settings)
    except TypeError as error:
        takes = list(inspect.signature(target).parameters)
        raise ConfigError(f"reward {config.name}: {error}; it takes {takes or 'no settings'}") from error


def _reward_setting(owner: str, setting: str, value: Any, live: Functions) -> Any:
    """What a setting of a reward stands for: another reward, something of the user's own, or itself."""
    if isinstance(value, str) and value in live:
        return live[value]
    named = value if isinstance(value, str) else value.get("name") if isinstance(value, Mapping) else None
    is_reward = setting in _NESTED and named is not None
    if not is_reward and not (isinstance(named, str) and is_python_target(named)):
        return value
    try:
        nested = RewardConfig.model_validate(value)
    except ValidationError as error:
        raise ConfigError(f"reward {owner}: {setting}: {explain_validation(error, RewardConfig)}") from None
    counted = sorted((nested.model_fields_set & RewardConfig.model_fields.keys()) - {"name"})
    if counted:
        raise ConfigError(
            f"reward {owner}: {setting}: a reward within another does not count by itself; leave out "
            f"{', '.join(counted)}"
        )
    built = _built_reward(nested, live)
    return as_reward(built) if is_reward else built
