"""Examples of TRL's documentation (grpo_trainer.md), with ``trl`` and with ``mmgrpo.trl`` as the only difference."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from mmgrpo.policies.language import LanguagePolicy
from PIL import Image
from transformers.utils import get_json_schema
from trl.rewards import accuracy_reward

from tests.tiny.counting import IncrementEnv, TargetEnv, examples_of, question
from tests.tiny.tool_callers import answered, ask, caller, example, hermes, vision_caller

SMALL: dict[str, Any] = {
    "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 160, "temperature": 0.1,
    "learning_rate": 1e-9, "use_cpu": True, "bf16": False, "logging_steps": 1, "save_strategy": "no",
    "gradient_checkpointing": False,
}  # fmt: skip
"""Sizes for a test on a CPU; the examples have the defaults."""


@pytest.fixture(params=[pytest.param("trl", marks=pytest.mark.nightly), "mmgrpo.trl"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    with warnings.catch_warnings(action="ignore"):
        yield importlib.import_module(request.param)


class GameEnv:
    def reset(self, **kwargs: Any) -> str:
        self.moves = 0
        return "Reach the goal tile."

    def move(self, action: str) -> str:
        """Apply an action to the game and return the new observation.

        Args:
            action: One of "up", "down", "left", "right".

        Returns:
            The observation after the move.
        """
        self.moves += 1
        return f"You moved {action}."


def multiply(a: int, b: int) -> int:
    """
    Multiplies two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The product of the two integers.
    """
    return a * b


async def async_add(a: int, b: int) -> int:
    """
    Asynchronously adds two integers.

    Args:
        a: The first integer.
        b: The second integer.

    Returns:
        The sum of the two integers.
    """
    return a + b


def take_screenshot() -> list:
    """
    Takes a screenshot of the current screen.

    Returns:
        The screenshot image with a description.
    """
    return [{"type": "image", "image": SCREENSHOT}, {"type": "text", "text": "Here is the screenshot."}]


SCREENSHOT = Image.new("RGB", (16, 16), "red")


def saved(policy: LanguagePolicy, folder: Path) -> str:
    policy.model.save_pretrained(folder)
    policy.processor.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that increments the counter as it is asked to, and that moves up in the game."""
    moves = [get_json_schema(GameEnv.move)]
    goal = "Reach the goal tile."
    examples = [
        *examples_of((1, 2, 3)),
        example(ask(goal), moves, hermes("move", '{"action": "up"}')),
        example(answered(goal, "move", {"action": "up"}, "You moved up."), moves, "Done."),
    ]  # fmt: skip
    return saved(caller("qwen3", examples), tmp_path_factory.mktemp("counting"))


@pytest.fixture(scope="module")
def calculating(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that multiplies and adds with tools."""
    tools = [get_json_schema(multiply), get_json_schema(async_add)]
    product, total = "What is 6 times 7?", "What is 6 plus 7?"
    arguments = {"a": 6, "b": 7}
    examples = [
        example(ask(product), tools, hermes("multiply", '{"a": 6, "b": 7}')),
        example(answered(product, "multiply", arguments, "42"), tools, "It is 42."),
        example(ask(total), tools, hermes("async_add", '{"a": 6, "b": 7}')),
        example(answered(total, "async_add", arguments, "13"), tools, "It is 13."),
    ]
    return saved(caller("qwen3", examples), tmp_path_factory.mktemp("calculating"))


@pytest.fixture(scope="module")
def solving(tmp_path_factory: pytest.TempPathFactory) -> str:
    examples = [example(ask("What is 2 + 2?"), [], r"It is \boxed{4}.")]
    return saved(caller("qwen3", examples), tmp_path_factory.mktemp("solving"))


@pytest.fixture(scope="module")
def viewing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A vision-language model that takes a screenshot and says its color."""
    tools, question = [get_json_schema(take_screenshot)], "What color is the screen?"
    blocks = [{"type": "image"}, {"type": "text", "text": "Here is the screenshot."}]
    answer = example(answered(question, "take_screenshot", {}, blocks), tools, "It is red.")
    examples = [
        example(ask(question), tools, hermes("take_screenshot", "{}")),
        replace(answer, prompt=replace(answer.prompt, images=[SCREENSHOT])),
    ]
    return saved(vision_caller(examples), tmp_path_factory.mktemp("viewing"))


def last_logs(trainer: Any) -> dict[str, Any]:
    trainer.train()
    return [line for line in trainer.state.log_history if "reward" in line][-1]


@pytest.mark.nightly
def test_quick_start(library: Any, solving: str, tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"prompt": [ask("What is 2 + 2?")] * 4, "solution": ["$4$"] * 4})
    trainer = library.GRPOTrainer(
        model=solving,
        reward_funcs=accuracy_reward,
        args=library.GRPOConfig(output_dir=str(tmp_path), num_train_epochs=1, **SMALL),
        train_dataset=dataset,
    )
    logs = last_logs(trainer)
    assert (logs["rewards/accuracy_reward/mean"], trainer.state.global_step) == (1.0, 2)


def test_rewards_of_several_tasks(library: Any, solving: str, tmp_path: Path) -> None:
    dataset = Dataset.from_list([{"prompt": "What is 2+2?", "task": "math"}, {"prompt": "Add.", "task": "code"}])

    def math_reward_func(prompts: Any, completions: Any, task: list[str], **kwargs: Any) -> list[float | None]:
        return [1.0 if t == "math" else None for t in task]

    async def coding_reward_func(completions: Any, task: list[str], **kwargs: Any) -> list[float | None]:
        return [0.5 if t == "code" else None for t in task]

    logs = last_logs(
        library.GRPOTrainer(
            model=solving,
            reward_funcs=[math_reward_func, coding_reward_func],
            args=library.GRPOConfig(output_dir=str(tmp_path), max_steps=1, **SMALL),
            train_dataset=dataset,
        )
    )
    assert logs["reward"] == 0.75
    names = ("rewards/math_reward_func/mean", "rewards/coding_reward_func/mean")
    assert [logs[name] for name in names] == [1.0, 0.5]


@pytest.mark.nightly
def test_rewards_log_columns_and_metrics(library: Any, solving: str, tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"prompt": [ask("What is 2 + 2?")] * 2, "solution": ["4", "5"]})

    def accuracy(completions: Any, solution: list[str], log_extra: Any = None, log_metric: Any = None, **kwargs: Any):
        extracted = [completion[0]["content"].partition("{")[2].partition("}")[0] for completion in completions]
        rewards = [float(e == s) for e, s in zip(extracted, solution, strict=True)]
        log_extra("extracted_answer", extracted)
        log_metric("accuracy", sum(rewards) / len(rewards))
        return rewards

    trainer = library.GRPOTrainer(
        model=solving,
        reward_funcs=accuracy,
        args=library.GRPOConfig(output_dir=str(tmp_path), max_steps=1, eval_strategy="steps", eval_steps=1, **SMALL),
        train_dataset=dataset,
        eval_dataset=dataset.select([0, 0]),
    )
    assert last_logs(trainer)["accuracy"] == 0.5
    assert trainer.evaluate()["eval_accuracy"] == 1.0


@pytest.mark.nightly
def test_tools(library: Any, calculating: str, tmp_path: Path) -> None:
    dataset = Dataset.from_dict(
        {"prompt": [ask("What is 6 times 7?"), ask("What is 6 plus 7?")], "answer": ["It is 42.", "It is 13."]}
    )

    def correct(completions: Any, answer: list[str], **kwargs: Any) -> list[float]:
        return [float(c[-1]["content"] == a and len(c) == 3) for c, a in zip(completions, answer, strict=True)]

    trainer = library.GRPOTrainer(
        model=calculating,
        reward_funcs=correct,
        args=library.GRPOConfig(output_dir=str(tmp_path), max_steps=1, **SMALL),
        train_dataset=dataset,
        tools=[multiply, async_add],
    )
    assert last_logs(trainer)["rewards/correct/mean"] == 1.0


@pytest.mark.nightly
def test_tools_that_return_images(library: Any, viewing: str, tmp_path: Path) -> None:
    def correct(completions: Any, **kwargs: Any) -> list[float]:
        call, result, *_ = completions[0]
        images = [block["image"] for block in result["content"] if block["type"] == "image"]
        assert call["tool_calls"][0]["function"]["name"] == "take_screenshot"
        assert [image.getpixel((0, 0)) for image in images] == [(255, 0, 0)]
        assert result["content"][1:] == [{"type": "text", "text": "Here is the screenshot."}]
        return [float(completion[-1] == {"role": "assistant", "content": "It is red."}) for completion in completions]

    trainer = library.GRPOTrainer(
        model=viewing,
        reward_funcs=correct,
        args=library.GRPOConfig(output_dir=str(tmp_path), max_steps=1, **SMALL),
        train_dataset=Dataset.from_dict({"prompt": [ask("What color is the screen?")] * 2}),
        tools=[take_screenshot],
    )
    logs = last_logs(trainer)
    turns = [hermes("take_screenshot", "{}"), "It is red."]
    tokens = trainer.processing_class.tokenizer([f"{turn}<|im_end|>" for turn in turns])
    assert logs["rewards/correct/mean"] == 1.0
    assert logs["completions/mean_length"] == sum(map(len, tokens["input_ids"]))


@pytest.mark.nightly
def test_an_environment_that_writes_its_prompts(library: Any, counting: str, tmp_path: Path) -> None:
    trainer = library.GRPOTrainer(
        model=counting,
        args=library.GRPOConfig(output_dir=str(tmp_path), max_steps=2, **SMALL),
        environment_factory=IncrementEnv,
    )
    assert last_logs(trainer)["rewards/IncrementEnv/mean"] == 1.0


@pytest.mark.nightly
def test_an_environment_with_a_dataset_and_a_reward_function(library: Any, counting: str, tmp_path: Path) -> None:
    prompts = [ask(question(i)) for i in (1, 2)]
    dataset = Dataset.from_dict({"prompt": prompts, "target": [1, 3]})  # the second one cannot be reached

    def format_reward(completions: Any, **kwargs: Any) -> list[float]:
        return [float(completion[-1]["content"] == "Done.") for completion in completions]

    trainer = library.GRPOTrainer(
        model=counting,
        args=library.GRPOConfig(output_dir=str(tmp_path), max_steps=1, reward_weights=[0.5], **SMALL),
        reward_funcs=format_reward,
        train_dataset=dataset,
        environment_factory=TargetEnv,
    )
    logs = last_logs(trainer)
    assert [logs[f"rewards/{name}/mean"] for name in ("format_reward", "TargetEnv")] == [1.0, 0.5]
    assert logs["reward"] == 1.0


def test_several_environments(library: Any, counting: str, tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"environment": ["counter", "game"]})

    def reward_func(environments: list[Any], **kwargs: Any) -> list[float]:
        return [e.moves / 4 if isinstance(e, GameEnv) else float(e.counter == e.target) for e in environments]

    trainer = library.GRPOTrainer(
        model=counting,
        args=library.GRPOConfig(output_dir=str(tmp_path), max_steps=1, **SMALL),
        train_dataset=dataset,
        reward_funcs=reward_func,
        environment_factory={"counter": IncrementEnv, "game": GameEnv},
    )
    logs = last_logs(trainer)
    assert (logs["rewards/reward_func/mean"], logs["rewards/IncrementEnv/mean"]) == (0.625, 1.0)
