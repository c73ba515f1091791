"""GHPO, arXiv:2507.10628.

The prompt includes the beginning of a text of the data row, such as a solution.
"""

from __future__ import annotations

from mmgrpo.data.history import NOTHING, History, prompt_template
from mmgrpo.data.prompt_templates import (
    PROMPT_TEMPLATES,
    fill_template,
    require_places,
    require_share,
    text_column,
    with_text,
)
from mmgrpo.types import Prompt


def _check_column_part(share: float, text: str) -> None:
    require_places("part of a column", text, "prompt", "part")
    require_share(share)


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_column_part)
def column_part(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    column: str,
    share: float,
    text: str = "{prompt}\n\nThe solution begins: {part}",
) -> Prompt:
    """The prompt with the beginning of a text that its row brings along: the first ``share`` of its characters.

    ``{prompt}`` and ``{part}`` are the placeholders.

    Units: share is dimensionless, 0 to 1.   Raises: ConfigError for another share or a text that lacks a place;
        DataError for a row without the column.
    Source: GHPO, arXiv:2507.10628, and its code (hkgc-1/GHPO, ``ghpo_trainer.py``).
    """
    del member, history
    full_text = text_column("column_part", prompt, column)
    return with_text(prompt, fill_template(prompt, text, {"part": full_text[: round(share * len(full_text))]}))
