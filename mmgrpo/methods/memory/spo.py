"""SPO (single stream), arXiv:2509.13232.

The baseline is a remembered success rate of the prompt, so that one sample per prompt is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.columns import column_of
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(memory=lambda column: (column_of(column),))
def remembered_baseline(
    feedback: Feedback, advantage_BT: Tensor, *, column: str = "value", normalize: bool = True, eps: float = 1e-4
) -> Tensor:
    """The reward less the remembered value of its prompt, compared over all processes: one sample a prompt is enough.

    d = r - m(prompt), m before the step;   A = (d - mean_N d) / (std_N d + eps) over the job's samples with a reward
    where ``normalize``, else A = d. It replaces the advantage.

    Units: those of the reward, or standard deviations.
    Source: SPO, arXiv:2509.13232, and its code (verl, recipe/spo, with eps 1e-8). Deviation: ``value`` forgets at one
        pace, where SPO's tracker forgets the faster the further the policy has moved.
    """
    job = feedback.job
    gain_N = job.reward_N - feedback.memory_columns[column].to(job.reward_N)
    if normalize and int(job.valid_N.sum()) > 1:
        scored = gain_N[job.valid_N]
        gain_N = (gain_N - scored.mean()) / (scored.std() + eps)
    gain_B = gain_N.where(job.valid_N, 0.0)[job.local_rows]
    return gain_B[:, None].expand(advantage_BT.shape).to(advantage_BT)
