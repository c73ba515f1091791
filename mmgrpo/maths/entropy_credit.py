"""Credit by how sure the policy was: estimators that read entropies at the weights that sampled.

Axes: B samples, T decisions (tokens or denoising steps), P groups, G size of the largest group, N samples of the job.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Estimator, Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


def inverse_entropy() -> Estimator:
    """Samples that the policy was surer of than the step's others count more, for good or ill.

    A_i <- A_i mean_N(H) / H_i, H_i the mean entropy over the sample's kept decisions; samples of no entropy keep A.

    Units: those of the advantage.
    Source: EDGE-GRPO, arXiv:2507.21848, and its code (ZhangXJ199/EDGE-GRPO): entropy-driven advantage. Deviation: the
        mean is over the job's samples that have a kept decision, where its code takes one process's batch.
    """
    return Estimator(assign=_inverse_entropy, values=(ENTROPY,))


def _inverse_entropy(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    entropy_B = feedback.mean(feedback[ENTROPY])
    known_N = feedback.job.length_N > 0
    mean = feedback.job.value_mean[ENTROPY].where(known_N, 0.0).sum() / known_N.sum().clamp(min=1)
    factor_B = (mean / entropy_B.where(entropy_B > 0, 1.0)).where(entropy_B > 0, 1.0)
    return advantage_BT * factor_B[:, None].to(advantage_BT)


def zero_variance_entropy(*, alpha: float = 0.1, right: float = 0.5) -> Estimator:
    """Groups of equal rewards teach by entropy: uncertain steps of right answers, sure steps of wrong ones.

    A_t = alpha H_t in a group of equal rewards above ``right``, -alpha (max_k H_k - H_t) in one of equal lower rewards.
    The maximum is over the sample's kept decisions; other groups keep A.

    Units: alpha is advantage per nat (0.1); right is in the reward's units.
    Source: RL-ZVP, arXiv:2509.21880, eq. 5; its code was not found.
    """
    return Estimator(assign=partial(_zero_variance, alpha=alpha, right=right), values=(ENTROPY,))


def _zero_variance(feedback: Feedback, advantage_BT: Tensor, *, alpha: float, right: float) -> Tensor:
    groups = feedback.groups
    valid_PG, reward_PG = groups.valid(feedback.valid_B), groups.matrix(feedback.reward_B)
    lowest_P = reward_PG.where(valid_PG, torch.inf).amin(1)
    highest_P = reward_PG.where(valid_PG, -torch.inf).amax(1)
    equal_B1 = groups.rows((lowest_P == highest_P)[:, None].expand_as(valid_PG) & valid_PG)[:, None]
    right_B1 = groups.rows((lowest_P > right)[:, None].expand_as(valid_PG))[:, None]
    entropy_BT = feedback[ENTROPY]
    wrong_BT = entropy_BT - entropy_BT.amax(1, keepdim=True)
    shaped_BT = alpha * entropy_BT.where(right_B1, wrong_BT).where(feedback.mask_BT, 0.0)
    return shaped_BT.to(advantage_BT).where(equal_B1, advantage_BT)


def entropy_weights(*, alpha: float, temperature: float) -> Estimator:
    """Decisions of high advantage and entropy count more than those of the group's other members at the same place.

    A_it <- n_t w_it A_it, w_it = e^((A_it + alpha H_it) / temperature) over the sum of it for the n_t members of the
    group that have a decision t: equal weights change nothing.

    Units: alpha is advantage per nat; temperature in the advantage's units.
    Raises: ConfigError unless temperature > 0.
    Source: EGSW, arXiv:2503.22456, step-wise weights, as a public summary has them; no code is out. Deviation: n_t,
        which makes the sum over a group of weights of sum 1 a mean as the loss takes it.
    """
    if not temperature > 0:
        raise ConfigError(f"entropy_weights needs temperature > 0, got {temperature}")
    return Estimator(assign=partial(_entropy_weights, alpha=alpha, temperature=temperature), values=(ENTROPY,))


def _entropy_weights(feedback: Feedback, advantage_BT: Tensor, *, alpha: float, temperature: float) -> Tensor:
    groups, logit_BT = feedback.groups, (advantage_BT + alpha * feedback[ENTROPY]) / temperature
    there_TPG = groups.valid((feedback.mask_BT & feedback.valid_B[:, None]).T)
    logit_TPG = groups.matrix(logit_BT.T).where(there_TPG, -torch.inf)
    weight_TPG = logit_TPG.softmax(-1).where(there_TPG, 0.0) * there_TPG.sum(-1, keepdim=True)
    return advantage_BT * groups.rows(weight_TPG).T.to(advantage_BT)


def entropy_rewards(*, base: float = 1.0, share: float = 0.1, right: float = 0.5, eps: float = 1e-6) -> Estimator:
    """A reward of each decision: of right samples by its entropy, of wrong ones by how sure it was.

    A_it = base + share n_t H_it / sum_k H_kt where r_i > right, over the n_t right members of the group that have a
    decision t;   A_jt = -base - share m_t (1 / H_jt) / sum_k (1 / H_kt) of the m_t others. It replaces the advantage.

    Units: base, share and right are in the reward's units; eps is added to sums, and in nats to entropies that divide.
    Source: GTPO, arXiv:2508.04349, eq. 3 and 5.
    """
    return Estimator(assign=partial(_entropy_rewards, base=base, share=share, right=right, eps=eps), values=(ENTROPY,))


def _entropy_rewards(
    feedback: Feedback, advantage_BT: Tensor, *, base: float, share: float, right: float, eps: float
) -> Tensor:
    groups, entropy_BT = feedback.groups, feedback[ENTROPY].double()
    there_BT = feedback.mask_BT & feedback.valid_B[:, None]
    right_BT = there_BT & (feedback.reward_B > right)[:, None]
    found_BT = torch.zeros_like(entropy_BT)
    for sign, worth_BT, of_BT in ((1, entropy_BT, right_BT), (-1, 1 / (entropy_BT + eps), there_BT & ~right_BT)):
        worth_TPG, of_TPG = groups.matrix(worth_BT.T), groups.valid(of_BT.T)
        worth_TPG = worth_TPG.where(of_TPG, 0.0)
        part_TPG = of_TPG.sum(-1, keepdim=True) * worth_TPG / (worth_TPG.sum(-1, keepdim=True) + eps)
        found_BT += sign * (base + share * groups.rows(part_TPG).T).where(of_BT, 0.0)
    return found_BT.to(advantage_BT)
