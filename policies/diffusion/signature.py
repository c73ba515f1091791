"""The argument names of a pipeline's call, and a check of the settings that name arguments."""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import diffusers
from diffusers import DiffusionPipeline

from mmgrpo.errors import ConfigError

from .settings import DenoisingSettings

FROM_ROWS = {
    "prompt": "each row has its own; set prompts to a data file, or policy.columns for further arguments",
    "generator": "each row has its own, keyed by the seed of the run; set seed",
}
"""Arguments that come from rows, with the setting to use instead."""


@cache
def arguments_of(call: Callable[..., Any]) -> frozenset[str] | None:
    """Argument names that a call reads; None if it passes on any others.

    Many diffusers pipelines take ``**kwargs`` and read only a few names of it: others are ignored.
    """
    parameters = inspect.signature(call).parameters
    rest = {name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.VAR_KEYWORD}
    names = frozenset(parameters) - {"self"} - rest
    if not rest:
        return names
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(call)))
    except (OSError, TypeError, SyntaxError):
        return None
    (variable,) = rest
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == variable]
    read_names = list(_names_read(tree, variable))
    return names | set(read_names) if len(read_names) == len(uses) else None


def _names_read(tree: ast.AST, variable: str) -> Iterator[str]:
    """``NAME`` of each ``kwargs.pop("NAME", ...)``, ``kwargs.get``, ``kwargs["NAME"]`` and ``"NAME" in kwargs``."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="pop" | "get"), args=[first, *_]):
                key = first
            case ast.Subscript(value=ast.Name(id=owner), slice=key):
                pass
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[ast.Name(id=owner)]):
                pass
            case _:
                continue
        if owner == variable and isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


def require_arguments(pipeline_class: type, settings: DenoisingSettings) -> None:
    """Raises ConfigError for a setting with an argument that the pipeline's class does not take."""
    names = arguments_of(inspect.unwrap(pipeline_class.__call__))
    correction = settings.supervision.correction
    sections: dict[str, Iterable[str]] = {
        "policy.call": settings.call,
        "policy.evaluation_call": settings.evaluation_call,
        "policy.columns": settings.columns,
        "policy.image_arguments": settings.image_arguments,
        "policy.supervision.correction.call": correction.call if correction else (),
    }
    for section, arguments in sections.items():
        if section != "policy.columns" and (row_arguments := sorted(set(arguments) & FROM_ROWS.keys())):
            raise ConfigError(f"{section}.{row_arguments[0]}: {FROM_ROWS[row_arguments[0]]}")
        if names is not None and (unknown := sorted(set(arguments) - names)):
            raise ConfigError(f"{section}: {unknown_arguments(pipeline_class.__name__, unknown, names)}")


def unknown_arguments(pipeline: str, unknown: Iterable[str], names: Iterable[str]) -> str:
    """The message for arguments that a pipeline does not take, with the nearest valid names and all of them."""
    names, unknown = sorted(names), list(unknown)
    nearest = {name: _nearest(name, names) for name in unknown}
    suggestions = "".join(f"; {' or '.join(near)} for {name}?" for name, near in nearest.items() if near)
    return f"the call of {pipeline} has no argument {', '.join(unknown)}{suggestions}; it has {', '.join(names)}"


def _nearest(name: str, names: Sequence[str]) -> list[str]:
    """The name that resembles a name most, or else those that contain it."""
    containing = [valid_name for valid_name in names if name in valid_name]
    return difflib.get_close_matches(name, names, n=1) or containing[:3]


def pipeline_class(source: str, revision: str | None) -> type | None:
    """The class of a stored pipeline, without its weights; None if it is not in diffusers."""
    index = pipeline_index(source, revision)
    kind = getattr(diffusers, str(index.get("_class_name")), None)
    return kind if inspect.isclass(kind) and issubclass(kind, DiffusionPipeline) else None


def pipeline_index(source: str, revision: str | None) -> Mapping[str, Any]:
    """``model_index.json`` of a stored pipeline: its class and its components; empty if it cannot be read."""
    try:
        index = DiffusionPipeline.load_config(source, revision=revision)
    except (OSError, ValueError):
        return {}
    return index if isinstance(index, Mapping) else {}
