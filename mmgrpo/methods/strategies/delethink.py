"""Delethink, arXiv:2510.06557.

Reasoning is split into chunks that continue each other, and every chunk has the advantage of its chain's end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mmgrpo.data.history import NOTHING, History, prompt_template
from mmgrpo.data.prompt_templates import PROMPT_TEMPLATES, require_text_of
from mmgrpo.errors import ConfigError
from mmgrpo.maths.aggregates import AGGREGATES, Totals
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch
from mmgrpo.types import Prompt

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(unscored=True)
def along_chain(feedback: Feedback, advantage_BT: Tensor, *, shared: bool = False) -> Tensor:
    """A row has the mean advantage of the rows sampled after it; one that ends its chain keeps its own.

    So the rewards of a chain are those of its ends, and need apply only to them, and every row of it trains. With
    ``shared`` the advantage is divided by the kept decisions of the complete chain and by the chains of its group:
    under the aggregate ``group_sum`` the loss is the mean over groups, of the mean over chains, of the mean over their
    decisions.

    A chain is a row with all rows sampled after it, directly or indirectly, within its group.

    Units: those of the advantage; with ``shared`` per decision.
    Source: Delethink, arXiv:2510.06557, and its code (McGill-NLP/the-markovian-thinker, ``core_algos.py``,
        ``seq-mean-token-norm-trace-length`` with ``use_flat_batch_correction_ratio``).
    """
    if feedback.after_B is None:
        chain_B = torch.arange(len(feedback.group_B))
    else:
        after_B = _within_group(feedback)
        chain_B = begun_by(after_B)
        advantage_BT = _from_ends(advantage_BT, feedback.mask_BT, after_B)
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
    """(B,) the row of its group that each was sampled after, -1 for none."""
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


def _from_ends(advantage_BT: Tensor, mask_BT: Tensor, after_B: Tensor) -> Tensor:
    """Advantages passed back from the last rows of chains; a row is after the one that it was sampled after.

    The advantage of a row is that of its first kept decision.
    """
    credit_BT, first_B = advantage_BT.clone(), mask_BT.int().argmax(1)
    for row in reversed(range(len(after_B))):
        later = (after_B == row).nonzero().flatten()
        if len(later):
            credit_BT[row] = credit_BT[later, first_B[later]].mean()
    return credit_BT


@AGGREGATES.register
def group_sum(mask_BT: Tensor, totals: Totals) -> Tensor:
    """The mean over groups of the sum over all their decisions.

    w = m / num_groups. Estimators that share an advantage out over the decisions of a group (``along_chain``) go with
    it.

    Shapes: bool (B, T) -> (B, T).   Units: 1 / groups.
    Source: Delethink's mean over trajectories of several rows, arXiv:2510.06557, is this with advantages over their
        lengths.
    """
    return mask_BT / max(totals.num_groups, 1)


def _check_carried_over(tail: int, head: int) -> None:
    if tail < 1 or head < 0:
        raise ConfigError(f"carried_over needs tail >= 1 and head >= 0, got {tail} and {head}")


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_carried_over)
def carried_over(prompt: Prompt, member: int, history: History = NOTHING, *, tail: int, head: int = 0) -> Prompt | None:
    """The prompt, with the beginning and the end of a cut-off answer as the beginning of the new answer.

    The first ``head`` and the last ``tail`` of its tokens, including its forced ones; all of a shorter one. They are
    never trained, and inserted as text, which the tokenizer may split otherwise.

    Units: tokens.   Raises: ConfigError for numbers that keep no token.
    Source: Delethink, arXiv:2510.06557, and its code (McGill-NLP/the-markovian-thinker, ``delethink_trimmers.py``).
    """
    del member
    if not history.samples:
        return None
    if not history.ends:
        raise ConfigError(
            "carried_over counts tokens of a text, which this policy does not tell: use another prompt template"
        )
    text, ends = require_text_of(history.samples[0]), history.ends[0]
    if len(ends) <= head + tail:
        return replace(prompt, prefix=text)
    return replace(prompt, prefix=text[: ends[head - 1] if head else 0] + text[ends[len(ends) - tail - 1] :])
