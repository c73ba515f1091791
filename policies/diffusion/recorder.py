"""Recording of rollouts: samples every decision of a chunk of rows and stores the states that replay needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ReplayError
from mmgrpo.maths.divergences import Moments
from mmgrpo.types import Plan
from mmgrpo.values import OLD

from .call_form import RewoundError, RowsError
from .denoising_rows import DenoisingRow
from .denoising_trace import Transition
from .pipeline_run import StepCall
from .step_sampler import Decision, StepSampler


@dataclass(slots=True)
class RecordedStep:
    """One recorded step call of a chunk; rows first."""

    iteration: int
    ordinal: int
    decision: Decision
    next_state: Tensor
    keep: Tensor | None = None

    def rows(self, index: Tensor) -> RecordedStep:
        """The step call of some of its rows."""
        keep = None if self.keep is None else self.keep[index]
        decision = replace(self.decision, keep=self.keep).at(index, len(self.next_state))
        return RecordedStep(self.iteration, self.ordinal, decision, self.next_state[index], keep)


@dataclass(slots=True)
class Recorder:
    """``PipelineRun.on_step`` of a rollout.

    Attributes:
        rows: the rows that the pipeline runs.
        plan: which decisions are stochastic.
        step_sampler: the transition distribution.
        recorded: step calls sampled earlier (the group's shared prefix), returned without sampling again.
        branch: per row of ``rows``, the rows that branch off at iteration ``branch_at``.
        branch_at: the iteration at which rows branch; the run ends there.
        steps: the recorded step calls, in order.
        initial: the state before the first step.
        check: whether to compare the first step call with the stock step, which needs a real (not ghost) iteration.
    """

    rows: Sequence[DenoisingRow]
    plan: Plan
    step_sampler: StepSampler
    recorded: Sequence[RecordedStep] = ()
    branch: Sequence[Sequence[DenoisingRow]] | None = None
    branch_at: int = -1
    steps: list[RecordedStep] = field(default_factory=list)
    initial: Tensor | None = None
    check: bool = False
    _last: dict[int, RecordedStep] = field(default_factory=dict)

    @torch.no_grad()
    def __call__(self, call: StepCall) -> Tensor:
        """The sampled next state of every row."""
        if not call.sample.is_floating_point():
            raise ReplayError(
                f"the pipeline steps a state of dtype {call.sample.dtype}; denoising policies need floating-point "
                "latents. For AmusedPipeline use policy: {name: masked}"
            )
        self.initial = call.sample if self.initial is None else self.initial
        self._note_overwritten(call)
        if call.sample.shape[0] != len(self.rows) and (len(self.rows) > 1 or self.branch is not None):
            if call.takes_clean and call.clean is None:
                raise RewoundError
            raise RowsError(
                f"the pipeline steps a state of shape {tuple(call.sample.shape)} for {len(self.rows)} rows, not one "
                "latent per row; set rollout_batch: 1, same_initial_noise: false and no tree"
            )
        if self.check and call.iteration == 0 and call.ordinal == 0:
            self.step_sampler.check_family(call)
        position = len(self.steps)
        if position < len(self.recorded):
            self.step_sampler.skip(call)
            step = self.recorded[position]
        else:
            step = self._sample(call)
        self.steps.append(step)
        self._last[call.stream] = step
        next_state = step.next_state
        if call.iteration == self.branch_at and self.branch is not None:
            owner = owner_of(self.branch).tolist()
            next_state = next_state[[owner.index(group) for group in range(len(self.branch))]]  # the first members
        return next_state.clone()

    def _sample(self, call: StepCall) -> RecordedStep:
        stochastic, last = self.plan.stochastic, self._last.get(call.stream)
        after_window = stochastic is not None and call.iteration > max(stochastic)
        decision = self.step_sampler.decide(
            call,
            stochastic=stochastic is None or call.iteration in stochastic,
            previous=last.decision if last is not None and after_window else None,
        )
        rows, moments = self.rows, decision.moments
        if call.iteration == self.branch_at and self.branch is not None:
            rows, owner = [row for members in self.branch for row in members], owner_of(self.branch)
            decision = decision.at(owner, len(self.rows))
            moments = decision.moments
        next_state = moments.mean
        if is_stochastic(moments):
            shape = (moments.mean.numel() // len(rows),)
            noise = [row.noise(shape, iteration=call.iteration, ordinal=call.ordinal) for row in rows]
            noise_like = torch.stack(noise).reshape(moments.mean.shape).to(moments.mean.device)
            noise_like = noise_like * self.plan.spread(call.iteration)
            noise_like = noise_like if decision.keep is None else noise_like * decision.keep
            next_state = moments.mean + moments.std * noise_like
        return RecordedStep(call.iteration, call.ordinal, decision, next_state.to(call.sample.dtype), decision.keep)

    def _note_overwritten(self, call: StepCall) -> None:
        """Excludes the elements of the last state that the pipeline overwrote: they are no decision of the policy.

        If all elements changed, the pipeline transformed the state and every element still counts; likewise if it only
        stored the state in half precision between steps.
        """
        last = self._last.get(call.stream)
        if last is None or last.iteration == self.branch_at or last.next_state.shape != call.sample.shape:
            return
        unchanged = (last.next_state == call.sample) | last.next_state.isnan()
        if unchanged.all() or not unchanged.any() or _is_cast(last.next_state, call.sample):
            return
        last.keep = unchanged if last.keep is None else unchanged & last.keep

    def logprob_rows(self, iteration: int) -> Tensor:
        """Log-probability of each row's decision at an iteration, (rows,) float32."""
        densities = [
            (self.step_sampler.logdensity(step.next_state, step.decision.moments), step.keep)
            for step in self.steps
            if step.iteration == iteration
        ]
        return self.step_sampler.reduced(densities, len(self.rows))

    @property
    def last_states(self) -> list[Tensor]:
        """(rows, ...) the final state of each scheduler that stepped: the pipeline's own and its copies."""
        return [step.next_state for step in self._last.values()]

    def latents(self) -> list[Tensor] | None:
        """The final state of each row; None for a pipeline that steps only copies of its scheduler, one per frame."""
        return split_rows(self._last[0].next_state, len(self.rows)) if 0 in self._last else None

    def transitions(self) -> list[tuple[Transition, ...]]:
        """The recorded transitions, row by row."""
        return [
            tuple(
                self._transition(step, slice(row, row + 1) if len(self.rows) > 1 else slice(None))
                for step in self.steps
            )
            for row in range(len(self.rows))
        ]

    def _transition(self, step: RecordedStep, row: slice) -> Transition:
        needs_mean = any(value.view == OLD for value in self.plan.values)
        stores_mean = needs_mean and is_stochastic(step.decision.moments)
        return Transition(
            iteration=step.iteration,
            next_state=step.next_state[row],
            keep=None if step.keep is None else step.keep[row],
            mean=step.decision.moments.mean[row] if stores_mean else None,
        )


def split_rows(state: Tensor, num_rows: int) -> list[Tensor]:
    """The state of each row, batch dimension included, on the CPU; a single row has every entry."""
    return [part.cpu() for part in (state.split(1) if num_rows > 1 else [state])]


def owner_of(groups: Sequence[Sequence[Any]]) -> Tensor:
    """(B,) the group index of each member, group by group."""
    return torch.repeat_interleave(torch.tensor([len(members) for members in groups]))


def _is_cast(state: Tensor, observed: Tensor) -> bool:
    """Whether the observed state equals another one rounded to half precision."""
    return any(torch.equal(state.to(dtype).to(observed.dtype), observed) for dtype in (torch.bfloat16, torch.float16))


def is_stochastic(moments: Moments) -> bool:
    """Whether the step is random."""
    return isinstance(moments.std, Tensor) or moments.std > 0.0
