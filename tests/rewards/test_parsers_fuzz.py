"""Random inputs by hypothesis: no parser raises, results are bounded, and written values are read back."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmgrpo.rewards.grounding.action_parsing import MAX_ACTIONS, parse_actions
from mmgrpo.rewards.grounding.tracks import MAX_MOMENTS, parse_track, span_iou
from mmgrpo.rewards.parsing.boxes import Box, CoordinateFrame, iou
from mmgrpo.rewards.parsing.coordinates import MAX_COORDINATE, parse_boxes, parse_points, parse_spans
from mmgrpo.rewards.parsing.extraction import extract_answer, json_document, json_values, normalize_text, words
from mmgrpo.rewards.parsing.numerals import numbers, seconds
from mmgrpo.rewards.parsing.regions import MAX_SHAPES, decode_rle, parse_shapes, rasterize_polygon
from mmgrpo.rewards.text.number_lists import coefficients
from mmgrpo.rewards.text.tables import parse_table
from mmgrpo.rewards.text.tool_calls import parse_calls

fuzzed = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)

# fmt: off
PIECES = st.sampled_from([
    "[", "]", "{", "}", "(", ")", '"', "'", "\\", ",", ":", "=", "-", ".", "%", "/", " ", "\n", "<answer>", "</answer>",
    "\\boxed{", "1", "23", "4.5", "1e9", "1e999", "NaN", "true", "None", "null", "click(", "x=", '"bbox_2d":',
    '"label":', '"size":', '"counts":', '"frame":', '"time":', '"action":', '"polygon":', "0:12", "twenty", "and",
    "<table>", "<tr>", "<td>", "</td>", "</tr>", "x",
    "hundred", "\x00", "\u0301", "\ud800", "\u0663", "[1,2,3,4]", "[[1,2],[3,4]]", "[3,2]", '"231"',
])
# fmt: on
HOSTILE = st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=40).map("".join)
LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
KEY = st.one_of(
    st.sampled_from(["bbox", "label", "score", "frame", "time", "boxes", "x", "y", "action", "text", "mask", "size"]),
    st.text(max_size=4),
)
VALUE = st.recursive(
    LEAF, lambda inner: st.one_of(st.lists(inner, max_size=6), st.dictionaries(KEY, inner, max_size=5)), max_leaves=25
)
EDGE = st.integers(0, 1000)
BOX = st.tuples(EDGE, EDGE, EDGE, EDGE).map(list)


def check_everything(source: Any) -> None:
    """What rows and texts go through."""
    for box in parse_boxes(source):
        assert all(math.isfinite(number) and abs(number) <= MAX_COORDINATE for number in box.numbers)
        assert box.score is None or math.isfinite(box.score)
    actions = parse_actions(source)
    assert len(actions) <= MAX_ACTIONS
    assert all(action.position is None or all(map(math.isfinite, action.position)) for action in actions)
    shapes = parse_shapes(source)
    assert shapes is None or len(shapes) <= MAX_SHAPES
    assert all(isinstance(call.name, str) for call in parse_calls(source))
    track = parse_track(source)
    assert len(track.boxes) <= MAX_MOMENTS + 1
    assert all(map(math.isfinite, [*track.boxes, *(track.span or ())]))


@fuzzed
@given(HOSTILE)
def test_any_text(text: str) -> None:
    check_everything(text)
    assert all(map(math.isfinite, [*numbers(text), *seconds(text), *coefficients(text, "x")]))
    table = parse_table(text)
    assert table is None or table.kind == ("table", 1, 1)
    assert all(len(pair) == 2 for pair in parse_points(text) + parse_spans(text))
    assert isinstance(json.dumps([json_values(text), json_document(text)], allow_nan=False), str)
    assert all(word == word.casefold() for word in words(text) if word.isascii())
    for how in ("none", "tag", "boxed", "line", {"tag": "answer"}):
        part = extract_answer(text, how)
        assert part is None or part in text
    plain = normalize_text(text)
    assert plain is not None
    assert plain == " ".join(plain.split())


@pytest.mark.nightly
@fuzzed
@given(VALUE)
def test_any_value_of_a_row_and_any_json(value: Any) -> None:
    check_everything(value)
    written = json.dumps(value)
    check_everything(written)
    check_everything(f"so: {written}.")


@fuzzed
@given(st.lists(BOX, min_size=1, max_size=5), st.text("ab ,.:\n", max_size=8))
def test_boxes_are_read_back(boxes: list[list[int]], before: str) -> None:
    answer = before + json.dumps([{"bbox_2d": box, "label": "a", "score": 0.5} for box in boxes])
    assert [(list(box.numbers), box.label, box.score) for box in parse_boxes(answer)] == [(b, "a", 0.5) for b in boxes]


@pytest.mark.nightly
@fuzzed
@given(VALUE.filter(lambda value: isinstance(value, list | dict)))
def test_json_is_read_back(value: Any) -> None:
    assert json_values(json.dumps(value)) == [value]
    assert json_document(f"```json\n{json.dumps(value)}\n```") == value


@fuzzed
@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.text("abc'\"\\ ,()[]=", max_size=12))
def test_calls_are_read_back(x: int, y: int, text: str) -> None:
    answer = f"click(x={x}, y={y}, text={text!r})"
    (action,) = parse_actions(answer)
    assert (action.kind, action.position) == ("click", (x, y))
    assert action.text == (text if text.strip() else None)


@fuzzed
@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_masks_are_read_back(height: int, width: int, data: st.DataObject) -> None:
    cells = data.draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
    counts, current = [0], False
    for cell in cells:
        counts, current = ([*counts, 0], cell) if cell != current else (counts, current)
        counts[-1] += 1
    grid = decode_rle([height, width], counts)
    assert grid is not None
    assert grid.T.reshape(-1).tolist() == cells


@fuzzed
@given(BOX, BOX)
def test_overlaps_are_symmetric_and_bounded(box: list[int], other: list[int]) -> None:
    frame = CoordinateFrame("norm1000", 1000, 1000)
    made, reference = (Box(left, top, right, bottom, frame) for left, top, right, bottom in (box, other))
    assert 0 <= iou(made, reference) == iou(reference, made) <= 1
    first, second = (box[0], box[1]), (other[0], other[1])
    assert 0 <= span_iou(first, second) == span_iou(second, first) <= 1


@fuzzed
@given(st.tuples(EDGE, EDGE, EDGE, EDGE))
def test_a_painted_box_has_its_area(edges: tuple[int, int, int, int]) -> None:
    left, top, right, bottom = (edge % 40 for edge in edges)
    grid = rasterize_polygon([(left, top), (right, top), (right, bottom), (left, bottom)], 40, 40)
    expected = np.zeros((40, 40), bool)
    expected[min(top, bottom) : max(top, bottom), min(left, right) : max(left, right)] = True
    assert np.array_equal(grid, expected)
