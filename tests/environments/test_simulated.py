"""A model as the environment: what it reads, and how its replies end a conversation and reward it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from mmgrpo.environments.simulated import SimulatedEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.system.json_requests import NoReplyError
from mmgrpo.types import Prompt
from tests.environments.chat_server import ChatServer

SYSTEM = "You are a shop that sells {item}. The customer wants: {prompt}"


@pytest.fixture
def serve() -> Iterator[Callable[..., ChatServer]]:
    servers: list[ChatServer] = []

    def start(*replies: str | int) -> ChatServer:
        servers.append(ChatServer(list(replies)))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


PROMPT = Prompt("a good price", columns={"item": "tea"})


def test_the_model_reads_the_row_and_all_turns(serve: Callable[..., ChatServer]) -> None:
    server = serve("It costs 3.", 503, "Sold. [DONE]")
    shop = SimulatedEnvironment(server.url, "shopkeeper", SYSTEM)
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
    shop = SimulatedEnvironment(server.url, "m", SYSTEM, reward_tag="score", max_chars=10)
    shop.reset(PROMPT)
    turn = shop.step("One cent?")
    assert (turn.text, turn.reward) == ("No.", -0.5)
    with pytest.raises(NoReplyError, match="no reward, but 'much'"):
        shop.step("Two?")


def test_servers_without_a_reply_end_the_conversation(serve: Callable[..., ChatServer]) -> None:
    shop = SimulatedEnvironment(serve(404).url, "m", SYSTEM)
    shop.reset(PROMPT)
    with pytest.raises(NoReplyError, match="HTTP 404"):
        shop.step("Hello?")
    empty = SimulatedEnvironment(serve(" ").url, "m", SYSTEM)
    empty.reset(PROMPT)
    with pytest.raises(NoReplyError, match="empty message"):
        empty.step("Hello?")


def test_absent_columns_and_bad_settings_are_errors() -> None:
    with pytest.raises(DataError, match="no value in the column 'item'"):
        SimulatedEnvironment("http://127.0.0.1:1/v1", "m", SYSTEM).reset(Prompt("?"))
    with pytest.raises(ConfigError, match="must be such as http"):
        SimulatedEnvironment("127.0.0.1", "m", SYSTEM)
    with pytest.raises(ConfigError, match="max_new_tokens >= 1"):
        SimulatedEnvironment("http://127.0.0.1:1/v1", "m", SYSTEM, max_new_tokens=0)
