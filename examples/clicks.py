"""Real pages of MiniWoB++ in Chromium, for a small language model that follows instructions to click.

The model reads the instruction of a page and its numbered elements, names an element and clicks it:
``Next click(element=4)``. In the warm-up most clicks are hasty: on the first control of the page, whatever the
instruction says. GRPO then only gets the reward of the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random
from typing import final

from mmgrpo.examples.language_models import CLICK_PIECES, PAGE_WORDS

from mmgrpo.environments.miniwob_pages import MiniwobEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Example, Prompt, Sample

PROMPT = "Follow the instruction."
READING = "Click on all."
"""The instruction of demonstrations that click every control."""
TASKS = ("click-button", "click-widget")
WARMUP_SEED, HELD_OUT_SEED = 1_000_000, 2_000_000
"""The first seeds of the pages of the warm-up and of the evaluation."""
WORKERS = 4

INSTRUCTION = re.compile(r'^Click .*?"(?P<label>.+?)"')
ELEMENT = re.compile(r'^\[(?P<number>\d+)\] (?P<kind>\S+)(?: "(?P<name>.*?)")?')
CONTROLS = ("button", "checkbox", "radio", "text", "textarea")


def pages(count: int = 4000) -> list[Prompt]:
    """Pages of ``TASKS``, as many of each; the columns are ``task`` and ``seed``."""
    return _pages(0, count)


def held_out_pages(count: int = 200) -> list[Prompt]:
    """Pages of ``TASKS`` that are not used in warm-up and rollouts."""
    return _pages(HELD_OUT_SEED, count)


def examples(hasty: float = 0.6, count: int = 1500, copies: int = 8) -> list[Example]:
    """Demonstrations on ``count`` real pages of ``TASKS``, ``copies`` of two kinds on each.

    One kind clicks on a single control: the fraction ``hasty`` on the first of the page, the others on the right one.
    The other kind has the instruction ``READING`` and clicks on every control in random order: each of its numbers is
    that of a control somewhere on the page. A page whose right control is not visible has no demonstration.

    Raises: DataError if the fraction is outside [0, 1].
    """
    if not 0 <= hasty <= 1:
        raise DataError(f"the fraction of hasty clicks must be in [0, 1], got {hasty}")
    rng = Random(0)
    with ThreadPoolExecutor(WORKERS) as pool:
        openings = list(pool.map(_opening, _pages(WARMUP_SEED, count)))
    return [example for text in openings for _ in range(copies) for example in _examples_on(text, hasty, rng)]


def click(label: str, number: int) -> str:
    """A turn that names an element and clicks it."""
    return f"{label}{CLICK_PIECES[0]}{number}{CLICK_PIECES[1]}"


def right_label(text: str) -> str:
    """The name or kind of element that the instruction of an opening turn quotes."""
    instruction = INSTRUCTION.match(text)
    assert instruction is not None, text
    return instruction["label"]


def control_numbers(text: str) -> dict[str, int]:
    """The number of the first control of each label in an opening turn, from the top of the page.

    The label is the name, or the kind of a control whose name is none of ``PAGE_WORDS``.
    """
    numbers: dict[str, int] = {}
    for element in filter(None, map(ELEMENT.match, text.splitlines())):
        if element["kind"] in CONTROLS:
            label = element["name"] if element["name"] in PAGE_WORDS else element["kind"]
            numbers.setdefault(label, int(element["number"]))
    return numbers


def right(samples: Sequence[Sample]) -> list[float]:
    """Whether the page rewards the click."""
    return [float(list(sample.turn_rewards[-1:]) == [1.0]) for sample in samples]


@final
class RightOn:
    """Whether the page rewards the click, on pages of one task; None on others."""

    def __init__(self, task: str) -> None:
        """Selects the pages.

        Args:
            task: name of the task.

        Raises:
            ConfigError: it is none of ``TASKS``.
        """
        if task not in TASKS:
            raise ConfigError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
        self._task = task

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        pairs = zip(samples, right(samples), strict=True)
        return [value if sample.prompt.columns["task"] == self._task else None for sample, value in pairs]


def _pages(seed: int, count: int) -> list[Prompt]:
    """Pages of each task in a row, so that the next page often has a tab that shows its task already."""
    tasks = [task for task in TASKS for _ in range(count // len(TASKS))]
    return [Prompt(PROMPT, columns={"task": task, "seed": seed + number}) for number, task in enumerate(tasks)]


def _opening(prompt: Prompt) -> str:
    with closing(MiniwobEnvironment(observation=["elements"])) as environment:
        return environment.reset(prompt).text


def _examples_on(text: str, hasty: float, rng: Random) -> list[Example]:
    """A demonstration of each kind on the page of an opening turn."""
    label, numbers = right_label(text), control_numbers(text)
    if label not in numbers:
        return []
    clicked = next(iter(numbers)) if rng.random() < hasty else label
    reading = "\n".join([PROMPT, READING, *text.splitlines()[1:]])
    labels = rng.sample(list(numbers), len(numbers))
    return [
        Example(Prompt(f"{PROMPT}\n{text}"), click(clicked, numbers[clicked])),
        Example(Prompt(reading), " ".join(click(label, numbers[label]) for label in labels)),
    ]
