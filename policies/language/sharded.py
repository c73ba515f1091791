"""A language model whose blocks lie in parts on the processes of a run."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError
from mmgrpo.policy import Arguments, Shard


def shard_decoder(model: PreTrainedModel, shard: Shard, *, compiles: bool) -> None:
    """Has the blocks that read tokens sharded; embeddings, output head and what sees or hears stay whole.

    Raises: ConfigError for what has no such blocks alone, or is compiled.
    """
    if compiles or model.config.is_encoder_decoder:
        raise ConfigError(
            f"{type(model).__name__} cannot be sharded: of language models only decoders can, and without "
            "policy.compile"
        )

    def empty() -> Arguments:
        width = model.config.get_text_config(decoder=True).hidden_size
        token = torch.zeros(1, 1, width, dtype=model.dtype, device=model.device)
        return (), {"inputs_embeds": token, "use_cache": False}

    shard("model", model.get_decoder(), empty=empty)
