"""Settings of an image-token policy: the section ``policy:`` of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from mmgrpo.config.sections import Section

from ..lora import LoraSettings
from ..overriding import override_settings
from ..temperature_schedule import TemperatureSchedule


class ImageTokensSettings(Section):
    """Sampling, training and batching of a model that generates images as tokens."""

    decides: ClassVar[str] = "tokens"  # the kind of methods that apply
    is_scheduled: ClassVar[bool] = True  # every image has the same number of codes
    resumable: ClassVar[tuple[str, ...]] = (
        "attention", "template", "guidance_scale", "temperature", "top_k", "top_p", "min_p", "temperature_schedule",
        "caption_dropout", "share_prefix", "gradient_checkpointing", "rescore", "rollout_batch", "update_tokens",
        "head_bytes",
    )  # fmt: skip
    """Settings that may differ in a resumed run."""
    of_a_rollout: ClassVar[tuple[str, ...]] = (
        "guidance_scale",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "temperature_schedule",
    )
    """Settings that a plan may override for one rollout."""

    model: str | None = Field(
        default=None,
        description="path or hub id, or python:module:function that returns a model and its processor or tokenizer, "
        "and optionally an autoencoder",
    )
    autoencoder: str | None = Field(
        default=None,
        description="converts between codes and images, for a model without one: path or hub id of a diffusers VQModel "
        "(its subfolder after a colon), or python:module:function; null: the model's own",
    )
    revision: str | None = Field(default=None, description="revision of the hub repository")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="dtype of the arithmetic; weights that are trained in full are stored in float32",
    )
    attention: str | None = Field(
        default=None, description="attn_implementation of transformers: sdpa, eager, ...; null: its default"
    )
    processor: dict[str, Any] = Field(default_factory=dict, description="arguments of AutoProcessor.from_pretrained")
    grid: tuple[int, int] | None = Field(
        default=None, description="height and width of an image in tokens; null: those of the model or the processor"
    )
    first_code: int | None = Field(
        default=None,
        description="id of the first code, if the codes are a range of the vocabulary; null: that of the model, else "
        "the first id after the tokenizer's",
    )
    begin: str | None = Field(
        default=None,
        description="text between a prompt and its image; null: that of the processor, if it has one",
    )
    chat: bool | None = Field(
        default=None,
        description="render prompts with the chat template; null: if there is one; false: use the prompt's text as it "
        "is",
    )
    template: dict[str, Any] = Field(default_factory=dict, description="further variables of the chat template")
    guidance_scale: float | None = Field(
        default=None,
        ge=1,
        description="s of classifier-free guidance, u + s (c - u), in sampling and scoring; 1: no guidance; null: that "
        "of the generation config, else 1",
    )
    temperature: float = Field(default=1.0, gt=0, description="divisor of the guided logits, in sampling and scoring")
    top_k: int | None = Field(default=None, ge=1, description="sample from the k likeliest codes; also in scoring")
    top_p: float | None = Field(
        default=None, gt=0, le=1, description="sample from the nucleus of this probability; also in scoring"
    )
    min_p: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="drop codes below this share of the highest probability; also in scoring",
    )
    temperature_schedule: TemperatureSchedule | None = Field(
        default=None,
        description="factor on the temperature that decreases along the codes, in sampling only; null: a constant "
        "temperature",
    )
    caption_dropout: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the warm-up's examples that are trained without their prompt, as guidance needs; "
        "published models use 0.1",
    )
    lora: LoraSettings | None = Field(
        default=None, description="null: train every weight that generates images, except the autoencoder"
    )
    adapter: str | None = Field(
        default=None,
        description="initial weights from another run: its folder, a checkpoint, or adapters in the format of peft",
    )
    share_prefix: bool = Field(default=True, description="in updates, run a prompt once for all of its rows")
    gradient_checkpointing: bool = Field(default=False, description="less memory, more time")
    rescore: bool = Field(
        default=False,
        description="take the rollout's log-probabilities from an update's forward, at the cost of one more forward: "
        "decoding rounds differently, which bfloat16 makes visible in the ratio",
    )
    rollout_batch: int = Field(default=64, ge=1, description="images per sampling batch")
    update_tokens: int = Field(
        default=16384, ge=1, description="tokens per forward in updates, including those of guidance"
    )
    head_bytes: int = Field(
        default=256 * 1024**2,
        ge=1,
        description="maximum size of float32 logits in memory; longer batches are processed in chunks",
    )

    def overridden(self, changed: Mapping[str, Any]) -> ImageTokensSettings:
        """These settings with some overrides. Raises ConfigError for settings that a rollout cannot override."""
        return override_settings(self, changed, self.of_a_rollout)

    def described(self) -> list[tuple[str, str]]:
        """Labels and texts of these settings for ``mmgrpo explain``."""
        cuts = [
            f"{name} = {value:g}" for name in ("top_k", "top_p", "min_p") if (value := getattr(self, name)) is not None
        ]
        support = f"{', '.join(cuts)}, scored on the codes that could be sampled" if cuts else "all codes"
        scale = "of the generation config" if self.guidance_scale is None else f"{self.guidance_scale:g}"
        guided = "" if self.guidance_scale == 1 else f"guidance {scale}, also scored; "
        if self.lora is None:
            trained = "every weight that the sampling uses"
        else:
            trained = f"LoRA on the decoder, rank {self.lora.rank}, alpha {self.lora.alpha:g}"
        return [("trained", trained), ("sampling", f"{guided}temperature = {self.temperature:g}; {support}")]
