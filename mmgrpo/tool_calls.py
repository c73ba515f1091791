"""Calls of tools in the text of a language model: their formats, their arguments and their results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

OPENING, CLOSING = "<tool_call>", "</tool_call>"
REASONING, REASONING_END = "<think>", "</think>"
FENCE = "```"
UNCLOSED_REASONING = f"the thinking block is not closed by {REASONING_END}: calls in it are not executed"
MAX_DEPTH = 32
"""Nesting of an argument up to which its types are checked."""

_TAG = re.compile("|".join(map(re.escape, (OPENING, CLOSING, REASONING, REASONING_END))))
_XML_FUNCTION = re.compile(r"<function=([^>\n]+)>")
JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""Types of Python by the type of JSON schema."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call that a model wrote.

    Attributes:
        name: name of the function; empty if it cannot be read.
        arguments: arguments by name.
        error: why the call cannot be read; None: it can.
    """

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call.

    Attributes:
        name: name of the function; empty if the call could not be read, or names no function.
        text: text of the result, or of the error.
        num_images: how many of the turn's images, in order, belong to it.
        num_videos: how many of its videos.
        num_audios: how many of its audio.
        failed: whether it is an error.
        seconds: duration of the call; not compared.
        arguments: arguments by name.
    """

    name: str
    text: str
    num_images: int = 0
    num_videos: int = 0
    num_audios: int = 0
    failed: bool = False
    seconds: float = field(default=0.0, compare=False)
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A turn of the policy.

    Attributes:
        text: its text, as ``Environment.step`` receives it.
        calls: the calls that the response template of the tokenizer reads in its tokens.
        content: its text without these calls, as that template reads it; None: there are none.
        begins_in_reasoning: whether it begins inside of a thinking block, which the prompt has opened.
    """

    text: str
    calls: Sequence[FunctionCall] = ()
    content: str | None = None
    begins_in_reasoning: bool = False


@dataclass(slots=True)
class _Answer:
    """The part of a turn after its thinking blocks.

    Attributes:
        start: its position in the turn.
        calls: the positions of its calls, from the opening tag to the end of the closing one; None in place of an end
            that is missing.
        unread: whether a thinking block that is not closed has a call.
    """

    start: int = 0
    calls: list[tuple[int, int | None]] = field(default_factory=list)
    unread: bool = False

    @classmethod
    def of(cls, text: str, begins_in_reasoning: bool) -> _Answer:
        """Reads the tags of a turn, in order; those inside of a call are part of it.

        A ``</think>`` without a beginning ends a thinking block that the prompt has opened, unless it is inside of a
        call that is closed after it. Without a ``</think>`` after it, ``<think>`` opens a block at the beginning alone.
        """
        answer = cls()
        first, last_end = len(text) - len(text.lstrip()), text.rfind(REASONING_END)
        reasons, ends_inside = begins_in_reasoning, None
        for tag in _TAG.finditer(text):
            position, name = tag.start(), tag[0]
            is_open = bool(answer.calls) and answer.calls[-1][1] is None
            if reasons and name == REASONING_END:
                reasons, answer.start, answer.unread = False, tag.end(), False
            elif reasons:
                answer.unread |= name == OPENING
            elif is_open and name == CLOSING:
                answer.calls[-1], ends_inside = (answer.calls[-1][0], tag.end()), None
            elif is_open and name == REASONING_END:
                ends_inside = tag.end()
            elif name == OPENING:
                if ends_inside is not None:
                    answer.start, answer.calls, ends_inside = ends_inside, [], None
                answer.calls.append((position, None))
            elif not is_open and name == REASONING_END:
                answer.start, answer.calls = tag.end(), []
            elif not is_open and name == REASONING:
                reasons = position == first or position < last_end
        answer.start = len(text) if reasons else answer.start
        return answer


def calls_in(
    text: str, schemas: Mapping[str, Mapping[str, Any]] | None = None, *, begins_in_reasoning: bool = False
) -> list[FunctionCall]:
    """The calls in a text, in order, in linear time.

    Formats: JSON of Hermes and Qwen, ``<tool_call>{"name": .., "arguments": {..}}</tool_call>``, and XML of Qwen3.5,
    ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``. Calls inside of
    ``<think>..</think>`` are not read; in a block that is not closed they are one call with an error.

    Args:
        text: a turn of the policy.
        schemas: the JSON schema of each function by name, which type the values of XML; None: they are texts.
        begins_in_reasoning: as in ``AssistantMessage``.

    Returns:
        The calls; one that cannot be read has an ``error``.
    """
    answer = _Answer.of(text, begins_in_reasoning)
    calls = [FunctionCall(error=UNCLOSED_REASONING)] if answer.unread else []
    for start, end in answer.calls:
        if end is None:
            calls.append(FunctionCall(error=f"the call is not closed by {CLOSING}"))
            continue
        body = text[start + len(OPENING) : end - len(CLOSING)]
        if function := _XML_FUNCTION.search(body):
            calls.append(_xml_call(function[1].strip(), body[function.end() :], schemas or {}))
        else:
            calls.append(_json_call(body))
    return calls


def calls_of(
    message: AssistantMessage, schemas: Mapping[str, Mapping[str, Any]] | None = None
) -> Sequence[FunctionCall]:
    """The calls of a turn: those that the response template reads.

    If it reads none, or cannot read one of them, the calls are those in the text, if any of these can be read: a call
    that cannot be read does not cost the others.

    Args:
        message: a turn of the policy.
        schemas: as in ``calls_in``.

    Returns:
        The calls.
    """
    if message.calls and all(call.error is None for call in message.calls):
        return message.calls
    calls = calls_in(message.text, schemas, begins_in_reasoning=message.begins_in_reasoning)
    return calls if not message.calls or any(call.error is None for call in calls) else message.calls


def without_calls(text: str, *, begins_in_reasoning: bool = False) -> str:
    """A text without its calls in the formats of ``calls_in``, the content of a message whose ``tool_calls`` hold them.

    Args:
        text: a turn of the policy.
        begins_in_reasoning: as in ``AssistantMessage``.

    Returns:
        The text, without white space around the calls; unchanged if it has none, or one that is not closed.
    """
    answer = _Answer.of(text, begins_in_reasoning)
    if not answer.calls or any(end is None for _, end in answer.calls):
        return text
    starts, ends = zip(*answer.calls, strict=True)
    rests = [text[end:start].strip() for end, start in zip(ends, [*starts[1:], len(text)], strict=True)]
    return text[: starts[0]].rstrip() + "".join(f"\n{rest}" for rest in rests if rest)


def fenced_calls(
    text: str,
    functions: Mapping[str, str],
    schemas: Mapping[str, Mapping[str, Any]],
    *,
    begins_in_reasoning: bool = False,
) -> list[FunctionCall]:
    """The code blocks in a text as calls of the function of their language.

    Args:
        text: a turn of the policy.
        functions: the function of each language, such as ``{python: run}``; its only required argument is the code.
        schemas: the JSON schema of each function by name.
        begins_in_reasoning: as in ``AssistantMessage``.

    Returns:
        The calls, in order; a block that is not closed has an ``error``, and one of another language is no call.
    """
    parts = text[_Answer.of(text, begins_in_reasoning).start :].split(FENCE)
    calls = []
    for number in range(1, len(parts), 2):
        language, newline, code = parts[number].partition("\n")
        name = functions.get(language.strip())
        if name is None or not newline:
            continue
        if number + 1 == len(parts):
            calls.append(FunctionCall(error=f"the code block is not closed by {FENCE}"))
        else:
            calls.append(FunctionCall(name, {code_argument(schemas[name]): code}))
    return calls


def code_argument(schema: Mapping[str, Any]) -> str:
    """The argument of a function that receives a code block: its only required one, else its first."""
    parameters = schema.get("parameters", {})
    names = parameters.get("required") or list(parameters.get("properties", {}))
    return names[0] if names else ""


def parsed_calls(message: Mapping[str, Any]) -> list[FunctionCall]:
    """The calls of a message that ``parse_response`` of transformers returns.

    Args:
        message: the message.

    Returns:
        The calls; one without a name, or whose arguments are no mapping, has an ``error``.
    """
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function", call) if isinstance(call, Mapping) else call
        calls.append(_call_of(function))
    return calls


def checked_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call as its function receives them.

    Args:
        schema: the function's JSON schema, with ``parameters``.
        arguments: the arguments.

    Returns:
        The arguments; a number such as 5.0, which is an integer of JSON schema, is an int where no other number is
        allowed.

    Raises:
        TypeError: an argument is missing or unknown, or the first one that is wrongly typed. Keywords of JSON schema
            other than ``type``, ``enum``, ``items``, ``prefixItems``, ``anyOf``, ``oneOf``, ``nullable``,
            ``properties``, ``additionalProperties``, ``required`` and ``$ref`` are not checked.
    """
    parameters = schema.get("parameters") or {}
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    if missing := [name for name in parameters.get("required") or () if name not in arguments]:
        raise TypeError(f"missing arguments: {', '.join(missing)}")
    others = parameters.get("additionalProperties")
    if not others and (extra := [name for name in arguments if name not in properties]):
        raise TypeError(f"unknown arguments: {', '.join(extra)}; expected are {', '.join(properties) or 'none'}")
    check = _Check(parameters)
    return {name: check.value(name, properties.get(name, others), each, MAX_DEPTH) for name, each in arguments.items()}


def description(tools: Sequence[Mapping[str, Any]]) -> str:
    """A text that describes functions and the format of a call, for models whose chat template does not.

    Args:
        tools: the functions, each ``{"type": "function", "function": SCHEMA}``.

    Returns:
        The text.
    """
    schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        f"You may call these functions:\n<tools>\n{schemas}\n</tools>\n"
        "To call one, write its name and arguments as JSON, and nothing after it:\n"
        f'{OPENING}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSING}'
    )


def bounded(text: str, max_chars: int) -> str:
    """The beginning of a text, with a note if the rest is cut off.

    Args:
        text: the text.
        max_chars: length of the beginning.

    Returns:
        The text, if it is not longer.
    """
    num_cut = len(text) - max_chars
    return text if num_cut <= 0 else f"{text[:max_chars]}\n[{num_cut} characters are cut off]"


def _json_call(body: str) -> FunctionCall:
    try:
        return _call_of(json.loads(body))
    except (ValueError, RecursionError) as error:
        return FunctionCall(error=f"the call is no JSON: {error}")


def _call_of(request: Any) -> FunctionCall:
    if not isinstance(request, Mapping) or not isinstance(request.get("name"), str):
        return FunctionCall(error='a call is {"name": .., "arguments": {..}}')
    arguments = request.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return FunctionCall(request["name"], error=f"the arguments are no JSON: {error}")
    if not isinstance(arguments or {}, Mapping):
        return FunctionCall(request["name"], error=f"arguments must be an object, got {type(arguments).__name__}")
    return FunctionCall(request["name"], dict(arguments or {}))


def _xml_call(name: str, body: str, schemas: Mapping[str, Mapping[str, Any]]) -> FunctionCall:
    properties = (schemas.get(name, {}).get("parameters") or {}).get("properties") or {}
    arguments: dict[str, Any] = {}
    for part in body.split("<parameter=")[1:]:
        key, _, rest = part.partition(">")
        value, closing, _ = rest.partition("</parameter>")
        if not closing:
            return FunctionCall(name, error=f"the parameter {key[:100]} is not closed by </parameter>")
        arguments[key.strip()] = _typed(value.removeprefix("\n").removesuffix("\n"), properties.get(key.strip()))
    return FunctionCall(name, arguments)


def _typed(text: str, schema: Any) -> Any:
    """A value of XML: the text itself where a text is allowed, else the value that it is in JSON, if it is one."""
    if "string" in (types := set(_types_of(schema))) or not types:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)


def _types_of(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        types = schema.get("type")
        yield from [types] if isinstance(types, str) else types or []
        for choices in ("anyOf", "oneOf"):
            for choice in schema.get(choices) or []:
                yield from _types_of(choice)


@dataclass(frozen=True, slots=True)
class _Check:
    """Checks values by the schemas of a function.

    Attributes:
        root: the schema to whose parts ``$ref`` refers.
    """

    root: Mapping[str, Any]

    def value(self, name: str, schema: Any, value: Any, depth: int) -> Any:
        """A value of a schema. Raises TypeError if it is none."""
        schema = self._referenced(schema)
        if not isinstance(schema, Mapping) or not depth or (value is None and schema.get("nullable")):
            return value
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            return self._chosen(name, choices, value, depth)
        if "enum" in schema and value not in schema["enum"]:
            raise TypeError(f"{name} must be one of {', '.join(map(str, schema['enum']))}, got {value!r:.60}")
        types = list(_types_of(schema))
        if types and not any(_is_of(value, kind) for kind in types):
            raise TypeError(f"{name} must be {' or '.join(types)}, got {value!r:.60}")
        if isinstance(value, float) and "integer" in types and "number" not in types:
            return int(value)
        if isinstance(value, list):
            schemas = chain(schema.get("prefixItems") or (), repeat(schema.get("items")))
            parts = enumerate(zip(schemas, value, strict=False))
            return [self.value(f"{name}[{n}]", of_item, item, depth - 1) for n, (of_item, item) in parts]
        if isinstance(value, dict):
            properties, others = schema.get("properties") or {}, schema.get("additionalProperties")
            if missing := [key for key in schema.get("required") or () if key not in value]:
                raise TypeError(f"{name} lacks {', '.join(missing)}")
            parts = value.items()
            return {
                key: self.value(f"{name}.{key}", properties.get(key, others), part, depth - 1) for key, part in parts
            }
        return value

    def _chosen(self, name: str, choices: Sequence[Any], value: Any, depth: int) -> Any:
        """A value of the first of several schemas that it fits. Raises the TypeError of the first if it fits none."""
        errors = []
        for choice in choices:
            try:
                return self.value(name, choice, value, depth - 1)
            except TypeError as error:
                errors.append(error)
        raise errors[0]

    def _referenced(self, schema: Any) -> Any:
        """The schema to which ``{"$ref": "#/$defs/NAME"}`` refers; None if there is none."""
        for _ in range(MAX_DEPTH):
            path = schema.get("$ref") if isinstance(schema, Mapping) else None
            if not isinstance(path, str):
                return schema
            schema = self.root if path.startswith("#") else None
            for key in path.removeprefix("#").split("/")[1:]:
                schema = schema.get(key) if isinstance(schema, Mapping) else None
        return None


def _is_of(value: Any, kind: str) -> bool:
    if kind not in JSON_TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, JSON_TYPES[kind])
