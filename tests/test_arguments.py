"""First attempts of users: a path for a policy, one function for rewards, a dataset or rows for prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy
from typer.testing import CliRunner

from mmgrpo import Prompt, Trainer
from mmgrpo.cli import app
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config, validated
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.training.arguments import policy_of, prompts_of, rewards_of
from mmgrpo.training.build import build_policy
from tests.tiny.language_models import make
from tests.tiny.pipelines import PIPELINES

ROWS = [{"prompt": "what number is this", "answer": "4"}, {"prompt": "say one word", "answer": "7"}]
LANGUAGE = {"policy": {"name": "language", "max_new_tokens": 3}}


def length(prompts: list[Any], completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """In TRL's form."""
    return [len(str(completion)) + float(number) for completion, number in zip(completions, answer, strict=True)]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    model, processor = make("llama")
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def test_a_path_one_function_and_a_dataset_train(model_folder: Path, tmp_path: Path) -> None:
    values = {
        **LANGUAGE, "output": str(tmp_path), "steps": 1, "rollout": {"prompts_per_step": 2, "group_size": 2},
        "runtime": {"device": "cpu"},
    }  # fmt: skip
    trainer = Trainer(str(model_folder), length, Dataset.from_list(ROWS), values)
    assert isinstance(trainer.policy, LanguagePolicy)
    trainer.train()
    (line,) = [json.loads(text) for text in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert line["reward/length/mean"] > 5.5  # the answers' own mean, and the completions' lengths on top


def test_the_adapter_is_that_of_the_folder(model_folder: Path, tmp_path: Path) -> None:
    PIPELINES["sd15"].build().save_pretrained(tmp_path)
    assert isinstance(policy_of(model_folder, RunConfig(), "cpu"), LanguagePolicy)
    drawing = policy_of(tmp_path, RunConfig(), "cpu")
    assert isinstance(drawing, DenoisingPolicy)
    assert policy_of(drawing, RunConfig(), "cpu") is drawing


@pytest.mark.nightly
def test_a_path_is_recorded_so_that_the_run_is_sampled_and_exported(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {
        "steps": 1, "about": {"name": "x"}, "runtime": {"device": "cpu"},
        "rollout": {"prompts_per_step": 2, "group_size": 2},
        "policy": {"name": "language", "max_new_tokens": 3, "lora": {"rank": 2}},
    }  # fmt: skip
    run = Trainer(model_folder, length, ROWS, values).train()
    config = load_config(run / "config.yaml")
    assert config.policy is not None
    assert config.policy.settings["model"] == str(model_folder)
    call = CliRunner().invoke
    sampled = call(app, ["sample", str(run), "say one word", "--out", "o"])
    assert sampled.exit_code == 0, sampled.output
    exported = call(app, ["export", str(run), "--merged"])
    assert exported.exit_code == 0, exported.output
    assert (tmp_path / "exports/x/model.safetensors").is_file()
    resumed = Trainer(model_folder, length, ROWS, {**values, "steps": 2}, resume=run)
    assert resumed.step == 1
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text("".join(line for line in text.splitlines(True) if str(model_folder) not in line))
    resumed = Trainer(model_folder, length, ROWS, {**values, "steps": 2}, resume=run)  # of before it was recorded
    assert resumed.config.policy == config.policy


def test_settings_of_the_configuration_apply_to_a_path(model_folder: Path) -> None:
    policy = policy_of(str(model_folder), validated({"policy": {"name": "language", "max_new_tokens": 3}}), "cpu")
    assert isinstance(policy, LanguagePolicy)
    assert policy.settings.max_new_tokens == 3


@pytest.mark.parametrize("argument", [length, [length], {"length": length}])
def test_one_function_is_a_list_of_one(argument: Any) -> None:
    assert [reward.name for reward in rewards_of(argument)] == ["length"]


def test_registered_names_and_functions_mix() -> None:
    assert [reward.name for reward in rewards_of(["exact_match", length])] == ["exact_match", "length"]


def test_prompts_in_any_of_their_forms(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for source in (ROWS, Dataset.from_list(ROWS), file, str(file)):
        result = prompts_of(source, None)
        assert [(prompt.text, prompt.columns["answer"]) for prompt in result] == [
            (row["prompt"], row["answer"]) for row in ROWS
        ]
    mixed = prompts_of(["a cat", Prompt("a dog"), ROWS[0]], None)
    assert [prompt.text for prompt in mixed] == ["a cat", "a dog", "what number is this"]


@pytest.mark.parametrize("in_file", [True, False])
def test_the_section_applies_to_live_rows(in_file: bool, tmp_path: Path) -> None:
    rows = [{"question": "what is shown", "image": "http://127.0.0.1:9/a.png"}]  # where no server listens
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(rows[0]))
    reading = {"source": "elsewhere.jsonl", "columns": {"prompt": "question"}}
    source = file if in_file else rows
    (result,) = prompts_of(source, validated({"prompts": reading | {"outside_media": ["urls"]}}).prompts)
    assert result.text == "what is shown"
    with pytest.raises(DataError, match=r"http://127.0.0.1:9/a.png cannot be fetched"):
        list(result.images)
    with pytest.raises(DataError, match="outside_media"):
        prompts_of(source, validated({"prompts": reading}).prompts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: policy_of(torch.nn.Linear(2, 2), RunConfig(), "cpu"),
            "got Linear; wrap a live model: Lang",
        ),
        (lambda: policy_of("/nowhere/at all", RunConfig(), "cpu"), "neither a folder nor the name of a model"),
        (
            lambda: policy_of(Path(__file__).parent, RunConfig(), "cpu"),
            "neither model_index.json nor config",
        ),
        (lambda: rewards_of(3), "a reward is a function or a registered name, got int"),
        (lambda: rewards_of([]), "at least one"),
        (lambda: rewards_of("exact_mach"), "exact_match"),
    ],
)
def test_invalid_arguments_raise(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (3, "a list of texts, rows or Prompts, got int"),
        (Dataset.from_list(ROWS).to_iterable_dataset(), r"prompts\.limit in a configuration"),
        ([3], "item 0: a prompt is a text, a row or a Prompt, got int"),
        ([{"question": "why?"}], "row 0 has no prompt"),
    ],
)
def test_invalid_prompts_raise(argument: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prompts_of(argument, None)


class Handmade:
    """A policy class that only lives in Python."""


def test_a_policy_without_from_config_raises() -> None:
    config = validated({"policy": {"name": "python:tests.test_arguments:Handmade"}})
    with pytest.raises(ConfigError, match=r"cannot be built from YAML: it has no from_config and no settings_type"):
        build_policy(config, "cpu")
