"""A key or value of an earlier version is an error that names the new one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import Named
from mmgrpo.config.binding import bound, named_in
from mmgrpo.config.loading import load_config, validated
from mmgrpo.config.registry import settings_type
from mmgrpo.config.renamed import REMOVED, RENAMED, RENAMED_FUNCTIONS, RENAMED_VALUES
from mmgrpo.config.validating import explain_validation
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.maths.aggregates import AGGREGATES
from mmgrpo.maths.combinations import COMBINATIONS
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.schedules import SCHEDULES
from mmgrpo.maths.strategies import STRATEGIES
from mmgrpo.maths.terms import TERMS

LISTS = ("rewards", "prompts.sources", "objective.auxiliary", "objective.terms", "objective.terms.sources")
REQUIRED_KEYS: dict[str, dict[str, Any]] = {
    "evaluation.prompts": {"source": "rows.jsonl"},
    "rewards": {"name": "exact_match"},
    "rewards.gate": {"reward": "other", "at_least": 1.0},
    "prompts.sources": {"source": "rows.jsonl"},
    "objective.terms": {"name": "negative_logprob"},
    "objective.off_policy": {"surrogate": "unclipped"},
    "update.warmup": {"examples": "mislabeled_digits", "steps": 1},
}
"""Required keys of the same mapping."""

POLICIES = {"policy.cooling": "language"}
"""Policy that had a setting; denoising if not named."""


def at_key(key: str, value: Any) -> dict[str, Any]:
    """A configuration with one value at a dotted key."""
    parts = key.split(".")
    for number in reversed(range(len(parts))):
        section = ".".join(parts[:number])
        value = [value] if ".".join(parts[: number + 1]) in LISTS else value
        value = {**REQUIRED_KEYS.get(section, {}), parts[number]: value}
    return value


@pytest.mark.parametrize("old", [key for key in RENAMED if not key.startswith(("policy.", "objective.terms."))])
def test_an_earlier_key_names_the_new_one(old: str, tmp_path: Path) -> None:
    old, new = old.replace("*", "masked"), RENAMED[old].replace("*", "masked")
    message = rf"it is now .*{re.escape(new)}"
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(at_key(old, True)))
    with pytest.raises(ConfigError, match=message):
        Algorithm.of(load_config(file))
    if not any(old.startswith(f"{key}.") for key in LISTS):
        with pytest.raises(ConfigError, match=message):
            Algorithm.of(load_config("quickstart/digits-image", [f"{old}=true"]))


@pytest.mark.parametrize("old", [key for key in RENAMED if key.startswith("policy.")])
def test_an_earlier_setting_of_a_policy_names_the_new_one(old: str) -> None:
    setting = old.removeprefix("policy.")
    settings = settings_type(POLICIES.get(old, "denoising"))
    with pytest.raises(ValidationError) as error:
        settings(**{setting: {}})
    assert explain_validation(error.value, settings) == f"unknown key '{setting}'; it is now {RENAMED[old]}"


def test_an_earlier_key_of_a_term_names_the_new_one() -> None:
    config = validated({"objective": {"terms": [{"name": "negative_logprob", "origins": ["given"]}]}})
    with pytest.raises(ConfigError, match=r"negative_logprob takes no 'origins'; it is now objective\.terms\.sources"):
        bound("objective.terms", TERMS, config.objective.terms[0])


@pytest.mark.parametrize(("key", "old"), [(key, old) for key, values in RENAMED_VALUES.items() for old in values])
def test_an_earlier_value_names_the_new_one(key: str, old: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"{key.rpartition('.')[2]}(\.0)?: .*{old!r} is now {RENAMED_VALUES[key][old]}"
    ):
        validated(at_key(key, old))


@pytest.mark.parametrize("old", RENAMED_FUNCTIONS)
def test_an_earlier_name_of_a_function_names_the_new_one(old: str) -> None:
    new = RENAMED_FUNCTIONS[old]
    (functions,) = [
        registry for registry in (AGGREGATES, COMBINATIONS, ESTIMATORS, STRATEGIES, TERMS) if new in registry
    ]
    with pytest.raises(UnknownNameError, match=rf"unknown name {old!r}; it is now {new}"):
        named_in("key", functions, old)


def test_an_earlier_number_of_a_strategy_names_the_new_one() -> None:
    strategy = Named.model_validate({"name": "revise", "context": "draft"})
    with pytest.raises(ConfigError, match="revise takes no 'context'; it is now prompt_template"):
        bound("rollout.strategy", STRATEGIES, strategy)


def test_an_earlier_number_of_a_schedule_names_the_new_one() -> None:
    schedule = Named.model_validate({"name": "linear", "initial": 1.0, "final": 0.0, "end": 10})
    with pytest.raises(ConfigError, match="linear takes no 'initial'; it is now start"):
        bound("rewards.schedule", SCHEDULES, schedule)


@pytest.mark.parametrize(
    "values",
    [
        {"schedules": {"update.max_grad_norm": {"name": "linear", "start": 1.0, "end": 0.5, "steps": 2}}},
        {"tasks": [{"name": "first", "set": {"update.max_grad_norm": 0.5}}]},
        {"tasks": {"first": {"update": {"max_grad_norm": 0.5}}}},
    ],
)
def test_a_dotted_key_of_an_earlier_version_names_the_new_one(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'update.max_grad_norm'; it is now update\.optimizer\.max_grad_norm"):
        validated(values)


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_key_names_the_reason(key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validated(at_key(key, True))
    assert str(raised.value) == f"unknown key {key!r}; {REMOVED[key]}"


@pytest.mark.parametrize("key", ["weight", "clip", "gate", "schedule", "verifier", "from_method"])
def test_reward_of_an_evaluation_does_not_count(key: str) -> None:
    evaluation = {"prompts": "rows.jsonl", "rewards": [{"name": "exact_match", key: 1.0}]}
    with pytest.raises(ConfigError, match=rf"reports the values of 'exact_match' unchanged: leave out {key}"):
        validated({"evaluation": evaluation})


def test_sources_of_earlier_keys_name_the_new_ones() -> None:
    method = {"name": "own", "title": "Own", "sources": {"update.lr": "table 1"}}
    with pytest.raises(ConfigError, match=r"update\.lr \(now update\.optimizer\.lr\)"):
        validated({"about": {"method": method}})


def test_an_earlier_key_inside_another_section_names_the_new_one() -> None:
    values = {"evaluation": {"prompts": {"source": "rows.jsonl", "when_unreadable": "skip"}}}
    with pytest.raises(
        ConfigError, match=r"'evaluation\.prompts\.when_unreadable'; it is now evaluation\.prompts\.on_error"
    ):
        validated(values)
