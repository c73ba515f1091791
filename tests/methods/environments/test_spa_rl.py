"""SPA-RL: the loss of the contributions and the advantages of turns, worked out by hand, and a critic that trains."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch

from mmgrpo.config.loading import load_config
from mmgrpo.maths.critics import CRITIC_LOSSES, CriticRows
from mmgrpo.scoring import NamedReward
from mmgrpo.training.trainer import Trainer
from mmgrpo.values import VALUE
from tests.configs.language_models import CRITIC
from tests.configs.method_steps import Step, assert_credit
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import prompts_of
from tests.training.test_critic import certain


def test_advantage_of_a_turn_sums_its_and_later_contributions() -> None:
    """Contributions 0.2, 0.6 and 0.4, 0, and half of the environment's 1, 0 and none, 1: 0.7, 0.6 and 0.4, 0.5.

    Mean 0.55, deviation sqrt(0.05 / 3) = 0.129099; z = 0.15 / 0.129199 = 1.160997 and 0.05 / 0.129199 = 0.386999.
    """
    rows = Step(
        reward=(1.0, 0.0),
        values={VALUE: [[0.2, 0.6], [0.4, 0.0]]},
        turns=((1.0, 0.0), (float("nan"), 1.0)),
        keys=[[]] * 2,
    )
    assert_credit("spa-rl", rows, [[1.547996, 0.386999], [-1.547996, -0.386999]])


def test_values_at_the_ends_of_turns_sum_to_the_reward() -> None:
    """Turns end at the second, fourth and last decision of row 0: (0.5 + 0.25 + 1 - 1)^2; row 1: (0.5 + 0 - 0)^2.

    The last column of row 1 is padding. The loss is the mean of one term of each sample.
    """
    loss = CRITIC_LOSSES["contributions"]()
    rows = CriticRows(
        old_BT=torch.zeros(2, 5),
        reward_B=torch.tensor([1.0, 0.0]),
        mask_BT=torch.tensor([[True, True, False, True, True], [True, False, True, True, False]]),
        segment_BT=torch.tensor([[0, 0, 1, 1, 2], [0, 1, 1, 1, 2]]),
    )
    value_BT = torch.tensor([[9.0, 0.5, 9.0, 0.25, 1.0], [0.5, 9.0, 9.0, 0.0, 9.0]])
    loss_BT, term_BT = loss.of(value_BT, rows), loss.terms(rows)
    assert loss_BT[:, 0].tolist() == pytest.approx([0.75**2, 0.5**2])
    assert term_BT.tolist() == [[False, False, False, False, True], [False, False, False, True, False]]


@pytest.mark.nightly
def test_contributions_come_to_sum_to_a_constant_outcome(tmp_path: Path) -> None:
    """At first nothing is expected and the outcome is 1, so the loss is 1; the policy is frozen."""
    changes = {
        "steps": 3,
        "rollout.prompts_per_step": 2,
        "rollout.group_size": 2,
        "rollout.max_turns": 3,
        "rollout.environment": "python:tests.policies.test_language_exchanges:Asking",
        "rewards": [],
        "update.minibatches": 2,
        "runtime.device": "cpu",
        "advantage.critic.policy": CRITIC,
        "advantage.critic.warmup_steps": 2,
        "advantage.critic.freeze_after": 3,
        "advantage.critic.optimizer.lr": 1e-3,
        "output": str(tmp_path),
    }
    config = load_config("methods/spa-rl", changes)
    trainer = Trainer(terse("llama"), [NamedReward("certain", certain)], prompts_of("llama"), config)
    lines = [json.loads(line) for line in (trainer.train() / "metrics.jsonl").read_text().splitlines()]
    losses = [line["critic/loss"] for line in lines]
    assert losses[0] == 1.0
    assert all(later < loss for loss, later in itertools.pairwise(losses))
    assert losses[-1] < 0.5
