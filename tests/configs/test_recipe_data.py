"""Recipes on stand-ins of their data sets: prompts and references of the rows, scores of answers, a training step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Features, Image, List, Value
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config, shipped
from mmgrpo.training.build import build_rewards
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt
from tests.configs.standin_data import Rows, image_bytes, prompts_of, scores_of, standin_config, write_standin
from tests.tiny.language_models import make

SHRUNK: dict[str, Any] = {
    "steps": 1,
    "rollout.prompts_per_step": 4,
    "rollout.group_size": 2,
    "policy.dtype": "float32",
    "policy.max_new_tokens": 6,
    "runtime.device": "cpu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataCase:
    """A recipe with its data set in small.

    Attributes:
        model: tiny model of the class that the recipe trains.
        splits: rows of each split, by source of the recipe.
        features: their columns and types, by source.
        text: the text of the first training prompt.
        columns: its columns for the rewards.
        held_out: the text of the first prompt of the evaluation.
        right: an answer in the recipe's format that is right.
        wrong: one in that format that is wrong.
        changes: overrides of the run, such as a smaller part of a split.
    """

    model: str
    splits: Mapping[str, Mapping[str, Rows]]
    features: Mapping[str, Features]
    text: str
    columns: Mapping[str, Any]
    held_out: str
    right: str
    wrong: str
    changes: Mapping[str, Any] = field(default_factory=dict)


def gsm8k() -> DataCase:
    """Card of openai/gsm8k at 60b4b82 (configurations main and socratic, question and answer, both texts)."""
    answer = "She sold 48/2 = <<48/2=24>>24 clips in May.\nIn all 48+24 = <<48+24=72>>72.\n#### 72"
    rows = [
        {"question": f"Natalia sold clips to 48 friends, day {day}. How many?", "answer": answer} for day in range(4)
    ]
    thousands = {"question": "How much does he earn?", "answer": "He earns $1,250 twice.\n#### 2,500"}
    return DataCase(
        model="qwen2",
        splits={"openai/gsm8k:main": {"train": rows, "test": [thousands, *rows]}},
        features={"openai/gsm8k:main": Features({"question": Value("string"), "answer": Value("string")})},
        text="Natalia sold clips to 48 friends, day 0. How many?",
        columns={"answer": answer},
        held_out="How much does he earn?",
        right="<think>48 + 24</think>The total is \\boxed{72}.",
        wrong="<think>48 + 24</think>The total is \\boxed{48}.",
    )


def countdown() -> DataCase:
    """Schema of Jiayi-Pan/Countdown-Tasks-3to4 in TinyZero, examples/data_preprocess/countdown.py: target and nums."""
    source = "Jiayi-Pan/Countdown-Tasks-3to4"
    numbers = [([44, 19, 35], 98), ([63, 95, 96], 64), ([95, 11, 56], 28), ([19, 74, 45], 48), ([49, 41, 73], 17)]
    ask = "Using each of the numbers {} once, with +, -, * and / and parentheses, write an expression that equals {}."
    return DataCase(
        model="qwen2",
        splits={source: {"train": [{"target": target, "nums": nums} for nums, target in numbers]}},
        features={source: Features({"target": Value("int64"), "nums": List(Value("int64"))})},
        text=ask.format("[44, 19, 35]", 98),
        columns={"target": 98, "nums": [44, 19, 35]},
        held_out=ask.format("[49, 41, 73]", 17),
        right="<think>44 + 19 is 63</think><answer>44 + 19 + 35</answer>",
        wrong="<think>44 + 19 is 63</think><answer>44 + 54</answer>",
        changes={"prompts.split": "train[:4]", "evaluation.prompts.split": "train[-1:]"},
    )


def dapo_math() -> DataCase:
    """Columns of open-r1/DAPO-Math-17k-Processed in its create_dataset.py, types in cards of copies; MATH-500."""
    processed, math_500 = "open-r1/DAPO-Math-17k-Processed:en", "HuggingFaceH4/MATH-500"
    row = {
        "prompt": "Find the sum of the roots of x^2 - 34x + 1 = 0.",
        "solution": "34",
        "data_source": "math_dapo",
        "source_prompt": [{"content": "Solve the following math problem step by step.", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4"},
    }
    test = {
        "problem": "Convert $(0,3)$ to polar coordinates.",
        "solution": "So it is $\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}.$",
        "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
        "subject": "Precalculus",
        "level": 2,
        "unique_id": "test/precalculus/807.json",
    }
    text = Value("string")
    nested = {
        "source_prompt": List({"content": text, "role": text}),
        "reward_model": {"ground_truth": text, "style": text},
        "extra_info": {"index": text},
    }
    plain = dict.fromkeys(("prompt", "solution", "data_source", "ability"), text)
    return DataCase(
        model="qwen2",
        splits={processed: {"train": [row] * 4}, math_500: {"test": [test]}},
        features={
            processed: Features({name: (plain | nested)[name] for name in row}),
            math_500: Features({name: Value("int64") if name == "level" else text for name in test}),
        },
        text=row["prompt"],
        columns={"answer": "34", "solution": "34"},
        held_out=test["problem"],
        right="By Vieta the sum is \\boxed{34}.",
        wrong="By Vieta the sum is \\boxed{-34}.",
    )


def chartqa() -> DataCase:
    """Card of HuggingFaceM4/ChartQA at c9de78f: image, query, label (a list of texts) and human_or_machine."""
    source = "HuggingFaceM4/ChartQA"
    row = {
        "image": image_bytes("white"),
        "query": "How many food items are shown?",
        "label": ["14"],
        "human_or_machine": 0,
    }
    features = Features(
        {
            "image": Image(),
            "query": Value("string"),
            "label": List(Value("string")),
            "human_or_machine": ClassLabel(names=["human", "machine"]),
        }
    )
    return DataCase(
        model="qwen2.5-vl",
        splits={source: {"train": [row] * 4, "val": [row | {"query": "Which year?", "label": ["2010"]}]}},
        features={source: features},
        text="How many food items are shown?",
        columns={"label": ["14"], "human_or_machine": 0},
        held_out="Which year?",
        right="<think>I count them.</think><answer>14</answer>",
        wrong="<think>I count them.</think><answer>15</answer>",
    )


CASES = {
    "qwen2.5-gsm8k": gsm8k,
    "qwen2.5-countdown": countdown,
    "qwen2.5-dapo-math": dapo_math,
    "qwen2.5-vl-chartqa": chartqa,
}


def configured(name: str, folder: Path, changes: Mapping[str, Any] | None = None) -> tuple[DataCase, RunConfig]:
    """The case of a recipe and its configuration, with stand-ins in a folder."""
    case = CASES[name]()
    sources = {
        source: write_standin(folder / str(number), splits, case.features[source])
        for number, (source, splits) in enumerate(case.splits.items())
    }
    return case, standin_config(f"recipes/{name}", sources, {**case.changes, **(changes or {})})


@pytest.mark.parametrize("name", CASES)
def test_rows_of_the_data_set_become_prompts_and_references(name: str, tmp_path: Path) -> None:
    case, config = configured(name, tmp_path)
    (prompt, *_), (held_out, *_) = prompts_of(config)
    assert prompt.text == case.text
    assert held_out.text == case.held_out
    assert {key: prompt.columns[key] for key in case.columns} == case.columns
    assert len(prompt.images) == len(held_out.images) == ("-vl-" in name)


@pytest.mark.parametrize("name", CASES)
def test_a_right_answer_has_the_full_reward_and_a_wrong_one_has_not(name: str, tmp_path: Path) -> None:
    case, config = configured(name, tmp_path)
    (prompt, *_), _ = prompts_of(config)
    right, wrong = scores_of(config, prompt, [case.right, case.wrong])
    assert right == pytest.approx(sum(reward.weight for reward in config.rewards))
    assert wrong <= 0.5 * right


def trained(config: RunConfig, prompts: Sequence[Prompt], model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first lines of the metrics and of the evaluation after one step with a tiny model."""
    assert config.policy is not None
    settings = {key: value for key, value in config.policy.settings.items() if key not in ("model", "processor")}
    policy = LanguagePolicy(*make(model), settings)
    folder = Trainer(policy, build_rewards(config.rewards), prompts, config).train()
    metrics, evaluation = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "evaluation.jsonl")
    )
    return metrics[0], evaluation[-1]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [name for name in CASES if name != "qwen2.5-dapo-math"]
)  # it trains right answers only
def test_a_step_trains_on_the_data_set(name: str, tmp_path: Path) -> None:
    case, config = configured(name, tmp_path, {**SHRUNK, "output": str(tmp_path / "run")})
    metrics, evaluation = trained(config, prompts_of(config)[0], case.model)
    for reward in config.rewards:
        assert metrics[f"reward/{reward.logged_name}/applies_frac"] == 1.0
    assert metrics["policy/on_policy_gap"] < 1e-5
    assert evaluation["step"] == 1
    assert "eval/held_out_accuracy/mean" in evaluation


def test_thousands_of_gsm8k_are_one_number(tmp_path: Path) -> None:
    _, config = configured("qwen2.5-gsm8k", tmp_path)
    _, (held_out, *_) = prompts_of(config)
    right = "<think>1250 * 2</think>\\boxed{2500}"
    assert scores_of(config, held_out, [right, right.replace("{2500}", "{2}")]) == pytest.approx([1.0, 0.1])


@pytest.mark.nightly
def test_tasks_of_reasoning_gym_need_no_data() -> None:
    config = load_config("recipes/qwen2.5-reasoning-gym")
    assert config.prompts is not None
    small = {
        "sources": [
            part.model_copy(update={"source": part.source.replace("4000", "2")}) for part in config.prompts.sources
        ]
    }
    config = config.model_copy(update={"prompts": config.prompts.model_copy(update=small)})
    prompts, held_out = prompts_of(config)
    assert [prompt.source for prompt in prompts] == [
        name for name in ("chain_sum", "leg_counting", "family_relationships") for _ in range(2)
    ]
    assert len(held_out) == 200
    assert {prompt.text for prompt in held_out}.isdisjoint(prompt.text for prompt in prompts)
    prompt = prompts[0]
    right, wrong = scores_of(config, prompt, [f"<think>a</think><answer>{prompt.columns['answer']}</answer>", "no"])
    assert right == pytest.approx(1.0)
    assert wrong <= 0.1


def test_every_recipe_of_a_language_model_has_its_data_set_in_small() -> None:
    recipes = {name.removeprefix("recipes/") for name in shipped("recipes") if "qwen" in name}
    of_jsonl = {"qwen2.5-vl-clevr-count", "qwen2.5-vl-geometry3k", "qwen2.5-vl-gui", "qwen3-vl-refcoco"}
    assert recipes - {*CASES} == {"qwen2.5-reasoning-gym", *of_jsonl}


@pytest.mark.parametrize("name", ["qwen2.5-gsm8k", "qwen2.5-vl-clevr-count", "sd3.5-flow-grpo-ocr", "wan-flow-grpo"])
def test_the_qlora_file_quantizes_any_recipe(name: str) -> None:
    plain, config = load_config(f"recipes/{name}"), load_config(f"recipes/{name}", ["include=qlora", "steps=7"])
    assert config.policy is not None
    assert plain.policy is not None
    changed = {key for key, value in config.policy.settings.items() if plain.policy.settings.get(key) != value}
    assert changed - {"gradient_checkpointing"} == {"quantization_config"}
    assert config.policy.settings["gradient_checkpointing"] is True
    assert config.policy.settings["quantization_config"]["bnb_4bit_quant_type"] == "nf4"
    assert config.about.name == name
    assert config.steps == 7
    same = {"policy": plain.policy, "steps": plain.steps}
    assert config.model_copy(update=same) == plain


def test_the_value_of_countdown_is_checked_by_another_verifier(tmp_path: Path) -> None:
    case, config = configured("qwen2.5-countdown", tmp_path)
    assert config.evaluation is not None
    (prompt, *_), _ = prompts_of(config)
    held_out = config.model_copy(update={"rewards": config.evaluation.rewards})
    assert scores_of(held_out, prompt, [case.right, "<answer>98</answer>", "<answer>44 + 19</answer>"]) == [
        2.0,
        1.0,
        0.0,
    ]


def test_expressions_of_math_500_are_read(tmp_path: Path) -> None:
    _, config = configured("qwen2.5-dapo-math", tmp_path)
    _, (held_out, *_) = prompts_of(config)
    answers = ["It is \\boxed{(3, \\pi/2)}.", "It is \\boxed{(3, \\pi)}."]
    assert scores_of(config, held_out, answers) == [1.0, 0.0]
