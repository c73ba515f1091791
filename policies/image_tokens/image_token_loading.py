"""Loading of image-token models, processors and autoencoders from paths, hub ids and Python builders."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError
from mmgrpo.system.hub import explain_load_error
from mmgrpo.system.targets import is_python_target

from ..model_source import DTYPES, call_builder, require_model
from ..text_models import pretrained
from .settings import ImageTokensSettings


def load(settings: ImageTokensSettings) -> tuple[PreTrainedModel, Any, Any]:
    """The model, its processor (or tokenizer), and a separate autoencoder, None if there is none.

    Raises: ConfigError if no model is set or it cannot be loaded.
    """
    source = require_model(settings.model)
    autoencoder = None
    if is_python_target(source):
        loaded = call_builder(source)
        if not isinstance(loaded, tuple) or len(loaded) not in (2, 3):
            returned = type(loaded).__name__
            raise ConfigError(
                f"policy.model {source!r} must return a model, its processor, and an autoencoder if the model holds "
                f"none, got {returned}"
            )
        model, processor = loaded[0].to(DTYPES[settings.dtype]), loaded[1]
        autoencoder = loaded[2] if len(loaded) == 3 else None
    else:
        model, processor = pretrained(source, settings, what="an image-token model")
    if settings.autoencoder is not None:
        autoencoder = _autoencoder(settings.autoencoder)
    return model, processor, autoencoder


def _autoencoder(source: str) -> Any:
    if is_python_target(source):
        return call_builder(source)
    from diffusers import VQModel

    path, _, subfolder = source.partition(":")
    try:
        return VQModel.from_pretrained(path, subfolder=subfolder or None)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(
            f"policy.autoencoder {source!r} cannot be loaded as a diffusers VQModel: {explain_load_error(path, error)}"
        ) from error
