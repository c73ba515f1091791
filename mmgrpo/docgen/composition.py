"""The composition of a method in one line, and its formulas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmgrpo.algorithm import answer_source_of, success_weight_of
from mmgrpo.config import (
    AdvantageConfig,
    AuxiliaryConfig,
    CriticConfig,
    Named,
    ObjectiveConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
)
from mmgrpo.config.binding import named_in
from mmgrpo.config.objective import PER_DECISION
from mmgrpo.explain.explanation import formula_of
from mmgrpo.explain.method_settings import formatted_value
from mmgrpo.maths.advantages import SCALES
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.modulations import MODULATIONS
from mmgrpo.maths.ratios import RATIO_LEVELS
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.maths.terms import TERMS


def composition(policy: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    """The parts of a method's file and its policy settings, without its published scale."""
    yield from _sampling(policy)
    yield from _rollout(config.rollout)
    yield from (_reward(reward) for reward in config.rewards)
    yield _advantage(config.advantage)
    yield from (_function(estimator) for estimator in config.advantage.estimators)
    yield from (f"filter {_function(named)}" for named in config.advantage.filters)
    yield from _objective(config.objective)
    yield from (_auxiliary(auxiliary) for auxiliary in config.objective.auxiliary)
    if config.advantage.critic is not None:
        yield _critic(config.advantage.critic)
    yield from (_function(hook) for hook in config.update.hooks)
    yield from (f"{key}: {_function(moved)}" for key, moved in config.schedules.items())


def formulas(config: RunConfig) -> Iterator[str]:
    """Formulas of the advantage, the loss of a decision and the ratio, if it is not that of the decision."""
    yield formula_of(named_in("advantage.scale", SCALES, config.advantage.scale.name))
    if config.objective.surrogate is not None:
        yield formula_of(named_in("objective.surrogate", SURROGATES, config.objective.surrogate.name))
    if config.objective.off_policy is not None:
        yield formula_of(named_in("objective.surrogate", SURROGATES, config.objective.off_policy.surrogate.name))
    yield from (
        formula_of(named_in("advantage.estimators", ESTIMATORS, named.name)) for named in config.advantage.estimators
    )
    yield from (formula_of(named_in("objective.terms", TERMS, term.name)) for term in config.objective.terms)
    yield from (
        formula_of(named_in("objective.modulations", MODULATIONS, named.name)) for named in config.objective.modulations
    )
    if (level := config.objective.ratio_level) is not None and level not in PER_DECISION:
        yield formula_of(RATIO_LEVELS[level])


def _sampling(policy: Mapping[str, Any]) -> Iterator[str]:
    if "sampler" in policy:
        yield f"{policy['sampler']} {policy['strength']:g}" if "strength" in policy else policy["sampler"]
    if policy.get("density", "gaussian") != "gaussian":
        yield f"density {policy['density']}"


def _rollout(rollout: RolloutConfig) -> Iterator[str]:
    if rollout.window is not None:
        yield f"window {_function(rollout.window)}"
    if rollout.same_initial_noise:
        yield "shared noise"
    if rollout.tree is not None:
        yield f"tree {_function(rollout.tree)}"
    if rollout.strategy.name != "fixed":
        yield _function(rollout.strategy)


def _reward(reward: RewardConfig) -> str:
    gated = "" if reward.gate is None else f" where {reward.gate.reward} is at least {reward.gate.at_least:g}"
    times = "" if reward.weight == 1 else f"{reward.weight:g} "
    return f"reward {times}{_function(reward)}{gated}"


def _advantage(advantage: AdvantageConfig) -> str:
    line = f"advantage {_function(advantage.scale)}"
    if advantage.combine.name != "sum":
        line += f" of {_function(advantage.combine)}"
    if advantage.clamp:
        line += f" within {advantage.clamp:g}"
    if advantage.off_policy_baseline == "separate":
        line += ", rows that are read apart"
    if advantage.kl.beta:
        line += f" of the reward less {advantage.kl.beta:g} {advantage.kl.divergence} KL"
    return line if advantage.zero_variance_groups == "keep" else f"{line}, equal groups dropped"


def _objective(objective: ObjectiveConfig) -> Iterator[str]:
    level = "" if objective.ratio_level in PER_DECISION else f" by {objective.ratio_level}"
    normalized = " of the normalized ratio" if objective.normalize_ratio else ""
    bounded = "" if objective.bound is None else f" of {_function(objective.bound)} log-ratios"
    if objective.surrogate is not None:
        yield f"{_function(objective.surrogate)}{normalized}{bounded}{level}"
    if objective.off_policy is not None:
        level = "" if objective.off_policy.ratio_level in PER_DECISION else f" by {objective.off_policy.ratio_level}"
        times = "" if objective.off_policy.weight == 1 else f"{objective.off_policy.weight:g} "
        yield f"{times}{_function(objective.off_policy.surrogate)}{level} of rows that are read"
    for term in objective.terms:
        yield _function(term) if term.weight == 1 else f"{term.weight:g} {_function(term)}"
    yield from (_function(modulation) for modulation in objective.modulations)
    yield from (_function(selection) for selection in objective.selections)
    if objective.step_weight is not None:
        yield f"weight {_function(objective.step_weight)}"
    if objective.kl.beta:
        times = "" if objective.kl.ratio_level is None else f" times the {objective.kl.ratio_level} ratio"
        yield f"{objective.kl.beta:g} {objective.kl.divergence} KL{times}"
    if objective.entropy_bonus:
        yield f"entropy bonus {objective.entropy_bonus:g}"
    if objective.aggregate.name != "sequence_mean":
        yield _function(objective.aggregate)
    if objective.truncated != "keep":
        yield f"truncated samples: {objective.truncated}"


def _auxiliary(auxiliary: AuxiliaryConfig) -> str:
    answers = answer_source_of(auxiliary)
    source = "examples" if answers is None else f"the answers in {answers.column}"
    source = "the prefixes of rows" if answers is not None and answers.column is None else source
    times = "" if auxiliary.weight == 1 else f"{auxiliary.weight:g} "
    weighting = ""
    if answers is not None and (weight := success_weight_of(auxiliary)) is not None:
        weighting = f", {_function(weight)} {answers.whose_success}"
    return f"{times}supervised loss of {source}{weighting}"


def _critic(critic: CriticConfig) -> str:
    return f"a critic of {_function(critic.loss)}"


def _function(named: Named) -> str:
    return formatted_value({"name": named.name, **named.settings})
