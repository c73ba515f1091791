"""D3S (dynamic dual-level down-sampling), arXiv:2509.22115.

Samples are selected for the variance of their advantages, decisions for the product of absolute advantage and entropy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, highest_and_lowest, members, sample_filter
from mmgrpo.maths.modulations import ADVANTAGE, MODULATIONS, JobValues, Modulated, detached, modulation, require_share
from mmgrpo.maths.selections import quantile
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


def _check_most_varied(count: int) -> None:
    if count < 2:
        raise ConfigError(f"members vary from each other: keep at least 2, got {count}")


@FILTERS.register
@sample_filter(keeps=lambda count: count, check=_check_most_varied)
def most_varied(feedback: Feedback, advantage_BT: Tensor, *, count: int) -> Tensor:
    """The ``count`` members with the most varied advantages: some of the highest and some of the lowest.

    keep = argmax Var(A) over the subsets of that size; of equal ones that with the fewest of the highest.

    Units: count is members, at least 2.   Raises: ConfigError for fewer.
    Source: D3S, arXiv:2509.22115, where the sample level maximizes Var(A); the subset is found as by PODS,
        arXiv:2504.13818.
    """
    advantage_B = feedback.mean(advantage_BT).double()
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        advantage_G = advantage_B[rows]
        subsets = [highest_and_lowest(advantage_G, best, count - best) for best in range(count + 1)]
        keep_B[rows[max(subsets, key=lambda chosen: round(float(advantage_G[chosen].var(correction=0)), 12))]] = True
    return keep_B


@MODULATIONS.register
@modulation(values=(ENTROPY,), job=(ADVANTAGE, ENTROPY), check=require_share)
def top_product(decisions: Decisions, job_values: JobValues, *, share: float) -> Modulated:
    """The decisions where much is at stake and little is sure: of an update's, this share of the highest |A| H.

    loss = 0 unless |A| H >= quantile(|A| H over the update's decisions on all processes, 1 - share).
    The quantile is interpolated linearly.

    Units: share is dimensionless, above 0 and at most 1.   Raises: ConfigError for another share.
    Source: D3S's token level, arXiv:2509.22115, abstract.
    """
    if not bool(decisions.mask_BT.any()):
        return Modulated()
    product_N = job_values[ADVANTAGE].double().abs() * job_values[ENTROPY].double()
    product_BT = detached(decisions, ADVANTAGE).double().abs() * detached(decisions, ENTROPY).double()
    keep_BT = product_BT >= quantile(product_N, 1 - share)
    return Modulated(loss_BT=keep_BT.to(decisions.logprob_BT.detach()))
