"""Guide-GRPO, arXiv:2506.13923.

The prompt includes a hint from the data row.
"""

from __future__ import annotations

from mmgrpo.data.history import NOTHING, History, prompt_template
from mmgrpo.data.prompt_templates import PROMPT_TEMPLATES, fill_template, require_places, with_text
from mmgrpo.types import Prompt


def _check_column_hint(text: str) -> None:
    require_places("hint", text, "prompt", "hint")


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_column_hint)
def column_hint(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    column: str,
    text: str = "{prompt}\n\nHint: {hint}",
) -> Prompt:
    """The prompt with a hint that its row brings along.

    ``{prompt}`` and ``{hint}`` are the placeholders.

    Raises: ConfigError for a text that lacks either; DataError where a row has no such column.
    """
    del member, history
    return with_text(prompt, fill_template(prompt, text.replace("{hint}", "{" + column + "}"), {}))
