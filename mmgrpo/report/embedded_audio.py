"""Audio as data URIs with spectrograms; reduced to a mono MP3 where the page would become too large."""

from __future__ import annotations

import base64
import io

from PIL import Image

from mmgrpo.errors import DataError
from mmgrpo.samples import Audio

RATES = (24_000, 16_000, 8_000)
BIT_RATE = 32_000  # of the MP3, in bits a second
IMAGE_QUALITY = 80
RIFF = b"RIFF"


def played(data: bytes, share: int) -> tuple[str, Image.Image, bool] | None:
    """A WAV file as a data URI, its spectrogram, and whether the URI is the original file.

    Args:
        data: the content of the file.
        share: maximum number of bytes.

    Returns:
        A data URI of at most ``share`` bytes before base64, longer audio cut at its end; None if the file is no
        readable WAV file.
    """
    if not data.startswith(RIFF):
        return None
    from mmgrpo.data.audio_loading import load_audio, resample_audio  # with torch, which other pages do not need
    from mmgrpo.data.spectrograms import spectrogram

    try:
        audio = load_audio(data)
    except (DataError, MemoryError):
        return None
    if len(data) <= share:
        return _uri("audio/wav", data), spectrogram(audio), True
    rate = next((rate for rate in RATES if rate <= audio.sampling_rate), RATES[-1])
    small = resample_audio(audio, rate, mono=True)
    most = max(1, int(share * 8 / BIT_RATE * rate * 0.9))
    return _uri("audio/mpeg", _mp3(Audio(small.values[:, :most], rate))), spectrogram(audio), False


def _mp3(audio: Audio) -> bytes:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp3") as container:
        stream = container.add_stream("libmp3lame", rate=audio.sampling_rate, bit_rate=BIT_RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(audio.values.numpy(), format="fltp", layout="mono")
        frame.sample_rate = audio.sampling_rate
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=audio.sampling_rate)
        for part in (*resampler.resample(frame), None):
            container.mux(stream.encode(part))
    return buffer.getvalue()


def _uri(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode('ascii')}"
