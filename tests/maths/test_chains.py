"""Stages: requests after rows of earlier stages; the credit of chains by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.aggregates import count
from mmgrpo.maths.feedback import SampleColumn, Scoped
from mmgrpo.maths.strategies import Round, Setting, Strategy
from mmgrpo.maths.strategies.chain_stages import stages
from mmgrpo.maths.strategies.downstream import following
from mmgrpo.methods.credit.grpo_care import likely_answers
from mmgrpo.methods.strategies.delethink import along_chain, begun_by, carried_over, group_sum
from mmgrpo.values import of_view
from tests.maths.feedback_rows import feedback_of
from tests.maths.round_rows import round_of

SETTING = Setting(step=0, num_prompts=2, group_size=2)
PROPOSE: dict[str, Any] = {"prompt_template": "variant", "rows": "right", "rate": [0.5, 0.5]}
SOLVE: dict[str, Any] = {"prompt_template": "posed", "members": 3}


def requests_of(strategy: Strategy, rounds: Sequence[Round]) -> list[tuple[int, tuple[int, ...], str | None, Any]]:
    return [
        (request.prompt, request.members, request.prompt_template, request.after)
        for request in strategy.ask(rounds, SETTING)
    ]


def test_each_right_row_of_a_middling_group_is_followed_by_a_group_and_each_of_these_by_another() -> None:
    strategy = stages(then=[PROPOSE, SOLVE])
    first = round_of(
        strategy.ask((), SETTING), [1.0, 0.0, 1.0, 1.0]
    )  # the second group is solved, and not gone on from
    assert requests_of(strategy, [first]) == [(2, (0, 1), "variant", ((0, 0),))]
    second = round_of(strategy.ask([first], SETTING), [0.0, 0.0])
    assert requests_of(strategy, [first, second]) == [
        (3, (0, 1, 2), "posed", ((2, 0),)),
        (4, (0, 1, 2), "posed", ((2, 1),)),
    ]
    third = round_of(strategy.ask([first, second], SETTING), [0.0] * 6)
    assert strategy.ask([first, second, third], SETTING) == ()
    nothing = round_of(strategy.ask((), SETTING), [0.0] * 4)
    assert strategy.ask([nothing], SETTING) == ()


def test_an_answer_continues_until_it_ends_or_the_chunks_are_used() -> None:
    chunk = {"prompt_template": "tail", "rows": "unfinished", "group": "parent", "members": 1, "times": 2}
    strategy = stages(then=[chunk])
    first = round_of(strategy.ask((), SETTING), [0.0] * 4, [True, False, False, False])
    assert requests_of(strategy, [first]) == [
        (0, (2,), "tail", ((0, 1),)),
        (1, (2,), "tail", ((1, 0),)),
        (1, (3,), "tail", ((1, 1),)),
    ]
    second = round_of(strategy.ask([first], SETTING), [0.0] * 3, [False, True, False])
    assert requests_of(strategy, [first, second]) == [(0, (3,), "tail", ((0, 2),)), (1, (4,), "tail", ((1, 3),))]
    third = round_of(strategy.ask([first, second], SETTING), [0.0] * 2, [False, False])
    assert strategy.ask([first, second, third], SETTING) == ()


def test_rows_inserted_together() -> None:
    first = round_of(stages(then=[SOLVE]).ask((), SETTING), [0.0, 1.0, 1.0, 1.0])
    pair = stages(then=[{"prompt_template": "lesson", "show": "pair", "members": 1}])
    assert requests_of(pair, [first]) == [(2, (0,), "lesson", ((0, 1), (0, 0)))]  # the other group has no wrong row
    stage = stages(then=[{"prompt_template": "referee", "show": "group", "members": 1}])
    assert requests_of(stage, [first]) == [
        (2, (0,), "referee", ((0, 0), (0, 1))),
        (3, (0,), "referee", ((1, 0), (1, 1))),
    ]


def test_rows_are_inserted_with_those_before_them() -> None:
    """Checks of the first two of three drafts, then marks of each draft and its check, and a draft after both."""
    check = {"prompt_template": "check", "most": 2, "members": 1, "group": "stage"}
    mark = {"prompt_template": "mark", "inherits": True, "members": 1}
    strategy = stages(
        first={"members": 3},
        then=[check, mark, {"prompt_template": "again", "of": "check", "show": "group", "inherits": True, "most": 1}],
    )
    small = replace(SETTING, num_prompts=1)
    rounds = [round_of(strategy.ask((), small), [0.0] * 3)]
    for rows in (2, 2):
        rounds.append(round_of(strategy.ask(rounds, small), [0.0] * rows))
    assert [request.after for request in rounds[1].requests] == [((0, 0),), ((0, 1),)]
    assert [request.after for request in rounds[2].requests] == [((0, 0), (1, 0)), ((0, 1), (1, 1))]
    assert requests_of(strategy, rounds) == [(4, (0, 1), "again", ((0, 0), (1, 0)))]


def test_a_stage_without_rows_is_left_out_and_a_later_one_follows_another() -> None:
    strategy = stages(
        first={"prompt_template": "draft", "trained": False},
        then=[
            {"prompt_template": "mend", "rows": "wrong"},
            {"prompt_template": "check", "of": "draft", "most": 1, "members": 1},
        ],
    )
    begun = strategy.ask((), SETTING)
    assert [(request.prompt_template, request.trained) for request in begun] == [("draft", False)] * 2
    right = round_of(begun, [1.0] * 4)
    assert requests_of(strategy, [right]) == [(2, (0,), "check", ((0, 0),)), (3, (0,), "check", ((1, 0),))]
    assert strategy.ask([right, round_of(strategy.ask([right], SETTING), [1.0, 1.0])], SETTING) == ()


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ([], "one stage or more"),
        ([{"rows": "right"}], "names its prompt template"),
        ([{"prompt_template": "a", "row": "right"}], "a stage takes"),
        ([{"prompt_template": "a"}, {"prompt_template": "a"}], "a different prompt template"),
        ([{"prompt_template": "a", "rows": "good"}], "choose from all, best, right, wrong, unfinished"),
        ([{"prompt_template": "a", "of": "b"}], "no stage before it"),
        ([{"prompt_template": "a", "times": 0}], "1 or more"),
        ([{"prompt_template": "a", "right": 0.5}], "right is for rows: right or wrong, and show: pair; leave it out"),
        ([{"prompt_template": "a", "show": "pair", "most": 1}], "leave out most"),
        ([{"prompt_template": "a", "show": "pair", "rows": "best"}], "leave out most and rows: best"),
        ([{"prompt_template": "a", "rate": [1.0, 0.5]}], "least and the highest"),
    ],
)
def test_invalid_stages_raise(then: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stages(then=then)


def test_the_rows_of_a_chain_have_the_advantage_of_its_end() -> None:
    """Two chains of one group: rows 0, 2, 3 of 2, 3 and 1 tokens, whose end has 1; row 1 of 4 tokens alone, with -1."""
    mask_BT = torch.arange(4) < torch.tensor([2, 4, 3, 1])[:, None]
    feedback = feedback_of([0.0, 0.0, 0.0, 1.0], [0] * 4, mask=mask_BT.tolist())
    feedback = replace(feedback, after_B=torch.tensor([-1, -1, 0, 2]))
    advantage_BT = torch.tensor([0.0, -1.0, 0.0, 1.0])[:, None].expand(4, 4)
    assert begun_by(torch.tensor([-1, 0, 0, 2, -1])).tolist() == [0, 0, 0, 0, 4]
    assert along_chain().assign(feedback, advantage_BT)[:, 0].tolist() == [1.0, -1.0, 1.0, 1.0]
    shared_BT = along_chain(shared=True).assign(feedback, advantage_BT)
    # 6 tokens in the first chain, 4 in the other, two chains: 1 / (6 x 2) and -1 / (4 x 2)
    assert shared_BT[:, 0].tolist() == pytest.approx([1 / 12, -1 / 8, 1 / 12, 1 / 12])
    # the mean over the two chains of their means over tokens, of one group: (1 - 1) / 2
    weight_BT = group_sum(mask_BT, count(mask_BT, group_B=feedback.group_B))
    assert float((weight_BT * shared_BT).sum()) == pytest.approx(0.0, abs=1e-6)
    assert float((weight_BT * shared_BT)[[0, 2, 3]].sum()) == pytest.approx(0.5)
    alone = replace(feedback, after_B=None)
    assert along_chain().assign(alone, advantage_BT).tolist() == advantage_BT.tolist()


def test_likely_right_answers_have_a_bonus() -> None:
    """Four samples, the first three right.

    Answers of probability 0.9, 0.5 and 0.7 a token, mean 0.7: the first and the third have the bonus of 0.5. Rewards
    1.5, 1, 1.5 and 0: mean 1, sample std sqrt(0.5).
    """
    logprob_B1 = torch.tensor([0.9, 0.5, 0.7, 0.99]).log()[:, None]
    answer = Scoped(
        scope_BT=torch.tensor([-1, 0, 0]).expand(4, 3),
        value_BS=torch.ones(4, 1),
        valid_BS=torch.ones(4, 1, dtype=torch.bool),
    )
    values = {of_view("slow"): torch.cat([torch.full((4, 1), -9.0), logprob_B1, logprob_B1], dim=1)}
    feedback = feedback_of([1.0, 1.0, 1.0, 0.0], [0] * 4, values=values, scoped={"answer": answer})
    right = SampleColumn(value_B=feedback.reward_B, valid_B=feedback.valid_B)
    feedback = replace(feedback, rewards={"right": right})
    advantage_BT = likely_answers(view="slow", of="right", part="answer", eps=0.0).assign(feedback, torch.zeros(4, 3))
    root = 0.5**0.5
    assert advantage_BT[:, 0].tolist() == pytest.approx([0.5 / root, 0.0, 0.5 / root, -1 / root], abs=1e-6)
    strict = likely_answers(view="slow", of="right", part="answer", margin=0.21, eps=0.0)
    # 0.5 is no less than 0.7 - 0.21: all three are given 1.5, and 0: mean 1.125, sample std 0.75
    assert strict.assign(feedback, torch.zeros(4, 3))[:, 0].tolist() == pytest.approx([0.5, 0.5, 0.5, -1.5], abs=1e-6)


def test_the_advantage_of_a_row_is_that_of_its_first_kept_decision() -> None:
    """The first decision of row 1 was given, and an estimator before has put nothing there."""
    feedback = feedback_of([0.0, 1.0], [0, 0], mask=[[1, 1], [0, 1]])
    feedback = replace(feedback, after_B=torch.tensor([-1, 0]))
    advantage_BT = torch.tensor([[0.0, 0.0], [float("nan"), 2.0]])
    assert along_chain().assign(feedback, advantage_BT)[0].tolist() == [2.0, 2.0]


def test_members_of_a_prompt_are_shared_out_over_its_samples() -> None:
    requests = following([(0, 0), (0, 1), (1, 0)], compare="prompt").ask(
        (), Setting(step=0, num_prompts=2, group_size=4)
    )
    assert [(request.prompt, request.members, request.after) for request in requests] == [
        (0, (0, 1), ((0, 0),)),
        (0, (2, 3), ((0, 1),)),
        (1, (0, 1, 2, 3), ((1, 0),)),
    ]


@pytest.mark.parametrize("numbers", [{"tail": 0}, {"tail": 4, "head": -1}])
def test_a_context_that_carries_nothing_over_raises(numbers: dict[str, int]) -> None:
    carried_over(tail=1, head=0)
    with pytest.raises(ConfigError):
        carried_over(**numbers)
