"""Contexts: what a member is shown in place of the prompt.

A context is a function of the prompt and the member's number, bound to its settings; the prompt that it gives keeps the
columns, so that rewards see the row that they know. One that changes nothing gives the prompt itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt

Context = Callable[[Prompt, int], Prompt]


def template(*, text: str) -> Context:
    """The prompt within a text: ``{prompt}`` stands for it, ``{COLUMN}`` for a column of its row.

    Raises: ConfigError for a text without ``{prompt}``; DataError where a row has no such column.
    """
    if "{prompt}" not in text:
        raise ConfigError(f"the text of a template holds {{prompt}}, got {text!r:.80}")
    return partial(_within, text=text)


def column_hint(*, column: str, text: str = "{prompt}\n\nHint: {hint}") -> Context:
    """The prompt with a hint that its row brings along.

    ``{prompt}`` and ``{hint}`` stand for the two.

    Raises: ConfigError for a text that lacks either; DataError where a row has no such column.
    """
    if "{prompt}" not in text or "{hint}" not in text:
        raise ConfigError(f"the text of a hint holds {{prompt}} and {{hint}}, got {text!r:.80}")
    return partial(_within, text=text.replace("{hint}", "{" + column + "}"))


def systems(*, texts: Sequence[str]) -> Context:
    """A system text before the prompt, another for each member in turn: member m has text m modulo their number.

    Raises: ConfigError for no texts.
    """
    if not texts:
        raise ConfigError("systems needs at least one text")
    return partial(_after_system, texts=tuple(texts))


def solution_prefix(*, column: str = "solution", share: float) -> Context:
    """The prompt, and the beginning of its row's solution as the beginning of the answer: never trained.

    The first ``share`` of the solution's words.

    Units: share is dimensionless, 0 to 1.   Raises: ConfigError for another share; DataError for a row without it.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"a prefix is a share of the solution from 0 to 1, got {share}")
    return partial(_begun, column=column, share=share)


CONTEXTS: Mapping[str, Callable[..., Context]] = MappingProxyType(
    {"template": template, "column_hint": column_hint, "systems": systems, "solution_prefix": solution_prefix}
)
"""Contexts by the name that ``rollout.contexts`` uses; called with their settings."""


def _within(prompt: Prompt, member: int, *, text: str) -> Prompt:
    del member
    asked = [name for name in prompt.columns if "{" + name + "}" in text]
    filled = text.replace("{prompt}", prompt.text)
    for name in asked:
        filled = filled.replace("{" + name + "}", str(prompt.columns[name]))
    left = filled[filled.find("{") : filled.find("}") + 1] if "{" in text.replace("{prompt}", "") else ""
    if left[1:-1].isidentifier() and left in text:
        raise DataError(f"a context asks for the column {left[1:-1]!r}; the row has {sorted(prompt.columns)}")
    return _told(prompt, filled)


def _told(prompt: Prompt, text: str) -> Prompt:
    """The prompt with another text; of a conversation its last turn says it."""
    if prompt.messages is None:
        return replace(prompt, text=text)
    *before, last = prompt.messages
    content: Any = last["content"]
    if not isinstance(content, str):
        parts = [part for part in content if part.get("type") != "text"]
        content = [*parts, {"type": "text", "text": text}]
    else:
        content = text
    return replace(prompt, text=text, messages=[*before, {**last, "content": content}])


def _after_system(prompt: Prompt, member: int, *, texts: Sequence[str]) -> Prompt:
    messages = prompt.messages or [{"role": "user", "content": prompt.text}]
    own = [turn for turn in messages if turn.get("role") != "system"]
    return replace(prompt, messages=[{"role": "system", "content": texts[member % len(texts)]}, *own])


def _begun(prompt: Prompt, member: int, *, column: str, share: float) -> Prompt:
    del member
    solution = prompt.columns.get(column)
    if not isinstance(solution, str):
        raise DataError(f"solution_prefix needs a text in the column {column!r}; the row has {sorted(prompt.columns)}")
    words = solution.split(" ")
    begun = " ".join(words[: round(share * len(words))])
    return replace(prompt, prefix=f"{begun} ") if begun else prompt
