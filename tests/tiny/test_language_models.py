"""Every tiny language model reads its prompt, its pictures and its videos, and loads as it was saved."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    BatchFeature,
)

from .language_models import IMAGES, NAMES, SEVERAL_IMAGES, TINY, VIDEOS, Processor, make, save, tokenizer_of

WORDS = "what is the colour of the picture"
VISIBLE = 0.05  # a difference of logits, whose standard deviation over the vocabulary is about 2.5

every_model = pytest.mark.parametrize("name", NAMES)
every_seeing_model = pytest.mark.parametrize("name", IMAGES)


def picture(red: int, size: tuple[int, int] = (20, 12)) -> Image.Image:
    """A gradient over a plane of one red."""
    image = Image.new("RGB", size)
    image.putdata([(red, 8 * x, 8 * y) for y in range(size[1]) for x in range(size[0])])
    return image


def clip(red: int) -> list[Image.Image]:
    return [picture(red + 20 * frame, (16, 16)) for frame in range(4)]


@cache
def made(name: str) -> tuple[Any, Any]:
    return make(name)


def encode(
    processor: Any, name: str, text: str = WORDS, images: Sequence[Any] = (), videos: Sequence[Any] = ()
) -> BatchFeature:
    """One user turn with its media, as the model takes it."""
    if not TINY[name].images:
        turn = [{"role": "user", "content": text}]
        rendered = processor.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        return processor(rendered, add_special_tokens=False, return_tensors="pt")
    media = [{"type": "image"}] * len(images) + [{"type": "video"}] * len(videos)
    turn = [{"role": "user", "content": [*media, {"type": "text", "text": text}]}]
    rendered = processor.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    given = ({"images": list(images)} if images else {}) | ({"videos": list(videos)} if videos else {})
    return processor(text=[rendered], **given, add_special_tokens=False, return_tensors="pt")


@torch.no_grad()
def logits(model: Any, inputs: BatchFeature) -> Tensor:
    """Of the last position: (V,)."""
    return model(**inputs).logits[0, -1]


def difference(first: Tensor, second: Tensor) -> float:
    return (first - second).abs().max().item()


@every_model
def test_logits_spread_over_the_vocabulary_and_follow_the_text(name: str) -> None:
    model, processor = made(name)
    first, second = (logits(model, encode(processor, name, text)) for text in (WORDS, "how many cat"))
    assert first.shape == (len(tokenizer_of(processor)),)
    assert 1 < first.std() < 5
    assert difference(first, second) > 10 * VISIBLE


@every_seeing_model
def test_logits_depend_on_the_picture(name: str) -> None:
    model, processor = made(name)
    first, second = (logits(model, encode(processor, name, images=[picture(red)])) for red in (0, 255))
    assert difference(first, second) > VISIBLE


@pytest.mark.parametrize("name", SEVERAL_IMAGES)
def test_pictures_are_read_in_order(name: str) -> None:
    model, processor = made(name)
    pair = [picture(0), picture(255, (12, 12))]
    first, second = (logits(model, encode(processor, name, images=images)) for images in (pair, pair[::-1]))
    assert difference(first, second) > VISIBLE


@pytest.mark.parametrize("name", VIDEOS)
def test_logits_depend_on_the_video_and_its_order(name: str) -> None:
    model, processor = made(name)
    first, second, third = (
        logits(model, encode(processor, name, videos=[frames])) for frames in (clip(0), clip(128), clip(0)[::-1])
    )
    assert difference(first, second) > VISIBLE
    assert difference(first, third) > VISIBLE


@every_model
def test_builds_are_equal_and_leave_the_random_state_alone(name: str) -> None:
    state = torch.get_rng_state()
    first, second, other = made(name)[0], make(name)[0], make(name, seed=1)[0]
    assert torch.equal(torch.get_rng_state(), state)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert not first.training
    assert {parameter.dtype for parameter in first.parameters()} == {torch.float32}


@every_model
def test_a_saved_model_loads_as_it_was(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    seeing = TINY[name].images
    model = (AutoModelForImageTextToText if seeing else AutoModelForCausalLM).from_pretrained(tmp_path).eval()
    processor: Processor = (AutoProcessor if seeing else AutoTokenizer).from_pretrained(tmp_path)
    images = [picture(128)] if seeing else []
    before, after = (encode(one, name, images=images) for one in (made(name)[1], processor))
    assert before.keys() == after.keys()
    assert all(torch.equal(torch.as_tensor(before[key]), torch.as_tensor(after[key])) for key in before)
    assert torch.equal(logits(made(name)[0], before), logits(model, after))
    assert model.generation_config.eos_token_id == made(name)[0].generation_config.eos_token_id


@every_model
def test_any_text_survives_the_tokenizer(name: str) -> None:
    tokenizer = tokenizer_of(made(name)[1])
    text = "what is 3 + 4?\n\n<answer>naïve 数</answer>"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
