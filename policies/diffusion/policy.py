"""Any stock diffusers pipeline as a policy."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from mmgrpo.errors import ConfigError
from mmgrpo.layouts import move_modules
from mmgrpo.policy import (
    ModuleSharder,
    SupportsContextParallel,
    SupportsExport,
    SupportsNamedWeights,
    SupportsOffPolicyScoring,
    SupportsPromptOverride,
    SupportsResolvedSettings,
    SupportsSharding,
    SupportsSupervisedLoss,
    SupportsUnbatchedRows,
    SupportsWindows,
)
from mmgrpo.types import Evaluation, Example, OffPolicySample, Plan, Prompt, Rollout, SupervisedLoss
from mmgrpo.values import Value

from ..adapter_files import DiffusersFiles
from ..merging import merge_adapters
from ..model_source import DTYPES
from ..weights import Weights
from .batches import Batches
from .buckets import Buckets
from .chunks import SINGLE_STEP, make_groups
from .components import prepared_denoisers
from .denoising_rows import call_has_media
from .denoising_scorer import DenoisingScorer
from .denoising_values import require_denoising_values
from .encoder_cache import EncoderCache
from .exactness import BATCH_ROUNDING, Exactness
from .instrumented_pipeline import InstrumentedPipeline
from .lora_targets import adapter_targets
from .outputs import rate_of
from .parity import BatchParity
from .pipeline_loading import (
    choices_of,
    compile_denoiser,
    configured_scheduler,
    decision_scheduler,
    load_pipeline,
)
from .prompt_override import override_prompts, rows_by_call
from .renoising import RenoisedTrace, Renoiser, require_read_values
from .sampler_loop import SamplerLoop
from .sampling_params import SamplingParams, with_settings, with_tail
from .scheduler_families import fitting_sampler
from .sequence import split_sequence
from .settings import DenoisingSettings
from .signature import require_arguments
from .sizes import require_sizes
from .step_sampler import StepSampler
from .supervised_denoising import Targets, supervised_loss

logger = logging.getLogger(__name__)

NOTICED_EXCESS = 0.1
EXACTNESS = {torch.float32: 1e-5, torch.bfloat16: 1e-3}


class DenoisingPolicy(
    SupportsNamedWeights,
    SupportsSupervisedLoss,
    SupportsWindows,
    SupportsResolvedSettings,
    SupportsUnbatchedRows,
    SupportsOffPolicyScoring,
    SupportsPromptOverride,
    SupportsSharding,
    SupportsContextParallel,
    SupportsExport,
):
    """A diffusers pipeline whose denoising steps are decisions.

    The pipeline itself is run, with a scheduler of its own class that draws and records each transition; to score a
    decision again it is run once more with the same arguments, passing through the other iterations as ghosts. No
    part of it is per-model.

    Attributes:
        pipeline: the wrapped pipeline, usable as ever between calls.
        settings: the sampling and training settings.
        weights: LoRA as diffusers' ``pytorch_lora_weights.safetensors``, full weights as ``save_pretrained`` folders.
    """

    settings_type = DenoisingSettings

    def __init__(self, pipeline: Any, settings: DenoisingSettings | Mapping[str, Any] | None = None) -> None:
        """Wraps a live pipeline; everything but what is trained is frozen.

        Args:
            pipeline: any diffusers pipeline with a ``scheduler``, on its device.
            settings: ``DenoisingSettings`` or a mapping of its fields.
        """
        if settings is None or isinstance(settings, Mapping):
            settings = DenoisingSettings.of(settings or {})
        require_arguments(type(pipeline), settings)
        denoisers = prepared_denoisers(pipeline, settings)
        require_sizes(pipeline, denoisers, settings)
        dtype = next(next(iter(denoisers.values())).parameters()).dtype
        if dtype == torch.float16:
            raise ConfigError(
                "float16 gradients underflow without a loss scaler; load the pipeline in bfloat16 or float32"
            )
        self.pipeline = pipeline
        self.settings = settings
        scheduler = configured_scheduler(pipeline.scheduler, settings.scheduler)
        self._decisions = decision_scheduler(scheduler)
        sampling = StepSampler(
            sampler=settings.sampler or fitting_sampler(self._decisions),
            strength=settings.strength,
            last_std=settings.last_std,
            density=settings.density,
            reduction=settings.reduction,
        )
        sampling.check_scheduler(self._decisions)
        self._drawing = SamplingParams(sampling=sampling, call=settings.call)
        self._choices = choices_of(scheduler, self._decisions, list(denoisers.values()))
        for choice in self._choices:
            logger.warning("%s: %s", type(pipeline).__name__, choice)
        if settings.sampler is None:
            self._choices.append(f"sampler {sampling.sampler}, which fits {type(self._decisions).__name__}")
        targets = adapter_targets(denoisers) if settings.lora and not settings.lora.targets else ()
        weights = self.weights = Weights(denoisers, settings.lora, targets, DiffusersFiles(pipeline))
        if settings.adapter is not None:
            self.weights.load_initial(Path(settings.adapter))
        self._stage = InstrumentedPipeline(
            pipeline,
            scheduler,
            self._decisions,
            tuple(denoisers),
            EncoderCache(settings.memo_bytes),
            copies=lambda: weights.active_copies,
            columns=settings.columns,
            pictures=settings.pictures,
            decode=settings.decode,
        )
        if settings.lora is None and dtype != torch.float32:
            self._stage.autocast(dtype)  # the trained weights are float32 masters, the arithmetic stays as loaded
        if settings.compile:
            for module in denoisers.values():
                compile_denoiser(module)
        self._buckets = Buckets(settings.buckets)
        self._buckets.require_taken(self._stage.form)
        own_rate = rate_of(pipeline)
        if settings.sampling_rate and own_rate not in (None, settings.sampling_rate):
            raise ConfigError(
                f"policy.sampling_rate: the pipeline's own parts make sound of {own_rate} Hz; leave it out"
            )
        sampling_rate = own_rate or settings.sampling_rate
        self._targets = Targets(self._stage, sampling_rate)
        alone = call_has_media({**settings.call, **settings.evaluation_call})
        self._batches = Batches(1 if alone else settings.rollout_batch, 1 if alone else settings.update_batch)
        tolerance = EXACTNESS.get(dtype, max(EXACTNESS.values()))
        self._parity = BatchParity(
            stage=self._stage, batches=self._batches, tolerance=BATCH_ROUNDING * tolerance, dtype=dtype
        )
        self._reader = Renoiser(
            stage=self._stage,
            targets=self._targets,
            batches=self._batches,
            parity=self._parity,
            using=self.weights.using,
            reading=settings.reading,
            call=settings.call,
            buckets=self._buckets,
        )
        self._scorer = DenoisingScorer(stage=self._stage, batches=self._batches, using=self.weights.using)
        self._drafter = SamplerLoop(
            stage=self._stage,
            batches=self._batches,
            exactness=Exactness(
                name=type(pipeline).__name__,
                replay=self._scorer.logprobs,
                tolerance=tolerance,
                unit=sampling.unit,
            ),
            parity=self._parity,
            segments=settings.segments,
            evaluation_call=settings.evaluation_call,
            frame_rate=settings.frame_rate,
            sampling_rate=sampling_rate,
        )

    @classmethod
    def from_config(
        cls, settings: DenoisingSettings | Mapping[str, Any], *, device: str | torch.device = "cpu"
    ) -> DenoisingPolicy:
        """Loads the pipeline from a path or hub id (or calls ``python:module:function``) and wraps it."""
        if isinstance(settings, Mapping):
            settings = DenoisingSettings.of(settings)
        pipeline = load_pipeline(settings)
        modules = [one for one in pipeline.components.values() if isinstance(one, nn.Module)]
        move_modules(modules, lambda one: one.to(device), holder=pipeline)
        return cls(pipeline, settings)

    @property
    def resolved_settings(self) -> tuple[str, ...]:
        """The sampler, the scheduler of the decisions and the caches, where the settings leave them open."""
        found = ["rows depend on what shares their batch, so each runs alone"] if self._batches.alone else []
        form = self._stage.form
        if form.is_proven:
            found.append(f"what rows show is brought as {form.showing.value}")
        excess_noise = self._drafter.exactness.excess_noise
        if excess_noise > NOTICED_EXCESS:
            found.append(
                f"{self._drawing.sampling.sampler} takes steps so long that they leave up to {excess_noise:.2f} more "
                "noise than the next level holds, in latent units; sampler cps leaves none"
            )
        return (*self._choices, *found)

    def disable_row_batching(self) -> None:
        """A run of the pipeline for each row, in rollouts, updates and evaluations."""
        if not self._batches.alone:
            name = type(self.pipeline).__name__
            self._batches.run_alone(f"on another process a row of {name} depends on its batch")

    @property
    def num_decisions(self) -> int:
        """Steps that can be stochastic: all, but without ``last_std`` the last, which ends on the clean sample.

        Raises ConfigError where that leaves none.
        """
        steps = self._num_steps
        if steps == 1 and not self.settings.last_std:
            raise ConfigError(f"policy.call.num_inference_steps: {SINGLE_STEP}")
        return steps if self.settings.last_std else steps - 1

    @property
    def _num_steps(self) -> int:
        default = inspect.signature(type(self.pipeline).__call__).parameters.get("num_inference_steps")
        steps = self.settings.call.get("num_inference_steps", default.default if default else None)
        if not isinstance(steps, int):
            raise ConfigError("set policy.call.num_inference_steps: the pipeline has no default for it")
        return steps

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Flow matching (or denoising score matching, by the scheduler's prediction type) on the examples' targets."""
        settings = self.settings
        self._drafter.settle_showing([example.prompt for example in examples], self._drawing)
        mean = supervised_loss(
            self._stage,
            self._targets,
            examples,
            settings.call,
            settings.supervision,
            buckets=self._buckets,
            parity=self._parity,
            seeds=seeds,
        )
        return SupervisedLoss(mean=mean, num_terms=len(examples))

    def export(self, directory: Path, *, dtype: str | None = None) -> None:
        """The whole pipeline by ``save_pretrained``; ``dtype`` is that of all its components."""
        merge_adapters(self.weights, dtype)
        if dtype is not None:
            for component in self.pipeline.components.values():
                if isinstance(component, nn.Module):
                    component.to(DTYPES[dtype])
        self.pipeline.save_pretrained(directory)

    def shard(self, shard: ModuleSharder) -> None:
        """Has the denoisers sharded; text encoders and the autoencoder stay whole."""
        if self.settings.compile:
            raise ConfigError("policy.compile: sharded denoisers are not compiled; leave it out")
        self.weights.shard(shard)

    def enable_context_parallel(self, mesh: DeviceMesh) -> None:
        """Has the denoisers split their sequences; text encoders and the autoencoder run whole on each process."""
        if self.settings.compile:
            raise ConfigError("policy.compile: denoisers that split their sequence are not compiled; leave it out")
        self.weights.shard(partial(split_sequence, mesh=mesh))

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Draws ``group_size`` images or videos per prompt; a decision is one denoising step.

        With ``plan.same_initial_noise`` the group starts from one noise, and the members shown one prompt have its
        deterministic prefix and its first stochastic step run once. ``plan.settings`` may hold ``strength``,
        ``sampler``, and ``call``, whose arguments are laid over the policy's.
        """
        plan = plan or Plan()
        groups = make_groups(prompts, group_size, seed, plan)
        drawing = with_settings(self._drawing, plan.settings, self._stage.form, self._decisions)
        if self.settings.fast_remainder is not None and plan.stochastic:
            num_steps = drawing.call.get("num_inference_steps", self._num_steps)
            drawing = with_tail(
                drawing,
                self.settings.fast_remainder,
                last=plan.stochastic[-1],
                num_steps=num_steps,
                form=self._stage.form,
                scheduler=self._decisions,
            )
        parts = self._buckets.parts(groups, drawing)
        return self._drafter.deterministic(parts, plan) if plan.deterministic else self._drafter.stochastic(parts, plan)

    def read(self, samples: Sequence[OffPolicySample], *, seed: int, plan: Plan | None = None) -> Rollout:
        """Finished samples noised again at ``policy.reading.num_levels`` keyed levels, a decision each.

        A decision's log-probability is minus the network's weighted matching error. What is read is the sample's
        ``latent`` where it has one, else its picture or video, encoded. With ``plan.same_initial_noise`` levels and
        noise are the group's. ``plan.settings`` may hold ``call`` and ``reading``, laid over the policy's. Of values
        there are ``error``, ``level``, and of kept weights, or of ``old`` where the plan names it, ``logprob``,
        ``velocity_mse``, k1 to k3, and, with its strength as a number, ``positive_error`` and ``negative_error`` of
        ``maths.matching``.
        """
        self._drafter.settle_showing([one.sample.prompt for one in samples], self._drawing)
        return self._reader.read(samples, seed, plan or Plan())

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same latents behind other prompts, of this policy or of one whose pipeline steps the same latents."""
        shown = override_prompts(rollout, prompts)
        for call, rows in rows_by_call(shown.trace):
            self._parity.settle(rows, call)
        return shown

    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """Streams one slice per decision and batch of distinct states.

        Rows that share a state share its forward and its backward. Of values there are the log-probability of the
        reference and of weights that were kept, and the divergences of ``maths.divergences`` from them; Gaussian ones
        of ``old`` where the plan asked for them. The entropy of a Gaussian step is a constant of the schedule, so none
        is given. Rows that were read have values of their own: see ``read``.
        """
        chosen = list(range(len(rollout.samples))) if rows is None else [int(row) for row in rows]
        if isinstance(rollout.trace, RenoisedTrace):
            require_read_values(values, self.weights.names)
            yield from self._reader.evaluate(rollout, chosen, values)
        else:
            require_denoising_values(values, self.weights.names)
            yield from self._scorer.evaluate(rollout, chosen, values)
