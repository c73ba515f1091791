"""Answers that are run, and answers that a solver works with."""

from __future__ import annotations

import math

from tests.configs.paper_answers import Answer
from tests.configs.paper_answers.scripted_judges import ScriptedJudge

PAIRS = {"tests": {"inputs": ["4", "5"], "outputs": ["8", "10"]}}
DOUBLES, EIGHT, BROKEN = "print(2 * int(input()))", "print(8)", "print(int(input()"


def program(code: str) -> str:
    return f"So:\n```python\n{code}\n```"


def faster(code: str) -> str:
    return f"<thinking>so</thinking><solution>\n{program(code)}\n</solution>"


def problem(steps: int, text: str) -> str:
    plan = " ".join(f"Step {k}: so." for k in range(1, steps + 1))
    return f"<rationale>{plan}</rationale><problem>{text}</problem>"


RUN: dict[str, list[Answer]] = {
    "rest-rl": [
        (PAIRS, program(DOUBLES), 9, 1.0),
        (PAIRS, program(EIGHT), 9, 0.5),
        (PAIRS, program(BROKEN), 9, 0.0),
        (PAIRS, DOUBLES, 9, 0.0),
    ],
    "drive": [
        (PAIRS, program(DOUBLES), 9, 1.0),
        (PAIRS, program(EIGHT), 9, 0.0),
        (PAIRS, program(BROKEN), 9, 0.0),
    ],
    "tikzilla": [({"picture": "none.png"}, "There is no figure in this text.", 9, -0.5)],
    "afterburner": [
        (PAIRS | {"reference": DOUBLES}, faster(EIGHT), 9, 0.2),
        (PAIRS | {"reference": DOUBLES}, program(BROKEN), 9, 0.0),
    ],
}

SHOP = {
    "query": "select a from t where b = 'y'",
    "schema": "create table t(a, b); insert into t values (1, 'x'), (2, 'y')",
}


def query_answer(query: str) -> str:
    return f"<think>so</think><answer>{query}</answer>"


QUERIES: dict[str, list[Answer]] = {
    "reasoning-sql": [  # the judge says yes with 0.9; four words of seven, all of them right: exp(1 - 7 / 4)
        (SHOP, query_answer("select a from t where b = 'y'"), 9, 3 + 2 * 0.9 + 4),
        (SHOP, query_answer("select a from t"), 9, 2 * 0.9 + 1 + 0.5 + math.exp(-0.75) + 1),
        (SHOP, "select", 9, 0.0),
    ],
    "cognisql-r1-zero": [
        (SHOP, query_answer("select 2"), 9, 3.5),
        (SHOP, "So: " + query_answer("select 2"), 9, 2.5),
        (SHOP, query_answer("select 3"), 9, 1.5),
        (SHOP, "select 2", 9, 0.0),
    ],
}

ZEBRA = {"header": ["House", "Pet"], "rows": [["1", "cat"], ["2", "dog"]]}

MIXED: list[Answer] = [
    ({"math_answer": "1/2"}, "so \\boxed{0.5}", 9, 1.0),
    ({"math_answer": "1/2"}, "so \\boxed{2}", 9, 0.0),
    (PAIRS, program(DOUBLES), 9, 1.0),
    (PAIRS, program(EIGHT), 9, 0.0),
    ({"stem_answer": "8,645.09"}, "\\boxed{8645.09}", 9, 0.9),
    ({"stem_answer": "8,645.09"}, "8645.09", 9, 0.0),
    ({"table_answer": "1200"}, "\\boxed{1200}", 9, 1.0),
    ({"order": ["owl", "hawk"]}, "<answer>['Owl', 'hawk']</answer>", 9, 1.0),
    ({"order": ["owl", "hawk"]}, "<answer>['hawk', 'owl']</answer>", 9, 0.0),
    ({"word": "Node"}, "<answer>node</answer>", 9, 1.0),
    ({"grid": [[1, 0], [0, 1]]}, "<answer>[[1, 0], [0, 1]]</answer>", 9, 1.0),
    ({"grid": [[1, 0], [0, 1]]}, "<answer>[[1, 0], [1, 1]]</answer>", 9, 0.0),
    ({"zebra": ZEBRA}, '<answer>{"rows": [["1", "cat"], ["2", "cow"]]}</answer>', 9, 0.75),
    ({"output": '{"output": {"result": 42}}'}, '```json\n{"output": {"result": 42}}\n```', 9, 1.0),
]
"""Rows of each kind; the judge says yes with 0.9."""

REFUSED: dict[str, list[Answer]] = {
    "codev-r1": [  # no design is run: no tags, no code in them, a task that writes
        ({"testbench": "module testbench; endmodule"}, "module top; endmodule", 9, 0.0),
        (
            {"testbench": "module testbench; endmodule"},
            '<think>so</think><answer>module top; initial $display("All tests passed."); endmodule</answer>',
            16384,
            -1.0,
        ),
    ],
}

ROCK = {"question": "Which rock is it?", "answer": "A"}

SOLVED: dict[str, ScriptedJudge] = {
    "mathsmith": ScriptedJudge(
        says=lambda question: "<think>" + "x" * 65536 + ("</think>\\boxed{7}" if "sum" in question else "</think>none"),
        answers=[
            ({}, problem(5, "the sum"), 9, 1.0 + 0.35 + 0.3),
            ({}, problem(2, "a puzzle"), 9, 0.7 + 0.3 * 2 / 5 + 0.35),
            ({}, problem(7, "a puzzle"), 9, 0.7 + 0.3 * 3 / 5 + 0.35),
            ({}, "<problem>the sum</problem>", 9, 0.0),
        ],
    ),
    "rlvr-geometric-caption-synthesis": ScriptedJudge(  # 0.3 of likeness, 0.63 for a solver that is right
        says=lambda question: "\\boxed{5.00}" if "3 and 4" in question.partition("Problem:")[0] else "\\boxed{4}",
        answers=[
            (
                {"caption": "a right triangle with sides 3 and 4", "question": "hypotenuse?", "answer": 5},
                "A right triangle with sides 3 and 4.",
                9,
                0.93,
            ),
            ({"caption": "a right triangle", "question": "hypotenuse?", "answer": 5}, "A right triangle.", 9, 0.3),
            ({"caption": "a right triangle", "question": "hypotenuse?", "answer": 5}, "Circles meet.", 9, 0.0),
        ],
    ),
    "doge": ScriptedJudge(  # 0.9 for a solver right with the analysis, all four times here, 0.1 for the form
        says=lambda question: "\\boxed{A}" if "basalt" in question.partition("analysis")[2] else "\\boxed{B}",
        answers=[
            (ROCK, "<think>dark</think>It is basalt.", 9, 1.0),
            (ROCK, "It is basalt.", 9, 0.9),
            (ROCK, "<think>light</think>It is chalk.", 9, 0.1),
            (ROCK, "It is chalk.", 9, 0.0),
        ],
    ),
}

ELSEWHERE = {*RUN, *QUERIES, *REFUSED, *SOLVED, "rlmt", "guru"}
