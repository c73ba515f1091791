"""SPO-tree (segments), arXiv:2505.23564.

Only decisions with a probability under a bound when they were sampled are trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, sample_filter

if TYPE_CHECKING:
    from torch import Tensor


def _check_unlikely(below: float) -> None:
    if not 0 < below <= 1:
        raise ConfigError(f"unlikely keeps decisions under a probability above 0 and at most 1, got {below}")


@FILTERS.register
@sample_filter(check=_check_unlikely)
def unlikely(feedback: Feedback, advantage_BT: Tensor, *, below: float) -> Tensor:
    """The decisions with a probability under a bound when they were sampled.

    keep_BT = exp(old_logprob) < below. For decisions that have a probability.

    Units: below is a probability (0.9).   Raises: ConfigError for none.
    Source: SPO, arXiv:2505.23564, and its code (AIFrameResearch/SPO, ``ppo_trainer.py``, ``use_prob_mask``).
    """
    del advantage_BT
    return feedback.old_logprob_BT.exp() < below
