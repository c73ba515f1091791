"""The learner's side: runs the pipeline again up to one decision and says how likely the stored one was."""

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
    """``Session.on_step`` of a replay of one decision.

    Several rows may share the state the decision is taken in: the pipeline runs the U distinct states, and each of the
    N rows is scored against the Gaussian of its own.

    Attributes:
        states: transitions of one row per distinct state, U of them.
        rows: transitions of all N rows.
        state_of_N: which of the U states each row left.
        iteration: the decision to score.
        sampling: how decisions are scored.
        moments: the Gaussians found, one per step call of the iteration.
    """

    states: Sequence[tuple[Transition, ...]]
    rows: Sequence[tuple[Transition, ...]]
    state_of_N: Tensor
    iteration: int
    sampling: StepSampler
    moments: list[Moments] = field(default_factory=list)
    _position: int = 0

    def __call__(self, call: StepCall) -> Tensor:
        """The stored next state, or, at the wanted iteration, the Gaussian is noted and the run ends."""
        position, self._position = self._position, self._position + 1
        stored = self.states[0][position]
        if stored.iteration != self.iteration:
            self.sampling.skip(call)
            return batched_next_states(self.states, position)
        self.moments.append(self.sampling.decide(call, stochastic=True).moments)
        if position + 1 == len(self.states[0]) or self.states[0][position + 1].iteration != self.iteration:
            raise Stop
        return batched_next_states(self.states, position)

    def logprob_N(self) -> Tensor:
        """Log-probability of each row's stored decision, (N,) float32."""
        densities = []
        for position, moments in zip(self._positions(), self.moments, strict=True):
            own = at_rows(moments, self.state_of_N, len(self.states))
            density = self.sampling.logdensity(batched_next_states(self.rows, position), own)
            densities.append((density, _kept(self.rows, position)))
        return self.sampling.reduced(densities, len(self.rows))

    def divergence_N(self, name: str, others: Sequence[Moments]) -> Tensor:
        """Divergence from ``others`` at each row's state, reduced over elements as the log-probability is."""
        divergence = GAUSSIAN_DIVERGENCES[name]
        values = [
            (divergence(now, other), _kept(self.states, position))
            for position, now, other in zip(self._positions(), self.moments, others, strict=True)
        ]
        return self.sampling.reduced(values, len(self.states))[self.state_of_N]

    def stored_moments(self) -> list[Moments] | None:
        """The Gaussians of the policy that sampled, if the rollout kept their means."""
        found = []
        for position, now in zip(self._positions(), self.moments, strict=True):
            means = [row[position].mean for row in self.states]
            if any(mean is None for mean in means):
                return None
            mean = torch.cat([mean for mean in means if mean is not None])
            found.append(Moments(mean=mean, velocity=now.velocity, std=now.std, step=now.step))
        return found

    def _positions(self) -> list[int]:
        return [k for k, transition in enumerate(self.states[0]) if transition.iteration == self.iteration]


def _kept(rows: Sequence[tuple[Transition, ...]], position: int) -> Tensor | None:
    """The elements the pipeline left alone; None where no row had any overwritten."""
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
