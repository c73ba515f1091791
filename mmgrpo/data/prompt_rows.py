"""Converts a row of data to a prompt, for the column layouts of common frameworks."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from mmgrpo.data.chat_messages import TAG, Conversation, parse_conversation, parse_message
from mmgrpo.data.column_maps import MEDIA_COLUMNS
from mmgrpo.data.prompt_media import COLUMNS, RowLocation, lazy_media
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt

REFERENCE, BOX = "<ref-object>", "<bbox>"


@final
@dataclass(frozen=True, slots=True)
class RowFormat:
    """A layout of rows.

    Attributes:
        column: column of the prompt, a text or chat messages.
        always_tagged: ``<image>``, ``<video>`` and ``<audio>`` are placeholders even in a row without such columns.
        ends_in_reference: a last assistant turn is the reference answer, not part of the prompt.
        is_reward_column: whether the column is also passed to the rewards.
    """

    column: str
    always_tagged: bool = False
    ends_in_reference: bool = False
    is_reward_column: bool = False


ROW_FORMATS = (
    RowFormat("prompt"),  # TRL, verl
    RowFormat("messages", always_tagged=True, ends_in_reference=True),  # ms-swift
    RowFormat("problem", is_reward_column=True),  # EasyR1, R1-V
)
"""Supported layouts; a row has the first one whose column it contains."""


def row_format_of(columns: Iterable[str], text_column: str) -> RowFormat | None:
    """The layout of rows with these columns; None if no column holds a prompt.

    A ``text_column`` other than that of the first layout is required.
    """
    columns = set(columns)
    named = next((form for form in ROW_FORMATS if form.column == text_column), RowFormat(text_column))
    candidates = ROW_FORMATS if named is ROW_FORMATS[0] else (named,)
    return next((form for form in candidates if form.column in columns), None)


def prompt_of_row(
    row: Any,
    text_column: str,
    *,
    where: str,
    folder: Path | None,
    allow_fetch: bool = False,
    image_columns: Sequence[str] = (),
    roots: tuple[Path, ...] | None = None,
) -> Prompt:
    """The prompt of a row of data; everything except the prompt, negative prompt and media becomes ``columns``.

    Args:
        row: the row, a mapping of columns.
        text_column: the column of the text or the chat messages.
        where: name of the row in errors.
        folder: base of relative paths of media; None: they are not resolved.
        allow_fetch: whether images and audio on the network are allowed.
        image_columns: further columns of images, one or a list each; the row may lack them.
        roots: allowed folders of media; None: all.

    Returns:
        The prompt.

    Raises:
        DataError: the row has no prompt, malformed chat messages, or more or fewer placeholders than media; an image
            does not exist or cannot be opened; or a medium is on the network or outside of the folders.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{where} must be an object with a '{text_column}', got {type(row).__name__}")
    form = row_format_of(row, text_column)
    value = row[form.column] if form else None
    if form is None or not value or not isinstance(value, str | list):
        raise DataError(
            f"{where} has no prompt: '{text_column}' must be a text or a list of chat messages, got {value!r:.60}; its "
            f"columns are {', '.join(map(str, row))}; prompts.columns: {{prompt: COLUMN}} names the one that holds it"
        )
    location = RowLocation(where, folder, allow_fetch, roots)
    value = _decoded_messages(value)
    if isinstance(value, list):
        value = [parse_message(message, location) for message in value]
    row_media = {kind: location.media(row, kind) for kind in COLUMNS}
    tags = form.always_tagged or any(name in row for name in MEDIA_COLUMNS)
    messages, extra_columns = _messages(value, row, form, location), _ground_truth(row)
    if messages and form.ends_in_reference and _is_turn(messages[-1], "assistant"):
        extra_columns["solution"] = _text(messages.pop())
    has_options = any(medium.options for media in row_media.values() for medium in media)
    if isinstance(value, str) and ((tags and TAG.search(value)) or has_options):
        messages = [{"role": "user", "content": value}]
    used = ("negative_prompt", *MEDIA_COLUMNS, *(() if form.is_reward_column else (form.column,)))
    columns = {name: value for name, value in row.items() if name not in used}
    columns |= {name: value for name, value in extra_columns.items() if columns.get(name) is None}
    columns |= {name: location.pictures(columns[name]) for name in image_columns if columns.get(name) is not None}
    if messages is None:
        conversation = Conversation(
            None, {kind: [m.item for m in media] for kind, media in row_media.items()}, str(value)
        )
    else:
        conversation = parse_conversation(messages, row_media, tags=tags, location=location)
    require_unicode([conversation.text, conversation.messages, row.get("negative_prompt")], where)
    return Prompt(
        conversation.text,
        images=lazy_media(conversation.media["image"]),
        videos=lazy_media(conversation.media["video"], "video"),
        audios=lazy_media(conversation.media["audio"], "audio"),
        messages=conversation.messages,
        negative=_negative(row, where),
        columns=columns,
        chat_template_kwargs=_chat_template_kwargs(row, where),
    )


def require_unicode(value: Any, where: str) -> None:
    """Raises DataError if a text, at any depth of lists and objects, has an unpaired surrogate."""
    text = json.dumps(value, ensure_ascii=False, skipkeys=True, default=lambda other: type(other).__name__)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: the text holds {text[error.start]!a}, half of a surrogate pair, which is no character; remove it"
        ) from error


def _negative(row: Mapping[str, Any], where: str) -> str | None:
    value = row.get("negative_prompt")
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}: 'negative_prompt' must be a text or null, got {value!r:.60}")
    return value


def _decoded_messages(prompt: str | list[Any]) -> str | list[Any]:
    """The chat messages of a text in JSON or Python notation; any other text unchanged.

    A single message, and an object with the key ``messages``, also give a list. Messages of another format, such as
    those with ``from`` and ``value``, are returned as a list too; ``parse_message`` raises an error for them.
    """
    if isinstance(prompt, list) or prompt.strip()[:1] + prompt.strip()[-1:] not in ("[]", "{}"):
        return prompt
    value = _literal(prompt.strip())
    if isinstance(value, dict):
        value = value.get("messages", [value] if "content" in value or "value" in value else None)
    is_chat = isinstance(value, list) and bool(value) and all(map(_is_like_message, value))
    return value if is_chat else prompt


def _literal(text: str) -> Any:
    """The value of a text in JSON or Python notation (``str(messages)``); None if it is neither."""
    is_python = any(f"'{key}'" in text for key in ("role", "from", "ground_truth"))
    for load in (json.loads, *([ast.literal_eval] if is_python else [])):
        try:
            return load(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _is_like_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or {"from", "value"} <= set(value))


def _chat_template_kwargs(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The values of TRL's columns ``tools`` and ``chat_template_kwargs``, also as JSON texts; empty without them."""
    kwargs: dict[str, Any] = {}
    for name, kind in (("tools", list), ("chat_template_kwargs", dict)):
        value = row.get(name)
        if isinstance(value, str):
            try:
                value = json.loads(value) if value.strip() else None
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{where}: the column '{name}' goes to the chat template and is no JSON ({error}); write it as a "
                    f"{kind.__name__}, or rename the column if it is for the rewards alone"
                ) from error
        if value is not None and not isinstance(value, kind):
            raise DataError(
                f"{where}: the column '{name}' goes to the chat template and must be a {kind.__name__}, got "
                f"{type(value).__name__}; rename it if it is for the rewards alone"
            )
        if value:
            kwargs |= {"tools": value} if name == "tools" else value
    return kwargs


def _messages(
    value: str | list[Any], row: Mapping[str, Any], form: RowFormat, location: RowLocation
) -> list[Any] | None:
    if isinstance(value, str):
        return None
    objects = row.get("objects")
    names = objects.get("ref") if form.ends_in_reference and isinstance(objects, Mapping) else None
    if names is not None and not isinstance(names, list | tuple):
        raise DataError(f"{location.where}: objects.ref must be a list of names, got {names!r:.60}")
    return list(value) if names is None else _with_names(value, names, location)


def _with_names(messages: Sequence[Any], names: Sequence[str], location: RowLocation) -> list[Any]:
    """The messages with ms-swift's ``<ref-object>`` tags replaced, in order, by the names of ``objects``."""
    texts = [message["content"] if _is_turn(message) else None for message in messages]
    num_tags = sum(text.count(REFERENCE) for text in texts if isinstance(text, str))
    prompt_texts = [text for message, text in zip(messages, texts, strict=True) if not _is_turn(message, "assistant")]
    if num_tags > len(names):
        raise DataError(
            f"{location.where}: the messages hold {num_tags} {REFERENCE} tags and objects.ref {len(names)} names; give "
            f"each tag its name"
        )
    if any(BOX in text for text in prompt_texts if isinstance(text, str)):
        raise DataError(
            f"{location.where}: the prompt holds a {BOX} tag, and each model reads boxes in its own form; write the "
            f"coordinates out as yours does"
        )
    following = iter(names)
    named = [re.sub(REFERENCE, lambda _: str(next(following)), t) if isinstance(t, str) else None for t in texts]
    pairs = zip(messages, named, strict=True)
    return [message if text is None else {**message, "content": text} for message, text in pairs]


def _is_turn(message: Any, role: str | None = None) -> bool:
    return isinstance(message, Mapping) and "content" in message and role in (None, message.get("role"))


def _ground_truth(row: Mapping[str, Any]) -> dict[str, Any]:
    """verl's nested answer, under the column names that rewards read."""
    nested = row.get("reward_model")
    if isinstance(nested, str) and nested.lstrip().startswith("{"):
        nested = _literal(nested.strip())
    truth = nested.get("ground_truth") if isinstance(nested, Mapping) else None
    return {} if truth is None else {"ground_truth": truth, "answer": truth}


def _text(message: Mapping[str, Any]) -> str:
    """The text of a turn; its tool calls as JSON if it has no text."""
    content = message["content"] or ""
    parts = [] if isinstance(content, str) else [part for part in content if isinstance(part, Mapping)]
    text = content if isinstance(content, str) else "\n".join(str(part["text"]) for part in parts if part.get("text"))
    calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
    return text if text or not calls else json.dumps(calls, ensure_ascii=False)
