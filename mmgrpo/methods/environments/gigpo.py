"""GiGPO, arXiv:2505.10978.

The discounted return of a turn is compared with the group's other turns from the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback, SampleColumn, Scoped
from mmgrpo.maths.group_stats import centered_among, standardized_among
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_anchor_states(discount: float, similar: float) -> None:
    if not 0 <= discount <= 1 or not 0 < similar <= 1:
        raise ConfigError(
            f"anchor_states: discount must be in [0, 1] and similar in (0, 1]; got {discount} and {similar}"
        )


@ESTIMATORS.register
@estimator(  # it reads the rewards of turns unless it takes a reward of the sample
    turns=True, turn_rewards=lambda reward: reward is None, check=_check_anchor_states
)
def anchor_states(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    weight: float = 1.0,
    discount: float = 0.95,
    reward: str | None = None,
    normalize: bool = True,
    similar: float = 1.0,
    eps: float = 1e-6,
) -> Tensor:
    """A turn's discounted return against those of the group's turns that were taken in the same state.

    A_t <- A_t + weight (G - mean) / (std + eps) over the turns of one state, G_k = sum_{j >= k} discount^(j - k) r_j of
    the turn k that contains token t; without the divisor where not ``normalize``. Sample std; 0 where the state was met
    once, or all G are equal. r is the reward of the environment; with ``reward``, that reward of the complete sample at
    its last turn. A turn with no reward at or after it has no return and is not compared. Turns of a group share a
    state if their keys (``Sample.turn_keys``) are equal; with ``similar`` < 1 also if that ratio of the key's
    characters matches the first key of the state.

    Units: any reward scale -> standard deviations, or the reward's units; eps in the reward's units.
    Raises: ConfigError for numbers out of range, and if no sample has turns.
    Source: GiGPO, arXiv:2505.10978, eq. 5 to 8, and its code (langfengQ/verl-agent, gigpo/core_gigpo.py).
    """
    turns = feedback.turns
    rewards = turns.rewards if reward is None else reward_at_last_turn(turns.rewards, feedback.reward(reward))
    return_BS = returns_to_go(rewards, discount=discount).where(feedback.valid_B[:, None], torch.nan)
    state_BS = states(turns.keys_B_S, feedback.group_B.tolist(), S=return_BS.shape[1], similar=similar)
    among = partial(standardized_among, eps=eps) if normalize else centered_among
    score_BS = among(return_BS.flatten(), state_BS.flatten()).reshape(return_BS.shape)
    return advantage_BT + weight * turns.rewards.at_decisions(score_BS).to(advantage_BT)


def reward_at_last_turn(turns: Scoped, reward: SampleColumn) -> Scoped:
    """A reward of each sample as one of its last turn; a sample without turns has none."""
    last_B1 = turns.scope_BT.amax(1, keepdim=True)
    valid_BS = (torch.arange(turns.value_BS.shape[1]) == last_B1) & reward.valid_B[:, None]
    value_BS = reward.value_B[:, None].expand(valid_BS.shape)
    return Scoped(scope_BT=turns.scope_BT, value_BS=value_BS, valid_BS=valid_BS)


def returns_to_go(turns: Scoped, *, discount: float) -> Tensor:
    """The discounted return of each turn; NaN without any reward from it on.

    G_k = sum_{j >= k} discount^(j - k) r_j over the turns with a reward: 0, 0, 10 at 0.5 give 2.5, 5, 10.

    Shapes: -> float64 (B, S).   Units: those of the reward.   Source: GiGPO, arXiv:2505.10978, eq. 5.
    """
    reward_BS = turns.value_BS.double().where(turns.valid_BS, 0.0)
    return_BS, following_B = torch.empty_like(reward_BS), torch.zeros_like(reward_BS[:, 0])
    for turn in reversed(range(reward_BS.shape[1])):
        following_B = reward_BS[:, turn] + discount * following_B
        return_BS[:, turn] = following_B
    has_later_reward_BS = turns.valid_BS.int().flip(1).cummax(1).values.flip(1).bool()
    return return_BS.where(has_later_reward_BS, torch.nan)


def states(keys_B_S: Sequence[Sequence[str | None]], groups: Sequence[int], *, S: int, similar: float = 1.0) -> Tensor:
    """The number of each turn's state: equal for all turns of a group in one state; a key of None is a separate state.

    With ``similar`` < 1 a key joins the first state, in the order of the rows, with a similar first key: twice the
    number of matching characters over the number of both, by difflib.

    Shapes: B keys of at most S turns, B groups -> integer (B, S).
    Source: GiGPO, arXiv:2505.10978, eq. 6, and ``build_step_group`` of its code.
    """
    B = len(keys_B_S)
    state_BS = torch.arange(B * S).reshape(B, S)
    number: dict[tuple[int, str], int] = {}
    firsts: dict[int, list[str]] = {}
    for row, (keys_S, group) in enumerate(zip(keys_B_S, groups, strict=True)):
        for turn, key in enumerate(keys_S):
            if key is None:
                continue
            if (group, key) not in number:
                first = _first_like(key, firsts.setdefault(group, []), similar)
                number[group, key] = number[group, first] if first is not None else int(state_BS[row, turn])
                if first is None:
                    firsts[group].append(key)
            state_BS[row, turn] = number[group, key]
    return state_BS


def _first_like(key: str, firsts: Sequence[str], similar: float) -> str | None:
    if similar == 1:
        return None
    return next((first for first in firsts if SequenceMatcher(None, key, first).ratio() >= similar), None)
