"""SPO-tree (segments), arXiv:2505.23564.

Only the decisions whose probability was under a bound when they were sampled are trained.
"""

from __future__ import annotations

from mmgrpo.errors import ConfigError
from mmgrpo.maths.filters import FILTERS, Filter


@FILTERS.register
def unlikely(*, below: float) -> Filter:
    """The decisions whose probability was under a bound when they were drawn.

    keep_BT = exp(old_logprob) < below. For decisions that have a probability.

    Units: below is a probability (0.9).   Raises: ConfigError for none.
    Source: SPO, arXiv:2505.23564, and its code (AIFrameResearch/SPO, ``ppo_trainer.py``, ``use_prob_mask``).
    """
    if not 0 < below <= 1:
        raise ConfigError(f"unlikely keeps decisions under a probability above 0 and at most 1, got {below}")
    return Filter(keep=lambda feedback, advantage_BT: feedback.old_logprob_BT.exp() < below)
