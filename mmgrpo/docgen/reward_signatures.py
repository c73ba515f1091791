"""What rewards there are and take, read off their source: nothing is imported, so it is said without torch."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import resolve_name
from pathlib import Path
from typing import Any

from mmgrpo.config import RewardConfig, RunConfig
from mmgrpo.config.registry import names, suggestion
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.system.targets import is_own

_NESTED = ("of", "likelihood", "grade")  # settings of a reward that name another one


MAX_REEXPORTS = 5
"""Packages that a name is followed through."""


@dataclass(frozen=True, slots=True)
class RewardSignature:
    """The settings of a reward.

    Attributes:
        takes: their names.
        needs: those without a default.
    """

    takes: tuple[str, ...]
    needs: tuple[str, ...]


def require_rewards(config: RunConfig) -> None:
    """Looks whether the rewards of a run, and of its evaluation, are there and take the settings they are given.

    Raises UnknownNameError for a name, ConfigError for a setting; what the source leaves open is not judged.
    """
    for reward in (*config.rewards, *(config.evaluation.rewards if config.evaluation else ())):
        _require(reward.name, reward.numbers)


def declared(target: str) -> RewardSignature | None:
    """The settings of a reward at "module:attribute"; None where its source leaves them open.

    Raises ConfigError if the module's source has no such name.
    """
    module, _, attribute = target.partition(":")
    source = _source_of(module)
    if source is None or "." in attribute:
        return None
    tree = ast.parse(source.read_bytes())
    found = next((node for node in tree.body if getattr(node, "name", None) == attribute), None)
    if isinstance(found, ast.ClassDef):
        return _of_class(found)
    if found is None and not _binds(tree, attribute):
        defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        raise ConfigError(f"{source} defines no {attribute!r}{suggestion(attribute, defined)}")
    return None


def summary_line(target: str) -> str | None:
    """The first line of the docstring at "module:attribute"; None where the source of its module does not show it.

    An attribute that a package imports from another module, if only for type checkers, is looked up there.
    """
    module, _, attribute = target.partition(":")
    for _ in range(MAX_REEXPORTS):
        source = _source_of(module)
        if source is None:
            return None
        tree = ast.parse(source.read_bytes())
        found = next((node for node in tree.body if getattr(node, "name", None) == attribute), None)
        if isinstance(found, ast.ClassDef | ast.FunctionDef):
            return (ast.get_docstring(found) or "").partition("\n")[0]
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


def _require(name: str, settings: Mapping[str, Any]) -> None:
    if not is_own(name) and name not in names("rewards"):
        raise UnknownNameError(f"unknown name {name!r} among rewards{suggestion(name, names('rewards'))}")
    found = declared(name.removeprefix("python:") if is_own(name) else names("rewards")[name])
    if found is not None:
        for setting in settings:
            if setting not in found.takes:
                takes = suggestion(setting, found.takes) if found.takes else "; it takes no settings"
                raise ConfigError(f"reward {name}: unknown setting {setting!r}{takes}")
        if missing := [setting for setting in found.needs if setting not in settings]:
            raise ConfigError(f"reward {name}: needs the setting {' and '.join(missing)}")
    for setting in _NESTED:
        nested = settings.get(setting)
        if isinstance(nested, str | Mapping) and nested and (isinstance(nested, str) or "name" in nested):
            inner = RewardConfig.model_validate(nested)
            _require(inner.name, inner.numbers)


def _source_of(module: str) -> Path | None:
    """The file of a module, found as an import would find it; None if there is none that can be read."""
    spec, folders = None, [*sys.path, os.getcwd()]
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        name = ".".join(parts[:number])
        spec = PathFinder.find_spec(name, folders)
        if spec is None:
            return None
        imported = sys.modules.get(name)  # a package may have added to its path, as ours does in a checkout
        folders = list(getattr(imported, "__path__", None) or spec.submodule_search_locations or ())
    origin = spec.origin if spec is not None else None
    return Path(origin) if origin and origin.endswith(".py") else None


def _of_class(node: ast.ClassDef) -> RewardSignature | None:
    decorators = {ast.unparse(one).partition("(")[0] for one in node.decorator_list}
    init = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if init is not None:
        return None if init.args.kwarg or init.args.vararg else _of_arguments(init.args)
    if decorators & {"dataclass", "dataclasses.dataclass"} and not node.bases:
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
        fields = [one for one in fields if not ast.unparse(one.annotation).startswith("ClassVar")]
        if any(isinstance(one.value, ast.Call) for one in fields):  # field(init=False) and the like
            return None
        takes = [ast.unparse(one.target) for one in fields]
        return RewardSignature(tuple(takes), tuple(ast.unparse(one.target) for one in fields if one.value is None))
    return None if node.bases or decorators - {"final"} else RewardSignature((), ())


def _of_arguments(arguments: ast.arguments) -> RewardSignature:
    by_place = [one.arg for one in (*arguments.posonlyargs, *arguments.args)][1:]
    needs = by_place[: max(0, len(by_place) - len(arguments.defaults))]
    by_name = list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    return RewardSignature(
        (*by_place, *(one.arg for one, _ in by_name)),
        (*needs, *(one.arg for one, default in by_name if default is None)),
    )


def _binds(tree: ast.Module, name: str) -> bool:
    """Whether something else than a definition may give the module that name."""
    if any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree)):
        return True
    imported = (
        alias for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    )
    return any((alias.asname or alias.name) in (name, "*") for alias in imported) or any(
        getattr(node, "name", None) in (name, "__getattr__") for node in ast.walk(tree)
    )
