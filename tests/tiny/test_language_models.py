"""Every tiny language model reads its prompt, images and videos, and loads as it was saved."""

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

from tests.policies.families import families
from tests.tiny.language_models import IMAGES, NAMES, SEVERAL_IMAGES, TINY, VIDEOS, Processor, make, save, tokenizer_of

WORDS = "what is the colour of the picture"
OTHER_WORDS = "how many cat"
VISIBLE = 0.05  # a difference of logits, whose standard deviation over the vocabulary is about 2.5

# Of an image 20 pixels wide and 12 high, and of one 32 wide. Patches are 4 pixels, tiles 16.
IMAGE_TOKENS = [
    # 12 rounds to 16 and 20 to 16 (20 / 8 = 2.5, to even); a token is 8 x 8: 4, and 2 x 4
    *((name, 4, 8) for name in ("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3.5-vl")),
    # 32 x 20 fills 2 x 2 tiles, 32 x 12 fills 1 x 2; 4 tokens a tile and 4 for the full image
    ("idefics3", 20, 12),
    # 1 x 2 tiles, 4 x 8 patches. 20 : 12 is narrower than 2 : 1, so one patch is added on each side: 4 rows of 6.
    # 32 : 12 is wider: the 3 rows it fills leave one, less than one on each side: 4 rows of 8.
    # And a new line after each row, and 16 for the full image.
    *((name, 24 + 4 + 16, 32 + 4 + 16) for name in ("llava-next", "llava-onevision")),
    # two tiles, nearer than one to both shapes, and the full image: 4 tokens each
    ("internvl", 12, 12),
    ("gemma3", 4, 4),
    ("paligemma", 16, 16),
]
# Of 4 frames of 16 x 16, which are 16 patches.
VIDEO_TOKENS = [
    # two frames are merged, and 2 x 2 patches: 16 * 4 / 8
    *((name, 8) for name in ("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3.5-vl")),
    ("llava-onevision", 4 * 4 + 1),  # 2 x 2 patches are pooled, one new line
    ("internvl", 4 * 4),
]

every_model = pytest.mark.parametrize("name", families("language", NAMES))
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


def render(processor: Any, name: str, text: str = WORDS, images: int = 0, videos: int = 0) -> str:
    """One user turn: its media, then its text."""
    media = [{"type": "image"}] * images + [{"type": "video"}] * videos
    parts = [*media, {"type": "text", "text": text}]
    turn = [{"role": "user", "content": parts if TINY[name].images else text}]
    return processor.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)


def encode(
    processor: Any, name: str, text: str = WORDS, images: Sequence[Any] = (), videos: Sequence[Any] = ()
) -> BatchFeature:
    """One user turn with its media, as the model takes it."""
    rendered = render(processor, name, text, len(images), len(videos))
    media = ({"images": list(images)} if images else {}) | ({"videos": list(videos)} if videos else {})
    return processor(text=[rendered], **media, add_special_tokens=False, return_tensors="pt")


@torch.no_grad()
def logits(model: Any, inputs: BatchFeature) -> Tensor:
    """Of the last position: (V,)."""
    return model(**inputs).logits[0, -1]


def difference(first: Tensor, second: Tensor) -> float:
    return (first - second).abs().max().item()


@every_model
def test_logits_spread_over_the_vocabulary_and_follow_the_text(name: str) -> None:
    model, processor = made(name)
    images = [picture(0)] * TINY[name].needs_image
    first, second = (logits(model, encode(processor, name, text, images)) for text in (WORDS, OTHER_WORDS))
    assert first.shape == (len(tokenizer_of(processor)),)
    assert 1 < first.std() < 5
    assert first.softmax(-1).max() < 0.9
    assert difference(first, second) > 10 * VISIBLE


@every_seeing_model
def test_logits_depend_on_the_image(name: str) -> None:
    model, processor = made(name)
    first, second = (logits(model, encode(processor, name, images=[picture(red)])) for red in (0, 255))
    assert difference(first, second) > VISIBLE


@pytest.mark.parametrize("name", SEVERAL_IMAGES)
def test_images_are_read_in_order(name: str) -> None:
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


@pytest.mark.parametrize(("name", "small", "wide"), IMAGE_TOKENS)
def test_an_image_has_the_tokens_of_its_size(name: str, small: int, wide: int) -> None:
    model, processor = made(name)
    for size, expected in (((20, 12), small), ((32, 12), wide)):
        inputs = encode(processor, name, images=[picture(0, size)])
        assert (inputs["input_ids"] == model.config.image_token_id).sum() == expected
        assert logits(model, inputs).isfinite().all()  # the model refuses other features than image tokens


@pytest.mark.parametrize(("name", "expected"), VIDEO_TOKENS)
def test_a_video_takes_the_tokens_of_its_frames(name: str, expected: int) -> None:
    model, processor = made(name)
    token = model.config.image_token_id if name == "internvl" else model.config.video_token_id
    assert (encode(processor, name, videos=[clip(0)])["input_ids"] == token).sum() == expected


@every_model
def test_a_padded_row_is_the_row_alone(name: str) -> None:
    model, processor = make(name)
    tokenizer = tokenizer_of(processor)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    seeing = TINY[name].images
    texts = (OTHER_WORDS, f"{WORDS} and {OTHER_WORDS}")
    pictures = [picture(0), picture(255, (32, 12))]
    alone = torch.stack(
        [
            logits(model, encode(processor, name, text, [image] * seeing))
            for text, image in zip(texts, pictures, strict=True)
        ]
    )
    media = {"images": [[image] for image in pictures]} if seeing else {}
    rendered = [render(processor, name, text, images=seeing) for text in texts]
    untyped: Any = processor
    together = untyped(text=rendered, **media, padding=True, add_special_tokens=False, return_tensors="pt")
    assert together["attention_mask"].sum(1).unique().numel() == 2
    with torch.no_grad():
        rows = model(**together).logits[:, -1]
    torch.testing.assert_close(rows, alone, atol=1e-4, rtol=0)


@every_model
def test_builds_are_equal_and_leave_the_random_state_alone(name: str) -> None:
    state = torch.get_rng_state()
    first, second, other = made(name)[0], make(name)[0], make(name, seed=1)[0]
    assert torch.equal(torch.get_rng_state(), state)
    for tensors in ("parameters", "buffers"):
        pairs = zip(getattr(first, tensors)(), getattr(second, tensors)(), strict=True)
        assert all(torch.equal(first, two) for first, two in pairs)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
    assert not first.training
    assert {parameter.dtype for parameter in first.parameters()} == {torch.float32}


def test_a_build_does_not_follow_from_the_builds_before() -> None:
    """A configuration writes its class's defaults into the dicts it is given: the next must not read them."""
    first = make("qwen3-vl")[0].config
    make("qwen2.5-vl")
    assert make("qwen3-vl")[0].config.to_dict() == first.to_dict()


@every_model
def test_a_saved_model_loads_as_it_was(name: str, tmp_path: Path) -> None:
    save(name, tmp_path)
    seeing = TINY[name].images
    model = (AutoModelForImageTextToText if seeing else AutoModelForCausalLM).from_pretrained(tmp_path).eval()
    processor: Processor = (AutoProcessor if seeing else AutoTokenizer).from_pretrained(tmp_path)  # pyrefly: ignore[bad-assignment]
    images = [picture(128)] if seeing else []
    before, after = (encode(processor_of_run, name, images=images) for processor_of_run in (made(name)[1], processor))
    assert before.keys() == after.keys()
    assert all(torch.equal(torch.as_tensor(before[key]), torch.as_tensor(after[key])) for key in before)
    assert torch.equal(logits(made(name)[0], before), logits(model, after))
    assert model.generation_config.eos_token_id == made(name)[0].generation_config.eos_token_id


def test_every_seeing_model_is_counted() -> None:
    assert {name for name, *_ in IMAGE_TOKENS} == set(IMAGES)
    assert {name for name, *_ in VIDEO_TOKENS} == set(VIDEOS)


@every_model
def test_any_text_survives_the_tokenizer(name: str) -> None:
    tokenizer = tokenizer_of(made(name)[1])
    text = "what is 3 + 4?\n\n<answer>naïve 数</answer>"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
