"""From last hidden states to logits by the model's own code, whatever it does after its output embeddings."""

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
"""How far, relative to the largest logit, the head may lie from the model called as a whole: rounding in bfloat16."""


class LogitsHead:
    """What a model does to its last hidden states: scales, soft caps, tokens it never writes, all as it does them.

    Where its output embeddings alone give its logits, they alone are called. Elsewhere the model's own forward is,
    while its base stands still and hands out the hidden states in question.

    Attributes:
        vocabulary: how many logits a position has.
    """

    def __init__(self, model: PreTrainedModel, base: nn.Module, ids_1L: Tensor, output: ModelOutput) -> None:
        """Compares both with the model on a few tokens.

        Args:
            model: the whole model.
            base: the part of it below the head.
            ids_1L: a few tokens.
            output: what the base makes of them.

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
        common = model_logits.float().clamp(min=torch.finfo(model_logits.dtype).min / 2)  # such a logit says: never
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
        with _standing_still(self._base, output):
            logits_1MV = self._model(input_ids=self._ids_11, use_cache=False).logits
        return logits_1MV.reshape(*hidden.shape[:-1], -1).float()


@contextmanager
def _standing_still(base: nn.Module, output: ModelOutput) -> Iterator[None]:
    """Within it the base gives one output, whatever it is called with."""
    forward = base.__dict__.get("forward")
    object.__setattr__(base, "forward", lambda *_, **__: output)
    try:
        yield
    finally:
        if forward is None:
            del base.__dict__["forward"]
        else:
            object.__setattr__(base, "forward", forward)
