"""The settings of a run that its method sets, and their differences from the published run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mmgrpo.config import POLICIES, AboutConfig, MethodConfig, RunConfig
from mmgrpo.config.composing import OF_MODEL
from mmgrpo.config.loading import load_config
from mmgrpo.config.sections import at, has

SECTIONS = ("policy", "rollout", "advantage", "objective", "update", "schedules")
"""Sections of a method's mechanism; tasks and recipes have sources of other sections too."""

Values = Mapping[str, Any]

PLAIN = "plain"
"""Name of the configuration that methods are compared with."""


def recipe_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Rows on the paper that the recipe reproduces, and its deviations; none without a recipe."""
    if config.about.title is not None:
        yield "recipe", _cited(config.about)
        yield from _notes(config.about)


def method_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Rows on the method: the keys that it sets, its differences from the published run, and the methods below it."""
    if config.about.method is None:
        yield "method", "none named"
        return
    values = config.model_dump(mode="json")
    yield from _rows("method", config.about.method, config.about.method.paper_hparams, values)
    for lower in reversed(config.about.method.over):
        yield from _rows("merged below", lower, {}, values)


def reward_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """A row per reward with its weight, settings and source, if the method adds rewards."""
    if not any(reward.from_method for reward in config.rewards):
        return
    for number, reward in enumerate(config.rewards):
        settings = {key: value for key, value in reward.settings.items() if value is not None}
        label = "" if reward.label is None else f", labeled {reward.label}"
        source = f"of methods/{reward.from_method}" if reward.from_method else "of the run"
        line = f"{reward.weight:g} {formatted_value({'name': reward.name, **settings})}{label}: {source}"
        if reward.weight == 0 and reward.from_method is None and reward.verifier:
            line += ", reported only: a reward of the method counts in its place"
        yield "" if number else "rewards", line


def _rows(label: str, method: MethodConfig, published: Values, values: Values) -> Iterator[tuple[str, str]]:
    yield label, _cited(method) + ("" if method.applies_to == "both" else f", {POLICIES[method.applies_to]}")
    if method.replaced:
        values_text = ", ".join(f"{key} = {_value_or_none(value)}" for key, value in method.replaced.items())
        yield "replaced", f"methods included later override {values_text}"
    mechanism = dict(_mechanism(method, published, values))
    settings = {key: value for key, value in mechanism.items() if method.sources[key] != OF_MODEL}
    if of_model := [f"{key} = {formatted_value(value)}" for key, value in mechanism.items() if key not in settings]:
        yield "it leaves", f"{', '.join(of_model)}, which {OF_MODEL} sets"
    if sets := [f"{key} = {formatted_value(value)}" for key, value in settings.items()]:
        yield "it sets", ", ".join(sets)
    plain = load_config(PLAIN).model_dump(mode="json")
    others = {key: at(plain, key) for key, value in settings.items() if at(plain, key, value) != value}
    if others:
        values_text = (
            f"{key} {'not set' if value in (None, {}) else f'= {_value_or_none(value)}'}"
            for key, value in others.items()
        )
        yield "plain GRPO", f"has {', '.join(values_text)}"
    if method.needs:
        yield "needs", ", ".join(method.needs)
    if published:
        yield "published", _published_line(method, published, values)
    yield from _notes(method)


def _cited(paper: MethodConfig | AboutConfig) -> str:
    return f"{paper.title} ({paper.paper or 'not published'})"


def _notes(paper: MethodConfig | AboutConfig) -> Iterator[tuple[str, str]]:
    yield from (("deviation", deviation) for deviation in paper.deviations)
    yield from (("evidence", evidence) for evidence in paper.evidence)


def formatted_value(value: Any) -> str:
    """A value on one line: a function as its name with its settings."""
    if isinstance(value, Mapping):
        numbers = ", ".join(f"{key} {formatted_value(inner)}" for key, inner in value.items() if key != "name")
        return f"{value['name']} ({numbers})" if "name" in value and numbers else value.get("name", numbers)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(formatted_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value).replace("\n", "\\n")


def _mechanism(method: MethodConfig, published: Values, values: Values) -> Iterator[tuple[str, Any]]:
    """The keys of the method's sources that are not published scale, with the values of this run."""
    for key in method.sources:
        if key.partition(".")[0] not in SECTIONS or key in method.replaced or not has(values, key):
            continue
        if any(key.startswith(f"{block}.") for block in method.sources):
            continue  # a setting of a function, which is listed with it
        value = at(values, key)
        if not has(published, key) or _only_numbers_of(at(published, key), value):
            yield key, value


def _only_numbers_of(published: Any, value: Any) -> bool:
    """Whether the published value is a number of a function that the method names."""
    return isinstance(value, Mapping) and "name" in value and isinstance(published, Mapping) and "name" not in published


def _published_line(method: MethodConfig, published: Values, values: Values) -> str:
    where = f" ({method.published_on})" if method.published_on else ""
    others = [
        f"{key} = {formatted_value(published_value)} (here {_value_or_none(now)})"
        for key, published_value, now in _differences(published, values)
    ]
    if not others:
        return f"every value of the published run{where} is in force"
    return (
        f"the published run{where} had {', '.join(others)}; use_paper_hparams=true on the command line, or "
        "use_paper_hparams: true in the file that includes the method, applies the ones that the file does not set"
    )


def _value_or_none(value: Any) -> str:
    return "none" if value is None else formatted_value(value)


def _differences(published: Mapping[str, Any], values: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted key, published value, value of the run) where they differ."""
    for key, published_value in published.items():
        value = values.get(key) if isinstance(values, Mapping) else None
        if isinstance(published_value, Mapping) and isinstance(value, Mapping):
            yield from _differences(published_value, value, f"{prefix}{key}.")
        elif published_value != value:
            yield f"{prefix}{key}", published_value, value
