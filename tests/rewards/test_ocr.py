"""Text in pictures. No engine is installed here: a real function that reads a picture's own mark stands for one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmgrpo.errors import ConfigError, MissingPackageError
from mmgrpo.rewards.ocr import OcrAccuracy, text_accuracy, wanted_text
from tests.rewards.drawn import drew, filmed

READER = '''
def read(image):
    """The text that is written in grey values, a letter a pixel, until the first black one."""
    values = list(image.convert("L").tobytes())
    return bytes(values[: values.index(0)]).decode("latin-1")
'''


def written(text: str) -> Image.Image:
    row = bytes(text.encode("latin-1")) + b"\0"
    return Image.frombytes("L", (len(row), 1), row)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Image.Image], str]:
    (tmp_path / "my_ocr.py").write_text(READER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_ocr", raising=False)
    import my_ocr  # pyright: ignore[reportMissingImports]

    return my_ocr.read


def values_of(reward: OcrAccuracy, *samples: Any) -> list[float | None]:
    return [None if score is None else float(score) for score in reward(samples)]


@pytest.mark.parametrize(
    ("found", "wanted", "forgiven", "counted"),
    [
        ("HELLO world", "Hello World", 1, 1),
        ("say hello", "Hello", 1, 5 / 8),
        ("helo", "hello", 4 / 5, 4 / 5),
        ("", "hello", 0, 0),
        ("xxxxxxxxxxxx", "hello", 0, 0),
        ("helloo hell", "hello!", 0, 5 / 10),
        ("\uff28\uff29", "hi", 1, 1),
        ("stra\u00dfe", "STRASSE", 1, 1),
    ],
)
def test_accuracy_by_hand(found: str, wanted: str, forgiven: float, counted: float) -> None:
    """The sixth: helloohell to hello! is 5 edits; of 6 letters that leaves 1/6, of the longer 10 a half."""
    expected = 1 / 6 if wanted == "hello!" else forgiven
    assert text_accuracy(found, wanted, "forgiven") == pytest.approx(expected)
    assert text_accuracy(found, wanted, "counted") == pytest.approx(counted)


def test_long_texts_come_to_an_end() -> None:
    assert text_accuracy("a" * 1_000_000, "b", "counted") == 0
    assert text_accuracy("a " * 500_000, "a" * 1_000_000, "forgiven") <= 1


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ('a sign that says "Open"', "Open"),
        ('"Big" above "Small"', "Big Small"),
        ("a shop \u201cCaf\u00e9\u201d", "Caf\u00e9"),
        ("a label 'Mind the gap'", "Mind the gap"),
        ("the dog's bowl and the cat's tail", None),
        ('an empty "" or " " sign', None),
        ("no text", None),
        ('"' * 9_999, None),
    ],
)
def test_what_stands_in_quotes_is_asked_for(prompt: str, wanted: str | None) -> None:
    assert wanted_text(drew(None, prompt), None) == wanted


def test_a_reader_of_ones_own_reads_the_picture(reader: Callable[[Image.Image], str]) -> None:
    reward = OcrAccuracy(reader)
    samples = [drew(written("open now"), 'say "Open"'), drew(written("opun"), 'say "Open"'), drew(written("x"), "say")]
    assert values_of(reward, *samples, drew(None, 'say "Open"')) == [1.0, 0.75, None, None]
    assert values_of(OcrAccuracy(reader, around="counted"), samples[0]) == [4 / 7]
    assert values_of(OcrAccuracy(reader, column="word"), drew(written("ab"), word="abcd"), samples[0]) == [0.5, None]
    video = filmed([written("open"), written("opxx"), written("open")], '"open"')
    assert values_of(OcrAccuracy(reader, frames=2), video) == [1.0]
    assert values_of(OcrAccuracy(reader), video) == [pytest.approx(2.5 / 3)]


def test_the_text_that_was_read_explains_the_score(reader: Callable[[Image.Image], str]) -> None:
    (score,) = OcrAccuracy(reader)([drew(written("opun"), 'say "Open"')])
    assert getattr(score, "explanation", None) == {"text": "opun", "reference": "Open"}


def test_an_engine_is_named_in_yaml_as_a_function(reader: Callable[[Image.Image], str]) -> None:
    from mmgrpo.build import build_rewards
    from mmgrpo.config import RunConfig

    config = RunConfig.model_validate({"rewards": [{"name": "ocr_accuracy", "engine": "python:my_ocr:read"}]})
    (named,) = build_rewards(config.rewards)
    assert [float(score or 0) for score in named.function([drew(written("opun"), '"Open"')])] == [0.75]


def test_an_engine_that_is_not_installed_names_the_extra() -> None:
    with pytest.raises(MissingPackageError, match=r"rapidocr.*mmgrpo\[ocr\]"):
        OcrAccuracy()([drew(written("a"), '"a"')])
    assert OcrAccuracy()([drew(written("a"), "a")]) == [None]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="rapidocr, easyocr, pytesseract"):
        OcrAccuracy("paddle")
    with pytest.raises(ConfigError, match="forgiven, counted"):
        OcrAccuracy(around="ignored")  # pyright: ignore[reportArgumentType]
