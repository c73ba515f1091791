"""RAIF: numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.history import History
from mmgrpo.types import Prompt
from tests.configs.method_rounds import TWO_OF_TWO, request_row
from tests.configs.method_steps import config_of
from tests.maths.feedback_rows import feedback_of


def test_samples_with_thoughts_train_where_they_are_better() -> None:
    """Of each group the last member has no thought; without one, 1 was reached before the run, in the last group 0."""
    rewards = (2.0, 0.0, 1.0, 0.0, 1.0, 2.0, 2.0, 1.0, 2.0, 0.0, 1.0, 0.0)
    feedback = replace(
        feedback_of(rewards, [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3, mask=[[1, 1], [1, 1], [0, 1]] * 4),
        columns={"reward_without_thought": torch.tensor([1.0] * 9 + [0.0] * 3)},
    )
    outdo, reach = Algorithm.of(config_of("raif")).advantages.filters
    advantage_BT = torch.ones(12, 2)
    # in the second group both members with a thought did worse than the one without
    without_template = [True, True, False, False, False, False, True, True, False, True, True, False]
    assert outdo.keep(feedback, advantage_BT).tolist() == without_template
    high = [True, False, True, False, True, True, True, True, True, True, True, True]
    assert reach.keep(feedback, advantage_BT).tolist() == high
    strategy = Algorithm.of(config_of("raif")).strategy
    assert [request_row(request) for request in strategy.ask((), replace(TWO_OF_TWO, group_size=8))] == [
        (0, 0, 6, None), (0, 6, 2, "without_thought"), (1, 0, 6, None), (1, 6, 2, "without_thought"),
    ]  # fmt: skip
    prompt = Algorithm.of(config_of("raif")).prompt_templates["without_thought"](Prompt("2 + 2?"), 2, History())
    assert prompt is not None
    assert (prompt.text, prompt.prefix) == ("2 + 2?", "<think>\n\n</think>\n")
