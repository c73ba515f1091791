"""Truncated PPO, arXiv:2506.15050.

Rows are sampled over several steps, and the unfinished ones train on advantages of a learned value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.critics import generalized_advantage
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, strategy
from mmgrpo.system.lazy import torch
from mmgrpo.values import VALUE

if TYPE_CHECKING:
    from torch import Tensor


def _check_partial_rollouts(window: int) -> None:
    if window < 1:
        raise ConfigError(f"partial_rollouts needs a window of at least 1 token, got {window}")


@STRATEGIES.register
@strategy(window=lambda window: window, check=_check_partial_rollouts)
def partial_rollouts(rounds: Sequence[Round], setting: Setting, *, window: int) -> Sequence[Request]:
    """A row gets at most ``window`` tokens a step; an unfinished one continues at the next step with the new weights.

    A step has the unfinished rows of the step before, and as many new groups as fit in ``prompts_per_step`` times
    ``group_size`` rows. The tokens of the step are trained on, with the log-probabilities of the weights that sampled
    them; those of earlier steps are not. An unfinished row has no reward; one as long as the length limit is truncated.

    Units: tokens; the window is below the length limit of a row.   Raises: ConfigError for a window without a token.
    Source: successive batching, T-PPO, arXiv:2506.15050; partial rollouts, Kimi k1.5, arXiv:2501.12599.
    Deviation: new prompts begin in complete groups, so that a step may have up to ``group_size`` - 1 rows less.
    """
    if rounds:
        return ()
    groups = [] if setting.memory.partial is None else setting.memory.partial.groups
    continued = [
        Request(prompt=number, members=tuple(row.member for row in rows), window=window, partial_rows=rows)
        for number, rows in enumerate(groups)
    ]
    free = setting.num_prompts * setting.group_size - sum(map(len, groups))
    members = tuple(range(setting.group_size))
    new = [
        Request(prompt=len(groups) + number, members=members, window=window)
        for number in range(max(free, 0) // setting.group_size)
    ]
    return [*continued, *new]


def _check_extended_gae(gamma: float, decay: float) -> None:
    if not 0 < gamma <= 1 or not 0 <= decay <= 1:
        raise ConfigError(f"extended_gae needs gamma in (0, 1] and decay in [0, 1], got {gamma} and {decay}")


@ESTIMATORS.register
@estimator(values=(VALUE,), partial=True, check=_check_extended_gae)
def extended_gae(feedback: Feedback, advantage_BT: Tensor, *, gamma: float = 1.0, decay: float = 0.95) -> Tensor:
    """Generalized advantages of complete and of partial rows, over the decisions of this step.

    delta_t = r_t + gamma V_{t+1} - V_t;   A_t = delta_t + gamma decay A_{t+1}, 0 after the last decision. The last one
    of a complete row has the sample's reward, and no state after it; that of a partial row has no reward, and the state
    after it the value of the one before: delta = (gamma - 1) V. It replaces the advantage.

    Units: those of the reward; gamma and decay are dimensionless.   Raises: ConfigError for numbers out of range.
    Source: T-PPO, arXiv:2506.15050, extended GAE: V(s_l) = V(s_{l-1}) where a response is cut off.
    """
    value_BT, partial_B = feedback[VALUE], feedback.partial_B
    reward_B, counts_B = feedback.reward_B.where(feedback.valid_B, 0.0), feedback.valid_B
    if partial_B is not None:
        position_T = torch.arange(value_BT.shape[1])
        last_B1 = (position_T * feedback.mask_BT).argmax(1, keepdim=True)
        reward_B = reward_B.where(~partial_B, gamma * value_BT.gather(1, last_B1)[:, 0])
        counts_B = counts_B | partial_B
    gae_BT = generalized_advantage(value_BT, reward_B, feedback.mask_BT, gamma=gamma, decay=decay)
    return gae_BT.where(counts_B[:, None], 0.0).to(advantage_BT)
