"""Builds a judge from its settings: a local model, or a model at an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from mmgrpo.errors import ConfigError

from .endpoints import Endpoint
from .judge_protocol import Judge
from .local import JudgeSource

T = TypeVar("T", Endpoint, JudgeSource)


def judge_of(
    owner: str,
    model: str,
    *,
    system: str | None,
    endpoint: Mapping[str, Any] | None,
    local: Mapping[str, Any] | None,
) -> Judge:
    """Build the judge of a reward.

    Args:
        owner: name of the reward, for errors.
        model: a path or hub id, or the model name at the endpoint.
        system: system prompt.
        endpoint: settings of ``Endpoint``; None for a local model.
        local: settings of ``JudgeSource``.

    Returns:
        The judge; a local model is loaded on first use.

    Raises:
        ConfigError: both are set, or one has unknown settings.
    """
    if endpoint is not None and local is not None:
        raise ConfigError(f"{owner} takes endpoint or local, not both")
    if endpoint is None:
        return _build(JudgeSource, f"{owner}.local", local or {}, model, system)
    return _build(Endpoint, f"{owner}.endpoint", endpoint, model, system)


def _build(kind: type[T], name: str, settings: Mapping[str, Any], model: str, system: str | None) -> T:
    setting_names = [field.name for field in fields(kind) if field.name not in ("model", "system")]
    if unknown := sorted(set(settings) - set(setting_names)):
        raise ConfigError(f"{name} has no setting {', '.join(unknown)}; it has {', '.join(setting_names)}")
    if kind is Endpoint and "url" not in settings:
        raise ConfigError(f"{name} needs the url, such as http://127.0.0.1:8000/v1")
    return kind(model=model, system=system, **settings)
