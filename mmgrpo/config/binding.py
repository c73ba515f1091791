"""A function of a registry bound to the settings that the configuration has for it.

A value has to be of the kind that its parameter is annotated with: int, float, str, bool, None, Literal, Sequence,
Mapping and unions of these. Other annotations are not checked; the function validates those values.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from mmgrpo.config.peers import peer_suggestions
from mmgrpo.config.registry import suggestion, unregistered
from mmgrpo.config.renamed import RENAMED_FUNCTIONS, RENAMED_SETTINGS, renamed_key
from mmgrpo.config.sections import Named
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.maths.registry import Registry
from mmgrpo.system.site_pages import page_url
from mmgrpo.system.targets import import_python_target, is_python_target

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

KINDS: Mapping[str, tuple[type, ...]] = MappingProxyType(
    {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
)


def bound(
    where: str, functions: Mapping[str, Callable[..., Any]], named: Named, *, supplied: Sequence[str] = ()
) -> Callable[..., Any]:
    """A registered function with its settings; keyword-only parameters are the settings.

    Args:
        where: key of the configuration, for messages.
        functions: the registered functions, by name.
        named: the name, with its settings.
        supplied: parameters that the caller passes by keyword later, so that they are no settings of the configuration.

    Returns:
        The function, its settings bound.

    Raises:
        ConfigError: unknown function, one with other positional arguments than the registry declares, unknown or
            missing settings, or a value of another kind than its parameter is annotated with.
    """
    function = named_in(where, functions, named.name)
    if isinstance(functions, Registry):
        require_arguments(where, named.name, function, functions.arguments_of(named.name), functions.decorator)
    allowed = {
        name: parameter
        for name, parameter in _parameters(where, named.name, function).items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in supplied
    }
    for key in named.settings:
        if key not in allowed:
            settings = {*allowed, *type(named).model_fields} - {"name"}
            fix = suggestion(key, settings) if settings else "; it takes no settings"
            sentences = peer_suggestions(f"{where}.{key}")
            fix = (" " if fix.endswith("?") else "; ").join([fix, "; ".join(sentences)]) if sentences else fix
            new = RENAMED_SETTINGS.get(key) or renamed_key(f"{where}.{key}")
            if new is not None and (new in allowed or "." in new):
                fix = f"; it is now {new}"
            raise ConfigError(f"{where}: {named.name} takes no {key!r}{fix}")
    for key, value in named.settings.items():
        kind = _kind(allowed[key])
        if not _fits(value, kind):
            raise ConfigError(f"{where}: {key} of {named.name} must be {_described(kind)}, got {value!r:.80}")
    missing = [name for name, p in allowed.items() if p.default is p.empty and name not in named.settings]
    if missing:
        raise ConfigError(f"{where}: {named.name} needs {', '.join(missing)}")
    return partial(function, **named.settings)


def named_in(where: str, functions: Mapping[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
    """A registered function, or ``python:module:function``, one of the user's own.

    Raises ConfigError: UnknownNameError for a name that is not registered, which lists the nearest.
    """
    if is_python_target(name):
        function = import_python_target(name)
        if not callable(function):
            raise ConfigError(f"{where}: {name} is a {type(function).__name__}: name a function of its settings")
        return function
    if name not in functions:
        new = RENAMED_FUNCTIONS.get(name)
        fix = f"; it is now {new}" if new in functions else f"{suggestion(name, functions)}{unregistered(name)}"
        raise UnknownNameError(f"{where}: unknown name {name!r}{fix}")
    return functions[name]


def require_arguments(
    where: str, name: str, function: Callable[..., Any], arguments: Sequence[str] | None, decorator: str | None = None
) -> None:
    """Checks that a function can be called with so many positional arguments.

    Args:
        where: key of the configuration, for messages.
        name: of the function in the configuration.
        function: the function.
        arguments: their names; empty for a factory of a record, which takes settings only; None: not declared.
        decorator: import path of the decorator that turns a function into such a factory; None: there is none.

    Raises:
        ConfigError: it requires more of them, or takes fewer.
    """
    if arguments is None:
        return
    parameters = [p for p in _parameters(where, name, function).values() if p.kind in _POSITIONAL]
    required = sum(p.default is p.empty for p in parameters)
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values())
    if required <= len(arguments) and (takes_any or len(arguments) <= len(parameters)):
        return
    names = f"({', '.join(p.name for p in parameters)})" if parameters else "nothing"
    if arguments:
        raise ConfigError(
            f"{where}: {name} takes {names} by position and is called with ({', '.join(arguments)}): name a function "
            "of these, with its settings after a *"
        )
    if decorator is None:
        page = page_url("how-to/extending")
        fix = f"name a function of settings, after a *, that returns the record of this key ({page})"
    else:
        module, _, decorator_name = decorator.rpartition(".")
        fix = f"put @{decorator_name}() above it ({module})"
    raise ConfigError(f"{where}: {name} takes {names} by position and is called with its settings only: {fix}")


def _parameters(where: str, name: str, function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {name} has no signature to read; wrap it in a function") from None


def _kind(parameter: inspect.Parameter) -> ast.expr:
    """The annotation of a parameter, as in its source."""
    written = parameter.annotation
    return ast.parse(written if isinstance(written, str) else inspect.formatannotation(written), mode="eval").body


def _fits(value: Any, kind: ast.expr) -> bool:
    match kind:
        case ast.BinOp(left=left, right=right):
            return _fits(value, left) or _fits(value, right)
        case ast.Constant(value=None):
            return value is None
        case ast.Name(id=name) if name in KINDS:
            return isinstance(value, KINDS[name]) and isinstance(value, bool) == (name == "bool")
        case ast.Subscript(value=ast.Name(id="Literal")):
            return value in _choices(kind)
        case ast.Subscript(value=ast.Name(id="Sequence"), slice=inner):
            return isinstance(value, list | tuple) and all(_fits(element, inner) for element in value)
        case ast.Subscript(value=ast.Name(id="Mapping")):
            return isinstance(value, Mapping)
    return True


def _described(kind: ast.expr) -> str:
    match kind:
        case ast.BinOp(left=left, right=right):
            return f"{_described(left)} or {_described(right)}"
        case ast.Constant(value=None):
            return "null"
        case ast.Subscript(value=ast.Name(id="Literal")):
            return f"one of {', '.join(map(str, _choices(kind)))}"
        case ast.Subscript(value=ast.Name(id="Sequence"), slice=inner):
            return f"a list of {_described(inner)}"
        case ast.Subscript(value=ast.Name(id="Mapping")):
            return "a mapping"
    return ast.unparse(kind)


def _choices(literal: ast.Subscript) -> tuple[Any, ...]:
    inner = literal.slice
    return tuple(ast.literal_eval(choice) for choice in (inner.elts if isinstance(inner, ast.Tuple) else [inner]))


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function, or one with its settings bound, has a parameter of that name."""
    return name in inspect.signature(function).parameters
