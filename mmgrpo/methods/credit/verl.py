"""VERL (velocity-exploiting rank-learning), arXiv:2509.23808.

Samples earn a bounded bonus if the effective rank of their hidden states is above the moving mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.controllers import CONTROLLERS
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.values import RANK_OF_STATES, rank_acceleration, rank_velocity

if TYPE_CHECKING:
    from torch import Tensor


MOST = 5.0


def _check_rank_bonus(stride: int, ratio: float) -> None:
    if stride < 1 or not ratio > 0:
        raise ConfigError(f"rank_bonus needs a stride of 1 or more and a ratio above 0, got {stride} and {ratio}")


@ESTIMATORS.register
@estimator(
    values=lambda stride: (RANK_OF_STATES, rank_velocity(stride), rank_acceleration(stride)), check=_check_rank_bonus
)
def rank_bonus(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    rank: float,
    velocity: float,
    acceleration: float,
    stride: int = 40,
    gain: float = 2.0,
    ratio: float = 2.0,
) -> Tensor:
    """Samples with hidden states in more directions than usual earn more, at most a part of their advantage.

    A <- A + min(max(w tanh z_r + (1 - w) tanh z_v, 0), |A| / ratio), w = sigmoid(gain z_a), on the sample's last kept
    decision; z = (x - usual) / |usual|, clamped to +-5, of the effective rank, its velocity and acceleration.

    The three usual numbers are the run's; as long as the rank's is 0, A does not change.

    Units: usual numbers in directions, stride in decisions; gain and ratio are dimensionless.
    Raises: ConfigError for a stride below 1 or a ratio that is not above 0.
    Source: VERL, arXiv:2509.23808, and its code (hf618/VERL, ``reward_manager_versions.py``, PlanB, and
        ``ray_trainer.py``, adv_shaping_kappa, with the bonus only on the last token).
    """
    if rank == 0:
        return advantage_BT
    usual = {RANK_OF_STATES: rank, rank_velocity(stride): velocity, rank_acceleration(stride): acceleration}
    rank_B, velocity_B, acceleration_B = (
        ((feedback.mean(feedback[value]) - number) / (abs(number) + 1e-8)).clamp(-MOST, MOST)
        for value, number in usual.items()
    )
    explore_B = (gain * acceleration_B).sigmoid()
    bonus_B1 = (explore_B * rank_B.tanh() + (1 - explore_B) * velocity_B.tanh()).clamp(min=0)[:, None]
    last_BT = feedback.mask_BT & (feedback.mask_BT.cumsum(1) == feedback.length_B[:, None])
    bounded_BT = torch.minimum(bonus_B1.to(advantage_BT), advantage_BT.abs() / ratio)
    return advantage_BT + bounded_BT.where(last_BT, 0.0)


@CONTROLLERS.register
def moving_mean(value: float, measured: float, *, rate: float) -> float:
    """A moving mean of a metric.

    value' = (1 - rate) value + rate measured

    Units: those of the metric; rate is the weight of the newest.   Source: the baselines of VERL, arXiv:2509.23808.
    """
    return (1 - rate) * value + rate * measured
