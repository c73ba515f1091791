"""EDGE-GRPO (entropy-driven advantage), arXiv:2507.21848.

Advantages are divided by the entropy of the sample, relative to the mean entropy of the step's samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=(ENTROPY,))
def inverse_entropy(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    """Samples that the policy was surer of than the step's others count more, for good or ill.

    A_i <- A_i mean_N(H) / H_i, H_i the mean entropy over the sample's kept decisions; samples of no entropy keep A.

    Units: those of the advantage.
    Source: EDGE-GRPO, arXiv:2507.21848, and its code (ZhangXJ199/EDGE-GRPO): entropy-driven advantage. Deviation: the
        mean is over the job's samples that have a kept decision, where its code takes one process's batch.
    """
    entropy_B = feedback.mean(feedback[ENTROPY])
    nonempty_N = feedback.job.length_N > 0
    mean = feedback.job.value_mean[ENTROPY].where(nonempty_N, 0.0).sum() / nonempty_N.sum().clamp(min=1)
    factor_B = (mean / entropy_B.where(entropy_B > 0, 1.0)).where(entropy_B > 0, 1.0)
    return advantage_BT * factor_B[:, None].to(advantage_BT)
