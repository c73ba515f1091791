"""Text in images, read by the engines, and by a function that knows how an image was made."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from mmgrpo.rewards.images.ocr import OcrAccuracy, expected_text, text_accuracy
from PIL import Image, ImageDraw, ImageFont, ImageOps

from mmgrpo.errors import ConfigError, MissingPackageError, RewardError
from mmgrpo.types import Score
from tests.rewards.image_samples import drew, filmed, numbers

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
    import my_ocr  # pyrefly: ignore[missing-import]

    return my_ocr.read


def values_of(reward: OcrAccuracy, *samples: Any) -> list[float | None]:
    return numbers(reward(samples))


@pytest.mark.parametrize(
    ("result", "wanted", "forgiven", "counted"),
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
def test_accuracy_by_hand(result: str, wanted: str, forgiven: float, counted: float) -> None:
    """The sixth: helloohell to hello! is 5 edits; of 6 letters that leaves 1/6, of the longer 10 a half."""
    expected = 1 / 6 if wanted == "hello!" else forgiven
    assert text_accuracy(result, wanted, "forgiven") == pytest.approx(expected)
    assert text_accuracy(result, wanted, "counted") == pytest.approx(counted)


def test_long_texts_are_scored_in_time() -> None:
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
        ("ein Schild mit \u201eHallo Welt\u201c", "Hallo Welt"),
        ("\u5199\u7740\u300c\u4f60\u597d\u300d\u7684\u724c\u5b50", "\u4f60\u597d"),
        ("\u00bbHallo\u00ab and \u2039oui\u203a", "Hallo oui"),
        ("a sign that says 'Don't stop'", "Don't stop"),
        ("a note \u2018we\u2019re open\u2019", "we\u2019re open"),
        ('a 24" screen that shows "OPEN 24"', "OPEN 24"),
        ('"' * 9_999, None),
    ],
)
def test_quoted_texts_are_the_targets(prompt: str, wanted: str | None) -> None:
    assert expected_text(drew(None, prompt), None) == wanted


def test_a_custom_reader_reads_the_image(reader: Callable[[Image.Image], str]) -> None:
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
    from mmgrpo.config import RunConfig
    from mmgrpo.training.build import build_rewards

    config = RunConfig.model_validate({"rewards": [{"name": "ocr_accuracy", "engine": "python:my_ocr:read"}]})
    (named,) = build_rewards(config.rewards)
    assert [float(score or 0) for score in named.function([drew(written("opun"), '"Open"')])] == [0.75]


def lettered(text: str, size: int = 40, width: int = 320, height: int = 160, turned: int = 0) -> Image.Image:
    image = Image.new("RGB", (width, height), "white")
    ImageDraw.Draw(image).text((20, 20), text, fill="black", font=ImageFont.load_default(size))
    return image.rotate(turned, expand=True)


PICTURES = {
    "right": (lettered("Hello World"), 1),
    "wrong": (lettered("Hallo Wurld"), 0.8),
    "small": (lettered("Hello World", 14, 180, 60), 1),
    "two lines": (lettered("Hello\nWorld", width=256), 1),
    "empty": (Image.new("RGB", (96, 96), "white"), 0),
    "illegible": (lettered("Hello World", 4, 80, 40), 0),
    "a strip": (Image.new("RGB", (1500, 3)), 0),
    "a pixel": (Image.new("RGB", (1, 1)), 0),
}


def installed(engine: str) -> bool:
    return find_spec(engine) is not None and (engine != "pytesseract" or shutil.which("tesseract") is not None)


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["rapidocr", "pytesseract"])
def test_engines_read_written_texts(engine: str) -> None:
    """Wrong: two of ten letters without the blank are others."""
    if not installed(engine):
        pytest.skip(f"{engine} is not installed")
    pictures, expected = zip(*PICTURES.values(), strict=True)
    result = values_of(OcrAccuracy(engine), *[drew(image, 'a sign that says "Hello World"') for image in pictures])
    assert dict(zip(PICTURES, result, strict=True)) == dict(zip(PICTURES, map(pytest.approx, expected), strict=True))


@pytest.mark.nightly
def test_rapidocr_reads_text_on_its_side_and_head() -> None:
    turned = [drew(lettered("Hello", 48, 192, 128, turned), '"Hello"') for turned in (90, 180, 270)]
    assert values_of(OcrAccuracy(), *turned) == [1, 1, 1]


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["rapidocr", "pytesseract"])
def test_lines_have_the_boxes_of_their_positions(engine: str) -> None:
    """The ink, from the pixels themselves: in the middle of the box, which may leave a margin around it."""
    if not installed(engine):
        pytest.skip(f"{engine} is not installed")
    image = lettered("Open")
    left, top, right, bottom = ImageOps.invert(image.convert("L")).getbbox() or (0, 0, 0, 0)
    (score,) = OcrAccuracy(engine)([drew(image, '"Open"')])
    assert isinstance(score, Score)
    explanation = dict(score.explanation)
    assert explanation["text"] == "Open"
    assert explanation["space"] == {"name": "original", "width": 320, "height": 160}
    (line,) = explanation["boxes"]
    assert (line["role"], line["label"]) == ("stated", "Open")
    x, y, beyond_x, beyond_y = line["box"]
    assert (x + beyond_x, y + beyond_y) == pytest.approx((left + right, top + bottom), abs=8)
    assert beyond_x - x == pytest.approx(right - left, abs=48)
    assert x - 2 <= left < right <= beyond_x + 2


@pytest.mark.nightly
def test_one_engine_serves_several_threads() -> None:
    reward = OcrAccuracy()
    words = ("Alpha", "Bravo", "Gamma", "Delta")
    samples = [drew(lettered(word, 40, 192, 128), f'"{word}"') for word in words]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda sample: values_of(reward, sample), samples)) == [[1.0]] * 4


@pytest.mark.nightly
def test_unsupported_languages_of_an_engine_raise() -> None:
    sample = drew(lettered("a"), '"a"')
    with pytest.raises(RewardError, match="korean"):
        OcrAccuracy(languages="korean")([sample])
    with pytest.raises(ConfigError, match="reads with one model"):
        OcrAccuracy(languages=("en", "de"))([sample])


def test_an_engine_that_is_not_installed_is_named() -> None:
    if installed("easyocr"):
        pytest.skip("easyocr is installed")
    with pytest.raises(MissingPackageError, match="easyocr"):
        OcrAccuracy("easyocr")([drew(written("a"), '"a"')])
    assert OcrAccuracy("easyocr")([drew(written("a"), "a")]) == [None]
    assert OcrAccuracy()([]) == []


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match="rapidocr, easyocr, pytesseract"):
        OcrAccuracy("paddle")
    with pytest.raises(ConfigError, match="forgiven, counted"):
        OcrAccuracy(around="ignored")  # pyrefly: ignore[bad-argument-type]
