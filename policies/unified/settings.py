"""Settings of a unified policy: the section ``policy:`` of a run."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from mmgrpo.config.sections import Section
from mmgrpo.system.targets import import_attribute

from ..lora import LoraSettings

WRITES = "mmgrpo.policies.language.settings:LanguageSettings"
DRAWS = "mmgrpo.policies.image_tokens.settings:ImageTokensSettings"
OF_BOTH = ("model", "revision", "dtype", "attention", "processor", "lora", "adapter", "gradient_checkpointing")


class UnifiedSettings(Section):
    """One transformers model that generates texts and images, with the settings of each."""

    decides: ClassVar[str] = "tokens"  # the kind of methods that apply
    resumable: ClassVar[tuple[str, ...]] = ("attention", "gradient_checkpointing", "write", "draw")
    """Settings that may differ in a resumed run."""

    model: str | None = Field(
        default=None, description="path or hub id, or python:module:function that returns a model and its processor"
    )
    revision: str | None = Field(default=None, description="revision of the hub repository")
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="dtype of the arithmetic")
    attention: str | None = Field(default=None, description="attn_implementation of transformers; null: its default")
    processor: dict[str, Any] = Field(default_factory=dict, description="arguments of AutoProcessor.from_pretrained")
    lora: LoraSettings | None = Field(default=None, description="null: train every weight except the autoencoder")
    adapter: str | None = Field(
        default=None, description="initial weights from another run, as policy.adapter of the policy language"
    )
    gradient_checkpointing: bool = Field(default=False, description="less memory, more time")
    column: str = Field(
        default="draw",
        description="column of the prompts: true generates an image, false a text",
    )
    write: dict[str, Any] = Field(
        default_factory=dict,
        description="settings of texts: further keys of the policy language, such as max_new_tokens",
    )
    draw: dict[str, Any] = Field(
        default_factory=dict,
        description="settings of images: further keys of the policy image_tokens, such as guidance_scale",
    )

    @model_validator(mode="after")
    def _has_valid_names(self) -> UnifiedSettings:
        for name, of in (("write", WRITES), ("draw", DRAWS)):
            if taken := sorted(set(getattr(self, name)) & set(OF_BOTH)):
                raise ValueError(f"{name}: {', '.join(taken)} applies to both kinds: move it from {name} to policy")
            self.of(of)
        return self

    def of(self, target: str) -> Any:
        """The settings of ``WRITES`` or ``DRAWS``."""
        overrides = self.write if target == WRITES else self.draw
        return import_attribute(target)(**{name: getattr(self, name) for name in OF_BOTH}, **overrides)
