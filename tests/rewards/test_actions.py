from __future__ import annotations

import time
from typing import Any

import pytest
from mmgrpo.rewards.grounding.action_parsing import MAX_ACTIONS, Action, parse_actions
from mmgrpo.rewards.grounding.gui_action import GuiAction, word_f1

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Sample
from tests.rewards.written import explained, score_of, scores_of, wrote

CLICK = {"action": "click", "bbox": [0, 0, 10, 10]}
NEAR = {"action": "click", "point": [100, 100]}
TYPE = {"action": "type", "text": "hello big world"}


def alike(**fields: Any) -> dict[str, Any]:
    """Model and data in one frame."""
    return {"frame": "original", "reference_frame": "original", **fields}


def reward(**settings: Any) -> GuiAction:
    return GuiAction(**{"coordinates": alike(), **settings})  # pyrefly: ignore[bad-argument-type]


def test_the_end_of_a_drag_is_compared_where_the_reference_has_one() -> None:
    with_end = {"action": "drag", "start_point": [10, 10], "end_point": [80, 10]}
    answers = ["drag(start_point=[12, 10], end_point=[78, 10])", "drag(start_point=[10, 10], end_point=[10, 80])"]
    answers += ["drag(start_point=[10, 10])", "drag(start_point=[80, 10], end_point=[80, 10])"]
    assert [score_of(reward(distance=5), answer, with_end) for answer in answers] == [1, 0, 0, 0]
    without_end = {"action": "drag", "start_point": [10, 10]}
    assert [score_of(reward(distance=5), answer, without_end) for answer in answers] == [1, 1, 1, 0]


@pytest.mark.parametrize(
    "text",
    [
        '{"action": "click", "coordinate": [3, 4]}',
        "[{'action': 'click', 'point': [3, 4], 'input_text': 'no input text'}]",
        '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [3, 4]}}',
        '{"action_type": "TAP", "x": 3, "y": 4}',
        "click(x=3, y=4)",
        "click(3, 4)",
        "pyautogui.click(3.0, 4)",
        '{"type": "function", "function": {"name": "click", "arguments": {"coordinate": [3, 4]}}}',
        "Action: click(start_box='(3,4)')",
        "click(point='<point>3 4</point>')",
        "click([3, 4])",
        "left_click( coordinate=(3, 4) )",
        "click(start_box='[2, 3, 4, 5]')",
    ],
)
def test_clicks_are_read_as_models_write_them(text: str):
    (action,) = parse_actions(text)
    assert (action.kind, action.position, action.text) == ("click", (3, 4), None)


@pytest.mark.parametrize(
    "text",
    [
        '{"action": "type", "text": "it\'s on"}',
        "type(content='it\\'s on')",
        'type("it\'s on")',
        'pyautogui.write("it\'s on", interval=0.1)',
        '{"action": "input_text", "input_text": "it\'s on", "point": null}',
    ],
)
def test_texts_are_read_as_models_write_them(text: str):
    assert parse_actions(text) == [Action("type", text="it's on")]


def test_other_actions():
    assert parse_actions("drag(start_box='(1,2)', end_box='(3,4,5,6)')") == [Action("drag", (1, 2), end=(4, 5))]
    dragged = {"action": "left_click_drag", "start_point": [1, 2], "end_coordinate": [3, 4]}
    assert parse_actions([dragged]) == [Action("drag", (1, 2), end=(3, 4))]
    assert parse_actions("scroll(direction='down', point='<point>5 6</point>')") == [
        Action("scroll", (5, 6), text="down")
    ]
    assert parse_actions("press_home()") == parse_actions('{"action": "home"}') == [Action("press_home")]
    assert parse_actions("wait( )\nfinished(content='ok')") == [Action("wait"), Action("finished", text="ok")]
    assert parse_actions({"action": "click", "gt_bbox": [1, 2, 3, 4]}) == [Action("click", box=(1, 2, 3, 4))]


def test_elements_are_numbers_in_place_of_positions():
    texts = ("click(element=3)", "click(element='3')", "click(element=3.0)", "click(element='3.0')")
    for text in (*texts, '{"action": "click", "index": 3}', '{"action": "click", "index": 3.0}'):
        assert parse_actions(text) == [Action("click", element=3)]
    assert parse_actions("type(element=0, content='a')") == [Action("type", text="a", element=0)]
    for value in ("true", "2.5", '"ok"', "null", "-1", "-1.0", "1e9"):
        assert parse_actions(f'{{"action": "click", "element": {value}}}') == [Action("click")]
    third = {"action": "click", "element": 3}
    assert score_of(reward(), "click(element=3)", third) == 1
    assert score_of(reward(), "click(element=4)", third) == score_of(reward(), "click(3, 3)", third) == 0
    assert score_of(reward(), "hover(element=3)", third) == 0


@pytest.mark.parametrize(
    "text",
    [
        "", "click", "click 3, 4", "click(", "click(3, 4", "click(3 4)", "click(x=)",
        "click(__import__('os').system('x'))", "click(3, 4]",
        "the button(s) here", "[3, 4]", '{"coordinate": [3, 4]}', '{"action": 3}', "3(4)",
    ],
)  # fmt: skip
def test_texts_that_are_no_action(text: str):
    assert parse_actions(text) == []
    assert score_of(reward(), text, CLICK) == 0


def test_places_by_hand():
    inside = "click(x=10, y=0)"  # a corner of the box
    assert score_of(reward(), inside, CLICK) == 1
    assert score_of(reward(), "click(x=11, y=0)", CLICK) == 0
    assert score_of(reward(), "click()", CLICK) == 0
    assert score_of(reward(), "double_click(x=5, y=5)", CLICK) == 0
    # 84 and 112 apart: 140 away, which is not less than 140
    assert score_of(reward(), "click(16, 212)", NEAR) == 0
    assert score_of(reward(), "click(17, 212)", NEAR) == 1
    assert score_of(reward(distance=5), "click(103, 104)", NEAR) == 0
    assert score_of(reward(distance=5.1), "click(103, 104)", NEAR) == 1
    corner = {"action": "click", "bbox": [10, 20, 30, 40]}  # left, top, width, height
    assert score_of(reward(coordinates=alike(reference_layout="xywh")), "click(39, 59)", corner) == 1


def test_texts_by_hand():
    # 2 of 3 words, 2 of 2: F1 = 2 * 2 / 5
    assert word_f1("hello world", "hello big world") == pytest.approx(0.8)
    assert word_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert (word_f1("...", "..."), word_f1("...", "!"), word_f1("", "a"), word_f1("a", "apple")) == (1, 0, 0, 0)
    assert score_of(reward(), "type(content='Hello, world')", TYPE) == 1
    assert score_of(reward(text_threshold=None), "type(content='Hello, world')", TYPE) == pytest.approx(0.8)
    assert score_of(reward(text_threshold=0.9), "type(content='Hello, world')", TYPE) == 0
    assert score_of(reward(), "type(content='bye')", TYPE) == score_of(reward(), "type()", TYPE) == 0
    assert score_of(reward(), "scroll(direction='UP')", {"action": "scroll", "text": "up", "bbox": [0, 0, 1, 1]}) == 1


def test_weights_by_hand():
    both = {"action": "click", "bbox": [0, 0, 10, 10], "text": "ok"}
    weighted = reward(type_weight=0.2, place_weight=0.5, text_weight=0.3)
    assert score_of(weighted, "click(5, 5, 'ok')", both) == 1
    assert score_of(weighted, "click(5, 5, 'no')", both) == pytest.approx(0.7)
    assert score_of(weighted, "click(50, 50)", both) == pytest.approx(0.2)
    assert score_of(weighted, "click(50, 50)", CLICK) == pytest.approx(0.2 / 0.7)
    assert score_of(weighted, "type(content='ok')", both) == 0
    assert score_of(reward(), "press_back()", {"action": "press_back"}) == 1
    assert score_of(reward(), "press_home()", {"action": "press_back"}) == 0
    assert score_of(reward(aliases={"press": "click"}), "press(1, 1)", CLICK) == 1


def test_guir1_rows_are_references():
    row = '{"action": "click", "gt_bbox": [0, 0, 10, 10], "input_text": "no input text"}'
    text = "<think>so click(1, 1)</think><answer>[{'action': 'click', 'point': [5, 5], 'input_text': 'no input text'}]"
    assert score_of(reward(extract="tag"), text + "</answer>", row) == 1
    typed = '{"action": "type", "gt_bbox": [500, 500], "input_text": "Paris"}'  # where to type is not asked
    assert score_of(reward(), "type(content='paris')", typed) == 1
    for reference in ("a dog", [], {"bbox": [0, 0, 1, 1]}, [CLICK, CLICK]):
        assert score_of(reward(), "click(1, 1)", reference) is None


def test_several_actions_are_wrong():
    assert score_of(reward(), "click(5, 5) click(5, 5)", CLICK) == 0
    assert explained(reward(), wrote("click(5, 5) click(5, 5)", CLICK)) == {
        "parsed": None, "reference": "click", "reason": "2 actions, where one is required",
    }  # fmt: skip
    assert len(parse_actions("a() " * 1000)) == MAX_ACTIONS


def test_spaces_and_the_typed_text():
    columns = {"original_size": [200, 100], "answer": {"action": "click", "bbox": [20, 10, 40, 30]}}
    inside, outside = (
        Sample(Prompt("q", columns=columns), 0, i, text=t) for i, t in enumerate(("click(150, 200)", "click(30, 20)"))
    )
    judge = GuiAction(coordinates="norm1000")
    assert scores_of(judge, [inside, outside]) == [1, 0]
    explanation = explained(judge, inside)
    assert explanation["parsed"] == "click at (150, 200)"
    assert explanation["points"] == [{"point": [30, 20], "role": "stated"}]
    assert explanation["parts"] == {"type": 1, "place": 1}
    assert explained(reward(), wrote("type('x')", TYPE)) == {
        "parsed": "type: x", "reference": "type: hello big world", "parts": {"type": 1, "text": 0},
    }  # fmt: skip


@pytest.mark.first_case
@pytest.mark.parametrize(
    "piece", ["click(", "a('", "a(1,", 'a("', "a(x=", "a.a.", "a(',", "a(\\'", "((", '{"action":', "a([1,"]
)
def test_a_hundred_thousand_characters_end(piece: str):
    started = time.monotonic()
    for text in (piece * (1_000_000 // len(piece)), "click(x=" + "1" * 1_000_000, "click('" + "x" * 1_000_000 + "')"):
        assert score_of(reward(), text, CLICK) == 0
    assert time.monotonic() - started < 30


def test_settings_are_checked():
    with pytest.raises(ConfigError, match=r"weights of at least 0 and a distance above, got \(-1"):
        GuiAction(type_weight=-1)
    with pytest.raises(ConfigError, match="list of actions, got 'click'"):
        GuiAction(pointing="click")
