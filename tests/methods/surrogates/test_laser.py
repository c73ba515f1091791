"""LaSeR (last-token self-rewarding): numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.methods.surrogates.laser import self_reward, self_rewarded
from mmgrpo.values import end_logprob
from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit, assert_loss
from tests.maths.decision_rows import decisions_at
from tests.maths.feedback_rows import feedback_of

END = end_logprob(151652)
# at the step 200: 0.1 (-14 + 23) = 0.9 and 0, of mean 0.45 and sample deviation 0.6363961: 0.7071068 and minus that
CREDIT = (
    Step(reward=ONE_OF_TWO, number=200, values={END: [[0.0, -14.0], [0.0, -23.0]]}),
    [[0.9 * A_TWO_6 + 0.0707107] * 2, [-0.9 * A_TWO_6 - 0.0707107] * 2],
)

# the right one says 0 and the wrong one -0.5, each alone of its kind: 0.1 ((0 - 1)^2 + (-0.5 - 0)^2) / 2
LOSS = (Step(reward=ONE_OF_TWO, values={END: [[0.0, -23.0], [0.0, -28.0]]}), 0.0625)


def test_advantages_of_the_method() -> None:
    assert_credit("laser", *CREDIT)


def test_loss_of_the_method() -> None:
    assert_loss("laser", *LOSS)


def test_a_sample_without_a_reward_has_no_error() -> None:
    """Of a group's two samples the one with a reward is right and scores 0.9: (0.9 - 1)^2 / 2, over two samples."""
    ends_BT = torch.tensor([[0.0, -14.0], [0.0, -23.0]])
    zero_BT = torch.zeros(2, 2)
    decisions = decisions_at(
        zero_BT,
        reward_BT=torch.tensor([[1.0, 1.0], [float("nan")] * 2]),
        group_BT=zero_BT.long(),
        values={END: ends_BT},
    )
    assert float(self_reward(token=151652).loss(decisions).value) == pytest.approx(0.01 / 2 / 2)


def test_a_text_that_was_cut_off_rewards_itself_with_nothing() -> None:
    """Scores 0.1 (-14 + 23) = 0.9 and 0: a tenth of 0.7071 and of minus that."""
    feedback = feedback_of(
        [1.0, 0.0], [0, 0], old_logprob=[[0.0, 0.0]] * 2, values={END: torch.tensor([[0.0, -14.0], [0.0, 0.0]])}
    )
    advantage_BT = self_rewarded(token=151652).assign(feedback, torch.zeros(2, 2))
    assert advantage_BT[:, 0].tolist() == pytest.approx([0.0707107, -0.0707107])


def test_decisions_without_rewards_raise() -> None:
    zero_BT = torch.zeros(1, 1)
    decisions = decisions_at(zero_BT, values={END: zero_BT})
    with pytest.raises(ConfigError, match="self_reward needs group_BT and reward_BT"):
        self_reward(token=151652).loss(decisions)
