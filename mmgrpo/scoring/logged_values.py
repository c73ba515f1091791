"""The values that a reward function in TRL's form logs with ``log_extra`` and ``log_metric``."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from typing import Any, final

from mmgrpo.errors import RewardError
from mmgrpo.types import Score

logger = logging.getLogger(__name__)


@final
class LoggedValues:
    """The values that one call of a function logs.

    Source: TRL 1.16 ``GRPOTrainer``, ``log_extra`` and ``log_metric``.
    """

    def __init__(self) -> None:
        """Starts without values."""
        self._columns: dict[str, list[Any]] = {}
        self._numbers: dict[str, list[float]] = {}

    def log_extra(self, column: str, values: Sequence[Any]) -> None:
        """Logs a column of the samples; several calls with one column append to it.

        Args:
            column: its name.
            values: one per sample.
        """
        self._columns.setdefault(column, []).extend(values)

    def log_metric(self, name: str, value: float) -> None:
        """Logs a number of the call; the metric is the mean of several. NaN and infinity are left out with a warning.

        Args:
            name: of the metric.
            value: the number.
        """
        number = float(value)
        if math.isfinite(number):
            self._numbers.setdefault(name, []).append(number)
        else:
            logger.warning("log_metric(%r, %s) is left out: the number is not finite", name, number)

    def explained(self, values: Sequence[Any]) -> list[Any]:
        """The results of the call, with the logged values in their explanations.

        Args:
            values: one per sample.

        Returns:
            A ``Score`` with the columns of the sample under ``parts`` and the numbers under ``metrics``, or the value
            itself where nothing was logged or it is None.

        Raises:
            RewardError: a column does not have one value per sample.
        """
        for column, entries in self._columns.items():
            if len(entries) != len(values):
                raise RewardError(f"log_extra({column!r}) has {len(entries)} values for {len(values)} samples")
        metrics = {name: sum(numbers) / len(numbers) for name, numbers in self._numbers.items()}
        return [self._with_note(row, value, metrics) for row, value in enumerate(values)]

    def _with_note(self, row: int, value: Any, metrics: dict[str, float]) -> Any:
        parts = {column: _as_json(entries[row]) for column, entries in self._columns.items()}
        note = {name: entries for name, entries in (("parts", parts), ("metrics", metrics)) if entries}
        if value is None or not note:
            return value
        if isinstance(value, Score):
            return Score(value.value, {**note, **value.explanation}, value.scopes)
        return Score(value, note)


def _as_json(value: Any) -> Any:
    """The value, with texts for objects and numbers that JSON does not have."""
    return json.loads(json.dumps(value, default=str), parse_constant=str)
