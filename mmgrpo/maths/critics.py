"""The losses of a critic.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate

from mmgrpo.errors import ConfigError
from mmgrpo.maths.factories import Numbers, factory
from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


CRITIC_LOSSES: Registry[Callable[..., CriticLoss]] = Registry(
    arguments=(), decorator="mmgrpo.maths.critics.critic_loss"
)
"""Losses by the name that ``advantage.critic.loss`` uses; called with their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticRows:
    """Complete rows of a step, as they were sampled.

    Attributes:
        old_BT: values of the critic at the rollout.
        reward_B: combined rewards; 0 where none applied.
        mask_BT: bool, the decisions.
        segment_BT: integer segment of each decision, such as the turn of a conversation.
    """

    old_BT: Tensor
    reward_B: Tensor
    mask_BT: Tensor
    segment_BT: Tensor


def every_decision(rows: CriticRows) -> Tensor:
    """(B, T) bool, all decisions."""
    return rows.mask_BT


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticLoss:
    """One loss, its settings bound.

    Attributes:
        of: (values under the current weights, rows) -> (B, T) loss, of which the decisions in ``terms`` count.
        terms: rows -> (B, T) bool, the decisions that have a term of the loss; it is the mean over them.
    """

    of: Callable[[Tensor, CriticRows], Tensor]
    terms: Callable[[CriticRows], Tensor] = every_decision


def critic_loss(
    *, terms: Callable[[CriticRows], Tensor] = every_decision, check: Callable[..., Any] | None = None
) -> Callable[[Callable[Concatenate[Tensor, CriticRows, Numbers], Tensor]], Callable[Numbers, CriticLoss]]:
    """A decorator: a function (values, rows, *, numbers) -> loss becomes a factory of losses.

    Args:
        terms: as the attribute of ``CriticLoss``.
        check: raises ConfigError for settings that do not go together; called with those that it names.

    Returns:
        The decorator.
    """
    return factory(CriticLoss, "of", check=check, functions={"terms": terms})


def _check_returns(gamma: float, decay: float, clip: float | None) -> None:
    if not 0 < gamma <= 1 or not 0 <= decay <= 1 or (clip is not None and clip <= 0):
        raise ConfigError(
            "the loss returns of a critic needs gamma in (0, 1], decay in [0, 1] and clip above 0 or null, got "
            f"{gamma}, {decay} and {clip}"
        )


@CRITIC_LOSSES.register
@critic_loss(check=_check_returns)
def returns(
    value_BT: Tensor, rows: CriticRows, *, gamma: float = 1.0, decay: float = 0.95, clip: float | None = 0.5
) -> Tensor:
    """The value of a state is the return that follows: ``value_loss`` of V_old + the generalized advantage.

    Shapes: (B, T) -> (B, T).
    Units: the square of the reward's; clip, the range around the rollout's values, in the reward's; gamma and decay are
    dimensionless, decay 1 for the discounted return.
    Raises: ConfigError for numbers out of range.
    Source: PPO, arXiv:1707.06347, sec. 5; GAE, arXiv:1506.02438, eq. 16.
    """
    old_BT = rows.old_BT
    target_BT = old_BT + generalized_advantage(old_BT, rows.reward_B, rows.mask_BT, gamma=gamma, decay=decay)
    return value_loss(value_BT, old_BT, target_BT, clip=clip)


def generalized_advantage(
    value_BT: Tensor, reward_B: Tensor, mask_BT: Tensor, *, gamma: float = 1.0, decay: float = 0.95
) -> Tensor:
    """Generalized advantage estimates of each decision; with the value added, the target of the critic.

    delta_t = r_t + gamma V_{t+1} - V_t;   A_t = delta_t + gamma decay A_{t+1}, over kept decisions, 0 after the last,
    which has the sample's reward.

    Shapes: (B, T), (B,), bool (B, T) -> (B, T), 0 where the mask is False.
    Units: those of the reward; gamma and decay are dimensionless.
    Source: GAE, arXiv:1506.02438, eq. 16; decisions that are not kept are skipped as in verl's
        ``compute_gae_advantage_return``.
    """
    next_advantage_B = torch.zeros_like(value_BT[:, 0])
    next_value_B = torch.zeros_like(next_advantage_B)
    coming_B = reward_B.to(value_BT)
    advantage_BT = torch.zeros_like(value_BT)
    for column in reversed(range(mask_BT.shape[1])):
        keep_B = mask_BT[:, column]
        delta_B = coming_B + gamma * next_value_B - value_BT[:, column]
        here_B = delta_B + gamma * decay * next_advantage_B
        advantage_BT[:, column] = here_B.where(keep_B, 0.0)
        next_advantage_B = here_B.where(keep_B, next_advantage_B)
        next_value_B = value_BT[:, column].where(keep_B, next_value_B)
        coming_B = coming_B.where(~keep_B, 0.0)
    return advantage_BT


def value_loss(value_BT: Tensor, old_BT: Tensor, target_BT: Tensor, *, clip: float | None) -> Tensor:
    """Half the squared error of a critic, the larger of that of its value and of the value moved by at most ``clip``.

    L = max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2;   without c it is (V - R)^2 / 2.

    Shapes: (B, T) x 3 -> (B, T).
    Units: the square of the reward's; clip in the reward's.
    Source: verl, core_algos.py, ``compute_value_loss``; without c it is the square of PPO, arXiv:1707.06347, sec. 5.
    """
    square_BT = (value_BT - target_BT).square()
    if clip is not None:
        near_BT = old_BT + (value_BT - old_BT).clamp(-clip, clip)
        square_BT = torch.maximum(square_BT, (near_BT - target_BT).square())
    return square_BT / 2
