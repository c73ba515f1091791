"""Masked models from paths, hub ids and Python functions."""

from __future__ import annotations

from typing import Any

from diffusers import AmusedPipeline, DiffusionPipeline, VQModel
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from mmgrpo.errors import ConfigError
from mmgrpo.system.hub import explain_load_error

from ..model_source import DTYPES, call_builder, require_model
from .amused_predictor import AmusedPredictor
from .predictor import Predictor
from .settings import MaskedSettings
from .text_predictor import TextPredictor


def load(settings: MaskedSettings) -> Any:
    """The pipeline of the settings, or a model with its tokenizer and, for images, a VQModel.

    ``model`` is a folder written by ``save_pretrained``, a hub id, or ``python:module:function`` for a function without
    arguments that returns either.

    Raises: ConfigError if the model is missing or cannot be loaded.
    """
    source, dtype = require_model(settings.model), DTYPES[settings.dtype]
    if source.startswith("python:"):
        result = call_builder(source)
        parts = result if isinstance(result, tuple) else (result,)
        if settings.dtype == "float32":
            return parts
        return tuple(part.to(dtype) if isinstance(part, (nn.Module, DiffusionPipeline)) else part for part in parts)
    source_options = {"pretrained_model_name_or_path": source, "revision": settings.revision or "main"}
    try:
        config = _config(source_options, settings)
        if config is None:
            return (DiffusionPipeline.from_pretrained(source, dtype=dtype, revision=settings.revision),)
        remote_code = {"trust_remote_code": settings.trust_remote_code}
        attention = {} if settings.attention is None else {"attn_implementation": settings.attention}
        model_class = _class_of(config)
        model = model_class.from_pretrained(**source_options, **remote_code, **attention, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(**source_options, **remote_code)
        decoder = None if settings.codes is None else settings.codes.decoder
        return model, tokenizer, *([] if decoder is None else [VQModel.from_pretrained(decoder)])
    except (OSError, ValueError, ImportError) as error:
        reason = explain_load_error(source, error, revision=settings.revision)
        raise ConfigError(f"policy.model {source!r} cannot be loaded as a masked model: {reason}") from error


def predictor_of(parts: tuple[Any, ...], settings: MaskedSettings) -> Predictor:
    """The predictor of a live pipeline, or of a model and its tokenizer. Raises ConfigError for anything else."""
    if isinstance(parts[0], DiffusionPipeline):
        if not isinstance(parts[0], AmusedPipeline):
            raise ConfigError(
                f"masked policies support AmusedPipeline, got {type(parts[0]).__name__}; for pipelines with continuous "
                "latents use policy: {name: denoising}"
            )
        return AmusedPredictor(parts[0], settings)
    if len(parts) not in (2, 3):
        raise ConfigError("policy.model must return a pipeline, or a model, its tokenizer and, for images, a VQModel")
    return TextPredictor(parts[0], parts[1], settings, *parts[2:])


def _config(source_options: dict[str, str], settings: MaskedSettings) -> Any:
    """The configuration of a transformers model; None for a diffusers folder."""
    try:
        DiffusionPipeline.load_config(source_options["pretrained_model_name_or_path"], revision=settings.revision)
    except (OSError, ValueError):
        return AutoConfig.from_pretrained(**source_options, trust_remote_code=settings.trust_remote_code)
    return None


def _class_of(config: Any) -> Any:
    """The transformers class of a model by its task; for custom code, by the class in its configuration."""
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        return AutoModelForMaskedLM
    named_classes = getattr(config, "auto_map", None) or {}
    return AutoModelForMaskedLM if "AutoModelForMaskedLM" in named_classes else AutoModel
