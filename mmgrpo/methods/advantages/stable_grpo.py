"""S-GRPO (stable, noise-aware), arXiv:2508.05928.

The group-standardized advantage is scaled down where verifier errors can explain the rewards of the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import checked_rewards, divided, standardized
from mmgrpo.maths.pass_rate import right_share

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("noise_aware")
def noise_aware_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    flips: float = 0.1,
    at_least: float = 0.5,
    eps: float = 1e-8,
    correction: int = 1,
) -> Tensor:
    """Reward standardized within its group, and down-weighted where errors of the verifier may explain the group.

    A = w (r - mean_G r) / (std_G r + eps), w = (1 - 2 f) sqrt(t (1 - t) / (q (1 - q))), t = (q - f) / (1 - 2 f).
    q is the share of the group that is right, f = flips the probability of a wrong 0/1 reward, and t is clamped to 0
    .. 1: where q is at most f, or at least 1 - f, the group does not train.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; at_least and eps in the reward's.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape; ConfigError if flips is
    not from 0 to below 0.5.
    Source: S-GRPO, arXiv:2508.05928, and its train/train_S-GRPO.py, group_weight. Deviation: that code adds 1e-8 under
    both roots of the weight.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    if not 0 <= flips < 0.5:
        raise ConfigError(f"flips is the probability of a wrong 0/1 reward: choose it from 0 to below 0.5, got {flips}")
    standard_PG = standardized(reward_PG, valid_PG, eps=eps, correction=correction)
    observed_P1 = right_share(reward_PG, valid_PG, at_least)
    true_P1 = ((observed_P1 - flips) / (1 - 2 * flips)).clamp(0.0, 1.0)
    variance_ratio_P1 = divided(true_P1 * (1 - true_P1), observed_P1 * (1 - observed_P1))
    return standard_PG * (1 - 2 * flips) * variance_ratio_P1.sqrt()
