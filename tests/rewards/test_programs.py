"""Tests of programs: those that pass, those that only pretend to, and their speed."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from mmgrpo.rewards.code.programs import CodeTests, RunTime, gain, read_tests
from mmgrpo.rewards.parsing.code_blocks import extract_code

from mmgrpo.errors import ConfigError
from tests.rewards.sandboxed import needs_sandbox
from tests.rewards.written import wrote

DOUBLE = "def f(x):\n    return 2 * x"


def score_of_program(code: str, tests: Any, **settings: Any) -> float | None:
    options: dict[str, Any] = {"time_s": 5.0} | settings
    (score,) = CodeTests(**options)([wrote(f"so\n```python\n{code}\n```", tests=tests)])
    return None if score is None else float(score)


TWO_TESTS = """
from solution import f

def test_a():
    assert f(1) == 2

def test_b():
    assert f(1) == 3
"""
SORTS = "class Solution:\n    def f(self, x):\n        return sorted(x)"
VALUES = "({1: (2.5, None)}, {3}, b'a', True, 10**30)"
RAISES = "def f(x):\n    raise ValueError(x)"
EXPECTS = "try:\n    f(1)\n    assert False\nexcept ValueError: pass"


@pytest.mark.first_case
@needs_sandbox
@pytest.mark.parametrize(
    ("code", "tests", "passed"),
    [
        pytest.param(DOUBLE, ["assert f(1) == 2", "assert f(2) == 5", "assert f('a') == 'aa'"], 2 / 3, id="asserts"),
        pytest.param(DOUBLE, "def check(g):\n    assert g(3) == 6\n\ncheck(f)", 1, id="a check"),
        pytest.param(DOUBLE, TWO_TESTS, 1 / 2, id="functions"),
        pytest.param(SORTS, "assert Solution().f([2, 1]) == [1, 2]", 1, id="a class"),
        pytest.param(f"f = lambda: {VALUES}", f"assert f() == {VALUES}", 1, id="values"),
        pytest.param(RAISES, EXPECTS, 1, id="an error"),
        pytest.param(f"import sys\nsys.stderr.write('x' * 999999)\n{DOUBLE}", "assert f(1) == 2", 1, id="much said"),
    ],
)
def test_share_of_asserts(code: str, tests: Any, passed: float) -> None:
    assert score_of_program(code, tests, score="share") == pytest.approx(passed)


@pytest.mark.nightly
@needs_sandbox
def test_late_answers_are_wrong() -> None:
    tests = "assert f(0) == 1\nassert f(1) == 1"
    assert score_of_program("def f(x):\n    while x: pass\n    return 1", tests, score="share", time_s=1.0) == 1 / 2
    assert score_of_program(DOUBLE, tests) == 0


CHEATS = {
    "leaves early": "import sys\nsys.exit(0)",
    "ends at once": "import os\nos._exit(0)",
    "prints a verdict": "import os\nfor fd in (1, 2):\n    os.write(fd, b'1\\n1\\n1\\n')\nos._exit(0)",
    "writes a verdict when asked": "import os\ndef f(x):\n    os.write(2, b'1\\n1\\n')\n    os._exit(0)",
    "answers before it is asked": "import os\nos.write(1, b'{\"value\": true}\\n' * 9)\nf = lambda x: 0",
    "is equal to all": """
class All:
    __eq__ = __le__ = __lt__ = lambda a, b: True
    __sub__ = __rsub__ = __abs__ = lambda *a: All()
    __bool__ = lambda a: True

f = lambda x: All()
""",
    "is an int that is equal to all": """
class All(int):
    __eq__ = __le__ = __lt__ = lambda a, b: True
    __ne__ = lambda a, b: False

f = lambda x: All(0)
""",
    "replaces the tests' helpers": "abs = lambda x: 0\nsum = all = any = lambda *x: True\nf = lambda x: -1",
    "patches the interpreter": """
import builtins, sys
builtins.AssertionError = BaseException
builtins.abs = lambda x: 0
sys.modules['json'].loads = None
f = lambda x: -1
""",
    "looks for the tests": """
import os
found = ["< 0" + ".1" in open(name).read() for name in os.listdir()]
f = lambda x: 2 * x if any(found) else 0
""",
}
"""What the tests are not passed by."""


@needs_sandbox
@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS)
def test_a_pass_cannot_be_faked(code: str) -> None:
    assert (
        score_of_program(code, "assert abs(f(1) - 2) < 0.1\nassert f(2) == 4\nassert not f(1) != 2", score="share") == 0
    )


@pytest.mark.nightly
@needs_sandbox
def test_pairs_of_input_and_output() -> None:
    pairs = [{"input": "4\n", "output": "8\n"}, {"input": "5", "output": "10"}, {"input": "6", "output": "13"}]
    assert score_of_program("print(int(input()) * 2, ' ')", pairs, score="share") == pytest.approx(2 / 3)
    apps = json.dumps({"inputs": ["4", "5"], "outputs": ["8", "10"]})
    assert score_of_program("print(int(input()) * 2)", apps) == 1
    assert score_of_program("print(int(input()) * 2)", pairs, max_tests=2) == 1
    assert score_of_program("print(8)\nraise SystemExit(1)", pairs[:1]) == 0


def test_without_code_it_is_wrong() -> None:
    (score,) = CodeTests(wrong=-1.0)([wrote("I do not know", tests="assert f(1)")])
    assert float(score or 0) == -1


@pytest.mark.parametrize("tests", [None, 7, [], "", "assert (", {"inputs": ["1"], "outputs": []}, [{"input": "1"}]])
def test_rows_without_tests_are_not_scored(tests: Any) -> None:
    assert read_tests(tests) is None
    assert CodeTests()([wrote("```\nx\n```", tests=tests)]) == [None]


@needs_sandbox
def test_empty_tests_are_not_scored() -> None:
    assert score_of_program(DOUBLE, "import unittest\n\nclass TestF(unittest.TestCase): pass") is None


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "tests", "expected"),
    [
        (
            "from dataclasses import dataclass\n@dataclass\nclass D:\n    x: int\ndef f(x): return D(x).x",
            "assert f(1) == 1",
            1.0,
        ),
        ("import pickle, sys\nclass Q: pass\npickle.dumps(Q())\ndef f(x): return x", "assert f(1) == 1", 1.0),
        (DOUBLE, ["if f(2) != 5: raise AssertionError('x')", "assert f(1) == 2"], 0.5),
        (DOUBLE, "assert f(1) == 2\nif f(2) != 5: raise ValueError('x')", 0.5),
        (DOUBLE, "x = f(1, 2, 3)\nassert f(1) == 2", 0.0),
        (DOUBLE, "x = f(1)\nassert x == 2", 1.0),
    ],
)
def test_tests_score_like_a_script_of_them(code: str, tests: Any, expected: float) -> None:
    """Classes find their module, a raise is a test too, and nothing holds after what stopped the script."""
    assert score_of_program(code, tests, score="share") == expected


@needs_sandbox
def test_faster_than_the_reference() -> None:
    slow = "n = int(input())\nprint(sum(i for i in range(n)))"
    rows = {"tests": [{"input": "3000000", "output": "4499998500000"}], "reference": slow}
    fast, wrong, none_right, none = RunTime(repeats=1)(
        [
            wrote("```\nn = int(input())\nprint(n * (n - 1) // 2)\n```", **rows),
            wrote(f"```\n{slow}\n\n```".replace("sum(", "2 * sum("), **rows),
            wrote("no code", **rows),
            wrote("```\nprint(1)\n```", **rows | {"reference": None}),  # pyrefly: ignore[bad-argument-type]
        ]
    )
    assert 0.2 < float(fast or 0) < math.tanh(1)
    assert (float(wrong or 0), float(none_right or 0), none) == (0, 0, None)


@pytest.mark.parametrize(
    ("seconds", "reference_s", "expected"), [(5.0, 5.0, 0.0), (5.0, 10.0, 0.46211716), (30.0, 10.0, -0.76159416)]
)
def test_gain_in_time(seconds: float, reference_s: float, expected: float) -> None:
    """tanh 0, tanh 0.5 and tanh -1, by a table of the function."""
    assert gain(seconds, reference_s) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "how", "code"),
    [
        ("```python\na\n```\n```\nb\n```", "fenced", "b\n"),
        ("<think>```\na\n```</think> none", "fenced", None),
        ("```python\na", "fenced", None),
        ("<answer>a</answer>", "tag", "a"),
        ("<answer>\n```sql\na\n```\n</answer>", "tag", "a\n"),
        ("<think>x</think>a", "none", "a"),
    ],
)
def test_code_of_an_answer(text: str, how: Any, code: str | None) -> None:
    assert extract_code(text, how) == code


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="score must be one of all, share"):
        CodeTests(score="most")  # pyrefly: ignore[bad-argument-type]
