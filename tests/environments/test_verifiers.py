"""Environments of verifiers over datasets in memory: one turn, tools, and a game with a state."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset

from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.environments.verifiers_tasks import VERSION, VerifiersEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.tool_calls import AssistantMessage, FunctionCall
from mmgrpo.types import Prompt
from tests.tiny.tool_callers import hermes

vf = pytest.importorskip("verifiers")
pytestmark = pytest.mark.skipif(vf.__version__ != VERSION, reason=f"only verifiers {VERSION} is supported")

HERE = "python:tests.environments.test_verifiers:"


def exact(completion: list[dict[str, Any]], answer: str) -> float:
    return float(completion[-1]["content"] == answer)


def short(completion: list[dict[str, Any]]) -> float:
    return float(len(completion[-1]["content"]) < 5)


def arithmetic(system: str = "Answer with a number.") -> Any:
    dataset = Dataset.from_dict({"question": ["What is 2 + 2?", "What is 3 + 5?"], "answer": ["4", "8"]})
    rubric = vf.Rubric(funcs=[exact, short], weights=[1.0, 0.25])
    return vf.SingleTurnEnv(dataset=dataset, system_prompt=system, rubric=rubric)


async def multiply(a: int, b: int) -> int:
    """Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.
    """
    return a * b


def calculator() -> Any:
    dataset = Dataset.from_dict({"question": ["What is 6 times 7?"], "answer": ["42"]})
    return vf.ToolEnv(dataset=dataset, tools=[multiply], rubric=vf.Rubric(funcs=[exact]), max_turns=3)


def tries(state: Any) -> float:
    return state["won"] / state["tries"]


def guessing(number: int = 6) -> Any:
    class Guessing(vf.MultiTurnEnv):
        async def setup_state(self, state: Any) -> Any:
            state["tries"], state["won"] = 0, 0
            return state

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            state["tries"] += 1
            guess = int(messages[-1]["content"])
            if guess == number:
                state["won"] = 1
                state["final_env_response"] = [{"role": "user", "content": "Right."}]
                return state["final_env_response"]
            return [{"role": "user", "content": "higher" if guess < number else "lower"}]

    dataset = Dataset.from_dict({"question": ["Guess a number from 1 to 8."]})
    return Guessing(dataset=dataset, rubric=vf.Rubric(funcs=[tries]), max_turns=5)


def rows() -> Dataset:
    return calculator().get_dataset()


def prompts_of(environment: Any) -> list[Prompt]:
    return load_prompts(environment.get_dataset())


def started(source: str, environment: Any, row: int = 0, **settings: Any) -> tuple[VerifiersEnvironment, Any]:
    conversation = VerifiersEnvironment(f"{HERE}{source}", settings)
    return conversation, conversation.reset(prompts_of(environment)[row])


@pytest.mark.parametrize(("row", "text", "reward"), [(0, "4", 1.25), (1, "4", 0.25), (1, "It is 8", 0.0)])
def test_the_rubric_scores_a_single_turn(row: int, text: str, reward: float) -> None:
    environment = arithmetic()
    assert [message["role"] for message in prompts_of(environment)[row].messages or ()] == ["system", "user"]
    conversation, opening = started("arithmetic", environment, row)
    assert (opening.text, opening.tools) == ("", [])
    turn = conversation.step(text)
    assert (turn.done, turn.reward) == (True, reward)
    conversation.close()


def test_tools_answer_calls() -> None:
    conversation, opening = started("calculator", calculator())
    (tool,) = opening.tools
    assert tool["function"]["name"] == "multiply"
    turn = conversation.step("I multiply.\n" + hermes("multiply", '{"a": 6, "b": 7}'))
    assert [(result.name, result.text) for result in turn.results] == [("multiply", "42")]
    calls = [FunctionCall("multiply", {"a": 2, "b": 3}), FunctionCall("divide", {"a": 2})]
    turn = conversation.respond(AssistantMessage("", calls))
    assert turn.results[0].text == "6"
    assert "divide" in turn.results[1].text
    last = conversation.step("42")
    assert (last.done, last.reward) == (True, 1.0)
    assert conversation.instance["metrics"]["multiply_calls"] == 2
    texts = [message["content"] for message in conversation.instance["completion"] if message["role"] == "assistant"]
    assert texts == ["I multiply.", "", "42"]


def test_a_call_that_cannot_be_read_is_text() -> None:
    conversation, _ = started("calculator", calculator())
    text = "<tool_call>\n{bad\n</tool_call>"
    last = conversation.step(text)
    assert (last.done, last.reward) == (True, 0.0)
    assert conversation.instance["completion"] == [{"role": "assistant", "content": text}]


def test_a_run_reads_the_rows_of_a_function() -> None:
    (prompt,) = load_prompts(f"{HERE}rows")
    assert prompt.messages is not None
    assert prompt.messages[0]["content"] == "What is 6 times 7?"
    assert prompt.columns["answer"] == "42"


def test_turns_of_a_game_have_a_state_and_an_end() -> None:
    first, _ = started("guessing", guessing(), number=6)
    second, _ = started("guessing", guessing(), number=3)
    assert [first.step(guess).text for guess in ("4", "7")] == ["higher", "lower"]
    assert second.step("4").text == "lower"
    last = first.step("6")
    assert (last.done, last.reward) == (True, 1 / 3)
    assert [message["content"] for message in first.instance["completion"]] == [
        "4",
        "higher",
        "7",
        "lower",
        "6",
        "Right.",
    ]
    assert second.final_reward() == 0.0
    second.close()


def test_the_limit_of_turns_ends_a_conversation() -> None:
    conversation, _ = started("guessing", guessing())
    turns = [conversation.step("1") for _ in range(5)]
    assert [turn.done for turn in turns] == [False] * 4 + [True]
    assert turns[-1].reward == 0.0


def test_an_error_of_the_environment_is_raised() -> None:
    conversation, _ = started("guessing", guessing())
    with pytest.raises(ValueError, match="invalid literal"):
        conversation.step("six")


def group_rubric() -> Any:
    async def ranks(completions: list[Any]) -> list[float]:
        return [float(number) for number, _ in enumerate(completions)]

    return vf.SingleTurnEnv(dataset=Dataset.from_dict({"question": ["?"]}), rubric=vf.Rubric(funcs=[ranks]))


def rewriting() -> Any:
    class Rewriting(vf.SingleTurnEnv):
        async def setup_state(self, state: Any) -> Any:
            state["prompt"] = [{"role": "user", "content": "Another question"}]
            return state

    return Rewriting(dataset=Dataset.from_dict({"question": ["?"]}), rubric=vf.Rubric(funcs=[short]))


def test_wrong_environments_are_errors() -> None:
    with pytest.raises(ConfigError, match="group_rubric scores groups"):
        VerifiersEnvironment(f"{HERE}group_rubric")
    with pytest.raises(ConfigError, match="no_such_package of verifiers cannot be loaded"):
        VerifiersEnvironment("no_such_package")
    with pytest.raises(ConfigError, match="exact of verifiers cannot be loaded"):
        VerifiersEnvironment(f"{HERE}exact")
    with pytest.raises(DataError, match="replaces the prompt of the row"):
        started("rewriting", rewriting())
