"""Sharding of a language model's decoder blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError
from mmgrpo.layouts import layout_of
from mmgrpo.policy import Arguments, ModuleSharder


def shard_decoder(model: nn.Module, shard: ModuleSharder) -> None:
    """Shards the decoder blocks; embeddings, output head and encoders of media stay unsharded.

    Raises: ConfigError for a model that is not decoder-only.
    """
    assert isinstance(model, PreTrainedModel)
    if model.config.is_encoder_decoder:
        raise ConfigError(f"{type(model).__name__} cannot be sharded: only decoder-only language models are supported")
    decoder, embeddings = model.get_decoder(), model.get_input_embeddings()
    trains_all = all(parameter.requires_grad for parameter in decoder.parameters())
    if not trains_all and _is_fed_by_trained(model, decoder):
        raise ConfigError(
            f"{type(model).__name__} cannot be sharded with adapters on its media encoders or its embeddings: "
            "name layers of its decoder in policy.lora.targets"
        )

    def empty() -> Arguments:
        """A token that is differentiable where real ones are, so that both have one order of backward."""
        width = model.config.get_text_config(decoder=True).hidden_size
        token = torch.zeros(1, 1, width, dtype=model.dtype, device=model.device)
        is_trained = any(parameter.requires_grad for parameter in embeddings.parameters())
        return (), {"inputs_embeds": token.requires_grad_(is_trained), "use_cache": False}

    shard("model", decoder, empty=empty, within=model)


def _is_fed_by_trained(model: PreTrainedModel, decoder: nn.Module) -> bool:
    """Whether anything before the decoder's blocks is trained."""
    head = model.get_output_embeddings()
    after = {*decoder.parameters(), *(head.parameters() if head is not None else ())}
    before = {*model.parameters()} - after | {*model.get_input_embeddings().parameters()}
    return any(parameter.requires_grad for parameter in before)


def is_sharded_gradient(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether gradients of these parameters are sharded and summed over all processes, so no process has its own."""
    return any(layout_of(parameter) is not None for parameter in parameters)
