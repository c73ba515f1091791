"""Rows that continue conversations of others: exact log-probabilities, and environments in the same state."""

from __future__ import annotations

from typing import final

import pytest
import torch

from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Branch, Request
from mmgrpo.training.request_sampling import sample_requests
from mmgrpo.types import Plan, Prompt, Rollout
from tests.policies.contract import largest_difference, values
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import picture, prompts_of
from tests.training.test_credit_of_turns import Corridor

SEED = 3


@final
class Counting(Environment):
    """Numbers its answers over all conversations, so that a replay differs."""

    number = 0

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        Counting.number += 1
        return Turn(text=f"two {Counting.number}", reward=1.0)


@final
class Showing(Environment):
    """Answers with an image of another size after each turn."""

    def __init__(self) -> None:
        self.turn = 0

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        self.turn += 1
        return Turn(text="red", images=[picture(16 + 8 * self.turn, 16)], reward=float(len(text) % 2))


def two_rounds(
    name: str, make: type[Environment], branch_of: int = 1, *, max_turns: int = 3
) -> tuple[Rollout, Rollout]:
    """Four rows, then four that continue the first of them with such a turn at its start."""
    policy = terse(name, max_new_tokens=120)
    prompts = prompts_of(name)
    plan = Plan(environment=make, max_turns=max_turns)
    first = sample_requests(
        policy, [Request(prompt=0, members=(0, 1, 2, 3))], [0], prompt_of=prompts.__getitem__, prompt_templates={},
        plan=plan, seed=SEED,
    )  # fmt: skip
    (rollout,) = first.rollouts
    member = next(sample.member for sample in rollout.samples if len(sample.turn_ends) > branch_of)
    start = rollout.samples[member].turn_starts[branch_of]
    request = Request(prompt=0, members=(4, 5, 6, 7), continues=Branch(member, start))
    later = sample_requests(
        policy, [request], [0], prompt_of=prompts.__getitem__, prompt_templates={}, plan=plan, seed=SEED,
        before=[first],
    )  # fmt: skip
    (branches,) = later.rollouts
    for part in (rollout, branches):
        assert largest_difference(values(policy, part), part.old_logprob_BT, part.mask_BT) < 3e-6
    return rollout, branches


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize(("name", "make"), [("llama", Corridor), ("qwen2.5-vl", Showing)])
@pytest.mark.parametrize("turn", [1, 2])
def test_branch_shares_the_turns_before_it(name: str, make: type[Environment], turn: int) -> None:
    rollout, branches = two_rounds(name, make, turn)
    parent = next(sample for sample in rollout.samples if len(sample.turn_ends) > turn)
    start = parent.turn_starts[turn]
    for row, sample in enumerate(branches.samples):
        assert sample.environment_error is None
        assert list(sample.tokens or ())[:start] == list(parent.tokens or ())[:start]
        assert list(sample.turn_starts)[: turn + 1] == list(parent.turn_starts)[: turn + 1]
        for field in ("turn_texts", "turn_rewards"):
            assert list(getattr(sample, field))[:turn] == list(getattr(parent, field))[:turn]
        assert list(sample.turn_keys)[: turn + 1] == list(parent.turn_keys)[: turn + 1]
        shared = slice(0, start)
        assert torch.equal(branches.mask_BT[row, shared], rollout.mask_BT[parent.member, shared])
        assert torch.equal(branches.old_logprob_BT[row, shared], rollout.old_logprob_BT[parent.member, shared])
        assert len(sample.turn_ends) <= 3
    assert len({tuple(sample.tokens or ()) for sample in branches.samples}) > 1


def test_environment_of_a_branch_is_in_the_state_of_the_turns_before_it() -> None:
    """The rewards of the corridor follow from the turns alone: one character count after the other."""
    _, branches = two_rounds("llama", Corridor)
    for sample in branches.samples:
        environment = Corridor()
        environment.reset(sample.prompt)
        assert [environment.step(text).reward for text in sample.turn_texts] == list(sample.turn_rewards)


def test_environment_that_answers_otherwise_ends_the_branch_without_a_score() -> None:
    _, branches = two_rounds("llama", Counting)
    for sample in branches.samples:
        assert "answered the same turns otherwise" in (sample.environment_error or "")
        assert not sample.is_scored


def test_branch_in_a_turn_of_the_environment_raises() -> None:
    policy, prompts = terse("llama", max_new_tokens=60), prompts_of("llama")
    plan = Plan(environment=Corridor, max_turns=3)
    first = sample_requests(
        policy, [Request(prompt=0, members=(0, 1, 2, 3))], [0], prompt_of=prompts.__getitem__, prompt_templates={},
        plan=plan, seed=SEED,
    )  # fmt: skip
    sample = next(sample for sample in first.rollouts[0].samples if len(sample.turn_ends) > 1)
    request = Request(prompt=0, members=(4,), continues=Branch(sample.member, sample.turn_ends[0]))
    with pytest.raises(ConfigError, match="which the environment wrote"):
        sample_requests(
            policy, [request], [0], prompt_of=prompts.__getitem__, prompt_templates={}, plan=plan, seed=SEED,
            before=[first],
        )  # fmt: skip
