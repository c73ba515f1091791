"""AgentCPM-Explore: the turns that are faulty, and the samples and turns that train, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.methods.environments.agentcpm_explore import balanced_outcomes, faulty_turns
from mmgrpo.samples import ToolResult
from mmgrpo.types import Prompt, Sample, Score
from tests.configs.method_steps import Step, advantages_of, config_of
from tests.rewards.written import conversation

GOOD, UNREADABLE = ToolResult("search", "a page"), ToolResult("", "no JSON")
FAILED = ToolResult("search", "no page", failed=True)


def faults(sample: Sample) -> tuple[float, list[float | None]]:
    (score,) = faulty_turns([sample])
    assert isinstance(score, Score)
    assert score.scopes is not None
    return score.value, [scope.value for scope in score.scopes]


def test_repeated_turns_and_unreadable_calls_are_faulty() -> None:
    results = [[GOOD], [FAILED], [GOOD], [GOOD, UNREADABLE]]
    sample = conversation({}, ["look", "find", " look ", "read", "an answer"], results)
    assert faults(sample) == (2.0, [0.0, 0.0, 1.0, 1.0, 0.0])
    assert faulty_turns([Sample(Prompt("q"), 0, 0, text="no conversation")]) == [None]


def test_turn_without_text_repeats_nothing_and_is_no_part() -> None:
    assert faults(conversation({}, ["", "", "a"], [[GOOD], [GOOD]])) == (0.0, [0.0])


def test_parts_are_the_turns_in_the_text_with_answers_between_them() -> None:
    sample = conversation({}, ["ab", "b", "ab"])
    (score,) = faulty_turns([replace(sample, text="ab|b|ab")])
    assert score is not None
    assert score.scopes is not None
    assert [(scope.start, scope.end, scope.value) for scope in score.scopes] == [(0, 2, 0), (3, 4, 0), (5, 7, 1)]


def test_advantages_are_twice_those_to_the_others_and_faults_are_not_encouraged() -> None:
    """Rewards 1, 0, 0, 0: 1 less 0 and 0 less 1/3, doubled; two of three wrong members train, and one right one."""
    faulty = ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    rows = Step(reward=(1.0, 0.0, 0.0, 0.0), parts_of={"faulty": faulty})
    result = advantages_of(config_of("agentcpm-explore"), rows)
    expected = [[2.0, 0.0], *[[-2 / 3] * 2] * 3]
    torch.testing.assert_close(result.advantage_BT, torch.tensor(expected, dtype=torch.float64))
    assert result.mask_BT.tolist() == [[True, False], [True, True], [True, True], [False, False]]


def test_sign_is_that_of_the_verdict() -> None:
    """Rewards 1, 1, 0.4, 0 less 1.4/3, 1.4/3, 2/3, 0.8; the third is wrong by its sign, and right for the balance."""
    rows = Step(reward=(1.0, 1.0, 0.4, 0.0), parts_of={"faulty": ((0.0, 0.0),) * 4})
    result = advantages_of(config_of("agentcpm-explore"), rows)
    expected = torch.tensor([3.2 / 3, 3.2 / 3, -1.6 / 3, -1.6], dtype=torch.float64)[:, None].expand(4, 2)
    torch.testing.assert_close(result.advantage_BT, expected)
    assert result.mask_BT[:, 0].tolist() == [True] * 4


def test_group_of_alike_scores_does_not_train() -> None:
    rows = Step(reward=(0.55, 0.5, 0.6, 0.6), parts_of={"faulty": ((0.0, 0.0),) * 4}, groups=(0, 0, 1, 1))
    assert not advantages_of(config_of("agentcpm-explore"), rows).mask_BT.any()


def test_numbers_must_not_be_negative() -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        balanced_outcomes(spread=0.1, right=0.0, more_right=-1, more_wrong=1)
