"""Measurements before the first update: how decisions are replayed exactly, and in which batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mmgrpo.errors import ReplayError
from mmgrpo.system.out_of_memory import is_out_of_memory
from mmgrpo.types import Rollout

from .call_form import CallForm
from .denoising_trace import DenoisingTrace

BATCH_ROUNDING = 10.0  # times the tolerance: kernels of another batch size round differently
CALL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError)


class ReplayFunction(Protocol):
    """Log-probabilities of recorded decisions under the current weights, (N,) float32."""

    def __call__(
        self, trace: DenoisingTrace, rows: Sequence[int], column: int, *, states: Sequence[int], run_ghosts: bool
    ) -> Tensor:
        """Of ``rows`` at ``column``, in one run of the pipeline; rows with one state share its forward."""
        ...


@dataclass(slots=True, kw_only=True)
class Exactness:
    """Selects ghost or full replay per kind of row and decision, and compares rows alone with rows in batches.

    Attributes:
        name: of the pipeline, for messages.
        replay: scores recorded decisions.
        tolerance: largest change of a log-probability by replay.
        unit: number of elements of a step -> its log-probability if each element's is 1.
        excess_noise: largest excess of a step's noise over the next noise level.
    """

    name: str
    replay: ReplayFunction
    tolerance: float
    unit: Callable[[int], float]
    excess_noise: float = 0.0
    _needs_full: dict[Any, bool] = field(default_factory=dict)
    _compared: set[Any] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been measured yet."""
        return not self._needs_full

    def has_measured(self, kind: Any, columns: Sequence[int]) -> bool:
        """Whether these decisions of this kind of row have been measured."""
        return all((kind, column) in self._needs_full for column in columns)

    def needs_full(self, kind: Any, columns: Sequence[int]) -> bool:
        """Whether replay has to run the denoiser in ghost iterations."""
        return any(self._needs_full[kind, column] for column in columns)

    def measure(self, rollout: Rollout, kind: Any, columns: Sequence[int], *, alone: bool, form: CallForm) -> str:
        """Measures the decisions of one run's rollout that have not been measured.

        Args:
            rollout: the rows of one run.
            kind: the key of their measurements.
            columns: its stochastic decisions.
            alone: whether rows run alone, in rollouts and in updates.
            form: builds the pipeline's arguments.

        Returns:
            Why rows have to run alone; empty if they do not.

        Raises:
            ReplayError: neither replay of a row that runs alone gives the recorded log-probability.
        """
        rows = [row for row in range(len(rollout.samples)) if bool(rollout.mask_BT[row].any())]
        if not rows:
            return ""
        for column in columns:
            if (kind, column) in self._needs_full:
                continue
            ghost = self._gap(rollout, rows, column, run_ghosts=False)
            full = ghost if ghost <= self.tolerance else self._gap(rollout, rows, column, run_ghosts=True)
            if full > self.tolerance:
                if not alone and len(set(rollout.state_BT[rows, column].tolist())) < len(rows):
                    return f"in another batch the replayed log-probability changes by {full:.1e}"
                raise ReplayError(
                    f"replaying step {column} of {self.name} changes its log-probability by {ghost:.1e} (ghost) and "
                    f"{full:.1e} (full); at most {self.tolerance:.0e} is allowed. Its steps depend on more than their "
                    "latents: disable caches, guidance momentum and dropout"
                )
            self._needs_full[kind, column] = ghost > self.tolerance
        if alone or kind in self._compared:
            return ""
        ends = sorted({columns[0], columns[-1]}) if columns else []
        rollout_rows, compared = _comparison_trace(rollout.trace, form, rows)
        gap = max((self._batch_gap(rollout, kind, column, rollout_rows, compared) for column in ends), default=0.0)
        allowed = BATCH_ROUNDING * self.tolerance * self.unit(rollout.trace.transitions[0][-1].next_state.numel())
        if gap > allowed:
            return f"batched with another prompt its log-probability differs by {gap:.1e}, more than {allowed:.0e}"
        self._compared.add(kind)
        return ""

    @torch.no_grad()
    def _gap(self, rollout: Rollout, rows: Sequence[int], column: int, *, run_ghosts: bool) -> float:
        states = rollout.state_BT[list(rows), column].tolist()
        try:
            replayed_N = self.replay(rollout.trace, rows, column, states=states, run_ghosts=run_ghosts)
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            if run_ghosts:
                raise ReplayError(f"replaying {self.name} failed: {error}") from error
            return float("inf")
        return largest_gap(replayed_N - rollout.old_logprob_BT[list(rows), column])

    @torch.no_grad()
    def _batch_gap(
        self, rollout: Rollout, kind: Any, column: int, rollout_rows: Sequence[int], compared: DenoisingTrace
    ) -> float:
        """The effect of the batch on a row: sampled with the rollout's rows, and scored with another prompt."""
        run_ghosts, rows = self._needs_full[kind, column], range(len(compared.rows))
        try:
            alone_N = torch.cat([self.replay(compared, [n], column, states=[n], run_ghosts=run_ghosts) for n in rows])
            batched_N = self.replay(compared, rows, column, states=rows, run_ghosts=run_ghosts)
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            return float("inf")
        sampled_gap = largest_gap(alone_N[: len(rollout_rows)] - rollout.old_logprob_BT[list(rollout_rows), column])
        return max(sampled_gap, largest_gap(batched_N - alone_N))


def largest_gap(gap_N: Tensor) -> float:
    """The largest magnitude of differences; infinity for one that is not a number."""
    return float(torch.nan_to_num(gap_N.abs().max(), nan=float("inf")))


def _comparison_trace(trace: DenoisingTrace, form: CallForm, rows: Sequence[int]) -> tuple[list[int], DenoisingTrace]:
    """Rows to score in one batch: the rollout's rows among them, and the trace of all.

    They are the first of ``rows`` and the one whose prompt differs most in length. A contrasting row, with another
    prompt and other images, is added if all prompts have one length, and always if rows have media.
    """
    head, last = rows[0], rows[-1]
    first = trace.rows[head]
    other = max(rows, key=lambda row: abs(len(trace.rows[row].prompt.text) - len(first.prompt.text)))
    has_media = form.has_media(first)
    rollout_rows = list(dict.fromkeys((head, last if has_media and other == head else other)))
    contrasting_row = form.contrasting_row(first) if has_media or len(rollout_rows) == 1 else None
    chosen = [*rollout_rows, *([head] if contrasting_row else [])]
    compared = [trace.rows[row] for row in rollout_rows]
    return rollout_rows, replace(
        trace,
        rows=(*compared, contrasting_row) if contrasting_row else tuple(compared),
        row_params=tuple(trace.row_params[row] for row in chosen),
        transitions=tuple(trace.transitions[row] for row in chosen),
    )
