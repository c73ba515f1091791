"""What a masked policy asks of a model: how likely every token is at every place, given a prompt and what is shown.

Axes: N rows, L places of an answer, V tokens or codes that may stand there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from mmgrpo.policies.weights import AdapterFiles
from mmgrpo.types import Example, Prompt, Sample


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


class Predictor(Protocol):
    """A model of one library.

    Attributes:
        modules: what can be trained, by component name.
        frozen: the components that are not.
        targets: the linear layers that carry adapters where the settings do not say.
        files: how adapters are kept on disk.
        length: L.
        num_steps: reveals of a sample where the settings do not say.
        schedule: the schedule, likewise.
        order_noise: the noise, likewise.
        never: ids below V that are not drawn.
    """

    modules: Mapping[str, nn.Module]
    frozen: Sequence[nn.Module]
    targets: Sequence[str]
    files: AdapterFiles
    length: int
    num_steps: int
    schedule: str
    order_noise: tuple[float, float]
    never: Tensor

    def condition(self, prompt: Prompt) -> Condition:
        """The prompt's tensors. Raises DataError for what the model cannot be shown."""
        ...

    def hidden(self, condition: Condition, uniform: Tensor, share: float) -> Condition:
        """The condition with the tokens hidden whose number in [0, 1) is below the share.

        Raises: ConfigError for a prompt that cannot be hidden in part.
        """
        ...

    def num_prompt_tokens(self, condition: Condition) -> int:
        """How many numbers ``hidden`` takes."""
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
        """(N, L, V) in the model's dtype, with grad where grad is enabled; guidance is in them.

        Args:
            modules: those to ask, by component name.
            conditions: N of one kind.
            token_NL: the answers, on the CPU; what is hidden of them does not matter.
            hidden_NL: bool, the places to predict.
            guidance_scale: 1 asks the model once.
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

    def save_beside(self, directory: Path) -> None:
        """Writes what a checkpoint holds beside the weights."""
        ...
