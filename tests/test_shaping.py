"""How scores count: gates, clips, weights over training, and the configuration that says so."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest

from mmgrpo.config import AdvantageConfig, RewardConfig, registry
from mmgrpo.config.loading import validated
from mmgrpo.config.registry import resolve
from mmgrpo.errors import ConfigError
from mmgrpo.explain.explanation import explanation
from mmgrpo.maths.schedules import linear
from mmgrpo.scoring import Gate, NamedReward, named_rewards, score
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.build import build_rewards
from mmgrpo.training.step_metrics import reward_metrics
from mmgrpo.types import Prompt, Sample, Scores
from tests.uniform import credit_of

SAMPLES = [Sample(Prompt("q"), 0, member, text="") for member in range(4)]


def giving(name: str, values: list[float | None], **terms: Any) -> NamedReward:
    return NamedReward(name, lambda samples: values, **terms)


def counting(rewards: list[NamedReward], step: int = 0) -> tuple[Scores, dict[str, float]]:
    return shape_scores(score(SAMPLES, rewards, max_failure_frac=1.0), rewards, step)


def column(scores: Scores, r: int) -> list[float | None]:
    pairs = zip(scores.value_BR[:, r].tolist(), scores.valid_BR[:, r].tolist(), strict=True)
    return [value if valid else None for value, valid in pairs]


@pytest.mark.parametrize(("otherwise", "wanted"), [("zero", [5.0, 0.0, None, 5.0]), ("skip", [5.0, None, None, 5.0])])
def test_a_gate(otherwise: Any, wanted: list[float | None]) -> None:
    # open from 0.5 on; where the gate's reward has no value, the gated one has none, whatever is chosen
    opens = giving("format", [1.0, 0.4, None, 0.5])
    gated = giving("right", [5.0, 5.0, 5.0, 5.0], gate=Gate("format", 0.5, otherwise))
    scores, metrics = counting([gated, opens])
    assert column(scores, 0) == wanted
    assert column(scores, 1) == [1.0, pytest.approx(0.4), None, 0.5]
    assert metrics == {"reward/right/gated_frac": 0.5}


def test_gates_in_a_row_and_before_the_clip() -> None:
    a = giving("a", [3.0, 3.0, 3.0, 0.0], clip=(0.0, 1.0))
    b = giving("b", [1.0, 0.0, 1.0, 1.0], gate=Gate("a", 2.0, "zero"))  # sees a's 3, not its 1
    c = giving("c", [1.0] * 4, gate=Gate("b", 1.0, "zero"))
    scores, metrics = counting([c, b, a])
    assert column(scores, 0) == [1.0, 0.0, 1.0, 0.0]  # b is 1 at the last, but its gate is closed
    assert column(scores, 1) == [1.0, 0.0, 1.0, 0.0]
    assert column(scores, 2) == [1.0, 1.0, 1.0, 0.0]
    assert metrics["reward/a/clipped_frac"] == 0.75
    assert metrics["reward/b/gated_frac"] == 0.25
    assert metrics["reward/c/gated_frac"] == 0.5


def test_a_clip_changes_the_total_and_not_the_logged_values() -> None:
    reward = giving("x", [-2.0, 0.5, 8.0, None], clip=(0.0, 1.0), weight=2.0)
    scores = score(SAMPLES, [reward])
    shaped, shaping_metrics = shape_scores(scores, [reward], 0)
    assert column(shaped, 0) == [0.0, 0.5, 1.0, None]
    credit = credit_of(shaped, 4, AdvantageConfig.model_validate({"scale": "none"}))
    # totals 0, 1, 2 of mean 1
    assert credit.advantage_B.tolist() == [-1.0, 0.0, 1.0, 0.0]
    metrics = reward_metrics(scores, credit.total_B[credit.scored_B])
    assert metrics["reward/x/mean"] == pytest.approx(6.5 / 3)
    assert metrics["reward/mean"] == pytest.approx(1.0)
    assert shaping_metrics == {"reward/x/clipped_frac": 0.5}


def test_a_weight_over_training() -> None:
    rewards = [giving("x", [1.0] * 4, weight=4.0, schedule=partial(linear, start=0, end=1, steps=10))]
    assert [counting(rewards, step)[0].weight_R.tolist() for step in (0, 5, 10)] == [[0.0], [2.0], [4.0]]
    assert counting(rewards, 5)[1] == {"reward/x/weight": 2.0}
    credit = credit_of(counting(rewards, 0)[0], 4, AdvantageConfig())
    assert credit.keep_B.tolist() == [False] * 4  # nothing that counts has said anything


def test_a_missing_reward_is_no_zero_in_the_advantage() -> None:
    first, second = giving("a", [1.0, 3.0, 2.0, 2.0]), giving("b", [10.0, 30.0, None, 20.0])
    scores = score(SAMPLES, [first, second])
    # 11, 33, 2 + 20, 22 of mean 22
    credit = credit_of(scores, 4, AdvantageConfig.model_validate({"scale": "none"}))
    assert credit.advantage_B.tolist() == [-11.0, 11.0, 0.0, 0.0]
    ensemble = AdvantageConfig.model_validate(
        {"scale": "none", "combine": {"name": "mean_minus_variance", "factor": 0}}
    )
    # means 5.5, 16.5, 2, 11 of mean 8.75
    assert credit_of(scores, 4, ensemble).advantage_B.tolist() == [-3.25, 7.75, -6.75, 2.25]
    only = score(SAMPLES, [first, giving("watched", [None, 1.0, 1.0, 1.0], weight=0.0)])
    assert credit_of(only, 4, AdvantageConfig.model_validate({"combine": "min"})).total_B.tolist() == [1, 3, 2, 2]


REWARDS: list[dict[str, Any]] = [
    {
        "name": "exact_match",
        "weight": 2.0,
        "clip": [0.0, 0.5],
        "gate": {"reward": "form", "at_least": 1, "otherwise": "zero"},
    },
    {"name": "format", "label": "form", "schedule": {"name": "linear", "start": 1.0, "end": 0.0, "steps": 50}},
]


def test_the_configuration_sets_it_and_explain_prints_it() -> None:
    config = validated({"rewards": REWARDS, "advantage": {"combine": {"name": "mean_minus_variance", "factor": 0.5}}})
    right, form = build_rewards(config.rewards)
    assert right.gate == Gate("form", 1.0, "zero")
    assert right.clip == (0.0, 0.5)
    assert [form.weight_at(step) for step in (0, 25, 60)] == [1.0, 0.5, 0.0]
    scores = " ".join(explanation(config).split())
    assert "2 exact_match" in scores
    assert "exact_match clipped to [0, 0.5], counts where form >= 1, else 0" in scores
    assert "form weight times linear: value = start + (end - start) min(max(step - begin, 0) / steps, 1)" in scores
    assert "start = 1, end = 0, steps = 50, begin = 0" in scores
    assert "mean_minus_variance: total = mean_r x - factor * mean_r (x - mean_r x)^2, x = w_r r, factor = 0.5" in scores


@pytest.mark.parametrize(
    ("rewards", "scores"),
    [
        ([{"name": "count", "gate": {"reward": "form", "at_least": 1, "otherwise": "zero"}}], "is none of count"),
        (
            [
                {"name": "count", "gate": {"reward": "number", "at_least": 1, "otherwise": "zero"}},
                {"name": "number", "gate": {"reward": "count", "at_least": 1, "otherwise": "skip"}},
            ],
            "in a circle: ",
        ),
        ([{"name": "count", "clip": [1, 0]}], "low below high"),
        ([{"name": "count", "gate": {"reward": "count", "at_least": 1}}], "otherwise"),
        ([{"name": "count", "timeout_s": 0}], "greater than 0"),
    ],
)
def test_invalid_settings_raise(rewards: list[dict[str, Any]], scores: str) -> None:
    with pytest.raises(ConfigError, match=scores):
        validated({"rewards": rewards})


def test_live_gates_are_checked_and_evaluations_take_none() -> None:
    with pytest.raises(ConfigError, match="gated by 'b', which is none of a"):
        named_rewards([giving("a", [], gate=Gate("b", 0.0, "zero"))])
    with pytest.raises(ConfigError, match="leave out clip"):
        validated({"evaluation": {"prompts": {"source": "x.txt"}, "rewards": [{"name": "count", "clip": [0, 1]}]}})
    with pytest.raises(ConfigError, match="leave out combine: min"):
        validated({"advantage": {"scale": "gdpo", "combine": "min"}})
    with pytest.raises(ConfigError, match="linear needs end, steps"):
        build_rewards([RewardConfig.model_validate({"name": "count", "schedule": {"name": "linear", "start": 1}})])


def test_keys_of_the_engine_are_no_settings_of_a_reward() -> None:
    """A reward whose own setting had such a name would never get it."""
    engine = set(RewardConfig.model_fields)
    taken = {name: engine & set(inspect.signature(resolve("rewards", name)).parameters) for name in registry.REWARDS}
    assert not {name: keys for name, keys in taken.items() if keys}
