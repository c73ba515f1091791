"""Flow of Reasoning, arXiv:2406.05673.

A trajectory-balance loss fits the likelihood of an answer to a power of its reward.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.sequence_scores import score
from mmgrpo.maths.terms import TERMS, Term
from mmgrpo.maths.terms.group_losses import Members, group_term

if TYPE_CHECKING:
    from torch import Tensor


@TERMS.register
def trajectory_balance(*, power: float = 1.0, least: float = 1e-3, score_by: str = "sum_logprob") -> Term:
    """Answers as likely as a power of their rewards says, whatever all rewards of the prompt sum to.

    L = mean_i (d_i - mean d)^2, d_i = s_i - power log max(r_i, least).

    Units: s in nats; power is dimensionless; least is in the reward's units.   Raises: ConfigError for least <= 0.
    Source: Flow of Reasoning, arXiv:2406.05673, and its code (Yu-Fangxu/FoR, ``tb_loss`` with ``logpartition``), where
        the group's mean stands for log Z. Deviation: rewards are held above ``least``, since those of other tasks may
        be 0.
    """
    if least <= 0:
        raise ConfigError(f"a logarithm is taken of rewards, so that least must be above 0, got {least}")
    return group_term("trajectory_balance", partial(_balance_P, power=power, least=least), score(score_by))


def _balance_P(members: Members, *, power: float, least: float) -> Tensor:
    wanted_PG = power * members.reward_PG.clamp(min=least).log()
    return members.mean(members.centred(members.score_PG - wanted_PG.to(members.score_PG)).square())[:, 0]
