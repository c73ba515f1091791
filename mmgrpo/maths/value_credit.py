"""Credit by what others say of a decision: a learned value, another policy, a column of the data.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.columns import column_of
from mmgrpo.maths.critics import generalised_advantage
from mmgrpo.maths.feedback import Estimator, Feedback
from mmgrpo.maths.origins import DRAWN, GIVEN
from mmgrpo.system.lazy import torch
from mmgrpo.values import REFERENCE, VALUE, Value, of_view

if TYPE_CHECKING:
    from torch import Tensor


def gae(*, gamma: float = 1.0, decay: float = 0.95, value: str = VALUE.name, view: str | None = None) -> Estimator:
    """Generalised advantages of a learned value, the sample's reward coming with its last decision.

    delta_t = r_t + gamma V_{t+1} - V_t;   A_t = delta_t + gamma decay A_{t+1}, over kept decisions, 0 after the last.
    It replaces the advantage.

    Units: those of the reward; gamma and decay are dimensionless (1 and 0.95).
    Source: GAE, arXiv:1506.02438, eq. 16.
    """
    asked = Value(value, view)
    return Estimator(assign=partial(_gae, gamma=gamma, decay=decay, value=asked), values=(asked,))


def _gae(feedback: Feedback, advantage_BT: Tensor, *, gamma: float, decay: float, value: Value) -> Tensor:
    reward_B = feedback.reward_B.where(feedback.valid_B, 0.0)
    found_BT = generalised_advantage(feedback[value], reward_B, feedback.mask_BT, gamma=gamma, decay=decay)
    return found_BT.where(feedback.valid_B[:, None], 0.0).to(advantage_BT)


def expected_return(*, gamma: float = 1.0) -> Estimator:
    """What a learned value expects after each decision; after the last one the sample's reward.

    A_t = gamma V_{t+1}, and r after the last kept decision. It replaces the advantage.

    Units: those of the reward; gamma is dimensionless (1).
    Source: DVPO, arXiv:2502.16944, whose advantage is the value of an action itself: of a text, that of the next state.
    """
    return Estimator(assign=partial(_expected_return, gamma=gamma), values=(VALUE,))


def _expected_return(feedback: Feedback, advantage_BT: Tensor, *, gamma: float) -> Tensor:
    better_BT = _gae(feedback, advantage_BT, gamma=gamma, decay=0.0, value=VALUE)
    return (better_BT + feedback[VALUE].to(better_BT)).where(feedback.mask_BT & feedback.valid_B[:, None], 0.0)


def whitened(*, eps: float = 1e-8) -> Estimator:
    """Advantages standardised over all decisions of the job's drawn samples that a reward applied to.

    A <- (A - mean_N A) / sqrt(var_N A + eps), sample variance, over their kept decisions of the step; of fewer than two
    the advantage is 0, and so it is of samples that are read.

    Units: any -> standard deviations; eps in the square of the advantage's units.
    Source: verl, torch_functional.py, ``masked_whiten``, in which fewer than two decisions are an error.
    """
    return Estimator(assign=partial(_whitened, eps=eps))


def _whitened(feedback: Feedback, advantage_BT: Tensor, *, eps: float) -> Tensor:
    return _standardised(feedback, advantage_BT, feedback.mask_BT & _drawn(feedback)[:, None], eps)


def whitened_by_sign(*, eps: float = 1e-8) -> Estimator:
    """Positive and negative advantages standardised as ``whitened`` does, each without the others.

    A <- (A - mean A) / sqrt(var A + eps) over the job's decisions of the same sign; 0 stays 0.

    Units: as ``whitened``.
    Source: GTPO, arXiv:2508.04349, eq. 6.
    """
    return Estimator(assign=partial(_whitened_by_sign, eps=eps))


def _whitened_by_sign(feedback: Feedback, advantage_BT: Tensor, *, eps: float) -> Tensor:
    keep_BT = feedback.mask_BT & _drawn(feedback)[:, None]
    positive_BT, negative_BT = (
        _standardised(feedback, advantage_BT, keep_BT & of_sign_BT, eps)
        for of_sign_BT in (advantage_BT > 0, advantage_BT < 0)
    )
    return positive_BT + negative_BT


def _standardised(feedback: Feedback, advantage_BT: Tensor, keep_BT: Tensor, eps: float) -> Tensor:
    """The advantages of some decisions over their mean and deviation in the whole job; 0 elsewhere."""
    kept_BT = advantage_BT.double().where(keep_BT, 0.0)
    count, total = feedback.summed(torch.stack([keep_BT.sum().double(), kept_BT.sum()]))
    centred_BT = (kept_BT - total / count.clamp(min=1)).where(keep_BT, 0.0)
    variance = feedback.summed(centred_BT.square().sum()) / (count - 1).clamp(min=1)
    return (centred_BT / (variance + eps).sqrt()).where(keep_BT & (count > 1), 0.0).to(advantage_BT)


def log_ratio(
    *, view: str, base: str = REFERENCE, scale: float = 1.0, weight: float = 1.0, keep: float = 1.0
) -> Estimator:
    """How much likelier another policy finds a decision than a base does, less how much likelier this one found it.

    A_t <- keep A_t + weight (scale (logprob_view - logprob_base) - (old_logprob - logprob_base)). At scale 1 it is
    logprob_view - old_logprob, on-policy distillation; above 1 it goes beyond the teacher. Samples without a reward
    train too; nothing is added where a sample does not have the view.

    Units: nats times weight; scale (1.25) and keep are dimensionless.
    Source: G-OPD, arXiv:2602.12125, and its code (RUCBM/G-OPD, ``dp_actor.py``), where keep is 0.
    """
    teacher, ground = of_view(view), of_view(base)
    values = (teacher,) if scale == 1 else (teacher, ground)

    def assign(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
        reward_BT, seen_BT = feedback[teacher] - feedback.old_logprob_BT, feedback.seen(view)
        if scale != 1:
            reward_BT = reward_BT + (scale - 1) * (feedback[teacher] - feedback[ground])
            seen_BT = seen_BT & feedback.seen(base)
        return keep * advantage_BT + weight * reward_BT.where(seen_BT, 0.0).to(advantage_BT)

    return Estimator(assign=assign, values=values, unscored=True)


def column_margin(*, column: str, low: float = 0.2, high: float = 0.28) -> Estimator:
    """How far the reward is above a number of the data row, held within bounds, added to the advantage.

    A <- A + clip(r - column, -low, high); the column holds, say, the reward of the reference's own sample.

    Units: low and high in the reward's units.
    Source: AAPO, arXiv:2505.14264, and its code (JianxXiong/AAPO, ``AAPOTrainer.py``).
    """
    return Estimator(assign=partial(_column_margin, column=column, low=low, high=high), columns=(column,))


def _column_margin(feedback: Feedback, advantage_BT: Tensor, *, column: str, low: float, high: float) -> Tensor:
    margin_B = (feedback.reward_B - feedback.column(column)).clamp(-low, high).where(feedback.valid_B, 0.0)
    return advantage_BT + margin_B[:, None].to(advantage_BT)


def column_baseline(*, column: str) -> Estimator:
    """The reward less a number of the data row: what the prompt was worth before the run.

    A = r - column; the column holds, say, the mean reward of the reference's own samples. It replaces the advantage;
    groups of equal rewards teach too.

    Units: those of the reward.
    Source: PVPO, arXiv:2508.21104, eq. 11 and listing 1, its static value.
    """
    return Estimator(assign=partial(_column_baseline, column=column), columns=(column,))


def _column_baseline(feedback: Feedback, advantage_BT: Tensor, *, column: str) -> Tensor:
    gain_B = (feedback.reward_B - feedback.column(column)).where(feedback.valid_B, 0.0)
    return gain_B[:, None].to(advantage_BT).expand_as(advantage_BT)


def column_weight(*, column: str, at_zero: float = 0.0, at_one: float = 1.0) -> Estimator:
    """The advantage by a number of the data row: what its prompt weighs in the run.

    A <- A (at_zero + (at_one - at_zero) column); without the two it is times the column itself.

    Units: dimensionless.
    Source: a prompt's difficulty in DR-IRL, arXiv:2503.18991; its rank, turned over half way, in Re-Schedule,
        arXiv:2510.24832.
    """

    def assign(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
        weight_B = at_zero + (at_one - at_zero) * feedback.column(column)
        return advantage_BT * weight_B[:, None].to(advantage_BT)

    return Estimator(assign=assign, columns=(column,))


def drawn_baseline() -> Estimator:
    """Every member of a group against those that the policy drew at this step.

    A = r - mean r of the group's drawn members; 0 in groups without one. Read rows (replayed, given, refined) take part
    without moving the baseline. It replaces the advantage.

    Units: those of the reward.
    Source: none; Critique-GRPO's code (zhangxy-2019/critique-GRPO) compares with the whole group, its refinements
        included, as the scales of ``advantage.scale`` do.
    """
    return Estimator(assign=_drawn_baseline)


def _drawn_baseline(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    groups = feedback.groups
    drawn_PG, valid_PG = groups.valid(_drawn(feedback)), groups.valid(feedback.valid_B)
    reward_PG = groups.matrix(feedback.reward_B)
    count_P1 = drawn_PG.sum(1, keepdim=True)
    mean_P1 = reward_PG.where(drawn_PG, 0.0).sum(1, keepdim=True) / count_P1.clamp(min=1)
    highest_P1 = reward_PG.where(drawn_PG, -torch.inf).amax(1, keepdim=True)
    lowest_P1 = reward_PG.where(drawn_PG, torch.inf).amin(1, keepdim=True)
    # the mean of equal numbers need not be that number in floating point
    mean_P1 = highest_P1.where(lowest_P1 == highest_P1, mean_P1)
    advantage_B = groups.rows((reward_PG - mean_P1).where(valid_PG & (count_P1 > 0), 0.0))
    return advantage_B[:, None].to(advantage_BT).expand_as(advantage_BT)


def read_count_as(*, value: float = 1.0) -> Estimator:
    """Rows that are read (replayed, given, drawn otherwise) have one advantage, whatever they earned.

    A = value of these with a reward; that of drawn rows is left as it is.

    Units: those of the advantage.
    Source: AEPO, arXiv:2510.08141, and its code (597358816/AEPO, ``ray_trainer.py``): REINFORCE on positive samples.
    """
    return Estimator(assign=partial(_read_count_as, value=value))


def _read_count_as(feedback: Feedback, advantage_BT: Tensor, *, value: float) -> Tensor:
    if feedback.origin_B is None:
        return advantage_BT
    read_B = (feedback.origin_B != DRAWN) & feedback.valid_B
    return advantage_BT.masked_fill(read_B[:, None], value)


def _drawn(feedback: Feedback) -> Tensor:
    """(B,) bool, the samples that were drawn at this step and that a reward applied to."""
    return feedback.valid_B if feedback.origin_B is None else feedback.valid_B & (feedback.origin_B == DRAWN)


def answer_while_needed(*, eps: float = 1e-4) -> Estimator:
    """Members standardised within their group, where a given answer is worth no more than it is needed for.

    A = (r - mean_G r) / (std_G r + eps), sample std, with the reward of a given member that some drawn one reaches set
    to the mean of the drawn ones first. It replaces the advantage; 0 in groups of equal rewards.

    Units: any reward scale -> dimensionless; eps in the reward's units.
    Source: ViSurf, arXiv:2510.10606, its smoothing of the label's reward. Deviation: eps in the denominator.
    """
    return Estimator(assign=partial(_answer_while_needed, eps=eps))


def _answer_while_needed(feedback: Feedback, advantage_BT: Tensor, *, eps: float) -> Tensor:
    origin_B = torch.zeros_like(feedback.group_B) if feedback.origin_B is None else feedback.origin_B
    groups = feedback.groups
    reward_PG, valid_PG = groups.matrix(feedback.reward_B), groups.valid(feedback.valid_B)
    drawn_PG = groups.valid(_drawn(feedback))
    count_P1 = drawn_PG.sum(1, keepdim=True)
    mean_P1 = reward_PG.where(drawn_PG, 0.0).sum(1, keepdim=True) / count_P1.clamp(min=1)
    highest_P1 = reward_PG.where(drawn_PG, -torch.inf).amax(1, keepdim=True)
    smoothed_PG = mean_P1.where(valid_PG & groups.matrix(origin_B == GIVEN) & (highest_P1 >= reward_PG), reward_PG)
    advantage_B = groups.rows(group_advantage(smoothed_PG, valid_PG, eps=eps))
    return advantage_B[:, None].to(advantage_BT).expand_as(advantage_BT)


def remembered_baseline(*, column: str = "value", normalise: bool = True, eps: float = 1e-4) -> Estimator:
    """The reward less what is remembered of its prompt, compared over the whole job: one sample a prompt is enough.

    d = r - m(prompt), m before the step;   A = (d - mean_N d) / (std_N d + eps) over the job's samples with a reward
    where ``normalise``, else A = d. It replaces the advantage.

    Units: those of the reward, or standard deviations.
    Source: SPO, arXiv:2509.13232, and its code (verl, recipe/spo, with eps 1e-8). Deviation: ``value`` forgets at one
        pace, where SPO's tracker forgets the faster the further the policy has moved.
    """
    kept = column_of(column)
    assign = partial(_remembered_baseline, column=column, normalise=normalise, eps=eps)
    return Estimator(assign=assign, memory=(kept,))


def _remembered_baseline(
    feedback: Feedback, advantage_BT: Tensor, *, column: str, normalise: bool, eps: float
) -> Tensor:
    job = feedback.job
    gain_N = job.reward_N - feedback.remembered[column].to(job.reward_N)
    if normalise and int(job.valid_N.sum()) > 1:
        scored = gain_N[job.valid_N]
        gain_N = (gain_N - scored.mean()) / (scored.std() + eps)
    gain_B = gain_N.where(job.valid_N, 0.0)[job.mine]
    return gain_B[:, None].expand(advantage_BT.shape).to(advantage_BT)
