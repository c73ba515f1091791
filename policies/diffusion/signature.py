"""The arguments that a pipeline's call reads, and a check of the settings that name arguments of it."""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import diffusers
from diffusers import DiffusionPipeline

from mmgrpo.errors import ConfigError

from .settings import DenoisingSettings

FROM_ROWS = {
    "prompt": "each row brings its own: give prompts: a data file, or policy.columns for further arguments",
    "generator": "each row brings its own, keyed by the seed of the run: set seed",
}
"""Arguments that rows bring, with what to do instead."""


@cache
def arguments_of(call: Callable[..., Any]) -> frozenset[str] | None:
    """Names of the arguments that a call reads; None where it passes on any others.

    Many pipelines of diffusers take ``**kwargs`` and read two names of it: what else is passed is lost.
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
    found = list(_names_read(tree, variable))
    return names | set(found) if len(found) == len(uses) else None


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


def require_arguments(kind: type, settings: DenoisingSettings) -> None:
    """Raises ConfigError for a setting that names an argument which a pipeline's class does not take."""
    names = arguments_of(inspect.unwrap(kind.__call__))
    correction = settings.supervision.correction
    sections: dict[str, Iterable[str]] = {
        "policy.call": settings.call,
        "policy.evaluation_call": settings.evaluation_call,
        "policy.columns": settings.columns,
        "policy.pictures": settings.pictures,
        "policy.supervision.correction.call": correction.call if correction else (),
    }
    for section, chosen in sections.items():
        if section != "policy.columns" and (taken := sorted(set(chosen) & FROM_ROWS.keys())):
            raise ConfigError(f"{section}.{taken[0]}: {FROM_ROWS[taken[0]]}")
        if names is not None and (unknown := sorted(set(chosen) - names)):
            raise ConfigError(f"{section}: {unknown_arguments(kind.__name__, unknown, names)}")


def unknown_arguments(pipeline: str, unknown: Iterable[str], names: Iterable[str]) -> str:
    """What to say of arguments that a pipeline does not take: the nearest that it does, and all of them."""
    names = sorted(names)
    near = {name: difflib.get_close_matches(name, names, n=1) for name in unknown}
    meant = "".join(f"; {match[0]} for {name}?" for name, match in near.items() if match)
    return f"the call of {pipeline} has no argument {', '.join(near)}{meant}; it has {', '.join(names)}"


def pipeline_class(source: str, revision: str | None) -> type | None:
    """The class that a stored pipeline names, without its weights; None where that is none of diffusers."""
    index = pipeline_index(source, revision)
    kind = getattr(diffusers, str(index.get("_class_name")), None)
    return kind if inspect.isclass(kind) and issubclass(kind, DiffusionPipeline) else None


def pipeline_index(source: str, revision: str | None) -> Mapping[str, Any]:
    """``model_index.json`` of a stored pipeline: its class and its components; empty where it cannot be read."""
    try:
        index = DiffusionPipeline.load_config(source, revision=revision)
    except (OSError, ValueError):
        return {}
    return index if isinstance(index, Mapping) else {}
