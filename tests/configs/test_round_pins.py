"""Numbers of the methods that draw in rounds: what they ask for, keep and show."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.history import History
from mmgrpo.maths.columns import COLUMNS
from mmgrpo.maths.strategies import Request, Round, Setting
from mmgrpo.maths.strategies.branch_points import Row
from mmgrpo.memory import Memory, ReplayRow
from mmgrpo.methods.credit.anytimereasoner import budget_advantages, over_budgets
from mmgrpo.methods.strategies.dars import further_members
from mmgrpo.methods.strategies.knapsack_rl import learning_value, shared_out
from mmgrpo.types import Prompt, Sample
from tests.configs.method_steps import Step, config_of, taught
from tests.configs.pins.rounds import PLAYS
from tests.maths.feedback_rows import feedback_of
from tests.maths.test_strategies import answered

SETTING = Setting(step=0, num_prompts=2, group_size=2)


def said(request: Request) -> tuple[int, int, int, str | None]:
    return request.prompt, request.members[0], len(request.members), request.context


@pytest.mark.parametrize("name", PLAYS)
def test_rounds(name: str) -> None:
    play, strategy = PLAYS[name], Algorithm.of(config_of(name)).strategy
    rounds: list[Round] = []
    for rewards, expected in zip(play.rewards, (None, *play.asked), strict=True):
        requests = strategy.ask(rounds, SETTING)
        assert expected is None or [said(request) for request in requests] == list(expected)
        rounds.append(answered(requests, rewards))
    assert strategy.ask(rounds, SETTING) == ()
    assert [keep_B.int().tolist() for keep_B in strategy.kept(rounds, SETTING)] == list(map(list, play.kept))


def test_a_right_answer_of_an_earlier_step_joins_what_stays_unsolved() -> None:
    strategy = Algorithm.of(config_of("ar3po")).strategy
    rows = [
        ReplayRow(key="0", text=text, reward=reward, advantage=0.0, step=0) for text, reward in (("a", 1), ("b", 0))
    ]
    setting = Setting(step=1, num_prompts=1, group_size=2, memory=Memory().with_replay(rows, per_prompt=9, total=9))
    rounds: list[Round] = []
    for _ in range(4):
        rounds.append(answered(strategy.ask(rounds, setting), [0, 0]))
    (read,) = strategy.ask(rounds, setting)
    assert (read.members, read.given) == ((8,), [rows[0]])
    assert strategy.ask([*rounds, answered([read], [1])], setting) == ()


def test_further_members_are_those_of_the_schedules() -> None:
    """DARS's schedule_ET and schedule_HW of groups of 8 at a quarter: 3 and 8; of none right, 0.5 / 8: as of 1/16."""
    assert further_members(0.25, 8, 32) == 3  # S = 0.375, (4 - 3) / 0.375
    assert further_members(0.25, 8, 64, hardness=True) == 8  # (2 * 0.75 * 4 - 3) / 0.375
    assert further_members(0.0, 8, 32) == 24  # S = 0.1171875: 26.1, at most 24
    assert further_members(0.0, 8, 64, hardness=True) == 56  # (7.5 - 0.9375) / 0.1171875 = 56
    assert further_members(0.25, 8, 32, standardised=True) == 2  # S = 0.8660254, (8 - 6.928203) / 0.8660254 = 1.24
    assert further_members(0.5, 8, 32) == 0


def test_samples_go_where_they_are_worth_most() -> None:
    assert [learning_value(n, 0.1) for n in (4, 8, 16)] == pytest.approx([0.027848, 0.046132, 0.065991], abs=1e-6)
    assert [learning_value(n, 0.5) for n in (4, 8, 16)] == pytest.approx([0.109375, 0.124023, 0.124996], abs=1e-6)
    rates, total = {0: 0.1, 1: 0.5, 2: 0.3}, 15
    ways = [way for way in product(range(2, 12), repeat=3) if sum(way) == total]
    best = max(ways, key=lambda way: sum(learning_value(n, rates[p]) for p, n in enumerate(way)))
    result = shared_out(rates, total, least=2, most=11)
    assert tuple(result.values()) == best
    # 0.5 needs ln 0.1 / ln 0.5 = 3.3 samples: of 9 left 6 go to the prompt that nobody solves
    assert shared_out({0: 0.5, 1: 0.0, 2: 1.0}, 15, least=2, most=11) == {0: 5, 1: 8, 2: 2}


def test_group_sizes_follow_the_last_visit() -> None:
    strategy = Algorithm.of(config_of("knapsack-rl")).strategy
    memory = Memory().declared(strategy.memory)
    setting = Setting(step=0, num_prompts=3, group_size=4, memory=memory)
    assert [len(one.members) for one in strategy.ask((), setting)] == [4, 4, 4]
    seen = memory.write("visits", ["0", "1"], torch.tensor([1, 1]))
    seen = seen.write("last_rate", ["0", "1"], torch.tensor([0.5, 0.0]))
    setting = Setting(step=1, num_prompts=3, group_size=4, memory=seen)
    # of 8, 2 each; 3 of the 4 left are what 0.5 needs, one goes to the prompt of rate 0
    assert [len(one.members) for one in strategy.ask((), setting)] == [5, 3, 4]
    assert set(strategy.memory) <= set(COLUMNS.values())


def shown(name: str, context: str, history: History, member: int = 0, **columns: Any) -> str:
    prompt = Prompt("2 + 2?", columns={"answer": "4", "solution": "abcdefgh", **columns})
    result = Algorithm.of(config_of(name)).prompt_templates[context](prompt, member, history)
    assert result is not None
    return result.text


def written(*texts: str, rewards: tuple[float | None, ...]) -> History:
    samples = [Sample(Prompt("2 + 2?"), 0, member, text=text) for member, text in enumerate(texts)]
    return History(samples=samples, rewards=rewards)


def test_what_members_are_shown() -> None:
    drafts = written("5", "4", "3", rewards=(0.0, 1.0, None))
    assert "solution:\n4\n" in shown("igrpo", "draft", drafts)
    assert "solution:\n3\n" in shown("critique-grpo", "refine", drafts, member=5)  # 5 modulo 3
    assert "That is wrong; the answer is 4." in shown("critique-grpo", "refine", drafts, member=3)
    assert "That is right; the answer is 4." in shown("critique-grpo", "refine", drafts, member=4)
    best = shown("rgr-grpo", "refine", drafts, member=3, criteria="adds both")
    assert "solution:\n4\n\nIt does not meet all of this:\nadds both\n" in best
    assert shown("ghpo", "quarter", History()).endswith("ab")
    assert shown("ghpo", "three_quarters", History()).endswith("abcdef")
    hints = written("5", '```json {"level_1": "add", "level_2": "say \\"two\\""}```', rewards=(0.0, None))
    assert shown("sage", "first", hints).endswith("A hint:\nadd")
    assert shown("sage", "second", hints).endswith('A hint:\nsay \\"two\\"')
    assert shown("sage", "third", hints) == "2 + 2?"  # nobody wrote it
    assert '{"level_1": ..., "level_2": ..., "level_3": ...}' in shown("sage", "hints", History())


def test_answers_are_cut_at_one_of_the_20_most_uncertain_tokens() -> None:
    strategy = Algorithm.of(config_of("cure")).strategy
    assert strategy.places is not None
    entropy_T = torch.arange(40.0)  # before the last tokens, place 39 first
    places = strategy.places(Row(num_decisions=40, value_T=entropy_T))
    chosen = set()
    for seed in range(200):
        setting = Setting(step=0, num_prompts=1, group_size=1, seed=seed)
        first = replace(answered(strategy.ask((), setting), [1]), places_B=[places])
        (further,) = strategy.ask([first], setting)
        assert further.continues is not None
        assert (further.members, further.continues.member) == ((1, 2, 3), 0)
        chosen.add(further.continues.after)
        assert strategy.ask([first, first], setting) == ()
    assert chosen == set(range(20, 40))


def test_a_thought_has_to_be_worth_it() -> None:
    """Of each group the last member has no thought; without one, 1 was reached before the run, in the last group 0."""
    rewards = (2.0, 0.0, 1.0, 0.0, 1.0, 2.0, 2.0, 1.0, 2.0, 0.0, 1.0, 0.0)
    feedback = replace(
        feedback_of(rewards, [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3, mask=[[1, 1], [1, 1], [0, 1]] * 4),
        columns={"reward_without_thought": torch.tensor([1.0] * 9 + [0.0] * 3)},
    )
    outdo, reach = Algorithm.of(config_of("raif")).advantages.filters
    advantage_BT = torch.ones(12, 2)
    # in the second group both members with a thought did worse than the one without
    own = [True, True, False, False, False, False, True, True, False, True, True, False]
    assert outdo.keep(feedback, advantage_BT).tolist() == own
    high = [True, False, True, False, True, True, True, True, True, True, True, True]
    assert reach.keep(feedback, advantage_BT).tolist() == high
    strategy = Algorithm.of(config_of("raif")).strategy
    assert [said(request) for request in strategy.ask((), replace(SETTING, group_size=8))] == [
        (0, 0, 6, None), (0, 6, 2, "without_thought"), (1, 0, 6, None), (1, 6, 2, "without_thought"),
    ]  # fmt: skip
    prompt = Algorithm.of(config_of("raif")).prompt_templates["without_thought"](Prompt("2 + 2?"), 2, History())
    assert prompt is not None
    assert (prompt.text, prompt.prefix) == ("2 + 2?", "<think>\n\n</think>\n")


def test_thoughts_are_worth_what_they_are_over_the_budgets() -> None:
    """The numbers of AnytimeReasoner's compute_cot_advantage, worked out by hand: q = (0, 1) and (1, 1), p = 1/2 each.

    The first: R = 1/2 against 3/4; then R = 1/2 less (0 + 1/2) / 2. The second: 1 - 3/4; 1/2 - (1/2 + 1/2) / 2.
    """
    peers = [(0.0, 1.0), (1.0, 1.0)]
    assert [budget_advantages(one, peers, (0.5, 0.5)) for one in peers] == [[-0.25, 0.25], [0.25, 0.0]]
    # rows 1 and 4 leave after a decision, row 2 goes on from where the first thought ended, after three
    drawn_by = [[0] * 5, [0, 1, 1, 1, 1], [0, 0, 0, 2, 2], [3] * 5, [3, 4, 4, 4, 4]]
    feedback = feedback_of([1.0, 0.0, 1.0, 1.0, 1.0], [0] * 5, drawn_by=drawn_by)
    found_BT = over_budgets(at=[1]).assign(feedback, torch.zeros(5, 5))
    expected = [[-0.25, 0.25, 0.25, 0.0, 0.0], [0.0] * 5, [0.0] * 5, [0.25, 0.0, 0.0, 0.0, 0.0], [0.0] * 5]
    torch.testing.assert_close(found_BT, torch.tensor(expected))
    # of two answers at one budget, 1 and 0, each is half a reward from the mean
    feedback = feedback_of([1.0, 1.0, 0.0], [0] * 3, drawn_by=[[0] * 3, [0, 1, 1], [0, 2, 2]])
    found_BT = over_budgets(at=[1]).assign(feedback, torch.zeros(3, 3))
    # q = (1/2, 1), alone in its group: R - R = 0; then 1/2 - (1/2 1/2 + 1/2) / 2 = 1/8
    expected = [[0.0, 0.125, 0.125], [0.5] * 3, [-0.5] * 3]  # what a row took over trains elsewhere
    torch.testing.assert_close(found_BT, torch.tensor(expected))
    (shipped,) = config_of("anytimereasoner").advantage.estimators
    assert shipped.numbers == {"at": config_of("anytimereasoner").rollout.strategy.numbers["at"]}


def test_thoughts_are_left_at_their_budgets_and_answered_at_their_end() -> None:
    strategy = Algorithm.of(config_of("anytimereasoner")).strategy
    assert strategy.places is not None
    ends_T = [*range(1, 5001), 5008, 5009, *range(5010, 5400)]
    row = Row(num_decisions=len(ends_T), text="a" * 5000 + "</think>" + "b" * 391, ends_T=ends_T)
    places = strategy.places(row)
    assert places == [2000, 4000, 5001]
    setting = Setting(step=0, num_prompts=1, group_size=1)
    first = replace(answered(strategy.ask((), setting), [1]), places_B=[places])
    asked = strategy.ask([first], setting)
    assert [(len(one.members), one.continues.after, bool(one.continues.then)) for one in asked if one.continues] == [
        (4, 2000, True), (4, 4000, True), (4, 5001, False),
    ]  # fmt: skip


def test_of_further_members_the_rarer_kind_trains() -> None:
    """Of 20 with 5 right: (1 - 1/4) / 0.4442617 = 1.69 and -0.56; of 5 with one right all train, 1.79 and -0.45."""
    further, first = [1.0] * 5 + [0.0] * 15, [1.0] + [0.0] * 4
    result = taught(config_of("eframe"), Step(reward=further + first, groups=[0] * 20 + [1] * 5, lengths=[1] * 25))
    assert result.mask_BT[:, 0].tolist() == [True] * 5 + [False] * 15 + [True] * 5
    assert result.advantage_BT[[0, 5, 20, 21], 0].tolist() == pytest.approx(
        [1.6882, -0.5627, 1.7888, -0.4472], abs=1e-4
    )
    strategy = Algorithm.of(config_of("eframe")).strategy
    (more,) = strategy.ask([answered(strategy.ask((), SETTING), [0, 0, 1, 0])], SETTING)
    assert (more.settings, more.behind_prompt) == ({"temperature": 1.2}, False)


def test_likely_tokens_do_not_train() -> None:
    result = taught(config_of("spo--segment-policy"), Step(reward=(1, 0), old_logprob=((-0.05, -0.2), (-0.2, -0.05))))
    assert result.mask_BT.tolist() == [[False, True], [True, False]]  # 0.951 and 0.819
