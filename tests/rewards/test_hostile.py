"""Whatever a model writes: every reward comes to an end, in a finite number within its range, and runs none of it."""

from __future__ import annotations

import ast
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmgrpo.rewards.grounding.gui_action import GuiAction
from mmgrpo.rewards.grounding.localization import BoxIou, Detection, PointInBox, TemporalIou
from mmgrpo.rewards.grounding.masks import MaskIou
from mmgrpo.rewards.grounding.precision import AveragePrecision
from mmgrpo.rewards.grounding.tracks import Tracking
from mmgrpo.rewards.grounding.trajectories import Trajectory
from mmgrpo.rewards.text.answers import Classification, EditDistance, ExactMatch, LabelSet, YesNo
from mmgrpo.rewards.text.captions import CaptionScore
from mmgrpo.rewards.text.chart_answers import ChartAnswer
from mmgrpo.rewards.text.choices import MultipleChoice
from mmgrpo.rewards.text.coverage import Coverage
from mmgrpo.rewards.text.forecasts import Brier
from mmgrpo.rewards.text.lengths import Repetition
from mmgrpo.rewards.text.number_lists import NumberList
from mmgrpo.rewards.text.quantities import CountMatch, FirstError, MeanRelativeAccuracy, Number
from mmgrpo.rewards.text.records import FieldMatch, RecordSimilarity
from mmgrpo.rewards.text.sequences import Ordering
from mmgrpo.rewards.text.structure import Format, JsonSchema
from mmgrpo.rewards.text.tables import TableSimilarity
from mmgrpo.rewards.text.tool_calls import ToolCalls

from tests.rewards.written import score_of

MILLION = 1_000_000
SECONDS = 100  # a bound on termination, not on speed: a hundred thousand took up to 4 s; what is quadratic takes hours

FRAME: dict[str, Any] = {"coordinates": {"frame": "norm1", "reference_frame": "norm1"}}
REWARDS: dict[str, tuple[Callable[..., Any], Any]] = {
    "exact_match": (ExactMatch(extract="boxed"), "a"),
    "exact_match tag": (ExactMatch(extract="tag"), "a"),
    "exact_match line": (ExactMatch(extract="line"), "a"),
    "exact_match named": (ExactMatch(extract={"tag": "answer"}), "a"),
    "multiple_choice": (MultipleChoice(several="last"), "B"),
    "yes_no": (YesNo(), "yes"),
    "classification": (Classification(labels=["a b", "a b c d"]), "a b"),
    "edit_distance": (EditDistance(), "a" * 9_999),
    "edit_distance words": (EditDistance(unit="words"), "a " * 4_999),
    "number": (Number(), 7),
    "mean_relative_accuracy": (MeanRelativeAccuracy(), 7),
    "count": (CountMatch(mode="relative"), 7),
    "first_error": (FirstError(), 7),
    "box_iou": (BoxIou(**FRAME), [0, 0, 1, 1]),
    "box_giou": (BoxIou(**FRAME, mode="giou"), [0, 0, 1, 1]),
    "detection": (Detection(**FRAME), [[0, 0, 1, 1]]),
    "point_in_box": (PointInBox(**FRAME), [0, 0, 1, 1]),
    "temporal_iou": (TemporalIou(), [0, 1]),
    "average_precision": (AveragePrecision(**FRAME), [[0, 0, 1, 1]]),
    "mask_iou": (MaskIou(**FRAME), {"size": [4, 4], "counts": [2, 9, 5]}),
    "tracking": (Tracking(**FRAME), {"time": [0, 1], "boxes": {"1": [0, 0, 1, 1]}}),
    "gui_action": (GuiAction(**FRAME), {"action": "a", "text": "dog"}),
    "chart_answer": (ChartAnswer(percent="either"), "7"),
    "caption_score": (CaptionScore(metric="cider"), ["a b dog", "7"]),
    "format": (Format(max_chars=2 * MILLION), None),
    "json_schema": (JsonSchema({"a": {"b": "any"}}, anywhere=True), None),
    "repetition": (Repetition(unit="words"), None),
    "ordering": (Ordering(mode="positions"), "a b"),
    "number_list": (NumberList(), [7, 1]),
    "number_list symbol": (NumberList(mode="contains", symbol="a"), [7]),
    "tool_calls": (ToolCalls(), [{"name": "a", "parameters": {"b": 1}}]),
    "brier": (Brier(), 1),
    "coverage": (Coverage(repetition=True), "a dog"),
    "table_similarity": (TableSimilarity(), "<table><tr><td>a</table>"),
    "record_similarity": (RecordSimilarity(), {"a": {"b": [1, "dog"]}}),
    "field_match": (FieldMatch(), {"a": {"b": [1, "dog"]}}),
    "label_set": (LabelSet(["a b", "dog"]), ["dog"]),
    "trajectory": (Trajectory(**FRAME), [[0, 0], [1, 1]]),
}
# Their parsers are other rewards' too: a million characters of them are read nightly, and `test_fuzz` reads them daily.
NIGHTLY = {
    *("ordering", "number_list", "tool_calls", "brier"),
    *("record_similarity", "field_match", "label_set", "trajectory"),
}
# fmt: off
PIECES = (
    "[", "{", "(", "]", '"', "'", "\\", "\\boxed{", "<answer>", "</answer><answer>", "</think>", "<think>", "9", "1,",
    "1.", "1,111", "1/", "-", "1e", "1:", ":", "one ", "hundred ", "one and ", "A ", "(a)", "yes ", "a b ", "a_", "\n",
    "<table><tr><td>", "<td", "<!--", "</td>", '{"name":"a"},', "3/", "P ",
    "\u00a0", "\u0301\u0323", "\ufdfa", "\u0663", "\U0001f600", "\x00", "\ud800", '{"a":', "[[1,2],", "(1,2),(3,4)",
    '\\"', "[1],", ",]",
)
# fmt: on


@pytest.mark.parametrize("length", [MILLION // 50, pytest.param(MILLION, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly) if name in NIGHTLY else name for name in REWARDS]
)
def test_a_million_characters(name: str, length: int):
    reward, reference = REWARDS[name]
    started = time.monotonic()
    for piece in (
        "[",
        '"',
        '\\"',
        "\\boxed{",
        "</answer><answer>",
        "1,111",
        "one and ",
        "A ",
        "\u0301\u0323",
        '{"a":',
        "[1],",
    ):
        value = score_of(reward, "[" + piece * (length // len(piece)), reference)
        assert -1 <= value <= 1
    assert time.monotonic() - started < max(SECONDS * length / MILLION, 10)


@pytest.mark.nightly
def test_deep_nesting():
    for opening, closing in (
        ("[", "]"),
        ("{", "}"),
        ('{"a":', "}"),
        ("(", ")"),
        ("\\boxed{", "}"),
        ("<answer>", "</answer>"),
    ):
        for depth in (10, 40_000):
            text = opening * depth + "1" + closing * depth
            for name, (reward, reference) in REWARDS.items():
                value = score_of(reward, text, reference)
                assert -1 <= value <= 1, (name, opening, depth)


@pytest.mark.nightly
@pytest.mark.parametrize("times", [250, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_fuzz(times: int):
    """Seeded: random strings of pieces that parsers trip over, with numbers and letters between them."""
    draw = random.Random(0)
    alphabet = [*PIECES, "0", "0.5", "1", "7", " ", "B", "dog", ", ", "]", "}", ")", "null", "True", "label", "bbox_2d"]
    for _ in range(times):
        text = "".join(draw.choice(alphabet) for _ in range(draw.randrange(40)))
        for name, (reward, reference) in REWARDS.items():
            value = score_of(reward, text, reference)
            assert math.isfinite(value), (name, text)
            assert -1 <= value <= 1, (name, text)


RUNNING = {"eval", "exec", "compile", "__import__", "literal_eval", "parse_expr", "sympify"}
UNPICKLING = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


TRUST_SETTING = "settings.trust_remote_code"
"""The user's setting for models with remote code, False by default."""


def what_runs(tree: ast.AST) -> set[str]:
    """Names under which a module runs text as code, or reads what may hold code."""
    result: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names if alias.name.partition(".")[0] in UNPICKLING}
        elif isinstance(node, ast.ImportFrom):
            names = {(node.module or "").partition(".")[0]} & UNPICKLING
            result |= names | ({alias.name for alias in node.names} & RUNNING)
        elif isinstance(node, ast.Call):
            called, keywords = (
                ast.unparse(node.func),
                {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords},
            )
            result |= {called.removeprefix("builtins.")} & RUNNING
            result |= {called} if called == "torch.load" and keywords.get("weights_only") != "True" else set()
            result |= {called} if keywords.get("allow_pickle", "False") != "False" else set()
            trusted = keywords.get("trust_remote_code", "False")
            result |= {called} if trusted not in ("False", TRUST_SETTING) else set()
    return result


WITHIN = {
    "rewards/code/program_protocol.py": {"exec", "compile"},
    "mmgrpo/environments/python_worker.py": {"eval", "exec", "compile"},
}
"""Those that run what a model wrote: within the sandbox, where they are started as files."""

PICKLING = {"policies/engines/weight_transfer.py": {"pickle"}}
"""Handles of tensors for vLLM; nothing is unpickled here."""


@pytest.fixture(scope="module")
def sources() -> dict[str, ast.Module]:
    """Our modules by their paths."""
    root = Path(__file__).parents[2]
    paths = [path for room in ("mmgrpo", "policies", "rewards", "examples") for path in (root / room).rglob("*.py")]
    return {str(path.relative_to(root)): ast.parse(path.read_text()) for path in sorted(paths)}


def test_texts_are_neither_evaluated_nor_unpickled(sources):
    assert {"rewards/groups/votes.py", "mmgrpo/scoring/cache.py", "policies/language/policy.py"} <= set(sources)
    result = {path: what_runs(tree) for path, tree in sources.items()}
    assert {path: names for path, names in result.items() if names} == {**WITHIN, **PICKLING}


def test_modules_that_run_programs_are_not_imported(sources):
    """They are programs themselves, started in a sandbox."""
    names = {Path(path).stem for path in WITHIN}
    for path, tree in sources.items():
        for node in ast.walk(tree):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not [module for module in modules if module.rpartition(".")[2] in names], path


@pytest.mark.parametrize(
    "source",
    [
        "eval(x)", "builtins.exec(x)", "import pickle", "from dill import loads", "import joblib.numpy_pickle",
        "from ast import literal_eval", "torch.load(x)", "torch.load(x, weights_only=False)",
        "np.load(x, allow_pickle=True)",
    ],
)  # fmt: skip
def test_programs_are_detected(source: str):
    assert what_runs(ast.parse(source))
    assert not what_runs(ast.parse("model.eval(); re.compile(x); torch.load(x, weights_only=True); np.load(x)"))
