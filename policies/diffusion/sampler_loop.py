"""Rows drawn: run after run of the pipeline, what a group shares once, and the first of each kind examined."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import MmgrpoError, PolicyError
from mmgrpo.splits import NO_BRANCHING
from mmgrpo.system.exhausted import is_out_of_memory
from mmgrpo.types import Plan, Prompt, Rollout, Sample

from .batches import Batches, chunked
from .branching import Branch, Stem, branches
from .buckets import RowSet
from .call_form import RewoundError, RowsError
from .chunks import RecordedChunk, assemble
from .conditioning import MediaBatching
from .denoising_rows import INITIAL_NOISE, DenoisingRow
from .denoising_trace import DenoisingTrace
from .exactness import CALL_ERRORS, Exactness
from .failures import FIXES, STATES, failures_of, finite_states, warn_of
from .instrumented_pipeline import InstrumentedPipeline, require_denoisers
from .outputs import samples_of
from .parity import BatchParity
from .pipeline_run import PipelineRun, StepCall, Stop
from .recorder import Recorder, owner_of, split_rows
from .sampling_params import SamplingParams

logger = logging.getLogger(__name__)

INITIAL = 1e-2  # of a state's elements: a picture encoded in another batch rounds otherwise
FRAME_RATE_ARGUMENTS = ("frame_rate", "fps", "target_fps")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerLoop:
    """Draws the rows of rollouts.

    Attributes:
        stage: the pipeline.
        batches: how many rows share a run.
        exactness: what is measured of the first rows of a kind.
        parity: compares rows alone with rows beside longer prompts.
        segments: lengths of the segments of a rollout, in steps.
        evaluation_call: laid over the call where samples are drawn without noise and nothing of them is kept.
        frame_rate: of videos, in frames a second; None: what the call asks for.
        sampling_rate: of the pipeline's sound, in Hz, where it is known.
        warned: reasons of failed samples that were logged.
    """

    stage: InstrumentedPipeline
    batches: Batches
    exactness: Exactness
    parity: BatchParity
    segments: tuple[int, ...] | None
    evaluation_call: Mapping[str, Any]
    frame_rate: float | None
    sampling_rate: int | None
    warned: set[str] = field(default_factory=set)

    def stochastic(self, parts: Sequence[RowSet], plan: Plan) -> Rollout:
        """The rows with their decisions on record."""
        chunks = self._drawn(parts, plan)
        rollout = assemble(chunks, plan, self.segments)
        needs_full = any(self.exactness.needs_full(chunk.kind, chunk.stochastic) for chunk in chunks)
        trace = replace(rollout.trace, run_ghosts=needs_full)
        return replace(rollout, trace=trace, num_unbatched=len(rollout.samples) if self.batches.alone else 0)

    def deterministic(self, parts: Sequence[RowSet], plan: Plan) -> Rollout:
        """The stock pipeline with its stock sampler; nothing is recorded."""
        self._settle_batches(parts[0])
        placed: list[tuple[DenoisingRow, Sample, SamplingParams]] = []
        num_forwards, T = 0, 1
        judged = {} if plan.keep_latents else self.evaluation_call  # what is kept is read, and trained on
        calls = [{**part.drawing.call, **judged, **part.drawing.changed_call} for part in parts]
        for part, call in zip(parts, calls, strict=True):
            self.parity.settle(part.rows, call)
        for part, call in zip(parts, calls, strict=True):
            for chunk in chunked(part.rows, part.drawing.batch(self.batches.rollout), self.stage.form.together):
                session = PipelineRun(on_step=None)
                output = self._run(session, chunk, call)
                latents = None
                if plan.keep_latents and session.last_state is not None:
                    latents = split_rows(session.last_state, len(chunk))
                drawn = self._samples(chunk, output, latents, call, session, session.last_state)
                plan.emit_samples(drawn)
                placed += [(row, sample, part.drawing) for row, sample in zip(chunk, drawn, strict=True)]
                num_forwards, T = num_forwards + session.num_forwards, max(T, session.iteration + 1)
        placed.sort(key=lambda one: one[0].entry)
        rows, samples, drawings = zip(*placed, strict=True)
        B = len(rows)
        return Rollout(
            samples=samples,
            prompt_index_B=torch.tensor([row.group for row in rows]),
            old_logprob_BT=torch.zeros(B, T),
            mask_BT=torch.zeros(B, T, dtype=torch.bool),
            state_BT=torch.arange(B * T).reshape(B, T),
            segment_BT=torch.arange(T).expand(B, T),
            trace=DenoisingTrace(rows=rows, drawings=drawings, transitions=()),
            num_forwards=num_forwards,
        )

    def _drawn(self, parts: Sequence[RowSet], plan: Plan) -> list[RecordedChunk]:
        """All rows, run after run; the first of each kind is examined before its samples are handed over."""
        chunks: list[RecordedChunk] = []
        try:
            return self._drawn_as_called(parts, plan, chunks)
        except RewoundError:
            self.stage.asks_twice = True
            return self._drawn(parts, plan)
        except RowsError as error:
            if chunks or self.stage.form.single:
                raise
            rows = [row for part in parts for row in part.rows]
            asked = next((row for row in rows if self.stage.form.shows(row)), rows[0])
            if not self._shown_otherwise(asked, str(error)):
                self._require_first_step(rows[0], parts[0].drawing)
                self._run_singly(f"{type(self.stage.pipeline).__name__} does not take rows as lists: {error}")
            return self._drawn(parts, plan)

    def _drawn_as_called(self, parts: Sequence[RowSet], plan: Plan, chunks: list[RecordedChunk]) -> list[RecordedChunk]:
        """All rows, put into ``chunks`` one by one."""
        for stem, drawing in ((stem, part.drawing) for part in parts for stem in self._stems(part, plan)):
            chunk = self._record(stem, plan, drawing)
            if reason := self._batch_dependence(chunk, plan):
                said = f"a row of {type(self.stage.pipeline).__name__} depends on its batch: {reason}"
                if chunks:
                    raise PolicyError(f"{said}; set policy.rollout_batch and policy.update_batch to 1")
                if not self._shown_otherwise(chunk.rows[0], reason):
                    self.batches.run_alone(said)
                return self._drawn_as_called(parts, plan, chunks)
            if not chunks and any(self.parity.settle(part.rows, part.drawing.call) for part in parts):
                return self._drawn_as_called(parts, plan, chunks)
            self.exactness.excess_noise = max(self.exactness.excess_noise, chunk.excess_noise)
            plan.emit_samples(chunk.samples)
            chunks.append(chunk)
        return chunks

    def _shown_otherwise(self, row: DenoisingRow, why: str) -> bool:
        """Whether rows can bring what they show in another way, which is taken from here on."""
        form = self.stage.form
        if not form.shows(row) or form.showing.following is form.showing:
            return False
        self.stage.form = replace(form, showing=form.showing.following)
        logger.info("pictures brought as %s: %s. Next: %s", form.showing.value, why, form.showing.following.value)
        return True

    def _require_first_step(self, row: DenoisingRow, drawing: SamplingParams) -> None:
        """Raises RowsError where a row fails by itself too: lists of rows are not the cause."""

        def stop(call: StepCall) -> Tensor:
            raise Stop

        arguments = replace(self.stage.form, single=True).arguments([row], drawing.call)
        try:
            self.stage.run(PipelineRun(on_step=stop), arguments, seed=row.seed)
        except MmgrpoError:
            return
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            raise _failed_call(arguments, error) from error

    def _run_singly(self, why: str) -> None:
        """Every row runs alone, its prompt a string and its generator no list."""
        self.batches.run_alone(why)
        self.stage.form = replace(self.stage.form, single=True)

    def _run(self, session: PipelineRun, rows: Sequence[DenoisingRow], call: Mapping[str, Any]) -> Any:
        """What the pipeline gives for rows. Raises RowsError where the first call of it fails, however it does."""
        arguments = self.stage.form.arguments(rows, call)
        try:
            return self.stage.run(session, arguments, seed=rows[0].seed)
        except MmgrpoError:
            raise
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            if not self.exactness.is_new and (self.stage.form.is_proven or not self.stage.form.shows(rows[0])):
                raise
            raise _failed_call(arguments, error) from error

    def _batch_dependence(self, chunk: RecordedChunk, plan: Plan) -> str:
        """Why the rows of a run, if they are the first of their kind, have to run alone; empty where they need not."""
        if self.exactness.knows(chunk.kind, chunk.stochastic):
            return ""
        form, first = self.stage.form, chunk.rows[0]
        sizes = [chunk.drawing.batch(size) for size in (self.batches.rollout, self.batches.update)]
        alone = max(sizes) == 1 or not form.together(first, first)
        if form.shows(first) and not alone and (gap := self._initial_gap(chunk)):
            return gap
        rollout = assemble([chunk], plan, self.segments)
        if not bool(rollout.mask_BT.any()) and bool((rollout.noise.std_BT > 0).any() if rollout.noise else False):
            raise PolicyError(
                f"{type(self.stage.pipeline).__name__} gives no sample whose latents are finite: {FIXES[STATES]}"
            )
        reason = self.exactness.measure(rollout, chunk.kind, chunk.stochastic, alone=alone, form=form)
        if form.shows(first) and not reason:
            self.stage.form = replace(form, is_proven=True)
        return reason

    def _initial_gap(self, chunk: RecordedChunk) -> str:
        """Whether rows that show something begin elsewhere alone than in their run; empty where they do not."""
        began = chunk.recorder.initial
        assert began is not None
        for number in {0, len(chunk.rows) - 1}:
            row = chunk.rows[number]
            found: list[Tensor] = []

            def first_state(call: StepCall, found: list[Tensor] = found) -> Tensor:
                found.append(call.sample)
                raise Stop

            session = PipelineRun(on_step=first_state, ghost=lambda iteration: True)
            self._run(session, [row], chunk.drawing.call)
            own = began[number : number + 1] if len(chunk.rows) > 1 else began
            if found and not torch.allclose(found[0].float(), own.float(), rtol=INITIAL, atol=INITIAL):
                return "it begins at another noise or picture alone"
        return ""

    def _stems(self, part: RowSet, plan: Plan) -> Iterator[Stem]:
        """Runs of rows to record, with what each shares with others already drawn."""
        for stem in self._run_together(branches(part.rows, INITIAL_NOISE), part.drawing):
            yield from self._grown(stem, plan, part.drawing)

    def _grown(self, stem: Stem, plan: Plan, drawing: SamplingParams) -> Iterator[Stem]:
        """What a stem becomes once it has parted at every split: each state before one is run once, here."""
        split = stem.next_split
        if split is None:
            yield stem
            return
        parted = [branches(branch, split) for branch in stem.branches]
        check = self.exactness.is_new and not stem.known
        recorder = Recorder(
            stem.rows,
            plan,
            drawing.sampling,
            known=stem.known,
            branch=[[branch[0] for branch in some] for some in parted],
            branch_at=split,
            check=check,
        )
        session = PipelineRun(
            on_step=recorder, ghost=lambda iteration: iteration <= stem.last_known, stop_before=split + 1
        )
        self.stage.run(session, self.stage.form.arguments(stem.rows, drawing.call), seed=stem.rows[0].seed)
        spent, offset, owner = stem.num_forwards + session.num_forwards, 0, owner_of(parted)
        for part in self._run_together([branch for some in parted for branch in some], drawing):
            index = torch.arange(offset, offset + len(part.branches))
            known = tuple(d.rows(index if d.iteration == split else owner[index]) for d in recorder.drawn)
            yield from self._grown(replace(part, parted_at=split, known=known, num_forwards=spent), plan, drawing)
            spent, offset = 0, offset + len(part.branches)

    def _run_together(self, parts: Sequence[Branch], drawing: SamplingParams) -> Iterator[Stem]:
        """Consecutive branches in runs of as many as share one."""
        left = iter(parts)
        heads = (branch[0] for branch in parts)
        for chunk in chunked(heads, drawing.batch(self.batches.rollout), self.stage.form.together):
            yield Stem([next(left) for _ in chunk])

    def _record(self, stem: Stem, plan: Plan, drawing: SamplingParams) -> RecordedChunk:
        check = self.exactness.is_new and not stem.known  # what was predicted of a known step is a ghost's
        recorder = Recorder(stem.rows, plan, drawing.sampling, known=stem.known, check=check)
        session = PipelineRun(on_step=recorder, ghost=lambda iteration: iteration <= stem.last_known)
        output = self._run(session, stem.rows, drawing.call)
        require_denoisers(self.stage, session)
        latents = recorder.latents() if plan.keep_latents else None
        samples = self._samples(stem.rows, output, latents, drawing.call, session, recorder.last_state)
        manner = self.stage.form.manner(stem.rows[0])
        return RecordedChunk(stem.rows, drawing, recorder, samples, session.num_forwards + stem.num_forwards, manner)

    def settle_showing(self, prompts: Sequence[Prompt], drawing: SamplingParams) -> None:
        """Finds out how rows bring what they show, before any is drawn, for whoever runs several at once."""
        rows = [DenoisingRow(prompt=prompt, seed=0, group=n, member=0) for n, prompt in enumerate(prompts)]
        shown = [row for row in rows if self.stage.form.shows(row)]
        if shown and not self.stage.form.is_proven:
            self._examine(shown[:1], drawing)

    def _samples(
        self,
        rows: Sequence[DenoisingRow],
        output: Any,
        latents: Sequence[Tensor] | None,
        call: Mapping[str, Any],
        session: PipelineRun,
        state: Tensor | None,
    ) -> list[Sample]:
        """What rewards see of a run's output, and what of it is no result."""
        found = finite_states(state, len(rows))
        failures = failures_of(output, len(rows), finite_states=found, decoded=session.decoded)
        frame_rate = self._frame_rate(call)
        samples = samples_of(rows, output, latents, rate=self.sampling_rate, frame_rate=frame_rate, failures=failures)
        warn_of([sample.failure for sample in samples], type(self.stage.pipeline).__name__, self.warned)
        return samples

    def _frame_rate(self, call: Mapping[str, Any]) -> float | None:
        asked = next((call[name] for name in FRAME_RATE_ARGUMENTS if call.get(name) is not None), None)
        return asked if self.frame_rate is None else self.frame_rate

    def _settle_batches(self, part: RowSet) -> None:
        """Finds out before the first samples without noise whether rows may share a run; they have no densities."""
        rows, drawing = part.rows, part.drawing
        if self.batches.rollout == 1 or len(rows) == 1:
            return
        if self.exactness.is_new:
            alone = [replace(row, branching=NO_BRANCHING) for row in rows]
            self._examine(list({row.prompt.text: row for row in alone}.values())[:2], drawing)
        self.settle_showing([row.prompt for row in rows], drawing)

    def _examine(self, rows: Sequence[DenoisingRow], drawing: SamplingParams) -> None:
        """Draws rows, each a group of its own, for what is found out by it."""
        try:
            self._drawn([RowSet([[row] for row in rows], drawing)], Plan())
        except MmgrpoError:  # what cannot be trained may still be sampled
            if self.stage.form.shows(rows[0]) and not self.stage.form.is_proven:
                self.stage.form = replace(self.stage.form, showing=MediaBatching.ALONE)


def _failed_call(arguments: Mapping[str, Any], error: Exception) -> RowsError:
    names = ", ".join(sorted(arguments))
    return RowsError(f"called with {names} it fails with {type(error).__name__}: {error}")
