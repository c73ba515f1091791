"""Answers to single tasks: mazes, tools, paths, beams, orders of clips."""

from __future__ import annotations

import json
import math
from typing import Any

from tests.configs.paper_answers import Answer

REGIONS: dict[str, Any] = {
    "image_caption": "a cat sits on the mat",
    "bboxs": [[0, 0, 50, 100], [50, 0, 100, 50]],
    "possible_answers": ["a cat", "cat"],
    "original_size": [560, 560],  # which 28 divides and the limits hold: the model sees it as it is
}
TOOLS: dict[str, Any] = {
    "answer": [{"name": "search", "parameters": {"query": "cats", "n": 3}}],
    "tags": ["think", "tool_call"],
}
PATH = [[0.1, 0.2], [0.4, 0.2], [0.4, 0.6]]
FURTHEST = math.sqrt(2) + 0.25 * math.pi + 0.1 * math.log(10)
TABLE = "<table><thead><tr><th>a</th></tr></thead><tr><td>1</td><td>2</td></tr></table>"
PARTS = "<understanding>a</understanding><facts>b</facts><plan>c</plan>"
GRAPH = {"answer": "B", "paths": [["insulin", "lowers", "glucose"], ["glucose", "is in", "blood"]]}


MOVES = "<|up|><|up|><|left|>"
REPORT: dict[str, Any] = {"answer": {"name": "Lung Test", "items": [{"name": "FEV1", "result": "1.61"}]}}
PAGE: dict[str, Any] = {"answer": "7 May", "box": [0, 0, 100, 50], "original_size": [560, 560]}


SEARCHED = {"kind": "type_and_submit", "field": "search", "typed": "cats"}


def did(kind: str, name: str | None = None, text: str | None = None) -> str:
    answer = "".join(f"<{tag}>{value}</{tag}>" for tag, value in (("name", name), ("text", text)) if value is not None)
    return f"<rationale>so</rationale><kind>{kind}</kind>{answer}"


def tagged(answer: str) -> str:
    return f"<think>so</think><answer>{answer}</answer>"


def read(box: list[int], answer: str) -> str:
    parts = f"<question>When?</question><region>{box}</region><answer>{answer}</answer>"
    return f"<think>so</think>{parts}"


def looked(caption: str, boxes: Any, answer: str) -> str:
    return f"<caption>{caption}</caption>\n<bbox>{json.dumps(boxes)}</bbox>\n<answer>{answer}</answer>"


def called(**parameters: Any) -> str:
    return f"<think>so</think>\n<tool_call>\n{json.dumps({'name': 'search', 'parameters': parameters})}\n</tool_call>"


def put(output: Any) -> str:
    return f"<think>so</think><output>{json.dumps(output)}</output>"


def refined(thought: str, answer: int, confidence: str) -> str:
    closing = f"<final_answer>\\boxed{{{answer}}}</final_answer><self_assessment>{confidence}</self_assessment>"
    return f"{PARTS}<think>{thought}</think>{closing}"


ELSEWHERE = {"extract-0"}
"""Whose texts an encoder compares: tests/rewards/test_tasks.py, with a small one."""

ROUTED = {"vla-r1", "videossr", "shop-r1"}

ANSWERS: dict[str, list[Answer]] = {
    "satori-r1": [
        (REGIONS, looked("A cat sits on the mat.", REGIONS["bboxs"], "cat"), 9, 4.0),
        (REGIONS, looked("dogs", [[200, 200, 300, 300]], "dog"), 9, 1.0),
        # 5,000 of 7,500 pixels
        (REGIONS, looked("a cat sits on the mat", [[0, 0, 50, 100]], "a cat"), 9, 3 + 2 / 3),
        (REGIONS, "<answer>cat</answer>", 9, 1.0),
    ],
    "toolrl": [  # 3 more than between -3 and 3, and 1 for the form
        (TOOLS, called(query="cats", n=3), 9, 7.0),
        (TOOLS, called(query="cats"), 9, 6 * (1 + 0.5 + 1) / 4 + 1),
        (TOOLS, called(query="cats", n=3).replace("search", "find"), 9, 1.0),
        (TOOLS, called(query="cats", n=3).partition("\n")[2], 9, 6.0),
        (TOOLS, "<think>so</think><answer>no</answer>", 9, 0.0),
    ],
    "alphamaze": [
        ({"answer": "<|up|><|left|>"}, "<think>\nso\n</think>\n<|up|><|left|>", 9, 0.4 + 1 + 0.25),
        ({"answer": "<|up|><|up|><|left|>"}, "so\n</think>\n<|up|> <|up|> <|left|>", 9, 0.6 + 1 + 0.125),
        ({"answer": "<|up|><|left|>"}, "<think>\nso\n</think>\n<|up|>", 9, 1.25),
        ({"answer": "<|up|><|left|>"}, "<think>so</think> up, left", 9, 0.0),
        ({"answer": "<|up|><|left|>"}, "<|up|><|left|>", 9, 0.0),
    ],
    "vla-r1": [  # for boxes 0.45 more in the code
        ({"box": [0.2, 0.2, 0.6, 0.6]}, put([0.2, 0.2, 0.6, 0.6]), 9, 0.45 + 0.1),
        ({"box": [0.2, 0.2, 0.6, 0.6]}, put([0.2, 0.2, 0.6, 0.4]), 9, 0.45 / 2 + 0.1),
        ({"box": [0.2, 0.2, 0.6, 0.6]}, "there", 9, -0.45),
        ({"trajectory": PATH}, put(PATH), 9, 1.0),
        ({"trajectory": PATH}, put([[x + 0.5, y] for x, y in PATH]), 9, 0.9 * (1 - 0.5 / FURTHEST) + 0.1),
        ({"trajectory": PATH}, f"<output>{PATH}</output>", 9, 0.9),
    ],
    "videossr": [
        ({"span": [14.0, 26.0]}, "14.0-26.0", 9, 1.0),
        ({"span": [14.0, 26.0]}, "20-32", 9, 1 / 3),
        ({"counts": [3, 1, 4]}, "3,1,2", 9, 2.5 / 3),
        ({"counts": [3, 1, 4]}, "3,1", 9, 0.0),
        ({"order": "341562"}, "341562", 9, 1.0),
        ({"order": "341562"}, "341526", 9, 1 - 2 / 18),
    ],
    "format-length-surrogate-reward": [  # of 3,072 tokens half are best
        ({}, "<think>so</think> \\boxed{4}", 1536, 2.0),
        ({}, "so \\boxed{4}", 1536, 1.5),
        ({}, "so \\boxed{4}", 768, 0.5 + 0.75),
        ({}, "so \\boxed{4}", 3072, 0.5 - 1),
        ({}, "<think>so</think> four", 1536, 0.0),
        ({}, "four", 2304 + 384, -0.125),  # 1 - 2 (3 / 4)^2
    ],
    "beamperl": [
        ({"solution": ["0.1P", "1.9P"]}, "so\n</think>\nR_A is \\boxed{0.1P, \\frac{19}{10}P}", 9, 1.0),
        ({"solution": ["0.1P", "1.9P"]}, "so\n</think>\n\\boxed{0.1P, 1.8P}", 9, 0.333),
        ({"solution": ["0.1P", "1.9P"]}, "so</think> \\boxed{1.9P, 0.1P}", 9, 0.667),
        ({"solution": ["0.1P", "1.9P"]}, "so \\boxed{1.9P, 0.1P}", 9, 0.0),
    ],
    "kg-path-reward": [  # 1 more than 0.1 and -1
        (GRAPH, "<think>insulin lowers sugar</think><answer>B</answer>", 9, 1.1 + 1.2 * 0.5 + 0.3),
        (GRAPH, "<think>insulin lowers the glucose of the blood</think><answer>B</answer>", 9, 1.1 + 1.5),
        (GRAPH, "<think>no idea at all</think><answer>A</answer>", 9, 0.0),
        (GRAPH, "<answer>A</answer>", 9, 0.0),
    ],
    "refine": [
        ({"answer": "4"}, refined("as <facts> says", 4, "Confidence: 9/10"), 9, (1 + 1 + 1 / 3 + 0.99) / 4),
        ({"answer": "4"}, refined("so", 5, "Confidence: 9/10"), 9, (0 + 1 + 0 + 0.19) / 4),
        ({"answer": "4"}, refined("so", 4, "sure"), 9, (1 + 1 - 0.25) / 4),
        ({"answer": "4"}, "\\boxed{4}", 9, (1 - 0.25) / 4),
    ],
    "outcome-based-rl-for-forecasting": [  # 1 more than the negative square
        ({"answer": True}, "<think>so</think><answer>0.7</answer>", 9, 0.91 + 0.1),
        ({"answer": False}, "<think>so</think><answer>0.7</answer>", 9, 0.51 + 0.1),
        ({"answer": False}, "<answer>70%</answer>", 9, 0.0),  # held at 1
        ({"answer": True}, "<think>so</think><answer>likely</answer>", 9, 0.1),
    ],
    "ariadne": [  # right: twice 3 moves for each of 2 runs
        ({"solution": MOVES}, f"<think>so</think>{MOVES}", 9, 12 + 0.2),
        ({"solution": MOVES}, "<think>so</think><|up|><|up|><|down|>", 9, 2 + 0.2),
        ({"solution": MOVES}, f"so</think>{MOVES}<|up|>", 9, 3 + 0.15),
        ({"solution": MOVES}, MOVES, 9, 0.0),
    ],
    "medical-vie-rlvr": [
        (REPORT, tagged(json.dumps(REPORT["answer"])), 9, 2.0),
        (REPORT, tagged('{"name": "Lung Test"}'), 9, 0.5 + 0.5 / 3 + 1),
        (REPORT, tagged(json.dumps(REPORT["answer"] | {"age": 6, "sex": "f", "day": 1})), 9, 0.5 / 2 + 0.5 + 1),
        (REPORT, json.dumps(REPORT["answer"]), 9, 0.0),
    ],
    "docthinker": [
        (PAGE, read([0, 0, 100, 50], "7 May"), 9, 3.0),
        (PAGE, read([0, 0, 100, 20], "7 May"), 9, 2.0),
        (PAGE, read([0, 0, 100, 50], "8 May"), 9, 2.0),
        (PAGE, tagged("7 May"), 9, 1.0),
    ],
    "shop-r1": [  # 0.005 for a certainty of 1
        ({"kind": "terminate"}, did("terminate"), 9, 0.5 + 0.3 + 0.005),
        ({"kind": "click", "clicked": "add to cart"}, did("click", "add to cart"), 9, 1000 + 0.5 + 0.3 + 0.2 + 0.005),
        ({"kind": "click", "clicked": "add to cart"}, did("terminate"), 9, 0.5 + 0.005),
        (SEARCHED, did("type_and_submit", "search", "cats"), 9, 1000 + 0.5 + 0.3 + 0.1 + 0.1 + 0.1 + 0.005),
        # one word of two: precision 1, recall a half
        (SEARCHED | {"typed": "red cats"}, did("type_and_submit", "search", "cats"), 9, 2000 / 3 + 1.1 + 0.005),
        (SEARCHED, did("type_and_submit"), 9, 0.5 + 0.3 + 0.005),
    ],
    "table-r1": [
        ({"answer": TABLE}, f"<answer>{TABLE}</answer>", 9, 1.0),
        ({"answer": TABLE}, "<answer><table><tr><td>1<td>2</table></answer>", 9, 1 - 3 / 6),  # thead, its row and cell
        ({"answer": TABLE}, f"<answer>{TABLE.replace('>2<', '>3<')}</answer>", 9, 1 - 1 / 6),
        ({"answer": TABLE}, TABLE, 9, 0.0),
    ],
    "lav-cot": [
        (
            {"answer": "gato", "lang": "Spanish", "gt_counts": 4},
            "<think>Spanish <count>4</count></think><answer>gato</answer>",
            9,
            1.0,
        ),
        (
            {"answer": "gato", "lang": "Spanish", "gt_counts": 4},
            "<think>English <count>3</count></think><answer>pato</answer>",
            9,
            0.25 * (1 + 0 + 0.75 + 0.75),
        ),
    ],
}
