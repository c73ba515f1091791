"""Several methods in one run: what each adds, what of a lower one is replaced, and whether anything of it is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mmgrpo.errors import ConfigError

CHAINS = (
    "advantage.estimators",
    "advantage.filters",
    "objective.terms",
    "objective.modulations",
    "objective.selections",
    "update.hooks",
    "auxiliary",
)
"""Keys whose functions work one after another, so that those of two methods are joined."""

SCALE_NUMBERS = ("eps", "correction")
"""Numbers that may be written beside ``advantage.scale``, and are of the method's own."""

_NOT_SET = object()

Values = Mapping[str, Any]
Lay = Callable[[Values, Values], dict[str, Any]]


def composed(layers: Sequence[Values], lay: Lay) -> dict[str, Any]:
    """Files laid over each other, in order; of methods among them the functions that work one after another are joined.

    Args:
        layers: the files' values.
        lay: puts one over another.

    Returns:
        The values. The uppermost method says which it lies over, and which of their keys others replaced.

    Raises:
        ConfigError: methods are for different policies, or one would have no effect, as those above it say all that it
            says.
    """
    merged = _laid(layers, lay)
    methods = [number for number, values in enumerate(layers) if _name(values)]
    if not methods or len(layers) < 2:
        return merged
    if len({_name(layers[number]) for number in methods}) < 2:
        return _told(merged, [], [layers[methods[-1]]])
    uppermost, lower = layers[methods[-1]], methods[:-1]
    _require_one_policy([layers[number]["method"] for number in methods])
    for number in lower:
        if _without_names(_laid([*layers[:number], *layers[number + 1 :]], lay)) == _without_names(merged):
            raise ConfigError(
                f"{_name(layers[number])} would have no effect under {_name(uppermost)}, which sets all that it sets; "
                "put it after that, or include one of the two"
            )
    return _told(merged, [_name(layers[number]) for number in lower], [layers[number] for number in methods])


def _told(merged: dict[str, Any], over: list[str | None], methods: Sequence[Values]) -> dict[str, Any]:
    """With what its method lies over, and which keys of the methods have other values now."""
    replaced = dict.fromkeys(key for method in methods for key in _replaced(method, merged))
    told = {key: value for key, value in (("over", over), ("replaced", list(replaced))) if value}
    return {**merged, "method": {**merged["method"], **told}} if told else merged


def _laid(layers: Sequence[Values], lay: Lay) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for values in layers:
        is_further = _name(values) and _name(merged) not in (None, _name(values))
        below = _with_its_own_scale(merged, values) if is_further else merged
        chains = _chains(merged, values) if is_further else {}
        merged = lay(below, values)
        for key, chain in chains.items():
            head, _, last = key.rpartition(".")
            merged |= {head: {**merged[head], last: chain}} if head else {last: chain}
    return merged


def _with_its_own_scale(below: Values, above: Values) -> Values:
    """What is below, without the numbers of its scale where another one comes above."""
    scale, other = _at(below, "advantage.scale"), _at(above, "advantage.scale")
    if scale is None or other is None or _identity(scale)[0] == _identity(other)[0]:
        return below
    return {**below, "advantage": {key: value for key, value in below["advantage"].items() if key not in SCALE_NUMBERS}}


def _require_one_policy(methods: Sequence[Values]) -> None:
    of = {kind: [one["name"] for one in methods if one.get("applies_to") == kind] for kind in ("tokens", "denoising")}
    if all(of.values()):
        said = " and ".join(f"{', '.join(names)} for {kind}" for kind, names in of.items())
        raise ConfigError(f"no policy is of both kinds: {said}; include methods of one kind")


def _chains(below: Values, above: Values) -> dict[str, list[Any]]:
    """The joined functions of every key where both have some; one of the same name and label stands for the other."""
    found = {}
    for key in CHAINS:
        lower, upper = _at(below, key), _at(above, key)
        if isinstance(lower, list) and isinstance(upper, list) and lower and upper:
            by_name = {_identity(one): one for one in lower} | {_identity(one): one for one in upper}
            found[key] = list(by_name.values())
    return found


def _identity(function: Any) -> tuple[Any, Any]:
    return (function.get("name"), function.get("label")) if isinstance(function, Mapping) else (function, None)


def _replaced(method: Values, merged: Values) -> Iterator[str]:
    """The keys that a method's file has a source of and whose value is another one now."""
    for key in method["method"].get("sources", {}):
        had, has = _at(method, key, _NOT_SET), _at(merged, key, _NOT_SET)
        joined = key in CHAINS and isinstance(had, list) and isinstance(has, list) and all(one in has for one in had)
        if had is not _NOT_SET and had != has and not joined:
            yield key


def _without_names(values: Values) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("method", "published")}


def _name(values: Values) -> str | None:
    method = values.get("method")
    return method.get("name") if isinstance(method, Mapping) else None


def _at(values: Values, key: str, default: Any = None) -> Any:
    found: Any = values
    for part in key.split("."):
        found = found.get(part, default) if isinstance(found, Mapping) else default
    return found
