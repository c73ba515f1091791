"""EARL, arXiv:2511.12033.

Only the highest-entropy share of each sample's decisions is trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.selections import SELECTIONS, quantile, require_share, selection
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


@SELECTIONS.register
@selection(needs_entropy=True, check=require_share)
def sample_top_entropy(decisions: Decisions, job_entropy_N: Tensor, *, share: float) -> Tensor:
    """The decisions of the highest entropy of each sample: this share of them, and any that tie with the last.

    w = 0 unless H >= quantile(H over the sample's decisions, 1 - share), interpolated linearly.

    Units: share is dimensionless, above 0 and at most 1.   Raises: ConfigError for another share.
    Source: EARL, arXiv:2511.12033, with a threshold for each response.
    """
    del job_entropy_N
    keep_BT = decisions.mask_BT.clone()
    for row in keep_BT.any(1).nonzero().flatten().tolist():
        mask_T, entropy_T = decisions.mask_BT[row], decisions[ENTROPY][row].detach()
        keep_BT[row] &= entropy_T >= quantile(entropy_T[mask_T], 1 - share)
    return keep_BT
