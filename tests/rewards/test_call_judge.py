"""Judges of tool calls: what is asked about each call of a conversation, at a real local server."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from mmgrpo.rewards.judges.call_judge import CallJudge
from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.samples import ToolResult, Turn
from mmgrpo.types import Prompt, Sample, Score
from tests.audio_signals import tone
from tests.rewards.endpoint import Server
from tests.rewards.written import conversation
from tests.running import running

LOOK = ToolResult("zoom", "a cat", arguments={"box": [1, 2]})
FAILED = ToolResult("zoom", "no such box", failed=True)


def score_at_length(text: str) -> str:
    """The score of a call by the length of its result, which is the last word; none for ``dumb``."""
    word = text.split()[-1]
    return "none" if word == "dumb" else f"Score: {len(word) / 4}"


def judge(server: Server, **settings: Any) -> CallJudge:
    defaults: dict[str, Any] = {
        "mode": "parse",
        "question": "{prompt} {call} {result}",
        "endpoint": {"url": server.url, "backoff": 0.0},
    }
    return CallJudge("tiny", **{**defaults, **settings})


def test_calls_are_scored_one_by_one_and_turns_by_the_mean_of_their_calls() -> None:
    """Results of 3, 1 and 2 characters score 3/4, 1/4 and 1/2; the turns 1/2 and 1/2, and the sample 1/2."""
    results = [[replace(LOOK, text="cat"), replace(LOOK, text="c")], [], [replace(LOOK, text="ca")]]
    sample = conversation({}, ["one", "and", "two", "done"], results)
    with running(Server(says=score_at_length)) as server:
        (score,) = judge(server)([sample])
        texts = sorted(request["messages"][-1]["content"][-1]["text"] for request in server.requests)
    assert isinstance(score, Score)
    assert score.value == pytest.approx(0.5)
    assert score.scopes is not None
    assert [(sample.text or "")[scope.start : scope.end] for scope in score.scopes] == ["one", "two"]
    assert [scope.value for scope in score.scopes] == pytest.approx([0.5, 0.5])
    assert texts == [f'q zoom {{"box": [1, 2]}} {text}' for text in ("c", "ca", "cat")]


def test_failed_calls_are_not_asked_about_unless_they_are_to_be() -> None:
    sample = conversation(
        {},
        ["one", "two"],
        [
            [replace(LOOK, text="cats")],
        ],
    )
    failing = conversation({}, ["one", "two"], [[replace(LOOK, text="cats"), replace(FAILED, text="oh")]])
    with running(Server(says=score_at_length)) as server:
        values = [float(score or 0) for score in judge(server)([sample, failing])]
        (score,) = judge(server, failed=None)([failing])
        assert len(server.requests) == 4
    assert values == [1.0, 0.5]
    assert float(score or 0) == pytest.approx(0.75)


def test_conversation_without_calls_has_its_own_score() -> None:
    silent, plain = conversation({}, ["done"]), Sample(Prompt("q"), 0, 0, text="no conversation")
    with running(Server(says=score_at_length)) as server:
        assert judge(server)([silent, plain]) == [None, None]
        assert judge(server, without=0.0)([silent, plain]) == [0.0, None]
        assert server.requests == []


def test_reply_without_a_score_is_a_failure_and_a_row_without_a_column_is_not_scored() -> None:
    sample = conversation({}, ["one", "two"], [[replace(LOOK, text="dumb")]])
    with running(Server(says=score_at_length)) as server:
        (score,) = judge(server)([sample])
        assert score is not None
        assert math.isnan(float(score))
        assert judge(server, question="{answer} {call}")([sample]) == [None]


def test_results_that_the_judge_does_not_receive_are_not_scored() -> None:
    replies = [Turn(audios=[tone()], results=[replace(LOOK, num_audios=1)]), Turn(done=True)]
    sample = replace(conversation({}, ["one", "two"]), turn_replies=replies)
    with running(Server(says=score_at_length)) as server:
        assert judge(server)([sample]) == [None]
        assert server.requests == []


def test_judge_sees_the_images_of_the_prompt_and_of_the_call() -> None:
    small, large = Image.new("RGB", (2, 2)), Image.new("RGB", (4, 4))
    replies = [
        Turn(images=[small, large], results=[replace(LOOK, num_images=1), replace(LOOK, text="b", num_images=1)]),
        Turn(done=True),
    ]
    sample = replace(conversation({}, ["one", "two"]), prompt=Prompt("q", images=[small]), turn_replies=replies)
    with running(Server(says=score_at_length)) as server:
        judge(server, source=True)([sample])
        contents = [request["messages"][-1]["content"] for request in server.requests]
    assert [[part["type"] for part in content] for content in contents] == [["image_url", "image_url", "text"]] * 2
    first, second = sorted(content[1]["image_url"]["url"] for content in contents)
    assert first != second


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"question": "{prompt}"}, "must contain"),
        ({"question": None}, "only for mode: yes"),
    ],
)
def test_invalid_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CallJudge("tiny", **{"mode": "parse", **settings})  # pyrefly: ignore[bad-argument-type]
