"""The complete explanation of every verifiable reward for texts, of a right and of a wrong answer."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from mmgrpo.config.registry import REWARDS, resolve
from mmgrpo.types import Score
from tests.rewards.written import wrote

KEYS = {
    "parsed", "reference", "reason", "parts", "text",
    "boxes", "points", "pairs", "masks", "num_boxes", "space", "spans", "overlaps",
}  # fmt: skip
"""The vocabulary of ``docs/how-to/reward-explanations.md``."""

ALIKE = {"frame": "norm1000", "reference_frame": "norm1000"}
FRAME = {"space": {"name": "norm1000", "width": None, "height": None}}
VERIFIABLE = [
    name
    for name, target in REWARDS.items()
    if target.split(":")[0].rpartition(".")[2]
    in ("answers", "choices", "captions", "quantities", "chart_answers", "mathematics", "localization", "precision",
        "masks", "gui_action", "tracks", "structure", "lengths", "sequences", "number_lists", "tool_calls",
        "forecasts", "coverage", "tables", "trajectories", "records")
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A text with what the reward says of it; ``tokens`` is how many it has."""

    text: str
    value: float
    explanation: dict[str, Any]
    answer: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    tokens: int | None = None


def stated(*corners: float, **more: Any) -> dict[str, Any]:
    return {"box": list(corners), "role": "stated", **more}


def wanted(*corners: float) -> dict[str, Any]:
    return {"box": list(corners), "role": "reference"}


BOX: dict[str, Any] = {"answer": [0, 0, 10, 10], "settings": {"coordinates": ALIKE}}
BOXES: dict[str, Any] = {"answer": [{"bbox": [0, 0, 10, 10], "label": "cat"}], "settings": {"coordinates": ALIKE}}
CLICK: dict[str, Any] = {
    "answer": {"action": "click", "bbox": [0, 0, 10, 10], "text": "ok"},
    "settings": {"coordinates": ALIKE},
}
TRACK: dict[str, Any] = {"answer": {"time": [2, 6], "boxes": {"2": [0, 0, 10, 10], "4": [0, 0, 10, 10]}}} | {
    "settings": {"coordinates": ALIKE}
}
KEYED: dict[str, Any] = {"settings": {"keys": {"label": "string", "at": {"x": "number"}}, "strict": True}}

CASES: dict[str, list[Case]] = {
    "exact_match": [
        Case(text="Blue", answer="blue", value=1, explanation={"parsed": "Blue", "reference": "blue"}),
        Case(text="red", answer=["blue", "navy"], value=0, explanation={"parsed": "red", "reference": "blue or navy"}),
    ],
    "multiple_choice": [
        Case(text="It is (B).", answer="B. a dog", value=1, explanation={"parsed": "B", "reference": "B"}),
        Case(text="B or A", answer="B", value=0,
             explanation={"parsed": "A, B", "reference": "B", "reason": "several letters"}),
        Case(text="no idea", answer="B", value=0, explanation={"parsed": None, "reference": "B"}),
    ],
    "yes_no": [
        Case(text="Yes, it is.", answer=True, value=1, explanation={"parsed": "yes", "reference": "yes"}),
        Case(text="false", answer="yes", value=0, explanation={"parsed": "no", "reference": "yes"}),
    ],
    "classification": [
        Case(text="A polar bear", answer="Polar_bear", value=1,
             explanation={"parsed": "polar bear", "reference": "polar bear"}),
        Case(text="a cat or a dog", answer="dog", settings={"labels": ["cat", "dog"]}, value=0,
             explanation={"parsed": "cat, dog", "reference": "dog", "reason": "several classes"}),
    ],
    "edit_distance": [
        Case(text="abcd", answer=["wxyz", "abcx"], value=0.75, explanation={"parsed": "abcd", "reference": "abcx"}),
        Case(text="abcd", answer="axyz", settings={"floor": 0.5}, value=0,
             explanation={"parsed": "abcd", "reference": "axyz", "reason": "0.25 alike, below 0.5"}),
    ],
    "caption_score": [
        Case(text="A dog runs.", answer=["no cat", "a dog runs"], value=1,
             explanation={"parsed": "A dog runs.", "reference": "a dog runs"}),
        Case(text="", answer="a dog", value=0, explanation={"parsed": None, "reference": "a dog"}),
    ],
    "number": [
        Case(text="1,234 m", answer="1234", value=1, explanation={"parsed": 1234, "reference": 1234}),
        Case(text="3 or 4", answer=3, settings={"which": "only"}, value=0,
             explanation={"parsed": None, "reference": 3, "reason": "2 different numbers"}),
    ],
    "mean_relative_accuracy": [
        Case(text="10", answer=10, value=1, explanation={"parsed": 10, "reference": 10}),
        Case(text="none", answer=10, value=0, explanation={"parsed": None, "reference": 10}),
    ],
    "count": [
        Case(text="three", answer=3, value=1, explanation={"parsed": 3, "reference": 3}),
        Case(text="4 cats", answer=3, value=0, explanation={"parsed": 4, "reference": 3}),
    ],
    "first_error": [
        Case(text="Step \\boxed{3}", answer=5, settings={"extract": "boxed", "decay": 0.5}, value=0.25,
             explanation={"parsed": 3, "reference": 5}),
        Case(text="\\boxed{-1}", answer=-1, settings={"extract": "boxed"}, value=1,
             explanation={"parsed": -1, "reference": -1}),
        Case(text="all is right", answer=2, value=-1, explanation={"parsed": None, "reference": 2}),
        Case(text="-1", answer=0, value=-1, explanation={"parsed": -1, "reference": 0}),
    ],
    "chart_answer": [
        Case(text="45%", answer="0.46", value=1, explanation={"parsed": "45%", "reference": "0.46"}),
        Case(text="45", answer=["50", "60"], value=0, explanation={"parsed": "45", "reference": "50 or 60"}),
    ],
    "math_verify": [
        Case(text=r"\boxed{\frac{1}{2}}", answer="0.5", settings={"column": "answer", "time_limit_s": 60}, value=1,
             explanation={"parsed": r"\frac{1}{2}", "reference": "0.5"}),
        Case(text=r"<think>\boxed{0.5}</think>", answer="0.5", settings={"column": "answer", "time_limit_s": 60},
             value=0, explanation={"parsed": None, "reference": "0.5"}),
    ],
    "math_form": [
        Case(text=r"so \boxed{2x+1}", value=1, settings={"time_limit_s": 60}, explanation={"parsed": "2x+1"}),
        Case(text="so 2x+1", value=0, explanation={"parsed": None, "reason": "no box"}),
    ],
    "number_list": [
        Case(text="3, 2", answer=[3, 4], value=0.75, explanation={"parsed": "3, 2", "reference": "3, 4"}),
        Case(text="3", answer=[3, 4], value=0,
             explanation={"parsed": "3", "reference": "3, 4", "reason": "1 numbers, not 2"}),
    ],
    "ordering": [
        Case(text="b, a, c", answer="a b c", value=0.5, explanation={"parsed": "b a c", "reference": "a b c"}),
        Case(text="", answer="a b c", value=0, explanation={"parsed": None, "reference": "a b c"}),
    ],
    "tool_calls": [
        Case(text='{"name": "find", "parameters": {"q": 1}}', answer=[{"name": "find", "parameters": {"q": 2}}],
             value=2 / 3,
             explanation={"parsed": "find(q)", "reference": "find(q)", "parts": {"names": 1, "matched": 1}}),
        Case(text="no", answer=[{"name": "now"}], value=0,
             explanation={"parsed": None, "reference": "now()", "reason": "no call"}),
    ],
    "brier": [
        Case(text="0.8", answer=1, value=0.96, explanation={"parsed": 0.8, "reference": 1, "parts": {"error": -0.2}}),
        Case(text="likely", answer=1, value=0, explanation={"parsed": None, "reference": 1, "reason":
        "no probability"}),
    ],
    "coverage": [
        Case(text="fever", answer=["fever and pain"], value=0.5,
             explanation={"reason": "missing: pain", "parts": {"share": 0.5, "repetition": 1}}),
        Case(text="pain, fever", answer="fever pain", value=1, explanation={"parts": {"share": 1, "repetition": 1}}),
    ],
    "table_similarity": [
        Case(text="<table><tr><td>1<td>2</table>", answer="<table><tr><td>1<td>3</table>", value=2 / 3,
             explanation={"parsed": "1 | 2", "reference": "1 | 3"}),
        Case(text="1 | 2", answer="<table><tr><td>1</table>", value=0,
             explanation={"parsed": None, "reference": "1", "reason": "no table"}),
    ],
    "record_similarity": [
        Case(text='{"a": "cat", "b": 1}', answer={"a": "cats", "b": 1}, value=0.875,
             explanation={"parsed": '{"a": "cat", "b": 1}', "reference": '{"a": "cats", "b": 1}',
                   "parts": {"a": 0.75, "b": 1}}),
        Case(text="cats", answer={"a": 1}, value=0,
             explanation={"parsed": None, "reference": '{"a": 1}', "reason": "no object"}),
    ],
    "field_match": [
        Case(text='{"a": "cat"}', answer={"a": "Cat", "b": 1}, value=0.75,
             explanation={"parsed": '{"a": "cat"}', "reference": '{"a": "Cat", "b": 1}',
                   "parts": {"precision": 1, "recall": 0.5}}),
        Case(text="cat", answer={"a": 1}, value=0,
             explanation={"parsed": "cat", "reference": '{"a": 1}', "reason": "no field"}),
    ],
    "label_set": [
        Case(text="a hand", answer=["hand", "face"], settings={"labels": ["hand", "face"]}, value=0.3,
             explanation={"parsed": "hand", "reference": "face, hand"}),
    ],
    "trajectory": [
        Case(text="[[0, 0], [1000, 0]]", answer=[[0, 0], [1000, 1000]], settings={"coordinates": ALIKE},
             value=1 - math.sqrt(0.5),
             explanation={"points": [{"point": [x, y], "role": role} for x, y, role in
                              ((0, 0, "stated"), (1, 0, "stated"), (0, 0, "reference"), (1, 1, "reference"))],
                   "space": {"name": "norm1", "width": 1, "height": 1}, "parts": {"distance": 1}}),
        Case(text="there", answer=[[0, 0]], settings={"coordinates": ALIKE}, value=0,
             explanation={"points": [{"point": [0, 0], "role": "reference"}],
                   "space": {"name": "norm1", "width": 1, "height": 1}, "reason": "no point"}),
    ],
    "length_peak": [
        Case(text="x", tokens=50, settings={"max_length": 100}, value=1, explanation={"reason":
        "50 tokens, best are 50"}),
    ],
    "box_iou": [
        Case(text="[0, 0, 10, 5]", **BOX, value=0.5,
             explanation={"boxes": [stated(0, 0, 10, 5), wanted(0, 0, 10, 10)], "pairs": [[0, 0, 0.5]], **FRAME}),
        Case(text="[0, 0, 1, 1] [2, 2, 3, 3]", **BOX, value=0,
             explanation={"boxes": [stated(0, 0, 1, 1), stated(2, 2, 3, 3), wanted(0, 0, 10, 10)],
                   "reason": "box stated 2 times, not once", **FRAME}),
        Case(text="[9, 9, 0, 0]", **BOX, value=0,
             explanation={"boxes": [stated(9, 9, 0, 0), wanted(0, 0, 10, 10)], "reason": "the box is empty", **FRAME}),
        Case(text="nowhere", **BOX, value=0, explanation={"boxes": [wanted(0, 0, 10, 10)], "reason": "no box",
        **FRAME}),
    ],
    "detection": [
        Case(text='[{"bbox_2d": [0, 0, 10, 10], "label": "cat"}, {"bbox_2d": [5, 5, 6, 6]}]', **BOXES, value=0.5,
             explanation={"boxes": [stated(0, 0, 10, 10, label="cat"), stated(5, 5, 6, 6), wanted(0, 0, 10, 10)],
                   "pairs": [[0, 0, 1]], "parts": {"overlap": 1, "length": 0.5}, **FRAME}),
        Case(text="none", **BOXES, value=0, explanation={"boxes": [wanted(0, 0, 10, 10)], **FRAME}),
    ],
    "average_precision": [
        Case(text='{"bbox_2d": [0, 0, 10, 10], "label": "cat"}', **BOXES, value=1,
             explanation={"boxes": [stated(0, 0, 10, 10, label="cat"), wanted(0, 0, 10, 10)],
                   "parts": {"precision": 1, "length": 1}, **FRAME}),
        Case(text="[[1, 1, 2, 2], [3, 3, 4, 4]]", answer=[[0, 0, 10, 10]],
             settings={"coordinates": ALIKE, "max_boxes": 1}, value=0,
             explanation={"boxes": [], "num_boxes": 2, "reason": "2 boxes, more than 1"}),
    ],
    "point_in_box": [
        Case(text="(3, 4)", **BOX, value=1,
             explanation={"points": [{"point": [3, 4], "role": "stated"}], "boxes": [wanted(0, 0, 10, 10)], **FRAME}),
        Case(text="here", **BOX, value=0,
             explanation={"points": [], "boxes": [wanted(0, 0, 10, 10)], "reason": "no point", **FRAME}),
    ],
    "mask_iou": [
        Case(text="[0, 0, 2, 4]", answer={"size": [4, 4], "counts": [0, 2, 2, 4, 8]}, value=0.75,
             settings={"coordinates": "original"},
             # the reference: rows 0 and 1 of the first column, all of the second
             explanation={"parsed": "1 box", "space": {"name": "original", "width": 4, "height": 4},
                   "masks": [stated(0, 0, 2, 4, size=[4, 2], counts=[0, 8]),
                             {**wanted(0, 0, 2, 4), "size": [4, 2], "counts": [0, 2, 2, 4]}]}),
        Case(text="nothing", answer={"size": [4, 4], "counts": [0, 16]}, settings={"coordinates": "original"}, value=0,
             explanation={"reason": "no region"}),
    ],
    "gui_action": [
        Case(text="click(5, 5, 'ok')", **CLICK, value=1,
             explanation={"parsed": "click at (5, 5): ok", "reference": "click: ok",
                   "points": [{"point": [5, 5], "role": "stated"}], "boxes": [wanted(0, 0, 10, 10)], **FRAME,
                   "parts": {"type": 1, "place": 1, "text": 1}}),
        Case(text="click(50, 5, 'ok')", **CLICK, value=0.5,
             explanation={"parsed": "click at (50, 5): ok", "reference": "click: ok",
                   "points": [{"point": [50, 5], "role": "stated"}], "boxes": [wanted(0, 0, 10, 10)], **FRAME,
                   "parts": {"type": 1, "place": 0, "text": 1}}),
        Case(text="I wait", **CLICK, value=0,
             explanation={"parsed": None, "reference": "click: ok", "reason": "no actions, where one is required"}),
    ],
    "temporal_iou": [
        Case(text="0:04 to 0:08", answer=[2, 6], value=1 / 3,
             explanation={"spans": [{"span": [4, 8], "role": "stated"}, {"span": [2, 6], "role": "reference"}]}),
        Case(text="[8, 4]", answer=[2, 6], value=0,
             explanation={"spans": [{"span": [8, 4], "role": "stated"}, {"span": [2, 6], "role": "reference"}],
                   "reason": "the span ends before it begins"}),
    ],
    "tracking": [
        Case(text=json.dumps({"time": [4, 8], "boxes": {"2": [0, 0, 10, 10], "4": [0, 0, 10, 5]}}), **TRACK,
             value=0.5 * 0.75 + 0.5 / 3,
             explanation={"parsed": "boxes at 2 of 2 moments", "overlaps": [[2, 1], [4, 0.5]],
                   "spans": [{"span": [4, 8], "role": "stated"}, {"span": [2, 6], "role": "reference"}],
                   "parts": {"boxes": 0.75, "span": 0.3333}}),
        Case(text="gone", **TRACK, value=0,
             explanation={"parsed": "boxes at 0 of 2 moments", "overlaps": [[2, 0], [4, 0]],
                   "spans": [{"span": [2, 6], "role": "reference"}], "parts": {"boxes": 0, "span": 0}}),
    ],
    "format": [
        Case(text="<think>a</think> <answer>b</answer>", value=1, explanation={"reason": "well formed"}),
        Case(text="<think>a</think>b", value=0, explanation={"reason": "<answer> occurs 0 times, not once"}),
        Case(text="<think>a</think>so <answer>b</answer>", value=0,
             explanation={"reason": "something else where <answer> should open"}),
        Case(text="<think> </think><answer>b</answer>", value=0, explanation={"reason": "nothing in <think>"}),
        Case(text="<think>a</think><answer>b</answer>c", value=0, explanation={"reason": "text after </answer>"}),
        Case(text="x", settings={"pattern": "y"}, value=0, explanation={"reason": "the pattern does not match"}),
        Case(text="xx", settings={"max_chars": 1}, value=0, explanation={"reason": "2 characters, more than 1"}),
    ],
    "json_schema": [
        Case(text='{"label": "a", "at": {"x": 1}}', **KEYED, value=1,
             explanation={"parsed": '{"label": "a", "at": {"x": 1}}', "parts": {"label": 1, "at.x": 1}}),
        Case(text='{"label": 3}', **KEYED, value=0, explanation={"parsed": '{"label": 3}', "parts": {"label": 0, "at.x":
        0}}), Case(text='{"label": "a", "at": {"y": 1}}', **KEYED, value=0,
             explanation={"parsed": '{"label": "a", "at": {"y": 1}}', "reason": "not requested: at.y"}),
        Case(text="no", **KEYED, value=0, explanation={"parsed": None, "reason": "no JSON object"}),
    ],
    "overlong": [
        Case(text="x", tokens=80, settings={"max_length": 100, "margin": 20}, value=0,
             explanation={"reason": "80 tokens, free up to 80, -1 beyond 100"}),
        Case(text="x", tokens=90, settings={"max_length": 100, "margin": 20}, value=-0.5,
             explanation={"reason": "90 tokens, free up to 80, -1 beyond 100"}),
    ],
    "repetition": [
        Case(text="a b", settings={"unit": "words"}, value=0, explanation={"reason": "fewer than 3 words"}),
        Case(text="a a a a", settings={"unit": "words"}, value=-0.5,
             explanation={"reason": "1 of 2 runs of 3 words repeat an earlier one"}),
    ],
    "stated_length": [
        Case(text="50 tokens", answer="50 tokens", tokens=50, settings={"max_length": 100, "judge": "exact_match"},
             value=4 * math.cos(math.pi / 4),
             explanation={"parsed": "50 tokens", "reference": "50 tokens", "parts": {"judge": 1, "stated": 50}}),
        Case(text="b", answer="a", tokens=50, settings={"max_length": 100, "judge": "exact_match"}, value=0,
             explanation={"parsed": "b", "reference": "a", "parts": {"judge": 0}}),
    ],
    "cosine_length": [
        Case(text="a", answer="a", tokens=50, settings={"max_length": 100, "judge": "exact_match"}, value=0.75,
             explanation={"parsed": "a", "reference": "a", "parts": {"judge": 1, "shortness": 0.5}}),
        Case(text="b", answer="a", tokens=0, settings={"max_length": 100, "judge": "exact_match"}, value=-1,
             explanation={"parsed": "b", "reference": "a", "parts": {"judge": 0, "shortness": 1}}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", VERIFIABLE)
def test_every_score_is_explained(name: str):
    if name in ("math_verify", "math_form"):
        pytest.importorskip("math_verify")
    for case in CASES[name]:
        tokens = None if case.tokens is None else [1] * case.tokens
        reward = resolve("rewards", name)(**case.settings)
        (score,) = reward([wrote(case.text, case.answer, tokens=tokens)])
        assert isinstance(score, Score)
        assert dict(score.explanation) == case.explanation
        assert score.value == pytest.approx(case.value)
        assert set(case.explanation) <= KEYS


def test_every_reward_with_explanations_has_a_case():
    assert sorted(CASES) == sorted(VERIFIABLE)
    assert len(VERIFIABLE) == 38
