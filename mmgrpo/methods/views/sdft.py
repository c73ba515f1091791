"""SDFT, arXiv:2601.19897.

The first tokens of a sample, in which a teacher that sees a demonstration refers to it, are not trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, sample_filter

if TYPE_CHECKING:
    from torch import Tensor


def _check_after_first(count: int) -> None:
    if count < 0:
        raise ConfigError(f"after_first leaves out a number of decisions from 0 up, got {count}")


@FILTERS.register
@sample_filter(check=_check_after_first)
def after_first(feedback: Feedback, advantage_BT: Tensor, *, count: int) -> Tensor:
    """The decisions of each sample after its first ``count``.

    keep_t = whether at least ``count`` of the sample's decisions come before t.

    Shapes: (B, T) -> bool (B, T).   Units: count is decisions.   Raises: ConfigError for a negative number.
    Source: SDFT, arXiv:2601.19897; its code's and TRL's num_loss_tokens_to_skip. A sample of fewer decisions is left
        out of the mean over samples, in which the code counts it as 0.
    """
    del advantage_BT
    return feedback.mask_BT & (feedback.mask_BT.cumsum(1) > count)
