"""The configuration of a denoising policy, as a run's ``policy:`` section holds it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class LoraSettings(BaseModel):
    """Low-rank adapters on the denoiser (peft)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(32, ge=1)
    alpha: float = Field(64.0, gt=0)
    targets: str | tuple[str, ...] = ("to_q", "to_k", "to_v", "to_out.0")
    init: Literal["gaussian", "kaiming"] = Field("gaussian", description="of the first factor; the second starts at 0")
    dora: bool = False


class DenoisingSettings(BaseModel):
    """How a diffusers pipeline draws, what of it is trained, and in what batches it runs.

    ``call`` goes to the pipeline unchanged in rollout and update; ``evaluation_call`` is laid over it when a sample is
    drawn without noise, so that a run may train at 10 steps and be judged at 40.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str | None = Field(
        None, description="path or hub id of the pipeline, or python:module:function that builds it"
    )
    revision: str | None = None
    variant: str | None = None
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the loaded weights; float16 would need a scaler"
    )
    scheduler: dict[str, Any] = Field(
        default_factory=dict, description="laid over the scheduler's own configuration, for example {shift: 3.0}"
    )
    sampler: Literal["flow_sde", "cps", "dance_sde", "wan_sde", "ddim", "native"] = "flow_sde"
    strength: float = Field(0.7, ge=0, description="noise level of flow_sde and cps, eta of ddim and dance_sde")
    density: Literal["gaussian", "squared_error"] = "gaussian"
    reduction: Literal["mean", "sum_sqrt"] = "mean"
    call: dict[str, Any] = Field(default_factory=dict)
    evaluation_call: dict[str, Any] = Field(default_factory=dict)
    lora: LoraSettings | None = None
    rollout_batch: int = Field(8, ge=1, description="rows per pipeline run in rollouts")
    update_batch: int = Field(8, ge=1, description="states per pipeline run in updates")
    segments: tuple[int, ...] | None = Field(None, description="sizes of consecutive chunks of steps; None: one a step")
    denoisers: tuple[str, ...] | None = Field(None, description="component names; None finds them")
    gradient_checkpointing: bool = False
    attention: Literal["default", "native", "xformers", "flash"] = "default"
    compile: bool = Field(False, description="torch.compile of the denoiser's repeated blocks")
    memo_bytes: int = Field(2 * 1024**3, ge=0, description="memory for encoded prompts and condition images")
