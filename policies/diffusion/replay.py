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
    """``PipelineRun.on_step`` of a replay of decisions.

    Several rows may share the states of the decisions: the pipeline runs the U distinct states, and each of the N rows
    is scored with the Gaussian of its state.

    Attributes:
        states: transitions of one row per distinct state, U of them.
        rows: transitions of all N rows.
        state_of_N: index of each row's state.
        iterations: the decisions to score, in order.
        step_sampler: the transition distribution.
    """

    states: Sequence[tuple[Transition, ...]]
    rows: Sequence[tuple[Transition, ...]]
    state_of_N: Tensor
    iterations: Sequence[int]
    step_sampler: StepSampler
    _moments: dict[int, Moments] = field(default_factory=dict)
    _position: int = 0

    def __call__(self, call: StepCall) -> Tensor:
        """The recorded next state; at ``iterations``, stores the Gaussian, and after the last one ends the run."""
        position, self._position = self._position, self._position + 1
        if self.states[0][position].iteration not in self.iterations:
            self.step_sampler.skip(call)
            return batched_next_states(self.states, position)
        self._moments[position] = self.step_sampler.decide(call, stochastic=True).moments
        if position == self._positions(self.iterations[-1])[-1]:
            raise Stop
        return batched_next_states(self.states, position)

    def moments(self, iteration: int) -> list[Moments]:
        """The Gaussians of a decision, one per step call."""
        return [self._moments[position] for position in self._positions(iteration)]

    def logprob_N(self, iteration: int) -> Tensor:
        """Log-probability of each row's recorded decision, (N,) float32."""
        densities = []
        for position, moments in zip(self._positions(iteration), self.moments(iteration), strict=True):
            row_moments = at_rows(moments, self.state_of_N, len(self.states))
            density = self.step_sampler.logdensity(batched_next_states(self.rows, position), row_moments)
            densities.append((density, _keep_mask(self.rows, position)))
        return self.step_sampler.reduced(densities, len(self.rows))

    def divergence_N(self, name: str, others: Sequence[Moments], iteration: int) -> Tensor:
        """Divergence of a decision from ``others`` at each row's state, reduced like the log-probability."""
        divergence = GAUSSIAN_DIVERGENCES[name]
        values = [
            (divergence(current, other), _keep_mask(self.states, position))
            for position, current, other in zip(
                self._positions(iteration), self.moments(iteration), others, strict=True
            )
        ]
        return self.step_sampler.reduced(values, len(self.states))[self.state_of_N]

    def stored_moments(self, iteration: int) -> list[Moments] | None:
        """The Gaussians of a decision under the behavior policy, if the rollout stored their means."""
        moments = []
        for position, current in zip(self._positions(iteration), self.moments(iteration), strict=True):
            means = [row[position].mean for row in self.states]
            if any(mean is None for mean in means):
                return None
            mean = torch.cat([mean for mean in means if mean is not None])
            moments.append(Moments(mean=mean, velocity=current.velocity, std=current.std, step=current.step))
        return moments

    def _positions(self, iteration: int) -> list[int]:
        return [k for k, transition in enumerate(self.states[0]) if transition.iteration == iteration]


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
