"""DGPO (direct group preference optimization), arXiv:2510.08425.

Errors are weighted by advantage, and groups by how far their preference is from being learned.
"""

from __future__ import annotations

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, total
from mmgrpo.maths.terms import GROUP, TERMS, Loss, log_ratio, ratio_of, term
from mmgrpo.maths.terms.group_losses import group_weight
from mmgrpo.maths.terms.view_terms import mean_of
from mmgrpo.values import Value


@TERMS.register
@term(values=lambda reference: (Value("logprob", reference),), couples=GROUP)
def dgpo(decisions: Decisions, *, beta: float = 100.0, clip: float | None = None, reference: str = "reference") -> Loss:
    """Errors weighted by advantage, and those of a group by how much of its preference is not learned yet.

    L = sum v w_g A e, e the error, w_g = sg sigmoid(sum_i A_i beta (e_i - e_ref,i) / G) of each noise level.
    G counts the group's members. Where there is a clip, e has no gradient where exp(e_old - e) has left 1 +- clip on
    the side of the gain. Levels and noise have to be the same for a group's members.

    Units: beta is per error and advantage (100); clip is dimensionless (0.01).
    Source: DGPO, arXiv:2510.08425, and its code (Luo-Yihong/DGPO, ``train_sd3_dgpo.py``). It is used with
        a divergence ``velocity_mse`` from the reference.
    """
    keep_BT = decisions.mask_BT
    error_BT = -decisions.logprob_BT.where(keep_BT, 0.0)
    advantage_BT = decisions.advantage_BT.where(keep_BT, 0.0)
    difference_BT = error_BT.detach() + decisions[Value("logprob", reference)].detach().where(keep_BT, 0.0)
    weight_BT = group_weight(advantage_BT * difference_BT, keep_BT, decisions.group_BT, beta=beta)
    clipped_BT = keep_BT & False
    if clip is not None:
        ratio_BT = ratio_of(log_ratio(decisions)).detach()
        clipped_BT = ((advantage_BT > 0) & (ratio_BT > 1 + clip)) | ((advantage_BT < 0) & (ratio_BT < 1 - clip))
    error_BT = error_BT.detach().where(clipped_BT, error_BT)
    part = mean_of("dgpo", decisions, weight_BT * advantage_BT * error_BT)
    high, low = clipped_BT & (advantage_BT > 0), clipped_BT & (advantage_BT < 0)
    return Loss(part.value, part.diagnostics + Diagnostics(clip_high_count=total(high), clip_low_count=total(low)))
