"""TDM-R1, arXiv:2603.07700: a generator of few steps is trained by a surrogate reward, which is trained by the rewards.

Three sets of weights on one model: the generator (the policy), the score of its samples (``fake``) and the surrogate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, total
from mmgrpo.maths.matching import LEAST_ERROR
from mmgrpo.maths.terms import GROUP, TERMS, Loss, ratio_of, term
from mmgrpo.maths.terms.group_losses import group_weight
from mmgrpo.maths.terms.view_terms import mean_of
from mmgrpo.system.lazy import torch
from mmgrpo.values import Value, from_reference, of_view

if TYPE_CHECKING:
    from torch import Tensor

REFERENCE_ERROR, REFERENCE_DISTANCE = of_view("reference"), from_reference("velocity_mse")


def clean_shift(view: str, scale: float, *, guided: bool) -> Value:
    """Squared change of the predicted clean sample by scale times (the view's - the reference's)."""
    return Value("clean_shift", view, (scale, float(guided)))


def clean_distance(view: str, *, guided: bool) -> Value:
    """Mean absolute distance of the predicted clean sample from the view's."""
    return Value("clean_distance", view, (float(guided),))


def _directions(fake: str, surrogate: str) -> tuple[tuple[Value, Value], ...]:
    """Of the score, of guidance and of the surrogate: the squared change, and the distance that divides it."""
    from_guided = clean_distance("reference", guided=True)
    return (
        (clean_shift(fake, -1.0, guided=False), from_guided),
        (clean_shift("reference", 1.0, guided=True), from_guided),
        (clean_shift(surrogate, 1.0, guided=True), clean_distance(surrogate, guided=True)),
    )


def _check_tdm_r1(guidance: float) -> None:
    if not 0 <= guidance <= 1:
        raise ConfigError(f"guidance shares the reward with the surrogate: set it from 0 to 1, got {guidance}")


@TERMS.register
@term(
    values=lambda fake, surrogate: tuple(dict.fromkeys(sum(_directions(fake, surrogate), start=()))),
    check=_check_tdm_r1,
)
def tdm_r1(decisions: Decisions, *, guidance: float = 0.3, fake: str = "fake", surrogate: str = "surrogate") -> Loss:
    """The predicted clean sample moves along the score of the samples, guidance and the surrogate reward.

    L = sum v (|d_score|^2 / n + g |d_guide|^2 / n + (1 - g) |d_reward|^2 / n_s), d = x0 - sg(x0 + direction).
    Directions: reference - fake, guided reference - reference, guided surrogate - reference; n and n_s are the mean
    absolute distances from the guided predictions of reference and surrogate, at least 1e-5, sg = no gradient.

    Units: guidance is a share, 0 to 1.   Raises: ConfigError for another.
    Source: TDM-R1, arXiv:2603.07700, and its code (Luo-Yihong/TDM-R1, ``train_tdmr1_pub.py``, loss_kl, loss_cfg_reward
        and loss_reward). Its guidance direction is 3.5 (conditional - unconditional) at any scale, which is that of the
        guided prediction at a scale of 4.5.
    """
    score_BT, guide_BT, reward_BT = (
        decisions[shift] / decisions[distance].detach().where(decisions.mask_BT, 1.0).clamp(min=LEAST_ERROR)
        for shift, distance in _directions(fake, surrogate)
    )
    return mean_of("tdm_r1", decisions, score_BT + guidance * guide_BT + (1 - guidance) * reward_BT)


@TERMS.register
@term(values=(REFERENCE_DISTANCE,))
def tdm_r1_score(decisions: Decisions, *, penalty: float = 0.02) -> Loss:
    """The score of the samples: its error on them, and its squared distance from the reference.

    L = sum v (e + p D), e the error, D the squared distance of the prediction from the reference's.

    Units: squared latents; penalty is dimensionless.
    Source: TDM-R1, arXiv:2603.07700, and its code (Luo-Yihong/TDM-R1, ``train_tdmr1_pub.py``, loss_fake).
    """
    return mean_of("tdm_r1_score", decisions, penalty * decisions[REFERENCE_DISTANCE] - decisions.logprob_BT)


def _check_surrogate(beta: float, clip: float, threshold: float, penalty: float) -> None:
    if min(beta, clip, threshold) <= 0 or penalty < 0:
        raise ConfigError(
            f"beta, clip and threshold must be above 0 and penalty 0 or more, got {beta}, {clip}, {threshold} and "
            f"{penalty}"
        )


@TERMS.register
@term(values=lambda slow: (REFERENCE_ERROR, REFERENCE_DISTANCE, of_view(slow)), couples=GROUP, check=_check_surrogate)
def tdm_r1_surrogate(
    decisions: Decisions,
    *,
    beta: float = 1.0,
    clip: float = 1e-3,
    threshold: float = 0.05,
    penalty: float = 1e-3,
    slow: str = "surrogate_average",
) -> Loss:
    """The preferences of groups at the states after each step of the sampler, later steps with more weight.

    L = sum v c_t (w_g A e + p D), e the error, w_g the ``group_weight`` of A (e - e_ref), D the squared distance of the
    prediction from the reference's, c_t = (t + 1)^2 / sum_s (s + 1). e has no gradient where exp(e_slow - e) has left
    1 +- clip on the side of the gain, or D is above the threshold and e better than e_ref on that side.

    Units: beta is per error and advantage; threshold and penalty of squared latents.
    Raises: ConfigError for numbers of another sign.
    Source: TDM-R1, arXiv:2603.07700, and its code (Luo-Yihong/TDM-R1, ``train_tdmr1_pub.py``). Deviations: there a step
        t is sampled in proportion to t + 1 and its loss multiplied by (t + 1) / T, of which c_t is the expectation; and
        D is compared with the threshold by its mean over a micro-batch.
    """
    keep_BT = decisions.mask_BT
    error_BT = -decisions.logprob_BT.where(keep_BT, 0.0)
    advantage_BT = decisions.advantage_BT.where(keep_BT, 0.0)
    reference_BT, slow_BT = (
        -decisions[value].detach().where(keep_BT, 0.0) for value in (REFERENCE_ERROR, of_view(slow))
    )
    distance_BT = decisions[REFERENCE_DISTANCE].where(keep_BT, 0.0)
    now_BT = error_BT.detach()
    weight_BT = group_weight(advantage_BT * (now_BT - reference_BT), keep_BT, decisions.group_BT, beta=beta)
    is_gain_BT = advantage_BT > 0
    ratio_BT = ratio_of(slow_BT - now_BT)
    clipped_BT = torch.where(is_gain_BT, ratio_BT > 1 + clip, ratio_BT < 1 - clip)
    improved_BT = torch.where(is_gain_BT, now_BT < reference_BT, now_BT > reference_BT)
    stopped_BT = keep_BT & (clipped_BT | (improved_BT & (distance_BT.detach() > threshold)))
    error_BT = now_BT.where(stopped_BT, error_BT)
    preference_BT = weight_BT * advantage_BT * error_BT + penalty * distance_BT
    part = mean_of("tdm_r1_surrogate", decisions, step_weight(preference_BT) * preference_BT)
    counts = Diagnostics(clip_high_count=total(stopped_BT & is_gain_BT), clip_low_count=total(stopped_BT & ~is_gain_BT))
    return Loss(part.value, part.diagnostics + counts)


def step_weight(value_BT: Tensor) -> Tensor:
    """(t + 1)^2 / sum_s (s + 1) of each step t, as a row.

    Shapes: (B, T) -> (1, T).
    """
    number_T = torch.arange(1, value_BT.shape[1] + 1, device=value_BT.device).to(value_BT)
    return (number_T.square() / number_T.sum())[None]
