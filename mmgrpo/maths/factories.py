"""Decorators that turn the function that does the work into a factory, which a configuration names.

The function takes tensors or records by position, and its settings as keyword-only parameters. The factory has its
name, docstring and settings; called with the settings, it returns the record of the extension point (an
``Estimator``, a ``Filter``, ...), in which they are bound. The other fields of the record are arguments of the
decorator: a value, or a function of some of the settings, which are passed by name:
``values=lambda view: (of_view(view),)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

Numbers = ParamSpec("Numbers")
"""The keyword-only parameters of a function, which are those of its factory."""

Record = TypeVar("Record")


def factory(
    record: Callable[..., Record],
    field: str,
    *,
    check: Callable[..., Any] | None = None,
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    further: Sequence[inspect.Parameter] = (),
    **declared: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Record]]:
    """A decorator that turns a function into a factory of records.

    Args:
        record: the class of the record, or a function that returns one.
        field: field of the record that holds the function with its settings.
        check: raises ConfigError for settings that do not go together; called with those that it names.
        functions: further fields that hold functions, to which the settings that they name as keyword-only parameters
            are bound.
        further: settings of the factory that the function does not take.
        **declared: the other fields, each a value, or a function of the settings that it names.

    Returns:
        The decorator. It raises TypeError where one of these names a number that the function does not have.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Record]:
        signature = inspect.signature(function)
        parameter_names = _numbers(function)
        of_numbers = inspect.Signature([*(signature.parameters[name] for name in parameter_names), *further])
        computed = {name: value for name, value in declared.items() if callable(value)}
        names_of = {name: tuple(inspect.signature(value).parameters) for name, value in computed.items()}
        names_of |= {name: _numbers(value) for name, value in functions.items()}
        names_of["check"] = () if check is None else tuple(inspect.signature(check).parameters)
        for name, names in names_of.items():
            if unknown := sorted({*names} - {*of_numbers.parameters}):
                raise TypeError(f"{function.__name__}: {name} reads {', '.join(unknown)}, not one of its settings")

        @wraps(function)
        def bind(**numbers: Any) -> Record:
            bound = of_numbers.bind(**numbers)
            bound.apply_defaults()
            arguments = {name: {key: bound.kwargs[key] for key in names} for name, names in names_of.items()}
            if check is not None:
                check(**arguments["check"])
            fields = declared | {name: value(**arguments[name]) for name, value in computed.items()}
            fields |= {
                name: partial(value, **arguments[name]) if names_of[name] else value
                for name, value in functions.items()
            }
            fields[field] = partial(function, **{name: bound.kwargs[name] for name in parameter_names})
            return record(**fields)

        bind.__signature__ = of_numbers  # pyrefly: ignore[missing-attribute]
        return bind

    return decorate


def _numbers(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the keyword-only parameters of a function."""
    return tuple(p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY)
