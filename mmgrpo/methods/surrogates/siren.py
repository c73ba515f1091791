"""SIREN (selective entropy regularization), arXiv:2509.25133.

The entropy of the nucleus at high-entropy decisions is regularized toward an anchor.
"""

from __future__ import annotations

from mmgrpo.errors import ConfigError
from mmgrpo.maths.controllers import CONTROLLERS
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum, total
from mmgrpo.maths.group_stats import grouped
from mmgrpo.maths.modulations import above_row_quantile, require_quantile
from mmgrpo.maths.terms import GROUP, TERMS, Loss, term
from mmgrpo.values import nucleus_entropy


def _check_anchored_entropy(quantile: float, mass: float) -> None:
    require_quantile(quantile)
    if not 0 < mass <= 1:
        raise ConfigError(f"the nucleus holds a probability above 0 and at most 1, got {mass}")


@TERMS.register
@term(values=lambda mass: (nucleus_entropy(mass),), couples=GROUP, check=_check_anchored_entropy)
def anchored_entropy(decisions: Decisions, *, mass: float = 0.8, quantile: float = 0.8, anchor: float = 0.0) -> Loss:
    """Pulls the entropy of the nucleus, where it peaks, toward an anchor.

    L = mean_P (H - anchor)^2, H = mean over the group's rows of the mean nucleus entropy of those kept decisions where
    it is above its row's quantile. H alone is measured, and L is 0, while the anchor is 0.

    Units: mass is a probability, anchor nats.   Raises: ConfigError for a mass or a quantile outside 0 .. 1.
    Source: SIREN, arXiv:2509.25133, and its code (Linn3a/siren, ``dp_actor.py``): top-p mask, peak-entropy mask and
        anchor. Deviation: H of a group, there of a micro-batch, so that no batch size matters.
    """
    if decisions.group_BT is None:
        raise ConfigError("anchored_entropy needs group_BT: the groups of the samples")
    keep_BT, entropy_BT = decisions.mask_BT, decisions[nucleus_entropy(mass)]
    peak_BT = above_row_quantile(entropy_BT.detach(), keep_BT, quantile)
    row_B = entropy_BT.where(peak_BT, 0.0).sum(1) / peak_BT.sum(1).clamp(min=1)
    groups = grouped(decisions.group_BT[:, 0])
    present_PG = groups.valid(keep_BT.any(1))
    group_P = groups.matrix(row_B).where(present_PG, 0.0).sum(1) / present_PG.sum(1).clamp(min=1)
    distance_P = (group_P - anchor).where(present_PG.any(1), 0.0)
    loss = distance_P.square().sum() / decisions.num_groups * float(anchor > 0)
    value_sum = ValueSum(total(present_PG), total(row_B.where(keep_BT.any(1), 0.0)))
    name = "anchored_entropy"
    return Loss(loss, Diagnostics(loss_sums={name: total(loss)}, value_sums={name: value_sum}))


@CONTROLLERS.register
def first_measured(value: float, measured: float) -> float:
    """The value of a metric at the first step that has it.

    value' = measured while value is 0, else value

    Units: those of the metric.   Source: the anchor of SIREN, arXiv:2509.25133.
    """
    return measured if value == 0 else value
