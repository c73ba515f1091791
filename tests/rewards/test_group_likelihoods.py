from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from mmgrpo.rewards.groups.likelihoods import Curiosity, LikelihoodConsistency, SelfCertainty, Unlikeliness, mean_ranks
from mmgrpo.rewards.groups.pairs import PairwiseWinRate

from mmgrpo.errors import ConfigError
from mmgrpo.scoring import NamedReward, with_reward_inputs
from mmgrpo.types import Plan, Prompt, Sample
from tests.rewards.grouped import column_chance, column_score, members


def test_ranks_by_hand():
    assert mean_ranks([-1.0, -3.0, -2.0]) == [2, 0, 1]
    assert mean_ranks([5.0, 5.0, 1.0, 5.0]) == [2, 2, 0, 2]  # places 1, 2 and 3 shared


def test_unlikely_right_samples_keep_their_reward():
    samples = members("a", "b", "c", "d", scores=[1, 1, 0, -1], logprob=[-0.1, -2.0, -0.5, -1.0])
    # ranks 3, 0, 2, 1 of four: 1 - 0.25 * 3/4
    assert Unlikeliness(column_score)(samples) == pytest.approx([0.8125, 1, 0, -1])
    assert Unlikeliness(column_score, strength=1.0)(samples[:2]) == [0.5, 1]


def test_unscored_samples_have_no_rank():
    scores: list[Any] = [1, None, math.nan, 1, 1]
    samples = members(*"abcde", scores=scores, logprob=[-1.0, -9.0, -9.0, -2.0, None])
    values = Unlikeliness(column_score)(samples)
    assert values == pytest.approx([1 - 0.25 / 2, None, math.nan, 1, None], nan_ok=True)


def test_self_certainty_is_the_policys_certainty():
    logits_TV = torch.tensor([[0.0, 0.0, 0.0], [2.0, 0.0, -2.0]])
    uniform_V = torch.full((3,), 1 / 3)
    logprob_TV = logits_TV.log_softmax(1)
    by_definition = float((uniform_V * (uniform_V.log() - logprob_TV)).sum(1).mean())
    as_documented = float((-math.log(3) - logprob_TV.mean(1)).mean())
    assert as_documented == pytest.approx(by_definition)
    samples = members("a", "b", values=[{"certainty": as_documented}, {}])
    assert SelfCertainty()(samples) == [as_documented, None]


def test_surprise_up_to_a_bound():
    # half of 0.4 and of 1.0, and 0.5 in place of half of 3
    samples = members(*"abcd", logprob=[-0.4, -1.0, -3.0, None])
    assert Curiosity(strength=0.5, ceiling=0.5)(samples) == [0.2, 0.5, 0.5, None]
    with pytest.raises(ConfigError, match="strength and ceiling above 0"):
        Curiosity(ceiling=0.0)


def test_a_reward_declares_the_values_that_it_and_inner_rewards_need():
    named = [
        NamedReward("sure", Unlikeliness(SelfCertainty())),
        NamedReward("right", column_score),
        NamedReward("won", PairwiseWinRate(of=SelfCertainty())),
    ]
    assert [reward.needs_values for reward in named] == [("certainty",), (), ("certainty",)]
    assert with_reward_inputs(Plan(), named).sample_values == ("certainty",)
    assert with_reward_inputs(Plan(), named[1:2]).sample_values == ()


def rated(*ratings: tuple[float | None, float | None], group: int = 0) -> list[Sample]:
    """Members with a score and a chance."""
    return [
        Sample(Prompt("q", columns={"score": score, "chance": chance}), group, i)
        for i, (score, chance) in enumerate(ratings)
    ]


def test_consistency_by_hand():
    reward = LikelihoodConsistency(column_score, column_chance, margin=0.1)
    # right: the three 1s, mean likelihood (0.9 + 0.5 + 0.7) / 3 = 0.7, needed 0.6
    assert reward(rated((1, 0.9), (1, 0.5), (1, 0.7), (0, 1.0))) == [1.5, 1, 1.5, 0]
    # of graded rewards only those at least the mean, 0.5, are right; 0.4 is left as it is
    assert reward(rated((0.6, 0.5), (0.4, 1.0), (0.5, 0.1))) == pytest.approx([0.9, 0.4, 0.5])
    assert reward(rated((0, 0.5), (0.05, 1.0))) == [0, 0.05]  # above the mean but not above 0.1


def test_likelihoods_are_cut():
    samples = rated((1, 1.0), (1, 0.8))
    assert LikelihoodConsistency(column_score, column_chance, margin=0, ceiling=1.0)(samples) == [1.5, 1]
    assert LikelihoodConsistency(column_score, column_chance, margin=0, ceiling=0.8)(samples) == [1.5, 1.5]


def test_consistency_leaves_out_samples_that_either_reward_leaves_out():
    samples = rated((1, 0.9), (None, 0.1), (1, None), (math.nan, 0.1), (1, math.nan))
    values = LikelihoodConsistency(column_score, column_chance)(samples)
    assert values == pytest.approx([1.5, None, None, math.nan, math.nan], nan_ok=True)


def test_samples_have_no_likelihoods_by_default():
    sample = Sample(Prompt("q"), 0, 0)
    assert (sample.logprob, dict(sample.values)) == (None, {})
    assert replace(sample, logprob=-1.0).logprob == -1.0


def test_invalid_settings_raise():
    with pytest.raises(ConfigError, match=r"\[0, 1\], got 2"):
        Unlikeliness(column_score, strength=2)
    with pytest.raises(ConfigError, match=r"ceiling in \(0, 1\]"):
        LikelihoodConsistency(column_score, column_chance, ceiling=0)
