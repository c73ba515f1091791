"""Masked models from paths, hub ids and Python builders."""

from __future__ import annotations

from typing import Any

from diffusers import AmusedPipeline, DiffusionPipeline, VQModel
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING

from mmgrpo.errors import ConfigError
from mmgrpo.system.hub import why_not

from ..model_source import DTYPES, call_builder, require_model
from .amused_predictor import AmusedPredictor
from .predictor import Predictor
from .settings import MaskedSettings
from .text_predictor import TextPredictor


def load(settings: MaskedSettings) -> Any:
    """What a run's settings name: a pipeline, or a model with its tokenizer and, for pictures, a VQModel.

    ``model`` is a folder written by ``save_pretrained``, a hub id, or ``python:module:function`` for a function of no
    arguments that returns either.

    Raises: ConfigError if nothing is named or what is named cannot be loaded.
    """
    source, dtype = require_model(settings.model), DTYPES[settings.dtype]
    if source.startswith("python:"):
        found = call_builder(source)
        parts = found if isinstance(found, tuple) else (found,)
        if settings.dtype == "float32":
            return parts
        return tuple(part.to(dtype) if isinstance(part, (nn.Module, DiffusionPipeline)) else part for part in parts)
    where = {"pretrained_model_name_or_path": source, "revision": settings.revision or "main"}
    try:
        config = _config(where, settings)
        if config is None:
            return (DiffusionPipeline.from_pretrained(source, dtype=dtype, revision=settings.revision),)
        own = {"trust_remote_code": settings.trust_remote_code}
        chosen = {} if settings.attention is None else {"attn_implementation": settings.attention}
        model_class = _class_of(config)
        model = model_class.from_pretrained(**where, **own, **chosen, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(**where, **own)
        decoder = None if settings.codes is None else settings.codes.decoder
        return model, tokenizer, *([] if decoder is None else [VQModel.from_pretrained(decoder)])
    except (OSError, ValueError, ImportError) as error:
        why = why_not(source, error, revision=settings.revision)
        raise ConfigError(f"policy.model {source!r} cannot be loaded as a masked model: {why}") from error


def predictor_of(parts: tuple[Any, ...], settings: MaskedSettings) -> Predictor:
    """The predictor of a live pipeline, or of a model and its tokenizer. Raises ConfigError for anything else."""
    if isinstance(parts[0], DiffusionPipeline):
        if not isinstance(parts[0], AmusedPipeline):
            raise ConfigError(
                f"{type(parts[0]).__name__} does not fill in hidden codes; use policy: {{name: denoising}} for "
                "pipelines of continuous states, AmusedPipeline here"
            )
        return AmusedPredictor(parts[0], settings)
    if len(parts) not in (2, 3):
        raise ConfigError("policy.model must return a pipeline, or a model, its tokenizer and, for pictures, a VQModel")
    return TextPredictor(parts[0], parts[1], settings, *parts[2:])


def _config(where: dict[str, str], settings: MaskedSettings) -> Any:
    """The configuration of a model of transformers; None of a folder of diffusers."""
    try:
        DiffusionPipeline.load_config(where["pretrained_model_name_or_path"], revision=settings.revision)
    except (OSError, ValueError):
        return AutoConfig.from_pretrained(**where, trust_remote_code=settings.trust_remote_code)
    return None


def _class_of(config: Any) -> Any:
    """Models of transformers by what they are for; those with code of their own by the class that it names."""
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        return AutoModelForMaskedLM
    named_classes = getattr(config, "auto_map", None) or {}
    return AutoModelForMaskedLM if "AutoModelForMaskedLM" in named_classes else AutoModel
