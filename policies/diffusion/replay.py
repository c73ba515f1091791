"""Replay: runs the pipeline up to one decision and computes the log-probability of the recorded next state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mmgrpo.maths.divergences import GAUSSIAN_DIVERGENCES, Moments

from .denoising_trace import Transition, batched_next_states
from .pipeline_run import StepCall, Stop
from .step_sampler import StepSampler, at_rows


@dataclass(slots=True)
class Replayer:
    """``PipelineRun.on_step`` of a replay of one decision.

    Several rows may share the state of the decision: the pipeline runs the U distinct states, and each of the N rows is
    scored with the Gaussian of its state.

    Attributes:
        states: transitions of one row per distinct state, U of them.
        rows: transitions of all N rows.
        state_of_N: index of each row's state.
        iteration: the decision to score.
        step_sampler: the transition distribution.
        moments: the Gaussians, one per step call of the iteration.
    """

    states: Sequence[tuple[Transition, ...]]
    rows: Sequence[tuple[Transition, ...]]
    state_of_N: Tensor
    iteration: int
    step_sampler: StepSampler
    moments: list[Moments] = field(default_factory=list)
    _position: int = 0

    def __call__(self, call: StepCall) -> Tensor:
        """The recorded next state; at ``iteration``, stores the Gaussian and ends the run."""
        position, self._position = self._position, self._position + 1
        stored = self.states[0][position]
        if stored.iteration != self.iteration:
            self.step_sampler.skip(call)
            return batched_next_states(self.states, position)
        self.moments.append(self.step_sampler.decide(call, stochastic=True).moments)
        if position + 1 == len(self.states[0]) or self.states[0][position + 1].iteration != self.iteration:
            raise Stop
        return batched_next_states(self.states, position)

    def logprob_N(self) -> Tensor:
        """Log-probability of each row's recorded decision, (N,) float32."""
        densities = []
        for position, moments in zip(self._positions(), self.moments, strict=True):
            row_moments = at_rows(moments, self.state_of_N, len(self.states))
            density = self.step_sampler.logdensity(batched_next_states(self.rows, position), row_moments)
            densities.append((density, _keep_mask(self.rows, position)))
        return self.step_sampler.reduced(densities, len(self.rows))

    def divergence_N(self, name: str, others: Sequence[Moments]) -> Tensor:
        """Divergence from ``others`` at each row's state, reduced over elements like the log-probability."""
        divergence = GAUSSIAN_DIVERGENCES[name]
        values = [
            (divergence(current, other), _keep_mask(self.states, position))
            for position, current, other in zip(self._positions(), self.moments, others, strict=True)
        ]
        return self.step_sampler.reduced(values, len(self.states))[self.state_of_N]

    def stored_moments(self) -> list[Moments] | None:
        """The Gaussians of the behavior policy, if the rollout stored their means."""
        moments = []
        for position, current in zip(self._positions(), self.moments, strict=True):
            means = [row[position].mean for row in self.states]
            if any(mean is None for mean in means):
                return None
            mean = torch.cat([mean for mean in means if mean is not None])
            moments.append(Moments(mean=mean, velocity=current.velocity, std=current.std, step=current.step))
        return moments

    def _positions(self) -> list[int]:
        return [k for k, transition in enumerate(self.states[0]) if transition.iteration == self.iteration]


def _keep_mask(rows: Sequence[tuple[Transition, ...]], position: int) -> Tensor | None:
    """The elements that the pipeline did not overwrite; None if no row has overwritten ones."""
    if all(row[position].keep is None for row in rows):
        return None
    return torch.cat(
        [
            torch.ones_like(row[position].next_state, dtype=torch.bool)
            if (keep := row[position].keep) is None
            else keep
            for row in rows
        ]
    )
