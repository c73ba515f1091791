"""GenEval's checks with an open-vocabulary detector: counts, attributes and positions of the objects in an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..models.checkpoints import Dtype, require_positive, resolve_dtype
from ..models.clip_models import ClipSource, unit
from ..parsing.boxes import CoordinateFrame
from ..parsing.explanations import boxes_explanation, excerpt
from ..parsing.sample_images import to_rgb
from .compositional_prompts import COLORS
from .detectors import DetectorSource
from .scenes import Clause, DetectedObject, clauses_of, evaluate_clauses, select_detections


@final
class Compositional:
    """Reward: whether the image has the objects that the prompt requires, with count, color and position.

    The columns ``include`` and ``exclude`` hold clauses in GenEval's format: ``{"class": "dog", "count": 2,
    "color": "red", "position": ["left of", 0]}``; ``position`` has the index of the reference clause, from 0. Besides
    colors any ``attribute`` can be required, with its alternatives: ``{"class": "chair", "attribute": "wooden",
    "among": ["wooden", "metal", "plastic"]}``. The detector finds boxes of the classes; CLIP classifies the attribute
    of the crop of each box, with three sentences per attribute. ``compositional_prompts`` generates such rows. A row
    without either column is not scored.

    Settings: ``partial: true`` gives the fraction of satisfied clauses instead of all or nothing. ``threshold`` applies
    to every row except those with ``counting`` in column ``tag``, which use ``counting_threshold``. The detector
    processes one image at a time, because each has its own classes; ``batch_size`` applies to the crops.
    Range: 0 or 1; with ``partial`` 0 to 1.
    Source: Ghosh et al. 2023 (GenEval), arXiv:2310.11513, and its code: thresholds 0.3 and 0.9, overlap 1 (none is
    removed), 16 objects a class, margin 0.1, ten colors by CLIP ViT-L/14. Deviation: GenEval detects with Mask2Former
    and grays out pixels outside the mask; here boxes are cropped without masks.
    Traps: the published thresholds are for Mask2Former. Open-vocabulary detectors are less confident and may detect one
    object twice: calibrate on images with known counts, then set ``counting_threshold`` (often as low as ``threshold``)
    and ``max_overlap`` (0.5 removes duplicates). A detector that is queried only for dogs takes other animals for dogs:
    list distractors in ``classes`` (GenEval's detector has all 80 classes).
    """

    deterministic = True

    def __init__(
        self,
        model: str = "google/owlv2-base-patch16-ensemble",
        clip_model: str = "openai/clip-vit-large-patch14",
        clip_pretrained: str | None = None,
        threshold: float = 0.3,
        counting_threshold: float = 0.9,
        max_overlap: float = 1.0,
        max_objects: int = 16,
        margin: float = 0.1,
        partial: bool = False,
        classes: Sequence[str] = (),
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 16,
    ) -> None:
        for name, value in (("threshold", threshold), ("counting_threshold", counting_threshold)):
            if not 0 <= value < 1:
                raise ConfigError(f"Compositional.{name} must be in [0, 1), got {value}")
        if not 0 < max_overlap <= 1 or margin < 0:
            raise ConfigError(f"Compositional needs 0 < max_overlap <= 1 and margin >= 0, got {max_overlap}, {margin}")
        self._thresholds = {True: counting_threshold, False: threshold}
        self._max_overlap = max_overlap
        self._max_objects = require_positive("Compositional.max_objects", max_objects)
        self._margin = margin
        self._partial = partial
        self._classes = tuple(classes)
        resolve_dtype("Compositional", dtype)
        self._detector = DetectorSource(model=model, device=device, dtype=dtype)
        size = require_positive("Compositional.batch_size", batch_size)
        self._clip = ClipSource(
            model=clip_model, pretrained=clip_pretrained, device=device, dtype=dtype, batch_size=size
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score | None:
        include, exclude = (clauses_of(sample.prompt.columns, name) for name in ("include", "exclude"))
        if sample.image is None or not include + exclude:
            return None
        image = to_rgb(sample.image)
        threshold = self._thresholds[sample.prompt.columns.get("tag") == "counting"]
        labels_to_detect = list(dict.fromkeys([*(clause.label for clause in include + exclude), *self._classes]))
        objects = select_detections(
            self._detector.detected(image, labels_to_detect, threshold),
            threshold=threshold,
            max_overlap=self._max_overlap,
            max_objects=self._max_objects,
        )
        result = evaluate_clauses(
            objects,
            include,
            exclude,
            lambda group, clause: self._attributes(image, group, clause),
            margin=self._margin,
        )
        value = sum(result.satisfied) / len(result.satisfied) if self._partial else float(all(result.satisfied))
        labels = [f"{detection.label} {detection.score:.2f}" for detection in objects]
        boxes = [replace(detection.box, frame=CoordinateFrame("original", *image.size)) for detection in objects]
        wrong = {"reason": excerpt("; ".join(result.reasons))} if result.reasons else {}
        return Score(value, boxes_explanation(boxes, (), labels=labels) | wrong)

    def _attributes(self, image: Image.Image, group: Sequence[DetectedObject], clause: Clause) -> list[str]:
        """The attribute of each object: the one whose mean sentence embedding is nearest to its crop."""
        options = list(clause.among or COLORS)
        if clause.attribute is not None and clause.attribute not in options:
            options.append(clause.attribute)
        texts = [text for option in options for text in _sentences(option, clause.label)]
        clip = self._clip.load()
        text_ND = unit(clip.text_features(texts))
        option_ND = unit(text_ND.reshape(len(options), -1, text_ND.shape[-1]).mean(1))
        crops = unit(clip.image_features([_crop(image, detection) for detection in group]))
        return [options[int(best)] for best in torch.argmax(crops @ option_ND.T, dim=1)]


def _sentences(option: str, label: str) -> list[str]:
    return [f"a photo of a {option} {label}", f"a photo of a {option}-colored {label}", f"a photo of a {option} object"]


def _crop(image: Image.Image, detection: DetectedObject) -> Image.Image:
    """Crop the box, clipped to the image and at least one pixel wide and high."""
    corner = (detection.box.left, detection.box.top)
    left, top = (min(max(round(edge), 0), size - 1) for edge, size in zip(corner, image.size, strict=True))
    right = min(max(round(detection.box.right), left + 1), image.width)
    bottom = min(max(round(detection.box.bottom), top + 1), image.height)
    return image.crop((left, top, right, bottom))
