"""Reward for speech: the words that a recognizer hears in a sound."""

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
    """Reward: 1 less the word error rate between what a recognizer hears in the sound and what should be said.

    What should be said is the text in ``column``, or the prompt with ``column: null``. The rate is as in
    ``word_error_rate``, by ``unit``; a sample without sound, or a row without a text, is not scored.

    Settings: ``model`` is a path or hub id of transformers: a recognizer with a CTC head (Wav2Vec2, HuBERT, Parakeet)
    or one that writes (Whisper, Moonshine). ``language`` is what such a one is told, "en" say. ``device`` null is the
    process's GPU or the CPU.
    Range: 0 to 1.
    Source: the word error rate of speech recognition, by rapidfuzz; as a reward for speech synthesis Anastassiou et al.
    2024 (Seed-TTS), arXiv:2406.02430.
    Traps: Whisper hears the first 30 seconds, and invents words in noise and silence; a voice that no person would like
    can be recognized perfectly: pair it with ``clap_score`` or a judge of speech. "10" is not "ten".
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
        wanted = [None if sample.audio is None else self._wanted(sample) for sample in samples]
        sounds = [s.audio for s, accepted in zip(samples, wanted, strict=True) if s.audio is not None and accepted]
        transcripts_in_order = iter(self._recognizer(sounds) if sounds else [])
        return [self._score(next(transcripts_in_order), accepted) if accepted else None for accepted in wanted]

    def _score(self, transcript: str, accepted: list[str]) -> Score:
        nearest = self._rate.nearest(transcript, accepted)
        return Score(nearest.score, transcript_comparison(transcript, nearest.reference, nearest.rate))

    def _wanted(self, sample: Sample) -> list[str] | None:
        value = sample.prompt.text if self.column is None else sample.prompt.columns.get(self.column)
        return None if value is None else transcripts(value)
