"""Loading of models and processors from paths, hub ids and Python builders, and special tokens of a model's
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError

from ..adapter_formats import PeftFiles
from ..model_source import call_builder, require_model
from ..quantization import cast_model, require_no_quantization
from ..text_models import language_linears, language_parameters, pretrained
from ..vocabulary import num_logits, unnamed_ids
from ..weights import Weights
from .settings import LanguageSettings

MEDIA_WORDS = ("image", "video", "vision", "audio", "img")


def load_model(settings: LanguageSettings, *, device: str | torch.device = "cpu") -> tuple[PreTrainedModel, Any]:
    """The model and the processor (or tokenizer) of the settings; quantized weights are on the device.

    ``model`` is a folder written by ``save_pretrained``, a hub id, or ``python:module:function`` for a function of no
    arguments that returns both.

    Raises: ConfigError if no model is set or it cannot be loaded.
    """
    source = require_model(settings.model)
    if source.startswith("python:"):
        require_no_quantization(settings.quantization_config)
        loaded = call_builder(source)
        if not isinstance(loaded, tuple) or len(loaded) != 2:
            returned = type(loaded).__name__
            raise ConfigError(f"policy.model {source!r} must return a model and its processor, got {returned}")
        return cast_model(loaded[0], settings.dtype), loaded[1]
    return pretrained(
        source, settings, what="a language model", quantization=settings.quantization_config, device=device
    )


def end_token_ids(model: PreTrainedModel, tokenizer: Any) -> list[int]:
    """Every token that ends a completion. Raises ConfigError if there is none."""
    ids: set[int] = set()
    for source in (model.generation_config, model.config, model.config.get_text_config(decoder=True), tokenizer):
        value = getattr(source, "eos_token_id", None)
        ids |= set(value) if isinstance(value, (list, tuple)) else {value} if value is not None else set()
    if not ids:
        raise ConfigError(
            f"{type(model).__name__} and its tokenizer name no end-of-sequence token; set eos_token_id in its "
            "generation_config"
        )
    return sorted(ids)


def media_token_ids(model: PreTrainedModel, processor: Any, tokenizer: Any) -> list[int]:
    """Placeholder tokens of images, videos and audio, which must not be sampled: they have no features."""
    ids: set[int] = set()
    configs = (model.config, model.config.get_text_config(decoder=True), processor)
    for source in configs:
        for name in dir(source):
            if name.endswith(("_token_id", "_token_index", "_token_ids")) and any(w in name for w in MEDIA_WORDS):
                value = getattr(source, name, None)
                ids |= set(value) if isinstance(value, (list, tuple)) else {value} if isinstance(value, int) else set()
    special = {*tokenizer.all_special_tokens, *(str(token) for token in tokenizer.added_tokens_decoder.values())}
    for token in special:
        if any(word in token.lower() for word in MEDIA_WORDS):
            ids.add(tokenizer.convert_tokens_to_ids(token))
    return sorted(value for value in ids if isinstance(value, int) and value >= 0)


def suppressed_token_ids(
    model: PreTrainedModel, processor: Any, tokenizer: Any, more: Iterable[int], *, end_ids: Sequence[int]
) -> torch.Tensor:
    """Token ids that are never sampled, on the model's device.

    They are those of images, videos and audio, ids of the model's vocabulary that are no token of the tokenizer
    (padding of the embeddings), and ``more``.
    """
    vocabulary = num_logits(model)
    unnamed = unnamed_ids(tokenizer, vocabulary)
    ids = {*media_token_ids(model, processor, tokenizer), *unnamed, *more} - set(end_ids)
    in_vocabulary = sorted(value for value in ids if value < vocabulary)
    return torch.tensor(in_vocabulary, dtype=torch.long, device=model.device)


def trained_weights(model: PreTrainedModel, settings: LanguageSettings) -> Weights:
    """The adapters or the weights that the settings train."""
    weights = Weights({"model": model}, settings.lora, language_linears(model), PeftFiles())
    if settings.adapter is not None:
        weights.load_initial(Path(settings.adapter))
    if settings.lora is None and settings.freeze_vision:
        trained = language_parameters(model)
        for parameter in model.parameters():
            parameter.requires_grad_(parameter in trained)
    return weights
