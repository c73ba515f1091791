"""SDFT and OPSD (self-distillation): updates of complete logits, with a teacher that sees a column of the row.

Axes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.config.loading import load_config
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.divergences import generalized_jsd
from mmgrpo.methods.views.sdft import after_first
from mmgrpo.scoring import NamedReward
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt
from tests.configs.method_steps import Step, advantages_of, config_of
from tests.methods.views.test_gkd import plain_logits, update_of, views_of
from tests.policies.contract import move
from tests.policies.tiny_language import measured_policy_of, prompts_of
from tests.training.test_view_runs import first_of_four, trained

SOLUTIONS = ("a red fox", "two blue squares and one more")


def solved_prompts() -> list[Prompt]:
    return [
        replace(prompt, columns={"solution": solution})
        for prompt, solution in zip(prompts_of("llama"), SOLUTIONS, strict=True)
    ]


def shares_of(method: str, lengths: list[int]) -> list[float]:
    """The weight of a token of each row: all tokens alike, or all rows."""
    if method == "opsd":
        return [1 / sum(lengths)] * len(lengths)
    return [1 / (length * len(lengths)) for length in lengths]


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize(("method", "view", "beta"), [("sdft", "demonstrated", 1.0), ("opsd", "solved", 0.5)])
def test_update_is_that_of_full_logits(method: str, view: str, beta: float) -> None:
    """The teacher is the reference with the solution in its prompt; the policy has moved away from it."""
    policy = measured_policy_of("llama", max_new_tokens=60, lora={"rank": 2, "alpha": 4})
    move(policy.trainable)
    rollout = policy.rollout(solved_prompts(), group_size=2, seed=1)
    config = load_config(f"methods/{method}", {"update.reference": None})
    views = views_of(config, policy, rollout)
    loss, gradient = update_of(policy, rollout, config, views)
    hinted = views[view].rollout
    texts = [hinted.trace.prompts[hinted.trace.prompt_of_B[row]].prompt.text for row in range(4)]
    assert [SOLUTIONS[row // 2] in text for row, text in enumerate(texts)] == [True] * 4
    lengths = rollout.mask_BT.sum(1).tolist()
    assert len(set(lengths)) > 1
    total = torch.zeros(())
    for row, share in enumerate(shares_of(method, lengths)):
        with torch.no_grad(), policy.reference():
            teacher_TV = plain_logits(policy.model, policy, hinted, row)
        student_TV = plain_logits(policy.model, policy, rollout, row)
        total = total + share * generalized_jsd(student_TV, teacher_TV, beta).sum()
    expected = torch.autograd.grad(total, policy.trainable)
    assert float(total.detach()) > 1e-5
    assert loss == pytest.approx(float(total.detach()), rel=1e-4)
    for ours, theirs in zip(gradient, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("method", [pytest.param("opsd", marks=pytest.mark.nightly), "sdft"])
def test_run_moves_the_policy_without_a_reward(method: str, tmp_path: Path) -> None:
    reward = NamedReward("right", first_of_four, weight=0.0)
    policy = measured_policy_of("llama", max_new_tokens=5)
    assert len(trained(policy, method, solved_prompts(), tmp_path, reward, **{"rollout.group_size": 1})) == 2


def test_first_three_tokens_are_left_out_of_the_means() -> None:
    """Samples of 5, 3 and 4 tokens: two tokens, none and one are trained."""
    advantages = advantages_of(config_of("sdft"), Step(reward=[0.0, 0.0, 0.0], lengths=[5, 3, 4]))
    assert advantages.mask_BT.int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0]]
    with pytest.raises(ConfigError, match="from 0 up"):
        after_first(count=-1)


def test_row_without_a_solution_is_an_error(tmp_path: Path) -> None:
    small: dict[str, Any] = {"steps": 1, "rollout.prompts_per_step": 2, "rollout.group_size": 1}
    config = load_config("methods/sdft", {**small, "output": str(tmp_path)})
    prompts = [solved_prompts()[0], Prompt("without")]
    reward = NamedReward("right", first_of_four, weight=0.0)
    with pytest.raises(DataError, match="solution"):
        Trainer(measured_policy_of("llama"), [reward], prompts, config).train()
