"""Overrides of a policy's settings for one rollout."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from mmgrpo.config.validating import explain_validation
from mmgrpo.errors import ConfigError

Settings = TypeVar("Settings", bound=BaseModel)


def override_settings(settings: Settings, changed: Mapping[str, Any], allowed: Collection[str]) -> Settings:
    """The settings with some of the allowed ones changed; unnamed keys of a nested setting keep their values.

    Raises: ConfigError for settings that are not allowed, and for values out of range.
    """
    if not changed:
        return settings
    if unknown := [name for name in changed if name not in allowed]:
        raise ConfigError(
            f"a rollout of tokens has no setting {', '.join(map(repr, unknown))}; it takes {', '.join(allowed)}"
        )
    kind: Any = type(settings)
    current = settings.model_dump()
    try:
        return kind.model_validate({**current, **{name: _merged(current[name], changed[name]) for name in changed}})
    except ValidationError as error:
        raise ConfigError(f"settings of a rollout: {explain_validation(error, type(settings))}") from error


def _merged(current: Any, change: Any) -> Any:
    """A changed setting; a mapping keeps the keys that the change does not name."""
    return {**current, **change} if isinstance(current, Mapping) and isinstance(change, Mapping) else change
