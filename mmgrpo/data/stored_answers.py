"""Answers of data rows, in their columns."""

from __future__ import annotations

from collections.abc import Mapping

from mmgrpo.types import Prompt


def stored_answer(prompt: Prompt, column: str) -> str | None:
    """The text of an answer in a column of a data row.

    Args:
        prompt: with the columns of its row.
        column: a text, or a message of the assistant as the only one of a list, as TRL stores preferences.

    Returns:
        The text; None: the row has no such column, or something else in it.
    """
    answer = prompt.columns.get(column)
    if isinstance(answer, list | tuple) and len(answer) == 1:
        (message,) = answer
        answer = message.get("content") if isinstance(message, Mapping) and message.get("role") == "assistant" else None
    return answer if isinstance(answer, str) else None
