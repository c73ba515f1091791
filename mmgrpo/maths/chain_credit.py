"""Credit of rows that are drawn after each other or to be imitated, and of answers that their reasoning makes likely.

Axes: B samples, T decisions, S scopes of a sample.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Estimator, Feedback, row_mean
from mmgrpo.maths.kin import centred_among, standardised_among
from mmgrpo.system.lazy import torch
from mmgrpo.values import of_view

if TYPE_CHECKING:
    from torch import Tensor


def along_chain(*, shared: bool = False) -> Estimator:
    """A row has the advantage of what was drawn after it: the mean over these rows; one that ends its chain its own.

    So the rewards of a chain are those of its ends, which alone they have to apply to, and every row of it trains. With
    ``shared`` the advantage is divided by the kept decisions of the whole chain and by the chains of its group: under
    the aggregate ``group_sum`` the loss is the mean over groups, of the mean over chains, of the mean over their
    decisions.

    A chain is a row with all that was drawn after it, at any remove, within its group.

    Units: those of the advantage; with ``shared`` per decision.
    Source: Delethink, arXiv:2510.06557, and its code (McGill-NLP/the-markovian-thinker, ``core_algos.py``,
        ``seq-mean-token-norm-trace-length`` with ``use_flat_batch_correction_ratio``).
    """
    return Estimator(assign=partial(_along_chain, shared=shared), unscored=True)


def _along_chain(feedback: Feedback, advantage_BT: Tensor, *, shared: bool) -> Tensor:
    if feedback.after_B is None:
        chain_B = torch.arange(len(feedback.group_B))
    else:
        after_B = _within_group(feedback)
        chain_B = begun_by(after_B)
        advantage_BT = _from_ends(advantage_BT, after_B)
    if not shared:
        return advantage_BT
    length_B = torch.zeros(len(chain_B), dtype=torch.long).index_add(0, chain_B, feedback.length_B)[chain_B]
    begins_B = (chain_B == torch.arange(len(chain_B))).long()
    groups = feedback.groups
    chains_B = groups.rows(
        groups.matrix(begins_B).where(groups.present_PG, 0).sum(1, keepdim=True).expand(groups.present_PG.shape)
    )
    return advantage_BT / (length_B.clamp(min=1) * chains_B)[:, None]


def _within_group(feedback: Feedback) -> Tensor:
    """(B,) the row of its own group that each was drawn after, -1 for none."""
    after_B = feedback.after_B
    assert after_B is not None
    return after_B.where((after_B >= 0) & (feedback.group_B[after_B] == feedback.group_B), -1)


def begun_by(after_B: Tensor) -> Tensor:
    """The row that the chain of each row begins with: -1, 0, 0, 2 and -1 give 0, 0, 0, 0 and 4.

    Shapes: integers (B,), rows before each, -1 for none -> (B,).
    """
    begun_B = torch.arange(len(after_B))
    for row, before in enumerate(after_B.tolist()):
        if before >= 0:
            begun_B[row] = begun_B[before]
    return begun_B


def _from_ends(advantage_BT: Tensor, after_B: Tensor) -> Tensor:
    """Advantages handed back from the last rows of chains; a row stands behind the one that it was drawn after."""
    found_BT = advantage_BT.clone()
    for row in reversed(range(len(after_B))):
        later = (after_B == row).nonzero().flatten()
        if len(later):
            found_BT[row] = found_BT[later, :1].mean()
    return found_BT


def imitated(*, reward: str, weight: float = 1.0) -> Estimator:
    """Rows that a single reward applies to are a mean of their own beside the others, weighed by what it says of them.

    A = weight v n / sum v on these rows, v what the reward says of each and n how many others the job trains; the
    others keep theirs. Under ``sample_mean``, with the surrogate ``policy_gradient`` or at a ratio of 1, the gradient
    is that of n / N (L + weight M): N all rows, L the loss of the others alone, M the mean over these rows, by v, of
    minus the mean log-probability of their decisions.

    Units: weight is that of M beside L; v is 0 or more.
    Source: what the policy wrote and what proved of use is learnt by its likelihood beside GRPO: MEL, arXiv:2602.10224,
        eq. 9 and 10; ExPO, arXiv:2507.02834.
    """
    return Estimator(assign=partial(_imitated, reward=reward, weight=weight))


def _imitated(feedback: Feedback, advantage_BT: Tensor, *, reward: str, weight: float) -> Tensor:
    said, trains_B = feedback.reward(reward), feedback.length_B > 0
    own_B = said.valid_B & trains_B
    value_B = said.value_B.where(own_B, 0.0)
    others, total = feedback.summed(torch.stack([(trains_B & ~own_B).sum().double(), value_B.sum().double()]))
    share_B1 = (weight * value_B * others / total if total > 0 else value_B)[:, None].to(advantage_BT)
    return share_B1.expand_as(advantage_BT).where(own_B[:, None], advantage_BT)


def likely_answers(
    *,
    view: str,
    of: str,
    part: str,
    strength: float = 0.5,
    margin: float = 0.01,
    ceiling: float = 0.95,
    eps: float = 1e-4,
) -> Estimator:
    """A bonus for right samples whose reasoning makes their answer likely in a view; advantages are formed anew with
    it.

    A = (r + b - mean) / (std + eps) over the group, sample std, with b_i = ``strength`` a_i where the reward ``of``
    says that the sample is right, a_i > 0.1 and at least the group's mean; and p_i, the geometric mean of the view's
    probabilities over the decisions that the reward ``part`` marks, cut at ``ceiling``, is at least the mean over the
    right ones less ``margin``. A sample without such decisions has no bonus; groups of equal numbers earn nothing.

    Units: any reward scale -> standard deviations; eps in the reward's units.
    Raises: ConfigError for numbers out of range.
    Source: GRPO-CARE, arXiv:2506.16141, and its code (TencentARC/GRPO-CARE, ``grpo_trainer_ref_ema.py``).
    """
    if strength < 0 or margin < 0 or not 0 < ceiling <= 1:
        raise ConfigError(
            "likely_answers needs strength >= 0, margin >= 0 and ceiling in (0, 1], got "
            f"{strength}, {margin} and {ceiling}"
        )
    assign = partial(
        _likely_answers, view=view, of=of, part=part, strength=strength, margin=margin, ceiling=ceiling, eps=eps
    )
    return Estimator(assign=assign, values=(of_view(view),), parts=(part,))


def _likely_answers(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    view: str,
    of: str,
    part: str,
    strength: float,
    margin: float,
    ceiling: float,
    eps: float,
) -> Tensor:
    answer_BT = feedback.mask_BT & feedback.seen(view) & (feedback.scopes(part).scope_BT >= 0)
    likely_B = row_mean(feedback[of_view(view)], answer_BT).double().exp().clamp(max=ceiling)
    given = feedback.reward(of)
    known_B = feedback.valid_B & given.valid_B & answer_BT.any(1)
    right_B = known_B & (given.value_B > 0.1)
    right_B &= centred_among(given.value_B.where(given.valid_B, torch.nan), feedback.group_B) >= 0
    above_B = centred_among(likely_B.where(right_B, torch.nan), feedback.group_B)
    bonus_B = (strength * given.value_B).where(right_B & (above_B >= -margin), 0.0)
    reward_B = (feedback.reward_B + bonus_B).where(feedback.valid_B, torch.nan)
    return standardised_among(reward_B, feedback.group_B, eps=eps).float()[:, None].expand(advantage_BT.shape)
