"""From last hidden states to logits by the model's own code, including anything after its output embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from mmgrpo.errors import PolicyError

HEAD_TOLERANCE = 1e-2
"""Allowed difference between head and full model, relative to the largest logit: rounding in bfloat16."""


class LogitsHead:
    """The model's function from last hidden states to logits, with its scaling, soft caps and forbidden tokens.

    If the output embeddings alone give the logits, only they are called. Otherwise the model's own forward runs,
    while its base returns these hidden states without computing.

    Attributes:
        vocabulary: number of logits per position.
    """

    def __init__(self, model: PreTrainedModel, base: nn.Module, ids_1L: Tensor, output: ModelOutput) -> None:
        """Compares both with the model on a few tokens.

        Args:
            model: the full model.
            base: the submodule below the head.
            ids_1L: a few tokens.
            output: the base's output for them.

        Raises:
            PolicyError: the logits are not a function of the base's last hidden states.
        """
        self._model, self._base, self._ids_11 = model, base, ids_1L[:, :1]
        self._kind = type(output)
        self._embedding: Any = model.get_output_embeddings()
        hidden_1LD = output["last_hidden_state"]
        model_logits = model(input_ids=ids_1L, use_cache=False).logits
        self.vocabulary = int(model_logits.shape[-1])
        self._bare = self._embedding is not None and torch.equal(self._embedding(hidden_1LD), model_logits)
        head_logits = self(hidden_1LD)
        common = model_logits.float().clamp(min=torch.finfo(model_logits.dtype).min / 2)  # smaller: forbidden
        gap = float(
            (head_logits - model_logits.float()).abs().max()
            / common.where(common > -1e30, 0.0).abs().max().clamp(min=1e-6)
        )
        if head_logits.shape != model_logits.shape or not gap <= HEAD_TOLERANCE:
            raise PolicyError(
                f"the logits of {type(model).__name__} are not a function of the last hidden states of its "
                f"{type(base).__name__} (relative difference {gap:.1e})"
            )

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits, float32.

        Shapes: (..., D) -> (..., V).
        """
        if self._bare:
            return self._embedding(hidden).float()
        output = self._kind(last_hidden_state=hidden.reshape(1, -1, hidden.shape[-1]))
        with _fixed_output(self._base, output):
            logits_1MV = self._model(input_ids=self._ids_11, use_cache=False).logits
        return logits_1MV.reshape(*hidden.shape[:-1], -1).float()


@contextmanager
def _fixed_output(base: nn.Module, output: ModelOutput) -> Iterator[None]:
    """A context in which the base returns one output for any input."""
    forward = base.__dict__.get("forward")
    object.__setattr__(base, "forward", lambda *_, **__: output)
    try:
        yield
    finally:
        if forward is None:
            del base.__dict__["forward"]
        else:
            object.__setattr__(base, "forward", forward)
