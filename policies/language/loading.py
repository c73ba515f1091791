"""Models and processors from paths, hub ids and Python builders, and what of a model's vocabulary is special."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from transformers.pytorch_utils import Conv1D

from mmgrpo.errors import ConfigError
from mmgrpo.policies.language.settings import LanguageSettings
from mmgrpo.policies.loading import DTYPES, built, named
from mmgrpo.system.hub import why_not

FUSING = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
FUSED = ("out_proj", "conv1d")
"""Models whose kernels read the weights of these layers without calling them: an adapter there would be passed over."""

MEDIA_WORDS = ("image", "video", "vision", "audio", "img")


def load_model(settings: LanguageSettings) -> tuple[PreTrainedModel, Any]:
    """The model and the processor (or tokenizer) a run's settings name.

    ``model`` is a folder written by ``save_pretrained``, a hub id, or ``python:module:function`` for a function of no
    arguments that returns both.

    Raises: ConfigError if nothing is named or what is named cannot be loaded.
    """
    source = named(settings.model)
    if source.startswith("python:"):
        found = built(source)
        if not isinstance(found, tuple) or len(found) != 2:
            given = type(found).__name__
            raise ConfigError(f"policy.model {source!r} must return a model and its processor, got {given}")
        return found[0].to(DTYPES[settings.dtype]), found[1]
    where = {"pretrained_model_name_or_path": source, "revision": settings.revision or "main"}
    try:
        config = AutoConfig.from_pretrained(**where)
        shows = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
        model_class = AutoModelForImageTextToText if shows else AutoModelForCausalLM
        processor_class = AutoProcessor if shows else AutoTokenizer
        chosen = {} if settings.attention is None else {"attn_implementation": settings.attention}
        model = model_class.from_pretrained(**where, dtype=DTYPES[settings.dtype], **chosen)
        return model, processor_class.from_pretrained(**where, **settings.processor)
    except (OSError, ValueError, ImportError) as error:
        why = why_not(source, error, revision=settings.revision)
        raise ConfigError(f"policy.model {source!r} cannot be loaded as a language model: {why}") from error


def end_ids(model: PreTrainedModel, tokenizer: Any) -> list[int]:
    """Every token that ends a completion. Raises ConfigError if there is none."""
    found: set[int] = set()
    for source in (model.generation_config, model.config, model.config.get_text_config(decoder=True), tokenizer):
        value = getattr(source, "eos_token_id", None)
        found |= set(value) if isinstance(value, (list, tuple)) else {value} if value is not None else set()
    if not found:
        raise ConfigError(
            f"{type(model).__name__} and its tokenizer name no end-of-sequence token; set eos_token_id in its "
            "generation_config"
        )
    return sorted(found)


def media_ids(model: PreTrainedModel, processor: Any, tokenizer: Any) -> list[int]:
    """Tokens that stand for pictures, videos and sounds: writing one would promise features that are not there."""
    found: set[int] = set()
    configs = (model.config, model.config.get_text_config(decoder=True), processor)
    for source in configs:
        for name in dir(source):
            if name.endswith(("_token_id", "_token_index", "_token_ids")) and any(w in name for w in MEDIA_WORDS):
                value = getattr(source, name, None)
                found |= (
                    set(value) if isinstance(value, (list, tuple)) else {value} if isinstance(value, int) else set()
                )
    special = {*tokenizer.all_special_tokens, *(str(token) for token in tokenizer.added_tokens_decoder.values())}
    for token in special:
        if any(word in token.lower() for word in MEDIA_WORDS):
            found.add(tokenizer.convert_tokens_to_ids(token))
    return sorted(value for value in found if isinstance(value, int) and value >= 0)


def suppressed_ids(
    model: PreTrainedModel, processor: Any, tokenizer: Any, more: Iterable[int], *, end_ids: Sequence[int]
) -> torch.Tensor:
    """Tokens that are never written: those of pictures, videos and sounds, and ``more``; on the model's device."""
    found = {*media_ids(model, processor, tokenizer), *more} - set(end_ids)
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    kept = sorted(value for value in found if value < vocabulary)
    return torch.tensor(kept, dtype=torch.long, device=model.device)


def language_parameters(model: PreTrainedModel) -> set[nn.Parameter]:
    """The parameters of the language model alone: its decoder and its embeddings."""
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    return {parameter for part in parts if part is not None for parameter in part.parameters()}


def language_linears(model: PreTrainedModel) -> list[str]:
    """Paths of the language model's linear layers, the output embeddings left out, and what peft puts no adapter on."""
    head = model.get_output_embeddings()
    writer = model.get_decoder()
    if writer is None or all(module in (writer, head) for module in writer.modules()):  # named so, it is the head alone
        writer = model
    decoder = {id(module) for module in writer.modules()}
    fused = FUSED if model.config.model_type in FUSING else ()
    return [
        path
        for path, module in model.named_modules()
        if _is_linear(module) and id(module) in decoder and module is not head and path.rpartition(".")[2] not in fused
    ]


@torch.no_grad()
def _is_linear(module: nn.Module) -> bool:
    """Whether it is a linear map: routers and grouped layers are of the class, too, and do other things."""
    if type(module) in (nn.Linear, Conv1D) or not isinstance(module, nn.Linear):
        return type(module) in (nn.Linear, Conv1D)
    dtype = module.weight.dtype if module.weight.is_floating_point() else torch.float32
    try:
        found = module(torch.zeros(1, module.in_features, dtype=dtype, device=module.weight.device))
    except (RuntimeError, TypeError, ValueError):
        return False
    return isinstance(found, torch.Tensor) and found.shape[-1] == module.out_features
