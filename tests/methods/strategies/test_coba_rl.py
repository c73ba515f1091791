"""CoBA-RL: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.maths.strategies import Setting
from mmgrpo.memory import Memory
from mmgrpo.methods.strategies.coba_rl import beta_of, by_capability, explored, training_value
from tests.configs.method_steps import config_of


def test_bound_of_negative_advantages_is_that_of_the_authors_fork_of_verl() -> None:
    surrogate = config_of("coba-rl").objective.surrogate
    assert surrogate is not None
    assert (surrogate.name, surrogate.settings["bound"]) == ("dual_clipped", 3.0)  # clip_ratio_c in their scripts


def test_prompts_that_nearly_always_fail_share_the_rest_by_their_failures() -> None:
    """Ten of twelve are left: int(10 * 1 / 1.96) = 5, int(5 * 0.96 / 1.96) = 2, and of three the first gets two."""
    assert explored({0: 0.0, 1: 0.04}, 12, least=1, most=100, alpha=2.0, beta=9.0) == {0: 8, 1: 4}


def test_the_value_moves_with_the_failures_of_the_last_step_alone() -> None:
    """The prompt of the last step succeeded at 0.9, so that the curve favors hard prompts: that of 0.2 gains more."""
    strategy = by_capability(least=1, most=16)
    memory = Memory().declared(strategy.memory)
    memory = memory.write("visits", ["0", "1"], torch.tensor([1, 1]))
    memory = memory.write("last_step", ["0", "1"], torch.tensor([1, 0]))
    memory = memory.write("last_rate", ["0", "1"], torch.tensor([0.9, 0.2], dtype=torch.float64))
    setting = Setting(step=2, num_prompts=2, group_size=6, memory=memory)
    easy, hard = (len(request.members) for request in strategy.ask((), setting))
    assert easy + hard == 12
    assert hard > easy


def test_the_curve_bends_where_half_of_the_samples_are_wrong() -> None:
    """1 + 9 * 0.75; up to the half 1 + 9 / (1 + e^2.5) and 1 + 9 / 2."""
    assert [beta_of(failures, 11.0) for failures in (0.75, 0.25, 0.5)] == pytest.approx([7.75, 1.6827237, 5.5])


def test_the_value_is_a_beta_density_that_more_samples_approach() -> None:
    """Beta(1/2; 2, 9) = 90 / 2 / 2^8, times 1 - e^(-1/6); rates are at least 0.01 and at most 0.99."""
    value = {"tau": 3.0, "alpha": 2.0, "beta": 9.0}
    assert training_value(2, 0.5, **value) == pytest.approx(0.1757813 * 0.1535183)
    # 90 * 0.01 * 0.99^8 and 90 * 0.99 * 0.01^8, each times 1 - e^(-2 * 0.0099 / 3)
    assert training_value(2, 0.0, **value) == pytest.approx(0.8304703 * 0.0065783, rel=1e-5)
    assert training_value(2, 1.0, **value) == pytest.approx(8.91e-15 * 0.0065783, rel=1e-4)
