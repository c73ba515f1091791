"""Target audio as input of a pipeline's autoencoder, if that encodes waveforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmgrpo.data.audio_loading import resample_audio
from mmgrpo.errors import PolicyError
from mmgrpo.types import Audio

from .layout import LatentLayout


@torch.no_grad()
def waveform_of(audio: Audio, layout: LatentLayout, rate: int | None) -> Tensor:
    """The audio at the autoencoder's sampling rate, with its channels and length.

    A single channel is repeated for all; several are averaged first. Shorter audio is padded with silence, longer audio
    is cut.

    Shapes: -> (1, C, N).
    Raises: PolicyError if the autoencoder does not decode waveforms, or its sampling rate is unknown.
    """
    decoded = _decoded(layout)
    if decoded.ndim != 3 or rate is None:
        reason = f"its autoencoder decodes {tuple(decoded.shape)}" if rate is not None else "its rate is unknown"
        raise PolicyError(
            f"audio cannot be encoded to this pipeline's states: {reason}; only waveforms (batch, channels, samples) "
            "of a known rate can. Set policy.sampling_rate, or train without audio targets"
        )
    C, N = decoded.shape[1:]
    values = resample_audio(audio, rate).values
    if len(values) != C:
        values = values.mean(0, keepdim=True).expand(C, -1)
    return pad(values[:, :N], (0, max(0, N - values.shape[1])))[None]


def _decoded(layout: LatentLayout) -> Tensor:
    vae: Any = layout.decoder
    output = vae.decode(torch.zeros(layout.latent_shape, device=vae.device, dtype=vae.dtype))
    return output[0] if isinstance(output, tuple) else output.sample
