"""Code embeddings and logits of a model: by a separate head and embeddings, or by its vocabulary.

Axes: M states, K codes, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError, PolicyError

HEAD_TOLERANCE = 1e-2
"""Allowed difference of a logit from the model's own, relative to the largest: rounding in bfloat16."""

PROBED = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageCodes:
    """The code embeddings and logits of one model.

    Attributes:
        num: K.
        embed: codes (...) -> decoder inputs (..., D).
        logits: last hidden states (..., D) -> (..., K).
        parts: the modules that compute both, besides the decoder.
        line_end: the token of the vocabulary that ends a row of codes; None: no such token.
    """

    num: int
    embed: Callable[[Tensor], Tensor]
    logits: Callable[[Tensor], Tensor]
    parts: Sequence[nn.Module]
    line_end: int | None = None


@dataclass(frozen=True, slots=True)
class CodeRange:
    """A range of the vocabulary that holds the codes.

    Attributes:
        first: id of the first code.
        num: number of codes.
    """

    first: int
    num: int


def image_codes(model: PreTrainedModel, codes: CodeRange) -> ImageCodes:
    """The codes of a model: those of its generation head, else those of its vocabulary.

    Args:
        model: a transformers model that can generate images.
        codes: range of the codes in the vocabulary, unless the model defines it.

    Returns:
        Their embeddings and logits.

    Raises:
        PolicyError: the model's logits are not those of its output embeddings.
        ConfigError: the range exceeds the vocabulary.
    """
    base: Any = model.base_model
    embed: Any = getattr(model, "prepare_embeddings_for_image_generation", None)
    if embed is not None:
        return _apart(base, embed)
    mapping = getattr(base, "vocabulary_mapping", None)
    if mapping is None:
        return _in_vocabulary(model, torch.arange(codes.first, codes.first + max(codes.num, 0)))
    id_of = mapping.img2bpe
    ids_K = torch.tensor([id_of[code] for code in range(len(id_of))])
    return _in_vocabulary(model, ids_K, line_end=getattr(mapping, "eol_token_id", None))


def _apart(base: Any, embed: Callable[[Tensor], Tensor]) -> ImageCodes:
    table = base.generation_embeddings
    parts = [table, base.generation_aligner, base.generation_head]
    return ImageCodes(num=table.num_embeddings, embed=embed, logits=base.generation_head, parts=parts)


def _in_vocabulary(model: PreTrainedModel, ids_K: Tensor, *, line_end: int | None = None) -> ImageCodes:
    table: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    if head is None:
        raise PolicyError(
            f"{type(model).__name__} has no output embeddings, so it cannot sample tokens: use another model"
        )
    ids_K = ids_K.to(model.device)
    if len(ids_K) == 0 or int(ids_K.max()) >= head.weight.shape[0]:
        raise ConfigError(
            f"the vocabulary of {type(model).__name__} has {head.weight.shape[0]} tokens and not the {len(ids_K)} "
            "codes from policy.first_code on: set it to the id of the first code, and use the autoencoder of this model"
        )
    _require_head_of_model(model, head)

    def logits(hidden: Tensor) -> Tensor:
        if type(head) is not nn.Linear:  # one that carries adapters
            return head(hidden)[..., ids_K]
        return linear(hidden, head.weight[ids_K], None if head.bias is None else head.bias[ids_K])

    return ImageCodes(
        num=len(ids_K), embed=lambda code: table(ids_K[code]), logits=logits, parts=[table, head], line_end=line_end
    )


@torch.no_grad()
def _require_head_of_model(model: PreTrainedModel, head: nn.Module) -> None:
    """Raises PolicyError if the model's allowed logits are not those of its head."""
    ids_1L = torch.arange(PROBED, device=model.device)[None]
    theirs = model(input_ids=ids_1L, use_cache=False).logits.float()
    ours = head(model.get_decoder()(input_ids=ids_1L, use_cache=False).last_hidden_state).float()
    allowed = theirs > torch.finfo(theirs.dtype).min / 2
    gap = float((ours - theirs)[allowed].abs().max() / theirs[allowed].abs().max().clamp(min=1e-6))
    if not gap <= HEAD_TOLERANCE:
        raise PolicyError(
            f"the logits of {type(model).__name__} are not its output embeddings' (relative difference {gap:.1e}): "
            "models that scale or cap their logits are not supported; use another model"
        )
