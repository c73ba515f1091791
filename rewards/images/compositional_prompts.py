"""Prompts with objects, counts, colors and positions, with the columns that ``compositional`` checks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from mmgrpo.errors import DataError
from mmgrpo.types import Prompt

COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
PLACES = ("left of", "right of", "above", "below")
OBJECTS = (
    *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
    *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow", "elephant"),
    *("bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard"),
    *("sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard", "tennis racket", "bottle"),
    *("wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich", "orange", "broccoli"),
    *("carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "dining table"),
    *("toilet", "tv", "laptop", "computer mouse", "tv remote", "computer keyboard", "cell phone", "microwave", "oven"),
    *("toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors", "teddy bear", "hair drier", "toothbrush"),
)
"""The 80 classes of COCO, three of them renamed as in GenEval."""


def compositional_prompts(
    per_task: int = 100,
    seed: int = 0,
    tasks: Sequence[str] | None = None,
    objects: Sequence[str] = OBJECTS,
    max_count: int = 4,
) -> list[Prompt]:
    """Random prompts of GenEval's six tasks, with the columns ``tag``, ``include`` and ``exclude``.

    Tasks: single_object, two_object, counting (2 to ``max_count``), colors, position, color_attr. People get no
    colors. As a source of prompts it is ``python:mmgrpo.rewards.images.compositional_prompts:compositional_prompts``;
    for other arguments, write a function that calls it.

    Args:
        per_task: number of prompts per task; duplicates are removed, so there may be fewer.
        seed: random seed.
        tasks: names of tasks; None for all.
        objects: the classes, at least two besides person.
        max_count: the maximum count, at most 10.

    Returns:
        The prompts, task by task.

    Raises:
        DataError: an unknown task, too few objects, or a count without a number word.
    """
    chosen = tuple(TASKS) if tasks is None else tuple(tasks)
    unknown = [task for task in chosen if task not in TASKS]
    things = [name for name in objects if name != "person"]
    if unknown or len(things) < 2 or not 2 <= max_count < len(NUMBERS):
        raise DataError(
            f"compositional prompts need tasks of {', '.join(TASKS)}, two objects in addition to person and a largest "
            f"count of 2 to {len(NUMBERS) - 1}; got tasks {list(chosen)}, {len(things)} objects and {max_count}"
        )
    rng = random.Random(seed)
    prompts: dict[tuple[str, str], Prompt] = {}
    for task in chosen:
        for _ in range(per_task):
            prompt = TASKS[task](rng, list(objects), max_count)
            prompts.setdefault((task, prompt.text), prompt)
    return list(prompts.values())


def held_out_compositional_prompts() -> list[Prompt]:
    """30 samples of each task with another seed, without repeats and without those of ``compositional_prompts()``."""
    trained = {prompt.text for prompt in compositional_prompts()}
    return [prompt for prompt in compositional_prompts(30, seed=1) if prompt.text not in trained]


def _single(rng: random.Random, objects: list[str], max_count: int) -> Prompt:
    name = rng.choice(objects)
    return _prompt("single_object", f"a photo of {_a(name)}", [_thing(name)])


def _two(rng: random.Random, objects: list[str], max_count: int) -> Prompt:
    first, other = rng.sample(objects, 2)
    return _prompt("two_object", f"a photo of {_a(first)} and {_a(other)}", [_thing(first), _thing(other)])


def _counting(rng: random.Random, objects: list[str], max_count: int) -> Prompt:
    name, count = rng.choice(objects), rng.randint(2, max_count)
    text = f"a photo of {NUMBERS[count]} {_plural(name)}"
    return _prompt("counting", text, [_thing(name, count=count)], [_thing(name, count=count + 1)])


def _colors(rng: random.Random, objects: list[str], max_count: int) -> Prompt:
    name, color = rng.choice([name for name in objects if name != "person"]), rng.choice(COLORS)
    return _prompt("colors", f"a photo of {_a(color)} {name}", [_thing(name, color=color)])


def _position(rng: random.Random, objects: list[str], max_count: int) -> Prompt:
    (first, other), relation = rng.sample(objects, 2), rng.choice(PLACES)
    text = f"a photo of {_a(first)} {relation} {_a(other)}"
    return _prompt("position", text, [_thing(other), _thing(first, position=[relation, 0])])


def _color_each(rng: random.Random, objects: list[str], max_count: int) -> Prompt:
    first_object, second_object = rng.sample([name for name in objects if name != "person"], 2)
    first, second = rng.sample(COLORS, 2)
    text = f"a photo of {_a(first)} {first_object} and {_a(second)} {second_object}"
    return _prompt("color_attr", text, [_thing(first_object, color=first), _thing(second_object, color=second)])


TASKS: dict[str, Callable[[random.Random, list[str], int], Prompt]] = {
    "single_object": _single,
    "two_object": _two,
    "counting": _counting,
    "colors": _colors,
    "position": _position,
    "color_attr": _color_each,
}


def _prompt(tag: str, text: str, include: list[dict[str, Any]], exclude: Sequence[dict[str, Any]] = ()) -> Prompt:
    return Prompt(text, columns={"tag": tag, "include": include, "exclude": list(exclude)})


def _thing(name: str, *, count: int = 1, **clause: Any) -> dict[str, Any]:
    return {"class": name, "count": count, **clause}


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _plural(name: str) -> str:
    """GenEval's plural, for equal prompts: "s", or "es" after an s."""
    return f"{name}es" if name.endswith("s") else f"{name}s"
