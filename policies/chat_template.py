"""Rendering of prompts by a model's chat template, with the template arguments of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.errors import DataError
from mmgrpo.types import Prompt


def render(processor: Any, messages: Sequence[Mapping[str, Any]], prompt: Prompt, **arguments: Any) -> str:
    """The messages as text of the chat template.

    Args:
        processor: a processor or tokenizer of transformers with a chat template.
        messages: the messages.
        prompt: their prompt; its ``chat_template_kwargs`` are passed to the template.
        **arguments: further arguments of ``apply_chat_template``.

    Returns:
        The text.

    Raises:
        DataError: the template rejects the messages, or does not use one of the prompt's arguments; the message
            contains the prompt and a suggested fix.
    """
    row_arguments = prompt.chat_template_kwargs
    if row_arguments:
        _require_variables(processor, row_arguments, prompt)
    try:
        return processor.apply_chat_template(list(messages), tokenize=False, **{**arguments, **row_arguments})
    except Exception as error:  # templates raise errors of jinja2, of Python and of transformers
        roles = ", ".join(str(message.get("role")) for message in messages)
        system = (
            "; the template may not support a system turn: remove it from the row and leave out policy.system"
            if any(message.get("role") == "system" for message in messages)
            else ""
        )
        raise DataError(
            f"the chat template of {type(processor).__name__} rejects the prompt {prompt.text!r:.60} with the turns "
            f"{roles} ({type(error).__name__}: {error}){system}"
        ) from error


def require_room(model: Any, prompt: Prompt, num_tokens: int, *, length: int) -> None:
    """Checks that a prompt and its completion fit into the model's context.

    Args:
        model: the model; without ``max_position_embeddings`` in its configuration there is no limit.
        prompt: the prompt, for the message.
        num_tokens: number of tokens of the prompt.
        length: number of tokens that follow it.

    Raises:
        DataError: they do not fit.
    """
    config = getattr(model, "config", None)
    text = config if config is None or not hasattr(config, "get_text_config") else config.get_text_config(decoder=True)
    context = getattr(text, "max_position_embeddings", None) or 0
    if 0 < context < num_tokens + length:
        raise DataError(
            f"the prompt {prompt.text!r:.60} takes {num_tokens} tokens, which with {length} after it are more than the "
            f"model's context of {context}; shorten it"
        )


def require_no_arguments(prompt: Prompt) -> None:
    """Raises DataError for a prompt with template arguments, if no chat template is used."""
    if prompt.chat_template_kwargs:
        raise DataError(
            f"the prompt {prompt.text!r:.60} sets {', '.join(prompt.chat_template_kwargs)} for a chat template, but "
            "none is used; take a checkpoint with one, or rename the column if it is for the rewards alone"
        )


def _require_variables(processor: Any, row_arguments: Mapping[str, Any], prompt: Prompt) -> None:
    templates = _templates(processor)
    unused = [name for name in row_arguments if not re.search(rf"\b{re.escape(name)}\b", templates)]
    if unused:
        raise DataError(
            f"the prompt {prompt.text!r:.60} sets {', '.join(unused)} for the chat template, but the template of "
            f"{type(processor).__name__} does not use it; use a model with a template that does, or rename the column "
            f"if only the rewards read it"
        )


def _templates(processor: Any) -> str:
    template = getattr(processor, "chat_template", None) or getattr(processor.tokenizer, "chat_template", None) or ""
    return "\n".join(template.values()) if isinstance(template, Mapping) else str(template)
