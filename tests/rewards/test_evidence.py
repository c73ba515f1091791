"""Rewards for evidence that a conversation collects: submitted results, scored frames, outputs of chosen tools."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from mmgrpo.rewards.judges.call_judge import CallJudge
from mmgrpo.rewards.judges.solvers import Solver
from mmgrpo.rewards.judges.submitted_evidence import SubmittedEvidence
from mmgrpo.rewards.judges.text_judge import TextJudge
from mmgrpo.rewards.judges.tool_choice import ToolChoice
from mmgrpo.rewards.text.answers import ExactMatch
from mmgrpo.rewards.video.frame_evidence import FrameEvidence

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.samples import ToolResult
from mmgrpo.types import Sample
from tests.rewards.endpoint import Server
from tests.rewards.written import conversation, explained, scores_of, wrote
from tests.running import running

JUDGES: Mapping[str, Callable[..., Any]] = {
    "call_judge": partial(CallJudge, "tiny"),
    "solver": partial(Solver, "tiny", of=ExactMatch()),
    "submitted_evidence": partial(SubmittedEvidence, "tiny", draws=1),
    "text_judge": partial(TextJudge, "tiny"),
    "tool_choice": partial(ToolChoice, "tiny", ExactMatch()),
}


def choice(server: Server, **settings: Any) -> ToolChoice:
    return ToolChoice("tiny", ExactMatch(extract="tag"), endpoint={"url": server.url, "backoff": 0.0}, **settings)


def frozen(text: str) -> str:
    """A model that reads 7 from a table, is confused by a caption, and knows the answer of easy questions."""
    is_easy = "easy" in text and "caption" not in text
    return f"<answer>{7 if 'table' in text or is_easy else 8}</answer>"


def test_outputs_of_chosen_tools_are_compared_with_none() -> None:
    """The code's table: right with them 1, right without alone -0.5, neither 0."""
    hard = {"tools": ["table", "caption", None], "question": "hard"}
    easy = {**hard, "question": "easy"}
    with running(Server(says=frozen)) as server:
        rows = [
            wrote("<answer>0</answer>", "7", **hard),
            wrote("<answer>1, 2</answer>", "7", **hard),
            wrote("<answer>1</answer>", "7", **easy),
            wrote("<answer>2, 9</answer>", "7", **easy),
            wrote("<answer>none</answer>", "7", **hard),
            wrote("<answer>0</answer>", "7", question="hard"),
        ]
        assert scores_of(choice(server), rows) == [1, 0, -0.5, 1, 0, None]
        assert explained(choice(server), rows[2])["reason"] == "wrong with tools 1, right without"


def test_bad_outputs_and_questions_of_tool_choice_are_errors() -> None:
    with running(Server(says=frozen)) as server:
        assert choice(server).reference_error("table") == "it is not a list of the tools' outputs, texts or null"
        assert choice(server).reference_error(["table", None]) is None
        with pytest.raises(ConfigError, match=r"must contain \{outputs\}"):
            choice(server, with_tools="{question}")


def test_a_failed_reward_of_the_answers_is_a_failure_of_the_choice() -> None:
    """A value of NaN is not a wrong answer."""
    row = wrote("<answer>0</answer>", "7", tools=["table"], question="hard")
    with running(Server(says=frozen)) as server:
        endpoint = {"url": server.url, "backoff": 0.0}
        (value,) = scores_of(ToolChoice("tiny", lambda samples: [math.nan] * len(samples), endpoint=endpoint), [row])
        assert math.isnan(value or 0.0)
        with pytest.raises(RewardError, match="1 values for 2 samples"):
            ToolChoice("tiny", lambda samples: [1.0], endpoint=endpoint)([row])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("build", JUDGES)
def test_a_server_may_reply_otherwise_and_a_local_model_may_not(build: str, temperature: float) -> None:
    """One rule for all judges, at any temperature: the seed of a local model's reply is derived from the question."""
    remote = JUDGES[build](endpoint={"url": "http://127.0.0.1:9"}, temperature=temperature)
    local = JUDGES[build](temperature=temperature)
    assert (remote.concurrent, remote.deterministic) == (True, False)
    assert (local.concurrent, local.deterministic) == (False, True)


def submitted(*numbers: Any, before: int = 5, after: Sequence[ToolResult] = (), task: str = "buy tea") -> Sample:
    """A conversation with results and a submission of some of them."""
    results = [ToolResult("tap", f"screen {number}") for number in range(before)]
    last = ToolResult("submit", "done", arguments={"message": "I did it.", "evidences": list(numbers)})
    return conversation({"task": task}, ["a", "b"], [results, [last, *after]])


def verdict(text: str) -> str:
    valid, done = ("screen 1" in text, "screen 2" in text)
    return f"<ValidEvidence>{valid or done}</ValidEvidence><Verdict>{'SUCCESS' if done else 'FAILURE'}</Verdict>"


@pytest.mark.nightly
def test_the_judge_reads_the_submitted_results_alone() -> None:
    """Success 1, valid evidence of a failure 0, else -1; two results above three cost 0.1 each."""
    with running(Server(says=verdict)) as server:
        reward = SubmittedEvidence("tiny", endpoint={"url": server.url, "backoff": 0.0})
        rows = [submitted(2), submitted(1), submitted(0), submitted(0, 1, 2, 3, 4)]
        assert scores_of(reward, rows) == pytest.approx([1, 0, -1, 0.8])
        text = server.requests[0]["messages"][-1]["content"][-1]["text"]
        assert "buy tea" in text
        assert "I did it." in text
        assert len(server.requests) == 12


def test_submissions_of_a_wrong_form_score_minus_1_without_a_judge() -> None:
    with running(Server(says=verdict)) as server:
        reward = SubmittedEvidence("tiny", endpoint={"url": server.url, "backoff": 0.0})
        late = submitted(2, after=[ToolResult("tap", "screen 2")])
        twice = submitted(2, after=[ToolResult("submit", "done", arguments={"evidences": [2]})])
        rows = [submitted(), submitted(5), submitted(9), submitted("2"), submitted(True), late, twice]
        assert scores_of(reward, rows) == [-1] * 7
        assert scores_of(reward, [conversation({"task": "a"}, ["a"], [])]) == [-1]
        assert scores_of(reward, [wrote("a", task="a")]) == [None]
        assert server.requests == []


def test_replies_without_a_verdict_and_failed_requests_of_submitted_evidence() -> None:
    with running(Server(says=lambda text: "Well.")) as server:
        reward = SubmittedEvidence("tiny", endpoint={"url": server.url, "backoff": 0.0})
        assert scores_of(reward, [submitted(2)]) == [-1]
    reward = SubmittedEvidence("tiny", endpoint={"url": "http://127.0.0.1:1/v1", "retries": 0})
    assert math.isnan(scores_of(reward, [submitted(2)])[0] or 0.0)


FRAMES = {"scores": [1, 4, 2, 5, 3, 4, 1, 4], "fps": 0.5, "start": 10.0, "visible": [0, 1, 3]}
"""Frame n is at 10 + 2 n seconds."""


def shown(*times: float) -> list[ToolResult]:
    return [ToolResult("view_clip", f"Frames at {', '.join(f'{time:.1f}s' for time in times)}.")]


def test_frames_are_identified_and_retrieved_as_in_conan() -> None:
    """Turn 1 scores 12 s (frame 1) 4 and frame 0 4: of {1, 3} and {0, 1} one of three. Turn 2 scores frame 5 4: all of
    {5}. The retrieval shows frames 4 and 5: of the evidence left, 5 and 7, a half."""
    turns = ["<score>00:00:12: 4, 00:00:10: 4, 00:00:16: 2</score>", "<score>00:00:18-00:00:20: 4</score>"]
    sample = conversation({"frames": FRAMES}, turns, [shown(18.0, 20.0)])
    assert scores_of(FrameEvidence(), [sample]) == pytest.approx([(1 / 3 + 1 / 2) / 2 + 1 / 2])


def test_without_a_retrieval_identification_counts_twice() -> None:
    sample = conversation({"frames": FRAMES}, ["<score>00:00:12: 5, 00:00:16: 4</score>"], [])
    assert scores_of(FrameEvidence(), [sample]) == [2]
    assert scores_of(FrameEvidence(), [conversation({"frames": FRAMES}, ["no scores"], [])]) == [0]


def test_frames_with_a_score_of_3_count_where_4_is_missing() -> None:
    """No frame has 4: of {2} and {1, 2} a half; the retrieval shows the one frame of 3 that is left."""
    row = {"scores": [1, 2, 3, 3], "fps": 1, "start": 0, "visible": [1, 2]}
    sample = conversation({"frames": row}, ["<score>00:00:01-00:00:02: 3</score>", "no"], [shown(3.0)])
    assert scores_of(FrameEvidence(), [sample]) == [0.5 + 1]


@pytest.mark.parametrize(
    "row",
    [
        {**FRAMES, "fps": 0},
        {**FRAMES, "scores": []},
        {**FRAMES, "visible": [8]},
        {**FRAMES, "scores": "14253"},
        {"scores": [1]},
        [1, 2],
    ],
)
def test_frames_that_cannot_be_read_are_reported(row: Any) -> None:
    assert FrameEvidence().reference_error(row) == "it is not a mapping of scores, fps, start and visible"
    assert scores_of(FrameEvidence(), [conversation({"frames": row}, ["a"], [])]) == [None]
