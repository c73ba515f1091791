"""Flow of Reasoning, arXiv:2406.05673.

A trajectory-balance loss fits the likelihood of an answer to a power of its reward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.terms.group_losses import Members, group_loss

if TYPE_CHECKING:
    from torch import Tensor


def _check_trajectory_balance(least: float) -> None:
    if least <= 0:
        raise ConfigError(f"a logarithm is taken of rewards, so that least must be above 0, got {least}")


@TERMS.register
@group_loss(score_by="sum_logprob", check=_check_trajectory_balance)
def trajectory_balance(members: Members, *, power: float = 1.0, least: float = 1e-3) -> Tensor:
    """Answers with likelihoods proportional to a power of their rewards, for any sum of the rewards of the prompt.

    L = mean_i (d_i - mean d)^2, d_i = s_i - power log max(r_i, least).

    Units: s in nats; power is dimensionless; least is in the reward's units.   Raises: ConfigError for least <= 0.
    Source: Flow of Reasoning, arXiv:2406.05673, and its code (Yu-Fangxu/FoR, ``tb_loss`` with ``logpartition``), where
        the group's mean replaces log Z. Deviation: rewards are clamped to ``least``, since those of other tasks may
        be 0.
    """
    target_PG = power * members.reward_PG.clamp(min=least).log()
    return members.mean(members.centered(members.score_PG - target_PG.to(members.score_PG)).square())[:, 0]
