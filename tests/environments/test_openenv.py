"""An OpenEnv server on the loopback interface, played by text and by calls of a tool."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.environments.openenv_client import OpenEnvEnvironment
from mmgrpo.errors import ConfigError
from mmgrpo.tool_calls import AssistantMessage, FunctionCall
from mmgrpo.types import Prompt

openenv = pytest.importorskip("openenv.core")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "tests.environments.openenv_server", str(port)], cwd=ROOT)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.2)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def started(url: str, seed: int = 3, **settings: Any) -> tuple[OpenEnvEnvironment, Any]:
    environment = OpenEnvEnvironment(url, observation="message", **settings)
    return environment, environment.reset(Prompt("Play.", columns={"seed": seed}))


def test_a_text_is_a_field_of_the_action(url: str) -> None:
    environment, opening = started(url, action="guess")
    assert (opening.text, opening.tools) == ("Guess a number from 1 to 8.", ())
    low, high, rewards = 1, 8, list[float | None]()
    while True:
        guess = (low + high) // 2
        turn = environment.step(str(guess))
        rewards.append(turn.reward)
        if turn.done:
            break
        low, high = (guess + 1, high) if turn.text == "higher" else (low, guess - 1)
    assert rewards == [*[-0.125] * (len(rewards) - 1), 0.875]
    environment.close()


def test_sessions_have_separate_seeds_and_states(url: str) -> None:
    environments = [started(url, seed, action="guess")[0] for seed in (1, 1, 2, 3, 4, 5)]
    hints = [environment.step("4").text for environment in environments]
    assert hints[0] == hints[1]
    assert set(hints) >= {"higher", "lower"}
    for environment in environments:
        environment.close()


def test_actions_are_calls_of_a_tool(url: str) -> None:
    environment, opening = started(url)
    (tool,) = opening.tools
    assert tool["function"]["parameters"]["properties"].keys() == {"guess"}
    calls = [FunctionCall("step", {"guess": "1"}), FunctionCall("step", {"guess": "8"})]
    turn = environment.respond(AssistantMessage("", calls))
    assert [result.text for result in turn.results] == ["higher", "lower"]
    assert (turn.reward, turn.done) == (-0.25, False)
    unknown = environment.respond(AssistantMessage("", [FunctionCall("step", {"number": 1})]))
    assert "step: " in unknown.results[0].text
    assert unknown.results[0].failed
    assert environment.respond(AssistantMessage("I give up.")).done
    environment.close()


def test_errors_of_the_server_are_texts(url: str) -> None:
    environment, _ = started(url, action="guess")
    turn = environment.step("five")
    assert "invalid literal for int()" in turn.text
    assert (turn.reward, turn.done) == (0.0, False)
    environment.close()


def test_an_observation_without_a_field_is_json(url: str) -> None:
    environment = OpenEnvEnvironment(url, action="guess")
    opening = environment.reset(Prompt("Play."))
    assert opening.text == '{"message": "Guess a number from 1 to 8.", "num_guesses": 0}'
    environment.close()


def test_wrong_settings_are_errors(url: str) -> None:
    with pytest.raises(ConfigError, match=r"action='message': actions of .* have the fields guess"):
        OpenEnvEnvironment(url, action="message")
    with pytest.raises(ConfigError, match=r"the OpenEnv server http://127\.0\.0\.1:9 does not answer"):
        OpenEnvEnvironment("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="url of the environment openenv must be such as"):
        OpenEnvEnvironment("localhost")
