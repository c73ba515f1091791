"""Settings of environments that would have no effect."""

from __future__ import annotations

from typing import Any

from mmgrpo.errors import ConfigError


def require_unset(environment: str, fix: str, **settings: Any) -> None:
    """Checks that settings which would have no effect are not set.

    Args:
        environment: the environment, for the message.
        fix: what to change, for the message.
        **settings: the settings; None: not set.

    Raises:
        ConfigError: one is set.
    """
    if names := [name for name, value in settings.items() if value is not None]:
        raise ConfigError(f"{', '.join(names)} of {environment} would have no effect: {fix}")
