"""LESS (low-entropy segments), arXiv:2512.00908.

Low-entropy passages are weighted by how many equally scored samples share them; passages shared by right and wrong
samples get weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members
from mmgrpo.system.lazy import torch
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(values=(ENTROPY,), tokens=True)
def sure_segments(
    feedback: Feedback, advantage_BT: Tensor, *, share: float = 0.8, least: int = 5, right: float = 0.5
) -> Tensor:
    """Confident passages count by the share of equally good samples that have them, and not at all if others have them
    too.

    A_t <- A_t n_s / n where H_t is at most the sample's entropy at ``share`` of its decisions; other decisions keep A.

    n is the members of the group that are right, or wrong, as this one is; n_s of them have the passage of t: at least
    ``least`` tokens in a row below that entropy, which another member's such passage contains completely, and of nested
    passages the shortest. n_s is 0 where members of both kinds have it, and 1 where there is no such passage.

    Units: share is dimensionless; least is in tokens; right in the reward's units.
    Source: LESS, arXiv:2512.00908, and its code (QWE-CXZ/LESS, recipe/less/revise_advantage.py). Deviation: a passage
        is searched in all members, where that code stops at the first other one that has it.
    """
    entropy_BT, factor_BT = feedback[ENTROPY].double(), torch.ones_like(advantage_BT)
    for rows in members(feedback):
        positions_by_row = [feedback.mask_BT[row].nonzero()[:, 0] for row in rows]
        entropies = [entropy_BT[row, positions] for row, positions in zip(rows, positions_by_row, strict=True)]
        limits = [_limit(entropy_N, share) for entropy_N in entropies]
        passages = [
            list(_passages(feedback.tokens[row, positions].tolist(), (entropy_N < limit).tolist(), least))
            for row, positions, entropy_N, limit in zip(rows, positions_by_row, entropies, limits, strict=True)
        ]
        is_right = (feedback.reward_B[rows] >= right).tolist()
        factors = [
            torch.ones_like(entropy_N).where(entropy_N > limit, 1 / is_right.count(kind))
            for entropy_N, limit, kind in zip(entropies, limits, is_right, strict=True)
        ]
        _share_out(factors, passages, is_right)
        for row, positions, factor_N in zip(rows, positions_by_row, factors, strict=True):
            factor_BT[row, positions] = factor_N.to(factor_BT)
    return advantage_BT * factor_BT


@dataclass(frozen=True, slots=True)
class _Passage:
    """Tokens in a row, as text that can be searched, and where they begin among the kept decisions of a member."""

    text: str
    start: int

    @property
    def length(self) -> int:
        return self.text.count(" ") - 1


def _share_out(factors: Sequence[Tensor], passages: Sequence[Sequence[_Passage]], is_right: Sequence[bool]) -> None:
    """Raises the factors of passages that members of one kind share, then clears those of both kinds."""
    spans_by_text = [list(_holders(text, passages)) for text in _shared(passages)]
    for spans in sorted(spans_by_text, key=lambda spans: len({is_right[member] for member, _ in spans})):
        kinds = {is_right[member] for member, _ in spans}
        holders = len({member for member, _ in spans})
        for member, span in spans:
            counts = holders / is_right.count(is_right[member])
            factors[member][span] = 0.0 if len(kinds) == 2 else factors[member][span].clamp(min=counts)


def _limit(entropy_N: Tensor, share: float) -> Tensor:
    return entropy_N.sort().values[min(round(len(entropy_N) * share), len(entropy_N) - 1)]


def _passages(tokens: Sequence[int], is_low: Sequence[bool], least: int) -> Iterator[_Passage]:
    start = 0
    for end in range(len(tokens) + 1):
        if end == len(tokens) or not is_low[end]:
            if end - start >= least:
                yield _Passage(" " + " ".join(map(str, tokens[start:end])) + " ", start)
            start = end + 1


def _shared(passages: Sequence[Sequence[_Passage]]) -> list[str]:
    """The passages that another member's passage holds, less those that hold a shorter such one."""
    texts = ["|".join(passage.text for passage in member_passages) for member_passages in passages]
    shared = {
        passage.text
        for member, member_passages in enumerate(passages)
        for passage in member_passages
        if any(passage.text in text for other, text in enumerate(texts) if other != member)
    }
    shortest: list[str] = []
    for text in sorted(shared, key=lambda text: (len(text), text)):
        if not any(shorter in text for shorter in shortest):
            shortest.append(text)
    return shortest


def _holders(text: str, passages: Sequence[Sequence[_Passage]]) -> Iterator[tuple[int, slice]]:
    """The members that have it, each with the decisions that wrote it, the first of several in a passage."""
    length = text.count(" ") - 1
    for member, member_passages in enumerate(passages):
        for passage in member_passages:
            if (at := passage.text.find(text)) >= 0:
                start = passage.start + passage.text.count(" ", 0, at)
                yield member, slice(start, start + length)
