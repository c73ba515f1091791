"""Recipes on stand-ins of their data sets: prompts and references of the rows, scores of answers, a training step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
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
from tests.data.test_videos import write_video
from tests.policies.families import daily
from tests.tiny.language_models import make

SHRUNK: dict[str, Any] = {
    "steps": 1,
    "rollout.prompts_per_step": 4,
    "rollout.group_size": 2,
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
        videos: paths of video files, relative to the rows.
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
    videos: Sequence[str] = ()


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
        "prompt": "Find the sum of the roots of x^2 - 3x + 1 = 0.",
        "solution": "3",
        "data_source": "math_dapo",
        "source_prompt": [{"content": "Solve the following math problem step by step.", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "3", "style": "rule-lighteval/MATH_v2"},
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
        columns={"answer": "3", "solution": "3"},
        held_out=test["problem"],
        right="By Vieta the sum is \\boxed{3}.",
        wrong="By Vieta the sum is \\boxed{-3}.",
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


def clevr() -> DataCase:
    """Rows as R1-V, src/distill_r1/create_hf_dataset.py, makes them, and its grpo.py reads them."""
    source = "leonardPKU/clevr_cogen_a_train"
    text = Value("string")
    rows = [
        {
            "image": image_bytes("white"),
            "problem": f"How many items are there in the image {number}?",
            "solution": f"<answer> {number} </answer>",
        }
        for number in range(3, 8)
    ]
    return DataCase(
        model="qwen2.5-vl",
        splits={source: {"train": rows}},
        features={source: Features({"image": Image(), "problem": text, "solution": text})},
        text="How many items are there in the image 3?",
        columns={"solution": "<answer> 3 </answer>"},
        held_out="How many items are there in the image 7?",
        right="<think>I count them.</think><answer>3</answer>",
        wrong="<think>I count them.</think><answer>4</answer>",
        changes={"prompts.split": "train[:4]", "evaluation.prompts.split": "train[-1:]"},
    )


def geometry3k() -> DataCase:
    """Card of hiyouga/geometry3k at 37e4933: images, problem, answer, id, choices and ground_truth; three splits."""
    source = "hiyouga/geometry3k"
    row = {
        "images": [image_bytes("white")],
        "problem": "<image>Find x.",
        "answer": "3",
        "id": 7,
        "choices": ["3", "4", "3 \\sqrt { 2 }", "4 \\sqrt { 2 }"],
        "ground_truth": "A",
    }
    text = Value("string")
    features = Features(
        {
            "images": List(Image()),
            "problem": text,
            "answer": text,
            "id": Value("int64"),
            "choices": List(text),
            "ground_truth": text,
        }
    )
    held_out = row | {"problem": "<image>Find y."}
    return DataCase(
        model="qwen2.5-vl",
        splits={source: {"train": [row] * 4, "validation": [row], "test": [held_out]}},
        features={source: features},
        text="Find x.",
        columns={"answer": "3"},
        held_out="Find y.",
        right="<think>It is a half square.</think>\\boxed{\\frac{6}{2}}",
        wrong="<think>It is a half square.</think>\\boxed{4}",
    )


def refcoco() -> DataCase:
    """Seg-Zero, verl/utils/rl_dataset.py and reward_score/seg.py; the card of lmms-lab/RefCOCOg.

    The stored images of Seg-Zero have 840 x 840 pixels, here a tenth along each edge.
    """
    source, held_out_source = "Ricky06662/refCOCOg_9k_840", "lmms-lab/RefCOCOg"
    text, number, image = Value("string"), Value("int64"), image_bytes("white", (84, 84))
    row = {
        "id": "15",
        "problem": "The man on the left.",
        "solution": "<box>(21,21),(42,63)</box><points>(30,40),(35,50)</points>",
        "image": image,
        "img_height": 480,
        "img_width": 640,
    }
    held_out = {
        "question_id": "1",
        "image": image,
        "question": "Please carefully observe the area circled in the image and come up with a caption for the area.",
        "answer": ["a red cup", "the cup"],
        "segmentation": [1.0, 2.0, 3.0, 4.0],
        "bbox": [21.0, 21.0, 21.0, 42.0],
        "iscrowd": 0,
        "file_name": "COCO_train2014_000000000001_0.jpg",
    }
    return DataCase(
        model="qwen3-vl",
        splits={source: {"train": [row] * 4}, held_out_source: {"val": [held_out], "test": [held_out]}},
        features={
            source: Features(
                dict.fromkeys(("id", "problem", "solution"), text)
                | {"image": Image(), "img_height": number, "img_width": number}
            ),
            held_out_source: Features(
                dict.fromkeys(("question_id", "question", "file_name"), text)
                | {
                    "image": Image(),
                    "answer": List(text),
                    "segmentation": List(Value("float32")),
                    "bbox": List(Value("float32")),
                    "iscrowd": Value("int8"),
                }
            ),
        },
        text="The man on the left.",
        columns={"solution": row["solution"]},
        held_out="a red cup",
        right='<think>There.</think><answer>{"bbox_2d": [250, 250, 500, 750]}</answer>',
        wrong='<think>There.</think><answer>{"bbox_2d": [21, 21, 42, 63]}</answer>',
    )


def gui() -> DataCase:
    """GUI-R1, verl/utils/dataset.py and reward_score/r1gui.py: boxes and points as fractions of the image's edges.

    An image of 24 x 16 pixels has 84 x 56 after Qwen2.5-VL's processor.
    """
    train, test = "ritzzai/GUI-R1:train.parquet", "ritzzai/GUI-R1:test.parquet"
    row = {
        "image": image_bytes("white"),
        "instruction": "open the settings",
        "history": "None",
        "task_type": "high",
        "gt_action": "click",
        "gt_bbox": [0.25, 0.25, 0.5, 0.75],
        "gt_input_text": "no input text",
    }
    typed = row | {"gt_action": "type", "gt_bbox": [-100.0, -100.0], "gt_input_text": "coffee shops"}
    text = Value("string")
    features = {
        name: List(Value("float64")) if name == "gt_bbox" else Image() if name == "image" else text for name in row
    }
    as_bytes = features | {"image": {"bytes": Value("binary"), "path": text}}
    return DataCase(
        model="qwen2.5-vl",
        splits={train: {"train": [row] * 3 + [typed]}, test: {"test": [typed]}},
        features={train: Features(features), test: Features(as_bytes)},
        text="open the settings\nActions so far: None",
        columns={"answer": {"action": "click", "bbox": [0.25, 0.25, 0.5, 0.75], "text": "no input text"}},
        held_out="open the settings\nActions so far: None",
        right='<think>The wheel.</think><answer>{"action": "click", "coordinate": [30, 28], "text": ""}</answer>',
        wrong='<think>The wheel.</think><answer>{"action": "click", "coordinate": [60, 28], "text": ""}</answer>',
    )


def nextqa() -> DataCase:
    """Rows of nextqa_0-30s.jsonl as verl, examples/data_preprocess/tinyllava_video_r1.py, reads them."""
    row = {
        "problem": "What animal is shown?\nOptions:\nA. owl.\nB. sheep.\nC. cat.\nD. dog.\nE. hen.",
        "solution": "<answer>B</answer>",
        "video_filename": "./NextQA/NExTVideo/1164/3238737531.mp4",
    }
    features = Features(dict.fromkeys(row, Value("string")))
    held_out = row | {"problem": row["problem"].replace("animal is", "animals are")}
    return DataCase(
        model="qwen2.5-vl",
        splits={"nextqa/train.jsonl": {"train": [row] * 4}, "nextqa/held_out.jsonl": {"held_out": [held_out]}},
        features={"nextqa/train.jsonl": features, "nextqa/held_out.jsonl": features},
        text=row["problem"],
        columns={"solution": "<answer>B</answer>"},
        held_out=held_out["problem"],
        right="<think>They have wool.</think><answer>B</answer>",
        wrong="<think>They have wool.</think><answer>A</answer>",
        videos=("NextQA/NExTVideo/1164/3238737531.mp4",),
    )


CASES = {
    "qwen2.5-gsm8k": gsm8k,
    "qwen2.5-countdown": countdown,
    "qwen2.5-dapo-math": dapo_math,
    "qwen2.5-vl-chartqa": chartqa,
    "qwen2.5-vl-clevr-count": clevr,
    "qwen2.5-vl-geometry3k": geometry3k,
    "qwen2.5-vl-gui": gui,
    "qwen2.5-vl-nextqa": nextqa,
    "qwen3-vl-refcoco": refcoco,
}


def configured(name: str, folder: Path, changes: Mapping[str, Any] | None = None) -> tuple[DataCase, RunConfig]:
    """The case of a recipe and its configuration, with stand-ins in a folder."""
    case = CASES[name]()
    sources = {
        source: write_standin(folder / str(number), source, splits, case.features[source])
        for number, (source, splits) in enumerate(case.splits.items())
    }
    for rows, video in product(sources.values(), case.videos):
        (rows.parent / video).parent.mkdir(parents=True)
        write_video(rows.parent / video)
    return case, standin_config(f"recipes/{name}", sources, {**case.changes, **(changes or {})})


@pytest.mark.parametrize("name", CASES)
def test_rows_of_the_data_set_become_prompts_and_references(name: str, tmp_path: Path) -> None:
    case, config = configured(name, tmp_path)
    (prompt, *_), (held_out, *_) = prompts_of(config)
    assert prompt.text == case.text
    assert held_out.text == case.held_out
    assert {key: prompt.columns[key] for key in case.columns} == case.columns
    media = "videos" if case.videos else "images"
    assert len(getattr(prompt, media)) == len(getattr(held_out, media)) == ("-vl-" in name)


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
    settings = {
        key: value for key, value in config.policy.settings.items() if key not in ("model", "processor", "dtype")
    }
    policy = LanguagePolicy(*make(model), settings)
    folder = Trainer(policy, build_rewards(config.rewards), prompts, config).train()
    metrics, evaluation = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "evaluation.jsonl")
    )
    return metrics[0], evaluation[-1]


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(CASES, "qwen2.5-vl-clevr-count"))
def test_a_step_trains_on_the_data_set(name: str, tmp_path: Path) -> None:
    larger = {"rollout.group_size": 8} if name in ("qwen2.5-dapo-math", "qwen2.5-vl-geometry3k") else {}
    # DAPO trains only groups in which the tiny model states the right number once, in about one answer of a hundred
    case, config = configured(name, tmp_path, {**SHRUNK, **larger, "output": str(tmp_path / "run")})
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


def reasoning_gym(**changes: Any) -> RunConfig:
    """The recipe with two tasks of each kind."""
    pytest.importorskip("reasoning_gym")
    config = load_config("recipes/qwen2.5-reasoning-gym", changes)
    assert config.prompts is not None
    small = {
        "sources": [
            part.model_copy(update={"source": part.source.replace("4000", "2")}) for part in config.prompts.sources
        ]
    }
    return config.model_copy(update={"prompts": config.prompts.model_copy(update=small)})


@pytest.mark.nightly
def test_a_step_trains_on_tasks_of_reasoning_gym(tmp_path: Path) -> None:
    config = reasoning_gym(**SHRUNK, output=str(tmp_path / "run"))
    metrics, evaluation = trained(config, prompts_of(config)[0], "qwen2")
    assert metrics["reward/reasoning_gym/applies_frac"] == 1.0
    assert metrics["policy/on_policy_gap"] < 1e-5
    assert {"eval/held_out_accuracy/mean", "eval/held_out_exact/mean"} <= set(evaluation)


@pytest.mark.nightly
def test_tasks_of_reasoning_gym_need_no_data() -> None:
    config = reasoning_gym()
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
    assert recipes - {*CASES} == {"qwen2.5-reasoning-gym"}


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


def test_boxes_of_the_grounding_evaluation_have_width_and_height(tmp_path: Path) -> None:
    case, config = configured("qwen3-vl-refcoco", tmp_path)
    assert config.evaluation is not None
    _, (held_out, *_) = prompts_of(config)
    config = config.model_copy(update={"rewards": config.evaluation.rewards})
    # of 84 pixels: 21 to 42 and 21 to 63 are 250 to 500 and 250 to 750 of 1000; half of it has an overlap of 0.5
    half = case.right.replace("750", "500")
    assert scores_of(config, held_out, [case.right, half, case.wrong]) == pytest.approx([2.0, 1.5, 0.0])


def test_actions_of_gui_r1_may_be_points_and_texts(tmp_path: Path) -> None:
    _, config = configured("qwen2.5-vl-gui", tmp_path)
    prompts, _ = prompts_of(config)

    def scores(prompt: Prompt, *actions: Mapping[str, Any]) -> list[float]:
        return scores_of(config, prompt, [f"<answer>{json.dumps(action)}</answer>" for action in actions])

    # F1 of the words: "coffee" of two and two is 1/2, which the threshold of 1/2 takes
    texts = [{"action": "type", "text": text} for text in ("coffee shop", "tea")]
    assert scores(prompts[3], *texts) == pytest.approx([0.8, 0.0])
    answer = {"action": "click", "bbox": [0.5, 0.5], "text": "no input text"}
    point = replace(prompts[0], columns={**prompts[0].columns, "answer": answer})
    # 42, 28 is the middle of 84 x 56; 11 pixels are 0.131 of the width, 8 are 0.143 of the height
    clicks = [{"action": "click", "coordinate": position} for position in ([53, 28], [42, 36])]
    assert scores(point, *clicks) == pytest.approx([0.8, 0.0])
