"""The section ``runtime``: use of the machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, model_validator

from mmgrpo.config.registry import suggestion
from mmgrpo.config.sections import Named, Section

TRACKER_SETTINGS: Mapping[str, Sequence[str]] = MappingProxyType(
    {"tensorboard": ("project",), "wandb": ("project", "entity", "group", "tags"), "trackio": ("project",)}
)
"""The settings of each tracker: texts, of ``tags`` a list."""


class TrackerConfig(Named):
    """A tracker with its settings: {name: wandb, project: my-project, entity: my-team}."""

    name: Literal["tensorboard", "wandb", "trackio"]

    @property
    def project(self) -> str:
        """The project that the run belongs to."""
        return self.settings.get("project", "mmgrpo")

    @property
    def arguments(self) -> dict[str, Any]:
        """Further arguments with which accelerate starts the tracker."""
        return {key: value for key, value in self.settings.items() if key != "project"}

    @model_validator(mode="after")
    def _takes_its_settings(self) -> TrackerConfig:
        for key, value in self.settings.items():
            if key not in TRACKER_SETTINGS[self.name]:
                raise ValueError(f"{self.name} takes no {key!r}{suggestion(key, TRACKER_SETTINGS[self.name])}")
            texts = value if key == "tags" and isinstance(value, list | tuple) else [value]
            if not all(isinstance(text, str) for text in texts) or (key == "tags" and texts is not value):
                raise ValueError(f"{key} of {self.name} must be {'a list of texts' if key == 'tags' else 'a text'}")
        return self


class RuntimeConfig(Section):
    """The machine."""

    device: str | None = Field(default=None, description="device; null: the one that accelerate chooses")
    trackers: tuple[TrackerConfig, ...] = Field(
        default=(),
        description="trackers of accelerate, in addition to the files of the run folder: names, or {name: wandb, "
        "project: my-project}",
    )
    threads: int | None = Field(default=None, ge=1, description="CPU threads of torch; null: torch's default")
    collective_timeout_s: float = Field(
        default=3600.0,
        gt=0,
        description="of several processes: seconds that a collective waits for a process that is still at work (its "
        "rewards, the judges of an evaluation); then the run fails",
    )
    heartbeat_timeout_s: float = Field(
        default=300.0,
        gt=0,
        description="of several processes: seconds without a heartbeat after which a process counts as stopped, or as "
        "lost with its machine, and the others end; a killed process is detected at once",
    )
    context_parallel: int = Field(
        default=1,
        ge=1,
        description="processes that share the sequence of each sample, for videos and images that do not fit one "
        "process: diffusers' Ulysses attention, where it has a plan for the denoiser (Wan, FLUX, FLUX.2)",
    )
    gather_for_rollout: bool = Field(
        default=True,
        description="where FSDP2 or DeepSpeed shards the policy: gather it on every process before it samples, and "
        "shard it again after; false: gather it block by block in each call (once a token, once a "
        "denoising step), for models that do not fit next to the optimizer state",
    )
    offload_rewards: bool = Field(
        default=False,
        description="move the models of rewards to the CPU before each rollout and each update, and back when a reward "
        "is called, to save memory of the accelerator",
    )
    max_reward_failure_frac: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="share of the samples of a call on which a reward may fail before the run stops",
    )

    @property
    def tracker_names(self) -> tuple[str, ...]:
        """The names of the trackers, each that of a package."""
        return tuple(tracker.name for tracker in self.trackers)

    @model_validator(mode="after")
    def _names_each_tracker_once(self) -> RuntimeConfig:
        if len(set(self.tracker_names)) < len(self.trackers):
            raise ValueError(f"trackers: {', '.join(self.tracker_names)} repeat: name each tracker once")
        return self
