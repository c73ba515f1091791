"""From configuration to the objects of a run: each named function bound to its numbers, each section built once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mmgrpo.config import Named, ObjectiveConfig, RewardConfig, RunConfig
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.loading import explain_validation
from mmgrpo.maths.aggregates import AGGREGATES
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.ratios import BOUNDS
from mmgrpo.maths.schedules import SCHEDULES, WEIGHT_SCHEDULES
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.selections import SELECTIONS
from mmgrpo.maths.steps import STEP_WEIGHTS
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.maths.windows import WINDOWS
from mmgrpo.policy import Policy, Scheduled
from mmgrpo.registry import resolve, suggestion
from mmgrpo.scoring import Gate, NamedReward, as_reward
from mmgrpo.types import Plan, Sample

_NESTED = ("of", "likelihood")  # settings of a reward that name another one

WINDOW_SEED = 1  # keeps the window's random numbers apart from the samples'


def build_policy(config: RunConfig, device: str | torch.device) -> Policy:
    """The policy of a run, loaded on its device.

    Raises ConfigError if its settings are wrong or what they name cannot be loaded.
    """
    if config.policy is None:
        raise ConfigError(
            "the configuration has no policy: section; name an adapter, for example policy: {name: denoising}"
        )
    adapter = resolve("policies", config.policy.name)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)  # fresh adapters are a function of the run's seed
            return adapter.from_config(config.policy.numbers, device=device)
    except ValidationError as error:
        said = explain_validation(error, adapter.settings_type)
        raise ConfigError(f"policy ({config.policy.name}): {said}") from None


def build_rewards(configs: Sequence[RewardConfig]) -> list[NamedReward]:
    """The rewards, each built with its own settings.

    A setting ``of`` or ``likelihood`` is another reward, by its name or with its settings, and built first. Any setting
    ``python:module:attribute``, or a mapping with such a name and settings, is what that stands for.

    Raises ConfigError for unknown names or settings.
    """
    return [_named_reward(reward) for reward in configs]


def build_objective(config: ObjectiveConfig) -> Objective:
    """The loss. Raises ConfigError for an unknown function or numbers it does not take."""
    return Objective(
        surrogate=bound("objective.surrogate", SURROGATES, config.surrogate),
        aggregate=bound("objective.aggregate", AGGREGATES, config.aggregate),
        ratio_level=config.ratio_level,
        bound=None if config.bound is None else bound("objective.bound", BOUNDS, config.bound),
        selections=tuple(bound("objective.selections", SELECTIONS, named)() for named in config.selections),
        recentre=config.recentre,
        step_weight=None
        if config.step_weight is None
        else _named("objective.step_weight", STEP_WEIGHTS, config.step_weight),
        divergence=config.divergence,
        kl_beta=config.kl_beta,
        kl_ratio_level=config.kl_ratio_level,
        entropy_bonus=config.entropy_bonus,
    )


def build_plan(
    config: RunConfig,
    policy: Policy,
    step: int,
    prompt_ids: Sequence[int],
    *,
    on_samples: Callable[[Sequence[Sample]], None] | None = None,
) -> Plan:
    """How this step's rollout is drawn; the window is a function of the run's seed and the step, the same everywhere.

    Args:
        config: the run.
        policy: what draws; a window needs it to be ``Scheduled``.
        step: counted from 0.
        prompt_ids: identity of each prompt of this process, unique in the step over the whole job.
        on_samples: takes samples as they are drawn.

    Returns:
        The plan.

    Raises:
        ConfigError: the window lies outside the schedule, or the policy has no fixed number of decisions.
    """
    return Plan(
        stochastic=window_at(config, policy, step),
        share_noise=config.rollout.share_noise,
        keep_mean=config.objective.recentre,
        prompt_ids=tuple(prompt_ids),
        on_samples=on_samples,
    )


def window_at(config: RunConfig, policy: Policy | Scheduled, step: int) -> tuple[int, ...] | None:
    """The stochastic decisions of a step; None for all of them."""
    window = config.rollout.window
    if window is None:
        return None
    if not isinstance(policy, Scheduled):
        raise ConfigError(f"rollout.window lays windows over denoising steps; {type(policy).__name__} has none")
    keyed: dict[str, Any] = {}
    if window.name in ("random", "random_subset"):
        keyed["seed"] = derive_seed(config.seed, WINDOW_SEED, step)
    if window.name == "progressive":
        keyed["step"] = step
    draw = bound("rollout.window", WINDOWS, window, given=("num_decisions", *keyed))
    return draw(policy.num_decisions, **keyed)


def build_optimizer(
    parameters: Sequence[nn.Parameter], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW over what is trained. Raises ConfigError if nothing is."""
    if not parameters:
        raise ConfigError("the policy has no trainable parameters; check policy.lora.targets and policy.denoisers")
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    return torch.optim.AdamW(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)


def build_schedule(
    optimizer: torch.optim.Optimizer, *, name: str, num_updates: int, num_warmup: int, floor: float
) -> LambdaLR:
    """The learning-rate schedule, stepped once per optimiser update."""
    return LambdaLR(optimizer, partial(SCHEDULES[name], num_updates=num_updates, num_warmup=num_warmup, floor=floor))


def bound(
    where: str, functions: Mapping[str, Callable[..., Any]], named: Named, *, given: Sequence[str] = ()
) -> Callable[..., Any]:
    """A registered function with its numbers; keyword-only parameters are the numbers.

    Args:
        where: key of the configuration, for messages.
        functions: what is registered, by name.
        named: the name, with the numbers set for it.
        given: parameters that the caller passes by keyword later, so that they are no numbers of the configuration.

    Returns:
        The function, its numbers bound.

    Raises:
        ConfigError: unknown function, unknown or missing numbers.
    """
    function = _named(where, functions, named.name)
    allowed = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in given
    }
    for key in named.numbers:
        if key not in allowed:
            known = suggestion(key, allowed) if allowed else "; it takes no numbers"
            raise ConfigError(f"{where}: {named.name} takes no {key!r}{known}")
    missing = [name for name, p in allowed.items() if p.default is p.empty and name not in named.numbers]
    if missing:
        raise ConfigError(f"{where}: {named.name} needs {', '.join(missing)}")
    return partial(function, **named.numbers)


def _named(where: str, functions: Mapping[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
    if name not in functions:
        raise UnknownNameError(f"{where}: unknown name {name!r}{suggestion(name, functions)}")
    return functions[name]


def _named_reward(config: RewardConfig) -> NamedReward:
    schedule = config.schedule and bound(f"rewards ({config.known_as}).schedule", WEIGHT_SCHEDULES, config.schedule)
    if schedule is not None:
        schedule(0)  # numbers that do not go together are said now
    return NamedReward(
        config.known_as,
        _built_reward(config),
        config.weight,
        gate=config.gate and Gate(config.gate.reward, config.gate.at_least, config.gate.closed),
        clip=config.clip,
        schedule=schedule,
        timeout_s=config.timeout_s,
        concurrent=config.concurrent,
        deterministic=config.deterministic,
    )


def _built_reward(config: RewardConfig) -> Any:
    target = resolve("rewards", config.name)
    settings = {name: _reward_setting(config.name, name, value) for name, value in config.numbers.items()}
    if config.name.startswith("python:") and not inspect.isclass(target):
        return partial(target, **settings) if settings else target
    try:
        return target(**settings)
    except TypeError as error:
        takes = list(inspect.signature(target).parameters)
        raise ConfigError(f"reward {config.name}: {error}; it takes {takes or 'no settings'}") from error


def _reward_setting(owner: str, setting: str, value: Any) -> Any:
    """What a setting of a reward stands for: another reward, something of the user's own, or itself."""
    named = value if isinstance(value, str) else value.get("name") if isinstance(value, Mapping) else None
    is_reward = setting in _NESTED and named is not None
    if not is_reward and not (isinstance(named, str) and named.startswith("python:")):
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
    built = _built_reward(nested)
    return as_reward(built) if is_reward else built
