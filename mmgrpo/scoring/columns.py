"""The columns of the data that rewards cannot do without, checked before a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from mmgrpo.errors import ConfigError
from mmgrpo.scoring.named import NamedReward
from mmgrpo.types import Prompt

_SETTINGS = ("column", "text_column")
"""Settings of the shipped rewards that name the column which holds the reference."""


def columns_of(target: Callable[..., Any], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns without which a shipped reward scores nothing.

    Args:
        target: the reward's class; its attribute ``needs_columns``, if it has one, decides.
        settings: as the configuration gives them, defaults excluded.

    Returns:
        The values of its settings ``column`` and ``text_column``, those that are null excluded.
    """
    declared = getattr(target, "needs_columns", None)
    if declared is not None:
        return tuple(declared)
    parameters = inspect.signature(target).parameters
    values = {name: settings.get(name, parameters[name].default) for name in _SETTINGS if name in parameters}
    return tuple(value for value in values.values() if isinstance(value, str))


def require_columns(rewards: Sequence[NamedReward], prompts: Sequence[Prompt], source: str) -> None:
    """Checks that each reward can score at least one row.

    Args:
        rewards: the rewards of a run, or of its evaluation.
        prompts: the rows that they score.
        source: the key of the rows in the configuration, for the message.

    Raises:
        ConfigError: a column that a reward needs is in no row, or null in all; the message lists the columns and says
            which setting names another.
    """
    if not prompts:
        return
    available = {name for prompt in prompts for name, value in prompt.columns.items() if value is not None}
    for reward in rewards:
        missing = [name for name in reward.needs_columns or () if name not in available]
        if missing:
            near = get_close_matches(missing[0], available, 1) or [sorted(available)[0] if available else "NAME"]
            raise ConfigError(
                f"reward {reward.name} reads the column '{missing[0]}', which no row of {source} has: it would score "
                f"nothing. The columns are {', '.join(sorted(available)) or 'none'}. Name another, as in "
                f"{{name: {reward.name}, column: {near[0]}}}, add the column to the rows, or remove the reward"
            )
