"""Every key of a quickstart has an effect: with another value the plan changes, or it is an error or a warning.

The plan is that of ``mmgrpo explain``, which binds every function. Keys that it does not print are listed with their
reader.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from mmgrpo.config import AboutConfig, Named, RunConfig
from mmgrpo.config.loading import load_config
from mmgrpo.config.sections import updated
from mmgrpo.errors import ConfigError
from mmgrpo.explain.explanation import explanation

SECTIONS: dict[str, Any] = {
    "objective.kl.beta": 0.1,
    "objective.terms": [{"name": "negative_logprob", "weight": 0.5}],
    "update.ema": {"decay": 0.5, "every": 2},
    "update.reference": {"reset_every": 5, "ema": {"decay": 0.5}},
    "update.epochs": 2,
}
"""Of every run: sections that a quickstart leaves out."""

RUNS = (
    "quickstart/arithmetic-text",
    "quickstart/digits-image",
    "quickstart/digits-masked",
    "quickstart/calculator-tool",
)

UNPRINTED = {
    "seed": "random numbers of every module",
    "output": "folder of the run folders",
    "runtime": "use of the machine",
    "checkpoint": "files of the run folder",
    "evaluation": "mmgrpo.training.evaluation, and alerts",
    "prompts": "mmgrpo.data.prompt_loading",
    "rollout.saved_groups": "files of the run folder",
    "rollout.training_states": "mmgrpo.training.request_sampling, which raises for texts",
    "rollout.environment_workers": "threads of environments",
    "rollout.environment_timeout_s": "mmgrpo.environments, calls that do not return",
    "update.warmup": "mmgrpo.training.supervision",
}
"""Keys, and sections, that the plan does not print, with their reader."""


def others(value: Any, annotation: Any) -> Iterator[Any]:
    """Other values of a type than one."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    for kind in typing.get_args(annotation) if is_union else (annotation,):
        if typing.get_origin(kind) is Literal:
            yield from (choice for choice in typing.get_args(kind) if choice != value)
        elif kind is bool:
            yield not value
        elif kind is int and not isinstance(value, bool):
            yield (value or 0) + 1
        elif kind is float:
            yield (value or 1.0) * 0.75


def leaves(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys with another value, of the sections that a run has; named functions and metadata are left out."""
    for name, field in type(section).model_fields.items():
        value, key = getattr(section, name), f"{prefix}{name}"
        if isinstance(value, BaseModel) and not isinstance(value, AboutConfig) and type(value) is not Named:
            yield from leaves(value, f"{key}.")
        elif name != "name":
            yield from ((key, other) for other in others(value, field.annotation))


def is_printed(key: str) -> bool:
    return not any(key == other or key.startswith(f"{other}.") for other in UNPRINTED)


def plan(config: RunConfig) -> str:
    """The plan of the values, checked again; or the error."""
    try:
        return explanation(RunConfig.model_validate(config.model_dump()))
    except (ConfigError, ValueError) as error:
        return f"error: {error}"


@pytest.mark.nightly
@pytest.mark.parametrize("name", RUNS)
def test_another_value_of_a_key_changes_the_plan(name: str) -> None:
    divergence = "gaussian" if name == "quickstart/digits-image" else "k3"
    config = load_config(name, {**SECTIONS, "objective.kl.divergence": divergence})
    before = plan(config)
    assert not before.startswith("error")
    changed = [(key, other) for key, other in leaves(config) if is_printed(key)]
    assert len(changed) > 25
    silent = [f"{key}={other}" for key, other in changed if plan(updated(config, key, other)) == before]
    assert silent == []
