"""A model as the environment, served or loaded: its input, and how its replies end and reward a conversation."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.config.loading import load_config
from mmgrpo.environments.simulated import SimulatedEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.json_requests import NoReplyError
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt
from tests.configs.test_turn_methods import SMALL
from tests.configs.turn_runs import CONVERSATION
from tests.environments.chat_server import ChatServer
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import prompts_of
from tests.tiny.language_models import make

SYSTEM = "You are a shop that sells {item}. The customer wants: {prompt}"


@pytest.fixture
def serve() -> Iterator[Callable[..., ChatServer]]:
    servers: list[ChatServer] = []

    def start(*replies: str | int) -> ChatServer:
        servers.append(ChatServer(list(replies)))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


PROMPT = Prompt("a good price", columns={"item": "tea"})


@pytest.mark.nightly
def test_the_model_reads_the_row_and_all_turns(serve: Callable[..., ChatServer]) -> None:
    server = serve("It costs 3.", 503, "Sold. [DONE]")
    shop = SimulatedEnvironment("shopkeeper", SYSTEM, server.url)
    assert shop.reset(PROMPT).text == ""
    first = shop.step("How much?")
    assert (first.text, first.reward, first.done) == ("It costs 3.", None, False)
    assert shop.step("I take it.").done
    assert server.requests[-1] == {
        "model": "shopkeeper",
        "max_tokens": 512,
        "temperature": 0.0,
        "messages": [
            {"role": "system", "content": "You are a shop that sells tea. The customer wants: a good price"},
            {"role": "user", "content": "How much?"},
            {"role": "assistant", "content": "It costs 3."},
            {"role": "user", "content": "I take it."},
        ],
    }


def test_rewards_are_numbers_in_their_tag_which_the_policy_does_not_read(serve: Callable[..., ChatServer]) -> None:
    server = serve("No. <score> -0.5 </score>", "Well. <score>much</score>")
    shop = SimulatedEnvironment("m", SYSTEM, server.url, reward_tag="score", max_chars=10)
    shop.reset(PROMPT)
    turn = shop.step("One cent?")
    assert (turn.text, turn.reward) == ("No.", -0.5)
    with pytest.raises(NoReplyError, match="no reward, but 'much'"):
        shop.step("Two?")


def test_servers_without_a_reply_end_the_conversation(serve: Callable[..., ChatServer]) -> None:
    shop = SimulatedEnvironment("m", SYSTEM, serve(404).url)
    shop.reset(PROMPT)
    with pytest.raises(NoReplyError, match="HTTP 404"):
        shop.step("Hello?")
    empty = SimulatedEnvironment("m", SYSTEM, serve(" ").url)
    empty.reset(PROMPT)
    with pytest.raises(NoReplyError, match="empty message"):
        empty.step("Hello?")


def test_absent_columns_and_bad_settings_are_errors() -> None:
    with pytest.raises(DataError, match="no value in the column 'item'"):
        SimulatedEnvironment("m", SYSTEM, "http://127.0.0.1:1/v1").reset(Prompt("?"))
    with pytest.raises(ConfigError, match="must be such as http"):
        SimulatedEnvironment("127.0.0.1", "m", SYSTEM)
    with pytest.raises(ConfigError, match="max_new_tokens >= 1"):
        SimulatedEnvironment("m", SYSTEM, "http://127.0.0.1:1/v1", max_new_tokens=0)
    with pytest.raises(ConfigError, match="device, dtype of simulated would have no effect: remove url"):
        SimulatedEnvironment("m", SYSTEM, "http://127.0.0.1:1/v1", device="cpu", dtype="float32")
    with pytest.raises(ConfigError, match="key_variable, retries of simulated would have no effect: set url"):
        SimulatedEnvironment("m", SYSTEM, key_variable="KEY", retries=0)


@pytest.fixture(scope="module")
def partner(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("partner")
    for part in make("llama", seed=3):
        part.save_pretrained(folder)
    return str(folder)


def loaded(partner: str, **settings: Any) -> SimulatedEnvironment:
    return SimulatedEnvironment(partner, SYSTEM, **{"max_new_tokens": 12, "dtype": "float32", **settings})  # pyrefly: ignore[bad-argument-type]


def test_a_loaded_model_replies_as_transformers_generate(partner: str) -> None:
    shop = loaded(partner)
    shop.reset(PROMPT)
    replies = [shop.step("How much?").text, shop.step("Too much.").text]
    parts: tuple[Any, Any] = make("llama", seed=3)
    model, tokenizer = parts
    messages = [{"role": "system", "content": "You are a shop that sells tea. The customer wants: a good price"}]
    for text, reply in zip(("How much?", "Too much."), replies, strict=True):
        messages.append({"role": "user", "content": text})
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        tokens = model.generate(**inputs, do_sample=False, max_new_tokens=12)[0, inputs["input_ids"].shape[1] :]
        expected = tokenizer.decode(tokens, skip_special_tokens=True)
        messages.append({"role": "assistant", "content": expected})
        assert reply == expected.strip()


def test_sampled_replies_of_a_loaded_model_depend_on_the_conversation_alone(partner: str) -> None:
    def reply(text: str) -> str:
        shop = loaded(partner, temperature=2.0)
        shop.reset(PROMPT)
        return shop.step(text).text

    texts = [f"How much for {number}?" for number in range(6)]
    torch.manual_seed(0)
    state = torch.get_rng_state()
    sequential_replies = [reply(text) for text in texts]
    assert torch.equal(torch.get_rng_state(), state)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(reply, reversed(texts))) == sequential_replies[::-1]
    assert len(set(sequential_replies)) > 1


def test_models_that_cannot_reply_are_errors(partner: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded"):
        loaded(str(tmp_path / "none")).reset(PROMPT)
    with pytest.raises(ConfigError, match="the dtype of a model must be float32"):
        loaded(partner, dtype="int8").reset(PROMPT)
    model, tokenizer = make("llama")
    tokenizer.chat_template = None
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "plain")
    with pytest.raises(ConfigError, match="has no chat template"):
        loaded(str(tmp_path / "plain")).reset(PROMPT)


@pytest.mark.nightly
def test_a_policy_trains_with_a_frozen_partner_in_its_process(partner: str, tmp_path: Path) -> None:
    environment = {"name": "simulated", "model": partner, "system": "Talk.", "temperature": 5.0, "dtype": "float32"}
    environment |= {"max_new_tokens": 8}
    settings = {**SMALL, **CONVERSATION, "rollout.environment": environment, "output": str(tmp_path / "run")}
    config = load_config("methods/grpo", settings)
    prompts = [replace(prompt, images=()) for prompt in prompts_of("llama")]

    def num_turns(samples: Any) -> list[float]:
        return [float(len(sample.turn_texts)) + len(sample.text or "") % 3 for sample in samples]

    folder = Trainer(terse("llama", max_new_tokens=60), num_turns, prompts, config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(line["policy/on_policy_gap"] < 1e-5 for line in lines)
    assert any(line["optimizer/grad_norm"] > 0 for line in lines)
