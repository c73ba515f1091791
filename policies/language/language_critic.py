"""A language model as a critic: a scalar head on its last hidden states in place of its logits.

Of a policy of texts it values every state; of another policy, such as a denoiser, the prompt alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from mmgrpo.errors import ConfigError
from mmgrpo.policy import Critic
from mmgrpo.types import Evaluation, Prompt, Rollout
from mmgrpo.values import VALUE, Value

from .text_trace import TextTrace

Rows = Sequence[int] | Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HiddenStates:
    """Last hidden states of some rows.

    Attributes:
        rows: the N rows.
        states_NTD: the states that predict each of their first T tokens.
        num_forwards: number of rows that ran.
    """

    rows: Sequence[int]
    states_NTD: Tensor
    num_forwards: int


@dataclass(frozen=True, slots=True, eq=False)
class PromptTrace:
    """Rows of a policy whose decisions the model does not read: its prompt for each of them."""

    prompts: Sequence[Prompt]


@final
class LanguageCritic(Critic):
    """A value model: V = w h + b, of the hidden state h that predicts the next token.

    The value of a prompt, of which all decisions of a row that does not consist of its tokens have the same, is that of
    the state before its first answered token.
    """

    def __init__(
        self,
        states: Callable[[Rollout, Rows], Iterator[HiddenStates]],
        prompt_states: Callable[[Sequence[Prompt]], Iterator[tuple[Sequence[int], Tensor]]],
        override_prompts: Callable[[Rollout, Sequence[Prompt]], Rollout],
        *,
        body: Sequence[nn.Parameter],
        width: int,
        device: torch.device,
    ) -> None:
        """Starts with w = 0 and b = 0.

        Args:
            states: streams the model's last hidden states.
            prompt_states: streams the last hidden state of some prompts, and which these are: indices, (N, D).
            override_prompts: makes rows of a policy of texts into rows of the model.
            body: trained parameters of the model.
            width: D.
            device: device of the model.
        """
        self._states, self._prompt_states, self._body = states, prompt_states, list(body)
        self._override_prompts = override_prompts
        self._weight_D = nn.Parameter(torch.zeros(width, device=device))
        self._bias_1 = nn.Parameter(torch.zeros(1, device=device))

    @property
    def trainable(self) -> list[nn.Parameter]:
        """Parameters of the model, then w and b; float32."""
        return [*self._body, self._weight_D, self._bias_1]

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same tokens, for a model with the same tokenizer; of other policies the prompts alone."""
        if not isinstance(rollout.trace, TextTrace):
            return replace(rollout, trace=PromptTrace(prompts))
        return self._override_prompts(rollout, prompts)

    def evaluate(self, rollout: Rollout, rows: Rows = None, *, values: Collection[Value] = ()) -> Iterator[Evaluation]:
        """One slice per batch of rows. Raises ConfigError for any value but ``VALUE``."""
        if wrong := [str(value) for value in values if value != VALUE]:
            raise ConfigError(f"a critic gives {VALUE} and no {', '.join(wrong)}")
        states = self._states(rollout, rows)
        if isinstance(rollout.trace, PromptTrace):
            requested = range(len(rollout.samples)) if rows is None else [int(row) for row in rows]
            states = self._states_of_prompts(rollout.trace.prompts, requested, rollout.shape[1])
        for part in states:
            value_NT = part.states_NTD.float() @ self._weight_D + self._bias_1
            yield Evaluation(
                columns=range(value_NT.shape[1]),
                logprob_BT=torch.zeros_like(value_NT),
                values={VALUE: value_NT},
                rows=torch.tensor(part.rows),
                num_forwards=part.num_forwards,
            )

    def _states_of_prompts(
        self, prompts: Sequence[Prompt], rows: Sequence[int], num_decisions: int
    ) -> Iterator[HiddenStates]:
        """The state of each row's prompt at all of its decisions; equal prompts run once."""
        rows_of: dict[tuple[object, ...], list[int]] = {}
        for row in rows:
            rows_of.setdefault(_content(prompts[row]), []).append(row)
        groups = list(rows_of.values())
        for batch, states_ND in self._prompt_states([prompts[members[0]] for members in groups]):
            owner_of = {row: n for n, k in enumerate(batch) for row in groups[k]}
            states_NTD = states_ND[list(owner_of.values()), None].expand(-1, num_decisions, -1)
            yield HiddenStates(rows=list(owner_of), states_NTD=states_NTD, num_forwards=len(batch))


def _content(prompt: Prompt) -> tuple[object, ...]:
    """What the model reads of a prompt, media by their identity."""
    media = (*prompt.images, *prompt.videos, *prompt.audios)
    return prompt.text, repr(prompt.messages), *map(id, media)
