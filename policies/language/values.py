"""What a token can be asked beside its log-probability."""

from __future__ import annotations

from collections.abc import Collection

from mmgrpo.errors import ConfigError
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.values import ENTROPY, Value


def views_of(values: Collection[Value], kept: Collection[str]) -> list[str]:
    """The other views that are asked. Raises ConfigError for a value that tokens do not have, or not of that view."""
    named = ("logprob", *LOGPROB_DIVERGENCES)
    for value in values:
        if value != ENTROPY and (value.view not in kept or value.name not in named):
            raise ConfigError(
                f"tokens have no value {value}: leave out what asks for it; known are {ENTROPY}, and "
                f"{', '.join(named)} of {', '.join(sorted(kept))}"
            )
    return sorted({value.view for value in values if value.view is not None})
