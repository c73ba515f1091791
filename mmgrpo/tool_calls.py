"""Calls of tools in the text of a language model: their formats, their arguments and their results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OPENING, CLOSING = "<tool_call>", "</tool_call>"
REASONING_END = "</think>"
FENCE = "```"
MAX_DEPTH = 32
"""Nesting of an argument up to which its types are checked."""

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
        failed: whether it is an error.
        seconds: duration of the call; not compared.
        arguments: arguments by name.
    """

    name: str
    text: str
    num_images: int = 0
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
    """

    text: str
    calls: Sequence[FunctionCall] = ()
    content: str | None = None


def calls_in(text: str, schemas: Mapping[str, Mapping[str, Any]] | None = None) -> list[FunctionCall]:
    """The calls in a text, in order, in linear time.

    Formats: JSON of Hermes and Qwen, ``<tool_call>{"name": .., "arguments": {..}}</tool_call>``, and XML of Qwen3.5,
    ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``. Calls inside of
    ``<think>..</think>`` are not read.

    Args:
        text: a turn of the policy.
        schemas: the JSON schema of each function by name, which type the values of XML; None: they are texts.

    Returns:
        The calls; one that cannot be read has an ``error``.
    """
    answer = text.rpartition(REASONING_END)[2]
    calls = []
    for part in answer.split(OPENING)[1:]:
        body, closing, _ = part.partition(CLOSING)
        if not closing:
            calls.append(FunctionCall(error=f"the call is not closed by {CLOSING}"))
        elif function := _XML_FUNCTION.search(body):
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
    calls = calls_in(message.text, schemas)
    return calls if not message.calls or any(call.error is None for call in calls) else message.calls


def without_calls(text: str) -> str:
    """A text without its calls in the formats of ``calls_in``, the content of a message whose ``tool_calls`` hold them.

    Args:
        text: a turn of the policy.

    Returns:
        The text, without white space around the calls; unchanged if it has none, or one that is not closed.
    """
    reasoning, end, answer = text.rpartition(REASONING_END)
    first, *parts = answer.split(OPENING)
    if not parts or any(CLOSING not in part for part in parts):
        return text
    rests = [part.partition(CLOSING)[2].strip() for part in parts]
    return f"{reasoning}{end}{first.rstrip()}" + "".join(f"\n{rest}" for rest in rests if rest)


def fenced_calls(
    text: str, functions: Mapping[str, str], schemas: Mapping[str, Mapping[str, Any]]
) -> list[FunctionCall]:
    """The code blocks in a text as calls of the function of their language.

    Args:
        text: a turn of the policy.
        functions: the function of each language, such as ``{python: run}``; its only required argument is the code.
        schemas: the JSON schema of each function by name.

    Returns:
        The calls, in order; a block that is not closed has an ``error``, and one of another language is no call.
    """
    parts = text.rpartition(REASONING_END)[2].split(FENCE)
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
            other than ``type``, ``enum``, ``items``, ``anyOf``, ``oneOf``, ``nullable``, ``properties`` and
            ``required`` are not checked.
    """
    parameters = schema.get("parameters") or {}
    properties: Mapping[str, Any] = parameters.get("properties") or {}
    if missing := [name for name in parameters.get("required") or () if name not in arguments]:
        raise TypeError(f"missing arguments: {', '.join(missing)}")
    if not parameters.get("additionalProperties") and (extra := [name for name in arguments if name not in properties]):
        raise TypeError(f"unknown arguments: {', '.join(extra)}; expected are {', '.join(properties) or 'none'}")
    return {name: _checked(name, properties.get(name), value, MAX_DEPTH) for name, value in arguments.items()}


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


def _checked(name: str, schema: Any, value: Any, depth: int) -> Any:
    """A value of a schema. Raises TypeError if it is none."""
    if not isinstance(schema, Mapping) or not depth or (value is None and schema.get("nullable")):
        return value
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return _chosen(name, choices, value, depth)
    if "enum" in schema and value not in schema["enum"]:
        raise TypeError(f"{name} must be one of {', '.join(map(str, schema['enum']))}, got {value!r:.60}")
    types = list(_types_of(schema))
    if types and not any(_is_of(value, kind) for kind in types):
        raise TypeError(f"{name} must be {' or '.join(types)}, got {value!r:.60}")
    if isinstance(value, float) and "integer" in types and "number" not in types:
        return int(value)
    if isinstance(value, list):
        return [_checked(f"{name}[{n}]", schema.get("items"), item, depth - 1) for n, item in enumerate(value)]
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        if missing := [key for key in schema.get("required") or () if key not in value]:
            raise TypeError(f"{name} lacks {', '.join(missing)}")
        return {key: _checked(f"{name}.{key}", properties.get(key), part, depth - 1) for key, part in value.items()}
    return value


def _chosen(name: str, choices: Sequence[Any], value: Any, depth: int) -> Any:
    """A value of the first of several schemas that it fits. Raises the TypeError of the first if it fits none."""
    errors = []
    for choice in choices:
        try:
            return _checked(name, choice, value, depth - 1)
        except TypeError as error:
            errors.append(error)
    raise errors[0]


def _is_of(value: Any, kind: str) -> bool:
    if kind not in JSON_TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, JSON_TYPES[kind])
