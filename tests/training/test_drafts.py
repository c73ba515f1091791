"""Rows that begin like those of an earlier step, as far as the current policy accepts them."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Setting, fixed
from mmgrpo.maths.strategies.draft_prefix import accepted
from mmgrpo.memory import Memory, ReplayRow
from mmgrpo.methods.strategies.spec_rl import with_drafts
from mmgrpo.types import Rollout
from tests.policies.contract import largest_difference, values
from tests.policies.tiny_language import measured_policy_of
from tests.training.test_rounds import even_prompts_differ, gathered


def test_a_draft_is_kept_up_to_its_first_refusal() -> None:
    """Spec-RL's spec_cut_with_knobs: log u <= scale (new - old - bias), there with scale 1 and minus its bias."""
    now_T, uniform_T = torch.tensor([-1.0, -1.0 - math.log(2), -1.0]), torch.tensor([0.9, 0.6, 0.9])
    same_T, halved_T = torch.full((3,), -1.0), torch.tensor([0.9, 0.4, 0.9])
    assert accepted(same_T, same_T, uniform_T, lenience=0.0) == 3
    assert accepted(now_T, same_T, uniform_T, lenience=0.0) == 1  # 0.6 > 1/2
    assert accepted(now_T, same_T, halved_T, lenience=0.0) == 3
    assert accepted(now_T, same_T, uniform_T, lenience=0.5) == 3  # 0.6 <= e^0.5 / 2 = 0.82
    assert accepted(same_T - 9, same_T, uniform_T, lenience=0.5) == 0


def drafts(rollout: Rollout, surer: float) -> Memory:
    """The rows, each of the other member, with higher log-probabilities of the third token."""
    rows = []
    for row, sample in reversed(list(enumerate(rollout.samples))):
        logprob_T = rollout.old_logprob_BT[row, : len(sample.tokens or ())].clone()
        logprob_T[2:3] += surer
        rows.append(
            ReplayRow(
                key=str(sample.group),
                text=sample.text,
                tokens=torch.tensor(list(sample.tokens or ())),
                finished=sample.finished,
                old_logprob_T=logprob_T,
                reward=0.0,
                advantage=0.0,
                step=3,
            )
        )
    return Memory().with_replay(rows, per_prompt=4, total=9)


@pytest.mark.parametrize("settings", [{}, {"top_k": 9}], ids=["whole", "top_k"])
def test_accepted_prefixes_count_as_sampled_now(settings: dict[str, int]) -> None:
    policy = measured_policy_of("llama", max_new_tokens=6, **settings)
    plain = gathered(fixed(), even_prompts_differ, policy=policy)
    tokens = {(sample.group, sample.member): list(sample.tokens or ()) for sample in plain.samples}
    for strategy, surer, same in (
        (with_drafts(), 0.0, 6),
        (with_drafts(lenience=99.0), 50.0, 6),
        (with_drafts(), 50.0, 2),
    ):
        rollouts = gathered(strategy, even_prompts_differ, policy=policy, memory=drafts(plain.rollout, surer))
        assert rollouts.rollout.on_policy
        assert (
            largest_difference(
                values(policy, rollouts.rollout), rollouts.rollout.old_logprob_BT, rollouts.rollout.mask_BT
            )
            < 2e-6
        )
        assert sorted(tokens) == sorted((sample.group, sample.member) for sample in rollouts.samples)
        for row, sample in enumerate(rollouts.samples):
            draft, now = tokens[sample.group, 1 - sample.member], list(sample.tokens or ())
            assert now[:same] == draft[:same]
            assert rollouts.rollout.mask_BT[row, : len(now)].all()
            assert len(now) <= 6
        cut = sum(len(sequence) > same for sequence in tokens.values())
        assert rollouts.rollout.num_forwards == 4 + cut
    assert cut
    assert all(list(sample.tokens or ()) not in tokens.values() for sample in rollouts.samples)


def test_members_without_a_draft_are_sampled_from_the_prompt() -> None:
    row = ReplayRow(key="0", reward=0.0, advantage=0.0, step=1)
    memory = Memory().with_replay([row], per_prompt=4, total=9)
    first, second, third = with_drafts(lenience=0.5).ask(
        (), Setting(step=2, num_prompts=2, group_size=2, memory=memory)
    )
    assert (first.members, list(first.off_policy_rows), first.lenience) == ((0,), [row], 0.5)
    assert (second.prompt, second.members, second.off_policy_rows) == (0, (1,), ())
    assert (third.prompt, third.members, third.off_policy_rows) == (1, (0, 1), ())
    with pytest.raises(ConfigError, match="log-probabilities"):
        gathered(with_drafts(), even_prompts_differ, memory=memory)
    with pytest.raises(ConfigError, match="a row or more"):
        with_drafts(total=0)
