"""The base class of every section of the configuration."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

from mmgrpo.errors import ConfigError

_NONE = object()

Part = TypeVar("Part", bound=BaseModel)
"""A section, or a function with its settings."""


class Section(BaseModel):
    """A part of the configuration: unknown keys and infinite numbers are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Named(BaseModel):
    """A function or class by its registered name, with its settings."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    name: str

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _require_numbers(self) -> Named:
        for key, value in self.settings.items():
            if isinstance(value, float) and math.isnan(value):
                raise ValueError(f"{key} is not a number: got .nan")
        return self

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


def unknown_keys(model: type[BaseModel], values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys of a partial configuration that the model does not have; values are not looked at."""
    for key, value in values.items():
        field = model.model_fields.get(key)
        if field is None:
            yield f"{prefix}{key}"
            continue
        kinds = (field.annotation, *typing.get_args(field.annotation))
        inner = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)
        if inner is not None and isinstance(value, Mapping):
            is_named = typing.get_origin(field.annotation) is dict  # of sections that users name
            for name, part in value.items() if is_named else [("", value)]:
                if isinstance(part, Mapping):
                    yield from unknown_keys(inner, part, f"{prefix}{key}.{name}." if name else f"{prefix}{key}.")


def updated(section: Part, key: str, value: Any) -> Part:
    """A copy with another value at a dotted key; the value is not validated."""
    name, _, inner = key.partition(".")
    return section.model_copy(update={name: updated(getattr(section, name), inner, value) if inner else value})


def at(values: Any, key: str, default: Any = _NONE) -> Any:
    """The value at a dotted key; keys of a mapping may contain dots, as those of schedules do.

    Args:
        values: of a configuration, or a part of it.
        key: dotted.
        default: returned if there is none.

    Returns:
        The value.

    Raises:
        ConfigError: there is none, and no default.
    """
    value = _lookup(values, key.split("."))
    if value is _NONE and default is _NONE:
        raise ConfigError(f"the configuration has no key {key!r}")
    return default if value is _NONE else value


def has(values: Any, key: str) -> bool:
    """Whether there is a value at a dotted key."""
    return _lookup(values, key.split(".")) is not _NONE


def _lookup(values: Any, parts: list[str]) -> Any:
    for num in range(1, len(parts) + 1) if isinstance(values, Mapping) else ():
        if (head := ".".join(parts[:num])) in values:
            return _lookup(values[head], parts[num:]) if parts[num:] else values[head]
    return _NONE
