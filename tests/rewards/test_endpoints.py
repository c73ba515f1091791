"""The judge at an endpoint, tested with a real HTTP server of the standard library on loopback."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from mmgrpo.rewards.judges.endpoints import ApiJudge
from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Sample
from tests.rewards.endpoint import Server
from tests.rewards.image_samples import drew, explanations, filmed, noise, numbers
from tests.running import running


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made


def judge(server: Server, **settings: Any) -> Callable[[Sequence[Sample]], list[float | None]]:
    defaults = {"question": "{prompt}?", "backoff": 0.01, "timeout": 30.0, **settings}
    return lambda samples: numbers(ApiJudge(server.url, "tiny", **defaults)(samples))  # pyrefly: ignore[bad-argument-type]


def test_the_image_arrives_exactly_and_the_score_is_returned(server: Server) -> None:
    image = noise(0)
    assert judge(server, system="Be strict.", extra={"seed": 1, "temperature": 0.5})([drew(image, "a cat")]) == [0.75]
    (request,) = server.requests
    assert {name: request[name] for name in ("model", "temperature", "max_tokens", "seed")} == {
        "model": "tiny",
        "temperature": 0.5,
        "max_tokens": 256,
        "seed": 1,
    }
    system, user = request["messages"]
    assert system == {"role": "system", "content": "Be strict."}
    picture, text = user["content"]
    assert text == {"type": "text", "text": "a cat?"}
    head, _, data = picture["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    assert np.array_equal(np.asarray(Image.open(BytesIO(base64.b64decode(data)))), np.asarray(image))
    assert "Authorization" not in server.headers[0]


def test_frames_and_the_source_go_before_the_question(server: Server) -> None:
    edit = Sample(Prompt("edit", images=[noise(0)]), group=0, member=0, image=noise(1))
    assert (
        judge(server, frames=3, source=True, picture="jpeg")([filmed([noise(i) for i in range(5)]), edit]) == [0.75] * 2
    )
    kinds = sorted([part["type"] for part in r["messages"][0]["content"]] for r in server.requests)
    assert kinds == [["image_url"] * 3 + ["text"], ["image_url"] * 2 + ["text"]]
    assert server.requests[0]["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,")


def test_failures_are_of_the_sample_alone(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    texts = ("a cat", "broken", "mute", "garbage", "empty", "forbidden", "redirect", "huge", "a dog")
    values = judge(server, retries=1)([drew(noise(0), text) for text in texts])
    assert [values[0], values[-1]] == [0.75, 0.75]
    assert all(value is not None and math.isnan(value) for value in values[1:-1])
    assert server.tries == {f"{text}?": 2 if text == "broken" else 1 for text in texts}
    assert "no reply for 6 of 9 questions" in caplog.text
    assert "503" in caplog.text


def test_passing_failures_are_tried_again(server: Server) -> None:
    assert judge(server, retries=2)([drew(noise(0), "flaky"), drew(noise(0), "cut")]) == [0.75, 0.75]
    assert server.tries == {"flaky?": 3, "cut?": 2}


def test_a_request_that_takes_too_long_is_given_up(server: Server) -> None:
    start = time.monotonic()
    (slow,) = judge(server, timeout=0.2, retries=1)([drew(noise(0), "slow")])
    assert math.isnan(slow or 0)
    assert time.monotonic() - start < 5
    assert server.tries["slow?"] == 2


def test_no_server_is_a_failure_and_no_crash() -> None:
    with Server() as gone:
        url = gone.url
    (score,) = ApiJudge(url, "m", retries=1, backoff=0.01)([drew(noise(0))])
    assert math.isnan(float(score or 0))
    assert explanations([score]) == [{"parsed": None}]


def test_the_reply_explains_the_score(server: Server) -> None:
    reward = ApiJudge(server.url, "tiny", question="{prompt}?", backoff=0.01)
    result = explanations(reward([drew(noise(0), "a cat"), drew(noise(0), "mute")]))
    assert result == [{"parsed": 4.0, "reason": "Score: 4"}, {"parsed": None, "reason": "I cannot say."}]


def test_the_key_is_read_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = judge(server, key_variable="TEST_JUDGE_KEY")
    monkeypatch.delenv("TEST_JUDGE_KEY", raising=False)
    assert math.isnan(reward([drew(noise(0))])[0] or 0)
    assert not server.requests
    monkeypatch.setenv("TEST_JUDGE_KEY", "secret\n")
    assert reward([drew(noise(0))]) == [0.75]
    assert server.headers[0]["Authorization"] == "Bearer secret"


def test_no_more_than_so_many_requests_are_under_way(server: Server) -> None:
    assert judge(server, concurrency=3, timeout=5)([drew(noise(0), f"cat {i}") for i in range(12)]) == [0.75] * 12
    assert server.most_under_way == 3


def test_samples_without_input_are_not_scored(server: Server) -> None:
    assert judge(server, question="{style}")([drew(noise(0)), drew(None, style="oil")]) == [None, None]
    assert not server.requests


def test_invalid_settings_raise() -> None:
    for url in ("file:///etc/passwd", "127.0.0.1:8000"):
        with pytest.raises(ConfigError, match="must be such as http"):
            ApiJudge(url, model="m")
    with pytest.raises(ConfigError, match="timeout > 0"):
        ApiJudge("http://x/v1", "m", timeout=0)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        ApiJudge("http://x/v1", "m", concurrency=0)
    with pytest.raises(ConfigError, match="png, jpeg"):
        ApiJudge("http://x/v1", "m", picture="gif")  # pyrefly: ignore[bad-argument-type]
