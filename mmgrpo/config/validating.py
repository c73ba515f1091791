"""Plain values into a ``RunConfig``: set at dotted keys, checked, every wrong key explained."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from mmgrpo.config import IN_ORDER, TOGETHER, RunConfig
from mmgrpo.config.peers import MAX_NAMED as MAX_OF_PEERS
from mmgrpo.config.peers import peer_pages, peer_suggestions, peer_value_suggestion
from mmgrpo.config.registry import names, policy_class, settings_type, suggestion
from mmgrpo.config.renamed import REMOVED, renamed_key, renamed_value
from mmgrpo.config.sections import Named
from mmgrpo.errors import ConfigError, UnknownNameError

MAX_NAMED = 8
"""Wrong keys that one message explains, in addition to settings of other libraries."""

LIKE_A_TYPO = 0.8
"""Similarity to a key of the section from which an unknown key, which another library has, may be a typo."""

KINDS = {
    "tuple": "a list, such as [a, b]",
    "list": "a list, such as [a, b]",
    "dictionary": "a mapping, such as {key: value}",
    "integer": "an integer",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
}
"""Pydantic's names of types -> words of YAML."""

EXAMPLES = {
    "rewards": "[{name: exact_match}]",
    "prompts": "{source: prompts.jsonl}",
    "policy": "{name: language, model: PATH}",
    "evaluation": "{prompts: {source: held_out.jsonl}}",
}
"""Examples of sections with several keys."""

INCLUDE = (
    "include is a key of YAML files, which are merged under the file that names them; write it into a file, for "
    "example include: [run.yaml, methods/dapo], and name that file (in Python: load_config(FILE))"
)

TASK = (
    "about.method.name is missing; a task is not a complete run: include it after a model and a method, "
    "include: [models/MODEL, methods/METHOD, tasks/TASK]"
)

FILE_KEYS = ("include", "use_paper_hparams")
"""Keys of files that the loader takes out of a configuration."""

USE_PAPER_HPARAMS = (
    "use_paper_hparams is true or false in a file that includes a method, or an override; there is no method here, so "
    "write the values out"
)


def typed(values: Mapping[str, Any]) -> RunConfig:
    """A ``RunConfig`` from plain values; its runs or tasks are not looked at. Raises ConfigError for wrong keys."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain_validation(error, RunConfig)) from None


def policy_settings(policy: Named) -> Any:
    """The settings of a policy with their defaults, an instance of its settings type.

    Raises ConfigError for wrong settings, and for a policy that cannot be built from settings.
    """
    if policy.name not in names("settings"):  # an adapter of others is imported for its settings
        policy_class(policy.name)
    kind = settings_type(policy.name)
    try:
        return kind(**policy.settings)
    except ValidationError as error:
        raise ConfigError(f"policy ({policy.name}): {explain_validation(error, kind)}") from None


def explain_validation(error: ValidationError, model: type[BaseModel]) -> str:
    """One line per wrong key, with the nearest allowed name for an unknown one."""
    lines = []
    problems, rest = _first_problems(error.errors())
    for problem in problems:
        location = [part for part in problem["loc"] if part not in (IN_ORDER, TOGETHER)]
        where = ".".join(map(str, location))
        if problem["type"] == "extra_forbidden":
            owner = _model_at(model, location[:-1])
            if where == "include":
                lines.append(INCLUDE)
                continue
            if where == "use_paper_hparams":
                lines.append(USE_PAPER_HPARAMS)
                continue
            new = renamed_key(where if model is RunConfig else f"policy.{where}")
            fix = _nearest_key(where, problem["input"], owner) if new is None else f"; it is now {new}"
            fix += "".join(f", and {old} is now {key}" for old, key in _moved_apart(where, new, problem["input"]))
            fix = f"; {REMOVED[where]}" if where in REMOVED else fix
            fix = _missing_space(problem["loc"][-1], problem["input"]) or fix
            lines.append(f"unknown key {where!r}{fix}")
        elif where == "policy.name" and problem["type"] == "missing":
            lines.append(
                "policy.name: no kind of policy is named (denoising, language, ...); name it, policy: {name: language, "
                "...}, or include a model before the file: include: [models/NAME, ...]"
            )
        elif where == "about.method.name" and problem["type"] == "missing":
            lines.append(TASK)
        elif where == "about.method.title" and TASK in lines:
            continue
        elif location[-1:] == ["name"] and problem["type"] == "missing" and _is_function(model, location[:-1]):
            lines.append(_missing_function(where, problem["input"]))
        else:
            of_peer = peer_value_suggestion(where if model is RunConfig else f"policy.{where}", problem["input"])
            fix = "" if of_peer is None else f"; {of_peer}"
            label = where or ("configuration" if model is RunConfig else "")
            lines.append(f"{label}{': ' if label else ''}{_plain_message(problem, where)}{fix}")
    pages = peer_pages(".".join(map(str, problem["loc"])) for problem in rest if _is_of_peer(problem))
    more = [f"and {len(rest)} more{f', see {pages}' if pages else ''}"] if rest else []
    return "; ".join([*lines, *more])


def _first_problems(problems: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The problems that a message explains, and the others: a file of another library has many unknown keys."""
    limits = {True: MAX_OF_PEERS, False: MAX_NAMED}
    first, rest = [], []
    for problem in problems:
        of_peer = _is_of_peer(problem)
        limits[of_peer] -= 1
        (first if limits[of_peer] >= 0 else rest).append(problem)
    return first, rest


def _is_of_peer(problem: Mapping[str, Any]) -> bool:
    return problem["type"] == "extra_forbidden" and bool(
        peer_suggestions(".".join(map(str, problem["loc"])), problem["input"])
    )


def _missing_function(where: str, settings: Mapping[str, Any]) -> str:
    """The message for settings without the name of their function; earlier keys had it in place of a name."""
    keys = {key: renamed_key(f"{where.rpartition('.')[0]}.{key}") for key in settings}
    named = [f"{key!r} is not a setting; it is now {new}" for key, new in keys.items() if new is not None]
    if spaces := [fix for key, value in settings.items() if (fix := _missing_space(key, value))]:
        return f"{where} is missing{spaces[0]}"
    return f"{where} is missing: " + (
        "; ".join(named) or f"write the name of the function next to its settings ({', '.join(map(str, settings))})"
    )


def _missing_space(key: object, value: Any) -> str:
    """The tail of a message about ``{key:value}``, which YAML reads as a key without a value; else an empty text."""
    name, colon, text = str(key).partition(":")
    return f"; write a space after the colon: {name}: {text}" if colon and value is None else ""


def _moved_apart(where: str, new: str | None, value: Any) -> list[tuple[str, str]]:
    """The keys of a renamed section whose new place is elsewhere, or has another name: earlier and new."""
    keys = [f"{where}.{name}" for name in value] if new is not None and isinstance(value, Mapping) else []
    moved = [(key, renamed_key(key)) for key in keys]
    return [(key, to) for key, to in moved if to is not None and to != f"{new}{key.removeprefix(where)}"]


def _nearest_key(where: str, value: Any, owner: type[BaseModel] | None) -> str:
    """The tail of an error message: keys for that of another library, else the nearest ones of the section or below."""
    key = where.rpartition(".")[2]
    fields = [*owner.model_fields, *(FILE_KEYS if owner is RunConfig else ())] if owner else []
    if sentences := peer_suggestions(where, value):
        near = difflib.get_close_matches(key, fields, n=1, cutoff=LIKE_A_TYPO)
        near = near or [name for name in fields if len(key) > 3 and name.startswith(key)]
        typo = [f"did you mean {name}? " for name in near]
        return f"; {''.join(typo)}{'; '.join(sentences)}"
    sections = {name: _model_at(owner, (name,)) for name in fields} if owner else {}
    inner = {
        inner_key: f"{name}.{inner_key}"
        for name, section in sections.items()
        if section is not None and section is not owner
        for inner_key in section.model_fields
    }
    if not difflib.get_close_matches(key, fields) and (near := difflib.get_close_matches(key, inner, n=1)):
        section = where.removesuffix(key)
        return f"; did you mean {section}{inner[near[0]]}?"
    return suggestion(key, fields)


def _plain_message(problem: Mapping[str, Any], where: str) -> str:
    """An error of pydantic in words of YAML, with the value and an example of a valid one."""
    message = problem["msg"].removeprefix("Value error, ")
    if message == "Field required":
        return "is missing"
    if not message.startswith("Input should be"):
        return message
    match = re.match(r"Input should be an? valid (\w+)", message)
    expected = KINDS.get(match[1], match[1]) if match else message.removeprefix("Input should be ")
    if where in EXAMPLES:
        expected = f"{expected.partition(', such as')[0]}, such as {where}={EXAMPLES[where]}"
    new = renamed_value(where, problem["input"])
    return f"must be {expected}; got {problem['input']!r:.80}" + (
        "" if new is None else f": {problem['input']!r} is now {new}"
    )


def _model_at(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    parts = iter(location)
    for part in parts:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        if field is None:
            return None
        inner = [a for a in _types_in(field.annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not inner:
            return None
        model = inner[0]
        if typing.get_origin(field.annotation) is dict:
            next(parts, None)  # a name of the user's own
    return model


def _is_function(model: type[BaseModel], location: Sequence[str | int]) -> bool:
    """Whether the value at a location is a function with its settings."""
    kind = _model_at(model, location)
    return kind is not None and issubclass(kind, Named)


def _types_in(annotation: Any) -> list[Any]:
    arguments = typing.get_args(annotation)
    return [annotation] if not arguments else [kind for argument in arguments for kind in _types_in(argument)]


def spelled_out(key: str, text: str) -> dict[str, Any]:
    """The mapping that a text is short for: the source of prompts, or the name of a function without settings."""
    return {"source" if key == "prompts" else "name": text}


def set_value(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Sets a value at the parts of a dotted key. Raises UnknownNameError for one inside a list."""
    for part in path[:-1]:
        inner = values.get(part)
        if isinstance(inner, str):
            inner = spelled_out(part, inner)
        if isinstance(inner, list) and path[path.index(part) + 1].isdigit():
            raise UnknownNameError(f"cannot override inside the list {part!r}; set the complete list: {part}=[...]")
        values[part] = dict(inner) if isinstance(inner, dict) else {}
        values = values[part]
    values[path[-1]] = value
