"""Renders audio as an image: its waveform above its spectrogram."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from PIL import Image

from mmgrpo.maths.sounds import power_spectrogram
from mmgrpo.samples import Audio

WIDTH, WAVE, SPECTRUM = 256, 40, 120  # pixels
WINDOW_S = 0.04
LOWEST_HZ = 40.0
RANGE_DB = 80.0
COLORS = ((0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))  # dark to bright, evenly spaced
INK, PAPER = (np.array(color, dtype=np.uint8) for color in ((40, 80, 140), (255, 255, 255)))


def spectrogram(audio: Audio) -> Image.Image:
    """The audio's waveform, from -1 to 1, above its power spectrogram; channels are averaged.

    Time runs to the right. Frequencies are on a logarithmic axis from 40 Hz, at the bottom, to half the sampling rate;
    colors go from -80 dB of full scale to 0.

    Units: 256 x 160 pixels, RGB.
    """
    values_N = audio.values.mean(0)
    pixels = np.concatenate([_waveform_pixels(values_N.numpy()), _spectrum_pixels(values_N, audio.sampling_rate)])
    return Image.fromarray(pixels)


def _waveform_pixels(values_N: np.ndarray) -> np.ndarray:
    """The range of values in the time span of each pixel column: (WAVE, WIDTH, 3)."""
    edges = np.linspace(0, len(values_N), WIDTH + 1).astype(int)
    parts = [values_N[start : max(end, start + 1)] for start, end in pairwise(edges)]
    low, high = ([f(part) if len(part) else 0.0 for part in parts] for f in (np.min, np.max))
    row = (1 - np.arange(WAVE) / (WAVE - 1) * 2)[:, None]
    half = 1 / (WAVE - 1)
    inked = (row >= np.array(low) - half) & (row <= np.array(high) + half)
    return np.where(inked[..., None], INK, PAPER)


def _spectrum_pixels(values_N: torch.Tensor, rate: int) -> np.ndarray:
    """The spectrogram, lowest frequency last: (SPECTRUM, WIDTH, 3)."""
    window = min(max(16, round(WINDOW_S * rate)), max(16, len(values_N)))
    hop = max(1, (len(values_N) - window) // WIDTH)
    power_KF = power_spectrogram(values_N, window=window, hop=hop).numpy()
    frequency_Y = np.geomspace(rate / 2, min(LOWEST_HZ, rate / 4), SPECTRUM)
    bin_Y = (frequency_Y * window / rate).clip(0, len(power_KF) - 1)
    column_X = np.linspace(0, power_KF.shape[1] - 1, WIDTH).round().astype(int)
    floor_Y, share_Y = np.floor(bin_Y).astype(int), (bin_Y % 1)[:, None]
    next_Y = np.minimum(floor_Y + 1, len(power_KF) - 1)
    power_YX = ((1 - share_Y) * power_KF[floor_Y] + share_Y * power_KF[next_Y])[:, column_X]
    level_YX = (10 * np.log10(power_YX + 1e-12) / RANGE_DB + 1).clip(0, 1)
    anchors = np.linspace(0, 1, len(COLORS))
    channels = [np.interp(level_YX, anchors, channel) for channel in np.array(COLORS).T]
    return np.stack(channels, axis=-1).round().astype(np.uint8)
