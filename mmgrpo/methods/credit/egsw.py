"""EGSW, arXiv:2503.22456.

Decisions are weighted by advantage and entropy, relative to the same position of the group's other samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


def _check_entropy_weights(temperature: float) -> None:
    if not temperature > 0:
        raise ConfigError(f"entropy_weights needs temperature > 0, got {temperature}")


@ESTIMATORS.register
@estimator(values=(ENTROPY,), check=_check_entropy_weights)
def entropy_weights(feedback: Feedback, advantage_BT: Tensor, *, alpha: float, temperature: float) -> Tensor:
    """Decisions of high advantage and entropy count more than those of the group's other members at the same place.

    A_it <- n_t w_it A_it, w_it = e^((A_it + alpha H_it) / temperature) over the sum of it for the n_t members of the
    group that have a decision t: equal weights change nothing.

    Units: alpha is advantage per nat; temperature in the advantage's units.
    Raises: ConfigError unless temperature > 0.
    Source: EGSW, arXiv:2503.22456, step-wise weights, as a public summary has them; no code is out. Deviation: n_t,
        which makes the sum over a group of weights of sum 1 a mean as the loss takes it.
    """
    groups, logit_BT = feedback.groups, (advantage_BT + alpha * feedback[ENTROPY]) / temperature
    valid_TPG = groups.valid((feedback.mask_BT & feedback.valid_B[:, None]).T)
    logit_TPG = groups.matrix(logit_BT.T).where(valid_TPG, -torch.inf)
    weight_TPG = logit_TPG.softmax(-1).where(valid_TPG, 0.0) * valid_TPG.sum(-1, keepdim=True)
    return advantage_BT * groups.rows(weight_TPG).T.to(advantage_BT)
