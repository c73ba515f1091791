"""Checks of the doctor on conversations: each turn is scored again, and failed environments are named."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, final

import pytest

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import validated
from mmgrpo.doctor.checks import CheckedPolicy, CheckResult, turn_gaps
from mmgrpo.doctor.examination import examine
from mmgrpo.environment import Environment, Turn
from mmgrpo.tool_calls import ToolResult
from mmgrpo.types import Plan, Prompt
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import prompts_of


@final
@dataclass
class Replies(Environment):
    """Answers ``num_turns - 1`` turns, and raises an error in place of answer ``fails_at``."""

    num_turns: int = 3
    fails_at: int | None = None
    num_answers: int = 0

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        self.num_answers += 1
        if self.num_answers == self.fails_at:
            raise ConnectionError("the index is gone")
        return Turn(text="two red", done=self.num_answers == self.num_turns)


def config_of(**environment: Any) -> RunConfig:
    return validated(
        {
            "rollout": {
                "prompts_per_step": 2,
                "group_size": 2,
                "environment": {"name": "python:tests.test_doctor_conversations:Replies"} | environment,
                "max_turns": 3,
            }
        }
    )


def turns_check(**environment: Any) -> CheckResult:
    results = examine(
        config_of(**environment), terse("llama"), {"length": lambda samples: [1.0] * len(samples)}, prompts_of("llama")
    )
    return next(result for result in results if result.check == "turns")


def test_every_turn_is_scored_again() -> None:
    result = turns_check()
    assert result.ok
    assert not result.fix
    assert result.measured.startswith("turns a sample: 2 to 3; log-prob by turn ")
    gaps = result.measured.split("by turn ")[1].split(",")[0].split()
    assert len(gaps) == 3
    assert all(float(gap) < 3e-6 for gap in gaps)


def test_conversation_of_one_turn_is_a_warning() -> None:
    result = turns_check(num_turns=1)
    assert result.ok
    assert result.measured.startswith("turns a sample: 1;")
    assert "no later turn was checked" in result.fix


def test_failed_environment_is_named() -> None:
    result = turns_check(fails_at=2)
    assert not result.ok
    assert result.measured.endswith("environments failed on 4 of 4 samples")
    assert result.fix.endswith("the first error: Replies.step raised ConnectionError: the index is gone")


@final
class FailingLookup(Environment):
    """Answers each of two turns with the result of a call, as ``ToolEnvironment`` does; the second one failed."""

    def __init__(self) -> None:
        self.num_answers = 0

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        self.num_answers += 1
        result = ToolResult("lookup", "two red", failed=self.num_answers == 2)
        return Turn(text=result.text, results=[result], done=self.num_answers == 3)


def test_failed_tool_is_named() -> None:
    config = config_of(name="python:tests.test_doctor_conversations:FailingLookup")
    policy, rewards = terse("llama"), {"length": lambda samples: [1.0] * len(samples)}
    results = {result.check: result for result in examine(config, policy, rewards, prompts_of("llama"))}
    assert results["turns"].ok
    num_failed, num_calls = map(
        int, re.findall(r"; (\d+) of (\d+) calls of tools failed", results["turns"].measured)[0]
    )
    assert 0 < num_failed < num_calls
    assert results["turns"].fix.endswith("the first error, of lookup: two red")


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_turn_with_other_log_probabilities_is_named(turn: int) -> None:
    policy, algorithm = terse("llama"), Algorithm.of(config_of())
    plan = Plan(prompt_ids=(0, 1), environment=Replies, max_turns=3)
    rollout = policy.rollout(prompts_of("llama")[:2], group_size=2, seed=0, plan=plan)
    shifted_BT = rollout.old_logprob_BT + 0.5 * (rollout.mask_BT & (rollout.segment_BT == turn))
    subject = CheckedPolicy(
        config=algorithm.config,
        policy=policy,
        objective=algorithm.objective,
        rollout=replace(rollout, old_logprob_BT=shifted_BT),
    )
    result = turn_gaps(subject)
    assert not result.ok
    assert result.fix.startswith(f"turn {turn + 1} scores differently")
