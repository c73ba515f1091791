"""Arguments of a row for the chat template, and messages that a template rejects."""

from __future__ import annotations

from typing import Any

import pytest
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo.data.prompt_rows import prompt_of_row
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt
from tests.policies import tiny_image_tokens, tiny_masked
from tests.tiny.language_models import make

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
WITH_TOOLS = "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}"


def row(**columns: Any) -> Prompt:
    return prompt_of_row(columns, "prompt", where="row 0", folder=None)


def policy(name: str, before: str = "", **settings: Any) -> LanguagePolicy:
    model, processor = make(name)
    if before:
        processor.chat_template = before + processor.chat_template  # pyrefly: ignore[unsupported-operation]
    return LanguagePolicy(model, processor, {"max_new_tokens": 2, **settings})


def encoded(policy: LanguagePolicy, prompt: Prompt) -> str:
    return policy.processor.decode(policy._encoder(prompt).ids_P)


def test_tools_of_a_row_reach_the_template() -> None:
    prompt = row(prompt=[{"role": "user", "content": "hi"}], tools=[TOOL])
    assert '"name": "weather"' in encoded(policy("qwen3", WITH_TOOLS), prompt)
    assert "weather" not in encoded(policy("qwen3", WITH_TOOLS), row(prompt=[{"role": "user", "content": "hi"}]))


def test_tools_reach_the_template_of_a_processor() -> None:
    prompt = row(prompt="hi", tools=[TOOL])
    assert "weather" in encoded(policy("qwen2.5-vl", WITH_TOOLS), prompt)


def test_arguments_of_a_row_override_those_of_the_policy() -> None:
    template = "{% if mood %}MOOD {{ mood }}\n{% endif %}"
    prompt = row(prompt="hi", chat_template_kwargs={"mood": "good"})
    assert "MOOD good" in encoded(policy("qwen3", template, template={"mood": "bad"}), prompt)


def test_arguments_without_a_use_are_an_error() -> None:
    with pytest.raises(DataError, match=r"sets tools for the chat template, .* does not use it"):
        policy("llama").check_prompt(row(prompt="hi", tools=[TOOL]))
    with pytest.raises(DataError, match="for a chat template, but none is used"):
        policy("llama", chat=False).check_prompt(row(prompt="hi", tools=[TOOL]))


def test_null_content_with_tool_calls_is_accepted() -> None:
    call = {"type": "function", "function": {"name": "w", "arguments": {"city": "Paris"}}}
    turns = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny", "name": "w"},
    ]
    empty = [{**turn, "content": turn["content"] or ""} for turn in turns]
    for name in ("qwen3", "qwen2.5-vl"):
        writes = policy(name)
        assert encoded(writes, row(prompt=turns)) == encoded(writes, row(prompt=empty))


@pytest.mark.parametrize(
    ("name", "settings", "turns"),
    [
        ("gemma2", {"system": "be nice"}, [("user", "hi")]),
        ("mistral", {}, [("system", "x"), ("user", "hi")]),
    ],
)
def test_messages_that_a_template_rejects_raise_with_the_prompt(
    name: str, settings: dict[str, Any], turns: list[Any]
) -> None:
    prompt = row(prompt=[{"role": role, "content": content} for role, content in turns])
    with pytest.raises(DataError, match=rf"rejects the prompt '{turns[-1][1]}' with the turns") as raised:
        policy(name, **settings).rollout([prompt], group_size=1, seed=0)
    assert "policy.system" in str(raised.value)


@pytest.mark.parametrize(
    "policy", [tiny_masked.policy_of("eurobert"), tiny_image_tokens.policy_of("janus")], ids=["masked", "image tokens"]
)
def test_prompts_beyond_the_context_or_with_arguments_without_a_template_are_an_error(policy: Any) -> None:
    policy.check_prompt(Prompt("red"))
    with pytest.raises(DataError, match=r"prompt 'red red .* are more than the model's context of"):
        policy.check_prompt(Prompt("red " * 9_000))
    with pytest.raises(DataError, match=r"sets tools for (a|the) chat template"):
        policy.check_prompt(Prompt("red", chat_template_kwargs={"tools": [TOOL]}))
