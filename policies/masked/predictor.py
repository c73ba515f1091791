"""What a masked policy asks of a model: how likely every token is at every place, given a prompt and what is shown.

Axes: N rows, L places of an answer, V tokens or codes that may stand there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mmgrpo.types import Example, Prompt, Sample

from ..adapter_files import AdapterFiles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Condition:
    """A prompt as the model takes it.

    Attributes:
        prompt: what was asked.
        inputs: the model's own tensors, each with a leading dimension of 1.
        kind: rows of one kind run together.
    """

    prompt: Prompt
    inputs: Mapping[str, Tensor]
    kind: Hashable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictorSpec:
    """What a model is, as far as the policy has to know.

    Attributes:
        modules: what can be trained, by component name.
        targets: the linear layers that carry adapters where the settings do not say.
        files: how adapters are kept on disk.
        frozen: the components that are not trained.
        beside: what a checkpoint holds beside the weights, by ``save_pretrained``; None: nothing.
        length: L.
        never: ids below V that are not drawn.
        num_steps: reveals of a sample where the settings do not say.
        schedule: how many places each shows, likewise.
        order_noise: the noise of the choice, likewise.
    """

    modules: Mapping[str, nn.Module]
    targets: Sequence[str]
    files: AdapterFiles
    frozen: Sequence[nn.Module]
    beside: Any
    length: int
    never: Tensor
    num_steps: int
    schedule: str
    order_noise: tuple[float, float]


class Predictor(Protocol):
    """A model of one library.

    Attributes:
        facts: what it is.
    """

    facts: PredictorSpec

    def condition(self, prompt: Prompt) -> Condition:
        """The prompt's tensors. Raises DataError for what the model cannot be shown."""
        ...

    def hidden(self, condition: Condition, share: float, generator: torch.Generator) -> Condition:
        """The condition with a share of its tokens hidden. Raises ConfigError for one that is never hidden in part."""
        ...

    def logits(
        self,
        modules: Mapping[str, nn.Module],
        conditions: Sequence[Condition],
        token_NL: Tensor,
        hidden_NL: Tensor,
        *,
        guidance_scale: float,
    ) -> Tensor:
        """What the model says of every place, in its own dtype, with grad where grad is enabled.

        Args:
            modules: those to ask, by component name.
            conditions: N of one kind.
            token_NL: the answers, on the CPU; what is hidden of them does not matter.
            hidden_NL: bool, the places to predict.
            guidance_scale: 1 asks the model once.

        Returns:
            (N, L, V), guidance included.
        """
        ...

    def samples(self, bare: Sequence[Sample], token_NL: Tensor) -> list[Sample]:
        """The bare samples with their answers, as tokens and as what they say or show."""
        ...

    def until_end(self, token_NL: Tensor) -> Tensor:
        """Bool (N, L), the tokens up to the end of each answer."""
        ...

    def target(self, example: Example) -> Tensor:
        """(L,) the answer that an example teaches. Raises DataError for one of another kind."""
        ...
