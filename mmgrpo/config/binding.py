"""What the configuration names, built: the loss, the estimators, the planner, a step's window.

Nothing here computes, so nothing here imports torch: ``mmgrpo explain`` reads what a run would do without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mmgrpo.config import (
    AdvantageConfig,
    AuxiliaryConfig,
    ForeignConfig,
    Named,
    ObjectiveConfig,
    RolloutConfig,
    RunConfig,
    TermConfig,
)
from mmgrpo.config.numbers import bound, takes
from mmgrpo.config.registry import resolve, samples_tokens
from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import SCALES
from mmgrpo.maths.aggregates import AGGREGATES
from mmgrpo.maths.changes import mechanism_labels
from mmgrpo.maths.combinations import COMBINATIONS
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.feedback import Estimator
from mmgrpo.maths.filters import FILTERS, Filter
from mmgrpo.maths.losses import TERMS
from mmgrpo.maths.modulation import Modulation
from mmgrpo.maths.modulations import MODULATIONS
from mmgrpo.maths.objectives import Foreign, Objective
from mmgrpo.maths.origins import ORIGINS
from mmgrpo.maths.planners import OF_GROUP_SIZE, Planner
from mmgrpo.maths.prompt_weights import ANSWER_WEIGHTS
from mmgrpo.maths.ratios import BOUNDS
from mmgrpo.maths.second_chances import PLANNERS
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.selections import SELECTIONS, Selection
from mmgrpo.maths.steps import STEP_WEIGHTS
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.maths.terms import Term, of_origins, weighted
from mmgrpo.maths.trees import TREES
from mmgrpo.maths.windows import WINDOWS
from mmgrpo.policy import Policy, SupportsWindows
from mmgrpo.splits import Split
from mmgrpo.system.lazy import torch
from mmgrpo.values import OLD, REFERENCE

if TYPE_CHECKING:
    from torch import Tensor

OF_LR = ("within_curvature",)
"""Filters with a number ``lr`` that is ``update.lr``."""

WINDOW_SEED = 1  # keeps the window's random numbers apart from the samples'


Made = TypeVar("Made")
Labeled = TypeVar("Labeled", Modulation, Selection)


def _made(where: str, functions: Mapping[str, Callable[..., Made]], named: Named, kind: type[Made]) -> Made:
    """What a function makes of its numbers. Raises ConfigError as ``bound``, and where it makes something else."""
    made = bound(where, functions, named)()
    if not isinstance(made, kind):
        raise ConfigError(f"{where}: {named.name} gives {type(made).__name__}; let it return a {kind.__name__}")
    return made


def _labeled(
    chosen: Sequence[Named], where: str, functions: Mapping[str, Callable[..., Labeled]], kind: type[Labeled]
) -> tuple[Labeled, ...]:
    """All of a list, each under the label that its metrics are logged under. Raises ConfigError as ``_made``."""
    labels = mechanism_labels([named.name for named in chosen])
    return tuple(
        replace(_made(where, functions, named, kind), name=label) for named, label in zip(chosen, labels, strict=True)
    )


def build_objective(config: ObjectiveConfig) -> Objective:
    """The loss. Raises ConfigError for an unknown function or numbers it does not take."""
    surrogate = None
    if config.surrogate is not None:
        surrogate = bound("objective.surrogate", SURROGATES, config.surrogate)
    modulations = _labeled(config.modulations, "objective.modulations", MODULATIONS, Modulation)
    if config.surrogate and surrogate and any(one.bounds for one in modulations):
        bounding = [m.name for m, one in zip(config.modulations, modulations, strict=True) if one.bounds]
        _require_bounds(config.surrogate.name, surrogate, bounding)
    return Objective(
        surrogate=surrogate,
        aggregate=bound("objective.aggregate", AGGREGATES, config.aggregate),
        ratio_level=config.ratio_level,
        bound=None if config.bound is None else bound("objective.bound", BOUNDS, config.bound),
        selections=_labeled(config.selections, "objective.selections", SELECTIONS, Selection),
        normalise_ratio=config.normalise_ratio,
        step_weight=None
        if config.step_weight is None
        else bound("objective.step_weight", STEP_WEIGHTS, config.step_weight),
        divergence=config.divergence,
        kl_beta=config.kl_beta,
        kl_ratio_level=config.kl_ratio_level,
        entropy_bonus=config.entropy_bonus,
        modulations=modulations,
        further=tuple(_term(term) for term in config.terms),
        foreign=None if config.foreign is None else _foreign(config.foreign),
    )


def _require_bounds(name: str, surrogate: Callable[..., Any], modulations: Sequence[str]) -> None:
    """Raises ConfigError for a surrogate without the keywords ``low`` and ``high``, which modulations set."""
    missing = [bound_name for bound_name in ("low", "high") if not takes(surrogate, bound_name)]
    if missing:
        raise ConfigError(
            f"objective.modulations: {', '.join(modulations)} sets how far a ratio may go, and the surrogate {name} "
            f"has no such bounds: it takes no {' and no '.join(missing)}; use one that does, such as clipped (own: "
            "def surrogate(..., *, low: float = 0.2, high: float = 0.2)), or leave the modulation out"
        )


def views_read(config: RunConfig) -> dict[str, str]:
    """The views that a run may read beside those of its own weights, each with a key that names it; at any weight.

    Raises ConfigError as ``build_objective``.
    """
    readers: list[tuple[str, Any]] = [("objective", build_objective(config.objective))]
    readers += [("objective.terms", _made("objective.terms", TERMS, term, Term)) for term in config.objective.terms]
    readers += [("advantage.estimators", one) for one in build_estimators(config.advantage)]
    readers += [("advantage.filters", one) for one in build_filters(config.advantage)]
    readers += [("objective.modulations", one) for one in build_objective(config.objective).modulations]
    named = [(value.view, where) for where, reader in readers for value in reader.values]
    return {view: where for view, where in named if view is not None and view not in (OLD, REFERENCE)}


def build_estimators(config: AdvantageConfig) -> tuple[Estimator, ...]:
    """What becomes of each decision's advantage, in order. Raises ConfigError as ``build_objective``."""
    return tuple(_made("advantage.estimators", ESTIMATORS, named, Estimator) for named in config.estimators)


def advantage_of(config: RunConfig) -> AdvantageConfig:
    """The section ``advantage`` with the numbers that follow from other sections: the learning rate of filters that
    predict the step of the update.

    Raises ConfigError for a filter that states another learning rate.
    """
    filters = tuple(_with_lr(named, config.update.lr) for named in config.advantage.filters)
    return (
        config.advantage
        if filters == config.advantage.filters
        else config.advantage.model_copy(update={"filters": filters})
    )


def _with_lr(named: Named, lr: float) -> Named:
    if named.name not in OF_LR:
        return named
    stated = named.numbers.get("lr")
    if stated not in (None, lr):
        raise ConfigError(
            f"advantage.filters: {named.name}.lr is {stated} and update.lr {lr}, and it predicts the step of the "
            "update: leave it out, or give both the same"
        )
    return named.model_copy(update={"lr": lr})


def build_filters(config: AdvantageConfig) -> tuple[Filter, ...]:
    """Which samples train, in order. Raises ConfigError as ``build_objective``."""
    return tuple(_made("advantage.filters", FILTERS, named, Filter) for named in config.filters)


def build_answer_weight(config: AuxiliaryConfig) -> Callable[[Tensor], Tensor]:
    """Weights of answers by their groups' success. Raises ConfigError as ``build_objective``."""
    if config.weight_by_success is None:
        return torch.ones_like
    return bound(f"auxiliary ({config.label}): weight_by_success", ANSWER_WEIGHTS, config.weight_by_success)


def require_credit(config: RunConfig) -> None:
    """Raises ConfigError for functions of ``advantage`` that there are not, that read what the run lacks, or that leave
    nobody out, as they keep all members of a group at every step."""
    bound("advantage.scale", SCALES, config.advantage.scaling)
    bound("advantage.combine", COMBINATIONS, config.advantage.combine)
    advantage_of(config)
    size = config.rollout.group_size if config.rollout.planner.name in OF_GROUP_SIZE else None
    environment = config.rollout.environment
    for name, one in _credit(config):
        if isinstance(one, Estimator) and one.tokens and not _samples_tokens(config):
            raise ConfigError(
                f"{name} reads the token of each decision, and a decision of this policy is not one token: set "
                "policy.decision: token where the policy has it (and policy.reading.estimate: whole or shares with "
                "rollout.decisions: read), or remove the estimator"
            )
        if isinstance(one, Estimator) and one.turns and environment is None:
            raise ConfigError(f"{name} reads turns of exchanges: set rollout.environment")
        if isinstance(one, Estimator) and one.turn_rewards and environment and not _gives_rewards(environment):
            raise ConfigError(without_turn_rewards(name, f"the environment {environment.name} gives none"))
        moves = any(key.startswith(name.replace(": ", ".")) for key in config.schedules)
        if one.keeps is not None and size is not None and one.keeps >= size and not moves:
            raise ConfigError(
                f"{name} keeps {one.keeps} members of a group and rollout.group_size is {size}, so that nobody is left "
                "out: draw more members, or keep fewer"
            )


def _gives_rewards(environment: Named) -> bool:
    """Whether the turns of an environment may have rewards; a function that makes one is trusted."""
    return getattr(resolve("environments", environment.name), "gives_rewards", True)


def without_turn_rewards(reader: str, reason: str) -> str:
    """The message of a mechanism that reads the rewards of turns where there are none."""
    return (
        f"{reader} reads the rewards of turns, and {reason}: use an environment whose turns have a reward "
        "(Turn(reward=...), 0.0 for a turn that earns nothing), or set reward: LABEL there, a reward of the whole "
        "sample that is paid with its last turn"
    )


def _samples_tokens(config: RunConfig) -> bool:
    policy = config.policy
    renoised = config.rollout.decisions == "read"
    return policy is None or samples_tokens(policy.name, policy.numbers, renoised=renoised)


def columns_read(config: RunConfig) -> dict[str, str]:
    """The columns of the data rows that estimators and filters read numbers of, each with who does.

    Raises ConfigError as ``build_objective``.
    """
    of = f" of {config.method.name}" if config.method else ""
    return {column: f"{name}{of}" for name, one in _credit(config) for column in one.columns}


def _credit(config: RunConfig) -> Iterator[tuple[str, Estimator | Filter]]:
    """The estimators and the filters, by what errors call them."""
    of = config.advantage
    for key, chosen, found in (
        ("advantage.estimators", of.estimators, build_estimators(of)),
        ("advantage.filters", of.filters, build_filters(of)),
    ):
        yield from ((f"{key}: {named.name}", one) for named, one in zip(chosen, found, strict=True))


def build_planner(config: RolloutConfig) -> Planner:
    """What is drawn at a step. Raises ConfigError as ``build_objective``."""
    return _made("rollout.planner", PLANNERS, config.planner, Planner)


def _term(config: TermConfig) -> Term:
    term = _made("objective.terms", TERMS, config, Term)
    if config.origins is not None:
        term = of_origins(term, [ORIGINS[name] for name in config.origins])
    return weighted(term if config.label is None else replace(term, name=config.label), config.weight)


def _foreign(config: ForeignConfig) -> Foreign:
    surrogate = bound("objective.foreign.surrogate", SURROGATES, config.surrogate)
    return Foreign(surrogate=surrogate, ratio_level=config.ratio_level, weight=config.weight)


def window_at(config: RunConfig, policy: Policy | SupportsWindows, step: int) -> tuple[int, ...] | None:
    """The stochastic decisions of a step, those among them that branches part at; None for all.

    Raises ConfigError for a window that does not fit the schedule, a policy without one, or ``policy.fast_remainder``
    without a window.
    """
    window = config.rollout.window
    if window is None:
        if config.policy and config.policy.numbers.get("fast_remainder"):
            raise ConfigError(
                "policy.fast_remainder is of the steps after rollout.window, and there is none: set it, or leave it out"
            )
        return None
    if not isinstance(policy, SupportsWindows):
        raise ConfigError(f"rollout.window lays windows over denoising steps; {type(policy).__name__} has none")
    keyed: dict[str, Any] = {}
    if window.name in ("random", "random_subset"):
        keyed["seed"] = derive_seed(config.seed, WINDOW_SEED, step)
    if window.name == "progressive":
        keyed["step"] = step
    draw = bound("rollout.window", WINDOWS, window, given=("num_decisions", *keyed))
    return tuple(sorted({*draw(policy.num_decisions, **keyed), *(split.decision for split in tree_of(config, policy))}))


def tree_of(config: RunConfig, policy: Policy | SupportsWindows) -> tuple[Split, ...]:
    """Where the members of a group part; nowhere without a tree.

    Raises ConfigError if it does not fit the group or the schedule, or the policy has no schedule.
    """
    rollout = config.rollout
    if rollout.tree is None:
        return ()
    if not isinstance(policy, SupportsWindows):
        raise ConfigError(f"rollout.tree parts denoising steps; {type(policy).__name__} has none")
    splits = bound("rollout.tree", TREES, rollout.tree, given=("num_decisions", "group_size"))
    return splits(policy.num_decisions, rollout.group_size)
