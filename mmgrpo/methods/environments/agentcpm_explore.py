"""AgentCPM-Explore, arXiv:2602.06485.

As many right samples as wrong ones train, and turns that repeat others or have an unreadable call are never reinforced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, members, sample_filter
from mmgrpo.system.lazy import torch
from mmgrpo.types import Sample, Scope, Score

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(parts=lambda reward: (reward,))
def faults_capped(
    feedback: Feedback, advantage_BT: Tensor, *, reward: str, right: float = 0.5, factor: float = 1.0
) -> Tensor:
    """Right samples are not discouraged, wrong ones and faulty parts not encouraged.

    A_t <- factor max(A_t, 0) where r > ``right``, else factor min(A_t, 0); of that at most 0 within parts with a
    score above 0 by the reward ``reward``.

    Units: right in the reward's units; factor without.
    Source: AgentCPM-Explore's code (OpenBMB/AgentCPM, AgentCPM-Explore/AgentRL/src/rollout/mcp/convert.py).
    """
    right_B1 = (feedback.reward_B > right)[:, None]
    signed_BT = factor * advantage_BT.clamp(min=0).where(right_B1, advantage_BT.clamp(max=0))
    scores = feedback.scopes(reward)
    faulty_BT = scores.at_decisions(((scores.value_BS > 0) & scores.valid_BS).to(advantage_BT)) > 0
    return signed_BT.clamp(max=0).where(faulty_BT, signed_BT)


def _check_balanced_outcomes(spread: float, right: float, more_right: int, more_wrong: int) -> None:
    if spread < 0 or more_right < 0 or more_wrong < 0:
        raise ConfigError(
            f"balanced_outcomes: spread, more_right and more_wrong must not be negative, got {spread}, {more_right} "
            f"and {more_wrong}"
        )


@FILTERS.register
@sample_filter(check=_check_balanced_outcomes)
def balanced_outcomes(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    spread: float = 0.1,
    right: float = 0.0,
    more_right: int = 2,
    more_wrong: int = 1,
) -> Tensor:
    """About as many right members as wrong ones, and of these the decisions with an advantage.

    keep_BT = A_t is not 0, for the first n + ``more_right`` members with r > ``right`` and the first n + ``more_wrong``
    others, n the smaller number of both; no member of a group with max r - min r < ``spread``.

    Units: spread and right in the reward's units; more_right and more_wrong in members.
    Raises: ConfigError for negative numbers.
    Source: AgentCPM-Explore's code (OpenBMB/AgentCPM, AgentCPM-Explore/AgentRL/src/rollout/mcp/_rewarding.py,
        ``balance_sample``; src/rollout/mcp/convert.py, ``drop_zero_advantage``), which chooses the members at random.
    """
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        reward_G = feedback.reward_B[rows]
        if reward_G.max() - reward_G.min() < spread:
            continue
        right_G = reward_G > right
        n = int(min(right_G.sum(), (~right_G).sum()))
        keep_B[rows[right_G][: n + more_right]] = True
        keep_B[rows[~right_G][: n + more_wrong]] = True
    return keep_B[:, None] & (advantage_BT != 0) & feedback.mask_BT


def faulty_turns(samples: Sequence[Sample]) -> list[Score | None]:
    """Reward: the number of turns that equal an earlier one, or have a call that names no function; None without turns.

    Its parts are the turns, scored 1 where they have such a fault and 0 where not.

    Args:
        samples: conversations.

    Returns:
        list[Score | None]: a number per sample, from 0 on.
    """
    return [_faults(sample) if sample.turn_ends else None for sample in samples]


def _faults(sample: Sample) -> Score:
    faulty: list[bool] = []
    earlier: set[str] = set()
    for text, reply in zip(sample.turn_texts, sample.turn_replies, strict=True):
        written = text.strip()
        is_repeated = bool(written) and written in earlier
        faulty.append(is_repeated or any(not result.name for result in (reply.results if reply else ())))
        earlier.add(written)
    scopes = [Scope(*span, float(is_faulty)) for span, is_faulty in zip(sample.turn_spans, faulty, strict=True) if span]
    return Score(float(sum(faulty)), {}, scopes)
