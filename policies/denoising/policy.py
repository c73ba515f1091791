"""Any stock diffusers pipeline as a policy."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.errors import ConfigError, MmgrpoError, PolicyError
from mmgrpo.policies.denoising.adapted import adapter_targets
from mmgrpo.policies.denoising.calls import RewoundError, RowsError
from mmgrpo.policies.denoising.chunks import (
    Chunk,
    Stem,
    assemble,
    chunked,
    first_stochastic,
    make_groups,
    state_batches,
)
from mmgrpo.policies.denoising.components import prepared_denoisers
from mmgrpo.policies.denoising.exactness import WRONG_CALL, Exactness
from mmgrpo.policies.denoising.loading import (
    choices_of,
    compile_denoiser,
    configured_scheduler,
    decision_scheduler,
    load_pipeline,
)
from mmgrpo.policies.denoising.memo import Memo
from mmgrpo.policies.denoising.outputs import media_of, samples_of
from mmgrpo.policies.denoising.record import Recorder
from mmgrpo.policies.denoising.replay import Replayer
from mmgrpo.policies.denoising.sampling import Sampling
from mmgrpo.policies.denoising.schedules import fitting_sampler
from mmgrpo.policies.denoising.session import Session, Stage, require_denoisers
from mmgrpo.policies.denoising.settings import DenoisingSettings
from mmgrpo.policies.denoising.supervised import Targets, supervised_loss
from mmgrpo.policies.denoising.trace import Row, Trace, shows_media
from mmgrpo.policies.denoising.values import require_known, value_N
from mmgrpo.policies.weights import DiffusersFiles, Weights
from mmgrpo.policy import Choosing, Policy, Scheduled, Supervised
from mmgrpo.types import Evaluation, Example, Plan, Prompt, Rollout, Sample, SupervisedLoss
from mmgrpo.values import REFERENCE, Value

logger = logging.getLogger(__name__)

EXACTNESS = {torch.float32: 1e-5, torch.bfloat16: 1e-3}


class DenoisingPolicy(Policy, Supervised, Scheduled, Choosing):
    """A diffusers pipeline whose denoising steps are decisions.

    The pipeline itself is run, with a scheduler of its own class that draws and records each transition; to score a
    decision again it is run once more with the same arguments, passing through the other iterations as ghosts. No
    part of it is per-model.

    Attributes:
        pipeline: the wrapped pipeline, usable as ever between calls.
        settings: how it draws and what is trained.
    """

    settings_type = DenoisingSettings

    def __init__(self, pipeline: Any, settings: DenoisingSettings | Mapping[str, Any] | None = None) -> None:
        """Wraps a live pipeline; everything but what is trained is frozen.

        Args:
            pipeline: any diffusers pipeline with a ``scheduler``, on its device.
            settings: ``DenoisingSettings`` or a mapping of its fields.
        """
        if settings is None or isinstance(settings, Mapping):
            settings = DenoisingSettings(**(settings or {}))
        denoisers = prepared_denoisers(pipeline, settings)
        dtype = next(next(iter(denoisers.values())).parameters()).dtype
        if dtype == torch.float16:
            raise ConfigError(
                "float16 gradients underflow without a loss scaler; load the pipeline in bfloat16 or float32"
            )
        self.pipeline = pipeline
        self.settings = settings
        scheduler = configured_scheduler(pipeline.scheduler, settings.scheduler)
        decisions = decision_scheduler(scheduler)
        self._sampling = Sampling(
            sampler=settings.sampler or fitting_sampler(decisions),
            strength=settings.strength,
            density=settings.density,
            reduction=settings.reduction,
        )
        self._sampling.check_scheduler(decisions)
        self._choices = choices_of(scheduler, decisions, list(denoisers.values()))
        for choice in self._choices:
            logger.warning("%s: %s", type(pipeline).__name__, choice)
        if settings.sampler is None:
            self._choices.append(f"sampler {self._sampling.sampler}, which fits {type(decisions).__name__}")
        targets = adapter_targets(denoisers) if settings.lora and not settings.lora.targets else ()
        self._weights = Weights(denoisers, settings.lora, targets, DiffusersFiles())
        memo = Memo(settings.memo_bytes)
        self._stage = Stage(pipeline, scheduler, decisions, tuple(denoisers), memo, columns=settings.columns)
        if settings.lora is None and dtype != torch.float32:
            self._stage.autocast(dtype)  # the trained weights are float32 masters, the arithmetic stays as loaded
        if settings.compile:
            for module in denoisers.values():
                compile_denoiser(module)
        self._targets = Targets(self._stage)
        alone = shows_media({**settings.call, **settings.evaluation_call})
        self._rollout_batch = 1 if alone else settings.rollout_batch
        self._update_batch = 1 if alone else settings.update_batch
        self._alone = False  # whether rows were found to depend on their batch
        tolerance = EXACTNESS.get(dtype, max(EXACTNESS.values()))
        self._exactness = Exactness(
            name=type(pipeline).__name__, replay=self._logprobs, tolerance=tolerance, unit=self._sampling.unit
        )

    @classmethod
    def from_config(
        cls, settings: DenoisingSettings | Mapping[str, Any], *, device: str | torch.device = "cpu"
    ) -> DenoisingPolicy:
        """Loads the pipeline from a path or hub id (or calls ``python:module:function``) and wraps it."""
        if isinstance(settings, Mapping):
            settings = DenoisingSettings(**settings)
        return cls(load_pipeline(settings).to(device), settings)

    @property
    def choices(self) -> tuple[str, ...]:
        """The sampler, the scheduler of the decisions and the caches, where the settings leave them open."""
        alone = ["rows depend on what shares their batch, so each runs alone"] if self._alone else []
        return (*self._choices, *alone)

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The denoiser's adapters, or all its weights; float32."""
        return self._weights.trainable

    @property
    def num_decisions(self) -> int:
        """Steps that can be stochastic: all but the last, which ends on the clean sample."""
        default = inspect.signature(type(self.pipeline).__call__).parameters.get("num_inference_steps")
        steps = self.settings.call.get("num_inference_steps", default.default if default else None)
        if not isinstance(steps, int):
            raise ConfigError("set policy.call.num_inference_steps: the pipeline has no default for it")
        return steps - 1

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Flow matching (or denoising score matching, by the scheduler's prediction type) on the examples' targets."""
        mean = supervised_loss(self._stage, self._targets, examples, self.settings.call, seeds=seeds)
        return SupervisedLoss(mean=mean, num_terms=len(examples))

    def save(self, directory: Path) -> None:
        """LoRA as diffusers' ``pytorch_lora_weights.safetensors``, full weights as ``save_pretrained`` folders."""
        self._weights.save(directory)

    def load(self, directory: Path) -> None:
        """Restores what ``save`` wrote."""
        self._weights.load(directory)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Adapters off; for a full fine-tune, copies of the weights as they were when first asked for."""
        if self._weights.lora is not None:
            with self._weights.adapters_off():
                yield
        else:
            with self._stage.substituted(self._weights.frozen_copies()):
                yield

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Draws ``group_size`` images or videos per prompt; a decision is one denoising step.

        With ``plan.share_noise`` the group starts from one noise, and its deterministic prefix and its first
        stochastic step run once for all members.
        """
        plan = plan or Plan()
        groups = make_groups(prompts, group_size, seed, plan)
        if plan.deterministic:
            return self._deterministic([row for members in groups for row in members], plan)
        chunks = self._drawn(groups, plan)
        rollout = assemble(chunks, plan, self.settings.segments)
        needs_full = any(self._exactness.needs_full(chunk.shape, chunk.stochastic) for chunk in chunks)
        trace = replace(rollout.trace, run_ghosts=needs_full)
        return replace(rollout, trace=trace, num_alone=len(rollout.samples) if self._alone else 0)

    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """Streams one slice per decision and batch of distinct states.

        Rows that share a state share its forward and its backward. Of values there are the log-probability of the
        reference and the divergences of ``maths.divergences`` from it; Gaussian ones of ``old`` where the plan asked
        for them. The entropy of a Gaussian step is a constant of the schedule, so none is given.
        """
        require_known(values)
        chosen = list(range(len(rollout.samples))) if rows is None else [int(row) for row in rows]
        for column in range(rollout.shape[1]):
            kept = [row for row in chosen if bool(rollout.mask_BT[row, column])]
            for batch in state_batches(rollout, kept, column, self._update_batch):
                yield self._score(rollout, batch, column, values)

    def _drawn(self, groups: Sequence[Sequence[Row]], plan: Plan) -> list[Chunk]:
        """All rows, run after run; the first of each shape is examined before its samples are handed over."""
        chunks: list[Chunk] = []
        try:
            return self._drawn_as_called(groups, plan, chunks)
        except RewoundError:
            self._stage.asks_twice = True
            return self._drawn(groups, plan)
        except RowsError as error:
            if chunks or self._stage.form.single:
                raise
            self._run_singly(f"{type(self.pipeline).__name__} does not take rows as lists: {error}")
            return self._drawn_as_called(groups, plan, chunks)

    def _drawn_as_called(self, groups: Sequence[Sequence[Row]], plan: Plan, chunks: list[Chunk]) -> list[Chunk]:
        """All rows, put into ``chunks`` one by one."""
        for stem in self._stems(groups, plan):
            chunk = self._record(stem, plan)
            if reason := self._batch_dependence(chunk, plan):
                said = f"a row of {type(self.pipeline).__name__} depends on its batch: {reason}"
                if chunks:
                    raise PolicyError(f"{said}; set policy.rollout_batch and policy.update_batch to 1")
                self._run_alone(said)
                return self._drawn_as_called(groups, plan, chunks)
            plan.hand_over(chunk.samples)
            chunks.append(chunk)
        return chunks

    def _run_alone(self, why: str) -> None:
        """Every row has a run of the pipeline to itself from here on."""
        logger.warning("%s. From here on every row runs alone, in rollouts and in updates", why)
        self._alone, self._rollout_batch, self._update_batch = True, 1, 1

    def _run_singly(self, why: str) -> None:
        """Every row runs alone, its prompt a string and its generator no list."""
        self._run_alone(why)
        self._stage.form = replace(self._stage.form, single=True)

    def _run(self, session: Session, rows: Sequence[Row], call: Mapping[str, Any]) -> Any:
        """What the pipeline gives for rows. Raises RowsError where the first call of it fails, however it does."""
        arguments = self._stage.form.arguments(rows, call)
        try:
            return self._stage.run(session, arguments, seed=rows[0].seed)
        except (MmgrpoError, torch.OutOfMemoryError):
            raise
        except WRONG_CALL as error:
            if not self._exactness.is_new:
                raise
            given = ", ".join(sorted(arguments))
            raise RowsError(f"called with {given} it fails with {type(error).__name__}: {error}") from error

    def _batch_dependence(self, chunk: Chunk, plan: Plan) -> str:
        """Why the rows of a run, if they are the first of their kind, have to run alone; empty where they need not."""
        if self._exactness.knows(chunk.shape, chunk.stochastic):
            return ""
        alone = max(self._rollout_batch, self._update_batch) == 1 or chunk.rows[0].has_media
        rollout = assemble([chunk], plan, self.settings.segments)
        return self._exactness.measure(rollout, chunk.shape, chunk.stochastic, alone=alone)

    def _stems(self, groups: Sequence[Sequence[Row]], plan: Plan) -> Iterator[Stem]:
        """Runs of rows to record; where groups share their noise, with the shared prefix already drawn."""
        size = self._rollout_batch
        if not plan.share_noise:
            yield from (Stem(chunk) for chunk in chunked((row for members in groups for row in members), size))
            return
        members_of = {members[0].group: members for members in groups}
        first = first_stochastic(plan)
        for heads in chunked((members[0] for members in groups), size):
            branch = [members_of[head.group] for head in heads]
            recorder = Recorder(
                heads, plan, self._sampling, branch=branch, branch_at=first, check=self._exactness.is_new
            )
            session = Session(on_step=recorder, stop_before=first + 1)
            self._stage.run(session, self._stage.form.arguments(heads, self.settings.call), seed=heads[0].seed)
            spent, offset = session.num_forwards, 0
            for chunk in chunked((row for members in branch for row in members), size):
                index = torch.arange(offset, offset + len(chunk))
                head = index // len(branch[0])
                known = tuple(d.rows(index if d.iteration == first else head) for d in recorder.drawn)
                yield Stem(chunk, known, spent)
                spent, offset = 0, offset + len(chunk)

    def _record(self, stem: Stem, plan: Plan) -> Chunk:
        check = self._exactness.is_new and not stem.known  # what was predicted of a known step is a ghost's
        recorder = Recorder(stem.rows, plan, self._sampling, known=stem.known, check=check)
        last_known = stem.known[-1].iteration if stem.known else -1
        session = Session(on_step=recorder, ghost=lambda iteration: iteration <= last_known)
        output = self._run(session, stem.rows, self.settings.call)
        require_denoisers(self._stage, session)
        samples = samples_of(stem.rows, media_of(output, len(stem.rows)))
        return Chunk(stem.rows, recorder, samples, session.num_forwards + stem.num_forwards)

    def _deterministic(self, rows: Sequence[Row], plan: Plan) -> Rollout:
        """The stock pipeline with its stock sampler; nothing is recorded."""
        self._settle_batches(rows)
        samples: list[Sample] = []
        call = {**self.settings.call, **self.settings.evaluation_call}
        num_forwards, T = 0, 1
        for chunk in chunked(rows, self._rollout_batch):
            session = Session(on_step=None)
            output = self._run(session, chunk, call)
            drawn = samples_of(chunk, media_of(output, len(chunk)))
            plan.hand_over(drawn)
            samples += drawn
            num_forwards, T = num_forwards + session.num_forwards, session.iteration + 1
        B = len(rows)
        return Rollout(
            samples=samples,
            prompt_index_B=torch.tensor([row.group for row in rows]),
            old_logprob_BT=torch.zeros(B, T),
            mask_BT=torch.zeros(B, T, dtype=torch.bool),
            state_BT=torch.arange(B * T).reshape(B, T),
            segment_BT=torch.arange(T).expand(B, T),
            trace=Trace(rows=tuple(rows), transitions=()),
            num_forwards=num_forwards,
        )

    def _settle_batches(self, rows: Sequence[Row]) -> None:
        """Finds out before the first samples without noise whether rows may share a run; they have no densities."""
        if not self._exactness.is_new or self._rollout_batch == 1 or len(rows) == 1:
            return
        unlike = list({row.prompt.text: [row] for row in rows}.values())[:2]
        try:
            self._drawn(unlike, Plan())
        except MmgrpoError:  # what cannot be trained may still be sampled
            return

    def _score(self, rollout: Rollout, rows: list[int], column: int, values: Collection[Value]) -> Evaluation:
        num_forwards = 0
        other = None
        states = rollout.state_BT[rows, column].tolist()
        if any(value.view == REFERENCE for value in values):
            with torch.no_grad(), self.reference():
                other, num_forwards = self._replay(rollout.trace, rows, column, states=states)
        now, spent = self._replay(rollout.trace, rows, column, states=states)
        logprob_N = now.logprob_N()
        if torch.is_grad_enabled() and not logprob_N.requires_grad:
            raise PolicyError(
                f"step {column} of {type(self.pipeline).__name__} is computed without grad: its loop calls the "
                "denoiser within torch.no_grad or on detached weights; only the decorator of __call__ is taken off"
            )
        return Evaluation(
            columns=(column,),
            logprob_BT=logprob_N[:, None],
            values={value: value_N(value, now, other, logprob_N)[:, None] for value in values},
            rows=torch.tensor(rows),
            num_forwards=num_forwards + spent,
        )

    def _replay(self, trace: Trace, rows: Sequence[int], column: int, *, states: Sequence[int]) -> tuple[Replayer, int]:
        """One run of the pipeline that is real at ``column`` alone; with its forwards.

        ``states`` says which of the rows were taken in one state: the pipeline runs each state once.
        """
        head_of: dict[int, int] = {}
        for row, state in zip(rows, states, strict=True):
            head_of.setdefault(state, row)
        order = {state: position for position, state in enumerate(head_of)}
        heads = list(head_of.values())
        device = trace.transitions[heads[0]][0].next_state.device
        replayer = Replayer(
            states=[trace.transitions[row] for row in heads],
            rows=[trace.transitions[row] for row in rows],
            state_of_N=torch.tensor([order[state] for state in states], device=device),
            iteration=column,
            sampling=self._sampling,
        )
        session = Session(on_step=replayer, ghost=lambda iteration: iteration != column, run_ghosts=trace.run_ghosts)
        arguments = self._stage.form.arguments([trace.rows[row] for row in heads], self.settings.call)
        self._stage.run(session, arguments, seed=trace.rows[heads[0]].seed, grad=torch.is_grad_enabled())
        return replayer, session.num_forwards

    def _logprobs(
        self, trace: Trace, rows: Sequence[int], column: int, *, states: Sequence[int], run_ghosts: bool
    ) -> Tensor:
        replayer, _ = self._replay(replace(trace, run_ghosts=run_ghosts), rows, column, states=states)
        return replayer.logprob_N().cpu()
