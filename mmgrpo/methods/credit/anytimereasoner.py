"""AnytimeReasoner (BRPO), arXiv:2505.13438.

Thoughts are compared by the rewards of their answers at every budget, answers by those of the same thought and budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.strategies import STRATEGIES, Strategy
from mmgrpo.maths.strategies.branch_points import budgets
from mmgrpo.maths.strategies.branching import branching, require_text
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_over_budgets(at: Sequence[int], weights: Sequence[float] | None) -> None:
    num = len(at) + 1
    if not at or list(at) != sorted(set(at)) or at[0] < 1:
        raise ConfigError(f"budgets are increasing numbers of decisions, from 1 on; got {list(at)}")
    if weights is not None and (len(weights) != num or min(weights) < 0 or sum(weights) <= 0):
        raise ConfigError(f"a weight for each of {num} budgets, none below 0 and not all 0; got {list(weights)}")


@ESTIMATORS.register
@estimator(check=_check_over_budgets)
def over_budgets(
    feedback: Feedback, advantage_BT: Tensor, *, at: Sequence[int], weights: Sequence[float] | None = None
) -> Tensor:
    """Thoughts by the values of their answers at every budget, answers against those of the same thought and budget.

    The budgets are ``at`` and the thought's end, of weights p (null: equal) that sum to 1. q_j is the mean reward of
    the answers at budget j, those at its end where the thought ended before. A decision of the thought between budgets
    s - 1 and s earns A_s = R_s - (s V1 + (S - s) V2) / S, R_s = sum_{j >= s} p_j q_j, V2 the mean R_s of the group's
    thoughts, V1 = sum_{j >= s} p_j times the mean of q_j, j < s, by 2^j. A decision of an answer earns r - q.

    Units: those of the reward; at in decisions.   Raises: ConfigError unless at increases from 1 on, or for other
        weights.
    Source: AnytimeReasoner, arXiv:2505.13438, and its code (sail-sg/AnytimeReasoner, ``brpo.py``,
        ``compute_cot_advantage`` and ``compute_summary_advantage``).
    """
    num = len(at) + 1
    total = float(num if weights is None else sum(weights))
    weight_S = tuple(weight / total for weight in (weights or [1.0] * num))
    taken_B = _taken(feedback)
    exits = _exits(feedback, taken_B.tolist(), at)
    reward_B = feedback.reward_B.where(feedback.valid_B, 0.0)
    score_of = {root: [float(reward_B[rows].mean()) for rows in of_S] for root, of_S in exits.items()}
    part_T = torch.bucketize(torch.arange(advantage_BT.shape[1]), torch.tensor(at), right=True)
    credit_BT = torch.zeros_like(advantage_BT)
    for root, of_S in exits.items():
        peers = [score_of[other] for other in exits if feedback.group_B[other] == feedback.group_B[root]]
        for rows, score in zip(of_S, score_of[root], strict=True):
            credit_BT[rows] = (reward_B[rows] - score)[:, None].to(credit_BT)
        thought_S = torch.tensor(budget_advantages(score_of[root], peers, weight_S)).to(credit_BT)
        end = min((int(taken_B[row]) for row in of_S[-1] if row != root), default=len(part_T))
        credit_BT[root, :end] = thought_S[part_T[:end]]
    return credit_BT.where(feedback.mask_BT, 0.0)


def budget_advantages(
    score_S: Sequence[float], peers: Sequence[Sequence[float]], weight_S: Sequence[float]
) -> list[float]:
    """Advantages of a thought's parts, from its scores at each budget and those of all thoughts of its group.

    Source: AnytimeReasoner's code, ``compute_cot_advantage``.
    """
    S, advantages = len(score_S), []
    for s in range(S):
        returns = [sum(p * q for p, q in zip(weight_S[s:], scores[s:], strict=True)) for scores in (score_S, *peers)]
        thought_return, peer_returns = returns[0], returns[1:]
        before = 0.0
        if s > 0:
            earlier = sum(2**j * score_S[j] for j in range(s)) / (2**s - 1)
            before = earlier * sum(weight_S[s:])
        advantages.append(thought_return - (s * before + (S - s) * sum(peer_returns) / len(peer_returns)) / S)
    return advantages


def _taken(feedback: Feedback) -> Tensor:
    """How many decisions each row took over, (B,)."""
    if feedback.sampled_by_BT is None:
        return torch.zeros(len(feedback.reward_B), dtype=torch.long)
    rows_B1 = torch.arange(len(feedback.reward_B))[:, None]
    return (feedback.sampled_by_BT != rows_B1).sum(1)


def _exits(feedback: Feedback, taken: Sequence[int], at: Sequence[int]) -> dict[int, list[list[int]]]:
    """The rows that answer at each budget of each thought, the thought's own among the last; never none."""
    exits: dict[int, list[list[int]]] = {row: [[] for _ in (*at, 0)] for row, num in enumerate(taken) if num == 0}
    for row, num in enumerate(taken):
        root = row if feedback.sampled_by_BT is None else int(feedback.sampled_by_BT[row, 0])
        exits[root][at.index(num) if num in at else -1].append(row)
    return {root: [rows or of_S[-1] for rows in of_S] for root, of_S in exits.items()}


@STRATEGIES.register
def exits_at(*, at: Sequence[int], then: str, num: int = 4, before: str = "</think>", room: int = 256) -> Strategy:
    """Each row is cut after these numbers of decisions; a text is appended and ``num`` further rows continue.

    And after the first match of ``before``, without the text: there are ``num`` further answers as well. The branch
    points are those of ``exits``; group_size rows and up to num (n + 1) more for each, n the branch points.

    Units: decisions.   Raises: ConfigError as ``exits``.
    Source: AnytimeReasoner, arXiv:2505.13438, and its code (sail-sg/AnytimeReasoner, ``brpo.py``).
    """
    require_text(then)
    places = budgets(at=at, pattern=before, room=room)
    return branching(
        places,
        factor=num + 1,
        rounds=1,
        most=len(at) + 1,
        then=lambda position: then if position in at else "",
    )
