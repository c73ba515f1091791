"""The configuration of low-rank adapters, as a policy's settings hold it; read without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from mmgrpo.config.sections import Section


class LoraSettings(Section):
    """Low-rank adapters on the trained model (peft)."""

    rank: int = Field(default=32, ge=1)
    alpha: float = Field(default=64.0, gt=0, description="the adapters' output is scaled by alpha / rank")
    targets: str | tuple[str, ...] | None = Field(
        default=None,
        description="endings of module names, or one string in peft's form: a regular expression or all-linear; null: "
        "every linear layer of a denoiser's attention, every linear layer of a language model",
    )
    init: Literal["gaussian", "kaiming"] = Field(
        default="gaussian", description="initialization of the first factor; the second starts at 0"
    )
    dora: bool = Field(default=False, description="weight-decomposed adapters (DoRA)")


def require_adapters(quantization: Mapping[str, Any] | None, lora: LoraSettings | None) -> None:
    """Raises ValueError if weights are quantized and no adapters are trained."""
    if quantization is not None and lora is None:
        raise ValueError(
            "quantization_config: quantized weights cannot be trained in full: set policy.lora, for example "
            "{rank: 32, alpha: 64}, or remove quantization_config"
        )
