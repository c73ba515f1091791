"""Properties of every scale of rewards and of every combination of several.

Axes: R rewards, P prompts, G group size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.properties.harness import assert_near, assert_same, assert_unchanged, checks_as_tests
from tests.properties.registered import Case
from tests.properties.row_examples import GRID, junk

G = 12
"""Group size: a multiple of all parts of the shipped files."""


@dataclass(frozen=True, kw_only=True)
class Rewards:
    """Rewards of groups, as a scale, a combining scale or a combination takes them."""

    case: Case
    reward_RPG: Tensor
    weight_R: Tensor
    valid_RPG: Tensor

    def __call__(self) -> Tensor:
        """The (P, G) result of the function."""
        function = self.case.bind()
        if self.case.kind == "scale":
            return function(self.reward_RPG[0], self.valid_RPG[0])
        return function(self.reward_RPG, self.weight_R, self.valid_RPG)

    @property
    def counts_PG(self) -> Tensor:
        """Where a reward applies that takes part."""
        return (self.valid_RPG & (self.weight_R != 0)[:, None, None]).any(0)

    def taken(self, prompts: Tensor, members: Tensor) -> Rewards:
        """Some prompts and members."""
        reward_RPG, valid_RPG = (each[:, prompts][:, :, members] for each in (self.reward_RPG, self.valid_RPG))
        return replace(self, reward_RPG=reward_RPG, valid_RPG=valid_RPG)


def sample_case(case: Case, data: st.DataObject, *, equal: bool = False) -> Rewards:
    """Rewards of two or three kinds and prompts; a scale takes the first of them."""
    R, P = (
        (1 if case.kind == "scale" else data.draw(st.sampled_from([2, 3, 1]))),
        data.draw(st.sampled_from([3, 1, 2, 6])),
    )
    all_valid = data.draw(st.booleans())
    random = Random(data.draw(st.integers(0, 2**32)))
    values = [[_group(random, equal) for _ in range(P)] for _ in range(R)]
    chances = [1.0] if all_valid else [0.7, 0.7, 0.3, 0.0]
    valid = [[_flags(random, random.choice(chances)) for _ in range(P)] for _ in range(R)]
    return Rewards(
        case=case,
        reward_RPG=torch.tensor(values, dtype=torch.float64),
        weight_R=torch.tensor([random.choice([1.0, 0.5, 0.25, 0.0]) for _ in range(R - 1)] + [1.0]).double(),
        valid_RPG=torch.tensor(valid),
    )


def _group(random: Random, equal: bool) -> list[float]:
    kind = "equal" if equal else random.choice(["binary", "binary", "levels", "real", "equal"])
    if kind == "equal":
        return [random.choice([0.0, 1.0, 0.3])] * G
    values = {"binary": [0.0, 1.0], "levels": [0.0, 0.25, 0.5, 1.0], "real": [step / GRID for step in range(GRID + 1)]}
    return [random.choice(values[kind]) for _ in range(G)]


def _flags(random: Random, chance: float) -> list[bool]:
    return [random.random() < chance for _ in range(G)]


def every(number: int) -> Tensor:
    return torch.arange(number)


def result_has_the_shape_and_dtype_of_rewards(case: Case, data: st.DataObject) -> None:
    """A result of a group's shape and of the rewards' dtype, of numbers."""
    rewards = sample_case(case, data)
    for dtype in (torch.float32, torch.float64):
        result = replace(rewards, reward_RPG=rewards.reward_RPG.to(dtype))()
        assert (result.dtype, result.shape) == (dtype, rewards.reward_RPG.shape[1:])
        assert bool(result[rewards.counts_PG].isfinite().all())


def equal_rewards_give_numbers(case: Case, data: st.DataObject) -> None:
    """Numbers where all rewards of a group are equal."""
    rewards = sample_case(case, data, equal=True)
    assert bool(rewards()[rewards.counts_PG].isfinite().all())


def large_rewards_give_numbers(case: Case, data: st.DataObject) -> None:
    """Numbers in float64 of any rewards that are finite in float32."""
    rewards = sample_case(case, data)
    rewards = replace(rewards, reward_RPG=3e38 * (rewards.reward_RPG - 0.25))
    assert bool(rewards()[rewards.counts_PG].isfinite().all())


def rows_without_rewards_get_none(case: Case, data: st.DataObject) -> None:
    """An advantage of 0 where no reward applies."""
    rewards = sample_case(case, data)
    assert bool((rewards()[~rewards.counts_PG] == 0).all())


def rewards_that_do_not_apply_do_not_matter(case: Case, data: st.DataObject) -> None:
    """A reward that does not apply may be anything."""
    rewards = sample_case(case, data)
    spoiled = replace(rewards, reward_RPG=junk(rewards.reward_RPG, rewards.valid_RPG))
    assert_same(spoiled(), rewards(), rewards.counts_PG)


def rewards_of_weight_0_do_not_matter(case: Case, data: st.DataObject) -> None:
    """A reward of weight 0 may have any values."""
    rewards = sample_case(case, data)
    takes_part_R11 = (rewards.weight_R != 0)[:, None, None]
    other = replace(rewards, reward_RPG=rewards.reward_RPG.where(takes_part_R11, 7 - rewards.reward_RPG))
    assert_near(other(), rewards(), rewards.counts_PG, tolerance=1e-9)


def rewards_stay_and_calls_repeat(case: Case, data: st.DataObject) -> None:
    """No input is changed, and a second call gives the same."""
    rewards = sample_case(case, data)
    results: list[Tensor] = []
    inputs = [rewards.reward_RPG, rewards.weight_R, rewards.valid_RPG]
    assert_unchanged(inputs, lambda: results.append(rewards().clone()))
    assert_same(rewards(), results[0])


def order_of_prompts_does_not_matter(case: Case, data: st.DataObject) -> None:
    """Groups in another order have the same results."""
    rewards = sample_case(case, data)
    order = torch.tensor(data.draw(st.permutations(range(rewards.reward_RPG.shape[1]))))
    assert_near(rewards.taken(order, every(G))(), rewards()[order], tolerance=1e-6)


def order_of_members_does_not_matter(case: Case, data: st.DataObject) -> None:
    """Members of a group in another order have the same results."""
    rewards = sample_case(case, data)
    order = torch.tensor(data.draw(st.permutations(range(G))))
    result = rewards.taken(every(rewards.reward_RPG.shape[1]), order)()
    assert_near(result, rewards()[:, order], rewards.counts_PG[:, order], tolerance=1e-6)


def order_within_a_part_does_not_matter(case: Case, data: st.DataObject) -> None:
    """Where parts of a group are compared, the members of each may be in another order."""
    parts = case.numbers.get("parts") or len(case.numbers.get("baselines", ()))
    if not parts:
        return
    rewards, size = sample_case(case, data), G // parts
    orders = [torch.tensor(data.draw(st.permutations(range(size)))) + size * part for part in range(parts)]
    order = torch.cat(orders)
    result = rewards.taken(every(rewards.reward_RPG.shape[1]), order)()
    assert_near(result, rewards()[:, order], rewards.counts_PG[:, order], tolerance=1e-6)


def order_of_rewards_does_not_matter(case: Case, data: st.DataObject) -> None:
    """Several rewards in another order, with their weights, have the same result."""
    rewards = sample_case(case, data)
    order = torch.tensor(data.draw(st.permutations(range(len(rewards.weight_R)))))
    other = replace(
        rewards,
        reward_RPG=rewards.reward_RPG[order],
        valid_RPG=rewards.valid_RPG[order],
        weight_R=rewards.weight_R[order],
    )
    assert_near(other(), rewards(), rewards.counts_PG, tolerance=1e-6)


def other_groups_do_not_matter(case: Case, data: st.DataObject) -> None:
    """Each group alone has the result that it has among others."""
    rewards = sample_case(case, data)
    alone = [rewards.taken(torch.tensor([prompt]), every(G))() for prompt in range(rewards.reward_RPG.shape[1])]
    assert_near(torch.cat(alone), rewards(), rewards.counts_PG, tolerance=1e-6)


def members_that_are_missing_do_not_matter(case: Case, data: st.DataObject) -> None:
    """Smaller groups may be filled up with members to which no reward applies."""
    rewards = sample_case(case, data)
    valid_RPG = rewards.valid_RPG.clone()
    valid_RPG[:, :, G // 2 :] = False
    filled = replace(rewards, valid_RPG=valid_RPG)
    small = filled.taken(every(valid_RPG.shape[1]), every(G // 2))
    assert_near(filled()[:, : G // 2], small(), small.counts_PG, tolerance=1e-6)


def precision_of_rewards_does_not_matter(case: Case, data: st.DataObject) -> None:
    """float32 gives what float64 does, to rounding."""
    rewards = sample_case(case, data)
    single = replace(rewards, reward_RPG=rewards.reward_RPG.float())
    assert_near(single().double(), rewards(), rewards.counts_PG, tolerance=1e-3)


EVERY = [
    result_has_the_shape_and_dtype_of_rewards,
    equal_rewards_give_numbers,
    large_rewards_give_numbers,
    rewards_that_do_not_apply_do_not_matter,
    rewards_stay_and_calls_repeat,
    order_of_prompts_does_not_matter,
    order_of_members_does_not_matter,
    other_groups_do_not_matter,
    members_that_are_missing_do_not_matter,
    precision_of_rewards_does_not_matter,
]
CHECKS = {
    "scale": [*EVERY, rows_without_rewards_get_none, order_within_a_part_does_not_matter],
    "combining": [*EVERY, rows_without_rewards_get_none, order_of_rewards_does_not_matter],
    "combine": [*EVERY, order_of_rewards_does_not_matter, rewards_of_weight_0_do_not_matter],
}

test_properties_hold, test_exemption_is_needed = checks_as_tests(CHECKS)
