from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mmgrpo.algorithm import Algorithm, learning_rate
from mmgrpo.config import OptimizerConfig
from mmgrpo.config.loading import validated
from mmgrpo.errors import ConfigError
from mmgrpo.maths.controllers import adaptive_kl, dual_ascent
from mmgrpo.maths.schedules import SCHEDULES, cosine, linear, step_value
from mmgrpo.methods.advantages.curriculum_grpo import exponential_value
from mmgrpo.methods.off_policy.g2rpo_a import against_trend


def test_linear() -> None:
    numbers = {"start": 0.0, "end": 0.04, "steps": 100}
    assert [linear(step, **numbers) for step in (0, 50, 100, 900)] == [0, 0.02, 0.04, 0.04]
    assert [linear(step, begin=50, **numbers) for step in (0, 50, 100)] == [0, 0, 0.02]
    with pytest.raises(ConfigError, match="at least one step"):
        linear(0, start=0, end=1, steps=0)


def test_cosine() -> None:
    numbers = {"start": 2.0, "end": 1.0, "steps": 4}
    # 1 + (1 + cos(pi x)) / 2 at x = 0, 1/4, 1/2, 1
    factors = [cosine(step, **numbers) for step in (0, 1, 2, 4, 9)]
    assert factors == pytest.approx([2.0, 1.853553390593, 1.5, 1.0, 1.0])


def test_step() -> None:
    assert [step_value(step, values=[1, "a", 3], at=[2, 5]) for step in (0, 1, 2, 4, 5, 99)] == [1, 1, "a", "a", 3, 3]
    with pytest.raises(ConfigError, match="one value more"):
        step_value(0, values=[1], at=[2])
    with pytest.raises(ConfigError, match="which rise"):
        step_value(0, values=[1, 2, 3], at=[5, 2])


def test_exponential() -> None:
    # B(t) = max(1, 16 * 0.5 ** floor(t / 10))
    numbers = {"start": 16.0, "factor": 0.5, "every": 10, "low": 1.0}
    assert [exponential_value(step, **numbers) for step in (0, 9, 10, 25, 39, 40, 99)] == [16, 16, 8, 4, 2, 1, 1]


def test_dual_ascent() -> None:
    after = dual_ascent(0.0, 0.6, target=0.8, rate=0.5)
    assert after == pytest.approx(0.1)
    assert dual_ascent(after, 0.9, target=0.8, rate=0.5) == pytest.approx(0.05)
    assert dual_ascent(0.01, 0.9, target=0.8, rate=0.5) == 0.0


def test_adaptive_kl() -> None:
    # twice the target: the error 1 is clipped to 0.2, and 0.1 of it counts; half the target: -0.2
    assert adaptive_kl(0.05, 0.02, target=0.01) == pytest.approx(0.05 * 1.02)
    assert adaptive_kl(0.05, 0.005, target=0.01) == pytest.approx(0.05 * 0.98)
    assert adaptive_kl(0.05, 0.011, target=0.01) == pytest.approx(0.05 * 1.01)  # 0.1 is within the clip


def test_against_trend() -> None:
    # 0.3 before, 0.2 now: half as much again; 0.3 before, 0.6 now: half
    assert against_trend(1.0, (0.25, 0.35, 0.2)) == pytest.approx(1.5)
    assert against_trend(1.0, (0.25, 0.35, 0.6)) == pytest.approx(0.5)
    assert against_trend(1.0, (0.25, 0.35, 0.2), high=1.2) == 1.2
    assert against_trend(1.0, (0.25, 0.35, 0.6), low=0.8) == 0.8
    assert (against_trend(0.4, (0.2, 0.0)), against_trend(0.4, (0.0, 0.2))) == (0.4, 0.4)


def test_learning_rates_ramp_up_and_fall() -> None:
    """Two updates of warm-up, then from 1 to 0.1 over eight: half way at the sixth it is 0.55."""
    for name in ("linear", "cosine"):
        factor = factor_of(name=name, end=0.1, warmup_steps=2)
        assert [factor(update) for update in (0, 1, 2, 6, 10, 50)] == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1, 0.1])
    # a quarter of the way, at the fourth update, a cosine has fallen by (1 - cos(pi / 4)) / 2 of 0.9
    assert factor_of(name="cosine", end=0.1, warmup_steps=2)(4) == pytest.approx(1 - 0.9 * 0.1464466)
    assert [factor_of(name="constant", warmup_steps=2)(update) for update in (0, 1, 9)] == [0.5, 1.0, 1.0]


def test_a_learning_rate_takes_every_schedule_and_its_own_numbers() -> None:
    """It ends at 0 with the run unless it says otherwise; so a rate may also fall in steps, or by a factor."""
    assert [factor_of(name="linear")(update) for update in (0, 5, 10)] == [1.0, 0.5, 0.0]
    assert [factor_of(name="linear", steps=4, begin=2)(update) for update in (2, 4, 6, 9)] == [1.0, 0.5, 0.0, 0.0]
    assert [factor_of(name="step", values=[1.0, 0.1], at=[5])(update) for update in (0, 4, 5)] == [1.0, 1.0, 0.1]
    assert [factor_of(name="exponential", factor=0.5, every=5)(update) for update in (0, 4, 5)] == [1.0, 1.0, 0.5]


def test_a_schedule_of_a_key_may_warm_up() -> None:
    numbers = {"start": 4.0, "end": 2.0, "steps": 4, "warmup_steps": 2}
    assert [linear(step, **numbers) for step in (0, 1, 2, 4, 6, 9)] == [2.0, 4.0, 4.0, 3.0, 2.0, 2.0]
    assert [linear(step, begin=4, **numbers) for step in (0, 4, 6, 8)] == [2.0, 4.0, 3.0, 2.0]
    assert SCHEDULES["constant"](0, value=8) == 8


def factor_of(**schedule: Any) -> Callable[[int], float]:
    """The factor on the learning rate of a run of ten updates."""
    return learning_rate(OptimizerConfig.model_validate({"schedule": schedule}), num_updates=10)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"name": "cosin"}, "optimizer.schedule: unknown name 'cosin'; did you mean cosine"),
        ({"name": "constant", "floor": 0.5}, "optimizer.schedule: constant takes no 'floor'"),
        ({"name": "linear", "floor": 0.1}, "optimizer.schedule: linear takes no 'floor'; it is now end"),
        ({"name": "linear", "end": -0.5}, "a factor on the learning rate is 0 or more, got -0.5 at update 1"),
        ({"name": "step", "values": [1, "low"], "at": [3]}, "is 0 or more, got 'low' at update 3"),
        ({"name": "linear", "warmup_steps": -1}, "warmup_steps of a schedule must be at least 0, got -1"),
    ],
)
def test_learning_rate_schedules_are_checked_with_the_algorithm(schedule: dict[str, Any], message: str) -> None:
    optimizer = {"optimizer": {"schedule": schedule}}
    for section in (optimizer, {"warmup": {"examples": "rows", "steps": 1, **optimizer}}):
        with pytest.raises(ConfigError, match=message):
            Algorithm.of(validated({"update": section}))


@pytest.mark.parametrize("numbers", [{"factor": 0.0}, {"factor": 0.5, "every": 0}])
def test_an_exponential_schedule_without_a_factor_raises(numbers: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="factor > 0 and every >= 1"):
        exponential_value(0, start=1.0, **numbers)
