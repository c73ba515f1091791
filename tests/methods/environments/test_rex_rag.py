"""REX-RAG: the rows that are continued, and advantages over the mixture, worked out by hand from the authors' code."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Setting
from mmgrpo.maths.strategies.branch_points import Row
from mmgrpo.methods.environments.rex_rag import mixture_correction
from tests.configs.method_rounds import strategy_of
from tests.configs.method_steps import Step, assert_credit, config_of
from tests.maths.feedback_rows import feedback_of
from tests.maths.round_rows import round_of


def test_advantages_are_over_the_mixture() -> None:
    """Row 3 continues row 1 after two decisions; one of four rows is added, and two of three others fail.

    Rewards 1, 0, 0, 1: +-0.866024. Others: / 0.75 = 1.154700. The shared decisions: 0.75 + 0.25 (2 / 3)^(-1 / 2) =
    1.056186, 0.866024 / 1.056186 = 0.819954; after them the advantage is unchanged.
    """
    rows = Step(reward=(1, 0, 0, 1), sampled_by=[[0] * 3, [1] * 3, [2] * 3, [1, 1, 3]])
    high = 1.154699
    credit = [[high] * 3, [-high] * 3, [-high] * 3, [0.819954, 0.819954, 0.866024]]
    assert_credit("rex-rag", rows, credit)


def test_advantages_without_added_rows_are_those_of_the_group() -> None:
    assert_credit("rex-rag", Step(reward=(1, 0)), [[0.707106] * 2, [-0.707106] * 2])


def test_rows_without_a_reward_do_not_change() -> None:
    """Of two rows with a reward both continue row 0: the probability of rows that continue none is 0."""
    sampled_by = [[0, 0], [0, 1], [0, 2]]
    feedback = feedback_of([0.0, 1.0, 0.0], [0, 0, 0], valid=[False, True, True], sampled_by=sampled_by)
    corrected_BT = mixture_correction().assign(feedback, torch.tensor([[0.0, 0.0], [0.7, 0.7], [-0.7, -0.7]]))
    assert corrected_BT.flatten().tolist() == pytest.approx([0, 0, 0.7, 0.7, -0.7, -0.7])


def test_failed_rows_with_two_turns_are_continued() -> None:
    """Of 40 rows the first 20 fail; one in five of them is continued, and at most 0.08 x 40 = 3 are kept."""
    strategy, setting = strategy_of("rex-rag"), Setting(step=0, num_prompts=4, group_size=10)
    first_requests = strategy.ask((), setting)
    first = replace(round_of(first_requests, [0.0] * 20 + [1.0] * 20), places_B=[(7,), ()] * 20)
    numbers = set()
    for seed in range(30):
        requests = strategy.ask([first], replace(setting, seed=seed))
        numbers.add(len(requests))
        for request in requests:
            branch = request.continues
            assert branch is not None
            assert request.prompt < 2
            assert (branch.after, branch.member % 2) == (7, 0)
            assert request.members == (10 + branch.member,)
            assert branch.then.startswith("<think> ")
    assert max(numbers) == 3
    assert strategy.ask([first, first], setting) == ()


def test_a_limit_of_less_than_a_row_raises() -> None:
    strategy, setting = strategy_of("rex-rag"), Setting(step=0, num_prompts=2, group_size=6)
    first = replace(round_of(strategy.ask((), setting), [0.0] * 12), places_B=[(7,)] * 12)
    with pytest.raises(ConfigError, match=r"0\.08 of 12 rows, which is none: raise limit"):
        strategy.ask([first], setting)


def test_rows_are_continued_from_a_last_turn_with_room() -> None:
    places = strategy_of("rex-rag").places
    assert places is not None
    assert places(Row(num_decisions=50, turns=((0, 10), (15, 47)))) == [15]
    assert places(Row(num_decisions=50, turns=((0, 10), (15, 46)))) == []
    assert places(Row(num_decisions=50, turns=((0, 40),))) == []


def test_texts_are_needed() -> None:
    over = {"rollout.strategy.texts": []}
    with pytest.raises(ConfigError, match="explore_failed needs a list of texts"):
        _ = Algorithm.of(config_of("rex-rag", over))
