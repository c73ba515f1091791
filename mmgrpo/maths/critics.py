"""The targets and the loss of a critic.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


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
