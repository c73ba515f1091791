"""AHPO (MM-HELIX): numbers worked out by hand."""

from __future__ import annotations

import torch

from mmgrpo.algorithm import Algorithm
from tests.configs.method_rows import A_TWO, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss, config_of

LOSS = (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,))), A_TWO * (1 - 1.2) / 2)


def test_loss_of_the_method() -> None:
    assert_loss("mm-helix", *LOSS)


def test_expert_counts_where_the_group_fails() -> None:
    config = config_of("mm-helix")
    (expert,) = config.objective.auxiliary
    weight_P = Algorithm.of(config).answer_weights["expert"](torch.tensor([0.0, 0.5]))
    assert (expert.weight * weight_P).tolist() == [1.0, 0.0]
