"""Turns of an environment as messages of a chat template, and calls of tools in the tokens of a turn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.environment import Turn
from mmgrpo.tool_calls import AssistantMessage, FunctionCall, parsed_calls
from mmgrpo.types import Prompt

ANSWER = "<<the answer>>"  # replaces one where only the text after it is needed
FUNCTION = "probe_function"
FUNCTION_SCHEMA = {"name": FUNCTION, "description": "x", "parameters": {"type": "object", "properties": {}}}


@dataclass(frozen=True, slots=True)
class ToolCallForm:
    """A form of the answer before results in which a chat template writes them.

    Attributes:
        content: its content; empty for templates that write the content after the results (Gemma 4).
        arguments: arguments of its calls, with ``ANSWER``; a text for templates that need JSON (DeepSeek).
    """

    content: str
    arguments: Mapping[str, str] | str


CALL_FORMS = (
    ToolCallForm(ANSWER, {"x": ANSWER}),
    ToolCallForm("", {"x": ANSWER}),
    ToolCallForm(ANSWER, json.dumps({"x": ANSWER})),
)


def reply_messages(reply: Turn, call_form: ToolCallForm | None) -> list[dict[str, Any]]:
    """An answer of the policy, ``ANSWER``, and a turn of the environment after it.

    Args:
        reply: the turn.
        call_form: form in which the chat template writes results of calls as turns of a tool; None: results are a
            turn of the user.

    Returns:
        The messages. Each result has its own, and the answer has calls with ``ANSWER`` in them, as some templates need
        them.
    """
    answer: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    if reply.role != "tool" or call_form is None or not reply.results:
        role = "user" if reply.role == "tool" and call_form is None else reply.role
        return [answer, {"role": role, "content": _content(reply)}]
    names = [result.name or "unknown" for result in reply.results]
    functions = [{"name": name, "arguments": call_form.arguments} for name in names]
    calls = [{"type": "function", "function": function} for function in functions]
    messages = [{**answer, "content": call_form.content, "tool_calls": calls}]
    results = zip(names, map(_content, reply.result_turns), strict=True)
    return [*messages, *({"role": "tool", "name": name, "content": content} for name, content in results)]


def after_answer(rendered: str, ends: Sequence[str]) -> str | None:
    """The text of a template after ``ANSWER``.

    Args:
        rendered: the text.
        ends: texts of end tokens, of which the first one after ``ANSWER`` begins the result; empty: it begins at once.

    Returns:
        The text; None if ``ANSWER``, or an end token after it, is missing.
    """
    start = rendered.rfind(ANSWER)
    tail = rendered[start + len(ANSWER) :]
    if start < 0 or not ends:
        return None if start < 0 else tail
    positions = [position for end in ends if (position := tail.find(end)) >= 0]
    return tail[min(positions) :] if positions else None


def template_message(
    tokenizer: Any,
    text: str,
    tokens: Sequence[int],
    before: Sequence[int],
    tools: Sequence[Mapping[str, Any]] | None,
) -> AssistantMessage:
    """A turn of the policy with its calls of tools, by the response template of the tokenizer.

    Args:
        tokenizer: of transformers.
        text: text of the turn.
        tokens: tokens of the turn.
        before: tokens before it, at least from the last header of an assistant on.
        tools: the functions, which type the arguments.

    Returns:
        The turn; without calls if there is no response template. A turn that the template cannot read is one call with
        an error.

    Source: transformers ``PreTrainedTokenizerBase.parse_response``.
    """
    if getattr(tokenizer, "response_template", None) is None:
        return AssistantMessage(text)
    try:
        message = tokenizer.parse_response(list(tokens), prefix=list(before), tools=tools)
        calls = parsed_calls(message)
    except (ValueError, TypeError, KeyError) as error:
        return AssistantMessage(text, [FunctionCall(error=f"the turn cannot be read: {error}")])
    content = message.get("content") or ""
    return AssistantMessage(text, calls, content if calls and isinstance(content, str) else None)


def _content(turn: Turn) -> str | list[dict[str, Any]]:
    return media_prompt(turn).parts if turn.num_media else turn.text


def media_prompt(turn: Turn) -> Prompt:
    """A turn's text and media as a prompt."""
    return Prompt(turn.text, images=turn.images, videos=turn.videos, audios=turn.audios)
