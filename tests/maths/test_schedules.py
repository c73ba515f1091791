from __future__ import annotations

from typing import Any

import pytest

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import validated
from mmgrpo.errors import ConfigError
from mmgrpo.maths.controllers import adaptive_kl, dual_ascent
from mmgrpo.maths.schedules import LEARNING_RATES, cosine, linear, step_value
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
    assert adaptive_kl(0.05, 0.011, target=0.01) == pytest.approx(0.05 * 1.01)  # 0.1 lies within the clip


def test_against_trend() -> None:
    # 0.3 before, 0.2 now: half as much again; 0.3 before, 0.6 now: half
    assert against_trend(1.0, (0.25, 0.35, 0.2)) == pytest.approx(1.5)
    assert against_trend(1.0, (0.25, 0.35, 0.6)) == pytest.approx(0.5)
    assert against_trend(1.0, (0.25, 0.35, 0.2), high=1.2) == 1.2
    assert against_trend(1.0, (0.25, 0.35, 0.6), low=0.8) == 0.8
    assert (against_trend(0.4, (0.2, 0.0)), against_trend(0.4, (0.0, 0.2))) == (0.4, 0.4)


def test_learning_rates_ramp_up_and_fall() -> None:
    """Two updates of warm-up, then from 1 to 0.1 over eight: half way at the sixth it is 0.55."""
    numbers = {"num_updates": 10, "warmup_steps": 2}
    for name in ("linear", "cosine"):
        factors = [LEARNING_RATES[name](update, floor=0.1, **numbers) for update in (0, 1, 2, 6, 10, 50)]
        assert factors == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1, 0.1])
    # a quarter of the way, at the fourth update, a cosine has fallen by (1 - cos(pi / 4)) / 2 of 0.9
    assert LEARNING_RATES["cosine"](4, floor=0.1, **numbers) == pytest.approx(1 - 0.9 * 0.1464466)
    assert [LEARNING_RATES["constant"](update, **numbers) for update in (0, 1, 9)] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"name": "cosin"}, "optimizer.schedule: unknown name 'cosin'; did you mean cosine"),
        ({"name": "constant", "floor": 0.5}, "optimizer.schedule: constant takes no 'floor'"),
        ({"name": "linear", "floor": 2.0}, "floor of a learning rate is a fraction of it, from 0 to 1, got 2.0"),
        ({"name": "linear", "warmup_steps": -1}, "warmup_steps of a learning rate must be at least 0, got -1"),
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
