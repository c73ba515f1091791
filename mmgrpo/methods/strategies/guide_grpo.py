"""Guide-GRPO, arXiv:2506.13923.

The prompt includes a hint from the data row.
"""

from __future__ import annotations

from functools import partial

from mmgrpo.data.contexts import CONTEXTS, in_template, require_places
from mmgrpo.data.history import Context


@CONTEXTS.register
def column_hint(*, column: str, text: str = "{prompt}\n\nHint: {hint}") -> Context:
    """The prompt with a hint that its row brings along.

    ``{prompt}`` and ``{hint}`` are the placeholders.

    Raises: ConfigError for a text that lacks either; DataError where a row has no such column.
    """
    require_places("hint", text, "prompt", "hint")
    return partial(in_template, text=text.replace("{hint}", "{" + column + "}"))
