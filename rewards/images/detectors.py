"""Open-vocabulary object detectors of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from ..models.checkpoints import freeze, load_once, resolve_device, resolve_dtype
from ..parsing.boxes import box_of
from .scenes import FRAME, DetectedObject


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorSource:
    """Settings of a detector.

    Attributes:
        model: path or hub id of an OWL-ViT, OWLv2 or Grounding DINO.
        device: None for the process's GPU, or the CPU.
        dtype: data type of the model.
    """

    model: str
    device: str | None
    dtype: str

    @torch.no_grad()
    def detected(self, image: Image.Image, labels: Sequence[str], threshold: float) -> list[DetectedObject]:
        """Detect objects of the classes above a threshold, most confident first. Raises RewardError if the model cannot
        be loaded.

        OWL models get the query "a photo of a CLASS", Grounding DINO "a CLASS." for each class.
        """
        device, dtype = resolve_device(self.device), resolve_dtype("detector", self.dtype)
        model, processor = load_once(_detector, self.model, device, dtype)
        grounding = "grounding" in model.config.model_type
        texts: Any = [[f"a photo of {_with_article(label)}" for label in labels]]
        if grounding:
            texts = [". ".join(f"a {label.lower()}" for label in labels) + "."]
        inputs = processor(text=texts, images=[image], return_tensors="pt")
        model_inputs = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None) for name, tensor in inputs.items()
        }
        outputs = model(**model_inputs)
        options: dict[str, Any] = {"threshold": threshold, "target_sizes": [image.size[::-1]]}
        if grounding:
            options |= {"input_ids": model_inputs["input_ids"], "text_threshold": threshold}
        (result,) = processor.post_process_grounded_object_detection(outputs, **options)
        names = [_label(name, labels) for name in result["text_labels"]] if grounding else _picked(result, labels)
        objects = [
            DetectedObject(name, float(score), box_of(box.tolist(), "xyxy", FRAME))
            for name, score, box in zip(names, result["scores"], result["boxes"], strict=True)
            if name is not None
        ]
        return sorted(objects, key=lambda detection: -detection.score)


def _picked(result: Any, labels: Sequence[str]) -> list[str | None]:
    return [labels[int(number)] for number in result["labels"]]


def _label(phrase: str, labels: Sequence[str]) -> str | None:
    """The class of a phrase of Grounding DINO: the longest class whose words it contains."""
    phrase_words = set(phrase.lower().split())
    named = [label for label in labels if set(label.lower().split()) <= phrase_words]
    return max(named, key=len, default=None)


def _with_article(label: str) -> str:
    return f"an {label}" if label[:1].lower() in set("aeiou") else f"a {label}"


def _detector(model: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

    loaded = AutoModelForZeroShotObjectDetection.from_pretrained(model, dtype=dtype)
    return freeze(loaded, device), AutoProcessor.from_pretrained(model)
