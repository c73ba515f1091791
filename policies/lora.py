"""The configuration of low-rank adapters, as a policy's settings hold it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class LoraSettings(BaseModel):
    """Low-rank adapters on the trained model (peft)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
