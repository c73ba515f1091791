"""A language model as a critic: a scalar head on its last hidden states in place of its logits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from mmgrpo.errors import ConfigError
from mmgrpo.policy import Critic
from mmgrpo.types import Evaluation, Prompt, Rollout
from mmgrpo.values import VALUE, Value

Rows = Sequence[int] | Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HiddenStates:
    """Last hidden states of some rows.

    Attributes:
        rows: the N rows.
        states_NTD: the states that predict each of their first T tokens.
    """

    rows: Sequence[int]
    states_NTD: Tensor


@final
class LanguageCritic(Critic):
    """A value model: V = w h + b, of the hidden state h that predicts the next token."""

    def __init__(
        self,
        states: Callable[[Rollout, Rows], Iterator[HiddenStates]],
        override_prompts: Callable[[Rollout, Sequence[Prompt]], Rollout],
        *,
        body: Sequence[nn.Parameter],
        width: int,
        device: torch.device,
    ) -> None:
        """Starts with w = 0 and b = 0.

        Args:
            states: streams the model's last hidden states.
            override_prompts: makes rows of a policy into rows of the model.
            body: trained parameters of the model.
            width: D.
            device: device of the model.
        """
        self._states, self._override_prompts, self._body = states, override_prompts, list(body)
        self._weight_D = nn.Parameter(torch.zeros(width, device=device))
        self._bias_1 = nn.Parameter(torch.zeros(1, device=device))

    @property
    def trainable(self) -> list[nn.Parameter]:
        """Parameters of the model, then w and b; float32."""
        return [*self._body, self._weight_D, self._bias_1]

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same tokens, for a model with the same tokenizer."""
        return self._override_prompts(rollout, prompts)

    def evaluate(self, rollout: Rollout, rows: Rows = None, *, values: Collection[Value] = ()) -> Iterator[Evaluation]:
        """One slice per batch of rows. Raises ConfigError for any value but ``VALUE``."""
        if wrong := [str(value) for value in values if value != VALUE]:
            raise ConfigError(f"a critic gives {VALUE} and no {', '.join(wrong)}")
        for part in self._states(rollout, rows):
            value_NT = part.states_NTD.float() @ self._weight_D + self._bias_1
            yield Evaluation(
                columns=range(value_NT.shape[1]),
                logprob_BT=torch.zeros_like(value_NT),
                values={VALUE: value_NT},
                rows=torch.tensor(part.rows),
                num_forwards=len(part.rows),
            )
