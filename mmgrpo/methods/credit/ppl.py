"""Perplexity-based advantage shaping, arXiv:2508.02260.

Samples of low perplexity within their group get a larger weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def perplexity_weight(
    feedback: Feedback, advantage_BT: Tensor, *, strength: float = 0.01, low: float = 0.8, high: float = 1.2
) -> Tensor:
    """Samples that are likelier than the rest of their group count more, for good or ill.

    A <- A clip(1 - strength z, low, high), z = (n - mean_G n) / std_G n, n = -mean_t old_logprob of the sample.
    Mean and population std are over the members within 1.5 interquartile ranges of the quartiles; a std of at most 1e-6
    is taken as 1.

    Units: strength is per standard deviation (0.01); low and high are factors.
    Source: Deng et al., arXiv:2508.02260, perplexity-based advantage shaping, and its code
        (RUCAIBox/Slow_Thinking_with_LLMs, entropy2performance, ``core_algos.py``, calculate_ppl). In the published code
        the branch of the factor for likely samples is empty; that of the paper is used.
    """
    surprise_B = -feedback.mean(feedback.old_logprob_BT).double()
    factor_B = torch.ones_like(surprise_B)
    for rows in members(feedback):
        surprise_G = surprise_B[rows]
        usual_G = surprise_G[_near_quartiles(surprise_G)]
        std = usual_G.std(correction=0)
        score_G = (surprise_G - usual_G.mean()) / std.where(std > 1e-6, 1.0)
        factor_B[rows] = (1 - strength * score_G).clamp(low, high)
    return advantage_BT * factor_B[:, None].to(advantage_BT)


def _near_quartiles(value_G: Tensor) -> Tensor:
    first, third = value_G.quantile(0.25), value_G.quantile(0.75)
    slack = 1.5 * (third - first)
    return (value_G >= first - slack) & (value_G <= third + slack)
