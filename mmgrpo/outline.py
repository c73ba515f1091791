"""A policy's model in outline: its weights and its passes as shapes without values, by which a run is planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Calls of the model that a rollout makes for a batch of rows.

    Attributes:
        call: makes one, of what was prepared; without grad.
        times: how often it is made.
        prepare: makes what is there before, such as a cache; what it holds counts, what it does does not.
    """

    call: Callable[[Any], object]
    times: int = 1
    prepare: Callable[[], Any] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What a policy's model is and does, before it is loaded.

    Attributes:
        modules: of everything that is loaded, by name, on the meta device; trained as the policy trains it.
        trained: the names of those that a reference of full weights is a copy of.
        sharded: the modules that are sharded where FSDP2 is asked for.
        update: makes the forward of one slice of an update, and gives a scalar to differentiate.
        update_rows: rows of it.
        rollout: what a batch of a rollout calls: for a denoiser, one step of it.
        rollout_rows: rows of it.
        assumed: what the shapes stand on, in words.
    """

    modules: Mapping[str, nn.Module]
    trained: Sequence[str]
    sharded: Sequence[nn.Module]
    update: Callable[[], Tensor]
    update_rows: int
    rollout: Sequence[Pass]
    rollout_rows: int
    assumed: Sequence[str] = ()
