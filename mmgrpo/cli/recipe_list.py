"""The complete configurations, each with a line of what it trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmgrpo.config.loading import find_config, read_layers, shipped
from mmgrpo.data.procedural_prompts import is_procedural
from mmgrpo.errors import UnknownNameError
from mmgrpo.system.remote_files import suffix_of
from mmgrpo.system.targets import is_python_target

MAX_REWARDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeEntry:
    """A complete configuration.

    Attributes:
        name: the shipped name.
        summary: model, method, rewards and data set, in one line.
        note: its requirements.
    """

    name: str
    summary: str
    note: str


def recipes_named(text: str = "") -> list[RecipeEntry]:
    """The complete configurations with a text in their names.

    Args:
        text: part of the names.

    Returns:
        The recipes.

    Raises:
        UnknownNameError: no name contains the text.
    """
    all_names = [name for folder in ("quickstart", "recipes", "papers") for name in shipped(folder)]
    names = [name for name in all_names if text in name]
    if not names:
        raise UnknownNameError(f"no recipe has {text!r} in its name; mmgrpo recipes lists all {len(all_names)}")
    return [_recipe(name, read_layers(find_config(name))) for name in names]


def _recipe(name: str, values: Mapping[str, Any]) -> RecipeEntry:
    about = values.get("about") or {}
    paper = f" (arXiv:{about['paper']})" if about.get("paper") else ""
    return RecipeEntry(name=name, summary=summary_of(values), note=" ".join(str(about.get("note", "")).split()) + paper)


def summary_of(values: Mapping[str, Any]) -> str:
    """Model, method, rewards and data set of a run, in one line; of a mixed run those of its tasks, each once.

    Args:
        values: the merged layers of a configuration.

    Returns:
        ``Qwen2.5-VL-3B-Instruct; GRPO; count, format; clevr_cogen_a_train``, without parts that the configuration
        lacks.
    """
    tasks = values.get("tasks")
    runs = [values, *(tasks.values() if isinstance(tasks, Mapping) else ())]
    method = (values.get("about") or {}).get("method") or {}
    models = [short(str((run.get("policy") or {}).get("model") or "")) for run in runs]
    rewards = [_reward_name(reward) for run in runs for reward in run.get("rewards") or ()]
    sources = [_source(run.get("prompts")) for run in runs]
    parts = [_listed(models), method.get("title") or method.get("name"), _listed(rewards), _listed(sources)]
    return "; ".join(part for part in parts if part)


def short(name: str) -> str:
    """The last part of a path, a hub id or a ``python:`` name."""
    return name.partition("?")[0].rpartition("/")[2].rpartition(":")[2] or name


def _reward_name(reward: Any) -> str:
    return short(str(reward["name"] if isinstance(reward, Mapping) else reward))


def _source(prompts: Any) -> str:
    """The function, the dataset with its configuration, or the file with its folder."""
    source = str((prompts.get("source") if isinstance(prompts, Mapping) else prompts) or "")
    if is_python_target(source) or is_procedural(source):
        return short(source)
    *_, folder, name = ("", *source.partition("?")[0].split("/"))
    return f"{folder}/{name}" if folder and suffix_of(source) else name


def _listed(names: list[str]) -> str:
    """The names, each once; of many the first ones and the number of others."""
    unique = list(dict.fromkeys(filter(None, names)))
    rest = len(unique) - MAX_REWARDS
    return ", ".join(unique[:MAX_REWARDS]) + (f" and {rest} more" if rest > 0 else "")
