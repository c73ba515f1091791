"""Recipes whose rewards score the messages of a text: each score and its advantage, by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config
from mmgrpo.maths.feedback import Scoped
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample, Score
from tests.maths.feedback_rows import feedback_of

YES, NO = (f"<reflection>Verification: Is the solution correct? {word}</reflection>" for word in ("Yes", "No"))
RIGHT, WRONG = r"so \boxed{7}", r"so \boxed{8}"
TEXTS = (f"{WRONG}{NO}{RIGHT}{YES}", f"{RIGHT}{YES}", f"{WRONG}{YES}")
MESSAGE_SCORES = ([0, 1, 1, 1], [1, 1], [0, 0])


def test_messages_are_scored_and_compared_by_position() -> None:
    """Of the first attempts one of three is right, (2/3, -1/3) over 0.5773503; of their checks one is wrong.

    One text has a further message, which is compared with none.
    """
    config = load_config("papers/spoc")
    (reward,), (estimator,) = build_rewards(config.rewards), Algorithm.of(config).advantages.estimators
    samples = [Sample(Prompt("q", columns={"answer": "7"}), 0, m, text=text) for m, text in enumerate(TEXTS)]
    word = reward.function(samples)
    parts = [[scope.value for scope in score.scopes or ()] for score in word if isinstance(score, Score)]
    assert parts == list(MESSAGE_SCORES)
    assert reward.weight == 0
    value_BS, valid_BS = torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.bool)
    for row, values in enumerate(MESSAGE_SCORES):
        value_BS[row, : len(values)], valid_BS[row, : len(values)] = torch.tensor(values).float(), True
    scoped = Scoped(scope_BT=torch.arange(4).expand(3, 4), value_BS=value_BS, valid_BS=valid_BS)
    feedback = feedback_of([0.0] * 3, [0] * 3, mask=[[1] * 4] * 3, scoped={"attempts": scoped})
    result_BT = estimator.assign(replace(feedback, valid_B=torch.zeros(3).bool()), torch.zeros(3, 4))
    high, low = 2 / 3 / 0.5774503, 1 / 3 / 0.5774503
    expected = [[-low, low, 0, 0], [high, low, 0, 0], [-low, -high, 0, 0]]
    torch.testing.assert_close(result_BT, torch.tensor(expected), rtol=0, atol=1e-5)
