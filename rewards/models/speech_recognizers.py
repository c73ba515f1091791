"""Speech recognizers of transformers.

Axes: B clips, N samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from mmgrpo.data.audio_loading import resample_audio
from mmgrpo.errors import RewardError
from mmgrpo.types import Audio

from .checkpoints import batches, freeze, load_once, resolve_device, resolve_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class RecognizerSource:
    """Settings of a speech recognizer.

    Attributes:
        model: path or hub id of a model with a CTC head (Wav2Vec2, HuBERT, Parakeet), or of an encoder-decoder
            (Whisper, Moonshine).
        language: language of a multilingual recognizer; None: detected automatically.
        device: None for the process's GPU, or the CPU.
        dtype: data type of the model.
        batch_size: number of clips per batch; only clips of equal length are batched, so nothing is padded.
    """

    model: str
    language: str | None = None
    device: str | None = None
    dtype: str = "float32"
    batch_size: int = 8

    def __call__(self, sounds: Sequence[Audio]) -> list[str]:
        """Transcribe each clip. Raises RewardError if the model cannot be loaded."""
        device = resolve_device(self.device)
        model, processor = load_once(_load_recognizer, self.model, device, resolve_dtype("recognizer", self.dtype))
        rate = processor.feature_extractor.sampling_rate
        values = [resample_audio(sound, rate, mono=True).values[0].numpy() for sound in sounds]
        order = sorted(range(len(values)), key=lambda i: len(values[i]))
        transcripts = [""] * len(values)
        for _, alike in groupby(order, key=lambda i: len(values[i])):
            for rows in batches(list(alike), self.batch_size):
                texts = self._transcribe(model, processor, [values[i] for i in rows], rate)
                for i, text in zip(rows, texts, strict=True):
                    transcripts[i] = text
        return transcripts

    @torch.no_grad()
    def _transcribe(self, model: Any, processor: Any, values: Sequence[Any], rate: int) -> list[str]:
        features = processor.feature_extractor(list(values), sampling_rate=rate, return_tensors="pt")
        inputs = features.to(model.device, model.dtype)
        if not model.can_generate():
            return processor.batch_decode(model(**inputs).logits.argmax(-1))
        options = {} if self.language is None else {"language": self.language}
        ids = model.generate(**inputs, do_sample=False, num_beams=1, **options)
        return processor.batch_decode(ids, skip_special_tokens=True)


def _load_recognizer(name: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModelForCTC, AutoModelForSpeechSeq2Seq, AutoProcessor
    from transformers.models.auto.modeling_auto import MODEL_FOR_CTC_MAPPING, MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING

    kind = type(AutoConfig.from_pretrained(name))
    if kind in MODEL_FOR_CTC_MAPPING:
        model = AutoModelForCTC.from_pretrained(name, dtype=dtype)
    elif kind in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING:
        model = AutoModelForSpeechSeq2Seq.from_pretrained(name, dtype=dtype)
    else:
        raise RewardError(f"{name!r} is no speech recognizer with a CTC head or a decoder: it is a {kind.__name__}")
    return freeze(model, device), AutoProcessor.from_pretrained(name)
