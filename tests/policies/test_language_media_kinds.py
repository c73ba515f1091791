"""Every image, video and audio of a prompt reaches the model, or is an error that names the supported media."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmgrpo.policies.language.encoding import PromptEncoder
from mmgrpo.policies.language.settings import LanguageSettings
from PIL import Image

from mmgrpo import Trainer
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt
from tests.breadth.language.families import families as breadth
from tests.policies.families import families
from tests.policies.tiny_language import picture, policy_of
from tests.tiny.language_models import NAMES, make

DOCS = Path(__file__).parents[2] / "docs/how-to/language.md"
KINDS = ("image", "video", "audio")
AUDIO = ("qwen2-audio",)
FAMILIES = [*families("language", NAMES), *(pytest.param(name, marks=pytest.mark.nightly) for name in AUDIO)]
AUDIO_ROW = {"array": np.sin(np.arange(8000) * 0.1).astype(np.float32), "sampling_rate": 8000}
MEDIA: dict[str, Any] = {"image": picture(32, 32), "video": [picture(32, 32, n) for n in range(4)], "audio": AUDIO_ROW}


def documented() -> dict[str, tuple[str, ...]]:
    """By family, what the table of docs/how-to/language.md says of images, videos and audio."""
    _, _, section = DOCS.read_text().partition("## Media by model family")
    rows = re.findall(r"^\| `(\S+)` \| (\w+) \| (\w+) \| (\w+) \|$", section, flags=re.M)
    return {name: tuple(cells) for name, *cells in rows}


def encoder_of(name: str) -> PromptEncoder:
    processor = breadth()[name].make()[1] if name in AUDIO else make(name)[1]
    return PromptEncoder(processor, LanguageSettings(), context=None)


def prompt_with(*kinds: str) -> Prompt:
    media = {kind: [MEDIA[kind]] * kinds.count(kind) for kind in KINDS}
    return Prompt("what is this", images=media["image"], videos=media["video"], audios=media["audio"])


def test_the_table_has_every_family() -> None:
    assert list(documented()) == [*NAMES, *AUDIO]


@pytest.mark.parametrize("name", FAMILIES)
def test_each_kind_of_media_is_used_or_raises(name: str) -> None:
    encoder = encoder_of(name)
    needed = ["image"] if name == "paligemma" else []
    for kind, outcome in zip(KINDS, documented()[name], strict=True):
        prompt = prompt_with(*dict.fromkeys([*needed, kind]))
        if outcome == "used":
            assert encoder.takes(kind)
            other = Prompt(
                prompt.text,
                images=[image.rotate(90) for image in prompt.images],
                videos=[video[::-1] for video in prompt.videos],
                audios=[{**audio, "array": audio["array"] * 0.1} for audio in prompt.audios],
            )
            first, second = encoder(prompt).media, encoder(other).media
            assert any(not bool((first[key] == second[key]).all()) for key in first)
        else:
            assert outcome == "error"
            assert not encoder.takes(kind)
            with pytest.raises(DataError, match=r"takes? |text only|takes no audio"):
                encoder(prompt)


@pytest.mark.parametrize("name", ["gemma3", "idefics3", "llava-next", "paligemma"])
def test_a_video_that_a_model_does_not_see_is_an_error(name: str) -> None:
    prompt = prompt_with("image", "video") if name == "paligemma" else prompt_with("video")
    with pytest.raises(
        DataError, match=r"'what is this' has 1 video, and \w+Processor .* drops .* takes text and images"
    ):
        encoder_of(name)(prompt)


@pytest.mark.parametrize("kind", ["image", "video"])
def test_an_image_with_audio_that_a_model_ignores_raises(kind: str) -> None:
    with pytest.raises(DataError, match=rf"has 1 {kind}, and Qwen2AudioProcessor .* takes text and audios"):
        encoder_of("qwen2-audio")(prompt_with("audio", kind))


def test_a_template_that_drops_an_image_is_an_error() -> None:
    """Of two images in a turn it writes the first alone; the processor would read both."""
    processor = make("gemma3")[1]
    template = processor.chat_template
    mark = "{{ '<start_of_image>' if part.type == 'image' else part.text | trim }}"
    assert isinstance(template, str)
    assert mark in template
    once = "{% if part.type != 'image' %}{{ part.text | trim }}{% elif loop.first %}<start_of_image>{% endif %}"
    processor.chat_template = template.replace(mark, once)
    encoder = PromptEncoder(processor, LanguageSettings(), context=None)
    encoder(prompt_with("image"))
    with pytest.raises(DataError):
        encoder(prompt_with("image", "image"))
    part = {"type": "image"}
    ignored = [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
    with pytest.raises(DataError):
        encoder(Prompt("a", images=[picture(32, 32)], messages=ignored))


def test_it_is_tried_once_for_each_arrangement(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, calls = encoder_of("qwen3-vl"), []
    process = encoder._processed
    monkeypatch.setattr(encoder, "_processed", lambda *arguments: calls.append(1) or process(*arguments))
    for seed in range(3):
        encoder(Prompt("what is this", images=[Image.fromarray(np.asarray(picture(32, 32, seed)))]))
    assert len(calls) == 4  # each prompt, and the first with another image


def test_a_run_with_media_that_the_model_does_not_see_does_not_begin(tmp_path: Path) -> None:
    config = {"output": str(tmp_path), "steps": 1, "runtime": {"device": "cpu"}}
    prompts = [Prompt("what"), prompt_with("video")]
    with pytest.raises(DataError, match="'what is this' has 1 video, and Gemma3Processor"):
        Trainer(policy_of("gemma3"), {"length": lambda samples: [1.0] * len(samples)}, prompts, config)
