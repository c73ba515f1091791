"""Credit of rows that are drawn after each other or to be imitated, and of answers that their reasoning makes likely.

Axes: B samples, T decisions, S scopes of a sample.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.feedback import Estimator, Feedback
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def imitated(*, reward: str, weight: float = 1.0) -> Estimator:
    """Rows that a single reward applies to are a mean of their own beside the others, weighed by what it says of them.

    A = weight v n / sum v on these rows, v what the reward says of each and n how many others the job trains; the
    others keep theirs. Under ``sample_mean``, with the surrogate ``policy_gradient`` or at a ratio of 1, the gradient
    is that of n / N (L + weight M): N all rows, L the loss of the others alone, M the mean over these rows, by v, of
    minus the mean log-probability of their decisions.

    Units: weight is that of M beside L; v is 0 or more.
    Source: what the policy wrote and what proved of use is learnt by its likelihood beside GRPO: MEL, arXiv:2602.10224,
        eq. 9 and 10; ExPO, arXiv:2507.02834.
    """
    return Estimator(assign=partial(_imitated, reward=reward, weight=weight))


def _imitated(feedback: Feedback, advantage_BT: Tensor, *, reward: str, weight: float) -> Tensor:
    said, trains_B = feedback.reward(reward), feedback.length_B > 0
    own_B = said.valid_B & trains_B
    value_B = said.value_B.where(own_B, 0.0)
    others, total = feedback.summed(torch.stack([(trains_B & ~own_B).sum().double(), value_B.sum().double()]))
    share_B1 = (weight * value_B * others / total if total > 0 else value_B)[:, None].to(advantage_BT)
    return share_B1.expand_as(advantage_BT).where(own_B[:, None], advantage_BT)
