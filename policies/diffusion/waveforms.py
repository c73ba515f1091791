"""Target sounds as latents of a pipeline's autoencoder, where that encodes waveforms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmgrpo.data.sounds import at_rate
from mmgrpo.errors import PolicyError
from mmgrpo.types import Audio

from .layout import LatentLayout


@torch.no_grad()
def waveform_of(audio: Audio, layout: LatentLayout, rate: int | None) -> Tensor:
    """The sound as what a pipeline's autoencoder would decode: at its rate, with its channels and of its length.

    One channel is given to all; several become their mean and that is. Silence follows a shorter sound, a longer one
    ends with the pipeline's.

    Shapes: -> (1, C, N).
    Raises: PolicyError for an autoencoder that decodes something else, and where nothing says the rate.
    """
    decoded = _decoded(layout)
    if decoded.ndim != 3 or rate is None:
        what = f"its autoencoder decodes {tuple(decoded.shape)}" if rate is not None else "nothing says its rate"
        raise PolicyError(
            f"a sound cannot be encoded to this pipeline's states: {what}, and only waveforms (batch, channels, "
            "samples) of a known rate are; set policy.sampling_rate, or train without sounds as targets"
        )
    C, N = decoded.shape[1:]
    values = at_rate(audio, rate).values
    if len(values) != C:
        values = values.mean(0, keepdim=True).expand(C, -1)
    return pad(values[:, :N], (0, max(0, N - values.shape[1])))[None]


def _decoded(layout: LatentLayout) -> Tensor:
    vae: Any = layout.decoder
    found = vae.decode(torch.zeros(layout.latent_shape, device=vae.device, dtype=vae.dtype))
    return found[0] if isinstance(found, tuple) else found.sample
