"""The configuration of a policy that writes and draws, as a run's ``policy:`` section holds it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mmgrpo.system.targets import import_attribute

from ..lora import LoraSettings

WRITES = "mmgrpo.policies.language.settings:LanguageSettings"
DRAWS = "mmgrpo.policies.image_tokens.settings:ImageTokensSettings"
OF_BOTH = ("model", "revision", "dtype", "attention", "processor", "lora", "adapter", "gradient_checkpointing")


class UnifiedSettings(BaseModel):
    """One model of transformers that writes and draws, and how it does each."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    decides: ClassVar[str] = "tokens"  # which methods are for it
    resumable: ClassVar[tuple[str, ...]] = ("attention", "gradient_checkpointing", "write", "draw")
    """What a resumed run may have otherwise."""

    model: str | None = Field(
        default=None, description="path or hub id, or python:module:function that returns a model and its processor"
    )
    revision: str | None = Field(default=None, description="of the hub repository")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="of the arithmetic")
    attention: str | None = Field(default=None, description="attn_implementation of transformers; null: it chooses")
    processor: dict[str, Any] = Field(default_factory=dict, description="arguments of AutoProcessor.from_pretrained")
    lora: LoraSettings | None = Field(default=None, description="null: every weight but the autoencoder's is trained")
    adapter: str | None = Field(
        default=None, description="start from what another run trained, as policy.adapter has it"
    )
    gradient_checkpointing: bool = Field(default=False, description="memory for time")
    column: str = Field(
        default="draw",
        description="column of the prompts: where it is true a picture is drawn, elsewhere a text written",
    )
    write: dict[str, Any] = Field(
        default_factory=dict,
        description="how it writes: further keys of the policy language, as max_new_tokens",
    )
    draw: dict[str, Any] = Field(
        default_factory=dict, description="how it draws: further keys of the policy image_tokens, as guidance_scale"
    )

    @model_validator(mode="after")
    def _known(self) -> UnifiedSettings:
        for name, of in (("write", WRITES), ("draw", DRAWS)):
            if taken := sorted(set(getattr(self, name)) & set(OF_BOTH)):
                raise ValueError(f"{name}: {', '.join(taken)} applies to both kinds: move it from {name} to policy")
            self.of(of)
        return self

    def of(self, target: str) -> Any:
        """The settings of ``WRITES`` or ``DRAWS``."""
        overrides = self.write if target == WRITES else self.draw
        return import_attribute(target)(**{name: getattr(self, name) for name in OF_BOTH}, **overrides)
