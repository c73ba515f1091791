"""The rollout side: draws every decision of a chunk of rows and writes down what replay needs."""

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
    """One step call of a chunk while it is being recorded; rows first."""

    iteration: int
    ordinal: int
    decision: Decision
    next_state: Tensor
    keep: Tensor | None = None

    def rows(self, index: Tensor) -> RecordedStep:
        """The same step call for some of its rows."""
        keep = None if self.keep is None else self.keep[index]
        decision = replace(self.decision, keep=self.keep).at(index, len(self.next_state))
        return RecordedStep(self.iteration, self.ordinal, decision, self.next_state[index], keep)


@dataclass(slots=True)
class Recorder:
    """``Session.on_step`` of a rollout.

    Attributes:
        rows: the rows that the pipeline runs.
        plan: which decisions are stochastic.
        sampling: how they are drawn.
        known: step calls already drawn (by the shared prefix of the group): returned, not drawn again.
        branch: per row of ``rows``, the rows drawn from its state at iteration ``branch_at``.
        branch_at: the iteration that rows part at; the run ends with it.
        drawn: what was recorded, in order.
        initial: the state before the first step.
        check: whether the first step call is checked, to refuse a scheduler that is read wrongly; it has to be real.
    """

    rows: Sequence[DenoisingRow]
    plan: Plan
    sampling: StepSampler
    known: Sequence[RecordedStep] = ()
    branch: Sequence[Sequence[DenoisingRow]] | None = None
    branch_at: int = -1
    drawn: list[RecordedStep] = field(default_factory=list)
    initial: Tensor | None = None
    check: bool = False
    _last: dict[int, RecordedStep] = field(default_factory=dict)

    @torch.no_grad()
    def __call__(self, call: StepCall) -> Tensor:
        """Draws the next state of every row."""
        if not call.sample.is_floating_point():
            raise ReplayError(
                f"the pipeline steps a state of {call.sample.dtype}: tokens are no Gaussian decisions; what "
                "AmusedPipeline fills in, policy: {name: masked} trains"
            )
        self.initial = call.sample if self.initial is None else self.initial
        self._note_overwritten(call)
        if call.sample.shape[0] != len(self.rows) and (len(self.rows) > 1 or self.branch is not None):
            if call.takes_clean and call.clean is None:
                raise RewoundError
            raise RowsError(
                f"the pipeline steps a state of shape {tuple(call.sample.shape)} for {len(self.rows)} rows: it does "
                "not keep one latent per row; set rollout_batch: 1, same_initial_noise: false and no tree"
            )
        if self.check and call.iteration == 0 and call.ordinal == 0:
            self.sampling.check_family(call)
        position = len(self.drawn)
        if position < len(self.known):
            self.sampling.skip(call)
            drawn = self.known[position]
        else:
            drawn = self._draw(call)
        self.drawn.append(drawn)
        self._last[call.stream] = drawn
        own = drawn.next_state
        if call.iteration == self.branch_at and self.branch is not None:
            owner = owner_of(self.branch).tolist()
            own = own[[owner.index(group) for group in range(len(self.branch))]]  # the run goes on with first members
        return own.clone()

    def _draw(self, call: StepCall) -> RecordedStep:
        stochastic, last = self.plan.stochastic, self._last.get(call.stream)
        is_tail = stochastic is not None and call.iteration > max(stochastic)
        decision = self.sampling.decide(
            call,
            stochastic=stochastic is None or call.iteration in stochastic,
            before=last.decision if last is not None and is_tail else None,
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
        """Marks the elements of the last state that the pipeline has overwritten since: no decision of the policy.

        Where all have changed the pipeline has transformed the state, and every element still counts; likewise where
        it has kept the state in half precision between steps.
        """
        last = self._last.get(call.stream)
        if last is None or last.iteration == self.branch_at or last.next_state.shape != call.sample.shape:
            return
        same = (last.next_state == call.sample) | last.next_state.isnan()
        if same.all() or not same.any() or _is_cast(last.next_state, call.sample):
            return
        last.keep = same if last.keep is None else same & last.keep

    def logprob_rows(self, iteration: int) -> Tensor:
        """Log-probability of each row's decision at an iteration, (rows,) float32."""
        densities = [
            (self.sampling.logdensity(drawn.next_state, drawn.decision.moments), drawn.keep)
            for drawn in self.drawn
            if drawn.iteration == iteration
        ]
        return self.sampling.reduced(densities, len(self.rows))

    @property
    def last_state(self) -> Tensor:
        """(rows, ...) the final state."""
        return self._last[0].next_state

    def latents(self) -> list[Tensor]:
        """The final state of each row."""
        return split_rows(self._last[0].next_state, len(self.rows))

    def transitions(self) -> list[tuple[Transition, ...]]:
        """The record, row by row."""
        return [
            tuple(
                self._transition(drawn, slice(row, row + 1) if len(self.rows) > 1 else slice(None))
                for drawn in self.drawn
            )
            for row in range(len(self.rows))
        ]

    def _transition(self, drawn: RecordedStep, row: slice) -> Transition:
        asked = any(value.view == OLD for value in self.plan.values)
        keeps_mean = asked and is_stochastic(drawn.decision.moments)
        return Transition(
            iteration=drawn.iteration,
            next_state=drawn.next_state[row],
            keep=None if drawn.keep is None else drawn.keep[row],
            mean=drawn.decision.moments.mean[row] if keeps_mean else None,
        )


def split_rows(state: Tensor, num_rows: int) -> list[Tensor]:
    """The part of a state that is each row's, leading dimension and all, on the CPU; a row alone has every entry."""
    return [part.cpu() for part in (state.split(1) if num_rows > 1 else [state])]


def owner_of(groups: Sequence[Sequence[Any]]) -> Tensor:
    """(B,) which of the groups each member is of, group by group."""
    return torch.repeat_interleave(torch.tensor([len(members) for members in groups]))


def _is_cast(state: Tensor, found: Tensor) -> bool:
    """Whether a state differs from what became of it by rounding alone."""
    return any(torch.equal(state.to(dtype).to(found.dtype), found) for dtype in (torch.bfloat16, torch.float16))


def is_stochastic(moments: Moments) -> bool:
    """Whether the step draws at all."""
    return isinstance(moments.std, Tensor) or moments.std > 0.0
