"""Settings of a language policy: the section ``policy:`` of a run."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import shorten
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from mmgrpo.config.sections import Section
from mmgrpo.data.media_options import OPTIONS, require_options
from mmgrpo.errors import DataError

from ..lora import LoraSettings, require_adapters
from ..overriding import override_settings
from ..temperature_schedule import TemperatureSchedule


class LanguageSettings(Section):
    """Sampling, training and batching of a transformers language or vision-language model."""

    decides: ClassVar[str] = "tokens"  # the kind of methods that apply
    resumable: ClassVar[tuple[str, ...]] = (
        "attention", "system", "template", "video", "max_new_tokens", "temperature", "top_k", "top_p", "min_p",
        "temperature_schedule", "suppress", "segment_end", "share_prefix", "gradient_checkpointing", "rescore",
        "router_replay", "padding_free",
        "rollout_batch", "compile", "update_tokens", "head_bytes", "memo_bytes", "offload",
    )  # fmt: skip
    """Settings that may differ in a resumed run."""
    of_a_rollout: ClassVar[tuple[str, ...]] = (
        "temperature", "top_k", "top_p", "min_p", "temperature_schedule", "max_new_tokens",
    )  # fmt: skip
    """Settings that a plan may override for one rollout."""

    model: str | None = Field(
        default=None,
        description="path or hub id, or python:module:function that returns a model and its processor or tokenizer",
    )
    revision: str | None = Field(default=None, description="revision of the hub repository")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32",
        description="dtype of the arithmetic; float16 scales losses; weights that are trained in full are float32",
    )
    quantization_config: dict[str, Any] | None = Field(
        default=None,
        description="quantization of the frozen weights under lora, as transformers takes it, for example "
        "{load_in_4bit: true, bnb_4bit_quant_type: nf4} or {quant_method: torchao, quant_type: {name: "
        "Int8WeightOnlyConfig}}; null: as they are stored. Layers in 4 bit compute in dtype without a "
        "bnb_4bit_compute_dtype",
    )
    attention: str | None = Field(
        default=None,
        description="attn_implementation of transformers: sdpa, eager, flash_attention_2, ...; null: its default",
    )
    processor: dict[str, Any] = Field(
        default_factory=dict, description="arguments of AutoProcessor.from_pretrained, for example {max_pixels: 401408}"
    )
    chat: bool | None = Field(
        default=None,
        description="render prompts with the chat template; null: if there is one; false: use the prompt's text as it "
        "is",
    )
    system: str | None = Field(default=None, description="system turn for prompts without one")
    template: dict[str, Any] = Field(
        default_factory=dict, description="further variables of the chat template, for example {enable_thinking: false}"
    )
    video: dict[str, Any] = Field(
        default_factory=dict,
        description="sampling and resizing of videos, by qwen-vl-utils: fps, nframes, min_frames, max_frames, "
        "video_start, video_end, min_pixels, max_pixels, total_pixels, resized_height, resized_width; for a "
        "list of frames only the sizes and sample_fps. Video options of a row override them",
    )
    max_new_tokens: int = Field(default=256, ge=1, description="maximum number of tokens of a completion")
    temperature: float = Field(default=1.0, gt=0, description="divisor of the logits, in sampling and scoring")
    top_k: int | None = Field(default=None, ge=1, description="sample from the k likeliest tokens; also in scoring")
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="sample from the nucleus of this probability; also in scoring"
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="drop tokens below this share of the highest probability; also in scoring",
    )
    temperature_schedule: TemperatureSchedule | None = Field(
        default=None,
        description="factor on the temperature that decreases along a completion, in sampling only; null: a constant "
        "temperature",
    )
    suppress: tuple[int, ...] = Field(
        default=(),
        description="token ids that are never sampled, in addition to the model's image, video and audio tokens",
    )
    segment_end: str | None = Field(
        default=None,
        description="regular expression of the last token of a segment, for example [.!?\\n]; null: a completion is "
        "one segment",
    )
    lora: LoraSettings | None = Field(default=None, description="null: train every weight")
    adapter: str | None = Field(
        default=None,
        description="initial weights from another run: its folder, a checkpoint, or adapters in the format of peft or "
        "diffusers; without lora the full weights of a run. The reference without adapters is the model "
        "itself",
    )
    freeze_vision: bool = Field(
        default=False, description="train only the language model; LoRA is always on the language model only"
    )
    share_prefix: bool | None = Field(
        default=None,
        description="in updates, run a prompt once for all of its rows; null: if the model's cache supports it",
    )
    padding_free: bool = Field(
        default=False,
        description="in updates, rows of text are one sequence without padding, for the variable-length kernels of "
        "flash attention; other attention reads the complete sequence and masks other rows. Every row runs in full",
    )
    offload: bool = Field(
        default=False,
        description="frozen weights of the layers wait in the memory of the host while other layers run, by "
        "accelerate; needs lora and gradient_checkpointing",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="less memory, more time: layers run again in the backward pass"
    )
    rescore: bool = Field(
        default=False,
        description="take the rollout's log-probabilities from an update's forward, at the cost of one more forward: "
        "decoding rounds differently, which bfloat16 makes visible in the ratio",
    )
    router_replay: bool = Field(
        default=False,
        description="of a mixture of experts: rescore, and let updates use the experts that each token had then, so "
        "that ratios do not jump where the router changes its choice; every row then runs in full in updates",
    )
    rollout_batch: int = Field(
        default=64, ge=1, description="rows that are decoded at a time; a finished row leaves its slot to the next one"
    )
    compile: bool = Field(
        default=False,
        description="torch.compile of the decoder's layers in scoring and updates, and of decoding over a static "
        "cache (CUDA graphs on a GPU): finished rows then stay in the batch, whose rows and tokens are rounded up to "
        "multiples of 8 and 256, and each new shape is compiled once",
    )
    update_tokens: int = Field(
        default=16384, ge=1, description="tokens per forward in updates; the tokens of a shared prompt are counted once"
    )
    head_bytes: int = Field(
        default=256 * 1024**2,
        ge=1,
        description="maximum size of float32 logits in memory; longer batches are processed in chunks",
    )
    memo_bytes: int = Field(
        default=1024**3,
        ge=0,
        description="memory of the cache of processed prompts, on the host, and as much for "
        "the features of media from encoders that are not trained, on the device; the oldest are dropped first",
    )

    @property
    def shares_prefix(self) -> bool | None:
        """``share_prefix``, or False where every row has to run in full."""
        return False if self.router_replay or self.padding_free else self.share_prefix

    @model_validator(mode="after")
    def _require_adapters(self) -> LanguageSettings:
        require_adapters(self.quantization_config, self.lora)
        if self.offload and (self.lora is None or not self.gradient_checkpointing):
            raise ValueError(
                "offload: needs policy.lora, since trained weights stay, and policy.gradient_checkpointing: true, "
                "since the backward would hold the weights of all layers"
            )
        if self.router_replay and (self.compile or self.share_prefix):
            raise ValueError("router_replay: remove policy.compile and policy.share_prefix")
        if self.padding_free and (self.router_replay or self.share_prefix):
            raise ValueError("padding_free: remove policy.router_replay and policy.share_prefix")
        if self.offload and self.compile:
            raise ValueError("offload: a compiled model does not run accelerate's hooks: remove policy.compile")
        return self

    @field_validator("video")
    @classmethod
    def _has_valid_video_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(options) - set(OPTIONS["video"])):
            raise ValueError(f"has no options {', '.join(unknown)}; allowed are {', '.join(OPTIONS['video'])}")
        try:
            require_options("video", options, "policy.video")
        except DataError as error:
            raise ValueError(str(error)) from error
        return options

    def overridden(self, changed: Mapping[str, Any]) -> LanguageSettings:
        """These settings with some overrides. Raises ConfigError for settings that a rollout cannot override."""
        return override_settings(self, changed, self.of_a_rollout)

    def described(self) -> list[tuple[str, str]]:
        """Labels and texts of these settings for ``mmgrpo explain``."""
        cuts = [
            f"{name} = {value:g}" for name in ("top_k", "top_p", "min_p") if (value := getattr(self, name)) is not None
        ]
        support = f"{', '.join(cuts)}, scored on the tokens that could be sampled" if cuts else "the full vocabulary"
        cooled = (
            ""
            if self.temperature_schedule is None
            else f", falling at a pace of {self.temperature_schedule.pace:g} tokens"
        )
        warmth = f"temperature = {self.temperature:g}{cooled}"
        if self.lora is not None:
            trained = f"LoRA on the language model, rank {self.lora.rank}, alpha {self.lora.alpha:g}"
        else:
            trained = "the language model" if self.freeze_vision else "every weight"
        system = () if self.system is None else (("system", f"of prompts without one: {shorten(self.system, 200)}"),)
        return [
            ("trained", trained),
            ("sampling", f"{warmth}; {support}; at most {self.max_new_tokens} tokens"),
            *system,
            ("prompt", f"read once per group in the rollout; in the update {self._update_reading()}"),
        ]

    def _update_reading(self) -> str:
        if self.router_replay:
            return "once per row: router_replay is true"
        if self.share_prefix is False:
            return "once per row: share_prefix is false"
        if self.padding_free:
            return "once per row, rows of text without padding"
        return "once per group too, where the model's cache is of keys and values alone; else once per row"
