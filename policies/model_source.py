"""Model sources of policy adapters: dtypes, and builder functions in place of a path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mmgrpo.errors import ConfigError
from mmgrpo.system.targets import import_python_target

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def require_model(model: str | None) -> str:
    """``policy.model``. Raises ConfigError if it is not set."""
    if not model:
        raise ConfigError("policy.model is not set: give a path, a hub id or python:module:function")
    return model


def require_no_loading_settings(settings: Mapping[str, Any], *loading: str) -> None:
    """Raises ConfigError for settings of a loaded model that only loading reads.

    Args:
        settings: the settings as given.
        *loading: names of those that only loading reads.
    """
    if "model" not in settings and (ignored := [name for name in loading if settings.get(name) is not None]):
        names = ", ".join(f"policy.{name}" for name in ignored)
        raise ConfigError(
            f"{names} would have no effect on a model that is loaded: load it so, or name it in policy.model and use "
            "from_config"
        )


def call_builder(source: str) -> Any:
    """The result of the function ``python:module:function``. Raises ConfigError if there is no such function."""
    try:
        builder = import_python_target(source)
    except (ConfigError, ImportError) as error:
        raise ConfigError(f"policy.model {source!r} must be python:module:function; {error}") from error
    return builder()
