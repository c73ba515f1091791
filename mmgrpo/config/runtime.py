"""How a run uses the machine."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.sections import Section


class RuntimeConfig(Section):
    """The machine."""

    device: str | None = Field(default=None, description="null: what accelerate finds")
    threads: int | None = Field(default=None, ge=1, description="CPU threads of torch; null leaves its default")
    collective_timeout_s: float = Field(
        default=3600.0,
        gt=0,
        description="of several processes: seconds that one may wait in an exchange for one that is still at work (its "
        "rewards, the judges of an evaluation); then the run fails",
    )
    heartbeat_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="of several processes: seconds without a sign of life after which one counts as stopped, or as "
        "gone with its machine, and the others end; one that was killed is missed at once",
    )
    context_parallel: int = Field(
        default=1,
        ge=1,
        description="processes that share the sequence of each sample, for videos and pictures that one has no room "
        "for: diffusers' Ulysses attention, where it has a plan for the denoiser (Wan, FLUX, FLUX.2)",
    )
    gather_for_rollout: bool = Field(
        default=True,
        description="where FSDP2 or DeepSpeed has parted the policy: it is put together on every process before it "
        "draws, parted again after; false: block by block wherever it is called (once a token, once a denoising "
        "step), where the whole of it has no room beside what an update leaves",
    )
    max_reward_failure_frac: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="share of the samples of a call on which a reward may fail before the run stops",
    )
    max_skipped_update_frac: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="share of the last 20 updates that may be skipped because a gradient was not finite",
    )
    reward_cache_mb: float = Field(
        default=64.0, ge=0, description="MiB of cached results of each deterministic reward, per process; 0: none"
    )
