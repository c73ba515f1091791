"""80/20 (high-entropy tokens), arXiv:2506.01939.

Only the decisions of the highest entropy of an update are trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.selections import SELECTIONS, high_entropy_BT, require_share, selection

if TYPE_CHECKING:
    from torch import Tensor


@SELECTIONS.register
@selection(needs_entropy=True, check=require_share)
def top_entropy(decisions: Decisions, job_entropy_N: Tensor, *, share: float) -> Tensor:
    """The decisions of the highest entropy: of an update's decisions, this share, and any that tie with its last.

    w = 0 unless H >= quantile(H over the update's decisions on all processes, 1 - share), interpolated linearly.

    Units: share is dimensionless, above 0 and at most 1 (0.2).   Raises: ConfigError for another share.
    Source: Wang et al., Beyond the 80/20 Rule, arXiv:2506.01939; TRL's ``top_entropy_quantile``. Deviation from TRL:
    the quantile is that of the update, where TRL takes one for each micro-batch.
    """
    return high_entropy_BT(decisions, job_entropy_N, share)
