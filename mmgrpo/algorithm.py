"""The algorithm of a configuration: every function that it names, bound once to its settings.

``Algorithm.of(config)`` binds the strategy, the prompt templates, the advantage chain, the objective and the schedules.
``Algorithm.at(step, memory)`` is the algorithm at a step: schedules applied, and only the parts
of changed sections bound again. The trainer, ``mmgrpo explain`` and ``mmgrpo doctor`` use the same object.

This module imports no torch, so that ``mmgrpo explain`` prints the plan of a run without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, final

from pydantic import ValidationError

from mmgrpo.config import (
    AdvantageConfig,
    AuxiliaryConfig,
    Named,
    ObjectiveConfig,
    OffPolicyConfig,
    OptimizerConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TermConfig,
)
from mmgrpo.config.binding import bound, named_in, require_arguments, takes
from mmgrpo.config.objective import level_name
from mmgrpo.config.registry import Registered
from mmgrpo.config.schedules import RunSchedules, StepConfig, function_of_schedule, steps_of_change
from mmgrpo.config.sections import updated
from mmgrpo.data.history import PromptTemplate
from mmgrpo.data.prompt_templates import PROMPT_TEMPLATES
from mmgrpo.data.samplers import SAMPLERS, PromptSampler
from mmgrpo.data.stream import PromptStream, require_numbers, require_source
from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import COMBINING, SCALES
from mmgrpo.maths.aggregates import AGGREGATES
from mmgrpo.maths.answer_sources import ANSWER_SOURCES, AnswerSource
from mmgrpo.maths.changes import mechanism_labels
from mmgrpo.maths.combinations import COMBINATIONS, weighted_sum
from mmgrpo.maths.controllers import CONTROLLERS
from mmgrpo.maths.critics import CRITIC_LOSSES, CriticLoss
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.feedback import Estimator
from mmgrpo.maths.filters import FILTERS, Filter
from mmgrpo.maths.modulations import MODULATIONS, Modulation
from mmgrpo.maths.objectives import Objective, OffPolicySurrogate
from mmgrpo.maths.optimizers import OPTIMIZERS, OptimizerFactory
from mmgrpo.maths.prompt_weights import ANSWER_WEIGHTS
from mmgrpo.maths.ratios import BOUNDS, Bounded
from mmgrpo.maths.schedules import SCHEDULES
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.selections import SELECTIONS, Selection
from mmgrpo.maths.sources import SOURCES
from mmgrpo.maths.steps import STEP_WEIGHTS
from mmgrpo.maths.strategies import STRATEGIES, Setting, Strategy
from mmgrpo.maths.surrogates import SURROGATES, Surrogate
from mmgrpo.maths.terms import TERMS, Term, from_sources, weighted
from mmgrpo.maths.trees import TREES
from mmgrpo.maths.windows import WINDOWS
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy, SupportsWindows
from mmgrpo.splits import Split
from mmgrpo.system.lazy import torch
from mmgrpo.system.targets import is_python_target
from mmgrpo.types import Prompt
from mmgrpo.values import OLD, Value

if TYPE_CHECKING:
    from torch import Tensor

ROLLOUT_SEED = 0  # separates the random numbers of rollouts from those of windows and of the warm-up
WINDOW_SEED = 1  # separates the random numbers of windows from those of samples

FILTERS_WITH_LR = ("within_curvature",)
"""Filters with a number ``lr`` that is ``update.optimizer.lr``."""

WINDOW_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "random": ("seed",),
    "random_subset": ("seed",),
    "progressive": ("step",),
}
"""Arguments of a window besides ``num_decisions``, by its name."""

Result = TypeVar("Result")
Labeled = TypeVar("Labeled", Modulation, Selection)
Section = TypeVar("Section")
Bound = TypeVar("Bound")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageChain:
    """From rewards to the advantage of each decision: combine, scale, clamp, estimators, filters.

    Attributes:
        config: the section ``advantage``, with the settings that follow from other sections.
        combine: (R, P, G) rewards, (R,) weights, (R, P, G) bool -> (P, G) combined rewards; the weighted sum where
            ``scale`` combines the rewards itself.
        combine_for_report: the same, except that ``normalized_sum`` is the weighted sum.
        scale: combined rewards -> (P, G) advantages; with rewards and weights as ``combine`` where ``scales_rewards``.
        scales_rewards: whether ``scale`` takes the single rewards.
        estimators: functions that transform the advantage of each decision, in order.
        filters: which samples or decisions train, in order.
        critic_loss: the loss of the critic; None: no critic.
    """

    config: AdvantageConfig
    combine: Callable[..., Tensor]
    combine_for_report: Callable[..., Tensor]
    scale: Callable[..., Tensor]
    scales_rewards: bool
    estimators: tuple[Estimator, ...]
    filters: tuple[Filter, ...]
    critic_loss: CriticLoss | None

    @classmethod
    def of(cls, config: AdvantageConfig) -> AdvantageChain:
        """Binds the section ``advantage``.

        Raises ConfigError for an unknown function or settings that it does not take.
        """
        scales_rewards = config.scale.name in COMBINING
        combine = bound("advantage.combine", COMBINATIONS, config.combine)
        reports_weighted_sum = scales_rewards or config.combine.name == "normalized_sum"
        return cls(
            config=config,
            combine=combine,
            combine_for_report=weighted_sum if reports_weighted_sum else combine,
            scale=bound("advantage.scale", SCALES, config.scale),
            scales_rewards=scales_rewards,
            estimators=estimators_of(config),
            filters=filters_of(config),
            critic_loss=_call("advantage.critic.loss", CRITIC_LOSSES, config.critic.loss, CriticLoss)
            if config.critic
            else None,
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The label that the metrics of each estimator, then of each filter are logged under."""
        return mechanism_labels([named.name for named in (*self.config.estimators, *self.config.filters)])

    @property
    def values(self) -> frozenset[Value]:
        """Values of decisions that estimators and filters read."""
        return frozenset(value for part in (*self.estimators, *self.filters) for value in part.values)

    @property
    def span_rewards(self) -> frozenset[str]:
        """The rewards with scores of spans that estimators read."""
        return frozenset(name for estimator in self.estimators for name in estimator.parts)

    def named(self) -> Iterator[tuple[str, Estimator | Filter]]:
        """The estimators and the filters, by the key that errors name."""
        for key, names, parts in (
            ("advantage.estimators", self.config.estimators, self.estimators),
            ("advantage.filters", self.config.filters, self.filters),
        ):
            yield from ((f"{key}: {named.name}", part) for named, part in zip(names, parts, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSet:
    """A section of ``update.weight_sets``.

    Attributes:
        objective: the loss.
        average: step -> share of the copy that stays when the weights join it; None: no copy.
    """

    objective: Objective
    average: Callable[[int], float] | None


@final
@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Everything that a configuration names, bound once.

    Attributes:
        config: of the run, or of the step; with the settings that follow from other sections.
        strategy: requests the samples of a step.
        prompt_templates: transforms of the prompt of a member, by name: ``rollout.prompt_templates``.
        view_templates: likewise in auxiliary forward passes, by the name of the view.
        task_template: inserts a sample of the previous task into the prompt of a task of a mixed run; None: no previous
            task.
        window: (num_decisions, seed or step) -> the stochastic decisions of a step; None: all.
        engine: the inference server that generates samples; None: the policy does.
        tree: (num_decisions, group_size) -> the decisions at which the members of a group branch; None: no tree.
        advantages: from rewards to the advantage of each decision.
        objective: the loss.
        answer_weights: pass rates of groups -> weights of their supervised answers, by label of the auxiliary loss.
        reward_schedules: step -> factor of the weight, by label of the reward.
        prompt_sampler: chooses the prompts of a step; None: the shuffled order.
        weight_sets: the further weights that are trained, by name.
        schedules: those of the values that change during the run.
        step_config: the configuration of the step, with the values of the schedules.
    """

    config: RunConfig
    strategy: Strategy
    prompt_templates: Mapping[str, PromptTemplate]
    view_templates: Mapping[str, PromptTemplate]
    task_template: PromptTemplate | None
    window: Callable[..., Sequence[int]] | None
    engine: Any
    tree: Callable[..., Sequence[Split]] | None
    advantages: AdvantageChain
    objective: Objective
    answer_weights: Mapping[str, Callable[[Tensor], Tensor]]
    reward_schedules: Mapping[str, Callable[[int], float]]
    prompt_sampler: PromptSampler | None
    weight_sets: Mapping[str, WeightSet]
    schedules: RunSchedules
    step_config: StepConfig
    _latest: list[Algorithm] = field(default_factory=list, repr=False, compare=False)

    @classmethod
    def of(cls, config: RunConfig) -> Algorithm:
        """Binds a configuration.

        Args:
            config: the run.

        Returns:
            The algorithm as the configuration has it, before any schedule.

        Raises:
            ConfigError: an unknown function, settings that it does not take, or a schedule of a key that cannot change.
        """
        schedules, step_config, config = schedules_of(config), StepConfig(config, {}), resolved(config)
        section, task = config.prompts, config.rollout.task
        for hook in config.update.hooks:
            if hook.name not in Registered("hooks"):  # the registered ones import torch, which explain does without
                _registered("update.hooks", "hooks", hook, ("parameters",))
        for key, optimizer in config.optimizers.items():
            optimizer_factory(optimizer, key)
            learning_rate(optimizer, num_updates=1, key=key)  # raises for settings that do not go together
        return cls(
            config=config,
            objective=objective_of(config.objective),
            advantages=AdvantageChain.of(config.advantage),
            strategy=strategy_of(config.rollout),
            prompt_templates=prompt_templates_of(config.rollout),
            view_templates={
                name: _template(f"objective.views.{name}.prompt_template", view.prompt_template)
                for name, view in config.objective.views.items()
                if view.prompt_template is not None
            },
            task_template=_template("rollout.task.prompt_template", task.prompt_template)
            if task and task.after
            else None,
            window=_window(config.rollout.window),
            engine=engine_of(config.rollout),
            tree=_tree(config.rollout.tree),
            answer_weights=_answer_weights(config.objective.auxiliary),
            reward_schedules={
                reward.logged_name: reward_schedule(reward) for reward in config.rewards if reward.schedule is not None
            },
            prompt_sampler=prompt_sampler(section.sampler) if section and section.sampler else None,
            weight_sets=weight_sets_of(config),
            schedules=schedules,
            step_config=step_config,
        )

    def at(self, step: int, memory: Memory) -> Algorithm:
        """The algorithm at a step; the same object while no value changes.

        Args:
            step: counted from 0.
            memory: before the step, with the numbers of schedules that follow a metric.

        Returns:
            The algorithm; only the parts of sections that differ from the previous step are bound again.

        Raises:
            ConfigError: a value that its key cannot have.
        """
        step_config = self.schedules.at(step, memory)
        latest = self._latest[0] if self._latest else self
        if step_config.values != latest.step_config.values:
            latest = latest._at_step(step_config)
            self._latest[:] = [latest]
        return latest

    def _at_step(self, step_config: StepConfig) -> Algorithm:
        old, config = self.config, resolved(step_config.config)

        def part(bind: Callable[[Section], Bound], before: Section, after: Section, bound_before: Bound) -> Bound:
            return bound_before if before == after else bind(after)

        rollout = config.rollout
        return replace(
            self,
            config=config,
            step_config=step_config,
            objective=part(objective_of, old.objective, config.objective, self.objective),
            advantages=part(AdvantageChain.of, old.advantage, config.advantage, self.advantages),
            strategy=part(strategy_of, old.rollout, rollout, self.strategy),
            prompt_templates=part(prompt_templates_of, old.rollout, rollout, self.prompt_templates),
            window=part(_window, old.rollout.window, rollout.window, self.window),
            tree=part(_tree, old.rollout.tree, rollout.tree, self.tree),
            answer_weights=part(
                _answer_weights, old.objective.auxiliary, config.objective.auxiliary, self.answer_weights
            ),
        )

    @property
    def values(self) -> tuple[Value, ...]:
        """Values of decisions that the objective reads, in a fixed order."""
        return tuple(sorted(self.objective.values | self.objective.first_values, key=str))

    @property
    def steps_ahead(self) -> int:
        """Steps by which the engine samples before the step that trains on the samples; 0 without an engine."""
        return 0 if self.engine is None else self.engine.steps_ahead

    def hooks(self) -> dict[str, Callable[[Sequence[Any]], Any]]:
        """The hooks of ``update.hooks``, in order, by number and name; called with the trained parameters.

        Raises ConfigError for an unknown hook or settings that it does not take.
        """
        return {
            f"{number}.{named.name}": _registered("update.hooks", "hooks", named, ("parameters",))
            for number, named in enumerate(self.config.update.hooks)
        }

    def step_setting(self, step: int, memory: Memory, key_of: Callable[[int], str]) -> Setting:
        """A step as the strategy sees it; its seed is a function of the seed of the run and of the step.

        Args:
            step: counted from 0.
            memory: before the step.
            key_of: the key of a prompt in the memory, by its number in the step.

        Returns:
            The setting.

        Raises:
            ConfigError: rows of earlier steps are unfinished, and the strategy does not continue them.
        """
        if memory.partial and memory.partial.rows and self.strategy.window is None:
            raise ConfigError(
                f"{len(memory.partial.rows)} rows of earlier steps are unfinished, and rollout.strategy "
                f"{self.config.rollout.strategy.name} does not continue them: keep partial_rollouts"
            )
        return Setting(
            step=step,
            num_prompts=self.config.rollout.prompts_per_step,
            group_size=self.config.rollout.group_size,
            seed=derive_seed(self.config.seed, ROLLOUT_SEED, step),
            memory=memory,
            key_of=key_of,
        )

    def window_at(self, policy: Policy | SupportsWindows, step: int) -> tuple[int, ...] | None:
        """The stochastic decisions of a step, including those at which branches split; None for all.

        Raises ConfigError for a window that does not fit the schedule, a policy without one, or
        ``policy.fast_remainder``, ``policy.cache`` or ``policy.step_quantization`` without a window.
        """
        config, rollout, window = self.config, self.config.rollout, self.config.rollout.window
        if window is None or self.window is None:
            settings = config.policy.settings if config.policy else {}
            where = {"fast_remainder": "after"}
            if rollout.training_states == "sampled":
                where |= {"cache": "outside", "step_quantization": "outside"}
            for key in where.keys() & {key for key, value in settings.items() if value}:
                raise ConfigError(
                    f"policy.{key} applies to the steps {where[key]} rollout.window, which is not set: set "
                    f"rollout.window, or leave out policy.{key}"
                )
            return None
        if not isinstance(policy, SupportsWindows):
            raise ConfigError(f"rollout.window selects denoising steps; {type(policy).__name__} has none")
        available = {"seed": derive_seed(config.seed, WINDOW_SEED, step), "step": step}
        arguments = {name: available[name] for name in WINDOW_ARGUMENTS.get(window.name, ())}
        stochastic = self.window(policy.num_decisions, **arguments)
        return tuple(sorted({*stochastic, *(split.decision for split in self.splits(policy))}))

    def splits(self, policy: Policy | SupportsWindows) -> tuple[Split, ...]:
        """The decisions at which the members of a group branch; empty without a tree.

        Raises ConfigError if the tree does not fit the group or the schedule, or the policy has no schedule.
        """
        if self.tree is None:
            return ()
        if not isinstance(policy, SupportsWindows):
            raise ConfigError(f"rollout.tree splits denoising steps; {type(policy).__name__} has none")
        return tuple(self.tree(policy.num_decisions, self.config.rollout.group_size))

    def views_read(self) -> dict[str, str]:
        """Every view (reference, other weights, another prompt) that the run may read, with the key that reads it.

        Without the old policy, whose log-probabilities every rollout has.

        Raises ConfigError for terms that cannot be bound.
        """
        terms = [_call("objective.terms", TERMS, term, Term) for term in self.config.objective.terms]
        readers: list[tuple[str, Any]] = [("objective", self.objective)]
        readers += [("objective.terms", term) for term in terms]
        readers += [("advantage.estimators", estimator) for estimator in self.advantages.estimators]
        readers += [("advantage.filters", part) for part in self.advantages.filters]
        readers += [("objective.modulations", modulation) for modulation in self.objective.modulations]
        named = [(value.view, key) for key, reader in readers for value in reader.values]
        return {view: key for view, key in named if view is not None and view != OLD}

    def prompt_stream(
        self, prompts: Sequence[Prompt], check: Callable[[Prompt], None] = lambda prompt: None
    ) -> PromptStream:
        """The order in which the run takes its prompts.

        Args:
            prompts: all prompts of the run.
            check: raises an error for a prompt that the policy cannot read.

        Returns:
            The stream.

        Raises:
            ConfigError: ``rollout.strategy.source`` names none of the sources.
            DataError: rows lack a column that an estimator or a filter reads.
        """
        config, section = self.config, self.config.prompts
        method = f" of {config.about.method.name}" if config.about.method else ""
        for name, part in self.advantages.named():
            for column in part.columns:
                require_numbers(prompts, column, f"{name}{method}")
        require_source(config.rollout.strategy.settings.get("source"), section)
        parts = [*section.sources] if section else []
        skipping = [part.logged_name for part in parts if part.on_error == "skip"]
        return PromptStream(
            prompts,
            check=check,
            skipping=[*skipping, *([None] if section and section.on_error == "skip" else [])],
            num_per_step=config.rollout.prompts_per_step,
            seed=config.seed,
            sampler=self.prompt_sampler,
            weights={part.logged_name: part.weight for part in parts} if parts else None,
            columns=[column for part in (*self.advantages.estimators, self.strategy) for column in part.memory],
        )


def resolved(config: RunConfig) -> RunConfig:
    """The configuration with the settings that follow from other sections: the learning rate of filters that predict
    the step of the update.

    Raises ConfigError for a filter that states another learning rate.
    """
    filters = tuple(_with_lr(named, config.update.optimizer.lr) for named in config.advantage.filters)
    return config if filters == config.advantage.filters else updated(config, "advantage.filters", filters)


def schedules_of(config: RunConfig) -> RunSchedules:
    """The schedules of a run. Raises ConfigError as ``objective_of``, and as ``RunSchedules``."""
    functions, items = {**SCHEDULES, **CONTROLLERS}, config.schedules.items()
    return RunSchedules(
        config, {key: bound(f"schedules.{key}", functions, function_of_schedule(named)) for key, named in items}
    )


def objective_of(config: ObjectiveConfig) -> Objective:
    """The loss. Raises ConfigError for an unknown function or settings that it does not take."""
    surrogate = None
    if config.surrogate is not None:
        surrogate = _surrogate("objective.surrogate", config.surrogate)
    modulations = _labeled(config.modulations, "objective.modulations", MODULATIONS, Modulation)
    if config.surrogate and surrogate and any(modulation.bounds for modulation in modulations):
        pairs = zip(config.modulations, modulations, strict=True)
        _require_bounds(config.surrogate.name, surrogate, [named.name for named, part in pairs if part.bounds])
    return Objective(
        surrogate=surrogate,
        aggregate=bound("objective.aggregate", AGGREGATES, config.aggregate),
        ratio_level=level_name(config.ratio_level),
        bound=_bound(config.bound) if config.bound else None,
        selections=_labeled(config.selections, "objective.selections", SELECTIONS, Selection),
        normalize_ratio=config.normalize_ratio,
        step_weight=bound("objective.step_weight", STEP_WEIGHTS, config.step_weight) if config.step_weight else None,
        divergence=config.kl.divergence,
        kl_beta=config.kl.beta,
        kl_ratio_level=config.kl.ratio_level and level_name(config.kl.ratio_level),
        entropy_bonus=config.entropy_bonus,
        modulations=modulations,
        further=tuple(_term(term) for term in config.terms),
        off_policy=None if config.off_policy is None else _off_policy_surrogate(config.off_policy),
    )


def weight_sets_of(config: RunConfig) -> dict[str, WeightSet]:
    """The further weights that are trained, by name. Raises ConfigError as ``objective_of``."""
    aggregate = bound("objective.aggregate", AGGREGATES, config.objective.aggregate)
    sets = {}
    for name, section in config.update.weight_sets.items():
        key = f"update.weight_sets.{name}"
        average = None if section.average is None else bound(f"{key}.average", SCHEDULES, section.average)
        if average is not None and not 0 <= average(0) <= 1:
            raise ConfigError(f"{key}.average: the share of the copy that stays is from 0 to 1, got {average(0)}")
        terms = tuple(_term(term, f"{key}.terms") for term in section.terms)
        objective = Objective(surrogate=None, aggregate=aggregate, further=terms)
        if objective.through:
            raise ConfigError(f"{key}.terms: no gradient goes through a view: leave out grad")
        sets[name] = WeightSet(objective=objective, average=average)
    return sets


def estimators_of(config: AdvantageConfig) -> tuple[Estimator, ...]:
    """The estimators of the advantage of each decision, in order. Raises ConfigError as ``objective_of``."""
    return tuple(_call("advantage.estimators", ESTIMATORS, named, Estimator) for named in config.estimators)


def filters_of(config: AdvantageConfig) -> tuple[Filter, ...]:
    """Which samples train, in order. Raises ConfigError as ``objective_of``."""
    return tuple(_call("advantage.filters", FILTERS, named, Filter) for named in config.filters)


def strategy_of(config: RolloutConfig) -> Strategy:
    """The strategy that requests the samples of a step. Raises ConfigError as ``objective_of``."""
    return _call("rollout.strategy", STRATEGIES, config.strategy, Strategy)


def engine_of(config: RolloutConfig) -> Any:
    """The inference server, without a connection; None: there is none. Raises ConfigError as ``objective_of``."""
    return None if config.engine is None else _registered("rollout.engine", "engines", config.engine, ())()


def prompt_templates_of(config: RolloutConfig) -> dict[str, PromptTemplate]:
    """The prompt templates that a strategy may use, by name. Raises ConfigError as ``objective_of``."""
    return {
        label: _template(f"rollout.prompt_templates.{label}", named) for label, named in config.prompt_templates.items()
    }


def answer_source_of(config: AuxiliaryConfig) -> AnswerSource | None:
    """The source of an auxiliary loss, answers of groups; None: examples. Raises ConfigError as ``objective_of``."""
    key = f"objective.auxiliary ({config.label})"
    named_in(key, dict.fromkeys([*ANSWER_SOURCES, *Registered("examples")], bound), config.name)
    return bound(key, ANSWER_SOURCES, config)() if config.name in ANSWER_SOURCES else None


def success_weight_of(config: AuxiliaryConfig) -> Named | None:
    """The function that weighs the answers of an auxiliary loss by pass rates, with its settings; None: none."""
    source = answer_source_of(config)
    weight = None if source is None else source.weight_by_success
    return None if weight is None else Named.model_validate(weight)


def reward_schedule(config: RewardConfig) -> Callable[[int], float]:
    """Step -> factor of the weight of a reward; 1 without a schedule. Raises ConfigError as ``objective_of``."""
    if config.schedule is None:
        return lambda step: 1.0
    schedule = bound(f"rewards ({config.logged_name}).schedule", SCHEDULES, config.schedule)
    schedule(0)  # raises for settings that do not go together
    return schedule


def optimizer_factory(config: OptimizerConfig, key: str = "update.optimizer") -> OptimizerFactory:
    """(parameters, learning rate) -> the optimizer of torch. Raises ConfigError as ``objective_of``."""
    factory: OptimizerFactory = bound(key, OPTIMIZERS, config)()
    if not callable(factory):
        raise ConfigError(
            f"{key}: {config.name} must return a function of (parameters, learning rate), got {factory!r}"
        )
    return factory


def learning_rate(
    config: OptimizerConfig, *, num_updates: int, key: str = "update.optimizer"
) -> Callable[[int], float]:
    """Optimizer update -> factor on the learning rate.

    Args:
        config: the optimizer. Its schedule falls from 1 to 0 at the last update, unless it sets these.
        num_updates: of the run.
        key: of the optimizer, for messages.

    Returns:
        The schedule, with its settings.

    Raises:
        ConfigError: as ``objective_of``, or a factor that is no number of 0 or more.
    """
    where, named = f"{key}.schedule", config.schedule
    function = named_in(where, SCHEDULES, named.name)
    begin = max((n for n in map(named.settings.get, ("begin", "warmup_steps")) if isinstance(n, int)), default=0)
    implied = {"start": 1.0, "end": 0.0, "steps": max(num_updates - begin, 1)}
    numbers = {name: value for name, value in implied.items() if takes(function, name)} | named.settings
    schedule = bound(where, SCHEDULES, Named.model_validate({"name": named.name, **numbers}))
    for update in (0, *steps_of_change(named), begin + num_updates):
        factor = schedule(update)
        if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
            raise ConfigError(f"{where}: a factor on the learning rate is 0 or more, got {factor!r} at update {update}")
    return schedule


def prompt_sampler(named: Named, key: str = "prompts.sampler") -> PromptSampler:
    """The sampler that a configuration names; ``first`` and ``second`` of ``mixed`` are samplers themselves.

    Raises ConfigError for an unknown name or settings that it does not take.
    """
    parts = {
        name: _nested_sampler(named.settings[name], f"{key}.{name}")
        for name in ("first", "second")
        if name in named.settings
    }
    return _call(key, SAMPLERS, named.model_copy(update=parts) if parts else named, PromptSampler)


def _nested_sampler(value: Any, key: str) -> PromptSampler:
    try:
        return prompt_sampler(Named.model_validate(value), key)
    except ValidationError:
        raise ConfigError(f"{key} must be the name of a sampler or a mapping with one, got {value!r:.80}") from None


def _call(key: str, functions: Mapping[str, Callable[..., Result]], named: Named, kind: type[Result]) -> Result:
    """The result of a function of numbers. Raises ConfigError as ``bound``, and for a result of another type."""
    result = bound(key, functions, named)()
    if not isinstance(result, kind):
        raise ConfigError(f"{key}: {named.name} returns a {type(result).__name__}; it must return a {kind.__name__}")
    return result


def _labeled(
    names: Sequence[Named], key: str, functions: Mapping[str, Callable[..., Labeled]], kind: type[Labeled]
) -> tuple[Labeled, ...]:
    """All parts of a list, each with the label of its metrics. Raises ConfigError as ``_call``."""
    labels = mechanism_labels([named.name for named in names])
    parts = [_call(key, functions, named, kind) for named in names]
    return tuple(replace(part, name=label) for part, label in zip(parts, labels, strict=True))


def _require_bounds(name: str, surrogate: Callable[..., Any], modulations: Sequence[str]) -> None:
    """Raises ConfigError for a surrogate without the keywords ``low`` and ``high``, which modulations set."""
    missing = [bound_name for bound_name in ("low", "high") if not takes(surrogate, bound_name)]
    if missing:
        raise ConfigError(
            f"objective.modulations: {', '.join(modulations)} sets the bounds of the ratio, but the surrogate {name} "
            f"has no parameter {' or '.join(missing)}; use one that has both, such as clipped (a custom one: "
            "def surrogate(..., *, low: float = 0.2, high: float = 0.2)), or leave the modulation out"
        )


def _with_lr(named: Named, lr: float) -> Named:
    if named.name not in FILTERS_WITH_LR:
        return named
    stated = named.settings.get("lr")
    if stated not in (None, lr):
        raise ConfigError(
            f"advantage.filters: {named.name}.lr is {stated} and update.optimizer.lr {lr}, but the filter predicts the "
            "step of the update: leave out its lr, or set both to the same value"
        )
    return named.model_copy(update={"lr": lr})


def _term(config: TermConfig, key: str = "objective.terms") -> Term:
    term = _call(key, TERMS, config, Term)
    if config.sources is not None:
        term = from_sources(term, [SOURCES[name] for name in config.sources])
    return weighted(term if config.label is None else replace(term, name=config.label), config.weight)


def _registered(key: str, kind: str, named: Named, arguments: Sequence[str]) -> Callable[..., Any]:
    """A function of ``Registered(kind)``, or of the user, bound. Raises ConfigError as ``bound``."""
    function = bound(key, Registered(kind), named)
    require_arguments(key, named.name, function, arguments)
    return function


def _template(key: str, named: Named) -> PromptTemplate:
    template = bound(key, PROMPT_TEMPLATES, named)()
    if not callable(template):
        raise ConfigError(
            f"{key}: {named.name} returns a {type(template).__name__}; it must return a function of "
            "(prompt, member, history): put @prompt_template() above one (mmgrpo.data.history)"
        )
    return template


def _surrogate(key: str, named: Named) -> Callable[..., Surrogate]:
    surrogate = bound(key, SURROGATES, named)
    _require_result(key, named.name, surrogate, SURROGATES.arguments, Surrogate)
    return surrogate


def _bound(named: Named) -> Callable[..., Bounded]:
    function = bound("objective.bound", BOUNDS, named)
    _require_result("objective.bound", named.name, function, BOUNDS.arguments, Bounded)
    return function


def _require_result(
    key: str, name: str, function: Callable[..., Any], arguments: Sequence[str] | None, kind: type
) -> None:
    """Calls a function of the user on zeros. Raises ConfigError if it raises, or does not return the record."""
    if not is_python_target(name):
        return
    zeros = [torch.zeros(2, 3) for _ in arguments or ()]
    try:
        result = function(*zeros)
    except Exception as error:
        raise ConfigError(f"{key}: {name} raised {type(error).__name__} on tensors of shape (2, 3): {error}") from error
    if not isinstance(result, kind):
        raise ConfigError(
            f"{key}: {name} returns a {type(result).__name__}; it must return a {kind.__name__} ({kind.__module__})"
        )


def _off_policy_surrogate(config: OffPolicyConfig) -> OffPolicySurrogate:
    surrogate = _surrogate("objective.off_policy.surrogate", config.surrogate)
    return OffPolicySurrogate(surrogate=surrogate, ratio_level=level_name(config.ratio_level), weight=config.weight)


def _window(named: Named | None) -> Callable[..., Sequence[int]] | None:
    if named is None:
        return None
    return bound("rollout.window", WINDOWS, named, supplied=("num_decisions", *WINDOW_ARGUMENTS.get(named.name, ())))


def _tree(named: Named | None) -> Callable[..., Sequence[Split]] | None:
    return None if named is None else bound("rollout.tree", TREES, named, supplied=("num_decisions", "group_size"))


def _answer_weights(configs: Sequence[AuxiliaryConfig]) -> dict[str, Callable[[Tensor], Tensor]]:
    return {config.label: _answer_weight(config) for config in configs}


def _answer_weight(config: AuxiliaryConfig) -> Callable[[Tensor], Tensor]:
    named = success_weight_of(config)
    key = f"objective.auxiliary ({config.label}): weight_by_success"
    return torch.ones_like if named is None else bound(key, ANSWER_WEIGHTS, named)
