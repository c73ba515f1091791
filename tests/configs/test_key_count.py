"""The size of a configuration, counted by its models: a section used several times counts once, metadata apart."""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel

from mmgrpo.config import AboutConfig, MethodConfig, RunConfig
from mmgrpo.config.methods import MethodRewardsConfig

METADATA = (AboutConfig, MethodConfig, MethodRewardsConfig)
"""Sections that describe a file: name, note, paper, sources of the values, and the method."""


def sections(model: type[BaseModel], sizes: dict[str, int]) -> dict[str, int]:
    """Number of the keys of each section, by its class; ``policy`` and other named functions have only ``name``."""
    sizes[model.__name__] = len(model.model_fields)
    for field in model.model_fields.values():
        for kind in leaves(field.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__ not in sizes:
                sections(kind, sizes)
    return sizes


def leaves(annotation: Any) -> list[Any]:
    arguments = typing.get_args(annotation)
    return [leaf for argument in arguments for leaf in leaves(argument)] if arguments else [annotation]


def test_the_top_level_has_16_keys() -> None:
    assert list(RunConfig.model_fields) == [
        "about", "seed", "output", "steps", "policy", "prompts", "rewards", "rollout", "advantage",
        "objective", "update", "evaluation", "schedules", "tasks", "checkpoint", "runtime",
    ]  # fmt: skip


def test_number_of_keys_does_not_grow() -> None:
    """A new key raises the number here: fold it into a block, or remove another one."""
    sizes = sections(RunConfig, {})
    metadata = {section.__name__: sizes.pop(section.__name__) for section in METADATA}
    assert (sum(sizes.values()), metadata) == (
        197, {"AboutConfig": 8, "MethodConfig": 17, "MethodRewardsConfig": 3}
    )  # fmt: skip
