"""Scenes of colored shapes: captions, images and an exact verifier, the smallest task that looks like text-to-image.

A scene has two groups of equal objects and a relation, for example ``two red circles above a blue square``. Its image
has 3 x 3 cells of 12 x 12 pixels; each group fills a row or a column in part. Every image of the generator can be read
back: objects are counted, and their color, shape and place are known, so a reward needs no model. A tenth of the
combinations is held out from the warm-up and from GRPO.

Axes: N scenes, H = W = 36.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from random import Random
from typing import cast, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from mmgrpo.errors import DataError
from mmgrpo.types import Example, Prompt, Sample

CELL, CELLS = 12, 3
SIDE = CELL * CELLS
COUNTS = ("a", "two", "three")
"""The words for one, two and three objects."""
COLORS = {"red": (222, 45, 48), "green": (38, 166, 91), "blue": (42, 92, 214)}
PAPER = (255, 255, 255)
SHAPES = ("circle", "square", "triangle")
RELATIONS = {"above": 0, "left of": 1}
"""The axis along which the first group comes before the second."""
MIN_AREA = 10
"""Pixels of the smallest object that is counted."""
MIN_OVERLAP = 0.7
"""Intersection over union with the nearest shape above which an object has that shape."""
OVERSAMPLING = 8
WINDOW = CELL + 4
"""Pixels of a side of the region around the center of an object that is compared with the shapes."""
NUM_SHIFTS = 9

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Group:
    """Equal objects: how many, from 1 to 3, of which color and shape."""

    count: int
    color: str
    shape: str

    def __str__(self) -> str:
        return f"{COUNTS[self.count - 1]} {self.color} {self.shape}{'s' if self.count > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Scene:
    """Two groups of different colors, the first ``above`` or ``left of`` the second."""

    first: Group
    relation: str
    second: Group

    @property
    def caption(self) -> str:
        """The prompt, for example ``two red circles above a blue square``."""
        return f"{self.first} {self.relation} {self.second}"


@dataclass(frozen=True, slots=True)
class SceneObject:
    """An object of an image. ``shape`` is None if it resembles none; row and column are its center in pixels."""

    color: str
    shape: str | None
    row: float
    column: float


@cache
def scenes() -> tuple[Scene, ...]:
    """All 972 scenes, in a fixed order."""
    groups = [Group(*group) for group in product((1, 2, 3), COLORS, SHAPES)]
    return tuple(
        Scene(first, relation, second)
        for first, relation, second in product(groups, RELATIONS, groups)
        if first.color != second.color
    )


@cache
def split() -> tuple[tuple[Scene, ...], tuple[Scene, ...]]:
    """Scenes for training and held-out scenes, a tenth. A pair of groups is held out with both of its relations."""
    pairs = sorted({(str(scene.first), str(scene.second)) for scene in scenes()})
    hidden = set(Random(0).sample(pairs, round(0.1 * len(pairs))))
    parts: tuple[list[Scene], list[Scene]] = ([], [])
    for scene in scenes():
        parts[(str(scene.first), str(scene.second)) in hidden].append(scene)
    return tuple(parts[0]), tuple(parts[1])


def shape_prompts() -> list[Prompt]:
    """The captions of the training scenes, in random order, each with its column ``scene``."""
    prompts = [_prompt(scene) for scene in split()[0]]
    Random(0).shuffle(prompts)
    return prompts


def held_out_shape_prompts() -> list[Prompt]:
    """The captions of the held-out scenes, each with its column ``scene``."""
    return [_prompt(scene) for scene in split()[1]]


def drawn_scenes(num_images: int = 4000, seed: int = 0) -> list[Example]:
    """Images of training scenes with captions, to warm up a generator.

    Raises: DataError if no image is asked for.
    """
    if num_images < 1:
        raise DataError(f"num_images must be at least 1, got {num_images}")
    rng = Random(seed)
    return [Example(_prompt(scene), image=draw(scene, rng)) for scene in rng.choices(split()[0], k=num_images)]


def draw(scene: Scene, rng: Random) -> Image.Image:
    """An image of the scene; rows, columns and the cells in them are random."""
    axis = RELATIONS[scene.relation]
    lines = sorted(rng.sample(range(CELLS), 2))
    pixels = np.full((SIDE, SIDE, 3), PAPER, np.float32)
    for group, line in zip((scene.first, scene.second), lines, strict=True):
        for position in rng.sample(range(CELLS), group.count):
            row, column = (line, position) if axis == 0 else (position, line)
            window = pixels[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
            coverage = _coverage(group.shape)[..., None]
            window[:] = (1 - coverage) * window + coverage * np.array(COLORS[group.color], np.float32)
    return Image.fromarray(pixels.round().astype(np.uint8))


def objects_in(image: Image.Image) -> list[SceneObject]:
    """The objects of an image: connected pixels whose nearest color is the same, unless that is the background.

    Regions of fewer than ``MIN_AREA`` pixels are ignored. An object has the shape that it overlaps most, if its
    intersection over union, at the best of the positions around its center, reaches ``MIN_OVERLAP``.
    """
    pixels = np.asarray(image.convert("RGB"), np.float32)
    palette = np.array([PAPER, *COLORS.values()], np.float32)
    nearest = ((pixels[:, :, None] - palette) ** 2).sum(-1).argmin(-1)
    objects = []
    for index, color in enumerate(COLORS, start=1):
        labels, _ = cast(tuple[NDArray[np.int32], int], ndimage.label(nearest == index))
        for region in range(1, labels.max() + 1):
            mask = labels == region
            if mask.sum() >= MIN_AREA:
                rows, columns = np.nonzero(mask)
                objects.append(SceneObject(color, _nearest_shape(mask), float(rows.mean()), float(columns.mean())))
    return objects


def conditions(scene: Scene, objects: Sequence[SceneObject]) -> dict[str, bool]:
    """The conditions of a scene, by name, and whether the objects meet them.

    ``first`` and ``second``: as many objects of the group's color and shape as the caption says; ``only``: no other
    object; ``relation``: every object of the first group comes before every object of the second, whatever their
    shapes, and both colors are there.
    """
    counts = Counter((item.color, item.shape) for item in objects)
    groups = {"first": scene.first, "second": scene.second}
    group_conditions = {name: counts[group.color, group.shape] == group.count for name, group in groups.items()}
    others = sum(counts.values()) - sum(counts[group.color, group.shape] for group in groups.values())
    places = [
        [(item.row, item.column)[RELATIONS[scene.relation]] for item in objects if item.color == group.color]
        for group in groups.values()
    ]
    ordered = all(places) and max(places[0]) + CELL / 2 < min(places[1])
    return {**group_conditions, "only": others == 0, "relation": ordered}


@final
class SceneVerifier:
    """Reward: how far the image shows the scene of its column ``scene``.

    ``all``: 1.0 if all conditions are met, else 0.0 (evaluation). Otherwise the mean of four conditions: the right
    number of objects of the first and of the second group, no other objects, the relation.

    Range: 0 to 1.
    Source: designed for mmgrpo, after GenEval, arXiv:2310.11513, whose detector is not needed here.
    Traps: objects smaller than ``MIN_AREA`` are not seen. A sample without image or column is not scored.
    """

    def __init__(self, all: bool = False) -> None:
        self._all = all

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> float | None:
        scene = _scene_of(sample.prompt)
        if scene is None or sample.image is None:
            return None
        met = list(conditions(scene, objects_in(sample.image)).values())
        return float(all(met)) if self._all else sum(met) / len(met)


def _prompt(scene: Scene) -> Prompt:
    return Prompt(scene.caption, columns={"scene": scene.caption})


@cache
def _scenes_by_caption() -> dict[str, Scene]:
    return {scene.caption: scene for scene in scenes()}


def _scene_of(prompt: Prompt) -> Scene | None:
    return _scenes_by_caption().get(str(prompt.columns.get("scene")))


@lru_cache(maxsize=len(SHAPES))
def _coverage(shape: str) -> NDArray[np.float32]:
    """The covered fraction of each pixel of a cell, (CELL, CELL)."""
    points = (np.arange(CELL * OVERSAMPLING) + 0.5) / OVERSAMPLING
    row, column = points[:, None], points[None, :]
    middle = CELL / 2
    inside = {
        "circle": (row - middle) ** 2 + (column - middle) ** 2 <= 5.0**2,
        "square": (abs(row - middle) <= 5) & (abs(column - middle) <= 5),
        "triangle": (row <= CELL - 1) & (row >= 1) & (abs(column - middle) <= (row - 1) / 2),
    }[shape]
    return inside.reshape(CELL, OVERSAMPLING, CELL, OVERSAMPLING).mean((1, 3)).astype(np.float32)


def _nearest_shape(mask: Mask) -> str | None:
    """The shape with the best intersection over union, each moved by up to a pixel around the center."""
    rows, columns = np.nonzero(mask)
    framed = np.pad(mask, CELL)
    top, left = (round(float(place.mean()) + CELL - WINDOW / 2 + 0.5) for place in (rows, columns))
    window = framed[top : top + WINDOW, left : left + WINDOW].ravel().astype(np.float32)
    intersection = _templates() @ window
    overlap = intersection / (_templates().sum(1) + len(rows) - intersection)
    best = int(overlap.argmax())
    return SHAPES[best // NUM_SHIFTS] if overlap[best] >= MIN_OVERLAP else None


@cache
def _templates() -> NDArray[np.float32]:
    """(shapes x shifts, pixels of a window): every shape at every shift around the center of a window."""
    templates = []
    for shape in SHAPES:
        inside = np.pad(_coverage(shape) >= 0.5, (WINDOW - CELL) // 2)
        rows, columns = np.nonzero(inside)
        center = [round(WINDOW / 2 - 0.5 - float(place.mean())) for place in (rows, columns)]
        for down, right in product((-1, 0, 1), (-1, 0, 1)):
            templates.append(np.roll(inside, (center[0] + down, center[1] + right), (0, 1)).ravel())
    return np.array(templates, np.float32)
