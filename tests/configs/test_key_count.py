"""The size of a configuration, counted by its models: a key that several sections share counts once, metadata apart.

The settings of a named function are not counted, nor are keys that users name: both are in no model.
"""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel

from mmgrpo.config import AboutConfig, MethodConfig, RunConfig
from mmgrpo.config.methods import MethodRewardsConfig

METADATA = (AboutConfig, MethodConfig, MethodRewardsConfig)
"""Sections that describe a file: name, note, paper, sources of the values, and the method."""


def sections(model: type[BaseModel], result: list[type[BaseModel]]) -> list[type[BaseModel]]:
    """The sections of a configuration, each once; ``policy`` and other named functions have only ``name``."""
    result.append(model)
    for field in model.model_fields.values():
        for kind in leaves(field.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in result:
                sections(kind, result)
    return result


def leaves(annotation: Any) -> list[Any]:
    arguments = typing.get_args(annotation)
    return [leaf for argument in arguments for leaf in leaves(argument)] if arguments else [annotation]


def declared(section: type[BaseModel]) -> set[tuple[str, str]]:
    """The keys of a section, each with the class that first declares it, from which others inherit it."""
    bases = [base for base in reversed(section.__mro__) if issubclass(base, BaseModel)]
    return {
        (next(base.__name__ for base in bases if name in base.__annotations__), name) for name in section.model_fields
    }


def test_the_top_level_has_16_keys() -> None:
    assert list(RunConfig.model_fields) == [
        "about", "seed", "output", "steps", "policy", "prompts", "rewards", "rollout", "advantage",
        "objective", "update", "evaluation", "schedules", "tasks", "checkpoint", "runtime",
    ]  # fmt: skip


def test_number_of_keys_does_not_grow() -> None:
    """A new key raises the number here: fold it into a block, or remove another one."""
    values = [section for section in sections(RunConfig, []) if section not in METADATA]
    assert len({key for section in values for key in declared(section)}) == 161
    assert sum(len(section.model_fields) for section in values) == 190
    assert {section.__name__: len(section.model_fields) for section in METADATA} == {
        "AboutConfig": 12,
        "MethodConfig": 22,
        "MethodRewardsConfig": 3,
    }


def test_mappings_have_keys_that_users_name() -> None:
    """A mapping in place of a section would hide its keys from the count."""
    mappings = [
        f"{section.__name__}.{name}"
        for section in sections(RunConfig, [])
        if section not in METADATA
        for name, field in section.model_fields.items()
        if "dict[" in str(field.annotation) or "Mapping[" in str(field.annotation)
    ]
    assert sorted(mappings) == [
        "HeldOutPromptsConfig.columns", "ObjectiveConfig.views", "PromptsConfig.columns",
        "RolloutConfig.prompt_templates", "RunConfig.schedules", "RunConfig.tasks", "SeriesRun.set",
        "SourceConfig.columns", "UpdateConfig.weight_sets", "WeightSetConfig.reading",
    ]  # fmt: skip
