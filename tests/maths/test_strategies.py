"""Strategies: their requests round by round, and the rows that they keep."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Answer, Request, Round, Setting, Strategy, fixed, refill
from mmgrpo.maths.strategies.resample import (
    mixed_prompt_templates,
    on_failure,
    two_stage_scouts,
    with_answer,
    with_replay,
)
from mmgrpo.memory import Memory, ReplayRow
from mmgrpo.methods.strategies.scaf_grpo import scaffold
from tests.maths.round_rows import round_of

SETTING = Setting(step=0, num_prompts=2, group_size=2)


def keep_masks(strategy: Strategy, rounds: Sequence[Round], setting: Setting = SETTING) -> list[list[bool]]:
    return [keep_B.tolist() for keep_B in strategy.keep(rounds, setting)]


def test_fixed_requests_once() -> None:
    strategy = fixed()
    requests = strategy.ask((), SETTING)
    assert requests == (Request(prompt=0, members=(0, 1)), Request(prompt=1, members=(0, 1)))
    assert strategy.ask([round_of(requests, [1, 0, 1, 1])], SETTING) == ()
    assert not strategy.looks_back


def test_refill_requests_further_prompts_until_two_groups_differ() -> None:
    strategy, four = refill(target=2), Setting(step=0, num_prompts=4, group_size=2)
    first = round_of(strategy.ask((), four), [0, 0, 1, 1, 1, 0, 1, 1])  # rates 0, 1, 0.5, 1: one differs
    more = strategy.ask([first], four)
    assert more == (Request(prompt=4, members=(0, 1)),)
    second = round_of(more, [None, 1])  # one reward says nothing of a group
    again = strategy.ask([first, second], four)
    assert again == (Request(prompt=5, members=(0, 1)),)
    third = round_of(again, [0, 1])
    assert strategy.ask([first, second, third], four) == ()
    expected = [[False] * 4 + [True, True] + [False] * 2, [False, False], [True, True]]
    assert keep_masks(strategy, [first, second, third], four) == expected


def test_refill_keeps_at_most_its_target_and_gives_up() -> None:
    strategy = refill(target=1, rounds=2, factor=3.0)
    first = round_of(strategy.ask((), SETTING), [1, 0, 0, 1])
    assert strategy.ask([first], SETTING) == ()
    assert keep_masks(strategy, [first]) == [[True, True, False, False]]
    equal = round_of(strategy.ask((), SETTING), [1, 1, 0, 0])
    more = strategy.ask([equal], SETTING)
    assert [request.prompt for request in more] == [2, 3, 4]  # one missing, times three
    assert strategy.ask([equal, round_of(more, [1] * 6)], SETTING) == ()


def test_refill_takes_groups_of_enough_variance() -> None:
    # of four 0 or 1 rewards the variance is 4 k (4 - k) / 16 of the largest: 3/4 of one right, 1 of two
    four = Setting(step=0, num_prompts=3, group_size=4)
    requests = refill().ask((), four)
    first = round_of(requests, [1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1])
    for variance, prompts in ((None, [0, 1]), (0.0, [0, 1]), (0.75, [0, 1]), (0.8, [1]), (1.0, [1])):
        (keep,) = keep_masks(refill(variance=variance), [first], four)
        assert [n for n, group in enumerate(zip(*[iter(keep)] * 4, strict=True)) if all(group)] == prompts
    # of three the largest has one or two right; a reward that does not apply is none of them
    odd = round_of(requests, [1, 0, 0, None, 1, 0.5, 0, None, 0, 0, 0, 0])
    (keep,) = keep_masks(refill(variance=1.0), [odd], four)
    assert keep[:8] == [True] * 4 + [False] * 4
    assert [request.prompt for request in refill(variance=0.8).ask([first], four)] == [3, 4]


def test_members_have_different_contexts() -> None:
    requests = mixed_prompt_templates(
        prompt_templates=[None, "rules"], train_without_template=True, as_on_policy=True
    ).ask((), SETTING)
    assert requests == (
        Request(prompt=0, members=(0,)),
        Request(prompt=0, members=(1,), prompt_template="rules", train_without_template=True, as_on_policy=True),
        Request(prompt=1, members=(0,)),
        Request(prompt=1, members=(1,), prompt_template="rules", train_without_template=True, as_on_policy=True),
    )
    six = Setting(step=0, num_prompts=1, group_size=6)
    assert [request.members for request in mixed_prompt_templates(prompt_templates=["a", "b", "c"]).ask((), six)] == [
        (0, 1),
        (2, 3),
        (4, 5),
    ]
    assert [
        request.members for request in mixed_prompt_templates(prompt_templates=["a", "b"], sizes=[1, 5]).ask((), six)
    ] == [
        (0,),
        (1, 2, 3, 4, 5),
    ]
    for strategy in (
        mixed_prompt_templates(prompt_templates=["a"] * 4),
        mixed_prompt_templates(prompt_templates=["a"], sizes=[5]),
    ):
        with pytest.raises(ConfigError, match="multiple of the prompt templates"):
            strategy.ask((), six)


def test_a_failed_group_is_resampled_with_a_hint() -> None:
    strategy = on_failure(members=1, prompt_template="hint")
    first = round_of(strategy.ask((), SETTING), [0, 0, 1, 0])
    (more,) = strategy.ask([first], SETTING)
    assert (more.prompt, more.members, more.prompt_template, more.train_without_template) == (0, (2,), "hint", True)
    second = round_of([more], [1])
    assert strategy.ask([first, second], SETTING) == ()
    assert keep_masks(strategy, [first, second]) == [[True, False, True, True], [True]]
    assert keep_masks(on_failure(members=1, prompt_template="hint", replace_failed=False), [first, second]) == [
        [True] * 4,
        [True],
    ]


def test_the_right_answer_of_the_least_hint_joins() -> None:
    strategy = scaffold(prompt_templates=["a", "b", "c"], start=1)
    setting = Setting(step=1, num_prompts=3, group_size=2)
    first = round_of(strategy.ask((), setting), [0, 0, 1, 0, 0, 0])
    more = strategy.ask([first], setting)
    assert [
        (request.prompt, request.members, request.prompt_template, request.train_without_template) for request in more
    ] == [(prompt, (2 + tier,), "abc"[tier], False) for prompt in (0, 2) for tier in range(3)]
    second = round_of(more, [0, 1, 1, 0, None, 0])  # prompt 0 by the second hint, prompt 2 by none
    assert strategy.ask([first, second], setting) == ()
    assert keep_masks(strategy, [first, second], setting) == [
        [True, False, True, True, True, True],
        [False, True, False, False, False, False],
    ]
    assert strategy.ask([first], SETTING) == ()  # before its start
    assert keep_masks(strategy, [first], setting) == [[True] * 6]


def test_scouts_send_the_best_and_the_worst() -> None:
    strategy = two_stage_scouts(scouts=4, best=1, worst=1, settings={"strength": 0.3})
    requests = strategy.ask((), SETTING)
    assert all(not request.trained and request.members == (0, 1, 2, 3) for request in requests)
    first = round_of(requests, [0.1, 0.9, 0.5, 0.3, 0.5, 0.5, 0.5, None])
    more = strategy.ask([first], SETTING)
    # of equal ones the first; what no reward applied to is the worst
    assert more == (Request(prompt=0, members=(0, 1)), Request(prompt=1, members=(0, 3)))
    second = round_of(more, [0, 1, 0, 1])
    assert keep_masks(strategy, [first, second]) == [[False] * 8, [True] * 4]


def test_remembered_rows_join_their_group() -> None:
    row = ReplayRow(key="b", text="x", reward=1.0, advantage=0.5, step=0)
    memory = Memory().with_replay([row], per_prompt=2, total=9)
    setting = Setting(step=1, num_prompts=2, group_size=2, memory=memory, key_of=lambda n: "ab"[n])
    *sampled, read = with_replay(num=4).ask((), setting)
    assert tuple(sampled) == SETTING.groups(0, 2)
    assert (read.prompt, read.members, read.off_policy_rows) == (1, (2,), (row,))
    assert with_replay(num=4, start=2).ask((), setting) == SETTING.groups(0, 2)
    assert with_replay(num=4, least=2).ask((), setting) == SETTING.groups(0, 2)  # one row is held
    assert with_replay(num=4).ask((), SETTING) == SETTING.groups(0, 2)  # an empty memory


def test_an_answer_joins_every_group_or_those_that_failed() -> None:
    every = with_answer(column="solution").ask((), SETTING)
    assert [(request.prompt, request.members, request.off_policy_rows) for request in every[2:]] == [
        (0, (2,), (Answer("solution"),)),
        (1, (2,), (Answer("solution"),)),
    ]
    strategy = with_answer(below=1.0)
    first = round_of(strategy.ask((), SETTING), [1, 0, 0, 0])
    assert [request.prompt for request in strategy.ask([first], SETTING)] == [1]
    unscored = round_of(strategy.ask((), SETTING), [1, 0, None, None])
    assert strategy.ask([unscored], SETTING) == ()  # no score says that group 1 failed


def test_answers_of_several_take_the_place_of_failures() -> None:
    strategy = with_answer(column="one", further=["two"], below=1.0, replace_failed=True)
    setting = Setting(step=0, num_prompts=2, group_size=3)
    first = round_of(strategy.ask((), setting), [0, 0, 0, 0, 1, 0])
    (read,) = strategy.ask([first], setting)
    assert (read.prompt, read.members, read.off_policy_rows) == (0, (3, 4), (Answer("one"), Answer("two")))
    assert keep_masks(strategy, [first, round_of([read], [1, 1])], setting) == [
        [True, False, False] + [True] * 3,
        [True] * 2,
    ]


@pytest.mark.parametrize(
    "build",
    [
        lambda: refill(rounds=0),
        lambda: refill(factor=0),
        lambda: on_failure(members=0, prompt_template="hint"),
        lambda: on_failure(),
        lambda: two_stage_scouts(scouts=2, best=2, worst=1, settings={"strength": 1}),
        lambda: two_stage_scouts(scouts=2, best=1, worst=1, settings={}),
        lambda: with_replay(strategy="newest"),
        lambda: with_replay(num=0),
        lambda: with_replay(per_prompt=2, least=3),
        lambda: with_answer(replace_failed=True),
        lambda: mixed_prompt_templates(prompt_templates=[]),
        lambda: mixed_prompt_templates(prompt_templates=["a", "b"], sizes=[1]),
        lambda: refill(variance=1.5),
        lambda: scaffold(prompt_templates=[]),
        lambda: Request(prompt=0, members=(0, 1), off_policy_rows=(Answer("a"),)),
    ],
)
def test_numbers_that_request_nothing_raise(build: object) -> None:
    with pytest.raises(ConfigError):
        build()  # pyrefly: ignore[not-callable]
