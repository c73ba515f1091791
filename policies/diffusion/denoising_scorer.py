"""Log-probabilities of recorded decisions, and their values under other weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.types import Evaluation, Rollout
from mmgrpo.values import OLD, Value

from .batches import Batches
from .chunks import state_batches
from .denoising_trace import DenoisingTrace
from .denoising_values import value_N
from .instrumented_pipeline import InstrumentedPipeline
from .pipeline_run import PipelineRun
from .replay import Replayer


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoisingScorer:
    """Scores the recorded decisions of sampled rows again.

    Attributes:
        instrumented: the pipeline.
        batches: batch sizes.
        using: context in which a view's weights are active.
    """

    instrumented: InstrumentedPipeline
    batches: Batches
    using: Callable[[str], AbstractContextManager[None]]

    def evaluate(self, rollout: Rollout, rows: Sequence[int], values: Collection[Value]) -> Iterator[Evaluation]:
        """One slice per decision and batch of distinct states."""
        for column in range(rollout.shape[1]):
            masked = [row for row in rows if bool(rollout.mask_BT[row, column])]
            for batch in state_batches(
                rollout, masked, column, self.batches.update, self.instrumented.form.can_share_run
            ):
                yield self._score(rollout, batch, column, values)

    def _score(self, rollout: Rollout, rows: list[int], column: int, values: Collection[Value]) -> Evaluation:
        states = rollout.state_BT[rows, column].tolist()
        others, num_forwards = {}, 0
        for view in sorted({value.view for value in values if value.view not in (None, OLD)}):
            with torch.no_grad(), self.using(view):
                others[view], view_forwards = self.replay(rollout.trace, rows, column, states=states)
            num_forwards += view_forwards
        current, view_forwards = self.replay(rollout.trace, rows, column, states=states)
        logprob_N = current.logprob_N()
        require_grad(logprob_N, f"step {column}", self.instrumented)
        return Evaluation(
            columns=(column,),
            logprob_BT=logprob_N[:, None],
            values={value: value_N(value, current, others.get(value.view), logprob_N)[:, None] for value in values},
            rows=torch.tensor(rows),
            num_forwards=num_forwards + view_forwards,
        )

    def replay(
        self, trace: DenoisingTrace, rows: Sequence[int], column: int, *, states: Sequence[int]
    ) -> tuple[Replayer, float]:
        """One run of the pipeline with a real iteration only at ``column``; returns the replayer and its forwards.

        ``states`` groups the rows by state: the pipeline runs each state once.
        """
        head_of: dict[int, int] = {}
        for row, state in zip(rows, states, strict=True):
            head_of.setdefault(state, row)
        order = {state: position for position, state in enumerate(head_of)}
        heads = list(head_of.values())
        device = trace.transitions[heads[0]][0].next_state.device
        params = trace.row_params[heads[0]]
        replayer = Replayer(
            states=[trace.transitions[row] for row in heads],
            rows=[trace.transitions[row] for row in rows],
            state_of_N=torch.tensor([order[state] for state in states], device=device),
            iteration=column,
            step_sampler=params.step_sampler,
        )
        run = PipelineRun(on_step=replayer, ghost=lambda iteration: iteration != column, run_ghosts=trace.run_ghosts)
        arguments = self.instrumented.form.arguments([trace.rows[row] for row in heads], params.call)
        self.instrumented.run(run, arguments, seed=trace.rows[heads[0]].seed, grad=torch.is_grad_enabled())
        return replayer, run.num_forwards

    def logprobs(
        self, trace: DenoisingTrace, rows: Sequence[int], column: int, *, states: Sequence[int], run_ghosts: bool
    ) -> Tensor:
        """``exactness.ReplayFunction``."""
        replayer, _ = self.replay(replace(trace, run_ghosts=run_ghosts), rows, column, states=states)
        return replayer.logprob_N().cpu()


def require_grad(logprob_N: Tensor, label: str, instrumented: InstrumentedPipeline) -> None:
    """Raises PolicyError if grad is enabled and a log-probability has none."""
    if torch.is_grad_enabled() and not logprob_N.requires_grad:
        raise PolicyError(
            f"{label} of {type(instrumented.pipeline).__name__} has no gradient: its loop calls the denoiser within "
            "torch.no_grad or on detached weights; mmgrpo removes only the decorator of __call__"
        )
