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
from mmgrpo.layouts import layout_of, move_modules
from mmgrpo.policy import (
    ModuleSharder,
    SupportsContextParallel,
    SupportsExport,
    SupportsFloat16,
    SupportsNamedWeights,
    SupportsOffPolicyScoring,
    SupportsPreviews,
    SupportsPromptOverride,
    SupportsResolvedSettings,
    SupportsSharding,
    SupportsSupervisedLoss,
    SupportsUnbatchedRows,
    SupportsWindows,
)
from mmgrpo.types import Evaluation, Example, OffPolicySample, Plan, Prompt, Rollout, Sample, SupervisedLoss
from mmgrpo.values import Value

from ..adapter_formats import DiffusersFiles
from ..merging import merge_adapters
from ..model_source import DTYPES, require_no_loading_settings
from ..offloading import layers_of, load_offloaded, offload_layers, require_no_offloading, require_offloadable
from ..quantization import arithmetic_dtype
from ..weights import Weights
from .approximations import Approximation
from .batches import Batches
from .buckets import Buckets
from .caches import RolloutCache
from .chunks import SINGLE_STEP, make_groups
from .components import prepared_denoisers
from .denoising_rows import call_has_media
from .denoising_scorer import DenoisingScorer
from .denoising_values import require_denoising_values
from .dual_block_cache import NAME as DUAL_BLOCK_CACHE
from .dual_block_cache import DualBlockCache
from .encoder_cache import EncoderCache
from .exactness import BATCH_ROUNDING, Exactness
from .instrumented_pipeline import InstrumentedPipeline
from .lora_targets import adapter_targets
from .outputs import audio_sampling_rate
from .parity import BatchParity
from .pipeline_loading import (
    compile_denoiser,
    configured_scheduler,
    decision_scheduler,
    load_pipeline,
    replaced_settings,
)
from .prompt_override import override_prompts, rows_by_call
from .renoising import RenoisedTrace, Renoiser, require_renoising_values
from .sampler_loop import SamplerLoop, untrained_iterations
from .sampling_params import SamplingParams, with_settings, with_tail
from .scheduler_families import fitting_sampler
from .sequence import split_sequence
from .settings import DenoisingSettings
from .signature import require_arguments
from .sizes import require_sizes
from .step_quantization import StepQuantization
from .step_sampler import StepSampler
from .supervised_denoising import Targets, supervised_loss

logger = logging.getLogger(__name__)

NOTICED_EXCESS = 0.1
EXACTNESS = {torch.float32: 1e-5, torch.bfloat16: 1e-3, torch.float16: 1e-3}


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
    SupportsFloat16,
    SupportsPreviews,
):
    """A diffusers pipeline whose denoising steps are decisions.

    The policy runs the pipeline itself, with a scheduler of its class that samples and records each transition; to
    score a decision it runs the pipeline again with the same arguments, with all other iterations as ghosts. No part of
    it is per-model.

    Attributes:
        pipeline: the stock pipeline, unmodified between calls.
        settings: the sampling and training settings.
        weights: LoRA as diffusers' ``pytorch_lora_weights.safetensors``, full weights as ``save_pretrained`` folders.
    """

    settings_type = DenoisingSettings

    def __init__(self, pipeline: Any, settings: DenoisingSettings | Mapping[str, Any] | None = None) -> None:
        """Wraps a live pipeline and freezes all weights except the trained ones.

        Args:
            pipeline: any diffusers pipeline with a ``scheduler``, on its device.
            settings: ``DenoisingSettings`` or a mapping of its fields.
        """
        settings = _live_settings(settings)
        require_arguments(type(pipeline), settings)
        denoisers = prepared_denoisers(pipeline, settings)
        require_sizes(pipeline, denoisers, settings)
        dtype = arithmetic_dtype(next(iter(denoisers.values())))
        self.pipeline = pipeline
        self.settings = settings
        scheduler = configured_scheduler(pipeline.scheduler, settings.scheduler)
        self._decisions = decision_scheduler(scheduler)
        step_sampler = _step_sampler(settings, self._decisions)
        self._params = SamplingParams(step_sampler=step_sampler, call=settings.call)
        self._choices = replaced_settings(scheduler, self._decisions, list(denoisers.values()))
        for choice in self._choices:
            logger.warning("%s: %s", type(pipeline).__name__, choice)
        if settings.sampler is None:
            self._choices.append(f"sampler {step_sampler.sampler}, which fits {type(self._decisions).__name__}")
        self.weights: Weights = _trained_weights(pipeline, denoisers, settings)
        self._instrumented = InstrumentedPipeline(
            pipeline,
            scheduler,
            self._decisions,
            tuple(denoisers),
            EncoderCache(settings.memo_bytes),
            copies=lambda: self.weights.active_copies,
            columns=settings.columns,
            image_arguments=settings.image_arguments,
            decode=settings.decode,
            approximations=_approximations(pipeline, denoisers, settings),
            records_graph=settings.compile,
        )
        if settings.lora is None and dtype != torch.float32:
            self._instrumented.autocast(dtype)  # trained weights are float32; computation stays in the loaded dtype
        for module in denoisers.values() if settings.compile else ():
            compile_denoiser(module)
        self._buckets = Buckets(settings.buckets)
        self._buckets.require_supported(self._instrumented.form)
        sampling_rate = _sampling_rate(pipeline, settings)
        self._targets = Targets(self._instrumented, sampling_rate)
        self._batches = _batches(settings)
        tolerance = EXACTNESS.get(dtype, max(EXACTNESS.values()))
        self._parity = BatchParity(
            instrumented=self._instrumented, batches=self._batches, tolerance=BATCH_ROUNDING * tolerance, dtype=dtype
        )
        self._renoiser = Renoiser(
            instrumented=self._instrumented,
            targets=self._targets,
            batches=self._batches,
            parity=self._parity,
            using=self.weights.using,
            reading=settings.reading,
            call=settings.call,
            buckets=self._buckets,
        )
        self._scorer = DenoisingScorer(
            instrumented=self._instrumented, batches=self._batches, using=self.weights.using, tolerance=tolerance
        )
        self._sampler_loop = SamplerLoop(
            instrumented=self._instrumented,
            batches=self._batches,
            exactness=Exactness(
                name=type(pipeline).__name__, replay=self._scorer.logprobs, tolerance=tolerance, unit=step_sampler.unit
            ),
            parity=self._parity,
            segments=settings.segments,
            keeps_steps=settings.reading.states != "sample",
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
        modules = [part for part in pipeline.components.values() if isinstance(part, nn.Module)]
        waiting = [layer for part in _offloaded(pipeline, settings).values() for layer in layers_of(part)]
        move_modules(modules, lambda module: module.to(device), holder=pipeline, without=waiting)
        return cls(pipeline, settings)

    @property
    def resolved_settings(self) -> tuple[str, ...]:
        """The sampler, the scheduler of the decisions, disabled caches and batching, where settings leave them open."""
        choices = ["rows depend on their batch, so each runs alone"] if self._batches.alone else []
        form = self._instrumented.form
        if form.is_verified:
            choices.append(f"media of rows are passed as {form.media_batching.value}")
        excess_noise = self._sampler_loop.exactness.excess_noise
        if excess_noise > NOTICED_EXCESS:
            choices.append(
                f"steps of {self._params.step_sampler.sampler} leave up to {excess_noise:.2f} more "
                "noise than the next noise level, in latent units; sampler cps leaves none"
            )
        return (*self._choices, *choices)

    @property
    def is_float16(self) -> bool:
        """Whether the denoisers compute in float16."""
        return self.weights.dtype == torch.float16

    def disable_row_batching(self) -> None:
        """Runs each row alone in rollouts, updates and evaluations."""
        if not self._batches.alone:
            name = type(self.pipeline).__name__
            self._batches.run_alone(f"on another process a row of {name} depends on its batch")

    @property
    def num_decisions(self) -> int:
        """Steps that can be stochastic: all, or without ``last_std`` all but the last, which ends on the clean sample.

        Raises ConfigError if there are none.
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
            raise ConfigError(
                "the pipeline has no default for num_inference_steps; set policy.call.num_inference_steps"
            )
        return steps

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Flow matching (or denoising score matching, by the scheduler's prediction type) on the examples' targets."""
        settings = self.settings
        self._sampler_loop.ensure_media_batching([example.prompt for example in examples], self._params)
        mean = supervised_loss(
            self._instrumented,
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
        """Saves the pipeline with ``save_pretrained``, all components in ``dtype``, denoisers without quantization."""
        for part in self.pipeline.components.values():
            if isinstance(part, nn.Module):
                load_offloaded(part)
        merge_adapters(self.weights, dtype)
        if dtype is not None:
            for component in self.pipeline.components.values():
                if isinstance(component, nn.Module):
                    component.to(DTYPES[dtype])
        self.pipeline.save_pretrained(directory)

    def shard(self, shard: ModuleSharder) -> None:
        """Shards the denoisers; text encoders and the autoencoder are replicated.

        From then on each forward gathers weights, so trained steps of the same rows share one unless ``join_steps`` is
        set.
        """
        self._require_real_weights("sharded")
        require_no_offloading(self.weights.modules.values(), "sharding")
        self.weights.shard(shard)
        if self.settings.join_steps is None and not self.settings.compile:
            weights = (p for module in self.weights.modules.values() for p in module.parameters())
            self._batches.join_steps = any(layout_of(parameter) is not None for parameter in weights)

    def enable_context_parallel(self, mesh: DeviceMesh) -> None:
        """Splits the denoisers' sequences over processes; text encoders and the autoencoder run on each process."""
        if self.settings.compile:
            raise ConfigError("policy.compile does not support context-parallel denoisers; remove it")
        self._require_real_weights("context-parallel")
        require_no_offloading(self.weights.modules.values(), "context parallelism")
        self.weights.shard(partial(split_sequence, mesh=mesh))

    def _require_real_weights(self, kind: str) -> None:
        if self.settings.step_quantization is not None:
            raise ConfigError(f"policy.step_quantization does not support {kind} denoisers; remove it")

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Samples ``group_size`` images or videos per prompt; a decision is one denoising step.

        With ``plan.same_initial_noise`` the group starts from one noise, and members with one prompt share its
        deterministic prefix and its first stochastic step. ``plan.settings`` may have ``strength``, ``sampler``, and
        ``call``, whose arguments override the policy's.
        """
        plan = plan or Plan()
        groups = make_groups(prompts, group_size, seed, plan)
        params = with_settings(self._params, plan.settings, self._instrumented.form, self._decisions)
        if self.settings.fast_remainder is not None and plan.stochastic:
            num_steps = params.call.get("num_inference_steps", self._num_steps)
            params = with_tail(
                params,
                self.settings.fast_remainder,
                last=plan.stochastic[-1],
                num_steps=num_steps,
                form=self._instrumented.form,
                scheduler=self._decisions,
            )
        if (is_untrained := untrained_iterations(plan)) is not None:
            for approximation in self._instrumented.approximations:
                approximation.require_effect(is_untrained, params.call.get("num_inference_steps", self._num_steps))
        row_sets = self._buckets.row_sets(groups, params)
        sample = self._sampler_loop.deterministic if plan.deterministic else self._sampler_loop.stochastic
        return sample(row_sets, plan)

    def read(self, samples: Sequence[OffPolicySample], *, seed: int, plan: Plan | None = None) -> Rollout:
        """Finished samples renoised at ``policy.reading.num_levels`` keyed levels, one decision each.

        A decision's log-probability is minus the network's weighted matching error. The clean data are the sample's
        ``latent`` or, without one, its encoded image or video. With ``plan.same_initial_noise`` the group shares levels
        and noise. ``plan.settings`` may have ``call`` and ``reading``, which override the policy's. Values are
        ``error`` and ``level``; of stored weights, or of ``old`` if the plan has it, ``logprob``, ``velocity_mse``, k1
        to k3; and, with a strength, ``positive_error`` and ``negative_error`` of ``maths.matching``.
        """
        self._sampler_loop.ensure_media_batching([source.sample.prompt for source in samples], self._params)
        return self._renoiser.read(samples, seed, plan or Plan())

    def preview(self, sample: Sample) -> Sample:
        """A sample that was left as its latent, decoded; others are unchanged."""
        has_media = any(medium is not None for medium in (sample.image, sample.video, sample.audio, sample.array))
        return sample if sample.latent is None or has_media else self._sampler_loop.decoded(sample, self.settings.call)

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same latents under other prompts, of this policy or of one whose pipeline has the same latents."""
        overridden = override_prompts(rollout, prompts)
        for call, rows in rows_by_call(overridden.trace):
            self._parity.ensure(rows, call)
        return overridden

    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """Yields one slice per decision and batch of distinct states.

        Rows that share a state share its forward and its backward. Values are the log-probability under stored weights,
        such as the reference, and the divergences of ``maths.divergences`` from them; Gaussian ones of ``old`` if the
        plan has them. The entropy of a Gaussian step is a constant of the schedule, so it is no value. Renoised rows
        have the values of ``read``.
        """
        selected = list(range(len(rollout.samples))) if rows is None else [int(row) for row in rows]
        if isinstance(rollout.trace, RenoisedTrace):
            require_renoising_values(values, self.weights.names, rollout.trace.reading.states)
            yield from self._renoiser.evaluate(rollout, selected, values)
        else:
            require_denoising_values(values, self.weights.names)
            yield from self._scorer.evaluate(rollout, selected, values)


def _trained_weights(pipeline: Any, denoisers: Mapping[str, nn.Module], settings: DenoisingSettings) -> Weights:
    offloaded = _offloaded(pipeline, settings)
    _require_offloadable(offloaded, denoisers, settings)
    targets = adapter_targets(denoisers) if settings.lora and not settings.lora.targets else ()
    weights = Weights(denoisers, settings.lora, targets, DiffusersFiles(pipeline))
    if settings.adapter is not None:
        weights.load_initial(Path(settings.adapter))
    offload_layers(offloaded.values(), next(next(iter(denoisers.values())).parameters()).device)
    return weights


def _live_settings(settings: DenoisingSettings | Mapping[str, Any] | None) -> DenoisingSettings:
    """The settings of a live pipeline. Raises ConfigError for those that only loading reads."""
    if isinstance(settings, DenoisingSettings):
        return settings
    require_no_loading_settings(settings or {}, "revision", "variant", "dtype", "quantization_config")
    return DenoisingSettings.of(settings or {})


def _approximations(
    pipeline: Any, denoisers: Mapping[str, nn.Module], settings: DenoisingSettings
) -> list[Approximation]:
    """The approximations of the settings, for steps that are not trained."""
    result: list[Approximation] = []
    if settings.cache is not None:
        is_dual = settings.cache.get("name") == DUAL_BLOCK_CACHE
        result.append((DualBlockCache if is_dual else RolloutCache)(pipeline, settings.cache, denoisers))
    if settings.step_quantization is not None:
        if offloaded := sorted(denoisers.keys() & set(settings.offload)):
            raise ConfigError(f"policy.step_quantization does not support {', '.join(offloaded)} in policy.offload")
        result.append(StepQuantization(settings.step_quantization, denoisers))
    return result


def _offloaded(pipeline: Any, settings: DenoisingSettings) -> dict[str, nn.Module]:
    """The components of ``policy.offload``. Raises ConfigError for a name without a module."""
    modules = {name: part for name, part in pipeline.components.items() if isinstance(part, nn.Module)}
    if unknown := sorted(set(settings.offload) - set(modules)):
        names = ", ".join(modules)
        raise ConfigError(f"policy.offload: the pipeline has no module {', '.join(unknown)}; it has {names}")
    return {name: modules[name] for name in settings.offload}


def _require_offloadable(
    offloaded: Mapping[str, nn.Module], denoisers: Mapping[str, nn.Module], settings: DenoisingSettings
) -> None:
    trained = sorted(offloaded.keys() & denoisers.keys())
    if trained and (settings.lora is None or not settings.gradient_checkpointing or settings.compile):
        raise ConfigError(
            f"policy.offload: {', '.join(trained)} needs policy.lora, since trained weights stay, and "
            "policy.gradient_checkpointing: true, since the backward would hold the weights of all layers, and no "
            "policy.compile"
        )
    require_offloadable(offloaded, settings.lora if trained else None)


def _batches(settings: DenoisingSettings) -> Batches:
    """Rows per pipeline run; one if the call has media, which pipelines encode once per batch."""
    if call_has_media({**settings.call, **settings.evaluation_call}):
        return Batches(1, 1)
    return Batches(settings.rollout_batch, settings.update_batch, join_steps=bool(settings.join_steps))


def _step_sampler(settings: DenoisingSettings, scheduler: Any) -> StepSampler:
    step_sampler = StepSampler(
        sampler=settings.sampler or fitting_sampler(scheduler),
        strength=settings.strength,
        last_std=settings.last_std,
        density=settings.density,
        reduction=settings.reduction,
    )
    step_sampler.check_scheduler(scheduler)
    return step_sampler


def _sampling_rate(pipeline: Any, settings: DenoisingSettings) -> int | None:
    """Of generated audio, in Hz: the pipeline's, or else the setting."""
    rate = audio_sampling_rate(pipeline)
    if settings.sampling_rate and rate not in (None, settings.sampling_rate):
        raise ConfigError(
            f"policy.sampling_rate is {settings.sampling_rate}, but the pipeline generates audio at {rate} Hz; remove "
            "the setting"
        )
    return rate or settings.sampling_rate
