"""Reward for actions of GUI agents: type, position and text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Sample, Score

from ..parsing.boxes import Box, Point
from ..parsing.coordinate_frames import Declared, coordinates_from
from ..parsing.coordinates import StatedBox
from ..parsing.explanations import comparison, points_explanation, rounded
from ..parsing.extraction import Extract, extract_answer, normalize_text, require_extract, require_fraction, words
from ..parsing.reference_values import find_reference_error, read_references
from .action_parsing import Action, parse_actions

POINTING = ("click", "double_click", "right_click", "long_press", "hover", "drag")


@final
class GuiAction:
    """Reward: whether the action in the answer matches the reference in type, position and text.

    0 unless the answer has exactly one action, of the type of the reference. Else the weighted mean of the components
    of the reference: the type (``type_weight``, always satisfied), the position for types in ``pointing`` (1 inside the
    reference box, edges included, or less than ``distance`` from its point; for a drag also the end, if the reference
    has one, less than ``distance`` from it; 1 for the same element where the reference has its number), and the text,
    if there is one (F1 of its words, thresholded by ``text_threshold`` unless that is null). If only the type applies:
    1.

    Parsed are JSON, ``{"action": "click", "coordinate": [x, y], "text": ".."}`` with common alternative keys, and
    calls, ``click(x=1, y=2)``, ``pyautogui.click(1, 2)``, ``click(element=3)``, ``type(content='..')``; the center of a
    stated box is used.
    Synonyms such as tap and left_click are one type; ``aliases`` adds more. The reference, in ``column``, is such an
    object or text, with a point, a ``bbox`` or an ``element``.

    Settings: ``coordinates`` and ``extract`` as in ``box_iou``.
    Range: 0 to 1.   Units: ``distance`` in units of the frame of the reference.
    Source: Luo et al. 2025 (GUI-R1), arXiv:2504.10458, r1gui.py: no weight for the type, 140 pixels, F1 from 0.5 on,
    no text in "no input text". Deviation: the answer is parsed, never evaluated; a single word contained in the other
    text does not match, because the letter "a" would match almost anything; edges count; texts are compared for every
    type.
    Traps: ``type_weight`` rewards clicks anywhere. 140 pixels are a large part of a small screen, and far too much for
    references in 0 to 1: set ``distance``. Several actions score 0: ask for one.
    """

    def __init__(
        self,
        column: str = "answer",
        coordinates: Declared = "resized",
        type_weight: float = 0.0,
        place_weight: float = 1.0,
        text_weight: float = 1.0,
        text_threshold: float | None = 0.5,
        distance: float = 140.0,
        pointing: Sequence[str] = POINTING,
        aliases: Mapping[str, str] | None = None,
        extract: Extract = "none",
    ) -> None:
        weights = (type_weight, place_weight, text_weight)
        if not all(weight >= 0 for weight in weights) or not distance > 0:
            raise ConfigError(f"GuiAction needs weights of at least 0 and a distance above, got {weights}, {distance}")
        if isinstance(pointing, str):
            raise ConfigError(f"GuiAction.pointing must be a list of actions, got {pointing!r}")
        self.column = column
        self._coordinates = coordinates_from("GuiAction", coordinates)
        self._type_weight, self._place_weight, self._text_weight = weights
        self._threshold = (
            None if text_threshold is None else require_fraction("GuiAction.text_threshold", text_threshold)
        )
        self._distance = distance
        self._pointing = frozenset(pointing)
        self._aliases = dict(aliases or {})
        self._extract: Extract = require_extract("GuiAction.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        references = read_references("gui_action", samples, self.column, self._single_action)
        return [None if r is None else self._score(s, r) for s, r in zip(samples, references, strict=True)]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, self._single_action, "exactly one action, its box with an area")

    def _single_action(self, value: Any) -> Action | None:
        """The action of a data row; None unless there is exactly one, whose box, if present, has an area."""
        actions = parse_actions(value)
        if len(actions) != 1 or (actions[0].box and self._coordinates.with_area(StatedBox(actions[0].box)) is None):
            return None
        return actions[0]

    def _score(self, sample: Sample, wanted: Action) -> Score:
        stated = parse_actions(extract_answer(sample.text or "", self._extract) or "")
        if len(stated) != 1:
            return Score(0.0, comparison(None, _named(wanted), f"{len(stated) or 'no'} actions, where one is required"))
        parts = {"type": float(self._kind(stated[0]) == self._kind(wanted))}
        explanation = comparison(_written(stated[0]), _named(wanted))
        if self._kind(wanted) in self._pointing and wanted.position is not None:
            parts["place"], point_explanation = self._placed(sample.prompt, stated[0], wanted)
            explanation |= point_explanation
            if wanted.end is not None:
                parts["place"] *= self._is_near(self._points(sample.prompt, stated[0].end), wanted.end)
        elif self._kind(wanted) in self._pointing and wanted.element is not None:
            parts["place"] = float(stated[0].element == wanted.element)
        if wanted.text is not None:
            parts["text"] = self._text(stated[0].text or "", wanted.text)
        return Score(self._weighted(parts), explanation | {"parts": rounded(parts)})

    def _kind(self, action: Action) -> str:
        return self._aliases.get(action.kind, action.kind)

    def _weighted(self, parts: Mapping[str, float]) -> float:
        every = {"type": self._type_weight, "place": self._place_weight, "text": self._text_weight}
        weights = {name: every[name] for name in parts}
        total = sum(weights.values())
        if total == 0:
            return parts["type"]
        return parts["type"] * sum(weights[name] * parts[name] for name in parts) / total

    def _placed(self, prompt: Prompt, stated: Action, wanted: Action) -> tuple[float, dict[str, Any]]:
        """Score of the position, and its explanation."""
        points = self._points(prompt, stated.position)
        if wanted.point is None and wanted.box is not None:
            _, (box,) = self._coordinates.boxes(prompt, [], [StatedBox(wanted.box)])
            return float(any(box.holds(point) for point in points)), points_explanation(points, box)
        x, y = wanted.position or (0.0, 0.0)
        near = self._is_near(points, (x, y))
        reach, frame = self._distance, self._coordinates.of_reference(prompt)
        return float(near), points_explanation(points, Box(x - reach, y - reach, x + reach, y + reach, frame))

    def _points(self, prompt: Prompt, stated: tuple[float, float] | None) -> Sequence[Point]:
        """A stated position in the frame of the reference; empty without one."""
        return self._coordinates.points(prompt, [] if stated is None else [stated])

    def _is_near(self, points: Sequence[Point], wanted: tuple[float, float]) -> bool:
        x, y = wanted
        return any((point.x - x) ** 2 + (point.y - y) ** 2 < self._distance**2 for point in points)

    def _text(self, stated: str, wanted: str) -> float:
        value = word_f1(stated, wanted)
        return value if self._threshold is None else float(value >= self._threshold)


def word_f1(stated: str, wanted: str) -> float:
    """F1 of the words as multisets; equality of the texts if there are no words.

    Args:
        stated: the text of the answer.
        wanted: the reference text.

    Returns:
        0 to 1.
    """
    stated_counts, reference_counts = Counter(words(stated)), Counter(words(wanted))
    if not stated_counts or not reference_counts:
        return float(
            not stated_counts
            and not reference_counts
            and (plain := normalize_text(stated)) is not None
            and plain == normalize_text(wanted)
        )
    return 2 * (stated_counts & reference_counts).total() / (stated_counts.total() + reference_counts.total())


def _written(action: Action) -> str:
    position = "" if action.position is None else " at ({:g}, {:g})".format(*action.position)
    position += "" if action.element is None else f" on element {action.element}"
    return f"{action.kind}{position}" + ("" if action.text is None else f": {action.text}")


def _named(action: Action) -> str:
    """The action without its position, which is shown as shapes and may be in another frame."""
    return _written(replace(action, point=None, box=None))
