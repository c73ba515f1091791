"""How a pipeline's states lie in its autoencoder's latents, read off the pipeline's own way to ``decode``.

Packing, patches, frames, mean and spread are each pipeline's own, but all are of one kind: every element of a latent is
an element of the state, scaled and shifted. Which, and by how much, is seen by giving the loop known states and looking
at what reaches ``decode``.

Axes: N elements of a state, and as many of a latent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.errors import PolicyError

from .components import nested_pipelines
from .instrumented_pipeline import InstrumentedPipeline
from .pipeline_run import PipelineRun, StepCall, Stop
from .scheduler_families import advance, schedule_index

DIGITS = 16  # the place of an element is spelt in digits this large, which bfloat16 keeps apart
TOLERANCE = 2e-2  # relative; bfloat16 rounds to 4e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentLayout:
    """latent_i = scale_i state_{source_i} + shift_i.

    Attributes:
        decoder: the component that decodes, and encodes.
        encodes: where and in which type it takes pixels; to ask it each time takes as long as to encode a digit.
        state_shape: of one row's state, its batch dimension included.
        latent_shape: of what the decoder is given for one row.
        source_N: the state's element behind each element of the latent.
        scale_N: float32.
        shift_N: float32.
    """

    decoder: Any
    encodes: tuple[torch.device, torch.dtype]
    state_shape: torch.Size
    latent_shape: torch.Size
    source_N: Tensor
    scale_N: Tensor
    shift_N: Tensor

    def state(self, latent: Tensor) -> Tensor:
        """The state of which the pipeline would make this latent, float32. Raises PolicyError for another shape."""
        if latent.shape != self.latent_shape:
            raise PolicyError(
                f"the target's latent is {tuple(latent.shape)}, the pipeline decodes {tuple(self.latent_shape)}: a "
                "target video must have policy.call.num_frames frames, and a pipeline of videos needs videos"
            )
        flat_N = torch.empty_like(self.scale_N)
        flat_N[self.source_N] = (latent.float().cpu().flatten() - self.shift_N) / self.scale_N
        return flat_N.reshape(self.state_shape)


def read_layout(stage: InstrumentedPipeline, arguments: Mapping[str, Any]) -> LatentLayout:
    """Reads the layout of one row's states.

    Args:
        stage: the pipeline.
        arguments: of a call for one row that ends in a picture or a video.

    Returns:
        The layout, checked on a random state.

    Raises:
        PolicyError: the pipeline does not decode, or decodes something else than its states' elements.
    """
    name = type(stage.pipeline).__name__
    zero = _decoded(stage, arguments, torch.zeros_like)
    state_shape, N = zero.state_shape, zero.latent.numel()
    if torch.Size(state_shape).numel() != N:
        raise PolicyError(
            f"{name} steps states of shape {tuple(state_shape)} and decodes {tuple(zero.latent.shape)} at once: the "
            "warm-up knows no way between them; train without warm-up"
        )

    def answered(value_N: Tensor) -> Tensor:
        latent = _decoded(stage, arguments, lambda state: value_N.to(state.device).reshape(state.shape)).latent
        return latent.float().cpu().flatten()

    shift_N = zero.latent.float().cpu().flatten()
    scale_N = answered(torch.ones(N)) - shift_N
    source_N, place = torch.zeros(N, dtype=torch.long), 1
    while place < N and bool(scale_N.all()):
        digit_N = torch.arange(N) // place % DIGITS
        source_N += place * ((answered(digit_N.float()) - shift_N) / scale_N).round().long()
        place *= DIGITS
    probe_N = torch.randn(N, generator=torch.Generator().manual_seed(0))
    if bool((source_N.sort().values == torch.arange(N)).all()):
        expected_N = scale_N * probe_N[source_N] + shift_N
        bound_N = TOLERANCE * ((scale_N * probe_N[source_N]).abs() + shift_N.abs() + scale_N.abs())
        if bool(((answered(probe_N) - expected_N).abs() <= bound_N).all()):
            decoder: Any = zero.decoder
            return LatentLayout(
                decoder=decoder,
                encodes=(decoder.device, decoder.dtype),
                state_shape=state_shape,
                latent_shape=zero.latent.shape,
                source_N=source_N,
                scale_N=scale_N,
                shift_N=shift_N,
            )
    raise PolicyError(
        f"what {name} decodes is not its last state with elements moved, scaled and shifted: the warm-up knows no way "
        "from pictures to its states; train without warm-up"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoded:
    """What reached ``decode``, of which component, where the loop ended in a state of this shape."""

    decoder: nn.Module
    latent: Tensor
    state_shape: torch.Size


def _decoded(stage: InstrumentedPipeline, arguments: Mapping[str, Any], fill: Callable[[Tensor], Tensor]) -> _Decoded:
    """One run whose every step returns ``fill(state)``, the last in float32, ended where it decodes."""
    shapes: list[torch.Size] = []
    found: list[tuple[nn.Module, Tensor]] = []

    def on_step(call: StepCall) -> Tensor:
        if call.stream > 0:
            return call.sample
        shapes.append(call.sample.shape)
        is_last = schedule_index(call.scheduler, call.timestep) == len(call.scheduler.timesteps) - 1
        advance(call.scheduler)
        return fill(call.sample.float()).to(torch.float32 if is_last else call.sample.dtype)

    pipelines = (stage.pipeline, *nested_pipelines(stage.pipeline))
    modules = [part for one in pipelines for part in one.components.values() if isinstance(part, nn.Module)]
    decoders = {id(module): module for module in modules if callable(getattr(module, "decode", None))}
    with _watched(list(decoders.values()), found, looping=lambda: bool(shapes)):
        stage.run(PipelineRun(on_step=on_step, ghost=lambda iteration: True), arguments, seed=0)
    if not shapes or not found:
        raise PolicyError(
            f"{type(stage.pipeline).__name__} has no component whose decode makes pictures of its states, so that the "
            "warm-up cannot encode targets; train without warm-up"
        )
    decoder, latent = found[0]
    return _Decoded(decoder=decoder, latent=latent, state_shape=shapes[-1])


@contextmanager
def _watched(
    modules: Sequence[nn.Module], found: list[tuple[nn.Module, Tensor]], *, looping: Callable[[], bool]
) -> Iterator[None]:
    """Within it the modules' ``decode`` keeps what it is given and ends the run.

    Once in the loop they give out that they compute in float32, so that pipelines do not round on the way.
    """
    stock = [type(module) for module in modules]
    try:
        for module, kind in zip(modules, stock, strict=True):
            module.__class__ = _watching(kind, found, looping)
        yield
    finally:
        for module, kind in zip(modules, stock, strict=True):
            module.__class__ = kind


def _watching(stock: type, found: list[tuple[nn.Module, Tensor]], looping: Callable[[], bool]) -> type:
    def decode(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not looping():
            return stock.decode(module, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        found.append((module, next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))))
        raise Stop

    ours: dict[str, Any] = {"decode": decode}
    dtype = getattr(stock, "dtype", None)
    if isinstance(dtype, property) and dtype.fget is not None:
        own = dtype.fget
        ours["dtype"] = property(lambda module: torch.float32 if looping() else own(module))
    return type(stock.__name__, (stock,), ours)
