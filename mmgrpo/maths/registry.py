"""Functions by the name that a configuration uses."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar, final, overload

PACKAGES = ("mmgrpo.maths", "mmgrpo.methods")
"""The packages of shared functions and of methods: their modules register functions on import."""

Function = TypeVar("Function", bound=Callable[..., Any])
Value = TypeVar("Value")


@final
class Registry(Mapping[str, Value], Generic[Value]):
    """Functions by name, those of other registries among them.

    The modules that register functions are imported the first time a name is looked up that is not registered yet, or
    all names are listed.

    Attributes:
        arguments: names of the positional arguments of the functions; None: not declared.
        decorator: import path of the decorator that turns a function into a factory; None: there is none.
    """

    def __init__(
        self, *included: Registry[Value], arguments: Sequence[str] | None = None, decorator: str | None = None
    ) -> None:
        """An empty registry.

        Args:
            *included: registries that are searched as well, including functions registered later.
            arguments: names of the positional arguments that the engine calls the functions with; empty for factories
                of records, which take settings only; None: not declared.
            decorator: import path of the decorator that turns a function into such a factory, for messages.
        """
        self._included = included
        self.arguments = None if arguments is None else tuple(arguments)
        self.decorator = decorator
        self._registered: dict[str, Value] = {}

    def arguments_of(self, name: str) -> tuple[str, ...] | None:
        """``arguments`` of the registry that has the name; of this one for a function that none has."""
        included = next((registry for registry in self._included if name in registry), None)
        return self.arguments if included is None else included.arguments_of(name)

    @overload
    def register(self, function: Function, /) -> Function: ...

    @overload
    def register(self, function: str, /) -> Callable[[Function], Function]: ...

    def register(self, function: Any, /) -> Any:
        """A decorator that registers a function under its own name, or another: ``@REGISTRY.register("name")``.

        Raises ValueError for a name that is registered already.
        """
        if isinstance(function, str):
            return lambda decorated: self._add(function, decorated)
        return self._add(function.__name__, function)

    def _add(self, name: str, function: Any) -> Any:
        if any(name in functions for functions in self._loaded()):
            raise ValueError(f"{name} is registered twice: by {self[name]} and {function}")
        self._registered[name] = function
        return function

    def _loaded(self) -> Iterator[Mapping[str, Value]]:
        """The functions registered so far, without importing any module."""
        yield self._registered
        for registry in self._included:
            yield from registry._loaded()

    def __getitem__(self, name: str) -> Value:
        for attempt in range(2):
            for functions in self._loaded():
                if name in functions:
                    return functions[name]
            if not attempt:
                import_functions()
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        import_functions()
        return iter(dict.fromkeys(name for functions in self._loaded() for name in functions))

    def __len__(self) -> int:
        return len(list(iter(self)))


@cache
def import_functions() -> None:
    """Imports every module that registers functions, once."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
