"""The registered functions, each bound to numbers as a configuration binds it.

The numbers are the defaults and those of the shipped files that name the function, so that a new function is covered
as soon as it is registered, and named by a file where it has numbers without a default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import yaml

from mmgrpo.algorithm import FILTERS_WITH_LR
from mmgrpo.config import Named
from mmgrpo.config.binding import bound
from mmgrpo.config.loading import CONFIGS
from mmgrpo.data.samplers import SAMPLERS
from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import ADVANTAGES, COMBINING
from mmgrpo.maths.aggregates import AGGREGATES
from mmgrpo.maths.combinations import COMBINATIONS
from mmgrpo.maths.controllers import CONTROLLERS
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.filters import FILTERS
from mmgrpo.maths.modulations import MODULATIONS
from mmgrpo.maths.prompt_weights import ANSWER_WEIGHTS
from mmgrpo.maths.ratios import BOUNDS
from mmgrpo.maths.schedules import SCHEDULES
from mmgrpo.maths.selections import SELECTIONS
from mmgrpo.maths.steps import STEP_WEIGHTS
from mmgrpo.maths.strategies import STRATEGIES
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.trees import TREES
from mmgrpo.maths.windows import WINDOWS

REGISTRIES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "scale": ADVANTAGES,
    "combining": COMBINING,
    "combine": COMBINATIONS,
    "estimators": ESTIMATORS,
    "filters": FILTERS,
    "surrogate": SURROGATES,
    "bound": BOUNDS,
    "aggregate": AGGREGATES,
    "step_weight": STEP_WEIGHTS,
    "modulations": MODULATIONS,
    "selections": SELECTIONS,
    "terms": TERMS,
    "strategy": STRATEGIES,
    "window": WINDOWS,
    "tree": TREES,
    "sampler": SAMPLERS,
    "schedules": SCHEDULES,
    "controllers": CONTROLLERS,
    "weight_by_success": ANSWER_WEIGHTS,
}
"""Registries by the key under which a configuration names their functions."""

KEYS = {
    "combining": ("scale",),
    "schedules": ("schedules", "schedule"),
    "controllers": ("schedules",),
    "sampler": ("sampler", "first"),
}
"""The keys of those that have others, or several."""

PASSED = {"window": ("seed", "step"), "sampler": ("first", "second")}
"""Keyword parameters that the run passes, which are no numbers of the configuration."""

MAKERS = ("estimators", "filters", "modulations", "selections", "terms", "strategy")
"""Registries of functions of numbers alone, which may be wrong together."""

LR = 0.1
"""Of the update, for filters that predict its step."""

MAX_SETS = 3
"""Sets of numbers of the files that one function is tested with nightly; at every commit it is one set."""

FURTHER: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "combine.mean_minus_variance": [{"factor": 0.5}],
    "estimators.anchors": [{"reach": 1, "share": 0.5}],
    "estimators.among_most_efficient": [{"count": 2}, {"count": 2, "by": "reward_per_decision"}],
    "estimators.anchor_states": [{"similar": 0.4}, {"normalize": False, "reward": "accuracy"}],
    "estimators.conflict_tokens": [{"entropy_limit": None}],
    "estimators.consistent_members": [{"reward": "steps", "count": 2, "most_steps": 3}],
    "estimators.kl_to_go": [{"weight": 0.5, "every": 2}],
    "estimators.late_decisions": [{"start": 1, "end": 4}],
    "estimators.over_budgets": [{"at": [1, 3], "weights": [1.0, 2.0, 1.0]}],
    "estimators.process_returns": [{"reward": "steps"}],
    "estimators.prune_depths": [{"depths": [2]}],
    "estimators.rank_bonus": [{"rank": 2.0, "velocity": 0.5, "acceleration": -0.5, "stride": 1}],
    "estimators.ranks": [{"reward": "items"}],
    "estimators.segment_differences": [{"reward": "steps"}, {"reward": "steps", "below": 0.4}],
    "estimators.self_rewarded": [{"token": 1, "least": 0.01}],
    "estimators.short_where_solved": [{"share": 0.5, "strength": 0.6}],
    "estimators.sure_segments": [{"least": 1}],
    "filters.best_and_worst": [{"best": 1, "worst": 1}],
    "filters.beyond": [{"size": 0.5, "members": 2}],
    "filters.most_efficient": [{"count": 2}, {"count": 2, "by": "reward_per_decision"}],
    "filters.most_varied": [{"count": 2}],
    "filters.within_curvature": [{"shift": 0.05, "divergence": 0.01}],
    "modulations.clip_covariance": [{"share": 0.25, "at_least": 0.01}],
    "modulations.constant": [{"low": 0.1, "high": 0.3, "divergence": 2.0, "loss": 0.5}],
    "modulations.discounted_steps": [{"gamma": 0.9}, {"gamma": 0.9, "each": "segment"}],
    "modulations.growing_bounds": [{"first": 0.001, "last": 0.01}, {"first": 0.1, "last": 0.2, "each": "segment"}],
    "modulations.kl_covariance": [{"share": 0.25}],
    "modulations.within_divergence": [{"limit": 0.5}],
    "sampler.mixed": [{"share": 0.5}],
    "scale.part": [{"parts": 2}],
    "scale.pass_at_k": [{"k": 2}],
    "scale.part_baseline": [{"baselines": [0.5, 0.25]}],
    "scale.risk": [{"bundle": 2}],
    "scale.staged": [{"parts": 2}],
    "selections.near_policy": [{"limit": 0.01}],
    "selections.ratio_top_entropy": [{"share": 0.3}],
    "selections.top_entropy": [{"share": 0.3}],
    "strategy.branch_at": [{"at": [1, 2]}],
    "strategy.take_turns": [{"roles": ["a", "b"], "turns": 3}, {"roles": ["a", "b"], "turns": 3, "follow": "best"}],
    "strategy.two_stage_scouts": [{"scouts": 4, "best": 1, "worst": 1, "settings": {"steps": 2}}],
    "terms.anchored_entropy": [{"quantile": 0.5, "anchor": 1.0}],
    "terms.negative_logprob": [{"view": "masked"}, {"view": "masked", "grad": True}],
    "terms.preference": [{"pairs": "all", "top": 1.0, "sharper": 2.0}],
    "terms.divergence": [{"form": "k2"}],
    "window.fixed": [{"start": 1, "size": 2}],
    "controllers.adaptive_kl": [{"target": 0.1}],
    "controllers.dual_ascent": [{"target": 0.5, "rate": 0.1}, {"target": 0.5, "rate": -0.1, "low": 0.2, "high": 0.6}],
}
"""Numbers of functions that no file names, and of those whose files have numbers for longer samples than these."""


@dataclass(frozen=True)
class Case:
    """A registered function with its settings.

    Attributes:
        kind: key of its registry in ``REGISTRIES``.
        name: under which it is registered.
        numbers: those that are not the defaults.
        nightly: whether nightly tests alone take it: further sets of numbers, and functions of one paper.
    """

    kind: str
    name: str
    numbers: Mapping[str, Any]
    nightly: bool = False

    @property
    def label(self) -> str:
        """The function, as exemptions name it."""
        return f"{self.kind}.{self.name}"

    def bind(self) -> Callable[..., Any]:
        """The function with its settings, as a configuration binds it."""
        lr = {"lr": LR} if self.kind == "filters" and self.name in FILTERS_WITH_LR else {}
        named = Named.model_validate({"name": self.name, **lr, **self.numbers})
        return bound(self.kind, REGISTRIES[self.kind], named, supplied=PASSED.get(self.kind, ()))


@cache
def cases(kind: str) -> tuple[Case, ...]:
    """Every function of a registry with up to ``MAX_SETS`` sets of numbers."""
    return tuple(case for name in sorted(REGISTRIES[kind]) for case in _cases_of(kind, name))


def _cases_of(kind: str, name: str) -> Sequence[Case]:
    parameters = inspect.signature(REGISTRIES[kind][name]).parameters
    keys = KEYS.get(kind, (kind,))
    in_files = [numbers for path, numbers in _named_in_files().get(name, ()) if path & set(keys)]
    bound_cases: list[Case] = []
    for numbers in ({}, *in_files):
        case = Case(kind, name, {key: value for key, value in numbers.items() if _is_set(parameters.get(key), value)})
        if case not in bound_cases and _binds(case):
            bound_cases.append(case)
    further = [Case(kind, name, numbers) for numbers in FURTHER.get(f"{kind}.{name}", ())]
    if not bound_cases and not further:
        raise AssertionError(
            f"{kind}: {name} has numbers without a default: name it in a file of configs, or add its numbers to FURTHER"
        )
    bound_sets = [*further, *bound_cases[:MAX_SETS]]
    of_one_paper = (inspect.unwrap(REGISTRIES[kind][name]).__module__ or "").startswith("mmgrpo.methods.")
    return [replace(case, nightly=of_one_paper or number > 0) for number, case in enumerate(bound_sets)]


def _is_set(parameter: inspect.Parameter | None, value: Any) -> bool:
    """Whether a value of a file is a number of the function, other than its default."""
    return parameter is not None and value != parameter.default


def _binds(case: Case) -> bool:
    try:
        function = case.bind()
        if case.kind in MAKERS:
            function()
    except ConfigError:
        return False
    return True


@cache
def _named_in_files() -> Mapping[str, Sequence[tuple[frozenset[str], Mapping[str, Any]]]]:
    """The keys that lead to each named function of the shipped files, and its settings, by name."""
    named: dict[str, list[tuple[frozenset[str], Mapping[str, Any]]]] = {}
    for path in sorted(CONFIGS.rglob("*.yaml")):
        with path.open() as file:
            values = yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for keys, value in _mappings(values, ()):
            numbers = {key: number for key, number in value.items() if key != "name"}
            named.setdefault(value["name"], []).append((frozenset(keys), numbers))
    return named


def _mappings(values: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    if isinstance(values, Mapping):
        if isinstance(values.get("name"), str):
            yield keys, values
        for key, value in values.items():
            yield from _mappings(value, (*keys, str(key)))
    if isinstance(values, list):
        for value in values:
            yield from _mappings(value, keys)
