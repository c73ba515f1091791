"""Validation of the data columns that rewards require and of their references, before a run."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from mmgrpo.errors import ConfigError
from mmgrpo.scoring.column_uses import ReferenceCheck, column_uses
from mmgrpo.scoring.named_rewards import NamedReward
from mmgrpo.types import Prompt

logger = logging.getLogger(__name__)

NUM_CHECKED = 200
"""Number of rows whose references are checked, evenly spaced over all rows."""

NUM_SEARCHED = 4000
"""Number of rows searched for a readable reference if none of the checked rows has one."""


def require_columns(rewards: Sequence[NamedReward], prompts: Sequence[Prompt], source: str) -> None:
    """Check that each reward can score at least one row.

    Args:
        rewards: the rewards of a run, or of its evaluation.
        prompts: the rows that they score.
        source: the key of the rows in the configuration, for the message.

    Raises:
        ConfigError: a required column is missing or null in all rows; the message lists the columns and the setting to
            change.
    """
    if not prompts:
        return
    available = {name for prompt in prompts for name, value in prompt.columns.items() if value is not None}
    for reward in rewards:
        missing = [name for name in reward.needs_columns or () if name not in available]
        if missing:
            near = get_close_matches(missing[0], available, 1) or [sorted(available)[0] if available else "NAME"]
            other = f"Name another by its setting, column: {near[0]}; or a" if _takes_column(reward.function) else "A"
            raise ConfigError(
                f"reward {reward.name} reads the column '{missing[0]}', which no row of {source} has: it would score "
                f"nothing. The columns are {', '.join(sorted(available)) or 'none'}. {other}dd the column to the rows "
                f"({source}.columns: {{{missing[0]}: {near[0]}}} maps one), or remove the reward"
            )


def _takes_column(function: Any) -> bool:
    """Whether the class of a reward has a setting for the column that it reads."""
    try:
        return "column" in inspect.signature(type(function)).parameters
    except (TypeError, ValueError):  # a class of C, such as functools.partial
        return False


def require_references(rewards: Sequence[NamedReward], prompts: Sequence[Prompt], source: str) -> None:
    """Check that rewards with a ``reference_error``, and rewards that wrap one, can read the references of the rows.

    For each reward ``NUM_CHECKED`` rows are checked, evenly spaced over the rows with its column; if none is readable,
    up to ``NUM_SEARCHED``, because a reward may apply to few rows. The log reports the number of unreadable references
    and the reason.

    Args:
        rewards: the rewards of a run, or of its evaluation.
        prompts: the rows that they score.
        source: the key of the rows in the configuration, for the message.

    Raises:
        ConfigError: no reference of these rows can be read.
    """
    for reward in rewards:
        for column, reference_error in _checks(reward):
            values = [prompt.columns[column] for prompt in prompts if prompt.columns.get(column) is not None]
            checked = _spread(values, NUM_CHECKED)
            errors = [(value, error) for value in checked if (error := reference_error(value)) is not None]
            if not errors:
                continue
            value, error = errors[0]
            text = (
                f"reward {reward.name} cannot read {len(errors)} of {len(checked)} references in column '{column}' of "
                f"{source}, such as {value!r:.80}: {error}"
            )
            searched = _spread(values, NUM_SEARCHED) if len(checked) < len(values) else ()
            if len(errors) == len(checked) and not any(reference_error(value) is None for value in searched):
                raise ConfigError(f"{text}. Choose a reward for such answers, set another column, or change the rows")
            logger.warning("%s; it does not score such rows (None)", text)


def _spread(values: Sequence[Any], count: int) -> Sequence[Any]:
    """At most ``count`` of the values, at equal distances."""
    return values[:: max(1, len(values) // count)][:count]


def _checks(reward: NamedReward) -> list[tuple[str, ReferenceCheck]]:
    """Columns with their checks; columns named only by ``NamedReward.needs_columns`` use the check of the function."""
    uses = column_uses(reward.function)
    columns, check = {use.column for use in uses}, getattr(reward.function, "reference_error", None)
    named = [(name, check) for name in reward.needs_columns or () if name not in columns and check is not None]
    return [(use.column, use.reference_error) for use in uses if use.reference_error is not None] + named


def require_rows(rewards: Sequence[NamedReward], prompts: Sequence[Prompt], source: str) -> None:
    """Check that rows have the columns and references that rewards require.

    Raises ConfigError as ``require_columns`` and ``require_references``.
    """
    require_columns(rewards, prompts, source)
    require_references(rewards, prompts, source)
