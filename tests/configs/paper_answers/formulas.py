"""Proofs whose rewards need no checker; questions of several kinds about images."""

from __future__ import annotations

from tests.configs.paper_answers import Answer

PROOF = {"answer": 'lemma "x = x" oops'}


def proved(proof: str, between: str = "\n") -> str:
    inner = [f"<{tag}>{between}{text}{between}</{tag}>" for tag, text in (("reasoning", "so"), ("answer", proof))]
    return between.join(inner)


def thought(answer: str) -> str:
    return f"<think>so</think><answer>{answer}</answer>"


ANSWERS: dict[str, list[Answer]] = {
    "ntp-for-verification": [  # 0.25 for each form and 2 for the known proof; nothing of it is checked, as it gives up
        (PROOF, proved('lemma "x = x" oops'), 9, 2.5),
        (PROOF, proved('lemma "x = x" oops', between=""), 9, 2.25),
        (PROOF, proved('lemma "x = x" sorry'), 9, 0.5),
        (PROOF, "It is plain.", 9, 0.0),
    ],
    "verltool": [
        ({"answer": "7"}, "```python\nprint(3 + 4)\n```\n7\nSo \\boxed{7}.", 9, 1.0),
        ({"answer": "7"}, "So \\boxed{8}.", 9, 0.0),
    ],
    "modomodo": [  # 2 for what is right or overlaps, half of a box a half, and 1 for the form
        ({"answer": "B"}, thought("B"), 9, 3.0),
        ({"answer": "B"}, thought("C"), 9, 1.0),
        ({"answer": "B"}, "B", 9, 0.0),
        ({"boxes": [[0, 0, 100, 100]]}, thought("[0, 0, 100, 50]"), 9, 2.0),
    ],
    "vlaa-thinking": [
        ({"number": "3"}, thought("3"), 9, 1.0),
        ({"number": "3"}, "3", 9, 0.0),
        ({"letter": "A"}, thought("A"), 9, 1.0),
        ({"letter": "A"}, thought("B"), 9, 0.0),
        ({"expression": "y=|x+9|"}, thought(r"\boxed{y=|x+9|}"), 9, 1.0),
        ({"expression": "y=|x+9|"}, thought(r"\boxed{y=|x|}"), 9, 0.0),
        ({"box": [0.1, 0.2, 0.7, 0.4]}, thought("[0.1, 0.2, 0.4, 0.4]"), 9, 0.5),
    ],
}

ROUTED = {"modomodo", "vlaa-thinking"}
