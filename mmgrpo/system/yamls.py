"""YAML as it is read here: floats of YAML 1.2, and within bounds, for a file may be a stranger's.

A few lines with anchors stand for billions of values, a thousand brackets are more than Python can follow, and a number
of a million digits is no number: such texts are errors of one line. Nothing but plain values is ever made.
"""

from __future__ import annotations

import re
from copy import deepcopy
from functools import lru_cache
from typing import Any

import yaml

MAX_CHARACTERS = 2**18
MAX_DEPTH = 50
MAX_VALUES = 100_000
"""Values, keys included, counted as often as anchors repeat them."""
MAX_WHOLE = 2**63

FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")


class YamlError(ValueError):
    """A text that is no YAML, or more than is read here; the message is one line."""


class _Loader(yaml.SafeLoader):
    """Counts what it makes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._weight: dict[int, int] = {}  # of each node that is complete, by its id

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if id(node) not in self._weight:
                raise YamlError("an anchor stands within itself")
            return node
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlError(f"it is nested more than {MAX_DEPTH} deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        weight = 1 + sum(self._weight[id(part)] for part in _parts(node))
        if weight > MAX_VALUES:
            raise YamlError(f"it stands for more than {MAX_VALUES} values")
        self._weight[id(node)] = weight
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value = super().construct_yaml_int(node)
        if not -MAX_WHOLE <= value < MAX_WHOLE:
            raise YamlError("it holds a whole number of more than 64 bits; write it as a decimal: 1e30")
        return value


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _parts(node: yaml.Node | None) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def parsed_yaml(text: str) -> Any:
    """The value that a YAML text stands for.

    Raises: YamlError if it is none, or deeper, larger or of larger numbers than is read here.
    """
    if len(text) > MAX_CHARACTERS:
        raise YamlError(f"it has more than {MAX_CHARACTERS} characters")
    return deepcopy(_read(text))


@lru_cache(maxsize=512)  # a file lies under many runs, and is slow to read
def _read(text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except YamlError:
        raise
    # beside its own errors, the library passes on those of the values that it makes: dates, numbers, keys
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise YamlError(" ".join(str(error).split())[:500] or type(error).__name__) from error
