"""The section ``advantage.critic``: a value of states, computed for a step's rows and trained in the same updates.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from torch import nn

from mmgrpo.config import RunConfig
from mmgrpo.differentiating import backward
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.maths.critics import CriticLoss, CriticRows
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.policy import Critic
from mmgrpo.training.auxiliary import ExtraGradient
from mmgrpo.training.build import build_optimizer
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.gradients import Gradient
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.training.streaming import cells, evaluations, index_of
from mmgrpo.training.views import override_prompts
from mmgrpo.types import Evaluation, Rollout
from mmgrpo.values import VALUE


@torch.no_grad()
def with_critic_values(critic: Critic, rollout: Rollout) -> Rollout:
    """The rows as a critic finds them, with the value of every state that a decision was taken in, at any step."""
    rows = override_prompts(critic, rollout, [sample.prompt for sample in rollout.samples])
    if rows.earlier_BT is not None:
        rows = replace(rows, mask_BT=rows.mask_BT | rows.earlier_BT)
    value_BT, num_forwards = torch.zeros(rollout.shape), 0
    for part in evaluations(critic, rows, (VALUE,)):
        part_value_BT = part.values[VALUE].float().cpu()
        value_BT[index_of(part)] = part_value_BT.where(cells(rows.mask_BT, part), 0.0)
        num_forwards += part.num_forwards
    return replace(rows, values={VALUE: value_BT}, num_forwards=num_forwards)


@final
class CriticTrainer:
    """A critic, its values of a step's rows at their rollout, and its optimizer.

    Attributes:
        parameters: its trained parameters.
        metrics: of its last update, over all processes.
    """

    def __init__(self, config: RunConfig, critic: Critic, loss: CriticLoss, job: Job) -> None:
        """Creates the optimizer.

        Args:
            config: the run's, with a section ``advantage.critic``.
            critic: its weights on the device where it runs.
            loss: its loss.
            job: the processes.

        Raises:
            ConfigError: the policy would have no step.
        """
        section = config.advantage.critic
        assert section is not None
        if section.warmup_steps >= config.steps > 0:
            raise ConfigError(
                f"advantage.critic.warmup_steps={section.warmup_steps} leaves the policy none of steps={config.steps}: "
                "lower the first, or raise the second"
            )
        self._config, self._critic, self._loss, self._job = section, critic, loss, job
        self.parameters: Sequence[nn.Parameter] = critic.trainable
        self.optimizer = build_optimizer(
            self.parameters,
            section.optimizer.over(config.update.optimizer),
            num_updates=config.steps * config.update.num_updates,
            job=job,
        )
        self.metrics: Mapping[str, float] = {}
        self._rows: Rollout | None = None
        self._learns, self._num_terms = True, 0

    def is_warming_up(self, step: int) -> bool:
        """Whether the policy is frozen at a step, counted from 0."""
        return step < self._config.warmup_steps

    def with_values(self, rollouts: Rollouts) -> Rollouts:
        """The rows with the value of the state before every decision, under the current weights."""
        rollout, self._rows = rollouts.rollout, with_critic_values(self._critic, rollouts.rollout)
        values, num_forwards = {**rollout.values, **self._rows.values}, rollout.num_forwards + self._rows.num_forwards
        return replace(rollouts, rollout=replace(rollout, values=values, num_forwards=num_forwards))

    def extra_gradient(
        self, advantages: Advantages, policy: ExtraGradient | None, *, step: int
    ) -> ExtraGradient | None:
        """The addition to the updates of a step: the gradient of the critic's loss, on the critic's weights.

        Args:
            advantages: of the rows that were valued last.
            policy: the addition to the policy's gradient.
            step: of the run, from 0; while the critic is frozen, only that is added.

        Returns:
            For ``update_policy``; ``apply`` then moves the weights.
        """
        assert self._rows is not None
        self._learns = self._config.freeze_after is None or step < self._config.freeze_after
        if not self._learns:
            self.metrics = {}
            return policy
        scored_B = advantages.scored_N[advantages.local_rows]
        rows = CriticRows(
            old_BT=self._rows.values[VALUE],
            reward_B=advantages.reward_B.where(scored_B, 0.0),
            mask_BT=self._rows.mask_BT,
            segment_BT=self._rows.segment_BT,
        )
        trained_BT = advantages.rollout.mask_BT & scored_B[:, None]
        if self._rows.earlier_BT is not None:
            trained_BT = trained_BT | (self._rows.earlier_BT & trained_BT.any(1, keepdim=True))
        trained = self._rows.keep(trained_BT)
        return partial(self._accumulate, trained, rows, policy)

    def apply(self) -> None:
        """One update of the weights, if they train, and the update has a row with a reward."""
        if not self._learns or not self._num_terms:
            return
        applied = self.optimizer.apply()
        metrics = {"grad_norm": applied.grad_norm, "lr": applied.lr, "skipped": float(applied.skipped)}
        self.metrics = {**self.metrics, **{f"critic/{name}": number for name, number in metrics.items()}}
        self.optimizer.require_progress()

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimizer. Raises NonFiniteError for weights that are infinite."""
        self.optimizer.require_finite_weights()
        weights = [parameter.detach().cpu() for parameter in self.parameters]
        return {"weights": weights, "optimizer": self.optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any], *, num_updates: int | None = None) -> None:
        """Restores ``state_dict``. Raises ValueError for the weights of another critic."""
        for parameter, stored in zip(self.parameters, state["weights"], strict=True):
            if parameter.shape != stored.shape:
                raise ValueError(f"a critic's weights are {tuple(stored.shape)} where {tuple(parameter.shape)} fit")
            parameter.copy_(stored)
        self.optimizer.load_state_dict(state["optimizer"], num_updates=num_updates)

    def _accumulate(
        self, rollout: Rollout, all_rows: CriticRows, policy: ExtraGradient | None, number: int, rows: Sequence[int]
    ) -> Gradient:
        """Adds the gradient of the mean over the terms of the loss in the update on all processes."""
        in_update_B = torch.zeros(len(all_rows.reward_B), dtype=torch.bool)
        in_update_B[list(rows)] = True
        term_BT = self._loss.terms(all_rows)
        rollout = rollout.keep(in_update_B[:, None] & term_BT)
        self._num_terms = sum(self._job.gather(int(rollout.mask_BT.sum())))
        if not self._num_terms:
            self.metrics = {}
            return Gradient(Diagnostics(), None, 0) if policy is None else policy(number, rows)
        self.optimizer.clear()
        num_forwards, sums = 0, torch.zeros(2, dtype=torch.float64)
        with closing(evaluations(self._critic, rollout, (VALUE,))) as parts:
            for part in parts:
                value_BT = part.values[VALUE]
                keep_BT = cells(rollout.mask_BT, part).to(value_BT.device)
                loss_BT = self._loss.of(value_BT, _rows_of(all_rows, part)).where(keep_BT, 0.0)
                with self.optimizer.accumulating():
                    backward(loss_BT.sum() / self._num_terms)
                masked_values = (loss_BT.detach(), value_BT.detach().where(keep_BT, 0.0))
                sums += torch.stack([matrix_BT.double().sum().cpu() for matrix_BT in masked_values])
                num_forwards += part.num_forwards
        loss, mean = (torch.stack(self._job.gather(sums)).sum(0) / self._num_terms).tolist()
        self.metrics = {"critic/loss": loss, "critic/value_mean": mean}
        gradient = Gradient(Diagnostics(), None, num_forwards)
        return gradient if policy is None else gradient.merge(policy(number, rows))


def _rows_of(rows: CriticRows, part: Evaluation) -> CriticRows:
    """The rows of an evaluation, on its device."""
    device = part.values[VALUE].device
    reward_B = rows.reward_B if part.rows is None else rows.reward_B[part.rows.cpu()]
    old_BT, mask_BT, segment_BT = (
        cells(matrix_BT, part).to(device) for matrix_BT in (rows.old_BT, rows.mask_BT, rows.segment_BT)
    )
    return CriticRows(old_BT=old_BT, reward_B=reward_B.to(device), mask_BT=mask_BT, segment_BT=segment_BT)
