"""Importance weights of an engine's mismatch by name: TIS, MIS and IcePop with numbers by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mmgrpo.algorithm import AdvantageChain
from mmgrpo.maths.feedback import Feedback
from mmgrpo.values import SAMPLER_LOGPROB
from tests.configs.method_steps import config_of
from tests.maths.feedback_rows import feedback_of

TRAINER = [[0.6, 0.4, 0.3], [0.1, 0.6, 0.5], [0.9, 0.5, 0.4]]
ENGINE = [[0.1, 0.5, 0.2], [0.4, 0.4, 0.5], [0.9, 0.5, 0.2]]
"""Ratios by hand: 6, 0.8 and 1.5 (of the row: 7.2); 0.25, 1.5 and 1 (0.375); 1, 1 and, masked, 2 (1)."""

ADVANTAGE = [[1.0] * 3, [-2.0] * 3, [4.0, 4.0, 0.0]]

EXPECTED = {
    "tis": [[2.0, 0.8, 1.5], [-0.5, -3.0, -2.0], [4.0, 4.0, 0.0]],
    "sequence-tis": [[3.0, 3.0, 3.0], [-0.75, -0.75, -0.75], [4.0, 4.0, 0.0]],
    "mis": [[0.0, 0.8, 1.5], [-0.5, -3.0, -2.0], [4.0, 4.0, 0.0]],
    "sequence-mis": [[0.0, 0.0, 0.0], [-0.75, -0.75, -0.75], [4.0, 4.0, 0.0]],
    "icepop": [[0.0, 0.8, 1.5], [0.0, -3.0, -2.0], [4.0, 4.0, 0.0]],
}


def feedback(engine: list[list[float]]) -> Feedback:
    return feedback_of(
        [1.0, 0.0, 0.5],
        [0, 0, 0],
        mask=[[1, 1, 1], [1, 1, 1], [1, 1, 0]],
        old_logprob=torch.tensor(TRAINER).log().tolist(),
        values={SAMPLER_LOGPROB: torch.tensor(engine).log()},
    )


def weighted(name: str, engine: list[list[float]] = ENGINE) -> Tensor:
    """The advantages after the estimators and filters of a method's file."""
    chain = AdvantageChain.of(config_of(name).advantage)
    inputs, advantage_BT = feedback(engine), torch.tensor(ADVANTAGE)
    for estimator in chain.estimators:
        advantage_BT = estimator.assign(inputs, advantage_BT)
    for each in chain.filters:
        advantage_BT = advantage_BT.where(each.keep(inputs, advantage_BT), 0.0)
    return advantage_BT


@pytest.mark.parametrize("name", EXPECTED)
def test_weights_of_the_method(name: str) -> None:
    torch.testing.assert_close(weighted(name), torch.tensor(EXPECTED[name]))


@pytest.mark.parametrize("name", EXPECTED)
def test_equal_probabilities_change_no_advantage(name: str) -> None:
    torch.testing.assert_close(weighted(name, TRAINER), torch.tensor(ADVANTAGE))


@pytest.mark.parametrize("name", ["mis", "sequence-mis", "icepop"])
def test_masked_decisions_count_in_the_mean(name: str) -> None:
    assert config_of(name).advantage.filtered_samples == "mask"


def test_icepop_is_the_ratio_within_its_bounds() -> None:
    """M(k) = k for 0.5 <= k <= 5 and 0 elsewhere; TIS agrees up to its bound 2, MIS from 0.5 on."""
    ratio = torch.tensor([[0.25, 0.51, 1.0], [1.9, 2.1, 4.9], [5.1, 1.0, 1.0]])
    engine = (torch.tensor(TRAINER) / ratio).tolist()
    inside = (ratio >= 0.5) & (ratio <= 5.0)
    advantage = torch.tensor(ADVANTAGE)
    icepop, tis, mis = (weighted(name, engine) for name in ("icepop", "tis", "mis"))
    torch.testing.assert_close(icepop, ratio.where(inside, 0.0) * advantage)
    within_all = inside & (ratio <= 2.0)
    torch.testing.assert_close(tis[within_all], icepop[within_all])
    torch.testing.assert_close(mis[within_all], icepop[within_all])
    assert (mis[ratio > 2.0] == 0).all()
