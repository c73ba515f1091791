"""Several methods in one run: the values that each adds, those that it replaces, and whether a replaced method still
has an effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mmgrpo.config.sections import at, has
from mmgrpo.errors import ConfigError

CHAINS = (
    "advantage.estimators",
    "advantage.filters",
    "objective.terms",
    "objective.modulations",
    "objective.selections",
    "update.hooks",
    "objective.auxiliary",
)
"""Keys with lists of functions that run in sequence; the lists of two methods are concatenated."""

STRATEGY = "rollout.strategy"

STRATEGY_KINDS = ("off_policy", "strategies", "sampling")
"""Kinds of methods that depend on their strategy, where they have one."""

OF_MODEL = "the model or run below the method"
"""Source of a value of ``about.method.model_overrides`` that a model or a run sets."""

METHOD = "about.method"
"""The key of the method's description."""

Values = Mapping[str, Any]
Merge = Callable[[Values, Values], dict[str, Any]]


def composed(layers: Sequence[Values], merge: Merge) -> dict[str, Any]:
    """Files merged in order, later ones on top; the function lists of several methods are concatenated.

    A run or a model, a file without a method that names a policy or a source of prompts, is merged before the methods
    of the list, in every position: the values of a method apply in either order, except for its ``model_overrides``.

    Args:
        layers: the files' values.
        merge: merges the second mapping on top of the first.

    Returns:
        The values. The section of the last method contains those of the lower methods, each with its replaced values.

    Raises:
        ConfigError: methods are for different policies; one would have no effect, as those above it set all that it
            sets or use another strategy; or a file drops functions of a method before it.
    """
    layers = _runs_first(layers)
    runs = [values for values in layers if is_run(values) and not _name(values)]
    layers = [overridden_by_runs(values, runs) for values in layers]
    merged = _merged(layers, merge)
    methods = [number for number, values in enumerate(layers) if _name(values)]
    if not methods or len(layers) < 2:
        return merged
    if len({_name(layers[number]) for number in methods}) < 2:
        return _with_sections(merged, [], layers[methods[-1]])
    uppermost, lower = layers[methods[-1]], methods[:-1]
    _require_same_policy_kind([method_of(layers[number]) for number in methods])
    for number in lower:
        others = _merged([*layers[:number], *layers[number + 1 :]], merge)
        if not _adds_rewards(layers[number]) and _without_metadata(others) == _without_metadata(merged):
            raise ConfigError(
                f"{_name(layers[number])} would have no effect under {_name(uppermost)}, which sets all that it sets; "
                "put it after that, or include one of the two"
            )
        _require_same_strategy(layers[number], merged, [layers[above] for above in methods if above > number])
    return _with_sections(merged, [layers[number] for number in lower], uppermost)


def require_functions(below: Values, above: Values, where: str) -> None:
    """Checks that values merged on top of a method drop none of its functions.

    A list may be cleared by ``[]`` or null, and ``about.method: null`` detaches the run from the method.

    Args:
        below: the values with the method.
        above: the values merged on top.
        where: the file or the override, for messages.

    Raises:
        ConfigError: a list of ``above`` lacks functions that the same list of ``below`` has.
    """
    is_detached = has(above, METHOD) and not at(above, METHOD)
    if _name(below) is None or is_detached or _name(above) not in (None, _name(below)):
        return
    for key in CHAINS:
        lower, upper = at(below, key, None), at(above, key, None)
        if not (isinstance(lower, list) and isinstance(upper, list) and upper):
            continue
        stated = {_identity(function) for function in upper}
        if dropped := [str(_identity(lost)[0]) for lost in lower if _identity(lost) not in stated]:
            raise ConfigError(
                f"{where}: {key} replaces the list of methods/{_name(below)} and drops {', '.join(dropped)}: state "
                f"{'these' if len(dropped) > 1 else 'it'} in {key} too; [] to leave out the list; or about.method: "
                "null for a run that is not that method's"
            )


def _runs_first(layers: Sequence[Values]) -> list[Values]:
    """The layers with runs and models before the first method."""
    first = next((number for number, values in enumerate(layers) if _name(values)), len(layers))
    are_runs = [is_run(values) and not _name(values) for values in layers[first:]]
    runs = [values for values, is_moved in zip(layers[first:], are_runs, strict=True) if is_moved]
    others = [values for values, is_moved in zip(layers[first:], are_runs, strict=True) if not is_moved]
    return [*layers[:first], *runs, *others]


def overridden_by_runs(layer: Values, runs: Sequence[Values]) -> Values:
    """A method with the values of runs and models for the keys that it leaves to them.

    Args:
        layer: values of a file.
        runs: the runs and models that it is merged on top of, in order.

    Returns:
        The values with those of the last run that sets each key of ``about.method.model_overrides``.
    """
    for key in method_of(layer).get("model_overrides", ()):
        section, _, name = key.partition(".")
        stated = [at(values, key) for values in runs if has(values, key)]
        if not stated or stated[-1] == at(layer, key):
            continue
        method = method_of(layer)
        about = {**layer["about"], "method": {**method, "sources": {**method.get("sources", {}), key: OF_MODEL}}}
        layer = {**layer, section: {**layer[section], name: stated[-1]}, "about": about}
    return layer


def method_of(values: Values) -> Mapping[str, Any]:
    """The description of the method of a file; empty if it has none."""
    return at(values, METHOD, None) or {}


def is_run(values: Values) -> bool:
    """Whether values name a policy or a source of prompts, as those of a run or a model do."""
    keys = ("policy.name", "prompts.source", "prompts.sources")
    return isinstance(values.get("policy"), str) or any(has(values, key) for key in keys)


def _adds_rewards(values: Values) -> bool:
    rewards = at(values, f"{METHOD}.rewards", {})
    return isinstance(rewards, Mapping) and bool(rewards.get("substitutes") or rewards.get("added"))


def _with_sections(merged: dict[str, Any], lower: Sequence[Values], uppermost: Values) -> dict[str, Any]:
    """The merged values with the sections of the lower methods, and the values of each that others replaced."""
    *lower_sections, upper_section = [section for layer in (*lower, uppermost) for section in _sections(layer, merged)]
    sections = {
        key: value for key, value in (("over", lower_sections), ("replaced", upper_section["replaced"])) if value
    }
    return {**merged, "about": {**merged["about"], "method": {**method_of(merged), **sections}}}


def _sections(layer: Values, merged: Values) -> Iterator[dict[str, Any]]:
    """The method sections of a file, the uppermost last, with the keys that each sets and its replaced values."""
    uppermost = method_of(layer)
    for method in (*uppermost.get("over", ()), uppermost):
        sources = {key: source for key, source in method.get("sources", {}).items() if has(layer, key)}
        keys = [key for key in sources if not key.startswith(f"{METHOD}.")]
        replaced = {key: at(layer, key) for key in keys if _is_other(key, layer, merged)} | method.get("replaced", {})
        yield {
            **{key: source for key, source in method.items() if key not in ("over", "paper_hparams")},
            "sources": sources,
            "replaced": replaced,
        }


def _is_other(key: str, method: Values, merged: Values) -> bool:
    """Whether a key that a method sets has another value after merging."""
    method_value, value = at(method, key), at(merged, key, None)
    joined = (
        key in CHAINS
        and isinstance(method_value, list)
        and isinstance(value, list)
        and all(function in value for function in method_value)
    )
    return (method_value != value or not has(merged, key)) and not joined


def _require_same_strategy(method: Values, merged: Values, above: Sequence[Values]) -> None:
    """Raises ConfigError if a method depends on its strategy and a method above it uses another one."""
    method_strategy, strategy = (_identity(at(values, STRATEGY, None))[0] for values in (method, merged))
    by = [_name(values) for values in above if _identity(at(values, STRATEGY, None))[0] == strategy]
    if method_of(method).get("kind") in STRATEGY_KINDS and method_strategy not in (None, strategy) and by:
        raise ConfigError(
            f"{_name(method)} needs its {STRATEGY} {method_strategy}, which {by[-1]} replaces by "
            f"{strategy}; put {_name(method)} after {by[-1]}, or include one of the two"
        )


def _merged(layers: Sequence[Values], merge: Merge) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for values in layers:
        if not _name(values):
            require_functions(merged, values, "include")
        is_further = _name(values) and _name(merged) not in (None, _name(values))
        chains = _chains(merged, values) if is_further else {}
        merged = merge(merged, values)
        for key, chain in chains.items():
            head, _, last = key.rpartition(".")
            merged |= {head: {**merged[head], last: chain}} if head else {last: chain}
    return merged


def _require_same_policy_kind(methods: Sequence[Values]) -> None:
    kinds = ("tokens", "denoising", "masked")
    names_by_kind = {
        kind: names
        for kind in kinds
        if (names := [method["name"] for method in methods if method.get("applies_to") == kind])
    }
    if "denoising" in names_by_kind and len(names_by_kind) > 1:
        listed = " and ".join(f"{', '.join(names)} for {kind}" for kind, names in names_by_kind.items())
        raise ConfigError(f"no policy is of both kinds: {listed}; include methods of one kind")


def _chains(below: Values, above: Values) -> dict[str, list[Any]]:
    """The concatenated functions of every key that both set; the upper one replaces one of the same name and label."""
    chains = {}
    for key in CHAINS:
        lower, upper = at(below, key, None), at(above, key, None)
        if isinstance(lower, list) and isinstance(upper, list) and lower and upper:
            by_name = {_identity(function): function for function in lower} | {
                _identity(function): function for function in upper
            }
            chains[key] = list(by_name.values())
    return chains


def _identity(function: Any) -> tuple[Any, Any]:
    return (function.get("name"), function.get("label")) if isinstance(function, Mapping) else (function, None)


def _without_metadata(values: Values) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "about"}


def _name(values: Values) -> str | None:
    return at(values, f"{METHOD}.name", None)
