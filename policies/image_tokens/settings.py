"""The configuration of a policy that draws pictures token by token, as a run's ``policy:`` section holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from ..lora import LoraSettings
from ..overriding import override_settings
from ..temperature_schedule import TemperatureSchedule


class ImageTokensSettings(BaseModel):
    """How a model draws pictures out of tokens, what of it is trained, and in what batches it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    decides: ClassVar[str] = "tokens"  # which methods are for it
    is_scheduled: ClassVar[bool] = True  # every picture is of as many codes
    resumable: ClassVar[tuple[str, ...]] = (
        "attention", "template", "guidance_scale", "temperature", "top_k", "top_p", "min_p", "temperature_schedule",
        "caption_dropout", "share_prefix", "gradient_checkpointing", "rescore", "rollout_batch", "update_tokens",
        "head_bytes",
    )  # fmt: skip
    """What a resumed run may have otherwise."""
    of_a_rollout: ClassVar[tuple[str, ...]] = (
        "guidance_scale",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "temperature_schedule",
    )
    """What a plan may set otherwise for one rollout."""

    model: str | None = Field(
        default=None,
        description="path or hub id, or python:module:function that returns a model and its processor or tokenizer, "
        "and may return an autoencoder as a third",
    )
    autoencoder: str | None = Field(
        default=None,
        description="what makes pictures of codes and codes of pictures, where the model holds none that does both: "
        "path or hub id of a diffusers VQModel (its subfolder after a colon), or python:module:function; null: the "
        "model's own",
    )
    revision: str | None = Field(default=None, description="of the hub repository")
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of the arithmetic; weights that are trained in full are kept in float32 beside it",
    )
    attention: str | None = Field(
        default=None, description="attn_implementation of transformers: sdpa, eager, ...; null: it chooses"
    )
    processor: dict[str, Any] = Field(default_factory=dict, description="arguments of AutoProcessor.from_pretrained")
    grid: tuple[int, int] | None = Field(
        default=None, description="height and width of a picture in tokens; null: what model or processor say"
    )
    first_code: int | None = Field(
        default=None,
        description="where the vocabulary has the codes one after the other, the id of the first; null: what the model "
        "says, else behind the tokenizer's last",
    )
    begin: str | None = Field(
        default=None,
        description="what stands between a prompt and its picture, a text of the tokenizer's; null: the processor's "
        "own, if it has one",
    )
    chat: bool | None = Field(
        default=None,
        description="put prompts into the chat template; null: if there is one; false: the prompt's text as it is",
    )
    template: dict[str, Any] = Field(default_factory=dict, description="further variables of the chat template")
    guidance_scale: float | None = Field(
        default=None,
        ge=1,
        description="s of classifier-free guidance, u + s (c - u), in drawing and in scoring; 1 has none; null: the "
        "generation config's, else 1",
    )
    temperature: float = Field(default=1.0, gt=0, description="divides the guided logits, in drawing and in scoring")
    top_k: int | None = Field(default=None, ge=1, description="draw among the k likeliest; scored on the same codes")
    top_p: float | None = Field(default=None, gt=0, le=1, description="draw in the nucleus; scored on the same codes")
    min_p: float | None = Field(
        default=None, ge=0, le=1, description="drop codes below this share of the likeliest; scored on the same"
    )
    temperature_schedule: TemperatureSchedule | None = Field(
        default=None,
        description="codes are drawn the colder, the later they come; it is no part of how they are scored. null: all "
        "alike",
    )
    caption_dropout: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="share of the warm-up's examples that are taught without their prompt, so that there is something "
        "to guide away from; published models learn with 0.1",
    )
    lora: LoraSettings | None = Field(
        default=None, description="null: every weight that drawing goes through is trained, the autoencoder never"
    )
    adapter: str | None = Field(
        default=None,
        description="start from what another run trained: its folder, a checkpoint, or adapters as peft keeps them",
    )
    share_prefix: bool | None = Field(
        default=None,
        description="in updates, run a prompt once for all rows that share it; null: unless gradient_checkpointing",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="memory for time; switches share_prefix off, as transformers drops the cache"
    )
    rescore: bool = Field(
        default=False,
        description="take the rollout's log-probabilities from the update's forward, for one forward more: drawing "
        "rounds otherwise, which bfloat16 makes visible in the ratio",
    )
    rollout_batch: int = Field(default=64, ge=1, description="pictures that are drawn together")
    update_tokens: int = Field(
        default=16384, ge=1, description="tokens per forward in updates, those of guidance counted too"
    )
    head_bytes: int = Field(
        default=256 * 1024**2, ge=1, description="float32 logits held at a time; longer batches go through in chunks"
    )

    def overridden(self, changed: Mapping[str, Any]) -> ImageTokensSettings:
        """These settings with some of drawing changed. Raises ConfigError for others, and for values out of range."""
        return override_settings(self, changed, self.of_a_rollout)

    def described(self) -> list[tuple[str, str]]:
        """What ``mmgrpo explain`` says of these settings: labels and texts."""
        cuts = [
            f"{name} = {value:g}" for name in ("top_k", "top_p", "min_p") if (value := getattr(self, name)) is not None
        ]
        support = f"{', '.join(cuts)}, scored on the codes that could be drawn" if cuts else "all codes"
        scale = "of the generation config" if self.guidance_scale is None else f"{self.guidance_scale:g}"
        guided = "" if self.guidance_scale == 1 else f"guidance {scale}, also scored; "
        if self.lora is None:
            trained = "every weight that drawing goes through"
        else:
            trained = f"LoRA on the decoder, rank {self.lora.rank}, alpha {self.lora.alpha:g}"
        return [("trained", trained), ("sampling", f"{guided}temperature = {self.temperature:g}; {support}")]
