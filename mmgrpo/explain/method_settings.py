"""What a method's file sets of a run, and what its published run had otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmgrpo.config import POLICIES, MethodConfig, RecipeConfig, RunConfig
from mmgrpo.config.loading import load_config
from mmgrpo.config.sections import at, has

SECTIONS = ("policy", "rollout", "advantage", "objective", "auxiliary", "critic", "update", "schedules", "controllers")
"""Where a method's mechanism lies; a task and a recipe name sources of other sections too."""

Values = Mapping[str, Any]

PLAIN = "plain"
"""What a method is compared with."""


def recipe_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Labels and texts: the paper whose run this is, and how it differs from it; nothing where it is nobody's."""
    if config.recipe is not None:
        yield "recipe", _cited(config.recipe)
        yield from _told(config.recipe)


def method_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Labels and texts: the method, the keys it sets with their values here, what its published run had otherwise; then
    each method that it lies over, with what is left of it."""
    if config.method is None:
        yield "method", "none named"
        return
    values = config.model_dump(mode="json")
    yield from _rows("method", config.method, config.published, values)
    for lower in reversed(config.method.over):
        yield from _rows("laid over", lower, {}, values)


def reward_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Each reward of a run to which a method adds some, on a line: its weight, its settings, and where it is from."""
    if not any(reward.from_method for reward in config.rewards):
        return
    for number, reward in enumerate(config.rewards):
        settings = {key: value for key, value in reward.numbers.items() if value is not None}
        label = "" if reward.label is None else f", labeled {reward.label}"
        source = f"of methods/{reward.from_method}" if reward.from_method else "of the run"
        line = f"{reward.weight:g} {shown_value({'name': reward.name, **settings})}{label}: {source}"
        if reward.weight == 0 and reward.from_method is None and reward.verifier:
            line += ", reported only: a reward of the method counts in its place"
        yield "" if number else "rewards", line


def _rows(label: str, method: MethodConfig, published: Values, values: Values) -> Iterator[tuple[str, str]]:
    yield label, _cited(method) + ("" if method.applies_to == "both" else f", {POLICIES[method.applies_to]}")
    if method.replaced:
        had = ", ".join(f"{key} = {_here(value)}" for key, value in method.replaced.items())
        yield "replaced", f"what lies above has other values of {had}"
    found = dict(_mechanism(method, published, values))
    if sets := [f"{key} = {shown_value(value)}" for key, value in found.items()]:
        yield "it sets", ", ".join(sets)
    theirs = load_config(PLAIN).model_dump(mode="json")
    others = {key: at(theirs, key) for key, value in found.items() if at(theirs, key, value) != value}
    if others:
        had = (f"{key} {'not set' if value is None else f'= {_here(value)}'}" for key, value in others.items())
        yield "plain GRPO", f"has {', '.join(had)}"
    if method.needs:
        yield "needs", ", ".join(method.needs)
    if published:
        yield "published", _published_line(method, published, values)
    yield from _told(method)


def _cited(paper: MethodConfig | RecipeConfig) -> str:
    return f"{paper.title} ({paper.paper or 'not published'})"


def _told(paper: MethodConfig | RecipeConfig) -> Iterator[tuple[str, str]]:
    yield from (("deviation", deviation) for deviation in paper.deviations)
    yield from (("evidence", evidence) for evidence in paper.evidence)


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


def _mechanism(method: MethodConfig, published: Values, values: Values) -> Iterator[tuple[str, Any]]:
    """The keys that the method's sources name and its published scale does not, with the values of this run."""
    for key in method.sources:
        if key.partition(".")[0] not in SECTIONS or key in method.replaced or not has(values, key):
            continue
        value = at(values, key)
        if not has(published, key) or _only_numbers_of(at(published, key), value):
            yield key, value


def _only_numbers_of(published: Any, value: Any) -> bool:
    """Whether what is published is a number of a function that the method itself names."""
    return isinstance(value, Mapping) and "name" in value and isinstance(published, Mapping) and "name" not in published


def _published_line(method: MethodConfig, published: Values, values: Values) -> str:
    where = f" ({method.published_on})" if method.published_on else ""
    others = [f"{key} = {shown_value(had)} (here {_here(now)})" for key, had, now in _others(published, values)]
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
