"""What is measured of a pipeline before its first update: how its decisions are replayed, and in what batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mmgrpo.errors import ReplayError
from mmgrpo.system.exhausted import is_out_of_memory
from mmgrpo.types import Rollout

from .call_form import CallForm
from .denoising_trace import DenoisingTrace

BATCH_ROUNDING = 10.0  # times the tolerance: kernels of another batch size round otherwise
CALL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError)


class ReplayFunction(Protocol):
    """Log-probabilities of stored decisions under the weights of now, (N,) float32."""

    def __call__(
        self, trace: DenoisingTrace, rows: Sequence[int], column: int, *, states: Sequence[int], run_ghosts: bool
    ) -> Tensor:
        """Of ``rows`` at ``column``, in one run of the pipeline; rows of one state share its forward."""
        ...


@dataclass(slots=True, kw_only=True)
class Exactness:
    """Chooses ghost or full replay, once per kind of row and decision, and compares rows alone with rows in batches.

    Attributes:
        name: of the pipeline, for messages.
        replay: scores stored decisions.
        tolerance: largest change of a log-probability by replay.
        unit: elements of a step -> what its log-probability is where each element's is 1.
        excess_noise: most noise that a step left over what the next level holds.
    """

    name: str
    replay: ReplayFunction
    tolerance: float
    unit: Callable[[int], float]
    excess_noise: float = 0.0
    _needs_full: dict[Any, bool] = field(default_factory=dict)
    _compared: set[Any] = field(default_factory=set)

    @property
    def is_new(self) -> bool:
        """Whether nothing has been measured yet."""
        return not self._needs_full

    def knows(self, kind: Any, columns: Sequence[int]) -> bool:
        """Whether all has been measured of these decisions of rows of this kind."""
        return all((kind, column) in self._needs_full for column in columns)

    def needs_full(self, kind: Any, columns: Sequence[int]) -> bool:
        """Whether replay has to run the denoiser in the iterations that it passes through."""
        return any(self._needs_full[kind, column] for column in columns)

    def measure(self, rollout: Rollout, kind: Any, columns: Sequence[int], *, alone: bool, form: CallForm) -> str:
        """Measures what is not known of a rollout that one run of the pipeline made.

        Args:
            rollout: the rows of one run.
            kind: what they are known by.
            columns: its stochastic decisions.
            alone: whether rows run by themselves, in rollouts and in updates.
            form: how rows become the pipeline's arguments.

        Returns:
            Why rows have to run alone; empty where they need not.

        Raises:
            ReplayError: neither replay gives a row that runs alone its log-probability again.
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
                    return f"replayed in another batch its log-probability changes by {full:.1e}"
                raise ReplayError(
                    f"replaying step {column} of {self.name} changes its log-probability by {ghost:.1e} (ghost) and "
                    f"{full:.1e} (full), more than {self.tolerance:.0e}: its steps depend on more than their latents. "
                    "Switch off caches, guidance momentum and dropout"
                )
            self._needs_full[kind, column] = ghost > self.tolerance
        if alone or kind in self._compared:
            return ""
        ends = sorted({columns[0], columns[-1]}) if columns else []
        real, beside = _beside(rollout.trace, form, rows)
        gap = max((self._batch_gap(rollout, kind, column, real, beside) for column in ends), default=0.0)
        allowed = BATCH_ROUNDING * self.tolerance * self.unit(rollout.trace.transitions[0][-1].next_state.numel())
        if gap > allowed:
            return f"alone and beside another prompt its log-probability differs by {gap:.1e}, more than {allowed:.0e}"
        self._compared.add(kind)
        return ""

    @torch.no_grad()
    def _gap(self, rollout: Rollout, rows: Sequence[int], column: int, *, run_ghosts: bool) -> float:
        states = rollout.state_BT[list(rows), column].tolist()
        try:
            found_N = self.replay(rollout.trace, rows, column, states=states, run_ghosts=run_ghosts)
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            if run_ghosts:
                raise ReplayError(f"replaying {self.name} failed: {error}") from error
            return float("inf")
        return _largest(found_N - rollout.old_logprob_BT[list(rows), column])

    @torch.no_grad()
    def _batch_gap(
        self, rollout: Rollout, kind: Any, column: int, real: Sequence[int], beside: DenoisingTrace
    ) -> float:
        """What the batch does to a row: drawn among the rollout's rows, and scored beside another prompt."""
        run_ghosts, rows = self._needs_full[kind, column], range(len(beside.rows))
        try:
            alone_N = torch.cat([self.replay(beside, [n], column, states=[n], run_ghosts=run_ghosts) for n in rows])
            together_N = self.replay(beside, rows, column, states=rows, run_ghosts=run_ghosts)
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            return float("inf")
        drawn = _largest(alone_N[: len(real)] - rollout.old_logprob_BT[list(real), column])
        return max(drawn, _largest(together_N - alone_N))


def _largest(gap_N: Tensor) -> float:
    return float(torch.nan_to_num(gap_N.abs().max(), nan=float("inf")))


def _beside(trace: DenoisingTrace, form: CallForm, rows: Sequence[int]) -> tuple[list[int], DenoisingTrace]:
    """Rows that are scored side by side, of ``rows``: which of them are the rollout's, and all of them.

    They are the first row and the one whose prompt differs most in length. A stranger, who asks for something else and
    shows other pictures, joins the first where all prompts are as long, and wherever pictures are shown.
    """
    head, last = rows[0], rows[-1]
    first = trace.rows[head]
    other = max(rows, key=lambda row: abs(len(trace.rows[row].prompt.text) - len(first.prompt.text)))
    shows = form.shows(first)
    real = list(dict.fromkeys((head, last if shows and other == head else other)))
    stranger = form.stranger(first) if shows or len(real) == 1 else None
    chosen = [*real, *([head] if stranger else [])]
    compared = [trace.rows[row] for row in real]
    return real, replace(
        trace,
        rows=(*compared, stranger) if stranger else tuple(compared),
        drawings=tuple(trace.drawings[row] for row in chosen),
        transitions=tuple(trace.transitions[row] for row in chosen),
    )
