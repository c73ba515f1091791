"""GenEval's checks on tiny real detectors and a tiny real CLIP."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmgrpo.rewards.images.compositional import Compositional
from mmgrpo.rewards.images.compositional_prompts import COLORS
from mmgrpo.rewards.images.detectors import DetectorSource
from PIL import Image
from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor, CLIPModel

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Score
from tests.rewards.image_samples import drew, filmed, noise
from tests.tiny import judges

LABELS = ["dog", "traffic light"]


def detections_of(folder: Path, image: Image.Image, threshold: float = 0.0):
    return DetectorSource(model=str(folder), device=None, dtype="float32").detected(image, LABELS, threshold)


@pytest.fixture(scope="module")
def owl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judges.save_owl(tmp_path_factory.mktemp("owl"))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judges.save_clip(tmp_path_factory.mktemp("clip"))


@pytest.mark.parametrize("version", [1, 2])
@torch.no_grad()
def test_owl_boxes_follow_its_logits(version: int, tmp_path: Path) -> None:
    """Worked out from the model's raw output: sigmoid of the best class, boxes scaled to the image."""
    image = noise(0, 48, 32)
    judges.save_owl(tmp_path, version)
    model = AutoModelForZeroShotObjectDetection.from_pretrained(tmp_path).eval()
    processor = AutoProcessor.from_pretrained(tmp_path)
    out = model(
        **processor(text=[["a photo of a dog", "a photo of a traffic light"]], images=[image], return_tensors="pt")
    )
    score, number = out.logits[0].sigmoid().max(-1)
    width, height = (48, 48) if version == 2 else (48, 32)  # OWLv2 pads to a square
    x, y, w, h = out.pred_boxes[0].unbind(-1)
    order = score.argsort(descending=True)
    result = detections_of(tmp_path, image)
    assert [f.score for f in result] == pytest.approx(score[order].tolist(), abs=1e-5)
    assert [f.label for f in result] == [LABELS[i] for i in number[order].tolist()]
    assert [f.box.left for f in result] == pytest.approx(((x - w / 2) * width)[order].tolist(), abs=1e-3)
    assert [f.box.bottom for f in result] == pytest.approx(((y + h / 2) * height)[order].tolist(), abs=1e-3)
    assert len(detections_of(tmp_path, image, 0.5)) == int((score > 0.5).sum())


def test_grounding_dino_returns_the_requested_classes(tmp_path: Path) -> None:
    judges.save_grounding_dino(tmp_path, "a dog red car traffic light")
    result = detections_of(tmp_path, noise(0, 48, 32), 0.02)
    assert result
    assert {f.label for f in result} <= set(LABELS)
    assert [f.score for f in result] == sorted((f.score for f in result), reverse=True)


def test_counts_are_those_of_the_detector(owl: Path, clip: Path) -> None:
    image = noise(0, 48, 32)
    result = detections_of(owl, image)
    dogs = [f.score for f in result if f.label == "dog"]
    threshold = (dogs[1] + dogs[2]) / 2  # two dogs are surer than that
    lights = sum(f.label == "traffic light" and f.score > threshold for f in result)
    reward = Compositional(str(owl), str(clip), threshold=threshold, counting_threshold=dogs[0] - 1e-6, classes=LABELS)
    two, three = ([{"class": "dog", "count": n}, {"class": "traffic light", "count": 99}] for n in (2, 3))
    rows = [
        drew(image, include=two[:1], exclude=three[:1]),
        drew(image, include=three[:1]),
        drew(image, include=two[:1], tag="counting"),
    ]
    assert [float(score or 0) for score in reward(rows)] == [1.0, 0.0, 0.0]
    partial = Compositional(str(owl), str(clip), threshold=threshold, partial=True)
    (score,) = partial([drew(image, include=two)])
    assert isinstance(score, Score)
    assert score.value == 0.5
    assert score.explanation["reason"] == f"expected 99 traffic light, found {min(lights, 16)}"
    assert score.explanation["space"] == {"name": "original", "width": 48, "height": 32}
    boxes = score.explanation["boxes"]
    assert len(boxes) == 2 + min(lights, 16)
    surest = next(f for f in result if f.label in ("dog", "traffic light"))
    assert boxes[0]["role"] == "stated"
    assert boxes[0]["label"] == f"{surest.label} {surest.score:.2f}"
    edges = [surest.box.left, surest.box.top, surest.box.right, surest.box.bottom]
    assert boxes[0]["box"] == pytest.approx(edges, abs=1e-3)


@torch.no_grad()
def test_clip_classifies_colors_on_the_crop(owl: Path, clip: Path) -> None:
    image = noise(1, 48, 48)
    surest = DetectorSource(model=str(owl), device=None, dtype="float32").detected(image, ["dog"], 0.0)[0]
    model, processor = CLIPModel.from_pretrained(clip).eval(), AutoProcessor.from_pretrained(clip)
    left, top = (max(round(edge), 0) for edge in (surest.box.left, surest.box.top))  # as Pillow crops, for GenEval
    right = min(max(round(surest.box.right), left + 1), 48)
    bottom = min(max(round(surest.box.bottom), top + 1), 48)
    crop = image.crop((left, top, right, bottom))
    nearest = []
    for color in COLORS:
        sentences = [
            f"a photo of a {color} dog",
            f"a photo of a {color}-colored dog",
            f"a photo of a {color} object",
        ]
        out = model(**processor(text=sentences, images=[crop], padding=True, return_tensors="pt"))
        mean = out.text_embeds.mean(0)
        nearest.append(float(out.image_embeds[0] @ (mean / mean.norm())))
    color_of_crop = COLORS[nearest.index(max(nearest))]
    other = next(color for color in COLORS if color != color_of_crop)
    reward = Compositional(str(owl), str(clip), threshold=0.0)
    rows = [drew(image, include=[{"class": "dog", "count": 1, "color": color}]) for color in (color_of_crop, other)]
    assert [float(score or 0) for score in reward(rows)] == [1.0, 0.0]
    alone = [{"class": "dog", "attribute": "wooden", "among": ["wooden"]}]
    assert [float(score or 0) for score in reward([drew(image, include=alone)])] == [1.0]


def test_rows_without_clauses_or_images_are_not_scored(owl: Path) -> None:
    clauses = [{"class": "dog", "count": 1}]
    assert (
        Compositional(str(owl))([drew(noise(0)), drew(None, include=clauses), filmed([noise(0)], include=clauses)])
        == [None] * 3
    )
    with pytest.raises(DataError, match="must hold mappings"):
        Compositional(str(owl))([drew(noise(0), include=["dog"])])


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match=r"threshold must be in \[0, 1\)"):
        Compositional(threshold=1.0)
    with pytest.raises(ConfigError, match="0 < max_overlap <= 1"):
        Compositional(max_overlap=0.0)
