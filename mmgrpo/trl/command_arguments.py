"""The arguments of a command line of TRL's scripts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from mmgrpo.errors import ConfigError
from mmgrpo.trl.arguments import ARGUMENTS, GRPOConfig
from mmgrpo.trl.script_arguments import EARLIER

TRUTHS = {"true": True, "yes": True, "false": False, "no": False}
LISTS = ("reward_weights",)
"""Arguments that are lists, also with a single value."""


def command_arguments(line: str) -> dict[str, Any]:
    """The arguments of a command line by name.

    Args:
        line: the arguments, such as ``--learning_rate 1e-5 --use_peft``, or the command that launches a script.

    Returns:
        Numbers, truth values, texts and lists of them, as TRL's parser reads them.

    Raises:
        ConfigError: the line has an open quote, or a value without a name.
    """
    try:
        tokens = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"--arguments cannot be split into words: {error}") from error
    scripts = [number for number, token in enumerate(tokens) if token.endswith(".py")]
    hints = get_type_hints(GRPOConfig)
    arguments: dict[str, Any] = {}
    for name, values in _named(tokens[scripts[-1] + 1 if scripts else 0 :]):
        positive = name.removeprefix("no_")
        if not values and name not in (*ARGUMENTS, *EARLIER) and positive in ARGUMENTS:
            arguments[positive] = False
        else:
            arguments[name] = _value(name, values, _types(hints.get(name)))
    return arguments


def _named(tokens: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The names with their values. Raises ConfigError for a value without a name."""
    name, values = "", list[str]()
    for token in [*tokens, "--"]:
        if not token.startswith("--"):
            values.append(token)
            continue
        if name:
            yield name, values
        elif values:
            raise ConfigError(f"--arguments must begin with a name, such as --learning_rate 1e-5; got {values[0]!r}")
        name, equals, value = token.removeprefix("--").partition("=")
        name, values = name.replace("-", "_"), [value] if equals else []


def _types(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) or (hint,)


def _value(name: str, texts: list[str], types: tuple[Any, ...]) -> Any:
    """The value of an argument; without texts it is set."""
    if not texts:
        return True
    is_text = str in types and not {int, float, bool}.intersection(types)
    values = texts if is_text else [_scalar(text) for text in texts]
    return values[0] if len(values) == 1 and name not in LISTS else values


def _scalar(text: str) -> Any:
    if text.lower() in TRUTHS:
        return TRUTHS[text.lower()]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
