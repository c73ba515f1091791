"""SAGE (self-hints), arXiv:2602.03143.

The prompt includes a hint that the policy wrote in an answer of the same group.
"""

from __future__ import annotations

from mmgrpo.data.history import NOTHING, History, prompt_template
from mmgrpo.data.prompt_templates import (
    PROMPT_TEMPLATES,
    compile_pattern,
    fill_template,
    require_places,
    require_text_of,
    with_text,
)
from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt


def _check_matches_in_answer(pattern: str, text: str) -> None:
    require_places("matched text", text, "prompt", "match")
    if compile_pattern("pattern", pattern).groups < 1:
        raise ConfigError(f"the pattern needs a group in brackets, the text to insert, got {pattern!r:.80}")


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_matches_in_answer)
def matches_in_answer(prompt: Prompt, member: int, history: History = NOTHING, *, pattern: str, text: str) -> Prompt:
    """The prompt with the match of a regular expression in an answer of the group, the last that has one.

    ``{prompt}`` is replaced by the prompt, ``{match}`` by the expression's first group. Without a match, the prompt.

    Raises: ConfigError for no expression with a group, or a text that lacks a placeholder.
    Source: hints that the policy wrote before: SAGE, arXiv:2602.03143, and its code (BaohaoLiao/SAGE).
    """
    del member
    compiled = compile_pattern("pattern", pattern)
    matches = [match[1] for sample in history.samples if (match := compiled.search(require_text_of(sample)))]
    return with_text(prompt, fill_template(prompt, text, {"match": matches[-1]})) if matches else prompt
