"""Rewards from CLIP models, held against open_clip and transformers called directly with the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from mmgrpo.rewards.images.clip_scores import Aesthetic, ClipScore, HpsV2, PickScore
from mmgrpo.rewards.models import checkpoints
from PIL import Image
from transformers import AutoTokenizer, CLIPImageProcessor, CLIPModel

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.types import Sample
from tests.rewards.image_samples import drew, filmed, noise
from tests.tiny import judges

TEXTS = ("a red cat", "two dogs on a black horse", "three blue cubes " * 60)  # the last is beyond 77 tokens
CLOSE = {"rel": 0, "abs": 1e-5}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(judges.save_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="module")
def open_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judges.save_open_clip(tmp_path_factory.mktemp("open_clip"))


def pictures() -> list[Image.Image]:
    return [noise(0), noise(1, width=16, height=40), noise(2, width=64, height=64)]


def samples() -> list[Sample]:
    return [drew(image, text) for image, text in zip(pictures(), TEXTS, strict=True)]


@torch.no_grad()
def transformers_cosines(folder: str) -> tuple[list[float], float]:
    """Cosines by transformers alone, a sample at a time, and the learned factor."""
    model = CLIPModel.from_pretrained(folder).eval()
    images, tokenizer = CLIPImageProcessor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    result = []
    for image, text in zip(pictures(), TEXTS, strict=True):
        pixels = images(image, return_tensors="pt")["pixel_values"]
        tokens = tokenizer(text, truncation=True, max_length=77, return_tensors="pt")  # pyrefly: ignore[not-callable]
        out = model(pixel_values=pixels, **tokens)
        result.append(float(out.logits_per_image) / float(model.logit_scale.exp()))
    return result, float(model.logit_scale.exp())


@torch.no_grad()
def open_clip_cosines(name: str, **loading: Any) -> list[float]:
    model: Any
    transform: Any
    model, _, transform = open_clip.create_model_and_transforms(name, **loading)
    tokenize = open_clip.get_tokenizer(name)
    model.eval()
    result = []
    for image, text in zip(pictures(), TEXTS, strict=True):
        image_1D = model.encode_image(transform(image)[None], normalize=True)  # pyrefly: ignore[not-callable]
        text_1D = model.encode_text(tokenize([text]), normalize=True)  # pyrefly: ignore[not-callable]
        result.append(float((image_1D * text_1D).sum()))
    return result


@pytest.mark.nightly
def test_clip_score_is_that_of_transformers(clip: str) -> None:
    expected, _ = transformers_cosines(clip)
    assert np.ptp(expected) > 0.05
    assert ClipScore(clip, mode="cosine")(samples()) == pytest.approx(expected, **CLOSE)
    assert ClipScore(clip, mode="cosine", batch_size=2)(samples()) == pytest.approx(expected, **CLOSE)


@pytest.mark.nightly
def test_clip_score_is_a_hundred_times_the_cosine_and_never_negative(clip: str) -> None:
    expected, _ = transformers_cosines(clip)
    assert min(expected) < 0 < max(expected)
    assert ClipScore(clip)(samples()) == pytest.approx([100 * max(value, 0) for value in expected], rel=0, abs=1e-3)


def test_clip_score_is_that_of_open_clip(open_clip_folder: Path) -> None:
    name = f"local-dir:{open_clip_folder}"
    expected = open_clip_cosines(name)
    assert np.ptp(expected) > 0.05
    assert ClipScore(name, mode="cosine")(samples()) == pytest.approx(expected, **CLOSE)
    assert ClipScore(name, mode="cosine", batch_size=1)(samples()) == pytest.approx(expected, **CLOSE)


def test_clip_score_of_an_architecture_with_a_checkpoint_file(tiny_architecture: Path, open_clip_folder: Path) -> None:
    weights = str(open_clip_folder / "open_clip_pytorch_model.bin")
    expected = open_clip_cosines(f"local-dir:{open_clip_folder}")
    assert tiny_architecture.exists()
    assert ClipScore("tiny-clip", weights, mode="cosine")(samples()) == pytest.approx(expected, **CLOSE)


@pytest.fixture
def tiny_architecture(tmp_path: Path) -> Path:
    """open_clip finds architectures by name in files; this one is of the tiny model."""
    file = tmp_path / "tiny-clip.json"
    file.write_text(json.dumps(judges.OPEN_CLIP))
    open_clip.add_model_config(file)
    return file


def test_the_text_is_the_prompt_or_a_column_after_a_prefix(clip: str) -> None:
    plain = ClipScore(clip, mode="cosine")
    prefixed = ClipScore(clip, mode="cosine", prefix="a photo of ")
    from_column = ClipScore(clip, mode="cosine", text_column="caption")
    expected = plain([drew(noise(0), "a photo of a dog")])
    assert prefixed([drew(noise(0), "a dog")]) == expected
    assert from_column([drew(noise(0), "x", caption="a photo of a dog"), drew(noise(0), "x")]) == [*expected, None]


def test_samples_without_an_image_are_not_scored(clip: str) -> None:
    picture, video = drew(noise(0)), filmed([noise(0)])
    assert ClipScore(clip)([drew(None), picture, video])[::2] == [None, None]
    assert ClipScore("does/not-exist")([video]) == [None]


def test_rewards_of_one_model_share_it(clip: str) -> None:
    ClipScore(clip)(samples())
    before = dict(checkpoints._loaded)
    PickScore(clip, clip)(samples())
    assert before == checkpoints._loaded
    ClipScore(clip, dtype="bfloat16")(samples())
    assert len(checkpoints._loaded) == len(before) + 1


def test_pick_score_is_the_cosine_times_the_learned_factor(clip: str) -> None:
    expected, factor = transformers_cosines(clip)
    assert factor == pytest.approx(1 / 0.07, rel=1e-3)  # CLIP's initial temperature
    assert PickScore(clip, clip)(samples()) == pytest.approx([factor * value for value in expected], rel=0, abs=1e-4)
    assert PickScore(clip, clip, mode="cosine")(samples()) == pytest.approx(expected, **CLOSE)


def test_hps_is_the_cosine_of_its_checkpoint(tiny_architecture: Path, tmp_path: Path) -> None:
    tuned = torch.load(judges.save_open_clip(tmp_path / "tuned", seed=1) / "open_clip_pytorch_model.bin")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in tuned.items()}}, tmp_path / "HPS.pt")
    assert tiny_architecture.exists()
    hps = HpsV2(str(tmp_path / "HPS.pt"), model="tiny-clip")
    wide = noise(3, width=64, height=32)
    padded = Image.new("RGB", (64, 64))
    padded.paste(wide, (0, 16))
    squares = [drew(noise(2, 64, 64), TEXTS[0]), drew(padded, TEXTS[1])]
    shortest = ClipScore(f"local-dir:{tmp_path / 'tuned'}", mode="cosine")(squares)
    assert hps(squares) == pytest.approx(shortest, **CLOSE)
    assert hps([drew(wide, TEXTS[1])])[0] == pytest.approx(shortest[1], abs=0.02)  # resized before it is padded
    cropped = ClipScore(f"local-dir:{tmp_path / 'tuned'}", mode="cosine")([drew(wide, TEXTS[1])])[0]
    assert abs((cropped or 0) - (shortest[1] or 0)) > 0.05


def test_aesthetic_is_a_chain_of_linear_layers_on_the_unit_feature(clip: str, tmp_path: Path) -> None:
    head = judges.save_head(tmp_path / "head.pth", width=24)
    with torch.no_grad():
        model, images = CLIPModel.from_pretrained(clip).eval(), CLIPImageProcessor.from_pretrained(clip)
        features = [
            model.visual_projection(model.vision_model(**images(p, return_tensors="pt")).pooler_output)[0].double()
            for p in pictures()
        ]
    expected = []
    for feature in features:
        x = (feature / feature.norm()).numpy()
        for number in (0, 2, 4, 6, 7):
            tensors = judges.head_tensors(24, "layers.")
            x = (
                tensors[f"layers.{number}.weight"].double().numpy() @ x
                + tensors[f"layers.{number}.bias"].double().numpy()
            )
        expected.append(float(x[0]))
    assert np.ptp(expected) > 0.01
    assert Aesthetic(str(head), clip)(samples()) == pytest.approx(expected, rel=0, abs=1e-4)


def test_a_checkpoint_that_would_run_code_raises(clip: str, tmp_path: Path) -> None:
    torch.save({"layers.0.weight": Path("x")}, tmp_path / "pickled.pth")
    with pytest.raises(RewardError, match="cannot be loaded"):
        Aesthetic(str(tmp_path / "pickled.pth"), clip)(samples())
    torch.save({"layers.0.weight": "text"}, tmp_path / "texts.pth")
    with pytest.raises(RewardError, match="is no state dict"):
        Aesthetic(str(tmp_path / "texts.pth"), clip)(samples())
    torch.save({"other": torch.zeros(1)}, tmp_path / "other.pth")
    with pytest.raises(RewardError, match=r"has no layers layers\.0\.weight"):
        Aesthetic(str(tmp_path / "other.pth"), clip)(samples())


def test_a_missing_model_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=r"nowhere.*cannot be loaded"):
        ClipScore(str(tmp_path / "nowhere"))(samples())


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match="score, cosine"):
        ClipScore(mode="percent")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match="transformers, open_clip"):
        ClipScore(library="clip")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match="float32, bfloat16, float16"):
        PickScore(dtype="float64")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        HpsV2(batch_size=0)
