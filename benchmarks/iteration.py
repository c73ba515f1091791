"""A training iteration, part by part, as the trainer runs it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.rewards.images.pixels import Brightness

from benchmarks.model import mid_size_pipeline
from benchmarks.settings import Setting
from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import validated
from mmgrpo.maths.aggregates import count
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward, score
from mmgrpo.training.compute_advantages import SampleAdvantages, group_advantages
from mmgrpo.training.gradients import Gradient, accumulate_gradient
from mmgrpo.types import Plan, Prompt, Rollout

RUN = validated({})  # everything as the engine has it by default
PROMPTS = (Prompt("a red cat on two blue dogs"),)
MAX_GRAD_NORM = 1.0


def gap_of(gradient: Gradient) -> float:
    """The on-policy gap of rows that the current weights sampled."""
    assert gradient.max_gap is not None
    return gradient.max_gap


class Learner:
    """A policy with its optimizer, rewards and objective.

    Attributes:
        policy: the policy.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        prompts: Sequence[Prompt] = PROMPTS,
        rewards: Sequence[NamedReward] = (NamedReward("brightness", Brightness()),),
    ) -> None:
        """Makes the optimizer; nothing runs yet.

        Args:
            policy: on its device.
            prompts: of every rollout.
            rewards: of every sample.
        """
        self.policy = policy
        self._prompts, self._rewards, self._parameters = prompts, rewards, policy.trainable
        self._optimizer = torch.optim.AdamW(self._parameters, lr=1e-6, weight_decay=0.0, fused=True)
        self._objective = Algorithm.of(RUN).objective

    @classmethod
    def mid_size(cls, setting: Setting, *, hollow: bool = False) -> Learner:
        """A learner of the pipeline of mid size.

        Args:
            setting: what will be run; noise may be shared or not.
            hollow: with a denoiser that costs nothing.

        Returns:
            The learner.
        """
        pipeline = mid_size_pipeline(hollow=hollow).to(setting.device, setting.torch_dtype)
        return cls(DenoisingPolicy(pipeline, setting.policy))

    def draw(self, group_size: int, *, same_initial_noise: bool = False) -> Rollout:
        """The rollout, with the same random numbers each time."""
        plan = Plan(same_initial_noise=same_initial_noise)
        return self.policy.rollout(self._prompts, group_size=group_size, seed=0, plan=plan)

    def judge(self, rollout: Rollout) -> SampleAdvantages:
        """The rewards and the advantages."""
        return group_advantages(
            score(rollout.samples, self._rewards), rollout.prompt_index_B, Algorithm.of(RUN).advantages
        )

    def learn(self, rollout: Rollout, credit: SampleAdvantages) -> Gradient:
        """The gradient of the clipped objective, and the optimizer's step."""
        gradient = self.gradient(rollout, credit)
        self.apply_gradient()
        return gradient

    def gradient(self, rollout: Rollout, credit: SampleAdvantages) -> Gradient:
        """The gradient of the clipped objective."""
        return accumulate_gradient(
            self.policy,
            rollout,
            credit.advantage_B[:, None].expand(rollout.shape),
            self._objective,
            rows=range(len(rollout.samples)),
            totals=count(rollout.mask_BT),
        )

    def apply_gradient(self) -> None:
        """Clips, steps and clears."""
        torch.nn.utils.clip_grad_norm_(self._parameters, MAX_GRAD_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
