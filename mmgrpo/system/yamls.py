"""A YAML parser with floats of YAML 1.2 and with limits, because a file may be untrusted.

A few lines with anchors can expand to billions of values, a thousand brackets exceed Python's recursion limit, and an
integer can have a million digits: such texts raise a one-line error. The parser only creates plain values.
"""

from __future__ import annotations

import re
from copy import deepcopy
from functools import lru_cache
from typing import Any

import yaml

MAX_CHARACTERS = 2**18
MIN_CACHED_CHARACTERS = 300
"""Shorter texts, such as overrides, are parsed again: they would evict files from the cache."""
MAX_DEPTH = 50
TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"
MAX_VALUES = 100_000
"""Maximal number of values and keys, counted with every repetition by anchors."""
MAX_INTEGER = 2**63

FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")


class YamlError(ValueError):
    """A text that is invalid YAML or exceeds a limit; the message is one line."""


_Library: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Parser and emitter in C, several times as fast, if PyYAML was built with them."""


def dump_yaml(values: Any) -> str:
    """Plain values as YAML, keys in their order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Loader(_Library):
    """Without integers of more than 64 bits."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = super().construct_yaml_int(node)
        if not -MAX_INTEGER <= value < MAX_INTEGER:
            raise YamlError("it has an integer of more than 64 bits; write it as a float: 1e30")
        return value


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _require_bounded(text: str) -> None:
    """Raises YamlError for a text that is nested too deep or expands to too many values, before any is created."""
    num_values = [0]  # of each open list or mapping, innermost last
    names: list[str | None] = []  # of their anchors
    num_values_by_anchor: dict[str | None, int] = {}
    for event in yaml.parse(text, _Library):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in names:
                raise YamlError("an anchor contains itself")
            num_values[-1] += num_values_by_anchor.get(event.anchor, 0)  # an unknown one: an error of the library
        elif isinstance(event, yaml.CollectionStartEvent):
            num_values.append(1)
            names.append(event.anchor)
            if len(names) > MAX_DEPTH:
                raise YamlError(TOO_DEEP)
        elif isinstance(event, yaml.ScalarEvent):
            num_values[-1] += 1
            if event.anchor:
                num_values_by_anchor[event.anchor] = 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, num_inner = names.pop(), num_values.pop()
            num_values[-1] += num_inner
            if anchor:
                num_values_by_anchor[anchor] = num_inner
        if num_values[-1] > MAX_VALUES:
            raise YamlError(f"it expands to more than {MAX_VALUES} values")


def parse_yaml(text: str) -> Any:
    """Parses a YAML text.

    Raises: YamlError if it is invalid, or exceeds a limit of depth, size or integers.
    """
    if len(text) > MAX_CHARACTERS:
        raise YamlError(f"it has more than {MAX_CHARACTERS} characters")
    return _parsed(text) if len(text) < MIN_CACHED_CHARACTERS else deepcopy(_cached(text))


@lru_cache(maxsize=512)  # many runs include the same file, and parsing is slow
def _cached(text: str) -> Any:
    return _parsed(text)


def _parsed(text: str) -> Any:
    try:
        _require_bounded(text)
        return yaml.load(text, _Loader)
    except YamlError:
        raise
    # the library also passes on errors of the values that it creates: dates, numbers, keys
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        message = " ".join(str(error).split())[:500] or type(error).__name__
        # within brackets the library reads ahead, up to its own limit
        raise YamlError(TOO_DEEP if "maximum nesting depth" in message else message) from error


def parse_yaml_1_1(text: str) -> Any:
    """The values of a text to a parser of YAML 1.1, such as PyYAML: 1e-4 is a text.

    It has no limits: for files of the project only.

    Raises: YamlError if the text is invalid.
    """
    try:
        return yaml.load(text, _Library)
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from error
