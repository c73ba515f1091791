"""Prompts of reasoning-gym, which generates tasks and needs no files."""

from __future__ import annotations

from dataclasses import fields
from typing import Any
from urllib.parse import parse_qsl

from mmgrpo.errors import DataError
from mmgrpo.system.extras import required
from mmgrpo.system.yamls import YamlError, parse_yaml
from mmgrpo.types import Prompt

PREFIX = "reasoning_gym:"

COLUMN = "reasoning_gym"
"""Column with the task, which the reward of the same name reads."""

SIZE = 500
"""Number of tasks of a source that states none."""

SEED_STRIDE = 1_000_000
"""Distance of the library's seeds for two seeds of sources: it generates task i of seed s from the seed s + i."""

MAX_SEED = 2**31 // SEED_STRIDE


def is_procedural(source: str) -> bool:
    """Whether a source has the form ``reasoning_gym:DATASET?size=500&seed=0``."""
    return source.startswith(PREFIX)


def procedural_prompts(source: str) -> list[Prompt]:
    """The tasks of a source.

    Args:
        source: ``reasoning_gym:DATASET``, and after a question mark ``size``, ``seed`` and settings of the dataset as
            in a URL. Sources with different seeds have no task seed in common.

    Returns:
        Prompts with the reference in the column ``answer`` and the task in ``reasoning_gym``.

    Raises:
        DataError: the dataset or a setting is unknown or not allowed.
        MissingPackageError: ``reasoning-gym`` is not installed.
    """
    reasoning_gym = required("reasoning_gym", f"the source of prompts {source}")
    name, _, query = source.removeprefix(PREFIX).partition("?")
    datasets = reasoning_gym.factory.DATASETS
    if name not in datasets:
        raise DataError(f"{source}: reasoning-gym has no dataset {name!r}; it has {', '.join(sorted(datasets))}")
    settings = {key: _value(source, value) for key, value in parse_qsl(query, keep_blank_values=True)}
    size, seed = settings.pop("size", SIZE), settings.pop("seed", 0)
    valid_names = [field.name for field in fields(datasets[name][1]) if field.name not in ("size", "seed")]
    if unknown := [key for key in settings if key not in valid_names]:
        raise DataError(f"{source}: {name} has no setting {', '.join(unknown)}; it has {', '.join(valid_names)}")
    for key, value, least, most in (("size", size, 1, SEED_STRIDE), ("seed", seed, 0, MAX_SEED)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise DataError(f"{source}: {key} must be an integer from {least} to {most}, got {value!r}")
    task = {"dataset": name, "size": size, "seed": seed * SEED_STRIDE, "config": settings}
    try:
        dataset = reasoning_gym.create_dataset(name, size=size, seed=task["seed"], **settings)
        entries = [dataset[index] for index in range(size)]
    except (AssertionError, ValueError, TypeError) as error:
        raise DataError(f"{source}: {name} cannot be made of these settings: {error}") from error
    return [
        Prompt(entry["question"], columns={"answer": str(entry["answer"]), COLUMN: {**task, "index": index}})
        for index, entry in enumerate(entries)
    ]


def _value(source: str, text: str) -> Any:
    try:
        return parse_yaml(text)
    except YamlError as error:
        raise DataError(f"{source}: the value {text!r} cannot be read: {error}") from error
