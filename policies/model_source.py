"""Model sources of policy adapters: dtypes, and builder functions in place of a path."""

from __future__ import annotations

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


def call_builder(source: str) -> Any:
    """The result of the function ``python:module:function``. Raises ConfigError if there is no such function."""
    try:
        builder = import_python_target(source)
    except (ConfigError, ImportError) as error:
        raise ConfigError(f"policy.model {source!r} must be python:module:function; {error}") from error
    return builder()
