"""Chunk-GRPO, arXiv:2510.21583.

Each chunk of steps has the same weight, for any length.
"""

from __future__ import annotations

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import MODULATIONS, JobValues, Modulated, modulation
from mmgrpo.system.lazy import torch


@MODULATIONS.register
@modulation()
def equal_segments(decisions: Decisions, job_values: JobValues) -> Modulated:
    """The segments of a sample have equal weights, where an aggregate gives equal weights to its decisions.

    loss = n / (n_s S), n the kept decisions of the row, n_s those of the segment, S the row's segments.
    With ``sequence_mean`` it is the mean over samples of the mean over segments of their means.

    Units: dimensionless.   Source: Chunk-GRPO, arXiv:2510.21583, eq. 14.
    """
    del job_values
    keep_BT, segment_BT = decisions.mask_BT, decisions.segment_BT
    factor_BT = torch.ones_like(decisions.logprob_BT.detach())
    for row in range(len(keep_BT)):
        keep_T = keep_BT[row]
        if bool(keep_T.any()):
            _, of_N, count_S = segment_BT[row][keep_T].unique(return_inverse=True, return_counts=True)
            factor_BT[row, keep_T] = (len(of_N) / (count_S[of_N] * len(count_S))).to(factor_BT)
    return Modulated(loss_BT=factor_BT)
