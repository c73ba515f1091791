"""Audio: resampling, spectrograms and loudness.

Axes: C channels, N samples, F frames of a spectrogram, K its frequencies.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING

from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

CROSSINGS = 16
"""Zeros of the sinc on each side, before the window ends it."""
ROLLOFF = 0.95
"""Where the filter's pass band ends, as a share of the lower rate's Nyquist frequency."""
SILENT = 1e-10
"""The mean square that counts as none: -100 dB."""


def resampled(values_CN: Tensor, rate: int, new_rate: int) -> Tensor:
    """Audio resampled to another rate, band-limited to the lower of both.

    y(t) = sum_n x(n) h(t - n), h a sinc of the lower rate within a squared cosine of ``CROSSINGS`` zeros a side.

    Shapes: (C, N) -> (C, ceil(N new_rate / rate)).   Units: rates in Hz, positive.
    Source: J. O. Smith, Digital Audio Resampling, ccrma.stanford.edu/~jos/resample; the window is torchaudio's default.
    """
    common = gcd(rate, new_rate)
    old, new = rate // common, new_rate // common
    if old == new:
        return values_CN
    kernel, width = _kernel(old, new)
    num = -(-values_CN.shape[-1] * new // old)
    padded_C1N = torch.nn.functional.pad(values_CN[:, None], (width, width + old))
    resampled_CNJ = torch.nn.functional.conv1d(padded_C1N, kernel.to(values_CN), stride=old).transpose(1, 2)
    return resampled_CNJ.reshape(len(values_CN), -1)[:, :num]


@lru_cache(maxsize=8)
def _kernel(old: int, new: int) -> tuple[Tensor, int]:
    """The filter at each of the ``new`` places between ``old`` samples, and how many of those it reaches to a side."""
    band = min(old, new) * ROLLOFF
    width = int(-(-CROSSINGS * old // band))
    taps_K = torch.arange(-width, width + old, dtype=torch.float64) / old
    offset_J1 = -torch.arange(new, dtype=torch.float64)[:, None] / new
    time_JK = ((taps_K + offset_J1) * band).clamp(-CROSSINGS, CROSSINGS)
    window_JK = (time_JK * torch.pi / CROSSINGS / 2).cos().square()
    return (time_JK.sinc() * window_JK * band / old)[:, None], width


def power_spectrogram(values_N: Tensor, *, window: int, hop: int) -> Tensor:
    """|STFT|^2 under a Hann window, scaled so that a sine of amplitude a has a^2 / 2 at its frequency.

    Shapes: (N,) -> (K, F), K = window / 2 + 1; shorter audio is padded with zeros to one window.
    Units: ``window`` and ``hop`` in samples; row k is the frequency k rate / window.
    """
    padded_N = torch.nn.functional.pad(values_N, (0, max(0, window - len(values_N))))
    hann = torch.hann_window(window, dtype=values_N.dtype)
    spectrum_KF = torch.stft(padded_N, window, hop, window=hann, center=False, return_complex=True)
    return 2 * (spectrum_KF.abs() / hann.sum()).square()


def level_db(values: Tensor) -> float:
    """Root mean square of any tensor, in decibels of full scale: a sine of amplitude 1 has -3.01, silence -100."""
    return float(10 * values.double().square().mean().clamp(min=SILENT).log10())
