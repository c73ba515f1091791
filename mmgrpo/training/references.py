"""A reference that moves: reset to the current weights, or following them as an average."""

from __future__ import annotations

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import ReferenceConfig
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy, SupportsNamedWeights
from mmgrpo.training.optimizer import GuardedOptimizer
from mmgrpo.values import REFERENCE


def require_movable(policy: Policy, config: ReferenceConfig | None) -> None:
    """Raises ConfigError if the reference is to move and the policy keeps no weights."""
    if config is not None and not isinstance(policy, SupportsNamedWeights):
        raise ConfigError(
            f"update.reference: {type(policy).__name__} keeps no weights under names, so its reference stays"
        )


def move_reference(policy: Policy, config: ReferenceConfig | None, step: int, optimizer: GuardedOptimizer) -> None:
    """Moves the reference after a step, if that is due; right after a reset the divergence from it is 0.

    Every process does the same with the same weights.

    Args:
        policy: whose reference it is.
        config: the section ``update.reference``; None: nothing moves.
        step: steps done.
        optimizer: is reset too, if configured.
    """
    if config is None or not isinstance(policy, SupportsNamedWeights):
        return
    if config.reset_every is not None and step % config.reset_every == 0:
        policy.weights.store(REFERENCE)
        if config.reset_optimizer:
            optimizer.forget()
    elif config.ema is not None and step % config.ema.every == 0:
        policy.weights.store(REFERENCE, decay=config.ema.decay)


def ensure_reference(policy: Policy, algorithm: Algorithm) -> None:
    """Has a full fine-tune copy its weights before the first update, if a later step may read the reference."""
    config = algorithm.config
    is_viewed = any(view.weights == REFERENCE for view in config.objective.views.values())
    moves = any(key.endswith(".kl.beta") for key in algorithm.course.keys)
    if config.update.reference is not None or moves or is_viewed:
        with policy.reference():
            pass
