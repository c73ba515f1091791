"""The inputs that estimators and filters read, checked before a run."""

from __future__ import annotations

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.registry import may_reward_turns, samples_tokens
from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Estimator
from mmgrpo.maths.strategies import OF_GROUP_SIZE
from mmgrpo.values import SAMPLER_LOGPROB


def require_advantages(algorithm: Algorithm) -> None:
    """Checks that the run has the inputs of estimators and filters, and that filters leave a member of a group out.

    Args:
        algorithm: the composed algorithm, with its configuration.

    Raises:
        ConfigError: an estimator reads tokens, turns, rewards of turns or an engine that the run lacks, a filter keeps
            all members of a group at every step, or unfinished rows have no advantage.
    """
    config = algorithm.config
    size = config.rollout.group_size if config.rollout.strategy.name in OF_GROUP_SIZE else None
    environment = config.rollout.environment
    if algorithm.strategy.window is not None and not any(part.partial for part in algorithm.advantages.estimators):
        raise ConfigError(
            f"rollout.strategy {config.rollout.strategy.name} trains on rows that have no reward yet, and no estimator "
            "gives them an advantage: set advantage.estimators: [{name: extended_gae}] with advantage.critic, or "
            "another strategy"
        )
    for name, part in algorithm.advantages.named():
        if isinstance(part, Estimator) and part.tokens and not _samples_tokens(config):
            raise ConfigError(
                f"{name} reads the token of each decision, and a decision of this policy is not one token: set "
                "policy.decision: token where the policy has it (and policy.reading.estimate: whole or shares with "
                "rollout.training_states: renoised), or remove the estimator"
            )
        if SAMPLER_LOGPROB in part.values and config.rollout.engine is None:
            raise ConfigError(
                f"{name} compares the trainer with the engine that sampled: set rollout.engine, or remove {name}"
            )
        if isinstance(part, Estimator) and part.turns and environment is None:
            raise ConfigError(f"{name} reads turns of conversations: set rollout.environment")
        if (
            isinstance(part, Estimator)
            and part.turn_rewards
            and environment
            and not may_reward_turns(environment.name, environment.settings)
        ):
            raise ConfigError(without_turn_rewards(name, f"the environment {environment.name} gives none"))
        moves = any(key.startswith(name.replace(": ", ".")) for key in config.schedules)
        if part.keeps is not None and size is not None and part.keeps >= size and not moves:
            raise ConfigError(
                f"{name} keeps {part.keeps} members of a group and rollout.group_size is {size}, so the filter leaves "
                "out no member: raise rollout.group_size, or keep fewer"
            )


def without_turn_rewards(reader: str, reason: str) -> str:
    """The message of a mechanism that reads the rewards of turns where there are none."""
    return (
        f"{reader} reads the rewards of turns, and {reason}: use an environment that rewards its turns "
        "(Turn(reward=...), 0.0 for a turn that earns nothing), or set reward: LABEL there, a reward of the complete "
        "sample that counts in its last turn"
    )


def _samples_tokens(config: RunConfig) -> bool:
    policy = config.policy
    renoised = config.rollout.training_states == "renoised"
    return policy is None or samples_tokens(policy.name, policy.settings, renoised=renoised)
