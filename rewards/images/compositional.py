"""GenEval's checks with an open-vocabulary detector: counts, attributes and places of the objects in an image."""

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
from ..parsing.sample_images import as_rgb
from .compositional_prompts import COLOURS
from .detectors import DetectorSource
from .scenes import Clause, DetectedObject, clauses_of, evaluate_clauses, select_detections


@final
class Compositional:
    """Reward: whether the image shows what the prompt asks for: so many of a class, of a color, in a place.

    The columns ``include`` and ``exclude`` hold clauses as GenEval's metadata do: ``{"class": "dog", "count": 2,
    "color": "red", "position": ["left of", 0]}``; ``position`` names the clause, counted from 0, that it is seen from.
    Beside colors any ``attribute`` may be asked for with the ones it is told apart from: ``{"class": "chair",
    "attribute": "wooden", "among": ["wooden", "metal", "plastic"]}``. The detector finds boxes of the classes; CLIP
    tells attributes apart on the crop of each box by three sentences per attribute. ``compositional_prompts`` makes
    such rows. A row with neither column is not scored.

    Settings: ``partial: true`` gives the share of clauses that hold in place of all or nothing. ``threshold`` is for
    every row but those whose column ``tag`` is counting, which have ``counting_threshold``. The detector sees images
    one by one, for each is asked about its own classes; ``batch_size`` is that of the crops.
    Range: 0 or 1; with ``partial`` 0 to 1.
    Source: Ghosh et al. 2023 (GenEval), arXiv:2310.11513, and its code: thresholds 0.3 and 0.9, overlap 1 (none is
    dropped), 16 objects a class, margin 0.1, ten colors by CLIP ViT-L/14. Deviation: GenEval detects with Mask2Former
    and greys out what is not in its mask; here boxes are cropped as they are.
    Traps: the published thresholds are Mask2Former's. Open-vocabulary detectors are less sure and may box one object
    twice: try them on images that you have counted, then set ``counting_threshold`` (often as low as ``threshold``)
    and ``max_overlap`` (0.5 drops doubles). A detector that is asked for dogs alone takes other animals for dogs: name
    in ``classes`` what it is to tell them apart from (GenEval's detector knows all 80 classes).
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
                raise ConfigError(f"Compositional.{name} must lie in [0, 1), got {value}")
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
        image = as_rgb(sample.image)
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
        value = sum(result.held) / len(result.held) if self._partial else float(all(result.held))
        labels = [f"{detection.label} {detection.score:.2f}" for detection in objects]
        boxes = [replace(detection.box, frame=CoordinateFrame("original", *image.size)) for detection in objects]
        wrong = {"reason": excerpt("; ".join(result.reasons))} if result.reasons else {}
        return Score(value, boxes_explanation(boxes, (), labels=labels) | wrong)

    def _attributes(self, image: Image.Image, group: Sequence[DetectedObject], clause: Clause) -> list[str]:
        """The attribute of each object: that whose sentences, in the mean, are nearest to its crop."""
        options = list(clause.among or COLOURS)
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
    """The box within the image, at least a pixel wide and high."""
    corner = (detection.box.left, detection.box.top)
    left, top = (min(max(round(edge), 0), size - 1) for edge, size in zip(corner, image.size, strict=True))
    right = min(max(round(detection.box.right), left + 1), image.width)
    bottom = min(max(round(detection.box.bottom), top + 1), image.height)
    return image.crop((left, top, right, bottom))
