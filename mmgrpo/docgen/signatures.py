"""Names and settings of rewards and environments, parsed from their source without importing it or torch."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from mmgrpo.config import RewardConfig, RunConfig
from mmgrpo.config.registry import names, suggestion, unknown_name
from mmgrpo.errors import ConfigError
from mmgrpo.system.targets import is_python_target

_NESTED = ("of", "likelihood", "grade")  # settings of a reward that name another one


MAX_REEXPORTS = 5
"""Maximum number of packages that re-export a name."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The settings of a reward or an environment.

    Attributes:
        takes: names of the settings.
        needs: names of the settings without a default.
    """

    takes: tuple[str, ...]
    needs: tuple[str, ...]


def require_settings(config: RunConfig) -> None:
    """Checks that the rewards of a run and its evaluation, and its environment, exist and accept their settings.

    Raises UnknownNameError for a name, ConfigError for a setting; settings that the source leaves open are not checked.
    """
    for reward in (*config.rewards, *(config.held_out.rewards if config.held_out else ())):
        _require_reward(reward.name, reward.settings)
    if (environment := config.rollout.environment) is not None:
        _require("environments", environment.name, environment.settings, "rollout.environment")


def signature_at(target: str) -> Signature | None:
    """The settings of a reward or an environment at "module:attribute"; None if its source leaves them open.

    Raises ConfigError if the module's source has no such name.
    """
    module, _, attribute = target.partition(":")
    source = _source_of(module)
    if source is None or "." in attribute:
        return None
    tree = _parsed(source, source.stat().st_mtime_ns)
    definition = next((node for node in tree.body if getattr(node, "name", None) == attribute), None)
    if isinstance(definition, ast.ClassDef):
        return _of_class(definition)
    if definition is None and not _binds(tree, attribute):
        defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        raise ConfigError(f"{source} defines no {attribute!r}{suggestion(attribute, defined)}")
    return None


def summary_line(target: str) -> str | None:
    """The first line of the docstring at "module:attribute"; None if the source of its module does not have it."""
    docstring = docstring_at(target)
    return None if docstring is None else docstring.partition("\n")[0]


def docstring_at(target: str) -> str | None:
    """The docstring at "module:attribute"; None if the source of its module does not have it.

    An attribute that a package imports from another module, even only for type checkers, is looked up there.
    """
    module, _, attribute = target.partition(":")
    for _ in range(MAX_REEXPORTS):
        source = _source_of(module)
        if source is None:
            return None
        tree = _parsed(source, source.stat().st_mtime_ns)
        definition = next((node for node in tree.body if getattr(node, "name", None) == attribute), None)
        if isinstance(definition, ast.ClassDef | ast.FunctionDef):
            return ast.get_docstring(definition) or ""
        package = module if source.name == "__init__.py" else module.rpartition(".")[0]
        imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module)
        origin = next((node for node in imports if attribute in {alias.name for alias in node.names}), None)
        if origin is None:
            return None
        defining_module = resolve_name("." * origin.level + str(origin.module), package)
        if defining_module == module:
            return None
        module = defining_module
    return None


@lru_cache
def _parsed(source: Path, modified_ns: int) -> ast.Module:
    return ast.parse(source.read_bytes())


def _require(kind: str, name: str, settings: Mapping[str, Any], label: str) -> None:
    """Checks the name and the settings of an entry of a registry; the label begins a message."""
    if not is_python_target(name) and name not in names(kind):
        raise unknown_name(kind, name)
    signature = signature_at(name.removeprefix("python:") if is_python_target(name) else names(kind)[name])
    if signature is None:
        return
    for setting in settings:
        if setting not in signature.takes:
            takes = suggestion(setting, signature.takes) if signature.takes else "; it takes no settings"
            raise ConfigError(f"{label} {name}: unknown setting {setting!r}{takes}")
    if missing := [setting for setting in signature.needs if setting not in settings]:
        raise ConfigError(f"{label} {name}: needs the setting {' and '.join(missing)}")


def _require_reward(name: str, settings: Mapping[str, Any]) -> None:
    _require("rewards", name, settings, "reward")
    for setting in _NESTED:
        nested = settings.get(setting)
        if isinstance(nested, str | Mapping) and nested and (isinstance(nested, str) or "name" in nested):
            inner = RewardConfig.model_validate(nested)
            _require_reward(inner.name, inner.settings)


def _source_of(module: str) -> Path | None:
    """The source file of a module, located as an import does; None if there is no readable one."""
    spec, folders = None, [*sys.path, os.getcwd()]
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        name = ".".join(parts[:number])
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return None
        imported = sys.modules.get(name)  # a package may extend its path, as mmgrpo does in a checkout
        folders = list(getattr(imported, "__path__", None) or spec.submodule_search_locations or ())
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin and origin.endswith(".py") else None


def _of_class(node: ast.ClassDef) -> Signature | None:
    decorators = {ast.unparse(child).partition("(")[0] for child in node.decorator_list}
    init = next((child for child in node.body if isinstance(child, ast.FunctionDef) and child.name == "__init__"), None)
    if init is not None:
        return None if init.args.kwarg or init.args.vararg else _of_arguments(init.args)
    if decorators & {"dataclass", "dataclasses.dataclass"} and not node.bases:
        fields = [
            child for child in node.body if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name)
        ]
        fields = [child for child in fields if not ast.unparse(child.annotation).startswith("ClassVar")]
        if any(isinstance(child.value, ast.Call) for child in fields):  # field(init=False) and the like
            return None
        takes = [ast.unparse(child.target) for child in fields]
        return Signature(tuple(takes), tuple(ast.unparse(child.target) for child in fields if child.value is None))
    return None if node.bases or decorators - {"final"} else Signature((), ())


def _of_arguments(arguments: ast.arguments) -> Signature:
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)][1:]
    needs = positional[: max(0, len(positional) - len(arguments.defaults))]
    by_name = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    return Signature(
        (*positional, *(argument.arg for argument, _ in by_name)),
        (*needs, *(argument.arg for argument, default in by_name if default is None)),
    )


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether the module may bind the name by something other than a definition."""
    if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree)):
        return True
    imported = (
        alias for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    )
    return any((alias.asname or alias.name) in (name, "*") for alias in imported) or any(
        getattr(node, "name", None) in (name, "__getattr__") for node in ast.walk(tree)
    )
