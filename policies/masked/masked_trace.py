"""The trace of masked rows: their tokens, and the maskings under which these are scored.

Axes: B rows, L positions of an answer, n positions of one pass, T decisions.
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
    """One masking of every row, and the tokens that it scores.

    Attributes:
        condition_B: index of each row's condition in the trace.
        masked_BL: bool, the tokens that the model does not see.
        position_Bn: the positions to score.
        scored_Bn: bool, which of these positions count.
        weight: of their log-probabilities.
    """

    condition_B: Tensor
    masked_BL: Tensor
    position_Bn: Tensor
    scored_Bn: Tensor
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSampling:
    """The token distribution of sampling and scoring.

    Attributes:
        temperature: divides the logits.
        guidance_scale: of classifier-free guidance.
    """

    temperature: float
    guidance_scale: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MaskedTrace:
    """The trace of a rollout of masked rows.

    Attributes:
        conditions: the prompts, and partly masked ones.
        token_BL: the answers.
        passes: in order; a row's decisions are their scored tokens.
        pooled: reduction of a pass's log-probabilities to one decision; None: each is one.
        sampling: the token distribution.
    """

    conditions: Sequence[Condition]
    token_BL: Tensor
    passes: Sequence[MaskedPass]
    pooled: Literal["mean", "sum"] | None
    sampling: TokenSampling

    @property
    def columns(self) -> list[range]:
        """The decisions of each pass."""
        widths = [1 if self.pooled else masked_pass.position_Bn.shape[1] for masked_pass in self.passes]
        ends = torch.tensor(widths).cumsum(0).tolist()
        return [range(end - width, end) for end, width in zip(ends, widths, strict=True)]

    @property
    def num_decisions(self) -> int:
        """T."""
        return self.columns[-1].stop

    def token_BT(self) -> Tensor | None:
        """The token of each decision, -1 without one; None if a decision has several tokens.

        A pass's tokens are in the order of its positions; a masking's term of a bound is no token.
        """
        single = all(masked_pass.position_Bn.shape[1] == 1 and masked_pass.weight == 1 for masked_pass in self.passes)
        if self.pooled and not single:
            return None
        parts = [
            self.token_BL.gather(1, masked_pass.position_Bn).where(masked_pass.scored_Bn, -1)
            for masked_pass in self.passes
        ]
        return torch.cat(parts, dim=1)

    def mask_BT(self) -> Tensor:
        """Bool, the decisions of each row."""
        parts = [masked_pass.scored_Bn for masked_pass in self.passes]
        return torch.cat([part.any(1, keepdim=True) if self.pooled else part for part in parts], dim=1)

    def segment_BT(self) -> Tensor:
        """The index of each decision's pass."""
        widths = torch.tensor([len(columns) for columns in self.columns])
        return torch.arange(len(self.passes)).repeat_interleave(widths).expand(len(self.token_BL), -1)

    def state_BT(self) -> Tensor:
        """Equal if the model's input is equal: the condition, and the unmasked tokens with their positions."""
        ids: dict[tuple[int, bytes], int] = {}
        state_ids = []
        for masked_pass in self.passes:
            visible_BL = self.token_BL.masked_fill(masked_pass.masked_BL, -1)
            keys = zip(masked_pass.condition_B.tolist(), visible_BL, strict=True)
            state_ids.append(
                [ids.setdefault((condition, visible_L.numpy().tobytes()), len(ids)) for condition, visible_L in keys]
            )
        return torch.tensor(state_ids).T.gather(1, self.segment_BT())


@dataclass(frozen=True, slots=True, eq=False)
class MaskedTraces:
    """Rows with decisions of several kinds.

    Attributes:
        parts: rows of the rollout and their trace, disjoint.
    """

    parts: Sequence[tuple[Tensor, MaskedTrace]]


def unmasking_passes(condition_B: Tensor, order_BL: Tensor, counts: Sequence[int]) -> list[MaskedPass]:
    """The states in which a sampler unmasked tokens, and the tokens that it unmasked.

    Args:
        condition_B: index of each row's condition.
        order_BL: the positions in unmasking order.
        counts: positions per step.

    Returns:
        One pass per step.
    """
    passes, masked_BL, num_unmasked = [], torch.ones_like(order_BL, dtype=torch.bool), 0
    for count in counts:
        position_Bn = order_BL[:, num_unmasked : num_unmasked + count]
        scored_Bn = torch.ones_like(position_Bn, dtype=torch.bool)
        passes.append(
            MaskedPass(condition_B=condition_B, masked_BL=masked_BL, position_Bn=position_Bn, scored_Bn=scored_Bn)
        )
        masked_BL = masked_BL.scatter(1, position_Bn, value=False)
        num_unmasked += count
    return passes
