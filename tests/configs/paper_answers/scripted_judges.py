"""Answers that a model judges: its replies are scripted, and a local server sends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.configs.paper_answers import Answer


def tagged(thought: str, **tags: str) -> str:
    return f"<think>{thought}</think>" + "".join(f"<{name}>{text}</{name}>" for name, text in tags.items())


def solved(answer: int, thought: str = "so") -> str:
    return f"<think>\n{thought}\n</think>\n<answer>\n\\boxed{{{answer}}}\n</answer>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedJudge:
    """Answers with their rewards, and the replies of their judge.

    Attributes:
        answers: as in ``ANSWERS``.
        says: the judge's reply to a question.
        first: how likely its reply begins with each token, where that is asked for.
        run: of a series, whose rewards these are.
    """

    answers: Sequence[Answer]
    says: Callable[[str], str] = str
    first: Callable[[str], Mapping[str, float]] | None = None
    run: int = 0


def says_yes_where(*words: str) -> Callable[[str], str]:
    """Verdicts by the words of a criterion, which follows the response."""
    return lambda question: (
        f"Verdict: {'yes' if any(w in question.rpartition('</response>')[2] for w in words) else 'no'}"
    )


VISUAL_FACTS = {"answer": "7", "visual_key_info": ["angle of 30", "side of 5"]}
RUBRIC: dict[str, Any] = {
    "rubric": [
        {"criterion": "names rest", "weight": 5},
        {"criterion": "names water", "weight": 3},
        {"criterion": "is rude", "weight": -2},
    ]
}

SCREEN = {"answer": "0", "suggestion": "Click the search bar"}
FAULTS = {"normal": "no", "kinds": ["abnormal human anatomy"], "details": ["hand structure deformity"]}


def advised(score: int, suggestion: str) -> str:
    return f"<thinking>so</thinking><score>{score}</score><suggestion>{suggestion}</suggestion>"


def labeled(thought: str, normal: str, kinds: str, details: str) -> str:
    return tagged(thought, normal=normal, kinds=kinds, details=details)


CAKE: dict[str, Any] = {
    "rubric": [
        {"criterion": "says 24 CARROT CAKE", "weight": 3},
        {"criterion": "names the colour", "weight": 2},
        {"criterion": "is fluent", "weight": 1},
    ]
}


def anchored(question: str) -> str:
    """A judge of tiers, and of what flatters: the one says so of the question, the other of itself."""
    response, _, criterion = question.partition("</response>")
    if "Verdict" not in criterion:
        return f"It has some. Score: {(5 if 'storm' in response else 3) if 'an image' in criterion else 2}"
    flatters = "What a question" if "the question" in criterion else "my best"
    return f"Verdict: {'no' if flatters in response else 'yes'}"


ANCHORS = {"rubric": [{"criterion": "has an image", "weight": 3}, {"criterion": "is warm", "weight": 1}]}
VERDICTS = {
    "overflow": "CORRECT",
    "race": "PARTIALLY CORRECT",
    "safe": "INCORRECT",
    "other": "UNKNOWN",
    "both": "INCONSISTENT",
}
GOOD = ("CORRECT", "UNKNOWN")


def watching(question: str) -> str:
    """A judge of what was seen: the observation is in the captions, leads to the answer, and the answer is right."""
    context, _, response = question.partition("<response>")
    if "What can be seen" in context:
        return "1" if "a red car" in context and "<observation>" in response else "0"
    return "yes" if ("red car" in response if "alone" in response else "red" in response) else "no"


SCRIPTED_JUDGES: dict[str, ScriptedJudge] = {
    "timemaster": ScriptedJudge(
        says=lambda question: "0.6" if "see a neurologist" in question else "none",
        answers=[
            ({"answer": "Myopathy"}, tagged("weak", **{"class": "myopathy", "extension": "see a neurologist"}), 9, 1.3),
            ({"answer": "Myopathy"}, tagged("weak", **{"class": "Myopathy"}), 9, 1.0),
            ({"answer": "Myopathy"}, tagged("well", **{"class": "healthy", "extension": "see a neurologist"}), 9, 0.1),
            ({"answer": "Myopathy"}, "it is myopathy", 9, 0.0),
        ],
    ),
    "fapo": ScriptedJudge(  # the code's 1, 0 and -1, and 1 more
        says=lambda question: "Step 3 guesses: \\boxed{3}" if "I guess" in question else "All is right. \\boxed{-1}",
        answers=[
            ({"answer": "7"}, "3 + 4 \\boxed{7}", 9, 2.0),
            ({"answer": "7"}, "I guess \\boxed{7}", 9, 1.0),
            ({"answer": "7"}, "I guess \\boxed{8}", 9, 0.0),
            ({"answer": "7"}, "3 + 4 \\boxed{7}", 6144, 1.5),  # half of the margin past 4,096
        ],
    ),
    "perception-r1": ScriptedJudge(  # 0.9 right, 0.1 form, 0.7 times the share of the facts
        says=lambda question: str(
            int(question.partition("picture: ")[2].split("\n")[0] in question.partition("</response>")[0])
        ),
        answers=[
            (VISUAL_FACTS, solved(7, "angle of 30, side of 5"), 9, 1.7),
            (VISUAL_FACTS, solved(7, "angle of 30"), 9, 1.35),
            (VISUAL_FACTS, solved(7), 9, 1.0),
            (VISUAL_FACTS, solved(8, "angle of 30, side of 5"), 9, 0.8),
        ],
    ),
    "rubrichub": ScriptedJudge(
        says=says_yes_where("rest", "rude"),
        answers=[(RUBRIC, "Rest, you fool.", 9, (5 - 2) / (5 + 3)), (RUBRIC, "Rest, you fool.", 6144, 0.375 - 0.5)],
    ),
    "rubric-anchors": ScriptedJudge(  # scores of 5 or 3 and of 2 are 1 or 1/2 and 1/4, of weights 3 and 1
        says=anchored,
        answers=[
            (ANCHORS, "A storm left; the storm stayed.", 9, (3 + 0.25) / 4),
            (ANCHORS, "It was bad.", 9, (1.5 + 0.25) / 4),
            (ANCHORS, "What a question! A storm left.", 9, 0.0),
            (ANCHORS, "A storm left. This is my best line.", 9, 0.0),
        ],
    ),
    "rlvr-soft-verifier": ScriptedJudge(
        first=lambda question: (
            {"1": 0.6, "0": 0.2, "Yes": 0.2} if "iron" in question.partition("<response>")[2] else {"0": 0.9}
        ),
        answers=[({"answer": "iron"}, "It is iron.", 9, 0.75), ({"answer": "iron"}, "It is lead.", 9, 0.0)],
    ),
    "compassverifier": ScriptedJudge(
        says=lambda question: {
            "7": "A",
            "8": "B",
            "9": "Analysis: A is tempting.\nFinal Judgment: \\boxed{C} - INVALID",
        }[question.partition("<candidate>\n")[2][0]],
        answers=[({"answer": "7"}, "7", 9, 1.0), ({"answer": "7"}, "8", 9, 0.0), ({"answer": "7"}, "9", 9, 0.0)],
    ),
    "gui-critic-r1": ScriptedJudge(
        says=lambda question: (
            "Verdict: yes" if "the search bar" in question.partition("<suggested>")[2] else "Verdict: no"
        ),
        answers=[
            (SCREEN, advised(0, "Click the search bar."), 9, 1.0),
            (SCREEN, advised(0, "Go back."), 9, 0.9),
            (SCREEN, advised(1, "Click the search bar."), 9, 0.2),
        ],
    ),
    "magicmirror": ScriptedJudge(  # 8 for the form, 4 for the verdict, 2 and 1 for kinds and details
        says=lambda question: "no" if "all is well" in question else "yes",
        answers=[
            (FAULTS, labeled("six fingers", "no", "abnormal human anatomy", "hand structure deformity"), 9, 15.0),
            (
                FAULTS,
                labeled(
                    "six fingers", "no", "abnormal human anatomy", "hand structure deformity, foot structure deformity"
                ),
                9,
                14 + 0.3,
            ),
            (FAULTS, labeled("six fingers", "yes", "abnormal animal anatomy", "none"), 9, 8.0),
            (FAULTS, labeled("all is well", "no", "abnormal human anatomy", "hand structure deformity"), 9, 0.0),
        ],
    ),
    "argen": ScriptedJudge(  # 0.3 * 1 + 0.4 * 0.5 + 0.3 * 0.25
        says=lambda question: f"Score: {1 if 'harm' in question else 0.5 if 'human health' in question else 0.25}",
        answers=[({}, "Drink water.", 9, 0.575)],
    ),
    "rewatch-r1": ScriptedJudge(  # right (1 + seen + enough) + form
        says=watching,
        answers=[
            (
                {"answer": "red", "captions": "a red car"},
                tagged("<observation>a red car</observation>", answer="red"),
                9,
                4.0,
            ),
            (
                {"answer": "red", "captions": "a car"},
                tagged("<observation>a red car</observation>", answer="red"),
                9,
                3.0,
            ),
            ({"answer": "red", "captions": "a red car"}, tagged("by guess", answer="red"), 9, 2.0),
            (
                {"answer": "red", "captions": "a red car"},
                tagged("<observation>a red car</observation>", answer="blue"),
                9,
                1.0,
            ),
        ],
    ),
    "rubicap": ScriptedJudge(  # (3 + 1) / (3 + 2 + 1)
        says=lambda question: "no" if "colour" in question else "yes",
        answers=[(CAKE, "A cake says 24 CARROT CAKE.", 9, 2 / 3)],
    ),
    "deepseekmath-v2": ScriptedJudge(
        says=lambda question: (
            f"So. Grade: {0.5 if 'gap' in question.partition('</proof>')[0] else 1}"
            if "<answer>" not in question
            else f"So. Grade: {1 if 'gap: 0.5' in question or 'sound: 1' in question else 0.5}"
        ),
        answers=[
            ({}, "<proof>QED</proof><evaluation>sound: 1</evaluation>", 9, 1.0),
            ({}, "<proof>a gap</proof><evaluation>a gap: 0.5</evaluation>", 9, 0.76 * 0.5 + 0.24),
            ({}, "<proof>a gap</proof><evaluation>all is well: 1</evaluation>", 9, 0.76 * 0.5 + 0.24 * 0.5),
            ({}, "QED", 9, 0.0),
        ],
    ),
    "rlsp": ScriptedJudge(  # 0.8 right, 0.4 in a box, 0.2 of the effort
        says=lambda question: f"It tries. Grade: {0.75 if 'or else' in question.partition('<solution>')[2] else 0.25}",
        answers=[
            ({"answer": "7"}, "3 + 4, or else 4 + 3: \\boxed{7}", 9, 0.8 + 0.4 + 0.15),
            ({"answer": "7"}, "\\boxed{7}", 9, 0.8 + 0.4 + 0.05),
            ({"answer": "7"}, "9, or else 8: \\boxed{8}", 9, 0.4 + 0.15),
            ({"answer": "7"}, "who knows", 9, 0.05),
        ],
    ),
    "veripo": ScriptedJudge(  # 1 right, 0.5 form, 1 where the thought fits the answer
        run=1,
        says=lambda question: "yes" if "runs" in question.partition("<thought>")[2] else "No.",
        answers=[
            ({"answer": "B"}, tagged("the man runs", answer="B"), 9, 2.5),
            ({"answer": "B"}, tagged("the man sits", answer="B"), 9, 1.5),
            ({"answer": "B"}, tagged("the man runs", answer="C"), 9, 1.5),
            ({"answer": "B"}, "<answer>B</answer>", 9, 1.0),
        ],
    ),
    "spectral-policy-optimization": ScriptedJudge(
        says=lambda question: f"Share: {0.75 if 'late slip' in question else 0.25}",
        answers=[({"answer": "7"}, "a late slip \\boxed{8}", 9, 0.75), ({"answer": "7"}, "\\boxed{9}", 9, 0.25)],
    ),
    "listener-rewarded-grpo": ScriptedJudge(
        first=lambda question: {"yes": 0.8, "no": 0.2} if "sharper" in question else {"Yes": 0.1, "No": 0.9},
        answers=[
            ({"answer": "2"}, tagged("the second is sharper", answer="2"), 9, 1 + 0.5 + 0.4),
            ({"answer": "2"}, tagged("who knows", answer="2"), 9, 1 + 0.5 + 0.05),
            ({"answer": "2"}, tagged("the second is sharper", answer="1"), 9, 1 + 0.4),
        ],
    ),
    "rlbff": ScriptedJudge(
        first=lambda question: {"Yes": 0.4, "No": 0.1} if "this principle: it is short?" in question else {},
        answers=[({"principle": "it is short"}, "Rest.", 9, 0.8)],
    ),
    "rlpt": ScriptedJudge(
        says=lambda question: "yes" if "It rained." in question.partition("<prediction>")[2] else "No.",
        answers=[
            ({"segment": "Rain fell."}, "so <segment>It rained.</segment>", 9, 1.0),
            ({"segment": "Rain fell."}, "so <segment>It snowed.</segment>", 9, 0.0),
            ({"segment": "Rain fell."}, "It rained.", 9, 0.0),
        ],
    ),
    "qwen3-korean-rl": ScriptedJudge(  # 1 right, 0.2 form, 0.2 Korean
        says=lambda question: (
            "yes"
            if ("합은" in question if "<thoughts>" in question else "7" in question.partition("<response>")[2])
            else "no"
        ),
        answers=[
            ({"answer": "seven"}, "<think>합은</think>7", 9, 1.4),
            ({"answer": "seven"}, "<think>the sum is</think>7", 9, 1.2),
            ({"answer": "seven"}, "<think>합은</think>8", 9, 0.4),
            ({"answer": "seven"}, "7", 9, 1.0),
            ({"answer": "seven"}, "<think>합은</think>7", 7680, 0.9),
        ],
    ),
    "vd-post-training-study": ScriptedJudge(
        says=lambda question: (
            "The cause is named. Verdict: "
            + next(
                verdict
                for word, verdict in VERDICTS.items()
                if word in question.partition("<analysis>")[2].partition("</analysis>")[0]
            )
        ),
        answers=[
            ({"truth": "an overflow"}, f"<think>{word}</think>HAS_VUL", 9, 0.2 + (1 if verdict in GOOD else -1))
            for word, verdict in VERDICTS.items()
        ]
        + [
            ({"truth": "an overflow"}, "<think>overflow</think>HAS_VUL or NO_VUL", 9, 1.0),
            ({"truth": "an overflow"}, "overflow: HAS_VUL", 9, 1.0),
        ],
    ),
}

ANSWERS: dict[str, list[Answer]] = {
    "opv--outcome-based": [  # lambda is 0.5
        ({"answer": 3}, "It divides by 0. \\boxed{3}", 9, 1.0),
        ({"answer": 3}, "\\boxed{5}", 9, 0.25),
        ({"answer": -1}, "\\boxed{-1}", 9, 1.0),
        ({"answer": -1}, "\\boxed{0}", 9, -1.0),
        ({"answer": 0}, "\\boxed{-1}", 9, -1.0),
    ],
}

ELSEWHERE = {*SCRIPTED_JUDGES, "editscore", "medix-r1"}
