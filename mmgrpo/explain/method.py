"""What a method's file sets of a run, and what its published run had otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config
from mmgrpo.errors import ConfigError

SECTIONS = ("policy", "rollout", "advantage", "objective", "auxiliary", "critic", "update", "schedules", "controllers")
"""Where a method's mechanism lies; a task and a recipe name sources of other sections too."""

PLAIN = "plain"
"""What a method is compared with."""

POLICIES = {"tokens": "for tokens", "denoising": "for denoising policies", "both": "for tokens and denoising policies"}


def recipe_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Labels and texts: the paper whose run this is, and how it differs from it; nothing where it is nobody's."""
    if config.recipe is None:
        return
    yield "recipe", f"{config.recipe.title} ({config.recipe.paper})"
    for deviation in config.recipe.deviations:
        yield "deviation", deviation
    for evidence in config.recipe.evidence:
        yield "evidence", evidence


def method_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Labels and texts: the method, the keys it sets with their values here, what its published run had otherwise."""
    method = config.method
    if method is None:
        yield "method", "none named"
        return
    only = "" if method.applies_to == "both" else f", {POLICIES[method.applies_to]}"
    yield "method", f"{method.title} ({method.paper}){only}"
    if method.over:
        yield "laid over", ", ".join(method.over)
    if method.replaced:
        yield "replaced", f"what lies above has other values of {', '.join(method.replaced)}"
    values = config.model_dump(mode="json")
    if sets := [f"{key} = {shown_value(found)}" for key, found in _mechanism(config, values)]:
        yield "it sets", ", ".join(sets)
    if others := list(_otherwise(PLAIN, config, values)):
        yield "plain GRPO", f"has {', '.join(others)}"
    if config.published:
        yield "published", _published_line(config, values)
    if method.renamed:
        yield "renamed", " ".join(method.renamed.split())
    for deviation in method.deviations:
        yield "deviation", deviation
    for evidence in method.evidence:
        yield "evidence", evidence


def at(values: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key, whose parts may hold dots as those of schedules do; a ConfigError if there is none."""
    found, parts = values, key.split(".")
    while parts:
        heads = [".".join(parts[:num]) for num in range(1, len(parts) + 1)] if isinstance(found, Mapping) else []
        num = next((num for num, head in enumerate(heads, 1) if head in found), None)
        if num is None:
            raise ConfigError(f"the configuration has no key {key!r}")
        found, parts = found[heads[num - 1]], parts[num:]
    return found


def has(values: Mapping[str, Any], key: str) -> bool:
    """Whether there is a value at a dotted key."""
    try:
        at(values, key)
    except ConfigError:
        return False
    return True


def shown_value(value: Any) -> str:
    """A value on one line: a function as its name with its numbers."""
    if isinstance(value, Mapping):
        numbers = ", ".join(f"{key} {shown_value(inner)}" for key, inner in value.items() if key != "name")
        return f"{value['name']} ({numbers})" if "name" in value and numbers else value.get("name", numbers)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mechanism(config: RunConfig, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys that the method's sources name and its published scale does not, with the values of this run."""
    for key in config.method.sources if config.method else ():
        if key.partition(".")[0] not in SECTIONS or not has(values, key):
            continue
        value = at(values, key)
        if not has(config.published, key) or _only_numbers_of(at(config.published, key), value):
            yield key, value


def _otherwise(plain: str, config: RunConfig, values: Mapping[str, Any]) -> Iterator[str]:
    """The keys that the method sets and another has other values of, with those of the other."""
    theirs = load_config(plain).model_dump(mode="json")
    for key, value in _mechanism(config, values):
        if has(theirs, key) and at(theirs, key) != value:
            yield f"{key} = {_here(at(theirs, key))}"


def _only_numbers_of(published: Any, value: Any) -> bool:
    """Whether what is published is a number of a function that the method itself names."""
    return isinstance(value, Mapping) and "name" in value and isinstance(published, Mapping) and "name" not in published


def _published_line(config: RunConfig, values: Mapping[str, Any]) -> str:
    where = f" ({config.method.published_on})" if config.method and config.method.published_on else ""
    others = [f"{key} = {shown_value(had)} (here {_here(now)})" for key, had, now in _others(config.published, values)]
    if not others:
        return f"every value of the published run{where} is in force"
    return (
        f"the published run{where} had {', '.join(others)}; published=true on the command line, or published: true in "
        "the file that includes the method, puts in force what the file itself leaves open"
    )


def _here(value: Any) -> str:
    return "none" if value is None else shown_value(value)


def _others(published: Mapping[str, Any], values: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted keys of published values that a run has otherwise, with both values."""
    for key, had in published.items():
        found = values.get(key) if isinstance(values, Mapping) else None
        if isinstance(had, Mapping) and isinstance(found, Mapping):
            yield from _others(had, found, f"{prefix}{key}.")
        elif had != found:
            yield f"{prefix}{key}", had, found
