"""YAML files, includes and ``a.b=c`` overrides into a ``RunConfig``; unknown keys are errors that name the nearest."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import yaml
from pydantic import BaseModel, ValidationError

from mmgrpo.config import RunConfig
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.registry import suggestion

CONFIGS = Path(__file__).parent / "configs"


class _Loader(yaml.SafeLoader):
    """YAML whose floats are those of YAML 1.2: 1e-5 is a number, not a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"),
    list("-+0123456789."),
)


def load_config(path: str | Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> RunConfig:
    """The run configuration of a file or of a shipped name such as ``quickstart/digits-image``.

    ``include:`` names files laid under this one, in order, later ones over earlier ones; then the file itself; then
    the overrides, ``a.b=c`` strings (values are YAML) or a mapping of dotted keys. Mappings merge, everything else is
    replaced; a key ``a.b=null`` clears it.

    Args:
        path: a file or a shipped name, with or without ``.yaml``.
        overrides: what lies over the files.

    Returns:
        The resolved configuration.

    Raises:
        ConfigError: a file is missing or malformed, or a value is not allowed; the message names the key.
    """
    merged = read_layers(find_config(path))
    for key, value in _parsed(overrides).items():
        _set(merged, key.split("."), value)
    return validated(merged)


def validated(values: Mapping[str, Any]) -> RunConfig:
    """A ``RunConfig`` from plain values. Raises ConfigError that explains every wrong key."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain_validation(error, RunConfig)) from None


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML that ``load_config`` reads back to the same."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110)


def find_config(name: str | Path, beside: Path | None = None) -> Path:
    """The file of a path or shipped name, with or without ``.yaml``; of a run folder or checkpoint, the run's own.

    Args:
        name: the path or shipped name.
        beside: a folder to look in first, that of the file which includes this one.

    Returns:
        An existing file.

    Raises:
        ConfigError: there is none; the nearest shipped names are listed.
    """
    if beside is None and (run := run_of(Path(name))) is not None:
        return run / "config.yaml"
    roots = [Path(), CONFIGS] if beside is None else [beside, Path(), CONFIGS]
    for root in roots:
        for candidate in (root / name, root / f"{name}.yaml"):
            if candidate.is_file():
                return candidate
    raise ConfigError(f"no configuration {str(name)!r}{suggestion(str(name), shipped())}")


def run_of(path: Path) -> Path | None:
    """The run folder that a path means: itself, or that of one of its checkpoints; None if it is of no run."""
    candidates = (path, path.parent.parent) if (path / "state.json").is_file() else (path,)
    return next((folder for folder in candidates if folder.is_dir() and (folder / "config.yaml").is_file()), None)


def shipped(folder: str = "") -> list[str]:
    """Names of the configurations that come with the package, as ``train`` and ``include`` take them."""
    found = (CONFIGS / folder).rglob("*.yaml")
    return sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in found)


def read_layers(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file with its includes laid under it."""
    path = path.resolve()
    if path in seen:
        raise ConfigError(f"{path} includes itself, by way of {' -> '.join(str(p) for p in seen)}")
    try:
        values = yaml.load(path.read_text(), _Loader) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of keys, got {type(values).__name__}")
    includes = values.pop("include", [])
    merged: dict[str, Any] = {}
    for name in [includes] if isinstance(includes, str) else includes:
        merged = merge(merged, read_layers(find_config(name, path.parent), (*seen, path)))
    return merge(merged, values)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``: mappings merge key by key; two mappings of different ``name`` are different things, and
    the upper one replaces the lower."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if _mergeable(old, value) else value
    return merged


def _mergeable(old: Any, value: Any) -> TypeGuard[dict[str, Any]]:
    if not (isinstance(old, dict) and isinstance(value, dict)):
        return False
    return "name" not in old or "name" not in value or old["name"] == value["name"]


def explain_validation(error: ValidationError, model: type[BaseModel]) -> str:
    """One line per wrong key, with the nearest allowed name for an unknown one."""
    lines = []
    for problem in error.errors():
        where = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            owner = _model_at(model, problem["loc"][:-1])
            known = owner.model_fields if owner else {}
            lines.append(f"unknown key {where!r}{suggestion(str(problem['loc'][-1]), known)}")
        else:
            lines.append(f"{where or 'configuration'}: {problem['msg'].removeprefix('Value error, ')}")
    return "; ".join(lines)


def _model_at(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    for part in location:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        if field is None:
            return None
        inner = [a for a in _types_in(field.annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
        if not inner:
            return None
        model = inner[0]
    return model


def _types_in(annotation: Any) -> list[Any]:
    arguments = typing.get_args(annotation)
    return [annotation] if not arguments else [kind for argument in arguments for kind in _types_in(argument)]


def _parsed(overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        return dict(overrides)
    parsed = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"an override is written key=value (update.lr=1e-4), got {override!r}")
        parsed[key] = yaml.load(value, _Loader)
    return parsed


def _set(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        inner = values.get(part)
        if isinstance(inner, str) and part in ("policy", "window", "surrogate", "aggregate", "examples"):
            inner = {"name": inner}
        if isinstance(inner, list) and path[path.index(part) + 1].isdigit():
            raise UnknownNameError(f"cannot override inside the list {part!r}; give the whole list: {part}=[...]")
        values[part] = dict(inner) if isinstance(inner, dict) else {}
        values = values[part]
    values[path[-1]] = value
