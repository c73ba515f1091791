"""Parses chat messages of the common formats; media are extracted and replaced by placeholder parts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from mmgrpo.data.media_options import require_options
from mmgrpo.data.prompt_media import COLUMNS, PAYLOADS, Medium, RowLocation
from mmgrpo.errors import DataError

TAG = re.compile("(<image>|<video>|<audio>)")
"""Placeholders in a text, in the format of verl, EasyR1, ms-swift and LLaVA."""

KINDS = {"image": "image", "image_url": "image", "video": "video", "video_url": "video"}
KINDS |= {"audio": "audio", "audio_url": "audio", "input_audio": "audio"}
"""Kind of medium by type of part, with the names of OpenAI and of transformers' chat templates."""

Message = dict[str, Any]


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """A placeholder in a message: for its inline medium, or for the next medium of the row."""

    kind: str
    medium: Medium | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in transformers' format and the media of their placeholders, in order.

    Attributes:
        messages: ``role`` and ``content``; a content with media is a list of parts; None for a plain text.
        media: by kind, the media of the parts ``{"type": "image"}``, ``video`` and ``audio``.
        text: the text of the last user turn with text.
    """

    messages: list[Message] | None
    media: Mapping[str, list[Any]]
    text: str


def parse_conversation(
    messages: Sequence[Any], row_media: Mapping[str, Sequence[Medium]], *, tags: bool, location: RowLocation
) -> Conversation:
    """Returns the messages with a part for every medium.

    A part may contain its medium; the other parts take the row's media in order. Without such parts, the row's images,
    then videos, then audio are inserted before the text of the first user turn, as in TRL's
    ``prepare_multimodal_messages``.

    Args:
        messages: the messages, each as ``parse_message`` returns it.
        row_media: the row's media by kind.
        tags: whether ``<image>``, ``<video>`` and ``<audio>`` in a content that is a text are placeholders.
        location: location of the row.

    Returns:
        The conversation.

    Raises:
        DataError: malformed messages, parts of other types, or numbers of placeholders and media that differ.
    """
    turns = [_turn(message, tags, location) for message in messages]
    text = _last_user_text(messages, tags, location)
    for kind in reversed(COLUMNS):
        num_waiting = sum(slot.kind == kind and slot.medium is None for slot in _slots(turns))
        if num_waiting == 0 and row_media[kind]:
            first = next(turn for turn in turns if turn["role"] == "user")
            first["content"] = [*[Slot(kind)] * len(row_media[kind]), *_as_parts(first["content"])]
        elif num_waiting != len(row_media[kind]):
            raise DataError(_mismatch(kind, num_waiting, len(row_media[kind]), location))
    queues = {kind: iter(media) for kind, media in row_media.items()}
    slots_media = [(slot, slot.medium or next(queues[slot.kind])) for slot in _slots(turns)]
    parts = iter([_media_part(slot, medium, location) for slot, medium in slots_media])
    for turn in turns:
        if isinstance(turn["content"], list):
            turn["content"] = [next(parts) if isinstance(part, Slot) else part for part in turn["content"]]
    return Conversation(
        messages=turns,
        media={kind: [medium.item for slot, medium in slots_media if slot.kind == kind] for kind in COLUMNS},
        text=text,
    )


def _media_part(slot: Slot, medium: Medium, location: RowLocation) -> dict[str, Any]:
    part = {"type": slot.kind, **slot.options, **medium.options}
    require_options(slot.kind, part, location.where)
    return part


def _slots(turns: Sequence[Message]) -> list[Slot]:
    contents = [turn["content"] for turn in turns if isinstance(turn["content"], list)]
    return [part for content in contents for part in content if isinstance(part, Slot)]


def parse_message(message: Any, location: RowLocation) -> Message:
    """A chat message whose content is a text or a list, or null or absent if it has tool calls.

    Args:
        message: message of a row; its ``tool_calls`` may be a text of JSON, or a list of such texts.
        location: location of the row.

    Returns:
        The message with ``content`` (None if it only has tool calls) and with ``tool_calls`` as a list of mappings.

    Raises:
        DataError: the message has another format.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(f"{location.where}: a chat message needs 'role' and 'content', got {message!r:.80}")
    calls = _tool_calls(message.get("tool_calls"), location)
    content = message.get("content")
    if "content" not in message and not calls:
        raise DataError(f"{location.where}: a chat message needs 'role' and 'content', got {message!r:.80}")
    if not isinstance(content, str | list | tuple) and not (content is None and calls):
        raise DataError(f"{location.where}: a message's content must be a text or a list of parts, got {content!r:.80}")
    if not isinstance(content, str) and not all(isinstance(part, Mapping) for part in content or ()):
        raise DataError(
            f"{location.where}: the parts of a message must be objects such as {{'type': 'text', 'text': ...}}, got "
            f"{content!r:.80}"
        )
    return {**message, "content": content, **({"tool_calls": calls} if calls else {})}


def _tool_calls(value: Any, location: RowLocation) -> list[Any]:
    try:
        calls = json.loads(value) if isinstance(value, str) and value.strip() else value
        calls = [json.loads(call) if isinstance(call, str) else call for call in calls or ()]
    except (ValueError, TypeError, RecursionError):
        calls = [None]
    if not all(isinstance(call, Mapping) for call in calls):
        raise DataError(
            f"{location.where}: 'tool_calls' of a message must be a list of objects, or its JSON text, got "
            f"{value!r:.80}"
        )
    return calls


def _turn(message: Message, tags: bool, location: RowLocation) -> Message:
    """The message with its placeholders as slots, without null keys, which arrow adds."""
    content = message["content"]
    if isinstance(content, str) and tags and TAG.search(content):
        split = (segment for segment in TAG.split(content) if segment)
        content = [{"type": s[1:-1]} if TAG.fullmatch(s) else {"type": "text", "text": s} for s in split]
    if isinstance(content, list | tuple):
        content = [_part(part, message["role"], location) for part in content]
    return {**{key: value for key, value in message.items() if value is not None}, "content": content}


def _part(part: Any, role: str, location: RowLocation) -> dict[str, Any] | Slot:
    valid_types = ("text", *KINDS)
    fields = {key: value for key, value in part.items() if value is not None} if isinstance(part, Mapping) else {}
    name = fields.get("type") or next((key for key in valid_types if key in fields), None)
    if name == "text" and isinstance(fields.get("text"), str):
        return {"type": "text", **fields}
    if name not in KINDS:
        raise DataError(
            f"{location.where}: a part of the {role} turn is neither of the known types "
            f"({', '.join(valid_types)}) nor a text, got {part!r:.80}; leave it out or write it as one of them"
        )
    kind = KINDS[name]
    if any(key in fields for key in PAYLOADS[kind]):
        return Slot(kind, location.medium(fields, kind))
    return Slot(kind, None, {key: value for key, value in fields.items() if key not in ("type", "text", "detail")})


def _as_parts(content: str | list[Any]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _mismatch(kind: str, num_waiting: int, num_media: int, location: RowLocation) -> str:
    column, list_column = COLUMNS[kind]
    return (
        f"{location.where}: the messages hold {num_waiting} {kind} placeholders and the row {num_media} {list_column} "
        f"for them; write one <{kind}> tag or {kind} part for each in '{column}' or '{list_column}', or no placeholder "
        f"at all to show them before the first user turn"
    )


def _last_user_text(messages: Sequence[Mapping[str, Any]], tags: bool, location: RowLocation) -> str:
    contents = [message["content"] for message in messages if message["role"] == "user"]
    text = next((text for content in reversed(contents) if (text := _plain(content, tags))), "")
    if not text and not any(isinstance(content, list | tuple) or (tags and content) for content in contents):
        raise DataError(
            f"{location.where}: the chat messages hold no user turn with text; one is needed as the prompt's text"
        )
    return text


def _plain(content: Any, tags: bool) -> str:
    if isinstance(content, str):
        return " ".join(part.strip() for part in TAG.split(content)[::2]).strip() if tags else content
    return "\n".join(part["text"] for part in content or () if part.get("text"))
