"""Decoding of a sample that was left as its latent, by the pipeline itself: a run without any real iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.types import Sample

from .denoising_rows import DenoisingRow
from .instrumented_pipeline import InstrumentedPipeline
from .outputs import samples_of
from .pipeline_run import PipelineRun, StepCall
from .scheduler_families import advance


def with_decoded_latent(
    sample: Sample,
    instrumented: InstrumentedPipeline,
    call: Mapping[str, Any],
    *,
    rate: int | None,
    frame_rate: float | None,
) -> Sample:
    """The sample with the image, video or audio of its latent, as the run that sampled it would have decoded it.

    Args:
        sample: with a latent.
        instrumented: the pipeline.
        call: arguments of the pipeline's call; the sizes are those of the sample.
        rate: sampling rate of the pipeline's audio, in Hz, if known.
        frame_rate: of videos, in frames per second.

    Returns:
        The sample.

    Raises:
        PolicyError: the call's states have another shape than the latent.
    """
    latent = sample.latent
    assert latent is not None

    def on_step(step: StepCall) -> Tensor:
        if step.sample.shape != latent.shape:
            raise PolicyError(
                f"the latent of shape {tuple(latent.shape)} is not a state of {type(instrumented.pipeline).__name__} "
                f"with these arguments of its call, which is {tuple(step.sample.shape)}"
            )
        advance(step.scheduler)
        return latent.to(step.sample)

    row = DenoisingRow(prompt=sample.prompt, seed=0, group=sample.group, member=sample.member)
    arguments = instrumented.form.arguments([row], {**call, **sample.latent_size})
    run = PipelineRun(on_step=on_step, ghost=lambda iteration: True)
    (decoded,) = samples_of([row], instrumented.run(run, arguments, seed=0), rate=rate, frame_rate=frame_rate)
    media = {name: getattr(decoded, name) for name in ("image", "video", "frame_rate", "audio", "array")}
    return replace(sample, **media)
