"""The configuration of a denoising policy, as a run's ``policy:`` section holds it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mmgrpo.config.validating import explain_validation
from mmgrpo.errors import ConfigError

from ..lora import LoraSettings

COUNTS = ("width", "height", "num_frames", "num_inference_steps")
"""Arguments of a pipeline's call that are of one at least."""

NUM_PER_PROMPT = re.compile("num_[a-z]+_per_prompt")
"""How pipelines name the number of results of one prompt."""


def require_single_results(where: str, names: Mapping[str, Any]) -> None:
    """Raises ValueError for arguments of a call that ask for several results of a prompt.

    Args:
        where: the setting that holds the arguments.
        names: the arguments; their values, where the setting has them.
    """
    for name, value in names.items():
        if NUM_PER_PROMPT.fullmatch(name) and value != 1:
            raise ValueError(
                f"{where}: {name} is {value}, and a row is one sample, with a reward and a log-probability of its own; "
                "leave it out and set rollout.group_size (evaluation.samples_per_prompt, sample --count) to the number "
                "of samples of a prompt"
            )


class ReadingSettings(BaseModel):
    """How finished samples are read: noised again at levels of their own, a decision each.

    A decision's log-probability is minus the network's mean squared error there, times ``weight * sigma**power``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_levels: int = Field(default=4, ge=1, description="decisions of a sample")
    levels: Literal["uniform", "stratified", "logit_normal"] = Field(
        default="stratified",
        description="drawn anywhere, one in each of as many equal parts, least noise first, or around the middle, as "
        "the logistic function of a normal number",
    )
    low: float = Field(default=0.0, ge=0, lt=1, description="least noise, as a share of the schedule's")
    high: float = Field(default=1.0, gt=0, le=1, description="most noise, as a share of the schedule's")
    shift: float = Field(
        default=1.0, gt=0, description="s of u -> s u / (1 + (s - 1) u), which moves levels as a flow schedule's does"
    )
    shared: bool = Field(default=False, description="a group's members are noised alike, at the same levels")
    weight: float = Field(default=1.0, gt=0, description="of the error in a decision's log-probability")
    power: float = Field(default=0.0, description="p of sigma^p, a further weight of the error")


class CorrectionSettings(BaseModel):
    """Points that a step of the model's own leads to, taught the way back to the example.

    The noised example takes one deterministic step of the model of now, without grad. What it comes to is noised again
    towards the example's own noise, and the velocity there should lead to the example: for flow matching alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    points: int = Field(default=6, ge=1, description="of each example")
    weight: float = Field(default=1.0, gt=0, description="of a point beside the noised example itself")
    num_steps: int = Field(default=40, ge=1, description="the step is one of so many, equal but for shift")
    call: dict[str, Any] = Field(
        default_factory=dict, description="laid over call for the step, for example its guidance"
    )


class FastRemainder(BaseModel):
    """The steps of a rollout after the last one that is drawn at random: fewer, and of second order, to make up for it.

    For pipelines whose call takes ``sigmas``: the steps up to there begin at 1 - i / N before any shift, as FLUX has
    them by itself. Samples that are drawn without noise are not concerned.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    frac: float = Field(gt=0, lt=1, description="of the steps that there would be; points of them, rounded down")
    order: Literal[1, 2] = Field(default=2, description="2: DPM-Solver++ with two predictions, midpoint")


class SupervisionSettings(BaseModel):
    """What is learnt from examples, in a warm-up or beside an objective."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    levels: Literal["uniform", "logit_normal"] = Field(
        default="uniform", description="of an example's noise, as policy.reading.levels"
    )
    shift: float = Field(default=1.0, gt=0, description="as policy.reading.shift")
    correction: CorrectionSettings | None = Field(
        default=None, description="where a step of the model's own leads is taught too; null: nothing but the examples"
    )

    @property
    def reading(self) -> ReadingSettings:
        """How an example is noised."""
        return ReadingSettings(num_levels=1, levels=self.levels, shift=self.shift)


class BucketSettings(BaseModel):
    """Sizes to draw in. A group is drawn in one of them, and rows of one share runs of the pipeline.

    Finished samples and examples are read in the bucket that is nearest to their own size.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    sizes: tuple[dict[Literal["width", "height", "num_frames"], Annotated[int, Field(gt=0)]], ...] = Field(
        min_length=1,
        description="each laid over call and evaluation_call: width, height and, of videos, num_frames",
    )
    choose: Literal["random", "nearest"] = Field(
        default="random",
        description="random: by step and prompt, each as likely; nearest: to the columns width, height and num_frames "
        "of the data, in form above all",
    )

    @model_validator(mode="after")
    def _alike(self) -> BucketSettings:
        names = {frozenset(size) for size in self.sizes}
        if len(names) > 1 or not {"width", "height"} <= next(iter(names)):
            raise ValueError("each of policy.buckets.sizes needs width and height, and num_frames if any other has it")
        return self


class DecodeSettings(BaseModel):
    """How a run's pictures and videos are decoded, for memory: an autoencoder is switched for its runs alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: bool = Field(default=False, description="one after another: the same pixels")
    frames: bool = Field(default=False, description="a few at a time, where the autoencoder can")
    tiles: dict[str, int] | None = Field(
        default=None,
        description="parts of a frame at a time, whose seams are blended; {} leaves their sizes to the autoencoder, "
        "others are arguments of its enable_tiling",
    )


class DenoisingSettings(BaseModel):
    """How a diffusers pipeline draws, what of it is trained, and in what batches it runs.

    ``call`` goes to the pipeline unchanged in rollout and update; ``evaluation_call`` is laid over it when a sample is
    drawn without noise, so that a run may train at 10 steps and be judged at 40.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    decides: ClassVar[str] = "denoising"  # which methods are for it
    is_scheduled: ClassVar[bool] = True  # every sample takes the same, known number of decisions
    resumable: ClassVar[tuple[str, ...]] = (
        "sampler", "strength", "last_std", "density", "reduction", "call", "evaluation_call", "buckets", "decode",
        "frame_rate", "reading", "rollout_batch", "update_batch", "fast_remainder", "segments",
        "gradient_checkpointing", "attention", "compile", "memo_bytes",
    )  # fmt: skip
    """What a resumed run may have otherwise."""
    of_a_rollout: ClassVar[tuple[str, ...]] = ("call", "sampler", "strength")
    """What a plan may set otherwise for one rollout."""

    model: str | None = Field(
        default=None,
        description="path or hub id of the pipeline, a one-file checkpoint (.safetensors), or python:module:function "
        "that builds it",
    )
    single_file_config: str | None = Field(
        default=None,
        description="of a one-file checkpoint: folder or hub id of a pipeline, whose classes, configurations and "
        "tokenizers it has; null: those that diffusers infers from its keys",
    )
    revision: str | None = Field(default=None, description="of the hub repository")
    variant: str | None = Field(default=None, description="of the weight files, for example fp16")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="of the loaded weights; float16 would need a scaler"
    )
    components: dict[str, Literal["float32", "bfloat16"] | None] = Field(
        default_factory=dict,
        description="of a stored pipeline, loaded otherwise than dtype says: null leaves one out (text_encoder_3 and "
        "tokenizer_3 of Stable Diffusion 3, safety_checker), a dtype is its own (vae: float32)",
    )
    scheduler: dict[str, Any] = Field(
        default_factory=dict, description="laid over the scheduler's own configuration, for example {shift: 3.0}"
    )
    sampler: Literal["flow_sde", "cps", "dance_sde", "wan_sde", "log_sde", "ddim", "native"] | None = Field(
        default=None,
        description="how a stochastic step is drawn; native: the noise the scheduler itself draws; null: flow_sde on "
        "flow levels, native for consistency models, else ddim; cps does not keep the marginals",
    )
    strength: float = Field(
        default=0.7, ge=0, description="how much of a step is random: see the samplers; native does not use it"
    )
    last_std: float = Field(
        default=0.0,
        ge=0,
        description="std of the last step, around the clean sample, in latent units; 0: it draws nothing. Above 0 the "
        "last step is a decision too, and a single step can be trained",
    )
    density: Literal["gaussian", "squared_error"] = Field(
        default="gaussian", description="log-density of a step's elements"
    )
    reduction: Literal["mean", "sum_sqrt"] = Field(
        default="mean", description="of the elements: their mean, or their sum over the square root of their number"
    )
    call: dict[str, Any] = Field(default_factory=dict, description="arguments of the pipeline's call")
    evaluation_call: dict[str, Any] = Field(
        default_factory=dict, description="laid over call where samples are drawn without noise"
    )
    sampling_rate: int | None = Field(
        default=None, ge=1, description="of the sound that the pipeline gives, in Hz, where no part of it says so"
    )
    columns: tuple[str, ...] = Field(
        default=(), description="data columns that go to the call, as arguments of their names with one entry a row"
    )
    buckets: BucketSettings | None = Field(default=None, description="null: all is drawn in the size that call says")
    decode: DecodeSettings = Field(default=DecodeSettings(), description="in slices; by default as the pipeline has it")
    frame_rate: float | None = Field(
        default=None,
        gt=0,
        description="of its videos, in frames a second, for the files that are kept of them; null: the call's "
        "frame_rate or fps, else 8",
    )
    pictures: dict[str, str] = Field(
        default_factory=dict,
        description="further arguments of the call that are pictures, with the data columns that hold them: "
        "{mask_image: mask}; a column holds one or a list, and prompts.pictures finds their files",
    )
    reading: ReadingSettings = Field(
        default=ReadingSettings(), description="of finished samples, for losses on samples that are noised again"
    )
    supervision: SupervisionSettings = Field(
        default=SupervisionSettings(), description="by examples: warmup and auxiliary"
    )
    lora: LoraSettings | None = Field(default=None, description="null: every weight of the denoisers is trained")
    adapter: str | None = Field(
        default=None,
        description="start from what another run trained: its folder, a checkpoint, or adapters in any form that peft "
        "or diffusers reads, at the scale of their file; without lora the whole weights of a run. The reference "
        "without adapters stays the model itself",
    )
    rollout_batch: int = Field(default=8, ge=1, description="rows per pipeline run in rollouts")
    update_batch: int = Field(default=8, ge=1, description="states per pipeline run in updates")
    fast_remainder: FastRemainder | None = Field(
        default=None, description="of a rollout after its last random step; null: as the rest of the schedule"
    )
    segments: tuple[int, ...] | None = Field(
        default=None, description="sizes of consecutive chunks of steps; null: one a step"
    )
    denoisers: tuple[str, ...] | None = Field(default=None, description="component names; null finds them")
    gradient_checkpointing: bool = Field(default=False, description="of the denoisers: memory for time")
    attention: Literal["default", "native", "xformers", "flash"] = Field(
        default="default", description="attention back end of diffusers; default leaves the model's own"
    )
    compile: bool = Field(default=False, description="torch.compile of the denoiser's repeated blocks, or of all of it")
    memo_bytes: int = Field(default=2 * 1024**3, ge=0, description="memory for encoded prompts and condition images")

    @model_validator(mode="after")
    def _require_counts(self) -> DenoisingSettings:
        require_single_results("columns", dict.fromkeys(self.columns, "a column"))
        for section, call in (("call", self.call), ("evaluation_call", self.evaluation_call)):
            require_single_results(section, call)
            for name in COUNTS:
                if isinstance(number := call.get(name), int | float) and number < 1:
                    raise ValueError(f"{section}.{name} must be at least 1, got {number}")
        return self

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> DenoisingSettings:
        """The settings that a mapping of fields holds. Raises ConfigError for a value that is not allowed."""
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
        """What ``mmgrpo explain`` says of these settings: how examples are noised, where that is set."""
        own, corrected = self.supervision, self.supervision.correction
        if own == SupervisionSettings():
            return []
        said = f"examples are noised at {own.levels} levels, shift = {own.shift:g}"
        if corrected is not None:
            said += (
                f"; correction: beside each, {corrected.points} points that a step of the model's own leads to, of "
                f"{corrected.num_steps}, each at weight {corrected.weight:g}"
            )
        return [("supervision", said)]
