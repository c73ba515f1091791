"""Passes over a rollout that train one segment of a row each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo import Trainer
from mmgrpo.types import Prompt
from tests.policies.letters import letters


@pytest.mark.parametrize(
    ("cycle_masks", "columns"), [(True, [[0, 2], [1, 3]]), (False, [[0, 1, 2, 3]] * 2)], ids=["cycled", "all"]
)
def test_a_pass_trains_the_segments_of_its_number(cycle_masks: bool, columns: list[list[int]]) -> None:
    """Each letter is a segment; of four, two passes take every other one."""
    policy, calls = letters(), []
    evaluate = policy.evaluate

    def record_segments(rollout: Any, *arguments: Any, **named: Any) -> Any:
        calls.append(rollout.mask_BT.any(0).nonzero().flatten().tolist())
        return evaluate(rollout, *arguments, **named)

    policy.evaluate = record_segments
    config = {
        "steps": 1,
        "rollout": {"prompts_per_step": 2, "group_size": 4},
        "update": {"epochs": 2, "cycle_masks": cycle_masks, "optimizer": {"lr": 0.1}},
    }
    rewards = {
        "vowels": lambda samples: [float(sum(letter in "aeiou" for letter in sample.text)) for sample in samples]
    }
    before = policy.logits.detach().clone()
    Trainer(policy, rewards, [Prompt("one"), Prompt("two")], config).train()
    assert calls == columns
    assert bool((policy.logits.detach() != before).any(1).all())
    assert torch.isfinite(policy.logits).all()
