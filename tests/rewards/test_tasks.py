"""Rewards of single tasks: numbers by hand, or of their authors' code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.rewards.grounding.trajectories import Trajectory, frechet
from mmgrpo.rewards.text.answers import LabelSet
from mmgrpo.rewards.text.coverage import Coverage
from mmgrpo.rewards.text.forecasts import Brier
from mmgrpo.rewards.text.lengths import LengthPeak
from mmgrpo.rewards.text.number_lists import NumberList, coefficients
from mmgrpo.rewards.text.records import FieldMatch, RecordSimilarity
from mmgrpo.rewards.text.sequences import Ordering
from mmgrpo.rewards.text.structure import Format
from mmgrpo.rewards.text.tables import MAX_NODES, TableSimilarity
from mmgrpo.rewards.text.text_similarity import TextSimilarity
from mmgrpo.rewards.text.tool_calls import ToolCalls
from transformers import AutoModel, AutoTokenizer

from mmgrpo.errors import ConfigError, DataError
from tests.rewards.written import explained, score_of, scores_of, wrote
from tests.tiny import judges

UNIT: dict[str, Any] = {"frame": "norm1", "reference_frame": "norm1"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("341562", 1.0),
        ("341526", 1 - 2 / 18),  # 6 and 2 one place off each, of 18 = 6 * 6 / 2
        ("265143", 0.0),  # the other way round: 5 + 3 + 1 + 1 + 3 + 5
        ("34156", 0.0),
        ("3415622", 0.0),
        ("", 0.0),
    ],
)
def test_clips_in_order(text: str, value: float):
    assert score_of(Ordering(items="characters"), text, "341562") == pytest.approx(value)


def test_items_may_be_words_and_pay_by_their_number():
    moves = Ordering(mode="exact", per_item=0.2)
    answer = ["<|up|><|up|><|left|>", "<|up|> <|left|>", "up, up, left"]
    assert [score_of(moves, text, answer[0]) for text in answer] == pytest.approx([0.6, 0, 0.6])
    places = Ordering(mode="positions", per_item=0.2)
    assert score_of(places, answer[1], answer[0]) == pytest.approx(0.2)  # one of three places
    assert score_of(Ordering(), "2, 1", [1, 2]) == 0
    assert score_of(Ordering(), "a", ["a"]) == 1
    assert score_of(Ordering(), "1 1", "1 1") is None
    assert score_of(Ordering(mode="positions"), "1 1", "1 1") == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3,1,4", 1.0),
        ("3 circles, 2 squares, 2 triangles", (1 + 0 + 0.5) / 3),
        ("9,1,4", 2 / 3),
        ("3,1", 0.0),
        ("none", 0.0),
        ("1," * 101, 0.0),
    ],
)
def test_each_of_several_numbers(text: str, value: float):
    assert score_of(NumberList(), text, [3, 1, 4]) == pytest.approx(value)
    assert score_of(NumberList(), text, "3,1,4") == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("R_A = 0.5P and R_B = \\frac{3P}{2}", [0.5, 1.5]),
        ("\\dfrac{2}{9} P, P/4, P, 0", [2 / 9, 0.25, 1, 0]),
        ("3 \\cdot P - 2*P", [3, 2]),
        ("-2P", [-2]),
        ("7, Px, aP, 10, 0.5, 3/0P", []),
    ],
)
def test_numbers_of_a_symbol(text: str, result: list[float]):
    assert NumberList(symbol="P")._read(text) == pytest.approx(result)


def test_all_must_be_among_those_stated():
    reward = NumberList(mode="contains", symbol="P", absolute=1e-4, extract="boxed")
    labels = ["0.1P", "1.9P"]
    answer = [r"\boxed{1.9P, 0.1P}", r"\boxed{0.1P}", r"1.9P, \boxed{0.1P}", r"\boxed{0.1P, 1.9P, 3P}"]
    assert [score_of(reward, text, labels) for text in answer] == [1, 0, 0, 1]
    assert score_of(reward, r"\boxed{0.1P}", ["0.1P", "0.1P"]) == 0
    assert score_of(reward, r"\boxed{P}", "none") is None


def call(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


SEARCH = [call("search", query="cats", n=3)]
BOTH = [*SEARCH, call("open", page=1)]


@pytest.mark.parametrize(
    ("stated", "reference", "value"),
    [
        (SEARCH, SEARCH, 1.0),
        # 1 for the name, 1 / 2 for the parameters' names and 1 for one value, of 1 + 1 + 2
        ([call("search", query="cats")], SEARCH, 2.5 / 4),
        ([call("find", query="cats", n=3)], SEARCH, 0.0),
        # names 1 / 2, the first call all right, of 1 + (1 + 2) + (1 + 1)
        (SEARCH, BOTH, 3.5 / 6),
        ([*BOTH, call("open", page=2)], BOTH, (2 / 3 + 3 + 2) / 6),
        ([call("search", query="cats", n="3")], SEARCH, 3 / 4),
        ([call("search", query="cats", n=True)], [call("search", query="cats", n=1)], 3 / 4),
        ([call("now")], [call("now")], 1.0),
        ([], SEARCH, 0.0),
    ],
)
def test_tool_calls(stated: list[Any], reference: list[Any], value: float):
    reward = ToolCalls(extract={"tag": "tool_call"})
    lines = "\n".join(map(json.dumps, stated))
    assert score_of(reward, f"<think>so</think><tool_call>{lines}</tool_call>", reference) == pytest.approx(value)
    assert score_of(reward, f"<tool_call>{json.dumps(stated)}</tool_call>", json.dumps(reference)) == pytest.approx(
        value
    )
    assert score_of(reward, lines, reference) == 0


def test_calls_are_read_in_other_forms_and_bounded():
    assert score_of(ToolCalls(), '{"name": "now", "arguments": {"zone": 1}}', [call("now", zone=1)]) == 1
    assert score_of(ToolCalls(), json.dumps(SEARCH * 51), SEARCH) == 0
    assert score_of(ToolCalls(), json.dumps(SEARCH), "no call") is None


def test_a_row_may_have_separate_tags():
    sample = wrote("<think>a</think><tool_call>b</tool_call>", tags=["think", "tool_call"])
    assert scores_of(Format(column="tags"), [sample, wrote("<think>a</think><answer>b</answer>")]) == [1, 1]
    assert scores_of(Format(), [sample]) == [0]


@pytest.mark.parametrize(
    ("text", "outcome", "value"),
    [("0.7", 1, 0.91), ("0.7", False, 0.51), ("I say 7/10", True, 0.91), ("1.3", 1, 1.0), ("?", 1, -0.25)],
)
def test_probabilities(text: str, outcome: Any, value: float):
    assert score_of(Brier(missing=-0.25), text, outcome) == pytest.approx(value)
    assert score_of(Brier(), text, 2) is None
    assert score_of(Brier(scale=100), "90%", 1) == pytest.approx(0.99)


def test_confidence_in_the_answer():
    reward = Brier(of={"name": "exact_match", "extract": "tag"}, extract={"tag": "sure"})
    answer = ["<answer>blue</answer><sure>8/10</sure>", "<answer>red</answer><sure>8/10</sure>"]
    assert [score_of(reward, text, "blue") for text in answer] == pytest.approx([1 - 0.04, 1 - 0.64])
    assert score_of(reward, answer[0]) is None
    with pytest.raises(ConfigError, match=r"Brier\.of must be one of math_verify"):
        Brier(of="box_iou")
    failing = Brier(of=lambda samples: [float("nan") for _ in samples])
    assert math.isnan(score_of(failing, "0.5", 1))


PATH = [["insulin", "lowers", "glucose"], ["glucose", "is in", "blood"]]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("insulin lowers the glucose of the blood", 1.25),
        ("insulin acts quickly", 0.25),
        ("insulin lowers sugar", 0.5 + 0.25),
        # insulin is 3 of 5 words: 1 - 3 (0.6 - 0.35)
        ("insulin insulin insulin lowers sugar", 0.75 * 0.25),
        # of 20 words none is frequent, a run of 5: 1 - 0.05 * 2
        (" ".join(["insulin", *["lowers"] * 5, *(f"w{i}" for i in range(14))]), 0.75 * 0.9),
        ("", 0.0),
    ],
)
def test_words_of_a_path(text: str, value: float):
    reward = Coverage(bonus=0.25, repetition=True, extract={"tag": "think"})
    assert score_of(reward, f"<think>{text}</think> insulin", PATH) == pytest.approx(value)
    assert score_of(reward, text, [["the", "of"]]) is None


TABLE = "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>"


@pytest.mark.parametrize(
    ("text", "value", "structure"),
    [
        (TABLE, 1, 1),
        (f"So:\n{TABLE.upper().replace('A<', 'a<').replace('B<', 'b<').replace('><', '> <')} and {TABLE[:30]}", 1, 1),
        # thead, its row and cells, and tbody are left out: 5 of 8 nodes; an open tag ends with its parent
        ("<table><tr><td>1<td>2</table>", 3 / 8, 3 / 8),
        (TABLE.replace(">2<", ">3<"), 7 / 8, 1),
        (TABLE.replace(">2<", ">2 &amp; 3<"), 1 - 0.8 / 8, 1),  # "2 & 3" is four edits of five from "2"
        (TABLE.replace("<td>1", "<td colspan=2>1"), 7 / 8, 7 / 8),
        (TABLE.replace(">2<", "><b>2</b><!-- x --><"), 1, 1),
        (TABLE.replace("<td>2</td>", ""), 7 / 8, 7 / 8),
        ("| a | b |", 0, 0),
        ("<table>" + "<tr><td>1</td></tr>" * MAX_NODES + "</table>", 0, 0),
    ],
)
def test_tables(text: str, value: float, structure: float):
    assert score_of(TableSimilarity(), text, TABLE) == pytest.approx(value)
    assert score_of(TableSimilarity(structure=True), text, TABLE) == pytest.approx(structure)


def test_tables_that_are_no_reference():
    assert score_of(TableSimilarity(), TABLE, "| a |") is None
    assert score_of(TableSimilarity(), TABLE, "<table></table>") is None
    assert score_of(TableSimilarity(), "<table></table>", TABLE) == 0


STRAIGHT = [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0)]


def test_frechet():
    assert frechet(STRAIGHT, STRAIGHT) == 0
    assert frechet(STRAIGHT, [(x, 3.0) for x, _ in STRAIGHT]) == 3
    assert frechet(STRAIGHT, STRAIGHT[::-1]) == 2  # the ends of both must meet
    assert frechet(STRAIGHT, [(0.0, 0.0), (2.0, 0.0)]) == 1  # the middle waits at an end
    assert frechet([(0.0, 0.0)], STRAIGHT) == 2
    back_and_up = [(0.0, 0.0), (0.0, 1.0)]
    assert frechet(STRAIGHT[:2], back_and_up, angle=0.25) == pytest.approx(math.sqrt(2) + 0.25 * math.pi / 2)
    assert frechet(STRAIGHT[:2], [(0.0, 0.0), (2.0, 0.0)], ratio=0.1) == pytest.approx(1 + 0.1 * math.log(2))


def test_paths_over_an_image():
    reward = Trajectory(coordinates=UNIT, angle=0.25, ratio=0.1)
    path = [[0.1, 0.2], [0.4, 0.2], [0.4, 0.6]]
    assert score_of(reward, str(path), path) == pytest.approx(1)
    # half an image apart in the same direction
    most = math.sqrt(2) + 0.25 * math.pi + 0.1 * math.log(10)
    assert score_of(reward, str([[x + 0.5, y] for x, y in path]), str(path)) == pytest.approx(1 - 0.5 / most)
    assert score_of(reward, "nowhere", path) == 0
    assert score_of(reward, str([[0, 0]] * 201), path) == 0
    assert score_of(reward, "[1, 2]", []) is None
    pixels = Trajectory(coordinates="norm1000")
    sample = wrote("[[0, 0], [500, 500]]", [[0, 0], [100, 50]], original_size=[200, 100])
    assert scores_of(pixels, [sample]) == [1]
    with pytest.raises(DataError, match="size of the original image is needed"):
        Trajectory(coordinates="original")([wrote("[1, 2]", [[1, 2]])])


@pytest.mark.parametrize(("tokens", "value"), [(0, 0), (25, 0.75), (50, 1), (75, 0.5), (100, -1), (200, -1)])
def test_length_is_best_at_its_peak(tokens: int, value: float):
    assert scores_of(LengthPeak(100), [wrote("a", tokens=[1] * tokens)]) == [pytest.approx(value)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Ordering(per_item=0), "per_item must be positive"),
        (lambda: Ordering(items="tokens"), "items must be one of words, characters"),  # type: ignore[arg-type]
        (lambda: LabelSet([]), "must be a list of labels"),
        (lambda: LabelSet(["a"], wrong=-1), "must be at least 0"),
        (lambda: FieldMatch(balance=2), r"must be in \[0, 1\]"),
        (lambda: NumberList(absolute=-1), "absolute must be at least 0"),
        (lambda: NumberList(symbol="1"), "a name such as P"),
        (lambda: Brier(scale=0), "scale > 0"),
        (lambda: Coverage(hits=0), "hits >= 1"),
        (lambda: Trajectory(angle=-1), "must be at least 0"),
        (lambda: LengthPeak(100, peak=1), "0 < peak < 1"),
    ],
)
def test_settings_are_checked(make: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make()


RECORD = {"name": "cats", "year": 2000, "tags": ["a", "bb"], "seen": "2020-01-31", "at": {"x": 1, "y": None}}


@pytest.mark.parametrize(
    ("stated", "value"),
    [
        (RECORD, 1.0),
        (RECORD | {"more": 1}, 1.0),
        (RECORD | {"name": "cat"}, (0.75 + 4) / 5),
        (RECORD | {"year": 1500}, (0.75 + 4) / 5),
        (RECORD | {"year": -2000}, 4 / 5),
        (RECORD | {"seen": "2020-01-31T12:00"}, (1 - 0.5 / 365 + 4) / 5),
        (RECORD | {"seen": "2022-01-31"}, 4 / 5),
        (RECORD | {"tags": ["bb"]}, (2 / 3 + 4) / 5),  # precision 1, recall a half
        (RECORD | {"tags": "bb"}, (2 / 3 + 4) / 5),
        (RECORD | {"tags": ["ba", "cc"]}, (0.5 / 2 + 4) / 5),  # "bb" at a half, then nothing above 0.35
        (RECORD | {"at": {"x": 1}}, 1.0),
        (RECORD | {"at": {"x": 1, "z": 2}}, (2 / 3 + 4) / 5),
        ({"name": "cats"}, 1 / 5),
        ({}, 0.0),
    ],
)
def test_records(stated: dict[str, Any], value: float):
    text = f"So: {json.dumps(stated)} and {{}}"
    assert score_of(RecordSimilarity(), text, RECORD) == pytest.approx(value)
    complete = score_of(RecordSimilarity(complete=True), text, json.dumps(RECORD))
    assert complete == pytest.approx(value if set(RECORD) <= set(stated) else 0)


def test_records_that_are_none():
    assert score_of(RecordSimilarity(), "name: cats", RECORD) == 0
    assert score_of(RecordSimilarity(), json.dumps({"name": ["cats"] * 301}), RECORD) == 0
    assert score_of(RecordSimilarity(), "{}", "none") is None
    with pytest.raises(ConfigError, match="the encoder of texts: meaning"):
        RecordSimilarity(texts="meaning")


def test_meaning_is_the_cosine_of_mean_hidden_states(tmp_path: Path):
    folder = str(judges.save_encoder(tmp_path))
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        first, two = (
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in ("a b", "c")
        )
    reward = RecordSimilarity(texts="meaning", model=folder)
    scores = [score_of(reward, json.dumps({"name": text}), {"name": "c"}) for text in ("c", "a b", "")]
    assert scores == pytest.approx([1, max(0, torch.cosine_similarity(first, two, dim=0).item()), 0], abs=1e-5)
    assert 0 <= score_of(reward, json.dumps({"name": "a b " * 100}), {"name": "c"}) <= 1  # longer than it reads


def test_a_path_pays_up_to_its_first_wrong_move_and_by_its_turns():
    prefix, exact = Ordering(mode="prefix", per_item=1), Ordering(mode="exact", per_item=2, turns=True)
    answer = ["up up left", "up up right left", "left up", "up up left down"]
    assert [score_of(prefix, text, "up up left") for text in answer] == [3, 2, 0, 3]
    assert [score_of(exact, text, "up up left") for text in answer] == [12, 0, 0, 0]  # 3 moves, 2 runs, twice


FIELDS = {"a": "Cat", "b": [{"n": 1}, {"n": 2}], "c": None}


@pytest.mark.parametrize(
    ("stated", "value"),
    [
        (FIELDS, 1.0),
        (FIELDS | {"a": "cat", "b": [{"n": 1.0}, {"n": 2}]}, 1.0),
        ({"a": "cat"}, 0.75 + 0.25 / 4),
        (FIELDS | {"d": 1, "e": 1, "f": 1, "g": 1}, 0.75 / 2 + 0.25),
        (FIELDS | {"b": [{"n": 2}, {"n": 1}]}, 0.5),
        (FIELDS | {"c": "null", "b": [{"n": "1"}, {"n": True}]}, 0.25),
        ({}, 0.0),
    ],
)
def test_fields_by_precision_and_recall(stated: dict[str, Any], value: float):
    assert score_of(FieldMatch(balance=0.75), json.dumps(stated), FIELDS) == pytest.approx(value)
    assert score_of(FieldMatch(), json.dumps({"a": list(range(1001))}), FIELDS) == 0


@pytest.mark.parametrize(
    ("text", "labels", "value"),
    [
        ("hands and face", ["Face", "hands"], 1.0),
        ("", [], 1.0),
        ("", ["face"], 0.0),
        ("hands", ["hands", "face"], 0.6 - 0.3),
        ("hands, face, limbs", ["hands", "face"], 2 * 0.6 - 0.3),
        ("limbs", ["hands"], 0.0),
        ("hand structure", ["hands"], 0.0),
    ],
)
def test_sets_of_labels(text: str, labels: list[str], value: float):
    reward = LabelSet(["hands", "face", "limbs", "hand structure"])
    assert score_of(reward, text, labels) == pytest.approx(value)
    assert score_of(reward, text, ["nose"]) is None


def test_text_similarity_is_the_cosine_to_the_nearest_reference(tmp_path: Path):
    folder = str(judges.save_encoder(tmp_path))
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        a, b, c = (model(**tokenizer(t, return_tensors="pt")).last_hidden_state[0].mean(0) for t in ("a b", "c", "d e"))  # pyrefly: ignore[not-callable]
    cosines = [torch.cosine_similarity(a, other, dim=0).item() for other in (b, c)]
    assert abs(cosines[0] - cosines[1]) > 1e-3
    reward = TextSimilarity(folder, extract="tag")
    assert score_of(reward, "<answer>a b</answer>", ["c", "d e"]) == pytest.approx(max(cosines), abs=1e-5)
    assert explained(reward, wrote("<answer>a b</answer>", "c")) == {
        "parsed": "a b", "reference": "c", "parts": {"cosine": pytest.approx(cosines[0], abs=1e-4)}
    }  # fmt: skip
    assert score_of(reward, "<answer>c</answer>", "c") == pytest.approx(1, abs=1e-5)
    assert [score_of(reward, text, "c") for text in ("c", "")] == [0, 0]
    sharp, farther = TextSimilarity(folder, threshold=max(cosines) - 1e-3), ("c", "d e")[cosines.index(min(cosines))]
    assert (score_of(sharp, "a b", ["c", "d e"]), score_of(sharp, "a b", farther)) == (1, 0)


def test_a_symbol_is_looked_for_in_linear_time():
    assert list(coefficients("1/" * 50_000, "P")) == []
