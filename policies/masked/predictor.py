"""The interface of masked models: logits of every token at every position, from a prompt and the unmasked tokens.

Axes: N rows, L positions of an answer, V tokens or codes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mmgrpo.types import Example, Prompt, Sample

from ..adapter_formats import AdapterFiles


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Condition:
    """An encoded prompt.

    Attributes:
        prompt: the prompt.
        inputs: the model's tensors, each with a leading dimension of 1.
        kind: batch key; rows of one kind can share a batch.
    """

    prompt: Prompt
    inputs: Mapping[str, Tensor]
    kind: Hashable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PredictorSpec:
    """Properties of a model that the policy needs.

    Attributes:
        modules: the trainable modules, by component name.
        targets: default LoRA targets.
        files: file format of adapters.
        frozen: the frozen components.
        extra: saved with checkpoints by ``save_pretrained`` (a tokenizer); None: nothing.
        length: L.
        suppressed_ids: ids below V that are never sampled.
        num_steps: default number of unmasking steps of a sample.
        schedule: default schedule of the number of positions per step.
        order_noise: default noise of the selection.
    """

    modules: Mapping[str, nn.Module]
    targets: Sequence[str]
    files: AdapterFiles
    frozen: Sequence[nn.Module]
    extra: Any
    length: int
    suppressed_ids: Tensor
    num_steps: int
    schedule: str
    order_noise: tuple[float, float]


class Predictor(Protocol):
    """A model of one library.

    Attributes:
        spec: its properties.
    """

    spec: PredictorSpec

    def condition(self, prompt: Prompt) -> Condition:
        """The encoded prompt. Raises DataError for inputs that the model does not take."""
        ...

    def mask_prompt(self, condition: Condition, share: float, generator: torch.Generator) -> Condition:
        """The condition with a share of its tokens masked. Raises ConfigError if that is not supported."""
        ...

    def logits(
        self,
        modules: Mapping[str, nn.Module],
        conditions: Sequence[Condition],
        token_NL: Tensor,
        masked_NL: Tensor,
        *,
        guidance_scale: float,
    ) -> Tensor:
        """The logits of every position, in the model's dtype, with grad if grad is enabled.

        Args:
            modules: the modules to call, by component name.
            conditions: N of one kind.
            token_NL: the answers, on the CPU; masked tokens are ignored.
            masked_NL: bool, the positions to predict.
            guidance_scale: 1 disables guidance.

        Returns:
            (N, L, V), guidance included.
        """
        ...

    def samples(self, samples: Sequence[Sample], token_NL: Tensor) -> list[Sample]:
        """The samples with their answers, as tokens and as text or image."""
        ...

    def is_answer(self, token_NL: Tensor) -> Tensor:
        """Bool (N, L), the tokens up to the end of each answer."""
        ...

    def target(self, example: Example) -> Tensor:
        """(L,) the answer of an example. Raises DataError for an example of another kind."""
        ...
