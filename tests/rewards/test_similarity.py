from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mmgrpo.rewards.images.similarity import EditConsistency, EditDirection, ImageSimilarity
from mmgrpo.rewards.models.image_features import SSIM_C1, ssim
from PIL import Image
from transformers import AutoModel, AutoProcessor

from mmgrpo.data.image_loading import LazyImages
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt, Sample
from tests.rewards.image_samples import drew, explanations, noise, numbers
from tests.tiny import judges


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(judges.save_clip(tmp_path_factory.mktemp("clip")))


@pytest.fixture(scope="module")
def dino(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(judges.save_dino(tmp_path_factory.mktemp("dino")))


def flat(gray: int, width: int = 16, height: int = 16) -> Image.Image:
    return Image.new("RGB", (width, height), (gray, gray, gray))


def edited(image: Image.Image, source: Image.Image, **columns: object) -> Sample:
    return Sample(Prompt("make it red", images=[source], columns=columns), group=0, member=0, image=image)


def test_mse_by_hand(tmp_path: Path) -> None:
    """51 / 255 is 0.2, and its square 0.04."""
    flat(51).save(tmp_path / "reference.png")
    samples = [edited(flat(0), flat(51)), edited(flat(0), flat(51, 3, 5)), drew(flat(0)), drew(None)]
    assert ImageSimilarity("mse")(samples) == [pytest.approx(0.96), pytest.approx(0.96), None, None]
    from_column = ImageSimilarity("mse", column="target")
    assert from_column([drew(flat(51), target=str(tmp_path / "reference.png")), edited(flat(0), flat(0))]) == [
        1.0,
        None,
    ]


def test_ssim_of_flat_images_is_that_of_their_means() -> None:
    a, b = 60.0, 90.0
    expected = (2 * a * b + SSIM_C1) / (a * a + b * b + SSIM_C1)
    first, other = flat(60), flat(90)
    small = edited(flat(0, 10, 30), flat(0))
    assert ImageSimilarity("ssim")([edited(first, other), edited(first, first), small]) == [
        pytest.approx(expected),
        pytest.approx(1.0),
        None,
    ]


def test_ssim_of_one_window_by_its_definition() -> None:
    """11 x 11 pixels hold one window: weighted means, variances and covariance, summed by hand."""
    rng = np.random.RandomState(0)
    a, b = rng.randint(0, 256, (2, 11, 11)).astype(float)
    ax = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    weight = np.outer(ax, ax) / ax.sum() ** 2
    mean_a, mean_b = (weight * a).sum(), (weight * b).sum()
    var_a, var_b = (weight * (a - mean_a) ** 2).sum(), (weight * (b - mean_b) ** 2).sum()
    cov = (weight * (a - mean_a) * (b - mean_b)).sum()
    c1, c2 = 6.5025, 58.5225
    expected = (2 * mean_a * mean_b + c1) * (2 * cov + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    assert ssim(a, b) == pytest.approx(expected)
    assert ssim(np.pad(a, 3, mode="symmetric"), np.pad(a, 3, mode="symmetric")) == pytest.approx(1)


@torch.no_grad()
def test_features_of_clip_and_of_dino_are_those_of_the_models(clip: str, dino: str) -> None:
    first, other = noise(0), noise(1, 40, 30)
    for folder in (clip, dino):
        model, processor = AutoModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
        result = []
        for image in (first, other):
            pixels = processor(images=image, return_tensors="pt")["pixel_values"]
            if folder == clip:
                result.append(model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)[0])
            else:
                result.append(model(pixels).last_hidden_state[0, 0])
        expected = float(torch.nn.functional.cosine_similarity(result[0], result[1], dim=0))
        reward = ImageSimilarity(model=folder, batch_size=1)
        assert abs(expected) < 0.99
        assert reward([edited(first, other), edited(first, first), drew(first)]) == [
            pytest.approx(expected, abs=1e-5),
            pytest.approx(1, abs=1e-5),
            None,
        ]


def test_only_pixels_outside_the_mask_count() -> None:
    source = flat(0, 4, 4)
    image = source.copy()
    image.paste((255, 255, 255), (0, 0, 2, 4))  # the left half became white
    image.putpixel((3, 3), (51, 51, 51))  # and one of the 8 pixels of the right half a fifth lighter
    mask = Image.new("L", (8, 8))
    mask.paste(255, (0, 0, 4, 8))
    rows = [
        edited(image, source, mask=mask),
        edited(source, source, mask=mask),
        edited(image, source, mask=Image.new("L", (2, 2))),
        edited(image, source, mask=Image.new("L", (2, 2), 255)),
        edited(image, source),
        drew(image, mask=mask),
    ]
    rows[0] = edited(image, source, mask=LazyImages((mask,)))  # as prompts.image_columns makes it
    unchanged = 1 - 0.2 / 8
    everything = 1 - (8 + 0.2) / 16
    scores = EditConsistency()(rows)
    assert numbers(scores) == [pytest.approx(unchanged), 1.0, pytest.approx(everything), None, None, None]
    first, second, third, *_ = explanations(scores)
    assert first == {"parts": {"outside_frac": 0.5, "outside_max": 0.2, "inside_change": 1.0}}
    assert second == {"parts": {"outside_frac": 0.5, "outside_max": 0.0, "inside_change": 0.0}}
    assert third == {"parts": {"outside_frac": 1.0, "outside_max": 1.0}}


def test_a_missing_path_raises_with_the_searched_folder() -> None:
    with pytest.raises(DataError, match=r"column 'mask': .* prompts.image_columns: \[mask\] "):
        EditConsistency()([edited(flat(0, 4, 4), flat(0, 4, 4), mask="nowhere.png")])


@torch.no_grad()
def test_direction_of_an_edit_is_the_cosine_of_two_differences(clip: str) -> None:
    source, image = noise(0), noise(1)
    captions = {"source_caption": "a red cat", "target_caption": "a black dog running"}
    model, processor = AutoModel.from_pretrained(clip).eval(), AutoProcessor.from_pretrained(clip)
    out = model(**processor(images=[source, image], text=list(captions.values()), padding=True, return_tensors="pt"))
    image_change, text_change = out.image_embeds[1] - out.image_embeds[0], out.text_embeds[1] - out.text_embeds[0]
    expected = float(torch.nn.functional.cosine_similarity(image_change, text_change, dim=0))
    assert abs(expected) > 1e-3
    rows = [
        edited(image, source, **captions),
        edited(source, source, **captions),
        edited(image, source, source_caption="a cat"),
        drew(image, **captions),
    ]
    scores = EditDirection(clip)(rows)
    changes = {"image_change": float(image_change.norm()), "text_change": float(text_change.norm())}
    assert explanations(scores)[0] == {"parts": pytest.approx(changes, abs=1e-4)}
    assert numbers(scores) == [pytest.approx(expected, abs=1e-5), pytest.approx(0, abs=1e-3), None, None]


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match="mse, ssim, feature"):
        ImageSimilarity("psnr")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match="two columns"):
        EditDirection(source_caption="caption", target_caption="caption")
