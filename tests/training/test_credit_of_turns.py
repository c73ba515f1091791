"""Rewards of turns as advantages of their decisions: real rollouts, and complete runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import pytest
import torch
from mmgrpo.rewards.text.environment_return import EnvironmentReturn
from torch import Tensor

from mmgrpo import Trainer
from mmgrpo.config.loading import load_config
from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Request
from mmgrpo.scoring import NamedReward
from mmgrpo.training.prompt_stats import replay_rows
from mmgrpo.training.request_sampling import sample_requests
from mmgrpo.types import Plan, Prompt, Rollout, Sample
from tests.policies.contract import largest_difference, values
from tests.policies.test_language_exchanges import exchange, terse
from tests.policies.tiny_language import measured_policy_of, prompts_of
from tests.training.test_scoped_rewards import credit

CORRIDOR = "python:tests.training.test_credit_of_turns:Corridor"
RETURNS = [NamedReward("returns", EnvironmentReturn())]


@final
class Corridor(Environment):
    """Three cells: an even number of characters steps to the right, an odd one back; the right end pays."""

    def __init__(self, named: bool = False) -> None:
        self.named = named

    def reset(self, prompt: Prompt) -> Turn:
        self.cell, self.turn = 0, 0
        return self._turn(0.0)

    def step(self, text: str) -> Turn:
        self.turn += 1
        self.cell = max(0, self.cell + (1 if len(text) % 2 == 0 else -1))
        return self._turn(1.0 if self.cell == 2 else -0.125 * self.turn)

    def _turn(self, reward: float) -> Turn:
        key = str(self.cell) if self.named else None
        return Turn(text=f"cell {self.cell} {self.turn}", reward=reward, done=self.cell == 2, key=key)


def by_hand(samples: list[Sample], rewards: Callable[[Sample], list[float | None]], discount: float) -> list[Any]:
    """(row, turn, centered return) of all turns, each compared with those of its group and key."""
    returns = []
    for row, sample in enumerate(samples):
        turn_rewards = rewards(sample)
        for turn, key in enumerate(sample.turn_keys):
            after = [(discount**j, reward) for j, reward in enumerate(turn_rewards[turn:]) if reward is not None]
            if after:
                returns.append((row, turn, (sample.group, key), sum(weight * reward for weight, reward in after)))
    result = []
    for row, turn, state, value in returns:
        same = [other for *_, state_of_turn, other in returns if state_of_turn == state]
        result.append((row, turn, value - sum(same) / len(same)))
    return result


def laid(rollout: Rollout, credits: list[tuple[int, int, float]]) -> Tensor:
    expected_BT = torch.zeros(rollout.shape)
    for row, turn, value in credits:
        sample = rollout.samples[row]
        expected_BT[row, sample.turn_starts[turn] : sample.turn_ends[turn]] = value
    return expected_BT


@pytest.mark.parametrize("named", [False, True], ids=["told", "named"])
def test_turns_are_compared_with_those_of_their_state(named: bool) -> None:
    policy = terse("llama", max_new_tokens=60)
    rollout = exchange(policy, "llama", lambda: Corridor(named), max_turns=3)
    keys = {key for sample in rollout.samples for key in sample.turn_keys}
    assert keys <= ({"0", "1"} if named else {f"cell {cell} {turn}" for cell in (0, 1) for turn in range(3)})
    assert {sample.turn_keys[0] for sample in rollout.samples} == {"0" if named else "cell 0 0"}
    estimator = {"name": "anchor_states", "discount": 0.5, "normalize": False}
    batch = credit(policy, rollout, RETURNS, estimator, scale="none")
    plain_BT = credit(policy, rollout, RETURNS, scale="none").advantage_BT
    compared = by_hand(list(rollout.samples), lambda sample: list(sample.turn_rewards), 0.5)
    assert len({turn for _, turn, value in compared if value}) > 1  # later turns met the same states
    torch.testing.assert_close(batch.advantage_BT - plain_BT, laid(rollout, compared), rtol=0, atol=1e-6)
    half = {**estimator, "weight": 0.0}
    assert torch.equal(credit(policy, rollout, RETURNS, half, scale="none").advantage_BT, plain_BT)


def test_a_reward_of_the_complete_sample_is_that_of_the_last_turn() -> None:
    policy = terse("llama", max_new_tokens=60)
    rollout = exchange(policy, "llama", Corridor, max_turns=3)
    length = NamedReward("length", lambda samples: [float(len(sample.tokens or ())) for sample in samples])
    estimator = {"name": "anchor_states", "reward": "length", "discount": 0.5, "normalize": False}
    result_BT = credit(policy, rollout, [length], estimator, scale="none").advantage_BT
    plain_BT = credit(policy, rollout, [length], scale="none").advantage_BT
    compared = by_hand(
        list(rollout.samples),
        lambda sample: [None] * (len(sample.turn_keys) - 1) + [float(len(sample.tokens or ()))],
        0.5,
    )
    torch.testing.assert_close(result_BT - plain_BT, laid(rollout, compared), rtol=0, atol=1e-5)


def test_replayed_conversations_are_rescored_exactly() -> None:
    policy = terse("llama", max_new_tokens=60)
    prompts = prompts_of("llama")
    rollout = exchange(policy, "llama", Corridor, max_turns=3)
    batch = credit(policy, rollout, RETURNS)
    rows = [row for _, _, row in replay_rows(batch, str, step=0)]
    of_two = [tuple(row for row in rows if row.key == str(group)) for group in (0, 1)]
    requests = [
        Request(prompt=group, members=tuple(range(4)), off_policy_rows=replays) for group, replays in enumerate(of_two)
    ]
    plan = Plan(environment=Corridor, max_turns=3)
    rollouts = sample_requests(
        policy, requests, [0, 1], prompt_of=prompts.__getitem__, prompt_templates={}, plan=plan, seed=0
    )
    (read,) = rollouts.rollouts
    assert torch.equal(read.mask_BT, rollout.mask_BT)  # the environment's tokens are masked again
    assert not bool(rollout.mask_BT.all(1).any())
    for ours, theirs in zip(read.samples, rollout.samples, strict=True):
        assert (ours.turns, ours.text) == (theirs.turns, theirs.text)
    assert torch.equal(read.old_logprob_BT, rollout.old_logprob_BT)
    # after the same opening, the old weights give the old log-probabilities
    assert largest_difference(values(policy, read), rollout.old_logprob_BT, rollout.mask_BT) < 3e-6
    assert EnvironmentReturn()(read.samples) == EnvironmentReturn()(rollout.samples)


def trained(folder: Path, changes: dict[str, Any]) -> tuple[Tensor, list[dict[str, Any]]]:
    """The weights after two steps, and the log."""
    small = {
        "output": str(folder),
        "steps": 2,
        "rollout": {"prompts_per_step": 2, "group_size": 4, "environment": CORRIDOR, "max_turns": 3},
        "update": {"optimizer": {"lr": 1e-3}, "minibatches": 2},
        "runtime": {"device": "cpu"},
    }
    trainer = Trainer(terse("llama", max_new_tokens=60), RETURNS, prompts_of("llama"), {**small, **changes})
    lines = [json.loads(line) for line in (trainer.train() / "metrics.jsonl").read_text().splitlines()]
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters]), lines


@pytest.mark.nightly  # GiGPO trains daily in tests/configs/test_turn_methods.py
def test_the_method_trains_on_exchanges(tmp_path: Path) -> None:
    method = load_config("methods/gigpo", {"policy": None})
    sections = {"advantage": method.advantage.model_dump(), "objective": method.objective.model_dump()}
    plain, _ = trained(tmp_path / "plain", {**sections, "advantage": {**sections["advantage"], "estimators": []}})
    silent = {**sections["advantage"], "estimators": [{"name": "anchor_states", "weight": 0.0}]}
    assert torch.equal(trained(tmp_path / "silent", {**sections, "advantage": silent})[0], plain)
    result, lines = trained(tmp_path / "found", sections)
    assert result.isfinite().all()
    assert not torch.equal(result, plain)
    assert [(line["step"], line["update"]) for line in lines] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for line in lines:
        assert line["policy/on_policy_gap"] < 3e-6
        assert line["optimizer/grad_norm"] > 0
        assert -0.125 * 6 <= line["reward/mean"] <= 1.0


def test_turns_without_an_environment_raise(tmp_path: Path) -> None:
    estimator = {"name": "anchor_states"}
    section = {"advantage": {"estimators": [estimator]}, "output": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"anchor_states reads turns of conversations: set rollout\.environment"):
        Trainer(measured_policy_of("llama"), RETURNS, prompts_of("llama"), section)
    policy = measured_policy_of("llama")
    rollout = policy.rollout(prompts_of("llama"), group_size=2, seed=0)
    rewards = [NamedReward("length", lambda samples: [float(len(sample.text or "")) for sample in samples])]
    with pytest.raises(ConfigError, match=r"these samples have none: set rollout\.environment"):
        credit(policy, rollout, rewards, estimator)
