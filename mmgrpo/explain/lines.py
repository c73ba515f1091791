"""Labels and texts as lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 118
LABEL = 16


def labeled_lines(rows: Iterable[tuple[str, str]], width: int = WIDTH) -> str:
    """Labels and texts, wrapped to lines of at most ``width`` characters; longer words, as URLs, are not broken."""
    return "\n".join(_row(label, text, width) for label, text in rows)


def _row(label: str, text: str, width: int) -> str:
    return textwrap.fill(
        text,
        width,
        initial_indent=f"{label:<{LABEL - 1}} ",
        subsequent_indent=" " * LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )
