"""The record of masked rows: their tokens, and under which maskings these are asked for.

Axes: B rows, L places of an answer, n decisions' places of one look, T decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .predictor import Condition


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedPass:
    """One masking of every row, and the tokens asked for under it.

    Attributes:
        condition_B: which of the trace's conditions each row has.
        hidden_BL: bool, what the model does not see.
        place_Bn: the places asked for.
        asked_Bn: bool, those that are there to be asked for.
        weight: of their log-probabilities.
    """

    condition_B: Tensor
    hidden_BL: Tensor
    place_Bn: Tensor
    asked_Bn: Tensor
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSampling:
    """The distribution that tokens are drawn from and scored by.

    Attributes:
        temperature: divides the logits.
        guidance_scale: of the guidance.
    """

    temperature: float
    guidance_scale: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedTrace:
    """What a rollout of masked rows is scored from.

    Attributes:
        conditions: the prompts, and those of which a part is hidden.
        token_BL: the answers.
        looks: one after the other; a row's decisions are what they ask for.
        pooled: what a look's log-probabilities come to as one decision; None: each is one.
        drawing: the distribution.
    """

    conditions: Sequence[Condition]
    token_BL: Tensor
    looks: Sequence[MaskedPass]
    pooled: Literal["mean", "sum"] | None
    drawing: TokenSampling

    @property
    def columns(self) -> list[range]:
        """The decisions of each look."""
        widths = [1 if self.pooled else look.place_Bn.shape[1] for look in self.looks]
        ends = torch.tensor(widths).cumsum(0).tolist()
        return [range(end - width, end) for end, width in zip(ends, widths, strict=True)]

    @property
    def num_decisions(self) -> int:
        """T."""
        return self.columns[-1].stop

    def token_BT(self) -> Tensor | None:
        """The token of each decision, -1 where there is none; None where a decision is of several tokens.

        A look's tokens are in the order of its places; a sum that a masking adds to a bound is no token.
        """
        single = all(look.place_Bn.shape[1] == 1 and look.weight == 1 for look in self.looks)
        if self.pooled and not single:
            return None
        parts = [self.token_BL.gather(1, look.place_Bn).where(look.asked_Bn, -1) for look in self.looks]
        return torch.cat(parts, dim=1)

    def mask_BT(self) -> Tensor:
        """Bool, the decisions there are."""
        parts = [look.asked_Bn for look in self.looks]
        return torch.cat([part.any(1, keepdim=True) if self.pooled else part for part in parts], dim=1)

    def segment_BT(self) -> Tensor:
        """The look that each decision is of."""
        widths = torch.tensor([len(columns) for columns in self.columns])
        return torch.arange(len(self.looks)).repeat_interleave(widths).expand(len(self.token_BL), -1)

    def state_BT(self) -> Tensor:
        """Equal where the model sees the same: the condition, and the same tokens at the same places."""
        ids: dict[tuple[int, bytes], int] = {}
        found = []
        for look in self.looks:
            seen_BL = self.token_BL.masked_fill(look.hidden_BL, -1)
            keys = zip(look.condition_B.tolist(), seen_BL, strict=True)
            found.append([ids.setdefault((place, seen_L.numpy().tobytes()), len(ids)) for place, seen_L in keys])
        return torch.tensor(found).T.gather(1, self.segment_BT())


@dataclass(frozen=True, slots=True, eq=False)
class MaskedTraces:
    """Rows whose decisions are of several kinds.

    Attributes:
        parts: rows of the rollout and their trace; no row is in two.
    """

    parts: Sequence[tuple[Tensor, MaskedTrace]]


def unmasking_passes(condition_B: Tensor, order_BL: Tensor, counts: Sequence[int]) -> list[MaskedPass]:
    """The states that a sampler revealed in, and what it showed there.

    Args:
        condition_B: which condition each row has.
        order_BL: the places in the order that they were shown in.
        counts: how many each step showed.

    Returns:
        A look for each step.
    """
    found, hidden_BL, shown = [], torch.ones_like(order_BL, dtype=torch.bool), 0
    for count in counts:
        place_Bn = order_BL[:, shown : shown + count]
        asked_Bn = torch.ones_like(place_Bn, dtype=torch.bool)
        found.append(MaskedPass(condition_B=condition_B, hidden_BL=hidden_BL, place_Bn=place_Bn, asked_Bn=asked_Bn))
        hidden_BL = hidden_BL.scatter(1, place_Bn, value=False)
        shown += count
    return found
