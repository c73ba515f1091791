"""Sampling of rollouts: pipeline runs, shared prefixes of groups, and checks of the first rows of each kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import MmgrpoError, PolicyError
from mmgrpo.splits import NO_BRANCHING
from mmgrpo.system.out_of_memory import is_out_of_memory
from mmgrpo.types import Plan, Prompt, Rollout, Sample

from .batches import Batches, chunked
from .buckets import RowSet
from .call_form import RewoundError, RowsError
from .chunks import RecordedChunk, assemble
from .conditioning import MediaBatching
from .denoising_rows import INITIAL_NOISE, DenoisingRow
from .denoising_trace import DenoisingTrace
from .exactness import CALL_ERRORS, Exactness
from .failures import FIXES, STATES, failures_of, finite_states, warn_of
from .instrumented_pipeline import InstrumentedPipeline, require_denoisers
from .latent_preview import with_decoded_latent
from .outputs import latent_size, samples_of, undecoded_samples
from .parity import BatchParity
from .pipeline_run import PipelineRun, StepCall, Stop
from .recorder import Recorder, owner_of, split_rows
from .sampler_steps import StepRecorder
from .sampling_params import SamplingParams
from .state_sharing import Branch, Stem, branches

logger = logging.getLogger(__name__)

INITIAL = 1e-2  # tolerance of a state's elements: an image encoded in another batch rounds differently
OUTPUT_TYPE = "output_type"
FRAME_RATE_ARGUMENTS = ("frame_rate", "fps", "target_fps")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerLoop:
    """Samples the rows of rollouts.

    Attributes:
        instrumented: the pipeline.
        batches: batch sizes.
        exactness: replay measurements of the first rows of each kind.
        parity: compares rows alone with rows in a batch with longer prompts.
        segments: segment lengths of a rollout, in steps.
        keeps_steps: whether samples without noise that are trained on keep their steps.
        evaluation_call: overrides the call for deterministic samples that are not renoised and trained on.
        frame_rate: frames per second of videos; None: from the call.
        sampling_rate: of the pipeline's audio, in Hz, if known.
        warned: reasons of failed samples that were logged.
    """

    instrumented: InstrumentedPipeline
    batches: Batches
    exactness: Exactness
    parity: BatchParity
    segments: tuple[int, ...] | None
    keeps_steps: bool
    evaluation_call: Mapping[str, Any]
    frame_rate: float | None
    sampling_rate: int | None
    warned: set[str] = field(default_factory=set)

    def stochastic(self, row_sets: Sequence[RowSet], plan: Plan) -> Rollout:
        """The rows with their recorded decisions."""
        chunks = self._sample(row_sets, plan)
        rollout = assemble(chunks, plan, self.segments)
        is_measured = plan.trained or not self.instrumented.approximations
        needs_full = is_measured and any(self.exactness.needs_full(chunk.kind, chunk.stochastic) for chunk in chunks)
        if needs_full and self.instrumented.approximations:
            keys = ", ".join(approximation.key for approximation in self.instrumented.approximations)
            raise PolicyError(
                f"a step of {type(self.instrumented.pipeline).__name__} depends on the denoiser's outputs at earlier "
                f"steps, so that its log-probability cannot be computed where these were approximated: remove {keys}"
            )
        trace = replace(rollout.trace, run_ghosts=needs_full)
        return replace(rollout, trace=trace, num_unbatched=len(rollout.samples) if self.batches.alone else 0)

    def deterministic(self, row_sets: Sequence[RowSet], plan: Plan) -> Rollout:
        """The rows sampled by the stock pipeline with its stock sampler; nothing is recorded."""
        self._ensure_batch_sizes(row_sets[0])
        outputs: list[tuple[DenoisingRow, Sample, SamplingParams]] = []
        num_forwards, T = 0, 1
        overrides = {} if plan.for_rescoring else self.evaluation_call
        calls = [{**row_set.params.call, **overrides, **row_set.params.changed_call} for row_set in row_sets]
        for row_set, call in zip(row_sets, calls, strict=True):
            self.parity.ensure(row_set.rows, call)
        for row_set, call in zip(row_sets, calls, strict=True):
            size = row_set.params.batch(self.batches.rollout)
            for chunk in chunked(row_set.rows, size, self.instrumented.form.can_share_run):
                recorder = StepRecorder() if self.keeps_steps and plan.for_rescoring else None
                run = PipelineRun(on_step=None, is_untrained=untrained_iterations(plan), recorder=recorder)
                output = self._run(run, chunk, self._decoding(call, plan))
                states = [] if run.last_state is None else [run.last_state]
                latents = split_rows(states[0], len(chunk)) if plan.keep_latents and states else None
                samples = self._samples(chunk, output, latents, call, run, states, plan)
                if recorder is not None:
                    steps_of_rows = recorder.by_row(len(chunk))
                    samples = [replace(s, sampler_steps=t) for s, t in zip(samples, steps_of_rows, strict=True)]
                plan.emit_samples(samples)
                outputs += [(row, sample, row_set.params) for row, sample in zip(chunk, samples, strict=True)]
                num_forwards, T = num_forwards + run.num_forwards, max(T, run.iteration + 1)
        outputs.sort(key=lambda output: output[0].entry)
        rows, samples, row_params = zip(*outputs, strict=True)
        B = len(rows)
        return Rollout(
            samples=samples,
            prompt_index_B=torch.tensor([row.group for row in rows]),
            old_logprob_BT=torch.zeros(B, T),
            mask_BT=torch.zeros(B, T, dtype=torch.bool),
            state_BT=torch.arange(B * T).reshape(B, T),
            segment_BT=torch.arange(T).expand(B, T),
            trace=DenoisingTrace(rows=rows, row_params=row_params, transitions=()),
            num_forwards=num_forwards,
        )

    def _sample(self, row_sets: Sequence[RowSet], plan: Plan) -> list[RecordedChunk]:
        """All rows, run by run; the first of each kind is checked before its samples are emitted."""
        chunks: list[RecordedChunk] = []
        try:
            return self._sample_chunks(row_sets, plan, chunks)
        except RewoundError:
            self.instrumented.calls_step_twice = True
            return self._sample(row_sets, plan)
        except RowsError as error:
            if chunks or self.instrumented.form.single:
                raise
            rows = [row for row_set in row_sets for row in row_set.rows]
            first = next((row for row in rows if self.instrumented.form.has_media(row)), rows[0])
            if not self._try_next_batching(first, str(error)):
                self._require_first_step(rows[0], row_sets[0].params)
                self._run_singly(f"{type(self.instrumented.pipeline).__name__} does not take rows as lists: {error}")
            return self._sample(row_sets, plan)

    def _sample_chunks(
        self, row_sets: Sequence[RowSet], plan: Plan, chunks: list[RecordedChunk]
    ) -> list[RecordedChunk]:
        """All rows, appended to ``chunks`` run by run."""
        for stem, params in ((stem, row_set.params) for row_set in row_sets for stem in self._stems(row_set, plan)):
            chunk = self._record(stem, plan, params)
            if reason := self._batch_dependence(chunk, plan):
                message = f"a row of {type(self.instrumented.pipeline).__name__} depends on its batch: {reason}"
                if chunks:
                    raise PolicyError(f"{message}; set policy.rollout_batch and policy.update_batch to 1")
                if not self._try_next_batching(chunk.rows[0], reason):
                    self.batches.run_alone(message)
                return self._sample_chunks(row_sets, plan, chunks)
            if not chunks and any(self.parity.ensure(row_set.rows, row_set.params.call) for row_set in row_sets):
                return self._sample_chunks(row_sets, plan, chunks)
            self.exactness.excess_noise = max(self.exactness.excess_noise, chunk.excess_noise)
            plan.emit_samples(chunk.samples)
            chunks.append(chunk)
        return chunks

    def _try_next_batching(self, row: DenoisingRow, reason: str) -> bool:
        """Switches to the next way of batching media; False if there is none."""
        form = self.instrumented.form
        if not form.has_media(row) or form.media_batching.following is form.media_batching:
            return False
        self.instrumented.form = replace(form, media_batching=form.media_batching.following)
        following = form.media_batching.following.value
        logger.info("images passed as %s: %s. Next: %s", form.media_batching.value, reason, following)
        return True

    def _require_first_step(self, row: DenoisingRow, params: SamplingParams) -> None:
        """Raises RowsError if a single row fails too, so that lists of rows are not the cause."""

        def stop(call: StepCall) -> Tensor:
            raise Stop

        arguments = replace(self.instrumented.form, single=True).arguments([row], params.call)
        try:
            self.instrumented.run(PipelineRun(on_step=stop), arguments, seed=row.seed)
        except MmgrpoError:
            return
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            raise _failed_call(arguments, error) from error

    def _run_singly(self, reason: str) -> None:
        """Runs every row alone, with its prompt as a string and its generator without a list."""
        self.batches.run_alone(reason)
        self.instrumented.form = replace(self.instrumented.form, single=True)

    def _run(self, run: PipelineRun, rows: Sequence[DenoisingRow], call: Mapping[str, Any]) -> Any:
        """The pipeline's output for rows. Raises RowsError if its first call fails with any of ``CALL_ERRORS``."""
        arguments = self.instrumented.form.arguments(rows, call)
        try:
            return self.instrumented.run(run, arguments, seed=rows[0].seed)
        except MmgrpoError:
            raise
        except CALL_ERRORS as error:
            if is_out_of_memory(error):
                raise
            if not self.exactness.is_empty and (
                self.instrumented.form.is_verified or not self.instrumented.form.has_media(rows[0])
            ):
                raise
            raise _failed_call(arguments, error) from error

    def _batch_dependence(self, chunk: RecordedChunk, plan: Plan) -> str:
        """Why the rows of a run, if they are the first of their kind, have to run alone; empty if they do not."""
        if self.exactness.has_measured(chunk.kind, chunk.stochastic):
            return ""
        form, first = self.instrumented.form, chunk.rows[0]
        sizes = [chunk.params.batch(size) for size in (self.batches.rollout, self.batches.update)]
        alone = max(sizes) == 1 or not form.can_share_run(first, first)
        if form.has_media(first) and not alone and (gap := self._initial_gap(chunk)):
            return gap
        if not plan.trained and self.instrumented.approximations:
            return ""  # none of its decisions is computed again
        rollout = assemble([chunk], plan, self.segments)
        if not bool(rollout.mask_BT.any()) and bool((rollout.noise.std_BT > 0).any() if rollout.noise else False):
            raise PolicyError(
                f"no sample of {type(self.instrumented.pipeline).__name__} has finite latents: {FIXES[STATES]}"
            )
        reason = self.exactness.measure(rollout, chunk.kind, chunk.stochastic, alone=alone, form=form)
        if form.has_media(first) and not reason:
            self.instrumented.form = replace(form, is_verified=True)
        return reason

    def _initial_gap(self, chunk: RecordedChunk) -> str:
        """Why rows with media start from another state alone than in their run; empty if they do not."""
        initial = chunk.recorder.initial
        assert initial is not None
        for number in {0, len(chunk.rows) - 1}:
            row = chunk.rows[number]
            states: list[Tensor] = []

            def first_state(call: StepCall, states: list[Tensor] = states) -> Tensor:
                states.append(call.sample)
                raise Stop

            run = PipelineRun(on_step=first_state, ghost=lambda iteration: True)
            self._run(run, [row], chunk.params.call)
            in_batch = initial[number : number + 1] if len(chunk.rows) > 1 else initial
            if states and not torch.allclose(states[0].float(), in_batch.float(), rtol=INITIAL, atol=INITIAL):
                return "alone it starts from another noise or image"
        return ""

    def _stems(self, row_set: RowSet, plan: Plan) -> Iterator[Stem]:
        """Runs of rows to record, with the steps that each shares with rows already sampled."""
        for stem in self._batch_branches(branches(row_set.rows, INITIAL_NOISE), row_set.params):
            yield from self._split(stem, plan, row_set.params)

    def _split(self, stem: Stem, plan: Plan, params: SamplingParams) -> Iterator[Stem]:
        """The runs of a stem after all its splits; each state before a split is run once, here."""
        split = stem.next_split
        if split is None:
            yield stem
            return
        subbranches = [branches(branch, split) for branch in stem.branches]
        check = self.exactness.is_empty and not stem.recorded
        recorder = Recorder(
            stem.rows,
            plan,
            params.step_sampler,
            recorded=stem.recorded,
            branch=[[branch[0] for branch in group] for group in subbranches],
            branch_at=split,
            check=check,
        )
        run = PipelineRun(
            on_step=recorder,
            ghost=lambda iteration: iteration <= stem.last_recorded,
            stop_before=split + 1,
            is_untrained=untrained_iterations(plan),
        )
        self.instrumented.run(run, self.instrumented.form.arguments(stem.rows, params.call), seed=stem.rows[0].seed)
        num_forwards, offset, owner = stem.num_forwards + run.num_forwards, 0, owner_of(subbranches)
        for child in self._batch_branches([branch for group in subbranches for branch in group], params):
            index = torch.arange(offset, offset + len(child.branches))
            recorded = tuple(s.rows(index if s.iteration == split else owner[index]) for s in recorder.steps)
            child = replace(child, split_at=split, recorded=recorded, num_forwards=num_forwards)
            yield from self._split(child, plan, params)
            num_forwards, offset = 0, offset + len(child.branches)

    def _batch_branches(self, items: Sequence[Branch], params: SamplingParams) -> Iterator[Stem]:
        """Consecutive branches, batched into runs."""
        remaining = iter(items)
        heads = (branch[0] for branch in items)
        for chunk in chunked(heads, params.batch(self.batches.rollout), self.instrumented.form.can_share_run):
            yield Stem([next(remaining) for _ in chunk])

    def _record(self, stem: Stem, plan: Plan, params: SamplingParams) -> RecordedChunk:
        check = self.exactness.is_empty and not stem.recorded  # a recorded first step is a ghost
        recorder = Recorder(stem.rows, plan, params.step_sampler, recorded=stem.recorded, check=check)
        run = PipelineRun(
            on_step=recorder,
            ghost=lambda iteration: iteration <= stem.last_recorded,
            is_untrained=untrained_iterations(plan),
        )
        output = self._run(run, stem.rows, self._decoding(params.call, plan))
        require_denoisers(self.instrumented, run)
        latents = recorder.latents() if plan.keep_latents else None
        samples = self._samples(stem.rows, output, latents, params.call, run, recorder.last_states, plan)
        input_kind = self.instrumented.form.input_kind(stem.rows[0])
        return RecordedChunk(stem.rows, params, recorder, samples, run.num_forwards + stem.num_forwards, input_kind)

    def ensure_media_batching(self, prompts: Sequence[Prompt], params: SamplingParams) -> None:
        """Selects how the media of several rows are batched, before callers batch rows themselves."""
        rows = [DenoisingRow(prompt=prompt, seed=0, group=n, member=0) for n, prompt in enumerate(prompts)]
        media_rows = [row for row in rows if self.instrumented.form.has_media(row)]
        if media_rows and not self.instrumented.form.is_verified:
            self._probe(media_rows[:1], params)

    def decoded(self, sample: Sample, call: Mapping[str, Any]) -> Sample:
        """A sample with the image, video or audio of its latent."""
        rate, frame_rate = self.sampling_rate, self._frame_rate(call)
        return with_decoded_latent(sample, self.instrumented, call, rate=rate, frame_rate=frame_rate)

    def _samples(
        self,
        rows: Sequence[DenoisingRow],
        output: Any,
        latents: Sequence[Tensor] | None,
        call: Mapping[str, Any],
        run: PipelineRun,
        states: Sequence[Tensor],
        plan: Plan,
    ) -> list[Sample]:
        """The samples of a run's output, with the failures among them."""
        finite = finite_states(states, len(rows))
        failures = failures_of(output, len(rows), finite_states=finite, decoded=run.decoded)
        if self._decodes(plan):
            rate, frame_rate = self.sampling_rate, self._frame_rate(call)
            samples = samples_of(rows, output, rate=rate, frame_rate=frame_rate, failures=failures)
        else:
            self._require_single_state(states)
            samples = undecoded_samples(rows, failures)
        if latents is not None:
            size = latent_size(call)
            pairs = zip(samples, latents, strict=True)
            samples = [replace(sample, latent=latent, latent_size=size) for sample, latent in pairs]
        warn_of([sample.failure for sample in samples], type(self.instrumented.pipeline).__name__, self.warned)
        return samples

    def _decodes(self, plan: Plan) -> bool:
        return plan.decode or not self.instrumented.form.takes(OUTPUT_TYPE)

    def _decoding(self, call: Mapping[str, Any], plan: Plan) -> Mapping[str, Any]:
        """The arguments of a run, whose output is the final latent if the plan does not decode it."""
        return call if self._decodes(plan) else {**call, OUTPUT_TYPE: "latent"}

    def _require_single_state(self, states: Sequence[Tensor]) -> None:
        if len(states) != 1:
            raise PolicyError(
                f"{type(self.instrumented.pipeline).__name__} decodes {len(states)} final states per sample, and "
                "Sample.latent is one: remove reads_latents from the rewards, or use rewards of decoded samples"
            )

    def _frame_rate(self, call: Mapping[str, Any]) -> float | None:
        from_call = next((call[name] for name in FRAME_RATE_ARGUMENTS if call.get(name) is not None), None)
        return from_call if self.frame_rate is None else self.frame_rate

    def _ensure_batch_sizes(self, row_set: RowSet) -> None:
        """Measures, before the first deterministic samples, if rows can share a run: they have no log-probabilities."""
        rows, params = row_set.rows, row_set.params
        if self.batches.rollout == 1 or len(rows) == 1:
            return
        if self.exactness.is_empty:
            alone = [replace(row, branching=NO_BRANCHING) for row in rows]
            self._probe(list({row.prompt.text: row for row in alone}.values())[:2], params)
        self.ensure_media_batching([row.prompt for row in rows], params)

    def _probe(self, rows: Sequence[DenoisingRow], params: SamplingParams) -> None:
        """Samples rows, each as a separate group, only to measure how they run."""
        try:
            self._sample([RowSet([[row] for row in rows], params)], Plan())
        except MmgrpoError:  # a pipeline that cannot be trained can still be sampled
            if self.instrumented.form.has_media(rows[0]) and not self.instrumented.form.is_verified:
                self.instrumented.form = replace(self.instrumented.form, media_batching=MediaBatching.ALONE)


def untrained_iterations(plan: Plan) -> Callable[[int], bool] | None:
    """Which iterations of a rollout may be approximated: those without a trained decision; None: none may.

    Of samples that are scored alone, such as scouts, all. Of deterministic samples those that are renoised and trained
    on, whose own steps are no decisions; evaluations run the complete denoiser.
    """
    if not plan.trained:
        return lambda iteration: True
    if plan.deterministic:
        return (lambda iteration: True) if plan.for_rescoring else None
    stochastic = plan.stochastic
    return None if stochastic is None else lambda iteration: iteration not in stochastic


def _failed_call(arguments: Mapping[str, Any], error: Exception) -> RowsError:
    names = ", ".join(sorted(arguments))
    return RowsError(f"the pipeline's call with {names} fails with {type(error).__name__}: {error}")
