"""Answers that a rule verifies."""

from __future__ import annotations

import math

from tests.configs.paper_answers import Answer

SPAN = {"answer": [2.0, 6.0]}
CLICK = {"answer": {"action": "click", "bbox": [10, 20, 30, 40]}, "original_size": [80, 80], "resized_size": [80, 80]}
SCROLL = {"answer": {"action": "scroll"}, "original_size": [80, 80], "resized_size": [80, 80]}
QUARTER = (1 + math.cos(math.pi / 4)) / 2
"""What is left of the cosine after a quarter of the length."""


def tagged(answer: str, thought: str = "so") -> str:
    return f"<think>{thought}</think><answer>{answer}</answer>"


def spelt(start: str, end: str) -> str:
    return tagged(f'{{"start_time": "{start}", "end_time": "{end}"}}')


def solved(answer: int) -> str:
    return f"so\n</think>\n\\boxed{{{answer}}}"


ANSWERS: dict[str, list[Answer]] = {
    "visual-rft": [
        ({"solution": "<answer>Boeing 737-800</answer>"}, tagged("boeing 737-800"), 9, 2.0),
        ({"solution": "Boeing 737-800"}, tagged("Airbus A320"), 9, 1.0),
        ({"solution": "Boeing 737-800"}, "<answer>Boeing 737-800</answer>", 9, 1.0),
    ],
    "cls-rl": [
        ({"solution": "<answer>Forest</answer>"}, tagged("forest"), 9, 2.0),
        ({"solution": "<answer>Forest</answer>"}, tagged("River"), 9, 1.0),
    ],
    "cls-rl-no-thinking": [
        ({"solution": "<answer>Forest</answer>"}, "Forest", 9, 1.0),
        ({"solution": "<answer>Forest</answer>"}, "forest", 9, 0.0),
        ({"solution": "<answer>Forest</answer>"}, "It is Forest", 9, 0.0),
    ],
    "ui-r1": [
        (CLICK, tagged('{"action": "click", "coordinate": [20, 30]}'), 9, 3.0),
        (CLICK, tagged('{"action": "click", "coordinate": [20, 50]}'), 9, 2.0),  # outside the box
        (CLICK, tagged('{"action": "scroll"}'), 9, 1.0),
        (SCROLL, tagged('{"action": "scroll"}'), 9, 3.0),  # without a place the type is all
    ],
    "crowdvlm-r1": [  # 1.5 less the relative error below a half, and 1 for the form
        ({"answer": 100}, tagged("100"), 9, 2.5),
        ({"answer": 100}, tagged("90"), 9, 2.4),
        ({"answer": 100}, tagged("149"), 9, 2.01),
        ({"answer": 100}, tagged("50"), 9, 1.0),
    ],
    "med-r1": [
        ({"solution": "<answer> C </answer>"}, tagged("C"), 9, 2.0),
        ({"solution": "<answer> C </answer>"}, tagged("A"), 9, 1.0),
    ],
    "medvlthinker": [
        ({"answer_label": "B"}, tagged("B"), 9, 1.0),
        ({"answer_label": "B"}, tagged("B. the left lobe"), 9, 1.0),
        ({"answer_label": "B"}, tagged("A"), 9, 0.0),
        ({"answer_label": "B"}, "<answer>B</answer>", 9, 0.0),  # right, without a thought
    ],
    "medvlsynther": [
        ({"answer_label": "B"}, tagged("B"), 9, 1.0),
        ({"answer_label": "B"}, "<answer>B</answer>", 9, 0.0),
    ],
    "temporal-r1": [  # 2 to 6 and 4 to 8 share 2 seconds of 6
        (SPAN, spelt("2.0", "6.0"), 9, 1.0),
        (SPAN, spelt("4.0", "8.0"), 9, 0.5 / 3 + 0.5),
        (SPAN, spelt("7", "9"), 9, 0.5),
        (SPAN, tagged('{"start_time": 2.0, "end_time": 6.0}'), 9, 0.5),  # numbers must be quoted
    ],
    "videochat-r1": [
        (SPAN, tagged("2.0 to 6.0"), 9, 2.0),
        (SPAN, tagged("4.0 to 8.0"), 9, 1 / 3 + 1),
        (SPAN, "2.0 to 6.0", 9, 0.0),
    ],
    "ton": [
        ({"solution": "<answer> 3 </answer>"}, tagged("3"), 9, 2.0),
        ({"solution": "<answer> 3 </answer>"}, tagged("3", thought="\n\n"), 9, 2.0),
        ({"solution": "<answer> 3 </answer>"}, tagged("4"), 9, 1.0),
    ],
    "unifiedreward-think": [
        ({"solution": "Image 1 is better"}, tagged("Image 1 is better"), 9, 2.0),
        ({"solution": "Image 1 is better"}, tagged("Image 2 is better"), 9, 1.0),
    ],
    "open-rs": [  # 1 for the form, twice the cosine: right from 1 to 0.5, wrong from 0 to -0.5, over 3,584 tokens
        ({"solution": "$4$"}, solved(4), 896, 1 + 2 * (0.5 + 0.5 * QUARTER)),
        ({"solution": "$4$"}, solved(4), 3584, 1 + 2 * 0.5),
        ({"solution": "$4$"}, solved(5), 1792, 1 - 2 * 0.25),
        ({"solution": "$4$"}, "\\boxed{4}", 1792, 2 * 0.75),
    ],
    "peft-for-rlvr-study": [
        ({"solution": "34"}, "<think>two of 17</think> so \\boxed{34}", 9, 1.0),
        ({"solution": "34"}, "<think>34</think> so \\boxed{35}", 9, 0.0),
    ],
    "1-shot-rlvr": [
        ({"answer": "12.8"}, "the velocity is \\boxed{12.8}", 9, 1.0),
        ({"answer": "12.8"}, "the velocity is \\boxed{16}", 9, 0.0),
    ],
    "warm-up-before-rlvr": [  # 2 more than -2, -1, -0.5 and 2
        ({"answer": "4"}, "so \\boxed{4}", 9, 0.0),
        ({"answer": "4"}, "so</think><answer>4</answer>", 9, 1.0),
        ({"answer": "4"}, "so</think><answer>\\boxed{5}</answer>", 9, 1.5),
        ({"answer": "4"}, "so \\boxed{5}</think><answer>\\boxed{4}</answer>", 9, 4.0),
    ],
    "bleuberi": [
        ({"references": ["The cat sat on the mat."]}, "The cat sat on the mat.", 9, 1.0),
        ({"references": ["The cat sat on the mat."]}, "Dogs bark loudly every night.", 9, 0.0),
    ],
    "sallm-grpo": [  # 6/7, 5/6, 4/5 and 3/4 of the 1- to 4-grams: the fourth root of 3/7
        ({"answer": "The cat sat on the mat."}, "The cat sat on the mat today.", 9, (3 / 7) ** 0.25),
        ({"answer": "The cat sat on the mat."}, "Dogs bark loudly every night.", 9, 0.0),
    ],
}
