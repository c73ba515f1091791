"""Batch parity: whether a row depends on the rows of its batch, measured for every longer prompt before it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from mmgrpo.system.out_of_memory import is_out_of_memory

from .batches import Batches
from .conditioning import contrasting_prompt
from .denoising_rows import DenoisingRow, call_has_media
from .exactness import CALL_ERRORS
from .instrumented_pipeline import InstrumentedPipeline
from .pipeline_run import PipelineRun, StepCall, Stop

LONG_PROMPT = 64  # words, or as many times 4 characters: length of the first comparison prompt of a kind
BATCHED_FACTOR = 4.0  # allowed change with a longer prompt, relative to the change by batching a row with itself
MAX_NOISE = 10.0  # upper limit of the allowed change, relative to ``tolerance``

Rewrite = Callable[[int, Any, Any, Any], tuple[Any, Any]]
"""Edits a call of a denoiser: (iteration, module, args, kwargs) -> (args, kwargs)."""

Lengths = dict[str, int]
"""Bytes of the longest text, by argument."""


@dataclass(slots=True, kw_only=True)
class BatchParity:
    """Compares predictions of rows alone with those in a batch with longer prompts, which add padding.

    The first rows of a kind are compared with a prompt of ``LONG_PROMPT`` words, so that all processes select the same
    batch sizes, for any prompts. Later, only a prompt longer than any before is compared. A comparison takes one
    forward of the row alone and one in the batch.

    Attributes:
        instrumented: the pipeline.
        batches: batch sizes, set to 1 once a row depends on its batch.
        tolerance: largest relative difference of a prediction, if rounding makes less.
        dtype: of the denoiser's computation.
    """

    instrumented: InstrumentedPipeline
    batches: Batches
    tolerance: float
    dtype: torch.dtype
    _longest: dict[Any, Lengths] = field(default_factory=dict)

    def ensure(self, rows: Sequence[DenoisingRow], call: Mapping[str, Any]) -> bool:
        """Runs every row alone from now on if rows depend on the prompts of their batch.

        Args:
            rows: rows about to run, or that have run without being used.
            call: the arguments that they share.

        Returns:
            Whether this call changed the batch sizes.
        """
        reason = self._dependence(rows, call)
        if reason:
            self.batches.run_alone(
                f"a row of {type(self.instrumented.pipeline).__name__} depends on its batch: {reason}"
            )
        return bool(reason)

    def _dependence(self, rows: Sequence[DenoisingRow], call: Mapping[str, Any]) -> str:
        """Why rows have to run alone; empty if they do not, or if nothing is new."""
        form = self.instrumented.form
        shares_runs = max(self.batches.rollout, self.batches.update) > 1 and not form.single
        if not shares_runs or len(rows) < 2 or call_has_media(call) or not form.takes("generator"):
            return ""
        kinds: dict[Any, list[DenoisingRow]] = {}
        for row in rows:
            if form.is_verified or not form.has_media(row):
                kinds.setdefault((form.row_arguments(row), form.has_media(row)), []).append(row)
        for kind, members in kinds.items():
            if reason := self._dependence_of_kind(kind, members, call):
                return reason
        return ""

    def _dependence_of_kind(self, kind: Any, rows: Sequence[DenoisingRow], call: Mapping[str, Any]) -> str:
        is_first, previous = kind not in self._longest, self._longest.get(kind, {})
        lengths = [self._lengths(row) for row in rows]
        longest = {name: max(row_lengths[name] for row_lengths in lengths) for name in lengths[0]}
        longer = [name for name, length in longest.items() if length > previous.get(name, -1)]
        if not longer:
            return ""
        first = rows[min(range(len(rows)), key=lambda n: sum(lengths[n].values()))]
        others = {id(rows[n].prompt): rows[n] for n in (_longest_row(lengths, name) for name in longer)}
        candidates = [other for other in others.values() if other.prompt is not first.prompt]
        if is_first:
            candidates.append(
                self._long_prompt_row(max(others.values(), key=lambda row: sum(self._lengths(row).values())))
            )
        for other in candidates:
            if reason := self._compare(first, other, call):
                return reason
            longest = {name: max(length, self._lengths(other)[name]) for name, length in longest.items()}
        self._longest[kind] = {name: max(length, previous.get(name, 0)) for name, length in longest.items()}
        return ""

    def _lengths(self, row: DenoisingRow) -> Lengths:
        return {name: len(text.encode(errors="replace")) for name, text in self.instrumented.form.texts(row).items()}

    def _long_prompt_row(self, row: DenoisingRow) -> DenoisingRow:
        """A row with a different, long prompt."""
        text, form = row.prompt.text, self.instrumented.form
        times = 1 + max(2, -(-LONG_PROMPT // max(len(text.split()), -(-len(text) // 4), 1)))
        return replace(row, prompt=contrasting_prompt(row.prompt, form.image_arguments, form.columns, times=times))

    def _compare(self, row: DenoisingRow, other: DenoisingRow, call: Mapping[str, Any]) -> str:
        """How a row's prediction changes in a batch with another; empty if by no more than rounding."""
        if not self.instrumented.form.can_share_run(row, other):
            return ""
        alone, other_alone = self._prediction([row], call), self._prediction([other], call)
        if alone is None or other_alone is None or not bool(alone.isfinite().all() and other_alone.isfinite().all()):
            return ""  # a row that cannot run alone gives no comparison
        together = self._prediction([row, other], call)
        if together is None:
            return f"it cannot run in one batch with a prompt of {len(other.prompt.text)} characters, which runs alone"
        gap = _difference(together, [alone, other_alone])
        if gap <= self.tolerance:
            return ""
        allowed = min(max(self.tolerance, self._noise(row, alone, call)), MAX_NOISE * self.tolerance)
        if gap <= allowed:
            return ""
        return f"with another prompt in the batch its prediction changes by {gap:.1e} (relative), over {allowed:.0e}"

    def _noise(self, row: DenoisingRow, alone: Tensor, call: Mapping[str, Any]) -> float:
        """The change of a prediction by rounding: from batching the row with itself, and from rounding its state.

        A mask for the padding of other rows uses other kernels, which round differently than those of a row alone.
        """
        batched = _difference(self._prediction([row, row], call), [alone, alone])
        rounded = _difference(self._prediction([row], call, rewrite=self._perturb_rounding), [alone])
        noises = [BATCHED_FACTOR * batched, rounded]
        return max((noise for noise in noises if noise != float("inf")), default=0.0)

    def _perturb_rounding(self, iteration: int, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """A denoiser's arguments with half a unit in the last place added to the states, or subtracted."""
        leaves, spec = tree_flatten((args, kwargs))
        number = next((n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.ndim > 1), None)
        if number is None or not leaves[number].is_floating_point():
            return args, kwargs
        state, generator = leaves[number], torch.Generator().manual_seed(iteration)
        sign = torch.randint(0, 2, state.shape, generator=generator).mul(2).sub(1).to(state.device)
        leaves[number] = (state.float() * (1 + sign * torch.finfo(self.dtype).eps / 2)).to(state.dtype)
        return tree_unflatten(leaves, spec)

    @torch.no_grad()
    def _prediction(
        self, rows: Sequence[DenoisingRow], call: Mapping[str, Any], *, rewrite: Rewrite | None = None
    ) -> Tensor | None:
        """The model output at the first step of a run, float32; None if these rows cannot run."""
        outputs: list[Tensor] = []

        def first_step(step: StepCall) -> Tensor:
            outputs.append(step.model_output.float())
            raise Stop

        try:
            run = PipelineRun(on_step=first_step, rewrite=rewrite)
            self.instrumented.run(run, self.instrumented.form.arguments(rows, call), seed=rows[0].seed)
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            return None
        return outputs[0] if outputs else None


def _longest_row(lengths: Sequence[Lengths], name: str) -> int:
    return max(range(len(lengths)), key=lambda n: lengths[n][name])


def _difference(batched: Tensor | None, alone: Sequence[Tensor]) -> float:
    """Largest root mean square difference of a row in the batch and alone, relative to the row alone."""
    if batched is None or len(batched) != sum(map(len, alone)):
        return float("inf")
    parts = batched.split([len(part) for part in alone])
    gaps = [float((part - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp(min=1e-12))
            for part, expected in zip(parts, alone, strict=True) if part.shape == expected.shape]  # fmt: skip
    return max(gaps) if len(gaps) == len(alone) and all(gap == gap for gap in gaps) else float("inf")
