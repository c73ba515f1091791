"""An OpenEnv server on the loopback interface, played by text and by calls of a tool."""

from __future__ import annotations

import importlib
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers.utils import get_json_schema

from mmgrpo.environments.openenv_client import OpenEnvEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.tool_calls import AssistantMessage, FunctionCall
from mmgrpo.types import Prompt
from tests.tiny.tool_callers import caller, example, hermes

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


@pytest.mark.nightly
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


@pytest.mark.nightly
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
    with pytest.raises(ConfigError, match="retries of openenv would have no effect: it is one of the tool"):
        OpenEnvEnvironment(url, action="guess", retries=2)
    with pytest.raises(DataError, match="the row has no sed: change 'columns'"):
        started(url, action="guess", columns=["sed"])
    with pytest.raises(ConfigError, match=r"the OpenEnv server http://127\.0\.0\.1:9 does not answer"):
        OpenEnvEnvironment("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="url of the environment openenv must be such as"):
        OpenEnvEnvironment("localhost")


@pytest.mark.nightly
@pytest.mark.parametrize("library", ["trl", "mmgrpo.trl"])
def test_the_class_of_trls_documentation_wraps_a_client(
    library: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in openenv.md of TRL, with the client of a number to guess."""

    class GuessToolEnv:
        def __init__(self) -> None:
            self.env = openenv.GenericEnvClient(base_url=url).sync()
            self.reward = 0.0

        def reset(self, **kwargs: Any) -> str | None:
            self.reward = 0.0
            self.env.reset(seed=3)
            return None

        def guess(self, number: int) -> str:
            """
            Guess the number.

            Args:
                number: The guess.

            Returns:
                The hint of the environment.
            """
            result = self.env.step({"guess": str(number)})
            self.reward = result.reward
            return result.observation["message"]

    def reward_func(environments: list[Any], **kwargs: Any) -> list[float]:
        return [environment.reward for environment in environments]

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tools, ask = [get_json_schema(GuessToolEnv.guess)], [{"role": "user", "content": "Guess the number."}]
    policy = caller("qwen3", [example(ask, tools, hermes("guess", '{"number": 3}'))])
    policy.model.save_pretrained(tmp_path / "model")
    policy.processor.save_pretrained(tmp_path / "model")
    module = importlib.import_module(library)
    trainer = module.GRPOTrainer(
        model=str(tmp_path / "model"),
        train_dataset=Dataset.from_dict({"prompt": [ask] * 4}),
        reward_funcs=reward_func,
        args=module.GRPOConfig(
            output_dir=str(tmp_path / "out"), max_steps=1, max_tool_calling_iterations=1, temperature=0.1,
            num_generations=2, per_device_train_batch_size=4, max_completion_length=100, use_cpu=True, bf16=False,
            learning_rate=1e-9, logging_steps=1, save_strategy="no", gradient_checkpointing=False,
        ),
        environment_factory=GuessToolEnv,
    )  # fmt: skip
    trainer.train()
    (entry,) = [line for line in trainer.state.log_history if "rewards/reward_func/mean" in line]
    assert entry["rewards/reward_func/mean"] == (0.875 if random.Random(3).randint(1, 8) == 3 else -0.125)
