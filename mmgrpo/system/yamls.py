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
from yaml.composer import Composer

MAX_CHARACTERS = 2**18
MIN_CACHED_CHARACTERS = 300
"""Shorter texts, such as overrides, are parsed again: they would evict files from the cache."""
MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Maximal number of values and keys, counted with every repetition by anchors."""
MAX_INTEGER = 2**63

FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")


class YamlError(ValueError):
    """A text that is invalid YAML or exceeds a limit; the message is one line."""


class _Loader(Composer, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Counts the values that it creates; libyaml reads the text, where PyYAML is built with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        super(Composer, self).__init__(text)
        self._depth = 0
        self._weight: dict[int, int] = {}  # values of each complete node, by its id

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._weight:
                raise YamlError("an anchor contains itself")
            return node
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlError(f"it is nested more than {MAX_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        weight = 1 + sum(self._weight[id(child)] for child in _children(node))
        if weight > MAX_VALUES:
            raise YamlError(f"it expands to more than {MAX_VALUES} values")
        self._weight[id(node)] = weight
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = super().construct_yaml_int(node)
        if not -MAX_INTEGER <= value < MAX_INTEGER:
            raise YamlError("it has an integer of more than 64 bits; write it as a float: 1e30")
        return value


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _children(node: yaml.Node | None) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


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
        return yaml.load(text, _Loader)
    except YamlError:
        raise
    # the library also passes on errors of the values that it creates: dates, numbers, keys
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise YamlError(" ".join(str(error).split())[:500] or type(error).__name__) from error


def parse_yaml_1_1(text: str) -> Any:
    """The values of a text to a parser of YAML 1.1, such as PyYAML: 1e-4 is a text.

    It has no limits: for files of the project only.

    Raises: YamlError if the text is invalid.
    """
    try:
        return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise YamlError(" ".join(str(error).split())) from error
