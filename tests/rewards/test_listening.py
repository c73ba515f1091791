"""Rewards of audio: values worked out by hand, and models compared with direct calls of transformers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.rewards.audio.clap_scores import ClapScore
from mmgrpo.rewards.audio.levels import Clipping, Loudness, Sounding, SoundLength
from mmgrpo.rewards.audio.speech import WordError
from mmgrpo.rewards.models.speech_recognizers import RecognizerSource
from mmgrpo.rewards.parsing.error_rates import ErrorRate
from mmgrpo.rewards.text.transcripts import WordErrorRate
from transformers import AutoModelForCTC, AutoProcessor, ClapModel, ClapProcessor, WhisperForConditionalGeneration

from mmgrpo.data.audio_loading import resample_audio
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.types import Audio, Prompt, Sample
from tests.audio_signals import silence, tone
from tests.rewards.image_samples import explanations, numbers
from tests.tiny import judges, listeners

SHORT, LONG = tone(440, rate=16000, duration_s=0.3), tone(1200, rate=16000, duration_s=1.5)
CLOSE = {"rel": 0, "abs": 1e-5}


def made(audio: Audio | None, text: str = "a tone", /, **columns: Any) -> Sample:
    return Sample(Prompt(text, columns=columns), group=0, member=0, audio=audio)


def wrote(text: str, /, **columns: Any) -> Sample:
    return Sample(Prompt("what is said?", columns=columns), group=0, member=0, text=text)


class TestErrorRates:
    @pytest.mark.parametrize(
        ("unit", "transcript", "reference", "rate"),
        [
            ("words", "the cat sit", "the cat sat down", 0.5),  # one other, one missing, of four
            ("words", "The cat, sat down!", "the cat sat down", 0.0),
            ("words", "", "the cat sat down", 1.0),
            ("words", "a b c d e f", "a b", 2.0),  # four too many, of two
            ("characters", "abd", "abc", 1 / 3),
            ("characters", "ab c", "abc", 1 / 3),  # the blank counts
            ("characters", "\uff21bc", "abc", 0.0),  # a letter of full width
        ],
    )
    def test_by_hand(self, unit: Any, transcript: str, reference: str, rate: float) -> None:
        assert ErrorRate(unit, "a test")(transcript, reference) == pytest.approx(rate)

    def test_of_a_written_transcript(self) -> None:
        reward = WordErrorRate()
        samples = [
            wrote("the cat sit", text="the cat sat down"),
            wrote("two words more than there are", text="two words"),
            wrote("colour", text=["color", "colour"]),
            wrote("anything"),
            wrote("x", text="..."),
            made(SHORT, text="x"),
        ]
        result = reward(samples)
        assert numbers(result) == [0.5, 0.0, 1.0, None, None, None]
        assert explanations(result)[0] == {
            "parsed": "the cat sit",
            "reference": "the cat sat down",
            "reason": "error rate 0.50",
        }
        tagged = WordErrorRate(column="answer", unit="characters", extract="tag")
        assert numbers(tagged([wrote("hm <answer>abd</answer>", answer="abc")])) == [pytest.approx(2 / 3)]
        assert numbers(reward([wrote("a " * 6000, text="a")])) == [0.0]

    def test_settings(self) -> None:
        with pytest.raises(ConfigError, match=r"WordErrorRate.unit must be one of words, characters, got 'letters'"):
            WordErrorRate(unit="letters")  # pyrefly: ignore[bad-argument-type]


class TestRecognizers:
    @pytest.fixture(scope="class")
    def ctc(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        return str(listeners.save_ctc(tmp_path_factory.mktemp("ctc")))

    def test_a_ctc_head_equals_that_of_transformers(self, ctc: str) -> None:
        model, processor = AutoModelForCTC.from_pretrained(ctc).eval(), AutoProcessor.from_pretrained(ctc)
        expected = []
        for sound in (LONG, SHORT, LONG):
            values = resample_audio(sound, listeners.RATE, mono=True).values[0].numpy()
            inputs = processor(values, sampling_rate=listeners.RATE, return_tensors="pt")
            expected += processor.batch_decode(model(**inputs).logits.argmax(-1))
        assert len(set(expected)) == 2
        assert all(expected)
        assert RecognizerSource(model=ctc)([LONG, SHORT, LONG]) == expected
        assert RecognizerSource(model=ctc, batch_size=1)([LONG, SHORT, LONG]) == expected

    def test_transcripts_are_compared_with_the_text(self, ctc: str) -> None:
        (transcript,) = RecognizerSource(model=ctc)([SHORT])
        first, *rest = transcript.split()
        reward = WordError(ctc)
        samples = [
            made(SHORT, text=transcript.lower()),
            made(SHORT, text=f"{transcript} {transcript}"),
            made(None, text="x"),
            made(SHORT),
        ]
        result = reward(samples)
        assert numbers(result) == [1.0, 0.5, None, None]
        assert explanations(result)[0] == {
            "parsed": transcript,
            "reference": transcript.lower(),
            "reason": "error rate 0.00",
        }
        assert numbers(WordError(ctc, column=None)([made(SHORT, " ".join([first, *rest]))])) == [1.0]

    def test_a_recognizer_that_writes(self, tmp_path: Path) -> None:
        folder = str(listeners.save_whisper(tmp_path))
        model: Any = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        processor = AutoProcessor.from_pretrained(folder)
        values = resample_audio(SHORT, listeners.RATE, mono=True).values[0].numpy()
        features = processor(values, sampling_rate=listeners.RATE, return_tensors="pt").input_features
        expected = processor.batch_decode(model.generate(features), skip_special_tokens=True)
        assert expected[0].strip()
        assert RecognizerSource(model=folder)([SHORT]) == expected

    def test_models_without_speech_recognition_raise(self, tmp_path: Path) -> None:
        folder = judges.save_clip(tmp_path)
        with pytest.raises(RewardError, match=r"no speech recognizer .* it is a CLIPConfig"):
            WordError(str(folder))([made(SHORT, text="x")])


class TestClap:
    @pytest.fixture(scope="class")
    def clap(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        return str(listeners.save_clap(tmp_path_factory.mktemp("clap")))

    @torch.no_grad()
    def cosine(self, folder: str, pieces: list[Audio], text: str) -> float:
        """By transformers alone: the mean of the pieces' unit features against the text."""
        model: Any = ClapModel.from_pretrained(folder).eval()
        processor: Any = ClapProcessor.from_pretrained(folder)
        features = []
        for piece in pieces:
            inputs = processor.feature_extractor(piece.values[0].numpy(), sampling_rate=16000, return_tensors="pt")
            piece_features = model.get_audio_features(**inputs).pooler_output[0]
            features.append(piece_features / piece_features.norm())
        tokens = processor.tokenizer(text, return_tensors="pt")
        read = model.get_text_features(input_ids=tokens["input_ids"]).pooler_output[0]
        return float(torch.cosine_similarity(torch.stack(features).mean(0), read, dim=0))

    def test_it_is_that_of_transformers(self, clap: str) -> None:
        texts = ("a red cat", "two dogs on a black horse")
        expected = [self.cosine(clap, [SHORT], text) for text in texts]
        assert abs(expected[0] - expected[1]) > 3e-4
        samples = [made(SHORT, texts[0]), made(None, "x"), made(SHORT, texts[1])]
        for size in (1, 16):
            first, none, second = ClapScore(clap, batch_size=size)(samples)
            assert none is None
            assert [first, second] == pytest.approx(expected, **CLOSE)

    def test_long_audio_is_transcribed_in_windows(self, clap: str) -> None:
        halves = [Audio(LONG.values[:, :16000], 16000), Audio(LONG.values[:, 16000:], 16000)]
        expected = self.cosine(clap, halves, "a red cat")
        result = ClapScore(clap)([made(LONG, "a red cat")])
        assert result == [pytest.approx(expected, **CLOSE)]
        assert ClapScore(clap)([made(LONG, "a red cat")]) == result

    def test_the_text_is_the_prompt_or_a_column_after_a_prefix(self, clap: str) -> None:
        expected = ClapScore(clap)([made(SHORT, "the sound of a dog")])
        assert ClapScore(clap, prefix="the sound of ")([made(SHORT, "a dog")]) == expected
        captioned = [made(SHORT, "x", caption="the sound of a dog"), made(SHORT, "x")]
        assert ClapScore(clap, text_column="caption")(captioned) == [*expected, None]


class TestLevels:
    def test_loudness(self) -> None:
        # a sine of amplitude a has 20 log10(a) - 3.01 dB
        level = -20 + 10 * math.log10(0.5)
        reward = Loudness(target_db=-20, tolerance_db=10)
        result = reward([made(tone(amplitude=0.1)), made(tone(amplitude=1.0)), made(silence()), made(None)])
        assert numbers(result) == [pytest.approx(1 - 0.301, abs=1e-3), 0.0, 0.0, None]
        assert (explanations(result)[0] or {})["parts"]["level_db"] == pytest.approx(level, abs=1e-3)

    def test_clipping(self) -> None:
        cut = Audio(torch.tensor([[0.5, 1.0, -1.0, 0.0]]), 8)
        assert Clipping()([made(cut), made(tone()), made(None)]) == [-0.5, 0.0, None]

    def test_sounding(self) -> None:
        half = Audio(torch.cat([tone(duration_s=0.4).values, silence(duration_s=0.4).values], dim=1), 8000)
        quiet = Audio(half.values * 1e-4, 8000)
        assert Sounding()([made(half), made(silence()), made(quiet), made(None)]) == [0.5, 0.0, 0.0, None]
        assert Sounding(threshold_db=-95)([made(quiet)]) == [0.5]

    def test_length(self) -> None:
        half = Audio(torch.cat([tone(duration_s=0.4).values, silence(duration_s=0.4).values], dim=1), 8000)
        samples = [made(half, duration_s=0.4), made(half, duration_s=0.5), made(half, duration_s=0.1), made(half)]
        result = SoundLength()([*samples, made(silence(), duration_s=1.0)])
        assert numbers(result) == [pytest.approx(1.0), pytest.approx(0.8), 0.0, None, 0.0]
        assert (explanations(result)[1] or {})["parts"] == {"length_s": 0.4, "target_s": 0.5}
        assert numbers(SoundLength(seconds=0.8)([made(half), made(half, duration_s=0.4)])) == [0.5, pytest.approx(1.0)]

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Loudness(target_db=3), "target_db is at most 0"),
            (lambda: Loudness(tolerance_db=0), "tolerance_db above 0"),
            (lambda: Sounding(threshold_db=0), "Sounding.threshold_db must be below 0"),
            (lambda: SoundLength(seconds=0), "SoundLength.seconds must be above 0"),
        ],
    )
    def test_settings(self, make: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            make()
