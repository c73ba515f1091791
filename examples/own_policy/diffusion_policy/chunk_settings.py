"""The section ``policy:`` of a run's YAML, read without torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


class ChunkSettings(BaseModel):
    """A small network that denoises chunks of actions, one chunk after another until the episode is over."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    decides: ClassVar[str] = "denoising"  # which published methods are for it
    is_scheduled: ClassVar[bool] = True  # every sample takes the same, known number of decisions
    resumable: ClassVar[tuple[str, ...]] = ("rollout_batch", "update_batch")
    of_a_rollout: ClassVar[tuple[str, ...]] = ()

    chunks: int = Field(default=12, ge=1, description="of an episode, each denoised from separate noise")
    chunk_length: int = Field(default=4, ge=1, description="actions of a chunk, all of them carried out")
    denoising_steps: int = Field(default=8, ge=1, description="decisions of a chunk")
    levels: Literal["cosine", "flow"] = Field(
        default="cosine", description="x = cos(a) x0 + sin(a) eps, as DDPM's cosine schedule, or (1 - a) x0 + a eps"
    )
    sampler: str = Field(default="ddim", description="of mmgrpo.maths.transitions.SAMPLERS; flow_sde and others: flow")
    strength: float = Field(default=1.0, ge=0, description="of the sampler; of ddim 1 is DDPM")
    min_std: float = Field(default=0.1, gt=0, description="least noise of a decision: what exploration is left with")
    density: Literal["gaussian", "squared_error"] = "gaussian"
    reduction: Literal["mean", "sum_sqrt"] = Field(default="mean", description="of the actions' log-densities")
    width: int = Field(default=128, ge=8, description="of the network's three layers")
    rollout_batch: int = Field(default=1024, ge=1, description="episodes at a time")
    update_batch: int = Field(default=512, ge=1, description="episodes in a forward of the update")

    @property
    def num_decisions(self) -> int:
        """Of an episode."""
        return self.chunks * self.denoising_steps

    def described(self) -> list[tuple[str, str]]:
        """What ``mmgrpo explain`` says of the policy."""
        steps = self.chunks * self.chunk_length
        return [
            ("episode", f"{steps} steps in {self.chunks} chunks, each denoised in {self.denoising_steps} decisions"),
            (
                "noise",
                f"{self.sampler} at {self.strength:g} on {self.levels} levels, a std of {self.min_std:g} or more",
            ),
        ]
