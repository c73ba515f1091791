"""Runs of agents: the text is one turn, which is the last one."""

from __future__ import annotations

from tests.configs.paper_answers import Answer

ELSEWHERE = {
    "reex-sql",
    "cove",
    "dreamgym",
    "datarus-r1",
    "meta-bandit-llm-training",
    "smartsnap",
    "codev",
    "mobile-r1",
    "vista",
    "conan",
    "meow-tea-taro",
}
"""Whose rewards read turns: tests/configs/test_agent_papers.py."""

ROUTED = {"tapo"}

CLAIM = {"answer": "SUPPORT", "evidence": ["Oslo_0", "Oslo_3", "Rome_1"]}
UNKNOWN = {"answer": "NOT ENOUGH INFO", "evidence": []}


def solved(answer: str) -> str:
    return f"<think>so</think>\n<code>print(7)</code>\n<answer>{answer}</answer>"


def decided(label: str, *names: str) -> str:
    return (
        f"<plan>a</plan> <think>b</think> <answer><label>{label}</label> {' '.join(f'[[{n}]]' for n in names)}</answer>"
    )


ANSWERS: dict[str, list[Answer]] = {
    "tapo": [  # 1 more for a right form than in the code, where a wrong one is -1; half of the margin is 512 tokens
        ({"answer": "7"}, solved("7"), 9, 2.0),
        ({"answer": "7"}, solved("8"), 9, 1.0),
        ({"answer": "7"}, solved("7"), 1536, 1.5),
        ({"answer": "7"}, f"So {solved('7')}", 9, 0.0),
        ({"answer": "7"}, "<think>so</think><code>7</code>", 9, 0.0),
        ({"answer": "7"}, "<think>so</search><answer>7</answer>", 9, 0.0),
        ({"fact": ["Oslo", "Christiania"]}, solved("oslo"), 9, 2.0),
        ({"fact": "Oslo"}, solved("Olso."), 9, 1.0),  # 3 of 5 characters differ, more than half
        ({"fact": "Bergen"}, solved("Bergem"), 9, 1 + 5 / 6),
        ({"value": 0.5}, solved("0.5004"), 9, 2.0),
        ({"value": 0.5}, solved("0.502"), 9, 1.0),
        ({"estimate": 200}, solved("209"), 9, 2.0),
        ({"estimate": 200}, solved("211"), 9, 1.0),
    ],
    "cosineverifier": [  # 1 for the verdict and 0.1 for the form
        ({"answer": "correct"}, "Both are 7. <answer>correct</answer>", 9, 1.1),
        ({"answer": "correct"}, "<answer>incorrect</answer>", 9, 0.1),
        ({"answer": "incorrect"}, "<answer>It is incorrect.</answer>", 9, 1.0),
        ({"answer": "incorrect"}, "incorrect", 9, 0.0),
    ],
    "veri-r1": [  # 2 for a right label, times 1 or 0.5 by the evidence; the evidence's Jaccard index; 1 for the form
        (CLAIM, decided("SUPPORT", "Oslo_0", "Oslo_3", "Rome_1"), 9, 2 + 1 + 1),
        (CLAIM, decided("SUPPORT", "Oslo_0", "Oslo_3"), 9, 1 + 2 / 3 + 1),
        (CLAIM, decided("SUPPORT", "Oslo_0", "Paris_1"), 9, 0 + 1 / 4 + 1),
        (CLAIM, decided("REFUTE", "Oslo_0", "Oslo_3", "Rome_1", "Rome_2"), 9, 0 + 3 / 4 + 1),
        (UNKNOWN, decided("NOT ENOUGH INFO"), 9, 2 + 0 + 1),
        (UNKNOWN, decided("SUPPORT", "Oslo_0"), 9, 0 + 0 + 1),
        (CLAIM, decided("SUPPORT", "Oslo_0", "Oslo_3", "Rome_1") + "<think>c</think>", 9, 2 + 1),
        (CLAIM, "<think><plan>a</plan></think>" + decided("SUPPORT", "Oslo_0", "Oslo_3", "Rome_1"), 9, 2 + 1),
        (CLAIM, "I do not know.", 9, 0.0),
    ],
}
