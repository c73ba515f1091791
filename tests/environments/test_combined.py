"""Several environments as one: calls go to their part, in the order of the turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmgrpo.environments.combined import CombinedEnvironment
from mmgrpo.errors import ConfigError
from mmgrpo.system.json_requests import NoReplyError
from mmgrpo.types import Prompt
from tests.environments.chat_server import ChatServer
from tests.environments.retrieval_server import RetrievalServer, written
from tests.environments.test_search import CITIES
from tests.rewards.sandboxed import needs_sandbox
from tests.running import running

pytestmark = needs_sandbox
pytest.importorskip("bm25s")

USER = {"url": "http://127.0.0.1:8000/v1", "model": "m", "system": "You are a customer."}


CALLER = {"name": "python", "call": "tool_call"}


def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: the number.
    """
    return 2 * number


class Orders:
    """The orders of a customer, as an object with tools."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def reset(self) -> list[dict[str, Any]]:
        self.cancelled = []
        image = {"type": "image", "image": Image.new("RGB", (4, 2))}
        return [{"type": "text", "text": "A customer writes."}, image]

    def cancel(self, order: str) -> str:
        """Cancels an order.

        Args:
            order: its number.

        Returns:
            What happened.
        """
        self.cancelled.append(order)
        return f"{order} is cancelled"


def combined(corpus: Path, call: str, **settings: Any) -> CombinedEnvironment:
    parts = [{"name": "search", "corpus": str(corpus), "topk": 1, "call": call}, {"name": "python", "call": call}]
    return CombinedEnvironment(parts, **settings)


@pytest.fixture
def cities(tmp_path: Path) -> Path:
    return written(tmp_path / "cities.jsonl", CITIES)


def test_calls_of_both_parts_are_answered_in_order(cities: Path) -> None:
    environment = combined(cities, "tag", answer_tag="answer")
    try:
        opening = environment.reset(Prompt("?")).text
        reply = environment.step("<code>print(6 * 7)</code> and <search>Tiber</search>")
        invalid = environment.step("I am done")
        final = environment.step("<answer>42</answer>")
    finally:
        environment.close()
    assert opening == (
        "To search for documents, write <search>...</search>.\nTo run Python code, write <code>...</code>.\n"
        "To give the final answer, write <answer>...</answer>."
    )
    assert reply.text.split("\n\n")[0].strip() == "<interpreter>\n42\n</interpreter>"
    assert "The capital of Italy" in reply.text.split("\n\n")[1]
    assert [(result.name, result.failed) for result in reply.results] == [("python", False), ("search", False)]
    assert (invalid.done, final.done) == (False, True)
    assert invalid.text.endswith(opening)


def test_functions_of_both_parts_are_described_and_called(cities: Path) -> None:
    environment = combined(cities, "tool_call")
    call = json.dumps({"name": "python", "arguments": {"code": "print(6 * 7)"}})
    try:
        tools = environment.reset(Prompt("?")).tools
        reply = environment.step(f"<tool_call>{call}</tool_call>")
    finally:
        environment.close()
    assert [tool["function"]["name"] for tool in tools] == ["search", "python"]
    assert reply.text == "42"


def test_a_server_without_a_reply_ends_the_conversation(cities: Path) -> None:
    server = RetrievalServer(cities, [404])
    parts = [{"name": "search", "url": server.url}, {"name": "python", "call": "tag"}]
    environment = CombinedEnvironment(parts)
    try:
        with pytest.raises(NoReplyError, match="HTTP 404"):
            environment.step("<search>fjord</search>")
    finally:
        environment.close()
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"name": "python"}], "two or more parts"),
        ([{"name": "python"}, {**USER, "name": "simulated"}], "cannot combine the environment simulated: parts are"),
        ([{"name": "python", "answer_tag": "answer"}, {"name": "python"}], "answer_tag of a part: set it for combined"),
        (
            [{"name": "tools", "functions": [double], "retries": 2, "max_pixels": 4}, CALLER],
            "retries and max_pixels of",
        ),
        ([{"name": "tool_object", "factory": Orders, "fences": {}}, CALLER], "fences of a part: set it for combined"),
        ([{"name": "python"}, {"name": "python"}], "begin with '```python"),
        ([{"name": "python"}, {"name": "python", "call": "tool_call"}], "set call: tool_call for all parts"),
        ([{"call": "tag"}, {"name": "python"}], "needs the name of an environment"),
    ],
)
def test_parts_that_cannot_be_combined_are_errors(parts: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CombinedEnvironment(parts)


def test_settings_of_tools_are_those_of_the_combination() -> None:
    parts = [{"name": "tools", "functions": [double]}, CALLER]
    environment = CombinedEnvironment(parts, max_characters=3, fences={"python": "python"})
    try:
        doubled = environment.step('<tool_call>{"name": "double", "arguments": {"number": 5000}}</tool_call>')
        fenced = environment.step("```python\nprint(12)\n```")
    finally:
        environment.close()
    assert doubled.text == "100\n[2 characters are cut off]"
    assert fenced.text == "12"
    with pytest.raises(ConfigError, match="no setting fences, retries for calls in text formats"):
        CombinedEnvironment([{"name": "python"}, {"name": "python", "call": "tag"}], fences={}, retries=1)


def test_rows_select_tools_of_all_parts() -> None:
    environment = CombinedEnvironment([{"name": "tools", "functions": [double]}, CALLER])
    tools = [{"type": "function", "function": {"name": "python"}}]
    opening = environment.reset(Prompt("?", chat_template_kwargs={"tools": tools}))
    reply = environment.step('<tool_call>{"name": "double", "arguments": {"number": 5}}</tool_call>')
    environment.close()
    assert [tool["function"]["name"] for tool in opening.tools] == ["python"]
    assert "there is no function 'double'; known are python" in reply.text


def test_turns_without_calls_go_to_the_partner() -> None:
    with running(ChatServer(["Order 7, please.", "Thanks. [DONE]"])) as server:
        environment = CombinedEnvironment(
            [{"name": "tool_object", "factory": f"python:{__name__}:Orders"}],
            partner={**USER, "name": "simulated", "url": server.url},
        )
        opening = environment.reset(Prompt("?"))
        question = environment.step("Which order?")
        result = environment.step('<tool_call>{"name": "cancel", "arguments": {"order": "7"}}</tool_call>')
        end = environment.step("It is cancelled.")
        environment.close()
    assert (opening.text, [image.size for image in opening.images]) == ("A customer writes.", [(4, 2)])
    assert [tool["function"]["name"] for tool in opening.tools] == ["cancel"]
    assert (question.text, result.text, end.done) == ("Order 7, please.", "7 is cancelled", True)
    assert [(each.name, each.arguments) for each in result.results] == [("cancel", {"order": "7"})]
    texts = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "user"]
    assert texts == ["Which order?", "It is cancelled."]
    with pytest.raises(ConfigError, match="leave out answer_tag"):
        CombinedEnvironment([{"name": "python"}], answer_tag="answer", partner={"name": "simulated"})


class Paying(Orders):
    """Orders with a reward."""

    def get_reward(self) -> float:
        return float(len(self.cancelled))


def test_a_partner_rewards_conversations_that_it_did_not_end() -> None:
    environment = CombinedEnvironment([CALLER], partner={"name": "tool_object", "factory": Paying, "describe": False})
    environment.reset(Prompt("?"))
    assert environment.final_reward() == 0.0
    environment.close()
    with_tools = CombinedEnvironment([CALLER], partner={"name": "tool_object", "factory": Paying})
    with pytest.raises(ConfigError, match="the partner of combined has tools"):
        with_tools.reset(Prompt("?"))
    with_tools.close()


PAYING = {"name": "tool_object", "factory": Paying}


def test_the_reward_of_an_object_is_that_of_the_last_turn() -> None:
    """One order is canceled; a turn without calls ends the conversation, as a cut-off one does."""
    environment = CombinedEnvironment([PAYING, CALLER])
    environment.reset(Prompt("?"))
    result = environment.step('<tool_call>{"name": "cancel", "arguments": {"order": "7"}}</tool_call>')
    assert (result.reward, environment.final_reward()) == (None, 1.0)
    end = environment.step("It is cancelled.")
    environment.close()
    assert (end.done, end.reward) == (True, 1.0)
    assert CombinedEnvironment.may_reward({"parts": [PAYING, CALLER]})
    assert not CombinedEnvironment.may_reward({"parts": [CALLER]})


def test_an_object_rewards_conversations_with_a_partner_without_rewards() -> None:
    with running(ChatServer(["Order 7, please.", "Thanks. [DONE]"])) as server:
        partner = {**USER, "name": "simulated", "url": server.url}
        environment = CombinedEnvironment([PAYING], partner=partner)
        environment.reset(Prompt("?"))
        rewards = [environment.step("Which order?").reward, environment.step("It is done.").reward]
        environment.close()
        assert rewards == [None, 0.0]
        with pytest.raises(ConfigError, match=r"several rewards of a conversation, Paying.get_reward, the partner"):
            CombinedEnvironment([PAYING], partner={**partner, "reward_tag": "score"})
    with pytest.raises(ConfigError, match=r"several rewards of a conversation, Paying.get_reward, Paying.get_reward"):
        CombinedEnvironment([PAYING, PAYING])
