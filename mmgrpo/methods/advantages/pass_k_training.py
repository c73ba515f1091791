"""Pass@k Training, arXiv:2508.10751.

The advantage is that of pass@k rewards, computed in closed form from the number of right samples in the group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import checked_rewards
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("pass_at_k")
def pass_at_k_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, k: int, at_least: float = 0.5, eps: float = 1e-6
) -> Tensor:
    """The contribution of a sample to the probability that one of k samples of the group is right.

    A = (1 - R) / (s + eps) if right, (1 - R - W) / (s + eps) if wrong, s = sqrt(R (1 - R)), with c of n members right,
    R = 1 - C(n - c, k) / C(n, k) and W = C(n - c - 1, k - 1) / C(n - 1, k - 1). With k = 1 it is the reward centered
    and divided by the population's spread. A group of fewer than k valid rewards gets zeros, as does one without a
    right member or with fewer than k wrong ones.

    Shapes: (P, G) -> (P, G), G >= k.   Units: dimensionless; at_least in the reward's units.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape; ConfigError if k is not
    from 1 to G.
    Source: Pass@k Training, arXiv:2508.10751, and Passk_Training's code/passk_adv.py, calc_adv.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    G = reward_PG.shape[1]
    if not 1 <= k <= G:
        raise ConfigError(f"pass_at_k selects k members of the group: choose k from 1 to the group size, {G}, got {k}")
    right_PG = (reward_PG >= at_least) & valid_PG
    n_P1 = valid_PG.sum(1, keepdim=True).to(reward_PG)
    wrong_P1 = n_P1 - right_PG.sum(1, keepdim=True)
    passes_P1 = 1 - _all_wrong(wrong_P1, n_P1, k)
    scale_P1 = (passes_P1 * (1 - passes_P1)).sqrt() + eps
    others_P1 = _all_wrong(wrong_P1 - 1, n_P1 - 1, k - 1)
    advantage_PG = ((1 - passes_P1) / scale_P1).where(right_PG, (1 - passes_P1 - others_P1) / scale_P1)
    says_P1 = (n_P1 >= k) & (wrong_P1 >= k) & (wrong_P1 < n_P1)
    return advantage_PG.where(valid_PG & says_P1, 0.0)


def _all_wrong(wrong: Tensor, count: Tensor, k: int) -> Tensor:
    """C(wrong, k) / C(count, k): the probability that k of count samples are all wrong."""
    chance = torch.ones_like(count)
    for num_sampled in range(k):
        chance = chance * (wrong - num_sampled).clamp(min=0) / (count - num_sampled).clamp(min=1)
    return chance
