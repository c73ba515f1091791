"""Audio in the page: players next to spectrograms, lossless or reduced."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest

from mmgrpo.data.audio_loading import encode_wav, load_audio
from mmgrpo.data.spectrograms import spectrogram
from tests.audio_signals import tone
from tests.report.folder import STEPS, sample, write_lines
from tests.report.page import Page, decoded, render


def sounds(page: Page) -> list[bytes]:
    return [base64.b64decode(player["src"].split(",")[1], validate=True) for player in page.attributes("audio")]


def write(run: Path, rows: list[dict], data: bytes) -> None:
    for step in STEPS:
        folder = run / f"samples/step-{step:06d}"
        (folder / "0.wav").write_bytes(data)
        write_lines(folder / "samples.jsonl", rows)


def test_short_audio_is_embedded_unchanged(run: Path) -> None:
    write(run, [sample("0.wav", r, 0.5) for r in range(6)], encode_wav(tone()))
    page = render(run)
    players = page.attributes("audio")
    assert len(players) == len(page.attributes("img")) == 30
    assert all("controls" in player and player["src"].startswith("data:audio/wav;base64,") for player in players)
    assert set(sounds(page)) == {encode_wav(tone())}
    waveform = np.asarray(decoded(page.attributes("img")[0]["src"]).convert("RGB")).astype(int)
    expected = np.asarray(spectrogram(load_audio(encode_wav(tone())))).astype(int)
    assert abs(waveform - expected).mean() < 8  # WebP
    assert "media-src data:" in next(
        m["content"] for m in page.attributes("meta") if "content" in m and "src" in m["content"]
    )


@pytest.mark.nightly
def test_long_audio_is_reduced_until_the_page_is_small(run: Path) -> None:
    long = tone(440, rate=44100, duration_s=6, channels=2)
    left = type(long)(long.values[:1].repeat(2, 1).contiguous(), 44100)  # 1 MB, more than 160 kB
    write(run, [sample("0.wav", r, 0.5) for r in range(6)], encode_wav(left))
    page = render(run)
    assert (run / "report.html").stat().st_size < 8_000_000
    assert "30 images are reduced" in page.texts("p", "lead")[0]
    embedded = load_audio(sounds(page)[0])
    assert embedded.sampling_rate == 24000
    assert embedded.duration_s == pytest.approx(6, abs=0.2)
    middle = embedded.values[0, 24000:48000]
    assert int(abs(np.fft.rfft(middle.numpy())).argmax()) == 440


@pytest.mark.nightly
def test_a_video_is_played_with_its_audio(run: Path) -> None:
    for step in STEPS:
        spectrogram(tone(880)).save(run / f"samples/step-{step:06d}/0.png")
    write(run, [sample("0.png", r, 0.5) | {"sound": "0.wav"} for r in range(6)], encode_wav(tone()))
    page = render(run)
    assert set(sounds(page)) == {encode_wav(tone())}
    assert np.array_equal(np.asarray(decoded(page.attributes("img")[0]["src"])), np.asarray(spectrogram(tone(880))))


def test_input_audio_of_texts_can_be_played(run: Path) -> None:
    rows = [sample(None, r, 0.5, text="a tone") | {"sounds": ["0.wav", None]} for r in range(6)]
    write(run, rows, encode_wav(tone()))
    page = render(run)
    assert set(sounds(page)) == {encode_wav(tone())}
    assert len(page.attributes("audio")) == 6
    assert any("hole" in span.get("class", "") for span in page.attributes("span"))


def test_unreadable_audio_leaves_an_empty_cell(run: Path) -> None:
    write(run, [sample("0.wav", r, 0.5) for r in range(6)], b"RIFF and nothing")
    page = render(run)
    assert page.attributes("audio") == page.attributes("img") == []
