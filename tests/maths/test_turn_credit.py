"""Credit by turns: returns, states and their comparison by hand, and numbers of the authors' code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.feedback import Feedback, SampleColumn, Scoped, Turns
from mmgrpo.methods.environments.gigpo import anchor_states, returns_to_go, states
from tests.maths.feedback_rows import feedback_of

Exchange = Sequence[tuple[str | None, float | None]]
"""The state of each turn, and what the environment gave for it."""


def turns_of(rows: Sequence[Exchange]) -> Turns:
    """Turns of two decisions each, the second of which the environment wrote."""
    S = max(map(len, rows))
    scope_BT = torch.full((len(rows), 2 * S), -1)
    for row, exchange in enumerate(rows):
        scope_BT[row, 0 : 2 * len(exchange) : 2] = torch.arange(len(exchange))
    reward_rows = [[reward for _, reward in exchange] + [None] * (S - len(exchange)) for exchange in rows]
    return Turns(
        rewards=Scoped(
            scope_BT=scope_BT,
            value_BS=torch.tensor([[math.nan if reward is None else reward for reward in row] for row in reward_rows]),
            valid_BS=torch.tensor([[reward is not None for reward in row] for row in reward_rows]),
        ),
        keys_B_S=[[key for key, _ in exchange] for exchange in rows],
    )


def feedback_for(rows: Sequence[Exchange], groups: Sequence[int] | None = None, valid: Sequence[bool] = ()) -> Feedback:
    turns = turns_of(rows)
    feedback = feedback_of(
        [0.0] * len(rows),
        groups or [0] * len(rows),
        mask=(turns.rewards.scope_BT >= 0).int().tolist(),
        valid=valid or [True] * len(rows),
    )
    return replace(feedback, exchanges=turns)


def credit(feedback: Feedback, **numbers: object) -> list[list[float]]:
    """What each turn is given."""
    zero_BT = torch.zeros(feedback.mask_BT.shape)
    result_BT = anchor_states(**numbers).assign(feedback, zero_BT)  # type: ignore[arg-type]
    assert not result_BT[~feedback.mask_BT].any()
    return [row[mask_T].tolist() for row, mask_T in zip(result_BT, feedback.mask_BT, strict=True)]


def close(advantage_BT: list[list[float]], expected: Sequence[Sequence[float]], tolerance: float = 2e-6) -> bool:
    return [len(row) for row in advantage_BT] == [len(row) for row in expected] and all(
        ours == pytest.approx(theirs, abs=tolerance) for ours, theirs in zip(advantage_BT, expected, strict=True)
    )


def test_returns_by_hand() -> None:
    # 10 at the end; 1 now and 2 two turns on; nothing at or after the last turn
    turns = turns_of(
        [[("a", 0.0), ("b", 0.0), ("c", 10.0)], [("a", 1.0), ("a", None), ("a", 2.0)], [("a", 1.0), ("b", None)]]
    )
    result_BS = returns_to_go(turns.rewards, discount=0.5)
    assert result_BS[:2].tolist() == [[2.5, 5.0, 10.0], [1.5, 1.0, 2.0]]
    assert result_BS[2, 0] == 1.0
    assert result_BS[2, 1:].isnan().all()


def test_states_are_those_of_a_group() -> None:
    keys = [["a", "b", "a"], ["b", None, None], ["a", "c"]]
    # numbered by the turn that met them first; of another group, and unknown ones, are others
    assert states(keys, [0, 0, 1], S=3).tolist() == [[0, 1, 0], [1, 4, 5], [6, 7, 8]]
    # "desk 1" and "desk 2" have 5 of 6 characters in common: 10 / 12
    near = [["desk 1", "desk 2", "door"], ["desk 2", "desk 1", "door"]]
    assert states(near, [0, 0], S=3, similar=0.8).tolist() == [[0, 0, 2], [0, 0, 2]]
    assert states(near, [0, 0], S=3, similar=0.9).tolist() == [[0, 1, 2], [1, 0, 2]]


def test_a_turn_is_compared_with_those_of_its_state() -> None:
    # at a the returns are 1, 0, so +-0.5 of deviation 0.707107; b was met once
    rows = [[("a", 1.0)], [("a", 0.0), ("b", 0.0)]]
    half = 0.5**0.5
    assert close(credit(feedback_for(rows), eps=0.0), [[half], [-half, 0.0]])
    assert credit(feedback_for(rows), normalize=False) == [[0.5], [-0.5, 0.0]]
    assert credit(feedback_for(rows), normalize=False, weight=3.0) == [[1.5], [-1.5, 0.0]]
    assert credit(feedback_for(rows, [0, 1]), normalize=False) == [[0.0], [0.0, 0.0]]  # states are those of a group
    advantage_BT = torch.randn(2, 4)
    assert torch.equal(anchor_states(weight=0.0).assign(feedback_for(rows), advantage_BT), advantage_BT)


def test_turns_without_a_return_are_not_compared() -> None:
    # at a 1, 0 and an unanswered turn; a row without a reward is left out, whatever its turns have
    rows = [[("a", 1.0)], [("a", 0.0)], [("a", None)], [("a", 50.0)], [(None, 1.0)]]
    advantage_BT = credit(feedback_for(rows, valid=[True, True, True, False, True]), normalize=False)
    assert advantage_BT == [[0.5], [-0.5], [0.0], [0.0], [0.0]]
    equal = [[("a", 0.1)]] * 3
    assert credit(feedback_for(equal), eps=0.0) == [[0.0]] * 3


def test_a_reward_of_the_sample_is_that_of_its_last_turn() -> None:
    # right after a call: 0.9, 1; right at once: 1; wrong after a call: 0, 0. At the question 0.9, 1, 0: mean 19/30
    rows = [[("ask", None), ("7", None)], [("ask", None)], [("ask", None), ("7", None)], [("ask", None), ("8", None)]]
    feedback = feedback_for(rows)
    right = SampleColumn(value_B=torch.tensor([1.0, 1, 0, 9]).double(), valid_B=torch.tensor([True, True, True, False]))
    feedback = replace(feedback, rewards={"right": right})
    advantage_BT = credit(feedback, reward="right", discount=0.9, normalize=False)
    assert close(advantage_BT, [[0.9 - 19 / 30, 0.5], [1 - 19 / 30], [-19 / 30, -0.5], [0.0, 0.0]])
    assert credit(feedback, discount=0.9) == [[0.0, 0.0], [0.0], [0.0, 0.0], [0.0, 0.0]]  # the environment gave nothing
    with pytest.raises(ConfigError, match="'wrong'.*there are: right"):  # noqa: RUF043
        credit(feedback, reward="wrong")


ROWS: list[Exchange] = [
    [("desk 1", 1.0), ("room", 0.0), ("room", -0.1)],
    [("room", 10.0), ("desk 1", 0.0), ("room", 1.0), ("bed", 0.0)],
    [("room", 10.0), ("bed", 0.0)],
    [("room", 0.0), ("room", 10.0), ("bed", 0.0), ("desk 1", 0.0)],
    [("desk 1", -0.1), ("bed", 0.0), ("room", 10.0), ("desk 2", 10.0)],
    [("desk 1", 0.0), ("desk 1", -0.1), ("room", 10.0), ("room", 10.0)],
]
AUTHORS: dict[tuple[bool, float], list[list[float]]] = {
    (True, 1.0): [
        [-0.707083, -0.7916, -0.792492],
        [1.170672, 0.707081, -0.59622, 0.0],
        [1.00964, 0.0],
        [-0.792664, -0.698299, -0.707107, -1.498209],
        [0.464584, 0.707107, 1.094632, 0.0],
        [0.465145, 0.56848, 1.094632, -0.698299],
    ],
    (False, 1.0): [
        [-0.020125, -4.4365, -4.4415],
        [6.561, 0.020125, -3.3415, 0.0],
        [5.6585, 0.0],
        [-4.2, -3.7, -9.2625, -13.356874],
        [4.141874, 9.2625, 5.8, 0.0],
        [4.146875, 5.068125, 5.8, -3.7],
    ],
    (True, 0.8): [
        [-0.707083, -0.7916, -0.792492],
        [1.170672, 0.707081, -0.59622, 0.0],
        [1.00964, 0.0],
        [-0.792664, -0.698299, -0.707107, -1.612821],
        [0.611952, 0.707107, 1.094632, -0.341432],
        [0.612587, 0.729714, 1.094632, -0.698299],
    ],
}
"""Step advantages of ``gigpo/core_gigpo.py`` for the rows, gamma 0.95, float32, by normalization and threshold."""


@pytest.mark.parametrize(("normalize", "similar"), AUTHORS)
def test_numbers_of_the_authors_code(normalize: bool, similar: float) -> None:
    advantage_BT = credit(feedback_for(ROWS, [0, 0, 0, 1, 1, 1]), normalize=normalize, similar=similar)
    assert close(advantage_BT, AUTHORS[normalize, similar], 3e-6)


def test_invalid_numbers_raise() -> None:
    with pytest.raises(ConfigError, match=r"got 1\.5 and 1\.0"):
        anchor_states(discount=1.5)
    with pytest.raises(ConfigError, match=r"got 0\.95 and 0\.0"):
        anchor_states(similar=0.0)
    with pytest.raises(ConfigError, match=r"set rollout\.environment"):
        anchor_states().assign(feedback_of([1.0], [0]), torch.zeros(1, 3))
    with pytest.raises(ShapeError, match="keys of 1 samples, at most 2 each"):
        replace(turns_of([[("a", 1.0), ("b", 1.0)]]), keys_B_S=[["a", "b", "c"]])
