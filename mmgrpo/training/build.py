"""The stateful components of a run: the policy, rewards, views, critic and optimizer, each built by one function.

``mmgrpo.algorithm`` binds the functions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mmgrpo.algorithm import Algorithm, learning_rate, optimizer_factory, reward_schedule
from mmgrpo.config import EvaluationRewardConfig, Named, OptimizerConfig, RewardConfig, RunConfig, ViewConfig
from mmgrpo.config.registry import policy_class, resolve, suggestion
from mmgrpo.config.validating import explain_validation, policy_settings
from mmgrpo.data.corruption import IMAGE_TEMPLATES
from mmgrpo.data.history import PromptTemplate
from mmgrpo.distributed.job import Job
from mmgrpo.distributed.parameter_shards import ParameterShard, local_shards
from mmgrpo.environment import Environment
from mmgrpo.errors import ConfigError
from mmgrpo.memory import Memory
from mmgrpo.policy import (
    Critic,
    EngineContext,
    Policy,
    StartsServer,
    SupportsCritic,
    SupportsEngine,
    SupportsNamedWeights,
    SupportsPartialRollouts,
)
from mmgrpo.runs.checkpoint import FOLDER, is_checkpoint
from mmgrpo.runs.resuming import policy_weights_folder
from mmgrpo.scoring import Gate, NamedReward, as_reward
from mmgrpo.system.process_settings import restored_settings
from mmgrpo.system.targets import is_python_target
from mmgrpo.training.loss_scaler import LossScaler
from mmgrpo.training.optimizer import Average, GuardedOptimizer
from mmgrpo.training.update_hooks import UpdateHook
from mmgrpo.training.views import View, token_logits_of
from mmgrpo.types import Plan, Prompt
from mmgrpo.values import REFERENCE

_NESTED = ("of", "likelihood", "grade")  # settings of a reward that name another one
_created_environments: list[Named] = []  # environments of this process that could be made once

Functions = Mapping[str, Callable[..., Any]]


def build_policy(config: RunConfig, device: str | torch.device) -> Policy:
    """The policy of a run, loaded on its device.

    Raises ConfigError if its settings are wrong or name something that cannot be loaded.
    """
    if config.policy is None:
        raise ConfigError(
            "the configuration has no policy: section; name an adapter, for example policy: {name: denoising}"
        )
    adapter = policy_class(config.policy.name)
    policy_settings(config.policy)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)  # fresh adapters are a function of the run's seed
        return adapter.from_config(_with_run_weights(config.policy.settings), device=device)


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


def build_rewards(configs: Sequence[EvaluationRewardConfig], *, live: Functions | None = None) -> list[NamedReward]:
    """The rewards, each built with its own settings.

    A setting ``of``, ``likelihood`` or ``grade`` is another reward, by its name or with its settings, and built first.
    Any setting ``python:module:attribute``, or a mapping with such a name and settings, is replaced by that object; a
    name of ``live``, as the reward's own or as a setting, is that function.

    Raises ConfigError for unknown names or settings.
    """
    return [_named_reward(reward, live or {}) for reward in configs]


def require_engine_files(algorithm: Algorithm) -> None:
    """Raises ConfigError if ``rollout.engine`` names a program or a folder that does not exist on this machine."""
    if isinstance(algorithm.engine, StartsServer):
        algorithm.engine.require_files()


def require_engine_support(algorithm: Algorithm, policy: Policy, job: Job) -> None:
    """Checks that ``rollout.engine`` can generate the samples of a policy.

    Raises ConfigError for a policy of another kind, and for sharded weights.
    """
    if algorithm.engine is None:
        return
    if not isinstance(policy, SupportsEngine):
        raise ConfigError(
            f"rollout.engine generates the texts of language policies, and {type(policy).__name__} is none: remove it"
        )
    if job.is_sharded:
        raise ConfigError(
            "rollout.engine supports weights that every process has: leave FSDP and DeepSpeed out of accelerate's "
            "settings, or remove it"
        )


def engine_of_run(algorithm: Algorithm, policy: Policy, job: Job, log: Path) -> AbstractContextManager[None]:
    """A context in which the server of ``rollout.engine`` generates the samples of a policy, if there is one.

    Args:
        algorithm: of the run.
        policy: the policy, on its device.
        job: the processes.
        log: file for the output of a server that the run starts.

    Returns:
        The context. It raises ConfigError if the server does not answer or serves another model, and EngineError if it
        does not start, or cannot load the weights.
    """
    if algorithm.engine is None:
        return nullcontext()
    assert isinstance(policy, SupportsEngine)
    context = EngineContext(log=log, is_main=job.is_main, run_on_main=job.run_on_main, num_processes=job.size)
    return policy.use_engine(algorithm.engine, context)


def exchange_plan(config: RunConfig) -> Plan:
    """The plan of samples that are conversations with the run's environment, if it has one.

    Raises ConfigError if that cannot be made of its arguments, or is none.
    """
    section = config.rollout
    named = section.environment
    limits: dict[str, Any] = {
        "max_turns": section.max_turns,
        "environment_workers": section.environment_workers,
        "environment_timeout_s": section.environment_timeout_s,
    }
    if named is None:
        return Plan(**limits)
    make = partial(resolve("environments", named.name), **named.settings)
    if named in _created_environments:  # from now on a failure ends one conversation, not the run
        return Plan(environment=make, **limits)
    try:
        with restored_settings(f"environment '{named.name}'", set()):
            environment = make()
            if isinstance(environment, Environment):
                environment.close()
    except TypeError as error:
        raise ConfigError(f"rollout.environment ({named.name}): {error}") from error
    except Exception as error:  # foreign code
        raise ConfigError(
            f"rollout.environment ({named.name}) cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(environment, Environment):
        raise ConfigError(
            f"rollout.environment ({named.name}) makes a {type(environment).__name__}; give a class of "
            "mmgrpo.environment.Environment, or a function that makes one"
        )
    _created_environments.append(named)
    return Plan(environment=make, **limits)


def plan_at(algorithm: Algorithm, policy: Policy, step: int, memory: Memory | None = None) -> Plan:
    """How decisions are sampled at a step; the window is a function of the run's seed and the step, on every rank.

    Args:
        algorithm: at the step.
        policy: the policy that samples; a window needs one that ``SupportsWindows``.
        step: counted from 0.
        memory: before the step, with the completions that were sampled ahead; None: the plan of no rollout yet.

    Returns:
        The plan, for any prompts.

    Raises:
        ConfigError: the window or the tree is outside the schedule, the tree is of another size than the group, the
            policy has no fixed number of decisions, or a schedule changes a setting that the policy does not take;
            rollouts are partial, and the policy does not support them; or the run has an engine, and the policy would
            sample a rollout without it.
    """
    _require_text_strategy(algorithm, policy)
    _require_scheduled_settings(algorithm, policy)
    if memory is not None and algorithm.engine and not (isinstance(policy, SupportsEngine) and policy.has_engine):
        raise ConfigError(
            "rollout.engine: the policy does not sample with it outside of policy.use_engine: train by mmgrpo train "
            "or the Trainer, which connect to it, or set it to null"
        )
    return replace(
        exchange_plan(algorithm.config),
        stochastic=algorithm.window_at(policy, step),
        same_initial_noise=algorithm.config.rollout.same_initial_noise,
        splits=algorithm.splits(policy),
        values=algorithm.values,
        settings=algorithm.step_config.sampling_settings,
        ahead=memory.ahead if memory and algorithm.steps_ahead else {},
    )


def _require_scheduled_settings(algorithm: Algorithm, policy: Policy) -> None:
    """Raises ConfigError for schedules of policy settings that the policy does not take."""
    settings, kind = algorithm.step_config.sampling_settings, getattr(policy, "settings_type", None)
    allowed = () if kind is None else getattr(kind, "of_a_rollout", settings)
    if wrong := [f"policy.{name}" for name in settings if name not in allowed]:
        names = f"only {', '.join(allowed)}" if allowed else "no setting"
        raise ConfigError(
            f"schedules: {', '.join(wrong)}: a schedule can change {names} of {type(policy).__name__}; remove it, or "
            "let the policy read it from plan.settings and list it in settings_type.of_a_rollout"
        )


def _require_text_strategy(algorithm: Algorithm, policy: Policy) -> None:
    """Raises ConfigError for a strategy with partial rollouts where rows cannot continue at a later step, and for one
    with a lookahead where answers have several turns.
    """
    window, rollout = algorithm.strategy.window, algorithm.config.rollout
    where = f"rollout.strategy: {rollout.strategy.name}"
    if algorithm.strategy.looks_ahead and rollout.environment is not None:
        raise ConfigError(f"{where} searches texts of one turn: remove rollout.environment, or use another strategy")
    if window is None:
        return
    if not isinstance(policy, SupportsPartialRollouts):
        raise ConfigError(
            f"{where} continues texts at later steps, which {type(policy).__name__} does not support "
            "(mmgrpo.policy.SupportsPartialRollouts): use another strategy"
        )
    if rollout.environment is not None:
        raise ConfigError(f"{where} continues texts of one turn: remove rollout.environment, or use another strategy")
    if rollout.task is not None and rollout.task.after is not None:
        raise ConfigError(f"{where} continues rows of the task's prompts: a task with after has none, use fixed there")
    policy.check_window(window, algorithm.step_config.sampling_settings)


def optimizer_of(
    algorithm: Algorithm,
    parameters: Sequence[nn.Parameter],
    *,
    job: Job,
    average: Average | None = None,
    scaler: LossScaler | None = None,
) -> GuardedOptimizer:
    """The optimizer of a run with its learning-rate schedule and its hooks, as the section ``update`` states them.

    Args:
        algorithm: of the run.
        parameters: the trained parameters, in a fixed order.
        job: the processes, whose gradients are summed.
        average: follows the weights.
        scaler: the scale of losses, for a policy in float16; None: 1.

    Returns:
        The optimizer.

    Raises:
        ConfigError: nothing is trained, or a hook cannot be bound.
    """
    update, shards = algorithm.config.update, local_shards(parameters)
    return build_optimizer(
        parameters,
        update.optimizer,
        num_updates=algorithm.config.steps * update.num_updates,
        job=job,
        average=average,
        hooks={label: hook(shards) for label, hook in algorithm.hooks().items()},
        scaler=scaler,
    )


def build_optimizer(
    parameters: Sequence[nn.Parameter],
    settings: OptimizerConfig,
    *,
    num_updates: int,
    job: Job,
    average: Average | None = None,
    hooks: Mapping[str, UpdateHook] | None = None,
    scaler: LossScaler | None = None,
) -> GuardedOptimizer:
    """An optimizer with a learning-rate schedule, for the policy, the warm-up and the critic.

    Args:
        parameters: the trained parameters, in a fixed order.
        settings: of the optimizer, of the schedule and of the gradient norm.
        num_updates: of the run; the schedule advances by one per update.
        job: the processes, whose gradients are summed.
        average: follows the weights.
        hooks: around each update, by label.
        scaler: the scale of losses; None: 1.

    Returns:
        The optimizer.

    Raises:
        ConfigError: nothing is trained, the optimizer does not support sharded weights, or the schedule is unknown or
            takes other numbers.
    """
    if not parameters:
        raise ConfigError("the policy has no trainable parameters; check policy.lora.targets and policy.denoisers")
    shards = local_shards(parameters)
    factory = optimizer_factory(settings)
    if any(isinstance(shard, ParameterShard) for shard in shards) and not getattr(factory, "is_elementwise", True):
        raise ConfigError(
            f"update.optimizer {settings.name} needs complete weights, and these are sharded (FSDP2, ZeRO): use "
            "adamw, or start the processes without sharding"
        )
    if scaler is not None and any(isinstance(shard, ParameterShard) for shard in shards):
        raise ConfigError("policy.dtype float16 does not support sharded weights (FSDP2, ZeRO): use bfloat16")
    optimizer = factory(shards, settings.lr)
    return GuardedOptimizer(
        parameters,
        optimizer,
        LambdaLR(optimizer, learning_rate(settings, num_updates=num_updates)),
        job=job,
        max_grad_norm=settings.max_grad_norm,
        average=average,
        hooks=hooks,
        scaler=scaler,
    )


def build_critic(config: RunConfig, device: str | torch.device) -> Critic:
    """The critic of a run whose section ``advantage.critic`` is there.

    Raises ConfigError if no model is named, it cannot be loaded, or its policy is none that makes a critic.
    """
    assert config.advantage.critic is not None
    named = config.advantage.critic.policy or config.policy
    if named is None:
        raise ConfigError(
            "advantage.critic.policy: the policy of this run is a live one, so name the model of the critic"
        )
    policy = build_policy(config.model_copy(update={"policy": named}), device)
    if not isinstance(policy, SupportsCritic):
        raise ConfigError(
            f"critic: {type(policy).__name__} makes no critic (mmgrpo.policy.SupportsCritic); a language model "
            "does, and values the prompts of other policies: advantage.critic.policy: {name: language, model: PATH}"
        )
    return policy.critic()


def build_views(
    algorithm: Algorithm, policy: Policy, *, device: str | torch.device = "cpu", average: Average | None = None
) -> dict[str, View]:
    """The views of a run.

    Args:
        algorithm: of the run.
        policy: that is trained.
        device: where further policies are loaded.
        average: of the weights, if one is kept.

    Returns:
        Views by name.

    Raises:
        ConfigError: a view cannot be built, an undefined view is read, or a gradient would go through one that is
            not trained.
    """
    templates, config = algorithm.view_templates, algorithm.config
    views = {
        name: _view(name, view, templates.get(name), config, policy, device, average)
        for name, view in config.objective.views.items()
    }
    for name, where in algorithm.views_read().items():
        if name not in (*views, REFERENCE) and not _has_weights(policy, name):
            raise ConfigError(
                f"{where} reads the view {name!r}, which is not defined: define it under views:"
                f"{suggestion(name, [*views, REFERENCE])}"
            )
    for name in sorted(algorithm.objective.views_with_logits & views.keys()):
        if config.objective.views[name].weights in ("old", "average"):
            raise ConfigError(
                f"objective.views.{name}: a divergence of the distributions of all tokens reads the view while the "
                "update runs, without old or averaged weights: take weights: reference (update.reference.ema moves it "
                "as an average), or now"
            )
        token_logits_of(views[name].policy or policy, name)
    for name in sorted(algorithm.objective.retokenized_views & views.keys()):
        views[name] = replace(views[name], retokenizes=views[name].policy is not None)
    for name in sorted(algorithm.objective.through):
        if name not in views or not views[name].trained:
            raise ConfigError(
                f"objective.views.{name} is not of the current weights, so no gradient goes through it: leave out grad"
            )
    return views


def require_images(prompts: Sequence[Prompt], algorithm: Algorithm) -> None:
    """Checks that prompt templates of images have images to change: without any they never apply.

    Args:
        prompts: the prompts of the run.
        algorithm: of the run.

    Raises:
        ConfigError: a view or ``rollout.prompt_templates`` changes the images of prompts, and no prompt has one.
    """
    config = algorithm.config
    named = {f"objective.views.{name}": view.prompt_template for name, view in config.objective.views.items()}
    named |= {
        f"rollout.prompt_templates.{label}": prompt_template
        for label, prompt_template in config.rollout.prompt_templates.items()
    }
    of_images = {
        key: prompt_template.name
        for key, prompt_template in named.items()
        if prompt_template and prompt_template.name in IMAGE_TEMPLATES
    }
    if not of_images or any(len(prompt.images) for prompt in prompts):
        return
    readers = {
        f"objective.views.{view}": f" and its reader ({where})" for view, where in algorithm.views_read().items()
    }
    raise ConfigError(
        "; ".join(
            f"{key}: {prompt_template} changes the images of a prompt, and none of the {len(prompts)} prompts has "
            f"one: train on rows with images, or leave out {key}{readers.get(key, '')}"
            for key, prompt_template in of_images.items()
        )
    )


def _view(
    name: str,
    view: ViewConfig,
    prompt_template: PromptTemplate | None,
    config: RunConfig,
    policy: Policy,
    device: str | torch.device,
    average: Average | None,
) -> View:
    if view.policy is not None:
        other = build_policy(config.model_copy(update={"policy": view.policy}), device)
        return View(name=name, policy=other, prompt_template=prompt_template)
    if view.weights == "now":
        return View(name=name, moves=True, trained=True, prompt_template=prompt_template)
    if view.weights == "old":
        return View(name=name, using=nullcontext, prompt_template=prompt_template)
    if view.weights == "average":
        if average is None:
            raise ConfigError(f"objective.views.{name}: no average is kept: set update.ema, or take other weights")
        if average.is_sharded:
            raise ConfigError(
                f"objective.views.{name}: the average of sharded weights cannot be a view; train "
                "adapters (policy.lora), or take the reference with update.reference.ema"
            )
        return View(name=name, using=average.applied, moves=True, prompt_template=prompt_template)
    if view.weights == REFERENCE:
        return View(name=name, using=policy.reference, prompt_template=prompt_template)
    if not isinstance(policy, SupportsNamedWeights) or not _has_weights(policy, view.weights):
        raise ConfigError(
            f"objective.views.{name}: no weights are kept under {view.weights!r}"
            f"{suggestion(view.weights, ['now', 'old', 'average', REFERENCE])}"
        )
    weights = view.weights
    return View(name=name, using=lambda: policy.weights.using(weights), prompt_template=prompt_template)


def require_weights(algorithm: Algorithm, policy: Policy) -> None:
    """Raises ConfigError for weights that the strategy samples with and that the policy does not have."""
    for name in algorithm.strategy.weights:
        if not isinstance(policy, SupportsNamedWeights):
            raise ConfigError(
                f"rollout.strategy samples with the weights {name!r}, but {type(policy).__name__} does not support "
                "named weights: use another strategy"
            )
        if name != REFERENCE and not _has_weights(policy, name):
            raise ConfigError(
                f"rollout.strategy: no weights are kept under {name!r}{suggestion(name, [REFERENCE])}; set weights: "
                f"{REFERENCE}, or store them with policy.weights.store({name!r}) before the run"
            )


def _has_weights(policy: Policy, name: str) -> bool:
    if not isinstance(policy, SupportsNamedWeights):
        return False
    try:
        with policy.weights.using(name):
            return True
    except ConfigError:
        return False


def _named_reward(config: EvaluationRewardConfig, live: Functions) -> NamedReward:
    with restored_settings(
        f"reward '{config.logged_name}'", set()
    ):  # modules and constructors change global state as calls do
        function = _built_reward(config, live)
    reward = NamedReward(
        config.logged_name,
        function,
        timeout_s=config.timeout_s,
        concurrent=config.concurrent,
        deterministic=config.deterministic,
    )
    if not isinstance(config, RewardConfig):
        return reward
    return replace(
        reward,
        weight=config.weight,
        gate=Gate(config.gate.reward, config.gate.at_least, config.gate.otherwise) if config.gate else None,
        clip=config.clip,
        schedule=None if config.schedule is None else reward_schedule(config),
        from_method=config.from_method,
    )


def _built_reward(config: EvaluationRewardConfig, live: Functions) -> Any:
    if config.name in live:
        return live[config.name]
    target = resolve("rewards", config.name)
    settings = {name: _reward_setting(config.name, name, value, live) for name, value in config.settings.items()}
    if not inspect.isclass(target):
        return partial(target, **settings) if settings else target
    try:
        return target(**settings)
    except TypeError as error:
        takes = list(inspect.signature(target).parameters)
        raise ConfigError(f"reward {config.name}: {error}; it takes {takes or 'no settings'}") from error


def _reward_setting(owner: str, setting: str, value: Any, live: Functions) -> Any:
    """The value of a setting of a reward: another reward, a custom object, or itself."""
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
            f"reward {owner}: {setting}: an inner reward has no weight, gate or clip; leave out {', '.join(counted)}"
        )
    built = _built_reward(nested, live)
    return as_reward(built) if is_reward else built
