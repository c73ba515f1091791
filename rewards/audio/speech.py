"""Reward for speech: word error rate of a speech recognizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from mmgrpo.types import Sample, Score

from ..models.checkpoints import Dtype, require_positive, resolve_dtype
from ..models.speech_recognizers import RecognizerSource
from ..parsing.error_rates import ErrorRate, Unit, transcripts
from ..parsing.explanations import transcript_comparison
from ..parsing.extraction import require_choice


@final
class WordError:
    """Reward: 1 - word error rate between the recognized speech and the target text.

    The target is the text in ``column``, or the prompt with ``column: null``. The rate is computed as in
    ``word_error_rate``, by ``unit``; a sample without audio, or a row without a text, is not scored.

    Settings: ``model`` is a path or hub id of transformers: a recognizer with a CTC head (Wav2Vec2, HuBERT, Parakeet)
    or an encoder-decoder (Whisper, Moonshine). ``language`` is passed to the latter, such as "en". ``device: null`` is
    the process's GPU or the CPU.
    Range: 0 to 1.
    Source: the word error rate of speech recognition, by rapidfuzz; as a reward for speech synthesis Anastassiou et al.
    2024 (Seed-TTS), arXiv:2406.02430.
    Traps: Whisper transcribes the first 30 seconds, and hallucinates words in noise and silence; an unpleasant voice
    can be recognized perfectly: combine it with ``clap_score`` or a speech judge. "10" is not "ten".
    """

    deterministic = True

    def __init__(
        self,
        model: str = "openai/whisper-large-v3-turbo",
        column: str | None = "text",
        unit: Unit = "words",
        language: str | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 8,
    ) -> None:
        resolve_dtype("WordError", dtype)
        self.column = column
        self._rate = ErrorRate(require_choice("WordError.unit", unit, Unit), "reward word_error")
        self._recognizer = RecognizerSource(
            model=model,
            language=language,
            device=device,
            dtype=dtype,
            batch_size=require_positive("WordError.batch_size", batch_size),
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = [None if sample.audio is None else self._references_of(sample) for sample in samples]
        sounds = [s.audio for s, accepted in zip(samples, references, strict=True) if s.audio is not None and accepted]
        transcripts_in_order = iter(self._recognizer(sounds) if sounds else [])
        return [self._score(next(transcripts_in_order), accepted) if accepted else None for accepted in references]

    def _score(self, transcript: str, accepted: list[str]) -> Score:
        nearest = self._rate.nearest(transcript, accepted)
        return Score(nearest.score, transcript_comparison(transcript, nearest.reference, nearest.rate))

    def _references_of(self, sample: Sample) -> list[str] | None:
        value = sample.prompt.text if self.column is None else sample.prompt.columns.get(self.column)
        return None if value is None else transcripts(value)
