"""From scores to trained rows: divergences in the reward, equal groups, truncated samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import AdvantageConfig
from mmgrpo.config.loading import validated
from mmgrpo.errors import ConfigError
from mmgrpo.maths.aggregates import count, sequence_mean
from mmgrpo.training.compute_advantages import without_truncated
from mmgrpo.training.step_metrics import reward_metrics, with_kl_column
from mmgrpo.types import Prompt, Rollout, Sample, Scores
from tests.uniform import credit_of


def scores_of(values: list[float | None]) -> Scores:
    value_BR = torch.tensor([[0.0 if value is None else value] for value in values])
    valid_BR = torch.tensor([[value is not None] for value in values])
    return Scores(names=("right",), weight_R=torch.tensor([2.0]), value_BR=value_BR, valid_BR=valid_BR)


def rollout_of(finished: list[bool], lengths: list[int]) -> Rollout:
    B, T = len(finished), max(lengths)
    mask_BT = torch.arange(T) < torch.tensor(lengths)[:, None]
    prompt = Prompt("why?")
    return Rollout(
        samples=[Sample(prompt, group=b // 2, member=b % 2, text="", finished=done) for b, done in enumerate(finished)],
        prompt_index_B=torch.arange(B) // 2,
        old_logprob_BT=torch.zeros(B, T),
        mask_BT=mask_BT,
        state_BT=torch.arange(B * T).reshape(B, T),
        segment_BT=torch.zeros(B, T, dtype=torch.long),
        trace=None,
    )


def test_divergence_is_taken_off_the_reward_before_the_baseline() -> None:
    # rewards 2, 4, 0, -; divergences 1, 3, 5, 7 at 0.5: 1.5, 2.5, -2.5, -
    divergence_B, plain = torch.tensor([1.0, 3.0, 5.0, 7.0]), scores_of([1.0, 2.0, 0.0, None])
    scores = with_kl_column(plain, divergence_B, 0.5)
    assert scores.scored_B.tolist() == [True, True, True, False]
    config = AdvantageConfig.model_validate({"scale": "leave_one_out", "kl": {"beta": 0.5, "divergence": "k1"}})
    credit = credit_of(plain, 4, config, divergence_B)
    # 1.5 - (2.5 - 2.5) / 2, 2.5 - (1.5 - 2.5) / 2, -2.5 - (1.5 + 2.5) / 2
    torch.testing.assert_close(credit.advantage_B, torch.tensor([1.5, 3.0, -4.5, 0.0]))
    torch.testing.assert_close(credit.total_B[:3], torch.tensor([1.5, 2.5, -2.5], dtype=torch.float64))
    assert credit.scored_B.tolist() == [True, True, True, False]
    metrics = reward_metrics(scores, credit.total_B[credit.scored_B])
    assert metrics["reward/kl/mean"] == pytest.approx(3.0)
    assert metrics["reward/right/mean"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # rewards 1, 3 | 1, 3 standardized, twice: -2, 2 | -2, 2; divergences 1, 5 | 0, 0 at 0.25 take off 0.25, 1.25
        # -2.25, 0.75 | -2, 2, each group less its mean
        ({"scale": "none", "combine": {"name": "normalized_sum", "eps": 0.0}}, [-1.5, 1.5, -2.0, 2.0]),
        # and over the spread of all, sqrt((2.25 + 2.25 + 4 + 4) / 4) = 1.7677670
        ({"scale": {"name": "gdpo", "eps": 0.0}}, [-0.8485281, 0.8485281, -1.1313708, 1.1313708]),
        # the least of one reward is that reward: 2 - 0.25, 6 - 1.25 | 2, 6, each group less its mean
        ({"scale": "none", "combine": "min"}, [-1.5, 1.5, -2.0, 2.0]),
    ],
)
def test_a_divergence_keeps_its_size_relative_to_normalized_rewards(values: Any, expected: list[float]) -> None:
    config = AdvantageConfig.model_validate({**values, "kl": {"beta": 0.25, "divergence": "k1"}})
    credit = credit_of(scores_of([1.0, 3.0, 1.0, 3.0]), 2, config, torch.tensor([1.0, 5.0, 0.0, 0.0]))
    torch.testing.assert_close(credit.advantage_B, torch.tensor(expected))


@pytest.mark.parametrize("scale", ["group", "batch", "gdpo"])
def test_equal_groups_have_no_advantage_without_eps_either(scale: str) -> None:
    config = AdvantageConfig.model_validate({"scale": {"name": scale, "eps": 0.0, "correction": 0}})
    advantage_B = credit_of(scores_of([1.0, 1.0, 1.0, 1.0]), 2, config).advantage_B
    assert advantage_B.tolist() == [0.0, 0.0, 0.0, 0.0]
    mixed_B = credit_of(scores_of([1.0, 1.0, 0.0, 1.0]), 2, config).advantage_B
    assert mixed_B[:2].tolist() == [0.0, 0.0]
    assert mixed_B[2] == -mixed_B[3] < 0


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        ("raw", [2.0, 2.0, 0.0, 2.0]),
        ({"name": "verdict", "right": 0.5, "wrong": -1.0}, [0.5, 0.5, -1.0, 0.5]),
        # with one more 2: equal ones say nothing; 0, 2, 2 has the mean 4/3 and the std sqrt(4/3) = 1.1547005
        ({"name": "ngrpo", "highest": 2.0, "eps": 0.0}, [0.0, 0.0, -1.1547005, 0.5773503]),
    ],
)
def test_dead_groups_are_those_with_zero_advantages_not_equal_rewards(scale: Any, expected: list[float]) -> None:
    config = AdvantageConfig.model_validate({"scale": scale, "zero_variance_groups": "drop"})
    credit = credit_of(scores_of([1.0, 1.0, 0.0, 1.0]), 2, config)  # of weight 2
    torch.testing.assert_close(credit.advantage_B, torch.tensor(expected))
    dead = expected[:2] == [0.0, 0.0]
    assert credit.zero_std_frac == 0.5 * dead
    assert credit.keep_B.tolist() == [not dead, not dead, True, True]


def test_numbers_of_a_scale_are_set_in_it() -> None:
    config = AdvantageConfig.model_validate({"scale": {"name": "group", "eps": 0.5, "correction": 0}})
    # 2, 4, 0, 6 less 3, over sqrt(20 / 4) + 0.5 = 2.7360680
    expected = torch.tensor([-0.3654880, 0.3654880, -1.0964640, 1.0964640])
    torch.testing.assert_close(credit_of(scores_of([1.0, 2.0, 0.0, 3.0]), 4, config).advantage_B, expected)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scale": "grupo"}, "advantage.scale: unknown name 'grupo'; did you mean ngrpo or group"),
        ({"scale": {"name": "verdict", "rigth": 1.0}}, "advantage.scale: verdict takes no 'rigth'; did you mean right"),
        ({"scale": "pass_at_k"}, "advantage.scale: pass_at_k needs k"),
        ({"scale": {"name": "pass_at_k", "k": 2.5}}, "k of pass_at_k must be int"),
        ({"scale": {"name": "raw", "eps": 0.1}}, "advantage.scale: raw takes no 'eps'; it takes no settings"),
    ],
)
def test_scales_and_their_numbers_are_checked(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        credit_of(scores_of([1.0, 2.0]), 2, AdvantageConfig.model_validate(values))
    with pytest.raises(ConfigError, match=message):
        Algorithm.of(validated({"advantage": values}))


def test_rewards_near_the_end_of_float32_neither_overflow_nor_vanish() -> None:
    scores = scores_of([1.5e38, -1.5e38, 1.5e38, 0.0])  # of weight 2
    credit = credit_of(
        scores, 4, AdvantageConfig.model_validate({"scale": {"name": "group", "eps": 0.0, "correction": 0}})
    )
    # in units of 1.5e38 the mean is 1/4; 3/4, -5/4, 3/4, -1/4 over sqrt((9 + 25 + 9 + 1) / 64) = 0.8291562
    torch.testing.assert_close(credit.advantage_B, torch.tensor([0.9045340, -1.5075567, 0.9045340, -0.3015113]))
    assert reward_metrics(scores, credit.total_B[credit.scored_B])["reward/mean"] == pytest.approx(0.75e38, rel=1e-6)


def test_a_divergence_needs_its_weight_and_a_weight_its_divergence() -> None:
    for section in ("advantage", "objective"):
        with pytest.raises(ValueError, match=rf"{section}\.kl: beta > 0 needs divergence"):
            validated({section: {"kl": {"beta": 0.1}}})
    with pytest.raises(ValueError, match=r"advantage\.kl\.divergence needs advantage\.kl\.beta"):
        validated({"advantage": {"kl": {"divergence": "k1"}}})


@pytest.mark.parametrize(("choice", "keep"), [("keep", [True, True, True, True]), ("drop", [False, False, True, True])])
def test_zero_variance_groups(choice: str, keep: list[bool]) -> None:
    config = AdvantageConfig.model_validate({"zero_variance_groups": choice})
    credit = credit_of(scores_of([1.0, 1.0, 0.0, 1.0]), 2, config)
    assert credit.keep_B.tolist() == keep
    assert credit.zero_std_frac == 0.5


@pytest.mark.parametrize(
    ("choice", "num_samples", "num_decisions", "weight_B"),
    [
        # rows of 4, 2, 3 and 1 decisions, the last without a reward; the second is cut off
        ("keep", 3, 9, [1 / 3, 1 / 3, 1 / 3, 0]),
        ("zero", 3, 7, [1 / 3, 0, 1 / 3, 0]),
        ("drop", 2, 7, [1 / 2, 0, 1 / 2, 0]),
    ],
)
def test_truncated_samples(choice: str, num_samples: int, num_decisions: int, weight_B: list[float]) -> None:
    rollout = rollout_of([True, False, True, False], [4, 2, 3, 1])
    trained, zero_B = without_truncated(rollout.keep(torch.tensor([True, True, True, False])[:, None]), choice)
    totals = count(trained.mask_BT, zero_B)
    assert (totals.num_samples, totals.num_decisions) == (num_samples, num_decisions)
    mean: Tensor = sequence_mean(trained.mask_BT, totals).sum(1)
    torch.testing.assert_close(mean, torch.tensor(weight_B))
