"""The weights of a rollout, and the rows of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.errors import DataError, ShapeError
from mmgrpo.types import Plan, Prompt, Rollout, Sample, Source
from mmgrpo.values import DRIFT, ENTROPY, Value, from_reference


def rollout_of(num_samples: int = 3) -> Rollout:
    grid = torch.arange(num_samples * 2).reshape(num_samples, 2)
    return Rollout(
        samples=[Sample(Prompt("x"), 0, member, text="a") for member in range(num_samples)],
        prompt_index_B=torch.zeros(num_samples, dtype=torch.long),
        old_logprob_BT=torch.zeros(num_samples, 2),
        mask_BT=torch.ones(num_samples, 2, dtype=torch.bool),
        state_BT=grid,
        segment_BT=grid,
        trace=None,
    )


def test_a_rollout_is_on_policy_as_long_as_the_weights_that_drew_it_stay() -> None:
    rollout = rollout_of()
    assert rollout.on_policy
    once, twice = rollout.aged(), rollout.aged().aged()
    assert (rollout.on_policy, once.on_policy, twice.on_policy) == (True, False, False)
    assert once.age_B is not None
    assert twice.age_B is not None
    assert (once.age_B.tolist(), twice.age_B.tolist()) == ([1, 1, 1], [2, 2, 2])
    assert rollout.age_B is None  # what it was made of is left as it was


@pytest.mark.parametrize(
    ("source", "age", "on_policy"),
    [
        ([Source.ON_POLICY] * 3, None, True),
        ([Source.ON_POLICY] * 3, [0, 0, 0], True),
        (None, [0, 0, 0], True),
        # one row that something else wrote, or that older weights drew, is enough
        ([Source.ON_POLICY, Source.DEMONSTRATION, Source.ON_POLICY], [0, 0, 0], False),
        ([Source.ON_POLICY, Source.ON_POLICY, Source.REPLAY], None, False),
        ([Source.ON_POLICY] * 3, [0, 3, 0], False),
    ],
)
def test_on_policy_follows_from_sources_and_ages(
    source: list[Source] | None, age: list[int] | None, on_policy: bool
) -> None:
    result = replace(
        rollout_of(),
        source_B=None if source is None else torch.tensor(source),
        age_B=None if age is None else torch.tensor(age),
    )
    assert result.on_policy is on_policy


def test_rows_keep_their_own_ages() -> None:
    result = replace(rollout_of(), age_B=torch.tensor([0, 4, 1])).aged()
    assert result.age_B is not None
    assert result.age_B.tolist() == [1, 5, 2]


def test_sources_ages_and_values_of_another_shape_raise() -> None:
    for name in ("source_B", "age_B"):
        for wrong in (torch.zeros(2, dtype=torch.long), torch.zeros(3)):
            with pytest.raises(ShapeError, match=f"{name} must be 3 integers"):
                replace(rollout_of(), **{name: wrong})  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ShapeError, match=r"values must be \(3, 2\) like old_logprob_BT, k3@reference are not"):
        replace(rollout_of(), values={ENTROPY: torch.zeros(3, 2), from_reference("k3"): torch.zeros(3, 1)})


def test_a_plan_samples_the_first_members_by_default() -> None:
    assert Plan().members_of(2, 3) == ((0, 1, 2), (0, 1, 2))
    assert Plan(members=((5,), (2, 0))).members_of(2, 3) == ((5,), (2, 0))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (((0, 1), ()), "at least one member of each prompt"),
        (((0, 1, 0),), "each of them once"),
        (((0, -1),), "by number, from 0"),
    ],
)
def test_invalid_members_raise(members: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Plan(members=members)


def test_a_plan_of_other_prompts_raises() -> None:
    with pytest.raises(DataError, match=r"Plan\.members is for 1 prompts.*got 2"):
        Plan(members=((0, 1),)).members_of(2, 2)
    with pytest.raises(DataError, match="for 2 prompts but prompt_ids for 1"):
        Plan(members=((0,), (1,)), prompt_ids=(7,))
    with pytest.raises(DataError, match="a group of at least one member, got 0"):
        Plan().members_of(2, 0)


def test_values_go_by_their_name_and_their_view() -> None:
    assert [str(v) for v in (ENTROPY, DRIFT, from_reference("k3"), Value("k1", "ema"))] == [
        "entropy",
        "gaussian@old",
        "k3@reference",
        "k1@ema",
    ]
    assert Value("gaussian", "old") == DRIFT != from_reference("gaussian")


def test_decisions_have_one_count_and_one_order() -> None:
    rollout = rollout_of()
    assert rollout.num_decisions(0) == 2
    assert not rollout.tokens_match_sample(0)  # its decisions are no tokens
    short_BT = torch.tensor([[True, True], [True, False], [True, True]])
    counts_B = torch.tensor([2, 1, 2])
    with pytest.raises(ShapeError, match="beyond num_decisions_B"):
        replace(rollout, num_decisions_B=counts_B)
    with pytest.raises(ShapeError, match="no token at a decision"):
        replace(rollout, token_BT=torch.tensor([[5, 6], [5, -1], [6, 5]]))
    with pytest.raises(ShapeError, match="token_BT must be"):
        replace(rollout, token_BT=torch.zeros(3, 6, dtype=torch.long))
    with pytest.raises(ShapeError, match="record of each of 3 rows"):
        replace(rollout, record_B=[{}])
    samples = [replace(sample, tokens=[5, 6]) for sample in rollout.samples]
    tokens = replace(
        rollout,
        samples=samples,
        mask_BT=short_BT,
        num_decisions_B=counts_B,
        token_BT=torch.tensor([[5, 6], [5, -1], [6, 5]]),
        record_B=[{"order": row} for row in range(3)],
    )
    assert [tokens.tokens_match_sample(row) for row in range(3)] == [True, False, False]
    off_policy = tokens.off_policy_sample(1, Source.REPLAY)
    assert (off_policy.old_logprob_T.shape, off_policy.record) == ((1,), {"order": 1})  # pyrefly: ignore[missing-attribute]
