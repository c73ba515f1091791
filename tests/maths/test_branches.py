"""Strategies of trees: places in rows, numbers of members, requests round by round."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Branch, Request, Round, Setting, Strategy
from mmgrpo.maths.strategies.branch_points import Row, at_decisions, at_text, evenly, uncertain
from mmgrpo.maths.strategies.branching import branch_at, branch_evenly
from mmgrpo.methods.credit.grpo_ma import branch_at_text
from mmgrpo.methods.sampling.cure import branch_at_uncertain
from tests.maths.round_rows import round_of


def test_branch_points_are_within_the_sampled_decisions_of_a_row() -> None:
    assert evenly(every=3)(Row(num_decisions=10)) == [3, 6, 9]
    assert evenly(every=3)(Row(num_decisions=9)) == [3, 6]  # no decision follows the last
    assert evenly(every=3)(Row(num_decisions=10, begins=3)) == [6, 9]
    assert at_decisions(at=[2, 5, 8])(Row(num_decisions=6)) == [2, 5]


def test_places_before_uncertain_decisions() -> None:
    entropy_T = torch.tensor([9.0, 0.5, 2.0, 1.0, 2.0, 0.1])
    assert uncertain()(Row(num_decisions=6, value_T=entropy_T)) == [2, 4, 3, 1, 5]  # before the first is the prompt
    assert uncertain(apart=2)(Row(num_decisions=6, value_T=entropy_T)) == [2, 4]
    assert uncertain()(Row(num_decisions=6, begins=3, value_T=entropy_T)) == [4, 5]
    with pytest.raises(ConfigError, match="need their entropies"):
        uncertain()(Row(num_decisions=3))


def test_places_after_texts() -> None:
    # decisions write "a", "b</", "think>c", "d</think>", "e"
    row = Row(num_decisions=5, text="ab</think>cd</think>e", ends_T=[1, 4, 11, 20, 21])
    assert at_text(pattern="</think>")(row) == [3, 4]
    assert at_text(pattern="e$")(row) == []  # after the last decision
    for wrong in ("(", "x*"):
        with pytest.raises(ConfigError, match="pattern"):
            at_text(pattern=wrong)


def with_places(requests: Any, strategy: Strategy, lengths: dict[tuple[int, int], int], **row: Any) -> Round:
    """A round whose rows have branch points of these lengths, 10 if not named."""
    rows = [(n, request.prompt, member) for n, request in enumerate(requests) for member in request.members]
    assert strategy.places is not None
    places = [
        strategy.places(
            Row(
                num_decisions=lengths.get((prompt, member), 10),
                begins=0 if requests[n].continues is None else requests[n].continues.after,
                **row,
            )
        )
        for n, prompt, member in rows
    ]
    return round_of(requests, [0.0] * len(rows), length_B=torch.full((len(rows),), 10), places_B=places)


def planned(strategy: Strategy, lengths: dict[tuple[int, int], int], **row: Any) -> list[list[Request]]:
    setting, rounds, requested = Setting(step=0, num_prompts=1, group_size=2), [], []
    while requests := strategy.ask(rounds, setting):
        requested.append(list(requests))
        rounds.append(with_places(requests, strategy, lengths, **row))
    return requested


def continuations(requests: list[Request]) -> list[tuple[tuple[int, ...], int, int]]:
    return [
        (request.members, request.continues.member, request.continues.after)
        for request in requests
        if request.continues is not None
    ]


def test_trees_part_level_by_level_and_number_their_leaves() -> None:
    roots, first, second = planned(branch_evenly(every=3, factor=3, levels=2), {})
    assert [request.members for request in roots] == [(0, 1)]
    assert continuations(first) == [((2, 3), 0, 3), ((4, 5), 1, 3)]
    # 6 rows, each parts after 6 into 2 further ones
    assert continuations(second) == [((6 + 2 * m, 7 + 2 * m), m, 6) for m in range(6)]
    assert planned(branch_at(at=[3, 6], factor=3), {}) == [roots, first, second]


def test_ended_rows_do_not_branch_and_keep_member_numbers_free() -> None:
    _, first, second = planned(branch_evenly(every=3, factor=2, levels=2), {(0, 0): 3, (0, 3): 5})
    assert continuations(first) == [((3,), 1, 3)]
    assert continuations(second) == [((5,), 1, 6)]  # 4 + m: rows 0 and 3 ended before 6
    assert planned(branch_evenly(every=20), {})[1:] == []


def test_rows_part_at_several_places_of_theirs_alone() -> None:
    entropy_T = torch.tensor([0.0, 5.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 3.0])
    strategy = branch_at_uncertain(num=2, levels=2)
    assert strategy.places is not None
    assert [value.name for value in strategy.places.values] == ["entropy"]
    _, first, second = planned(strategy, {}, value_T=entropy_T)
    assert continuations(first) == [((2,), 0, 1), ((3,), 0, 4), ((4,), 1, 1), ((5,), 1, 4)]
    # 6 rows; those from the prompt have parted at 1 and 4, those from 1 part at 4 and 9, those from 4 at 9 and 5
    assert continuations(second) == [
        *[((6 + 2 * m + order,), m, after) for m in (0, 1) for order, after in enumerate((9, 2))],
        *[((6 + 2 * m + order,), m, after) for m in (2, 3) for order, after in enumerate({2: (4, 9), 3: (9, 5)}[m])],
        *[((6 + 2 * m + order,), m, after) for m in (4, 5) for order, after in enumerate({4: (4, 9), 5: (9, 5)}[m])],
    ]


def test_numbers_without_a_branch_raise() -> None:
    for wrong in (
        lambda: branch_evenly(every=0),
        lambda: branch_evenly(every=3, factor=1),
        lambda: branch_evenly(every=3, levels=0),
        lambda: branch_at(at=[]),
        lambda: branch_at(at=[3, 2]),
        lambda: branch_at_uncertain(num=0),
        lambda: branch_at_uncertain(apart=0),
        lambda: branch_at_text(pattern=""),
        lambda: Branch(0, 0),
        lambda: Request(prompt=0, members=(2,), prompt_template="hint", continues=Branch(0, 3)),
    ):
        with pytest.raises(ConfigError):
            wrong()
