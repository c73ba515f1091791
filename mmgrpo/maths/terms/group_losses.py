"""Losses of complete groups: a score for each sample, and a loss of a group's scores and rewards.

A group's loss is L(s, r, A), s the scores of its members; the loss of an update is the mean over the groups of the job.
A sample without a kept decision, or to which no reward applies, is no member.

Axes: B samples, T decisions, P groups, G size of the largest group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, total
from mmgrpo.maths.factories import Numbers, factory
from mmgrpo.maths.group_stats import Groups, grouped
from mmgrpo.maths.sequence_scores import SequenceScore, score
from mmgrpo.maths.terms import GROUP, TERMS, Loss, Term, log_ratio, ratio_of, term
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The groups of an update on this process, the input of a loss of groups.

    Attributes:
        score_PG: score of each member, with grad; 0 where there is none.
        reward_PG: the combined rewards; 0 where there is no member.
        advantage_PG: mean advantage over the member's kept decisions.
        length_PG: its number of kept decisions.
        present_PG: bool, whether there is such a member.
    """

    score_PG: Tensor
    reward_PG: Tensor
    advantage_PG: Tensor
    length_PG: Tensor
    present_PG: Tensor

    @property
    def count_P(self) -> Tensor:
        """Members of each group."""
        return self.present_PG.sum(1)

    def mean(self, value_PG: Tensor) -> Tensor:
        """The mean over a group's members; 0 without any.

        Shapes: (P, G) -> (P, 1).
        """
        present_value_PG = value_PG.where(self.present_PG, 0.0)
        return present_value_PG.sum(1, keepdim=True) / self.count_P[:, None].clamp(min=1)

    def centered(self, value_PG: Tensor) -> Tensor:
        """The difference of a value from the mean over its group's members; 0 where there is no member.

        Shapes: (P, G) -> (P, G).
        """
        return (value_PG - self.mean(value_PG)).where(self.present_PG, 0.0)


def group_term(name: str, loss_P: Callable[[Members], Tensor], scored: SequenceScore) -> Term:
    """The mean over the groups of the update of a loss of their members.

    Args:
        name: its key in the metrics.
        loss_P: the members of the groups -> (P,), with grad.
        scored: the score of a member.

    Returns:
        The term, which takes complete groups.
    """

    def loss(decisions: Decisions) -> Loss:
        rows_B = _rows(decisions)
        members = _members(decisions, rows_B, scored.of(decisions))
        value = loss_P(members).where(members.count_P > 0, 0.0).sum() / decisions.num_groups
        return Loss(value, _diagnostics(name, decisions, value))

    return Term(name=name, loss=loss, values=scored.values, couples=GROUP, active=_active)


def group_loss(
    *, score_by: str, against: str | None = None, check: Callable[..., Any] | None = None
) -> Callable[[Callable[Concatenate[Members, Numbers], Tensor]], Callable[..., Term]]:
    """A decorator: a function (members, *, numbers) -> loss_P becomes a factory of terms, as ``group_term``.

    Two numbers are added that define the score of a member.

    Args:
        score_by: default of the number ``score_by``, a name of ``SCORES``.
        against: default of the number ``against``, the view that ratios are taken to; None: there is no such number.
        check: raises ConfigError for settings that do not go together; called with those that it names.

    Returns:
        The decorator.
    """
    defaults = {"score_by": score_by} | ({} if against is None else {"against": against})
    further = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation="str")
        for name, default in defaults.items()
    ]

    def scored(score_by: str) -> SequenceScore:
        return score(score_by)

    def scored_against(score_by: str, against: str) -> SequenceScore:
        return score(score_by, against=against)

    def decorate(loss_P: Callable[Concatenate[Members, Numbers], Tensor]) -> Callable[..., Term]:
        record = partial(group_term, name=loss_P.__name__)
        of_members = scored if against is None else scored_against
        return factory(record, "loss_P", check=check, further=further, scored=of_members)(loss_P)

    return decorate


@TERMS.register
@group_loss(score_by="mean_log_ratio", against="old")
def centered_regression(members: Members, *, beta: float = 1.0, eps: float | None = None) -> Tensor:
    """Centered scores regressed on centered advantages.

    L = mean_i (beta (s_i - mean s) / w - (A_i - mean A))^2, w = 1, or with ``eps`` sg(std s) + eps.
    std is of the group's members, over n; sg = no gradient.

    Units: beta is advantage per unit of the score, with ``eps`` per standard deviation; eps in the score's units.
    Source: CRD of Flow-Factory (``trainers/crd.py``), with the fall of the prediction error against a snapshot as
        the score: the mean log-ratio where a log-probability is minus that error; with eps, Reg-GRPO of DeepVideo-R1,
        arXiv:2506.07464, sec. 3.2.
    """
    centered_PG = beta * members.centered(members.score_PG)
    if eps is not None:
        spread_P1 = members.mean(members.centered(members.score_PG.detach()).square()).sqrt()
        centered_PG = centered_PG / (spread_P1 + eps)
    return members.mean((centered_PG - members.centered(members.advantage_PG)).square())[:, 0]


def disco_P(members: Members, *, tau: float | None, right: float, logit_PG: Tensor | None = None) -> Tensor:
    """Losses of ``disco``, right members weighted by the softmax of logits, alike without any. Shapes: -> (P,)."""
    right_PG = (members.reward_PG > right) & members.present_PG
    wrong_PG = ~right_PG & members.present_PG
    both_P1 = right_PG.any(1, keepdim=True) & wrong_PG.any(1, keepdim=True)
    # a group without both kinds takes all of them: its loss is left out, and so must be non-finite values
    logit_PG = torch.zeros_like(members.score_PG) if logit_PG is None else logit_PG
    better_P = (_shares(logit_PG, right_PG | ~both_P1) * members.score_PG).sum(1)
    if tau is None:
        worse_P = (_shares(torch.zeros_like(logit_PG), wrong_PG | ~both_P1) * members.score_PG).sum(1)
    else:
        among_PG = wrong_PG | ~both_P1
        worse_P = tau * (members.score_PG / tau).masked_fill(~among_PG, -torch.inf).logsumexp(1)
        worse_P = worse_P - tau * among_PG.sum(1).log()
    return (worse_P - better_P).where(both_P1[:, 0], 0.0)


def _shares(logit_PG: Tensor, among_PG: Tensor) -> Tensor:
    """The softmax of the logits over some members."""
    return logit_PG.masked_fill(~among_PG, -torch.inf).softmax(1)


@TERMS.register
@term(couples=GROUP)
def kl_hinge(decisions: Decisions, *, delta: float, beta: float) -> Loss:
    """Nothing while a group stays near the policy that sampled; beyond delta, a pull that grows with the distance.

    L = sg([beta (KL - delta)]_+) KL, KL = mean over the group's kept decisions of exp(x) - 1 - x.
    x = logprob - old_logprob, sg = no gradient.

    Units: delta in nats per decision; beta is loss per square nat.
    Source: DisCO's constraint, arXiv:2505.12366, eq. 9, and its code. Deviation: KL over a group, where its code takes
        the batch, so that it does not matter which process holds which group.
    """
    keep_BT = decisions.mask_BT
    change_BT = log_ratio(decisions)
    distance_BT = (torch.expm1(change_BT) - change_BT).where(keep_BT, 0.0)
    groups = _groups(decisions)
    sum_P = groups.matrix(distance_BT.sum(1)).where(groups.valid(keep_BT.any(1)), 0.0).sum(1)
    count_P = groups.matrix(keep_BT.sum(1)).where(groups.valid(keep_BT.any(1)), 0).sum(1)
    kl_P = sum_P / count_P.clamp(min=1)
    pull_P = (beta * (kl_P - delta)).clamp(min=0).detach()
    value = (pull_P * kl_P).sum() / decisions.num_groups
    return Loss(value, Diagnostics(loss_sums={"kl_hinge": total(value)}))


def _members(decisions: Decisions, rows_B: Tensor, score_B: Tensor) -> Members:
    keep_BT, groups = decisions.mask_BT, _groups(decisions)
    present_PG = groups.valid(rows_B)
    assert decisions.reward_BT is not None
    reward_B = decisions.reward_BT[:, 0]
    advantage_B = decisions.advantage_BT.where(keep_BT, 0.0).sum(1) / keep_BT.sum(1).clamp(min=1)
    return Members(
        score_PG=groups.matrix(score_B).where(present_PG, 0.0),
        reward_PG=groups.matrix(reward_B).where(present_PG, 0.0),
        advantage_PG=groups.matrix(advantage_B.to(score_B)).where(present_PG, 0.0),
        length_PG=groups.matrix(keep_BT.sum(1)).where(present_PG, 0),
        present_PG=present_PG,
    )


def _rows(decisions: Decisions) -> Tensor:
    """The samples that are members: a decision of them is kept, and a reward applies."""
    if decisions.reward_BT is None:
        raise ConfigError("a loss of groups needs reward_BT: pass the combined reward of each sample")
    return decisions.mask_BT.any(1) & ~decisions.reward_BT[:, 0].isnan()


def _groups(decisions: Decisions) -> Groups:
    if decisions.group_BT is None:
        raise ConfigError("a loss of groups needs group_BT: give the decisions the groups of their samples")
    return grouped(decisions.group_BT[:, 0])


def _active(decisions: Decisions) -> Tensor:
    return decisions.mask_BT & _rows(decisions)[:, None]


def _diagnostics(name: str, decisions: Decisions, value: Tensor) -> Diagnostics:
    keep_BT = decisions.mask_BT
    log_ratio_BT = log_ratio(decisions).detach()
    excess_BT = (ratio_of(log_ratio_BT) - 1).where(keep_BT, 0.0).double()
    return Diagnostics(
        num_weighed=total(keep_BT),
        ratio_excess_sum=total(excess_BT),
        ratio_excess_square_sum=total(excess_BT.square()),
        log_ratio_abs_max=log_ratio_BT.abs().amax().double(),
        loss_sums={name: total(value)},
    )


def _check_preference(pairs: str) -> None:
    if pairs not in ("extremes", "all"):
        raise ConfigError(f"pairs must be extremes or all, got {pairs!r}")


@TERMS.register
@group_loss(score_by="sum_log_ratio", against="reference", check=_check_preference)
def preference(
    members: Members, *, beta: float = 0.1, pairs: str = "extremes", top: float | None = None, sharper: float = 1.0
) -> Tensor:
    """Better members' scores above worse ones', pair by pair.

    L = -mean over pairs of log sigmoid(c (s_better - s_worse)), c = beta sharper where r_better >= top, else beta.
    The pairs are a group's best and worst member, the first of equals (``extremes``), or every two of different rewards
    (``all``); it is 0 in groups of equal rewards.

    Units: beta is logits per nat (0.1); top is in the reward's units, null: no reward is the top.
    Raises: ConfigError for other pairs.
    Source: DPO, arXiv:2305.18290, eq. 7, on pairs sampled by the policy itself (online DPO, arXiv:2402.04792); with all
        pairs, the mean log-ratio and a larger beta at the top, TRPA, arXiv:2504.04524, and its code
        (XueruiSu/Trust-Region-Preference-Approximation, ``compute_pairwise_policy_loss``), except for its fallback for
        batches without a pair.
    """
    reward_PG, present_PG = members.reward_PG, members.present_PG
    better_PGG = reward_PG[:, :, None] > reward_PG[:, None, :]
    better_PGG = better_PGG & present_PG[:, :, None] & present_PG[:, None, :]
    if pairs == "extremes":
        best_P = reward_PG.where(present_PG, -torch.inf).argmax(1)
        worst_P = reward_PG.where(present_PG, torch.inf).argmin(1)
        best_PG, worst_PG = (torch.nn.functional.one_hot(each_P, reward_PG.shape[1]) for each_P in (best_P, worst_P))
        better_PGG = better_PGG & (best_PG[:, :, None] & worst_PG[:, None, :]).bool()
    margin_PGG = beta * (members.score_PG[:, :, None] - members.score_PG[:, None, :])
    if top is not None:
        margin_PGG = margin_PGG * torch.where(reward_PG >= top, sharper, 1.0)[:, :, None].to(margin_PGG)
    loss_PGG = -torch.nn.functional.logsigmoid(margin_PGG).where(better_PGG, 0.0)
    return loss_PGG.sum((1, 2)) / better_PGG.sum((1, 2)).clamp(min=1)


def optimality(advantage_BT: Tensor, *, limit: float) -> Tensor:
    """The advantage as a share of optimality: clip(A / (2 c) + 1 / 2, 0, 1).

    Shapes: (B, T) -> (B, T).   Source: DiffusionNFT, arXiv:2509.16117.
    """
    return (advantage_BT / (2 * limit) + 0.5).clamp(0, 1)


def group_weight(gain_BT: Tensor, mask_BT: Tensor, group_BT: Tensor | None, *, beta: float) -> Tensor:
    """sigmoid(beta mean_g gain) of each group and column, on its members.

    Source: DGPO, arXiv:2510.08425; TDM-R1, arXiv:2603.07700.
    Shapes: (B, T), bool (B, T), integer (B, T) -> (B, T).   Raises: ConfigError without groups.
    """
    if group_BT is None:
        raise ConfigError("a weight of groups needs group_BT: give the decisions the groups of their samples")
    groups = grouped(group_BT[:, 0])
    gain_TPG, count_TPG = groups.matrix(gain_BT.T), groups.valid(mask_BT.T)
    mean_TP1 = gain_TPG.where(count_TPG, 0.0).sum(-1, keepdim=True) / count_TPG.sum(-1, keepdim=True).clamp(min=1)
    return groups.rows((beta * mean_TP1).sigmoid().expand_as(gain_TPG)).T.to(gain_BT)
