"""An outline of a policy's model: its weights and forward passes as shapes on the meta device, to estimate a run's
cost; and the memory of an inference server.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # an engine states its memory without torch
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Model calls that a rollout makes for a batch of rows.

    Attributes:
        call: makes one call with the prepared object; without grad.
        times: number of calls.
        prepare: makes an object that exists before the call, such as a cache; its memory is counted, its cost is not.
    """

    call: Callable[[Any], object]
    times: int = 1
    prepare: Callable[[], Any] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The structure and the calls of a policy's model, before it is loaded.

    Attributes:
        modules: all loaded modules, by name, on the meta device, with the trained parameters of the policy.
        trained: the names of the modules that a full-weight reference copies.
        sharded: the modules that FSDP2 shards.
        update: makes the forward of one slice of an update, and returns a scalar to differentiate.
        update_rows: rows of that slice.
        rollout: calls for a batch of a rollout; for a denoiser, those of one step.
        rollout_rows: rows of that batch.
        assumed: assumptions of the shapes, in words.
        update_size: rows of a slice of an update -> its size, to which its memory is proportional: rows, or tokens.
        stored_bytes: bytes of the weights of quantized layers.
        offloaded: modules whose frozen layers wait on the host.
        cached_bytes: limit of the cache on the device that outputs of frozen encoders fill throughout a run.
    """

    modules: Mapping[str, nn.Module]
    trained: Sequence[str]
    sharded: Sequence[nn.Module]
    update: Callable[[], Tensor]
    update_rows: int
    rollout: Sequence[Pass]
    rollout_rows: int
    assumed: Sequence[str] = ()
    update_size: Callable[[int], int] = lambda rows: rows
    stored_bytes: Mapping[nn.Module, int] = field(default_factory=dict)
    offloaded: Sequence[nn.Module] = ()
    cached_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """The memory that an inference server takes of a trainer's GPU.

    Attributes:
        share: share of that GPU; None: it is not predicted, since the server is on other GPUs, or may be.
        sleeps: whether it takes that share while it generates, and nothing during scoring and updates.
        setting: the setting of the share, for a suggested value; empty without a share.
        description: the GPU of the server and its share, in words that follow "the server".
    """

    share: float | None
    sleeps: bool = False
    setting: str = ""
    description: str


class SupportsServerMemory(ABC):
    """An inference engine that states the memory of its server."""

    @property
    @abstractmethod
    def server_memory(self) -> ServerMemory:
        """The memory by the settings, without a connection. Raises ConfigError for a share that is none."""
