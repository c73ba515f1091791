"""AR3PO: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.algorithm import Algorithm
from mmgrpo.maths.strategies import Round, Setting
from mmgrpo.memory import Memory, ReplayRow
from tests.configs.method_rounds import ExpectedRounds, assert_rounds
from tests.configs.method_steps import config_of
from tests.maths.round_rows import round_of

# stages of two until one is right
ROUNDS = ExpectedRounds(
    rewards=([0, 0, 1, 0], [0, 0], [0, 1]),
    requests=([(0, 2, 2, None)], [(0, 4, 2, None)]),
    trained=([1, 1, 1, 1], [1, 1], [1, 1]),
)


def test_rounds_of_the_method() -> None:
    assert_rounds("ar3po", ROUNDS)


def test_right_answer_of_an_earlier_step_joins_an_unsolved_group() -> None:
    strategy = Algorithm.of(config_of("ar3po")).strategy
    rows = [
        ReplayRow(key="0", text=text, reward=reward, advantage=0.0, step=0) for text, reward in (("a", 1), ("b", 0))
    ]
    setting = Setting(step=1, num_prompts=1, group_size=2, memory=Memory().with_replay(rows, per_prompt=9, total=9))
    rounds: list[Round] = []
    for _ in range(4):
        rounds.append(round_of(strategy.ask(rounds, setting), [0, 0]))
    (request,) = strategy.ask(rounds, setting)
    assert (request.members, request.off_policy_rows) == ((8,), [rows[0]])
    assert strategy.ask([*rounds, round_of([request], [1])], setting) == ()
