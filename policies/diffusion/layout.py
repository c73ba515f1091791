"""How a pipeline's states map to its autoencoder's latents, measured at the input of ``decode``.

Packing, patches, frames, mean and scale differ between pipelines, but all are of one kind: every element of a latent is
an element of the state, scaled and shifted. Runs whose loop ends in prepared states measure which, and by how much.

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

DIGITS = 16  # base in which element indices are encoded; bfloat16 distinguishes its digits
TOLERANCE = 2e-2  # relative; bfloat16 rounds to 4e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentLayout:
    """latent_i = scale_i state_{source_i} + shift_i.

    Attributes:
        decoder: the component that decodes, and encodes.
        encoder_input: device and dtype of its pixels, stored because the lookup takes as long as encoding a digit.
        state_shape: of one row's state, batch dimension included.
        latent_shape: of the decoder's input for one row.
        source_N: index of the state's element that each element of the latent comes from.
        scale_N: float32.
        shift_N: float32.
    """

    decoder: Any
    encoder_input: tuple[torch.device, torch.dtype]
    state_shape: torch.Size
    latent_shape: torch.Size
    source_N: Tensor
    scale_N: Tensor
    shift_N: Tensor

    def state(self, latent: Tensor) -> Tensor:
        """The state that the pipeline decodes to this latent, float32. Raises PolicyError for another shape."""
        if latent.shape != self.latent_shape:
            raise PolicyError(
                f"the target's latent is {tuple(latent.shape)}; the pipeline decodes {tuple(self.latent_shape)}. A "
                "target video must have policy.call.num_frames frames, and a video pipeline needs videos"
            )
        flat_N = torch.empty_like(self.scale_N)
        flat_N[self.source_N] = (latent.float().cpu().flatten() - self.shift_N) / self.scale_N
        return flat_N.reshape(self.state_shape)


def measure_layout(instrumented: InstrumentedPipeline, arguments: Mapping[str, Any]) -> LatentLayout:
    """Measures the layout of one row's states.

    Args:
        instrumented: the pipeline.
        arguments: of a call for one row whose output is an image or a video.

    Returns:
        The layout, verified on a random state.

    Raises:
        PolicyError: the pipeline does not decode, or decodes something other than elements of its states.
    """
    name = type(instrumented.pipeline).__name__
    zero = _decoder_input(instrumented, arguments, torch.zeros_like)
    state_shape, N = zero.state_shape, zero.latent.numel()
    if torch.Size(state_shape).numel() != N:
        raise PolicyError(
            f"{name} steps states of shape {tuple(state_shape)} and decodes {tuple(zero.latent.shape)}: the warm-up "
            "cannot convert between them; train without warm-up"
        )

    def decoded_N(value_N: Tensor) -> Tensor:
        latent = _decoder_input(
            instrumented, arguments, lambda state: value_N.to(state.device).reshape(state.shape)
        ).latent
        return latent.float().cpu().flatten()

    shift_N = zero.latent.float().cpu().flatten()
    scale_N = decoded_N(torch.ones(N)) - shift_N
    source_N, base = torch.zeros(N, dtype=torch.long), 1
    while base < N and bool(scale_N.all()):
        digit_N = torch.arange(N) // base % DIGITS
        source_N += base * ((decoded_N(digit_N.float()) - shift_N) / scale_N).round().long()
        base *= DIGITS
    probe_N = torch.randn(N, generator=torch.Generator().manual_seed(0))
    if bool((source_N.sort().values == torch.arange(N)).all()):
        expected_N = scale_N * probe_N[source_N] + shift_N
        bound_N = TOLERANCE * ((scale_N * probe_N[source_N]).abs() + shift_N.abs() + scale_N.abs())
        if bool(((decoded_N(probe_N) - expected_N).abs() <= bound_N).all()):
            decoder: Any = zero.decoder
            return LatentLayout(
                decoder=decoder,
                encoder_input=(decoder.device, decoder.dtype),
                state_shape=state_shape,
                latent_shape=zero.latent.shape,
                source_N=source_N,
                scale_N=scale_N,
                shift_N=shift_N,
            )
    raise PolicyError(
        f"the decoder input of {name} is not its last state with elements permuted, scaled and shifted: the warm-up "
        "cannot convert images to its states; train without warm-up"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecoderInput:
    """The input of ``decode``, its component, and the shape of the loop's last state."""

    decoder: nn.Module
    latent: Tensor
    state_shape: torch.Size


def _decoder_input(
    instrumented: InstrumentedPipeline, arguments: Mapping[str, Any], fill: Callable[[Tensor], Tensor]
) -> _DecoderInput:
    """The decoder input of one run whose every step returns ``fill(state)``, the last in float32."""
    shapes: list[torch.Size] = []
    inputs: list[tuple[nn.Module, Tensor]] = []

    def on_step(call: StepCall) -> Tensor:
        if call.stream > 0:
            return call.sample
        shapes.append(call.sample.shape)
        is_last = schedule_index(call.scheduler, call.timestep) == len(call.scheduler.timesteps) - 1
        advance(call.scheduler)
        return fill(call.sample.float()).to(torch.float32 if is_last else call.sample.dtype)

    pipelines = (instrumented.pipeline, *nested_pipelines(instrumented.pipeline))
    modules = [part for each in pipelines for part in each.components.values() if isinstance(part, nn.Module)]
    decoders = {id(module): module for module in modules if callable(getattr(module, "decode", None))}
    with _decode_intercepted(list(decoders.values()), inputs, in_loop=lambda: bool(shapes)):
        instrumented.run(PipelineRun(on_step=on_step, ghost=lambda iteration: True), arguments, seed=0)
    if not shapes or not inputs:
        raise PolicyError(
            f"{type(instrumented.pipeline).__name__} has no component with a decode that converts its states to "
            f"images, so "
            "the warm-up cannot encode targets; train without warm-up"
        )
    decoder, latent = inputs[0]
    return _DecoderInput(decoder=decoder, latent=latent, state_shape=shapes[-1])


@contextmanager
def _decode_intercepted(
    modules: Sequence[nn.Module], inputs: list[tuple[nn.Module, Tensor]], *, in_loop: Callable[[], bool]
) -> Iterator[None]:
    """Makes the modules' ``decode`` record its input and end the run within the context.

    In the loop they report float32 as their dtype, so that pipelines do not round.
    """
    stock = [type(module) for module in modules]
    try:
        for module, kind in zip(modules, stock, strict=True):
            module.__class__ = _intercepting_class(kind, inputs, in_loop)
        yield
    finally:
        for module, kind in zip(modules, stock, strict=True):
            module.__class__ = kind


def _intercepting_class(stock: type, inputs: list[tuple[nn.Module, Tensor]], in_loop: Callable[[], bool]) -> type:
    def decode(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not in_loop():
            return stock.decode(module, *args, **kwargs)
        inputs.append((module, next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))))
        raise Stop

    overrides: dict[str, Any] = {"decode": decode}
    dtype = getattr(stock, "dtype", None)
    if isinstance(dtype, property) and dtype.fget is not None:
        get_dtype = dtype.fget
        overrides["dtype"] = property(lambda module: torch.float32 if in_loop() else get_dtype(module))
    return type(stock.__name__, (stock,), overrides)
