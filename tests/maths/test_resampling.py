"""Resampling, the power of frequencies and the level of audio, compared with sines."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.maths.sounds import level_db, power_spectrogram, resampled
from tests.audio_signals import tone

EDGE_S = 0.05  # a sine that begins and ends at once is not band-limited there


@pytest.mark.parametrize(("rate", "new_rate"), [(8000, 16000), (8000, 44100), (8000, 6000), (44100, 48000)])
def test_a_sine_is_the_same_sine_at_another_rate(rate: int, new_rate: int) -> None:
    before, after = tone(440, rate=rate), tone(440, rate=new_rate)
    result = resampled(before.values, rate, new_rate)
    edge = int(EDGE_S * new_rate)
    assert result.shape == after.values.shape
    torch.testing.assert_close(result[:, edge:-edge], after.values[:, edge:-edge], rtol=0, atol=5e-4)


def test_frequencies_above_the_lower_rate_are_removed() -> None:
    high = tone(3600, rate=8000)
    result = resampled(high.values, 8000, 6000)  # without a filter it would be a tone of 2400 Hz
    assert float(result[:, 300:-300].abs().max()) < 2e-3
    assert float(high.values.abs().max()) > 0.49


def test_the_same_rate_keeps_values() -> None:
    values = tone().values
    assert resampled(values, 8000, 8000) is values


def test_lengths_are_rounded_up() -> None:
    assert resampled(torch.zeros(2, 5), 8000, 6000).shape == (2, 4)  # 3.75
    assert resampled(torch.zeros(1, 1), 6000, 44100).shape == (1, 8)  # 7.35


def test_a_sine_has_half_its_squared_amplitude_at_its_frequency() -> None:
    power_KF = power_spectrogram(tone(400, amplitude=0.5, duration_s=1).values[0], window=400, hop=100)
    assert power_KF.shape == (201, 77)
    assert set(power_KF.argmax(0).tolist()) == {20}  # 400 Hz x 400 / 8000
    torch.testing.assert_close(power_KF[20], torch.full((77,), 0.125), rtol=1e-4, atol=0)
    assert float(power_KF[30:].max()) < 1e-9


def test_levels() -> None:
    assert level_db(tone(amplitude=1.0).values) == pytest.approx(10 * math.log10(0.5), abs=1e-3)
    assert level_db(tone(amplitude=0.1).values) == pytest.approx(-20 + 10 * math.log10(0.5), abs=1e-3)
    assert level_db(torch.zeros(1, 8)) == pytest.approx(-100)
