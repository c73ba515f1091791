"""From scores to what is trained on: divergences in the reward, equal groups, truncated samples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmgrpo.config import AdvantageConfig
from mmgrpo.credit import counted, form_credit, penalised, reward_metrics
from mmgrpo.maths.aggregates import count, sample_mean
from mmgrpo.types import Prompt, Rollout, Sample, Scores


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
    scores = penalised(scores_of([1.0, 2.0, 0.0, None]), torch.tensor([1.0, 3.0, 5.0, 7.0]), 0.5)
    assert scores.scored_B.tolist() == [True, True, True, False]
    config = AdvantageConfig.model_validate({"scale": "leave_one_out", "kl_beta": 0.5, "divergence": "k1"})
    credit = form_credit(scores, 4, config)
    # 1.5 - (2.5 - 2.5) / 2, 2.5 - (1.5 - 2.5) / 2, -2.5 - (1.5 + 2.5) / 2
    torch.testing.assert_close(credit.advantage_B, torch.tensor([1.5, 3.0, -4.5, 0.0]))
    torch.testing.assert_close(credit.total_B[:3], torch.tensor([1.5, 2.5, -2.5]))
    assert credit.scored_B.tolist() == [True, True, True, False]
    metrics = reward_metrics(scores, credit)
    assert metrics["reward/kl/mean"] == pytest.approx(3.0)
    assert metrics["reward/right/mean"] == pytest.approx(1.0)


def test_a_divergence_needs_its_weight_and_a_weight_its_divergence() -> None:
    for values in ({"kl_beta": 0.1}, {"divergence": "k1"}):
        with pytest.raises(ValueError, match="go together"):
            AdvantageConfig.model_validate(values)


@pytest.mark.parametrize(("choice", "keep"), [("zero", [True, True, True, True]), ("drop", [False, False, True, True])])
def test_equal_groups(choice: str, keep: list[bool]) -> None:
    config = AdvantageConfig.model_validate({"equal_groups": choice})
    credit = form_credit(scores_of([1.0, 1.0, 0.0, 1.0]), 2, config)
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
    found = counted(rollout, torch.tensor([True, True, True, False]), choice)
    totals = count(found.rollout.mask_BT, found.zero_B)
    assert (totals.num_samples, totals.num_decisions) == (num_samples, num_decisions)
    mean: Tensor = sample_mean(found.rollout.mask_BT, totals).sum(1)
    torch.testing.assert_close(mean, torch.tensor(weight_B))
