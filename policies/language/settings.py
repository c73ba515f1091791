"""The configuration of a language policy, as a run's ``policy:`` section holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from mmgrpo.data.media_options import OPTIONS, require_options
from mmgrpo.errors import DataError

from ..lora import LoraSettings
from ..overriding import override_settings
from ..temperature_schedule import TemperatureSchedule


class LanguageSettings(BaseModel):
    """How a transformers model writes, what of it is trained, and in what batches it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    decides: ClassVar[str] = "tokens"  # which methods are for it
    resumable: ClassVar[tuple[str, ...]] = (
        "attention", "system", "template", "video", "max_new_tokens", "temperature", "top_k", "top_p", "min_p",
        "temperature_schedule", "suppress", "segment_end", "share_prefix", "gradient_checkpointing", "rescore",
        "rollout_batch", "compile", "update_tokens", "head_bytes", "memo_bytes",
    )  # fmt: skip
    """What a resumed run may have otherwise."""
    of_a_rollout: ClassVar[tuple[str, ...]] = (
        "temperature", "top_k", "top_p", "min_p", "temperature_schedule", "max_new_tokens",
    )  # fmt: skip
    """What a plan may set otherwise for one rollout."""

    model: str | None = Field(
        default=None,
        description="path or hub id, or python:module:function that returns a model and its processor or tokenizer",
    )
    revision: str | None = Field(default=None, description="of the hub repository")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of the arithmetic; weights that are trained in full are kept in float32 beside it",
    )
    attention: str | None = Field(
        default=None,
        description="attn_implementation of transformers: sdpa, eager, flash_attention_2, ...; null: it chooses",
    )
    processor: dict[str, Any] = Field(
        default_factory=dict, description="arguments of AutoProcessor.from_pretrained, for example {max_pixels: 401408}"
    )
    chat: bool | None = Field(
        default=None,
        description="put prompts into the chat template; null: if there is one; false: the prompt's text as it is",
    )
    system: str | None = Field(default=None, description="system turn for prompts that have none")
    template: dict[str, Any] = Field(
        default_factory=dict, description="further variables of the chat template, for example {enable_thinking: false}"
    )
    video: dict[str, Any] = Field(
        default_factory=dict,
        description="how video files are sampled and resized, by qwen-vl-utils: fps, nframes, min_frames, max_frames, "
        "video_start, video_end, min_pixels, max_pixels, total_pixels, resized_height, resized_width; of a list of "
        "frames the sizes and sample_fps alone. Options beside a video in a row override them",
    )
    max_new_tokens: int = Field(default=256, ge=1, description="longest completion")
    temperature: float = Field(default=1.0, gt=0, description="divides the logits, in sampling and in scoring")
    top_k: int | None = Field(default=None, ge=1, description="sample among the k likeliest; scored on the same tokens")
    top_p: float | None = Field(default=None, gt=0, le=1, description="sample in the nucleus; scored on the same")
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="drop tokens below this share of the likeliest; scored on the same"
    )
    temperature_schedule: TemperatureSchedule | None = Field(
        default=None,
        description="tokens are drawn the colder, the later they come, by a factor on the temperature; it is no part "
        "of how they are scored. null: all alike",
    )
    suppress: tuple[int, ...] = Field(
        default=(), description="token ids that are never sampled, beside the model's image, video and audio tokens"
    )
    segment_end: str | None = Field(
        default=None,
        description="regular expression; a segment of a completion ends with a token in which it is found, for example "
        "[.!?\\n]; null: a completion is one segment",
    )
    lora: LoraSettings | None = Field(default=None, description="null: every weight is trained")
    adapter: str | None = Field(
        default=None,
        description="start from what another run trained: its folder, a checkpoint, or adapters as peft or diffusers "
        "keep them; without lora the whole weights of a run. The reference without adapters stays the model itself",
    )
    freeze_vision: bool = Field(
        default=False, description="train nothing outside the language model; LoRA is on the language model anyway"
    )
    share_prefix: bool | None = Field(
        default=None,
        description="in updates, run a prompt once for all rows that share it; null: where the model's cache allows",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="memory for time; switches share_prefix off, as transformers drops the cache"
    )
    rescore: bool = Field(
        default=False,
        description="take the rollout's log-probabilities from the update's forward, for one forward more: decoding "
        "rounds otherwise, which bfloat16 makes visible in the ratio",
    )
    rollout_batch: int = Field(default=64, ge=1, description="rows that are decoded together")
    compile: bool = Field(
        default=False,
        description="decode over a static cache with torch.compile (CUDA graphs on a GPU); finished rows then stay in "
        "the batch, and each new shape compiles once: worth it for small models and many tokens",
    )
    update_tokens: int = Field(
        default=16384, ge=1, description="tokens per forward in updates, prompts counted once where they are shared"
    )
    head_bytes: int = Field(
        default=256 * 1024**2, ge=1, description="float32 logits held at a time; longer batches go through in chunks"
    )
    memo_bytes: int = Field(default=1024**3, ge=0, description="memory for processed prompts, oldest dropped first")

    @field_validator("video")
    @classmethod
    def _known_video_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(options) - set(OPTIONS["video"])):
            raise ValueError(f"has no options {', '.join(unknown)}; allowed are {', '.join(OPTIONS['video'])}")
        try:
            require_options("video", options, "policy.video")
        except DataError as error:
            raise ValueError(str(error)) from error
        return options

    def overridden(self, changed: Mapping[str, Any]) -> LanguageSettings:
        """These settings with some of drawing changed. Raises ConfigError for others, and for values out of range."""
        return override_settings(self, changed, self.of_a_rollout)

    def described(self) -> list[tuple[str, str]]:
        """What ``mmgrpo explain`` says of these settings: labels and texts."""
        cuts = [
            f"{name} = {value:g}" for name in ("top_k", "top_p", "min_p") if (value := getattr(self, name)) is not None
        ]
        support = f"{', '.join(cuts)}, scored on the tokens that could be drawn" if cuts else "the whole vocabulary"
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
        return [
            ("trained", trained),
            ("sampling", f"{warmth}; {support}; at most {self.max_new_tokens} tokens"),
            ("prompt", f"read once per group in the rollout; in the update {self._update_reading()}"),
        ]

    def _update_reading(self) -> str:
        if self.gradient_checkpointing:
            return "once per row: gradient checkpointing drops the cache"
        if self.share_prefix is False:
            return "once per row: share_prefix is false"
        return "once per group too, where the model's cache is of keys and values alone; else once per row"
