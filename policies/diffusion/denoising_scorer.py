"""Log-probabilities of recorded decisions, and their values under other weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.system.out_of_memory import is_out_of_memory
from mmgrpo.types import Evaluation, Rollout
from mmgrpo.values import OLD, Value

from .batches import Batches
from .chunks import step_batches
from .denoising_trace import DenoisingTrace
from .denoising_values import value_N
from .exactness import BATCH_ROUNDING, CALL_ERRORS, largest_gap
from .instrumented_pipeline import InstrumentedPipeline
from .joined_calls import JoinedCalls
from .pipeline_run import PipelineRun
from .replay import Replayer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoisingScorer:
    """Scores the recorded decisions of sampled rows again.

    Attributes:
        instrumented: the pipeline.
        batches: batch sizes.
        using: context in which a view's weights are active.
        tolerance: largest change of a log-probability by replay.
    """

    instrumented: InstrumentedPipeline
    batches: Batches
    using: Callable[[str], AbstractContextManager[None]]
    tolerance: float
    _joins: dict[Any, bool] = field(default_factory=dict)

    def evaluate(self, rollout: Rollout, rows: Sequence[int], values: Collection[Value]) -> Iterator[Evaluation]:
        """One slice per batch of distinct states, which are those of one decision, or of several.

        With ``Batches.join_steps`` several decisions of the same rows are one forward if their states fit in
        ``policy.update_batch``, all rows are requested (memory did not run out), and their log-probabilities are, to
        rounding, those of separate forwards.
        """
        is_complete = int(rollout.mask_BT.any(1).sum()) <= len(rows)
        joins = (
            self.batches.join_steps
            and is_complete
            and self.instrumented.joins_iterations
            and not rollout.trace.run_ghosts
        )
        can_share_run = self.instrumented.form.can_share_run
        for batch, columns in step_batches(rollout, rows, self.batches.update, can_share_run, joins=joins):
            if len(columns) == 1 or self._may_join(rollout, batch, columns):
                yield self._score(rollout, batch, columns, values)
            else:
                yield from (self._score(rollout, batch, [column], values) for column in columns)

    def _score(
        self, rollout: Rollout, rows: list[int], columns: Sequence[int], values: Collection[Value]
    ) -> Evaluation:
        states = rollout.state_BT[rows, columns[0]].tolist()
        others, num_forwards = {}, 0
        for view in sorted({value.view for value in values if value.view not in (None, OLD)}):
            with torch.no_grad(), self.using(view):
                others[view], view_forwards = self.replay(rollout.trace, rows, columns, states=states)
            num_forwards += view_forwards
        current, view_forwards = self.replay(rollout.trace, rows, columns, states=states)
        logprob_NT = torch.stack([current.logprob_N(column) for column in columns], 1)
        require_grad(logprob_NT, f"step {columns[0]}", self.instrumented)
        values_NT = {
            value: torch.stack([value_N(value, current, others.get(value.view), column) for column in columns], 1)
            for value in values
        }
        return Evaluation(
            columns=tuple(columns),
            logprob_BT=logprob_NT,
            values=values_NT,
            rows=torch.tensor(rows),
            num_forwards=num_forwards + view_forwards,
        )

    def replay(
        self, trace: DenoisingTrace, rows: Sequence[int], columns: Sequence[int], *, states: Sequence[int]
    ) -> tuple[Replayer, float]:
        """Runs the pipeline with real iterations only at ``columns``; returns the replayer and its forwards.

        Several columns are one forward of the denoiser. ``states`` groups the rows by state, alike at all columns: the
        pipeline runs each state once.

        Raises: JoinError if the calls of several columns cannot be one.
        """
        head_of: dict[int, int] = {}
        for row, state in zip(rows, states, strict=True):
            head_of.setdefault(state, row)
        order = {state: position for position, state in enumerate(head_of)}
        heads = list(head_of.values())
        device = trace.transitions[heads[0]][0].next_state.device
        params = trace.row_params[heads[0]]

        def run(is_grad: bool, **options: Any) -> tuple[Replayer, float]:
            replayer = Replayer(
                states=[trace.transitions[row] for row in heads],
                rows=[trace.transitions[row] for row in rows],
                state_of_N=torch.tensor([order[state] for state in states], device=device),
                iterations=columns,
                step_sampler=params.step_sampler,
            )
            pipeline_run = PipelineRun(on_step=replayer, **options)
            arguments = self.instrumented.form.arguments([trace.rows[row] for row in heads], params.call)
            self.instrumented.run(pipeline_run, arguments, seed=trace.rows[heads[0]].seed, grad=is_grad)
            return replayer, pipeline_run.num_forwards

        is_grad = torch.is_grad_enabled()
        if len(columns) == 1:
            return run(is_grad, ghost=lambda iteration: iteration not in columns, run_ghosts=trace.run_ghosts)
        calls = JoinedCalls(columns)
        run(False, ghost=lambda iteration: True, intercept=calls.collect)
        return run(is_grad, ghost=lambda iteration: True, intercept=calls.output)

    @torch.no_grad()
    def _may_join(self, rollout: Rollout, rows: Sequence[int], columns: Sequence[int]) -> bool:
        """Whether these decisions, joined, have the log-probabilities that they have apart; measured once per kind."""
        trace: DenoisingTrace = rollout.trace
        kind = (trace.row_params[rows[0]].kind, trace.shapes(rows[0]), tuple(columns))
        if kind not in self._joins:
            states = rollout.state_BT[list(rows), columns[0]].tolist()
            allowed = (
                BATCH_ROUNDING
                * self.tolerance
                * trace.row_params[rows[0]].step_sampler.unit(trace.transitions[rows[0]][-1].next_state.numel())
            )
            apart = [self.replay(trace, rows, [column], states=states)[0].logprob_N(column) for column in columns]
            try:
                joined, _ = self.replay(trace, rows, columns, states=states)
                pairs = zip(apart, columns, strict=True)
                gap = max(largest_gap(joined.logprob_N(column) - apart_N) for apart_N, column in pairs)
                reason = "" if gap <= allowed else f"their log-probabilities change by {gap:.1e}"
            except CALL_ERRORS as error:
                if is_out_of_memory(error):
                    raise
                reason = str(error)
            if reason:
                logger.info("steps %s run one after the other in updates: %s", list(columns), reason)
            self._joins[kind] = not reason
        return self._joins[kind]

    def logprobs(
        self, trace: DenoisingTrace, rows: Sequence[int], column: int, *, states: Sequence[int], run_ghosts: bool
    ) -> Tensor:
        """``exactness.ReplayFunction``."""
        replayer, _ = self.replay(replace(trace, run_ghosts=run_ghosts), rows, [column], states=states)
        return replayer.logprob_N(column).cpu()


def require_grad(logprob_N: Tensor, label: str, instrumented: InstrumentedPipeline) -> None:
    """Raises PolicyError if grad is enabled and a log-probability has none."""
    if torch.is_grad_enabled() and not logprob_N.requires_grad:
        raise PolicyError(
            f"{label} of {type(instrumented.pipeline).__name__} has no gradient: its loop calls the denoiser within "
            "torch.no_grad or on detached weights; mmgrpo removes only the decorator of __call__"
        )
