"""The configuration of a denoising policy, the ``policy:`` section of a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from mmgrpo.config.sections import Section
from mmgrpo.config.validating import explain_validation
from mmgrpo.errors import ConfigError

from ..lora import LoraSettings, require_adapters

COUNTS = ("width", "height", "num_frames", "num_inference_steps")
"""Arguments of a pipeline's call with a minimum of 1."""

NUM_PER_PROMPT = re.compile("num_[a-z]+_per_prompt")
"""Pipelines' argument for the number of results per prompt."""


def require_single_results(setting: str, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for arguments of a call that request several results per prompt.

    Args:
        setting: the setting of the arguments, for messages.
        arguments: argument names with their values, if the setting has values.
    """
    for name, value in arguments.items():
        if NUM_PER_PROMPT.fullmatch(name) and value != 1:
            raise ValueError(
                f"{setting}: {name} is {value}, but a row is one sample with one reward and log-probability; remove it "
                "and set rollout.group_size (evaluation.samples_per_prompt, sample --count) to the number of samples "
                "per prompt"
            )


class ReadingSettings(Section):
    """Renoising of finished samples at sampled noise levels, one decision each.

    A decision's log-probability is minus the network's mean squared error there, times ``weight * sigma**power``.
    """

    num_levels: int = Field(default=4, ge=1, description="noise levels per sample, one decision each")
    levels: Literal["uniform", "stratified", "logit_normal"] = Field(
        default="stratified",
        description="uniform; stratified: one level in each of num_levels equal strata, least noise first; "
        "logit_normal: the sigmoid of a standard normal number",
    )
    low: float = Field(default=0.0, ge=0, lt=1, description="lower bound of the levels, as a fraction of the schedule")
    high: float = Field(default=1.0, gt=0, le=1, description="upper bound of the levels, as a fraction of the schedule")
    shift: float = Field(
        default=1.0, gt=0, description="s of u -> s u / (1 + (s - 1) u), which shifts levels like a flow schedule's"
    )
    shared: bool = Field(default=False, description="use the same levels and noise for all members of a group")
    weight: float = Field(default=1.0, gt=0, description="weight of the error in a decision's log-probability")
    power: float = Field(default=0.0, description="p of sigma^p, a further weight of the error")
    states: Literal["sample", "boundaries", "predictions", "steps"] = Field(
        default="sample",
        description="sample: the finished sample, at num_levels levels. With a flow-matching scheduler a decision per "
        "step of the sampler: boundaries, the state after it, noised further; predictions, the same states, whose "
        "target is the clean sample that the network predicted in the step; steps, the state before it, where the "
        "network's error is the distance from that prediction",
    )
    margin: float = Field(
        default=0.02,
        gt=0,
        lt=1,
        description="of states of the sampler: least distance of a level from that of the state, before the shift",
    )
    guided_call: dict[str, Any] = Field(
        default_factory=dict,
        description="of states of the sampler: overrides call in guided predictions, {guidance_scale: 4.5}",
    )

    @model_validator(mode="after")
    def _require_states(self) -> ReadingSettings:
        if self.states == "sample":
            if unused := sorted({"margin", "guided_call"} & self.model_fields_set):
                raise ValueError(f"{', '.join(unused)} is for states of the sampler: leave it out, or set states")
            return self
        if self.levels != "uniform" or "num_levels" in self.model_fields_set:
            raise ValueError(
                f"states: {self.states} has a level per step of the sampler: set levels: uniform, and leave out "
                "num_levels"
            )
        return self


def reading_of(values: Mapping[str, Any]) -> ReadingSettings:
    """The settings from a mapping of fields. Raises ConfigError for an invalid value."""
    try:
        return ReadingSettings(**values)
    except ValidationError as error:
        problems = "; ".join(problem["msg"].replace("Value error, ", "") for problem in error.errors())
        raise ConfigError(f"policy.reading: {problems}") from error


class CorrectionSettings(Section):
    """Points that the model's own step reaches, with a velocity target that leads back to the example.

    The noised example takes one deterministic step of the current model, without grad. The result is renoised towards
    the example's noise, and the velocity target there leads to the example; for flow matching only.
    """

    points: int = Field(default=6, ge=1, description="points per example")
    weight: float = Field(default=1.0, gt=0, description="weight of a point, relative to the noised example")
    num_steps: int = Field(
        default=40, ge=1, description="the step is one of this number of steps, equal except for shift"
    )
    call: dict[str, Any] = Field(
        default_factory=dict, description="overrides call for the step, for example its guidance"
    )


class FastRemainder(Section):
    """Fewer steps, of second order, after the last stochastic step of a rollout.

    For pipelines whose call has ``sigmas``: steps before it begin at 1 - i / N before any shift, the default of FLUX.
    Deterministic samples are unaffected.
    """

    frac: float = Field(
        gt=0, lt=1, description="fraction of the remaining steps to keep, rounded down in schedule points"
    )
    order: Literal[1, 2] = Field(default=2, description="2: DPM-Solver++ with two predictions, midpoint")


class SupervisionSettings(Section):
    """Training on examples, in a warm-up or alongside an objective."""

    levels: Literal["uniform", "logit_normal"] = Field(
        default="uniform", description="noise levels of examples, as policy.reading.levels"
    )
    shift: float = Field(default=1.0, gt=0, description="as policy.reading.shift")
    correction: CorrectionSettings | None = Field(
        default=None, description="also train on points that the model's own step reaches; null: only on examples"
    )

    @property
    def reading(self) -> ReadingSettings:
        """Renoising settings of an example."""
        return ReadingSettings(num_levels=1, levels=self.levels, shift=self.shift)


class BucketSettings(Section):
    """Sampling sizes. A group is sampled in one bucket, and rows of one bucket share runs of the pipeline.

    Finished samples and examples use the bucket nearest to their size.
    """

    sizes: tuple[dict[Literal["width", "height", "num_frames"], Annotated[int, Field(gt=0)]], ...] = Field(
        min_length=1,
        description="width, height and, for videos, num_frames; each overrides call and evaluation_call",
    )
    choose: Literal["random", "nearest"] = Field(
        default="random",
        description="random: uniform, by step and prompt; nearest: closest to the columns width, height and "
        "num_frames of the data, mainly in aspect ratio",
    )

    @model_validator(mode="after")
    def _require_same_keys(self) -> BucketSettings:
        names = {frozenset(size) for size in self.sizes}
        if len(names) > 1 or not {"width", "height"} <= next(iter(names)):
            raise ValueError("each of policy.buckets.sizes needs width and height, and num_frames if another has it")
        return self


class DecodeSettings(Section):
    """Memory-saving decoding of images and videos; the autoencoder is changed during runs only."""

    rows: bool = Field(default=False, description="decode row by row, with the same pixels")
    frames: bool = Field(default=False, description="decode a few frames at a time, if the autoencoder supports it")
    tiles: dict[str, int] | None = Field(
        default=None,
        description="decode tiles of a frame, with blended seams; {} uses the autoencoder's tile sizes, other keys "
        "are arguments of its enable_tiling",
    )


class DenoisingSettings(Section):
    """Sampling, training and batch sizes of a diffusers pipeline.

    ``call`` goes to the pipeline in rollout and update; ``evaluation_call`` overrides it for deterministic samples, so
    that a run may train at 10 steps and be evaluated at 40.
    """

    decides: ClassVar[str] = "denoising"  # kind of methods that support it
    is_scheduled: ClassVar[bool] = True  # all samples have the same number of decisions
    resumable: ClassVar[tuple[str, ...]] = (
        "sampler", "strength", "last_std", "density", "reduction", "call", "evaluation_call", "buckets", "decode",
        "frame_rate", "reading", "rollout_batch", "update_batch", "join_steps", "fast_remainder", "segments",
        "gradient_checkpointing", "attention", "compile", "memo_bytes", "offload",
    )  # fmt: skip
    """Settings that may change when a run resumes."""
    of_a_rollout: ClassVar[tuple[str, ...]] = ("call", "sampler", "strength")
    """Settings that a plan may override for one rollout."""

    model: str | None = Field(
        default=None,
        description="path or hub id of the pipeline, a one-file checkpoint (.safetensors), or python:module:function "
        "that returns it",
    )
    single_file_config: str | None = Field(
        default=None,
        description="for a one-file checkpoint: folder or hub id of a pipeline with its classes, configurations and "
        "tokenizers; null: inferred by diffusers from its keys",
    )
    revision: str | None = Field(default=None, description="revision of the hub repository")
    variant: str | None = Field(default=None, description="variant of the weight files, for example fp16")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="dtype of the loaded weights; float16 scales losses"
    )
    components: dict[str, Literal["float32", "bfloat16", "float16"] | None] = Field(
        default_factory=dict,
        description="overrides for components of a stored pipeline: null omits one (text_encoder_3 and tokenizer_3 "
        "of Stable Diffusion 3, safety_checker), a dtype overrides dtype (vae: float32)",
    )
    quantization_config: dict[str, Any] | None = Field(
        default=None,
        description="quantization of frozen weights under lora, as that of a language model: of the denoisers and all "
        "text encoders but CLIP's, {load_in_4bit: true, bnb_4bit_quant_type: nf4} or {quant_method: torchao, "
        "quant_type: {name: Int8WeightOnlyConfig}}; or arguments of diffusers' PipelineQuantizationConfig, which names "
        "components: {quant_mapping: {transformer: {load_in_4bit: true}}}; null: as they are stored. Layers in 4 "
        "bit compute in the dtype of their component without a bnb_4bit_compute_dtype",
    )
    scheduler: dict[str, Any] = Field(
        default_factory=dict, description="overrides the scheduler's configuration, for example {shift: 3.0}"
    )
    sampler: Literal["flow_sde", "cps", "dance_sde", "wan_sde", "log_sde", "ddim", "native"] | None = Field(
        default=None,
        description="transition distribution of stochastic steps; native: the scheduler's own noise; null: flow_sde "
        "on flow levels, native for consistency models, else ddim; cps does not preserve the marginals",
    )
    strength: float = Field(
        default=0.7, ge=0, description="amount of noise of stochastic steps, see the samplers; unused by native"
    )
    last_std: float = Field(
        default=0.0,
        ge=0,
        description="std of the last step, around the clean sample, in latent units; 0: deterministic. Above 0 the "
        "last step is a decision too, and a single step can be trained",
    )
    density: Literal["gaussian", "squared_error"] = Field(
        default="gaussian", description="log-density of a step's elements"
    )
    reduction: Literal["mean", "sum_sqrt"] = Field(
        default="mean",
        description="of the elements' log-densities: their mean, or their sum over the square root of their number",
    )
    call: dict[str, Any] = Field(default_factory=dict, description="arguments of the pipeline's call")
    evaluation_call: dict[str, Any] = Field(
        default_factory=dict, description="overrides call for deterministic samples"
    )
    sampling_rate: int | None = Field(
        default=None, ge=1, description="sampling rate of the pipeline's audio, in Hz, if no component states it"
    )
    columns: tuple[str, ...] = Field(
        default=(), description="data columns that are arguments of the call with the same name, one entry per row"
    )
    buckets: BucketSettings | None = Field(default=None, description="null: sample everything at the size in call")
    decode: DecodeSettings = Field(
        default=DecodeSettings(), description="memory-saving decoding; default: as the pipeline is configured"
    )
    frame_rate: float | None = Field(
        default=None,
        gt=0,
        description="frames per second of saved videos; null: the call's frame_rate or fps, else 8",
    )
    image_arguments: dict[str, str] = Field(
        default_factory=dict,
        description="further image arguments of the call, with the data columns that hold them: {mask_image: mask}; "
        "a column holds one image or a list, and prompts.image_columns sets their folder",
    )
    reading: ReadingSettings = Field(
        default=ReadingSettings(), description="renoising of finished samples, for forward-process losses"
    )
    supervision: SupervisionSettings = Field(
        default=SupervisionSettings(), description="training on examples: warmup and auxiliary"
    )
    lora: LoraSettings | None = Field(default=None, description="null: full fine-tuning of the denoisers")
    adapter: str | None = Field(
        default=None,
        description="initial weights from another run: its folder, a checkpoint, or adapters in any format that peft "
        "or diffusers reads, with the scale of their file; without lora the full weights of a run. The "
        "reference without adapters is the model itself",
    )
    rollout_batch: int = Field(default=8, ge=1, description="rows per pipeline run in rollouts")
    update_batch: int = Field(default=8, ge=1, description="states per pipeline run in updates")
    join_steps: bool | None = Field(
        default=None,
        description="run trained steps of the same rows in one forward of an update, where their states fit in "
        "update_batch; rounds as a batch of another size; null: if the weights are sharded, so that each forward "
        "gathers them, and not compiled",
    )
    fast_remainder: FastRemainder | None = Field(
        default=None,
        description="shortened schedule of a rollout after its last stochastic step; null: the complete schedule",
    )
    cache: dict[str, Any] | None = Field(
        default=None,
        description="cache of diffusers or cache-dit (DBCache), for example {name: FirstBlockCache, threshold: 0.1}, "
        "at those steps of a rollout that are not trained: outside the window, or with training_states: renoised all; "
        "null: none",
    )
    step_quantization: dict[str, Any] | None = Field(
        default=None,
        description="format of torchao, for example {name: Float8WeightOnlyConfig}, of the frozen linear layers of the "
        "denoisers at those steps of a rollout that are not trained; null: the real weights",
    )
    segments: tuple[int, ...] | None = Field(
        default=None, description="sizes of consecutive chunks of steps; null: one step each"
    )
    denoisers: tuple[str, ...] | None = Field(
        default=None, description="names of the denoising components; null: detected"
    )
    offload: tuple[str, ...] = Field(
        default=(),
        description="components whose frozen layers wait in the memory of the host while others run, by accelerate, "
        "for example [text_encoder_3]; a denoiser needs lora and gradient_checkpointing",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="recompute the denoisers' activations in the backward pass, to save memory"
    )
    attention: str = Field(
        default="default",
        description="attention back end of diffusers: native, flash, _flash_3_hub, xformers, ...; default: the model's",
    )
    compile: bool = Field(
        default=False, description="torch.compile of the denoiser's repeated blocks, or of the complete denoiser"
    )
    memo_bytes: int = Field(
        default=2 * 1024**3, ge=0, description="memory for cached prompt encodings and condition images, in bytes"
    )

    @model_validator(mode="after")
    def _require_adapters(self) -> DenoisingSettings:
        require_adapters(self.quantization_config, self.lora)
        return self

    @model_validator(mode="after")
    def _require_exact_steps(self) -> DenoisingSettings:
        if self.reading.states != "sample" and (self.cache is not None or self.step_quantization is not None):
            raise ValueError(
                f"reading.states: {self.reading.states} trains on the steps of the sampler, which cache and "
                "step_quantization approximate: remove them"
            )
        return self

    @model_validator(mode="after")
    def _require_uncompiled(self) -> DenoisingSettings:
        if self.compile and self.cache is not None:
            raise ValueError("compile does not support cache, whose blocks decide at each call: remove one of them")
        if self.compile and self.step_quantization is not None:
            raise ValueError("compile does not support step_quantization, which swaps weights: remove one of them")
        if self.compile and self.join_steps:
            raise ValueError("compile does not support join_steps, which changes the batch size: remove one of them")
        return self

    @model_validator(mode="after")
    def _require_counts(self) -> DenoisingSettings:
        require_single_results("columns", dict.fromkeys(self.columns, "a column"))
        for section, call in (("call", self.call), ("evaluation_call", self.evaluation_call)):
            require_single_results(section, call)
            for name in COUNTS:
                if isinstance(number := call.get(name), int | float) and number < 1:
                    raise ValueError(f"{section}.{name} must be at least 1, got {number}")
            for name, value in call.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{section}.{name} must be a finite number, got {value}")
        return self

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> DenoisingSettings:
        """The settings from a mapping of fields. Raises ConfigError for an invalid value."""
        try:
            return cls(**values)
        except ValidationError as error:
            unknown = [problem for problem in error.errors() if problem["type"] == "extra_forbidden"]
            if unknown and len(unknown) == error.error_count():
                raise ConfigError(f"policy: {explain_validation(error, cls)}") from error
            problems = [(".".join(map(str, problem["loc"])), problem["msg"]) for problem in error.errors()]
            lines = [f"policy.{key}: {message}" if key else message for key, message in problems]
            raise ConfigError("; ".join(line.replace("Value error, ", "policy.", 1) for line in lines)) from error

    def described(self) -> list[tuple[str, str]]:
        """Label and text of the settings for ``mmgrpo explain``: the noise levels of examples, if configured."""
        supervision, correction = self.supervision, self.supervision.correction
        if supervision == SupervisionSettings():
            return []
        text = f"examples are noised at {supervision.levels} levels, shift = {supervision.shift:g}"
        if correction is not None:
            text += (
                f"; correction: {correction.points} further points per example, reached by a step of the model (one of "
                f"{correction.num_steps}), each with weight {correction.weight:g}"
            )
        return [("supervision", text)]
