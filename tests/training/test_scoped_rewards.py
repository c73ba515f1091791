"""Rewards of parts of samples as advantages of their decisions: tokens and denoising steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError, PolicyError, RewardError
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.compute_advantages import Advantages, compute_advantages
from mmgrpo.training.pending_rewards import PendingRewards
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.types import OffPolicySample, Rollout, Sample, Scope, Score
from tests.policies import tiny_language, tiny_policies
from tests.policies.letters import letters

TEXT = "red cat\nblue\nno dog"  # tokens: red, " cat", newline | blue, newline | no, " dog", end
LINES = ((0, 8), (8, 13), (13, 19))


def of_lines(values: Sequence[Sequence[float | None]], total: float = 0.0) -> Any:
    """A reward that gives the lines of the text, or the steps, of each member these values."""

    def reward(samples: Sequence[Sample]) -> list[Score]:
        return [
            Score(total, scopes=[Scope(*line, value) for line, value in zip(LINES, values[sample.member], strict=True)])
            for sample in samples
        ]

    return reward


def written(policy: LanguagePolicy, members: int = 4, text: str = TEXT) -> Rollout:
    prompt, _ = tiny_language.prompts_of("llama")
    return policy.read(
        [OffPolicySample(sample=Sample(prompt, 0, member, text=text)) for member in range(members)], seed=0
    )


def credit(
    policy: Policy, rollout: Rollout, rewards: Sequence[NamedReward], *estimators: Any, **config: Any
) -> Advantages:
    """One step's credit, as the trainer forms it."""
    scores = Scorer(rewards)(rollout.samples)
    keep_B = torch.ones(len(rollout.samples), dtype=torch.bool)
    verdict = Rewards(
        scores=scores,
        counting=shape_scores(scores, rewards, 0)[0],
        group_N=rollout.prompt_index_B,
        root_N=rollout.prompt_index_B,
        keep_N=keep_B,
        partial_N=torch.zeros_like(keep_B),
        local_rows=slice(0, len(keep_B)),
        metrics={},
    )
    scored = PendingRewards(rounds=(), rows=range(len(keep_B)))
    experience = Rollouts(rollout=rollout, keep_B=keep_B, scored=scored, requests=(), num_rounds=1)
    algorithm = Algorithm.of(RunConfig.model_validate({"advantage": {"estimators": list(estimators), **config}}))
    return compute_advantages(policy, experience, verdict, algorithm, job=Job(Accelerator(cpu=True)))


def advantage(*args: Any, **config: Any) -> Tensor:
    return credit(*args, **config).advantage_BT


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    return tiny_language.policy_of("llama")


def test_a_reward_of_a_span_moves_its_columns_alone(policy: LanguagePolicy) -> None:
    # the first line is 1, 0, 0, 0 over the group: mean 0.25, sample std 0.5; the last 0, 0, 1, 1: 0.5, 0.577350
    perception = of_lines([[float(member == 0), None, None] for member in range(4)])
    reasoning = of_lines([[None, None, float(member > 1)] for member in range(4)])
    rewards = [NamedReward("perception", perception, weight=0.0), NamedReward("reasoning", reasoning, weight=0.0)]
    rollout = written(policy)
    perceived, thought = ({"name": "scoped", "reward": name, "eps": 0.0} for name in ("perception", "reasoning"))
    perception_BT = advantage(policy, rollout, rewards, perceived)
    expected_B3 = torch.tensor([[1.5], [-0.5], [-0.5], [-0.5]]).expand(4, 3)
    torch.testing.assert_close(perception_BT, torch.cat([expected_B3, torch.zeros(4, 5)], dim=1))
    both_BT = advantage(policy, rollout, rewards, perceived, thought)
    z = 0.5 / math.sqrt(1 / 3)
    last_B3 = torch.tensor([[-z], [-z], [z], [z]]).expand(4, 3)
    torch.testing.assert_close(both_BT, torch.cat([expected_B3, torch.zeros(4, 2), last_B3], dim=1))


def test_one_scope_over_the_complete_text_is_the_plain_reward(policy: LanguagePolicy) -> None:
    values = [1.0, 0.0, 0.5, 0.25]

    def plain(samples: Sequence[Sample]) -> list[float]:
        return [values[sample.member] for sample in samples]

    def single_scope(samples: Sequence[Sample]) -> list[Score]:
        return [Score(0.0, scopes=[Scope(0, len(s.text or ""), values[s.member])]) for s in samples]

    rollout = written(policy)
    parts_BT = advantage(
        policy, rollout, [NamedReward("r", single_scope, weight=0.0)], {"name": "scoped", "reward": "r"}, scale="group"
    )
    assert torch.equal(parts_BT, advantage(policy, rollout, [NamedReward("r", plain)], scale="group"))


def test_returns_to_go_are_on_the_right_tokens(policy: LanguagePolicy) -> None:
    # lines of 1, 0, 1 give 2, 1, 1; lines of 0, -, 0.5 give 0.5 but nothing where nothing was said
    reward = NamedReward("steps", of_lines([[1.0, 0.0, 1.0], [0.0, None, 0.5]]), weight=0.0)
    result_BT = advantage(policy, written(policy, 2), [reward], {"name": "process_returns", "reward": "steps"})
    assert result_BT.tolist() == [[2, 2, 2, 1, 1, 1, 1, 1], [0.5, 0.5, 0.5, 0, 0, 0.5, 0.5, 0.5]]


def test_returns_to_go_of_denoising_steps() -> None:
    drawing = tiny_policies.policy_of("sd3", call={"num_inference_steps": 4})
    rollout = drawing.rollout(tiny_policies.prompts_of("sd3")[:1], group_size=2, seed=0)
    T = rollout.shape[1]

    def reward(samples: Sequence[Sample]) -> list[Score]:
        return [Score(0.0, scopes=[Scope(t, t + 1, float(t + s.member)) for t in range(T)]) for s in samples]

    result_BT = advantage(
        drawing, rollout, [NamedReward("steps", reward, weight=0.0)], {"name": "process_returns", "reward": "steps"}
    )
    # the sum of t, and of t + 1, from each step to the last
    assert result_BT.tolist() == [
        [float(sum(step + member for step in range(t, T))) for t in range(T)] for member in (0, 1)
    ]


def test_a_sample_with_only_scored_parts_trains(policy: LanguagePolicy) -> None:
    reward = NamedReward("steps", of_lines([[1.0, 0.0, 1.0], [None] * 3]), weight=0.0)
    estimator = {"name": "process_returns", "reward": "steps"}
    batch = credit(policy, written(policy, 2), [reward], estimator, zero_variance_groups="drop")
    assert batch.rollout.mask_BT.any(1).tolist() == [True, False]
    assert batch.keep_N.tolist() == [True, False]
    assert batch.zero_std_frac == 0.0  # its parts have a gradient
    unread = credit(policy, written(policy, 2), [reward])
    assert not unread.rollout.mask_BT.any()
    assert unread.zero_std_frac == 1.0
    nothing = NamedReward("steps", of_lines([[0.0, 0.0, 0.0]] * 2), weight=0.0)
    assert credit(policy, written(policy, 2), [nothing], estimator).zero_std_frac == 1.0


def test_a_failure_of_a_part_is_a_failure_and_masks_that_part(policy: LanguagePolicy) -> None:
    reward = NamedReward("steps", of_lines([[1.0, math.nan, 1.0]] + [[0.0] * 3] * 3), weight=0.0)
    rollout = written(policy)
    assert Scorer([reward])(rollout.samples).failures == {"steps": 1}
    result_BT = advantage(policy, rollout, [reward], {"name": "process_returns", "reward": "steps"})
    assert result_BT[0].tolist() == [2, 2, 2, 0, 0, 1, 1, 1]


def test_a_step_without_applicable_rewards_logs_no_values(policy: LanguagePolicy) -> None:
    plain = NamedReward("plain", lambda samples: [float(sample.member) for sample in samples])
    absent = NamedReward("steps", lambda samples: [None] * len(samples), weight=0.0)
    rollout, estimator = written(policy), {"name": "scoped", "reward": "steps"}
    result_BT = advantage(policy, rollout, [plain, absent], estimator)
    assert torch.equal(result_BT, advantage(policy, rollout, [plain, absent]))


def test_invalid_settings_raise(policy: LanguagePolicy) -> None:
    rollout = written(policy)
    plain = [NamedReward("plain", lambda samples: [0.0] * len(samples))]
    with pytest.raises(ConfigError, match="'plain', which gives numbers alone"):
        advantage(policy, rollout, plain, {"name": "scoped", "reward": "plain"})
    with pytest.raises(ConfigError, match="'steps', which is none of: plain"):
        advantage(policy, rollout, plain, {"name": "scoped", "reward": "steps"})
    beyond = [NamedReward("steps", of_lines([[1.0] * 3] * 4))]
    with pytest.raises(RewardError, match="'steps' speaks of 13 to 19 of a sample of 3 characters"):
        advantage(policy, written(policy, text="red"), beyond, {"name": "scoped", "reward": "steps"})
    mute = letters()
    spoken = mute.rollout([tiny_language.prompts_of("llama")[0]], group_size=2, seed=0)

    def unscoped(samples: Sequence[Sample]) -> list[Score]:
        return [Score(0.0, scopes=[Scope(0, 1, 1.0)]) for _ in samples]

    with pytest.raises(PolicyError, match=r"mmgrpo\.policy\.SupportsTextOffsets"):
        advantage(mute, spoken, [NamedReward("steps", unscoped)], {"name": "scoped", "reward": "steps"})
