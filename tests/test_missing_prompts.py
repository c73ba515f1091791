"""A recipe whose prompts are missing: the error, before any model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import CONFIGS, load_config, shipped, validated
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.explain.explanation import explanation

NOTE = (
    "Needs flow_grpo/dataset/counting_edit: git clone --depth 1 https://github.com/yifan123/flow_grpo (MIT), and "
    "generated_images.zip of the hub's dataset jieliu/counting_edit, extracted in that folder."
)
FOLDER = "flow_grpo/dataset/counting_edit"


@pytest.mark.parametrize(("existing", "key", "file"), [((), "evaluation.prompts", "test_metadata.jsonl"),
                                     (("test_metadata.jsonl",), "prompts", "train_metadata.jsonl")])  # fmt: skip
def test_a_missing_prompts_file_raises_with_format_key_and_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: tuple[str, ...], key: str, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / FOLDER).mkdir(parents=True)
    for name in existing:
        (tmp_path / FOLDER / name).write_text('{"prompt": "add a cat"}\n')
    done = CliRunner().invoke(app, ["train", "recipes/kontext-flow-grpo-counting"])
    output = " ".join(done.output.split())
    assert done.exit_code == 2
    assert f"error: {key}.source: {FOLDER}/{file} does not exist" in output
    assert "put a prompt a line there as .txt, or rows with the column 'prompt' as .jsonl, .json or .parquet" in output
    assert f"or set {key}.source=FILE_OR_DATASET; note: {NOTE}" in output
    assert [path.name for path in tmp_path.iterdir()] == ["flow_grpo"]  # no run folder


def test_the_error_names_the_configured_column(tmp_path: Path) -> None:
    config = RunConfig.model_validate(
        {"prompts": {"source": str(tmp_path / "a.jsonl"), "columns": {"prompt": "question"}}}
    )
    assert config.prompts is not None
    with pytest.raises(DataError, match=r"prompts\.source: .*a\.jsonl does not exist.*the column 'question'"):
        load_prompts_of(config.prompts)


def test_errors_in_an_existing_file_are_reported_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{")
    config = RunConfig.model_validate({"prompts": {"source": str(tmp_path / "a.jsonl")}})
    assert config.prompts is not None
    with pytest.raises(DataError, match=r"a\.jsonl, line 1 is not JSON: [^;]*$"):
        load_prompts_of(config.prompts)


def test_explain_shows_the_note_and_the_sources() -> None:
    output = " ".join(CliRunner().invoke(app, ["explain", "recipes/kontext-flow-grpo-counting"]).output.split())
    assert f"note {NOTE}" in output
    assert f"prompts {FOLDER}/train_metadata.jsonl; evaluation: {FOLDER}/test_metadata.jsonl" in output


@pytest.mark.parametrize(
    ("sections", "row"),
    [
        ({}, "prompts passed in Python; the configuration names none, and `mmgrpo train` needs prompts.source"),
        (
            {"prompts": {"source": "a.jsonl"}, "evaluation": {"prompts": {"split": "test"}}},
            "prompts a.jsonl; evaluation: passed in Python; the configuration names none, and `mmgrpo train` needs "
            "evaluation.prompts.source",
        ),
    ],
)
def test_explain_states_that_the_configuration_has_no_source(sections: dict[str, Any], row: str) -> None:
    config = validated({"policy": {"name": "language", "model": "m"}, "rewards": [{"name": "exact_match"}], **sections})
    assert row in " ".join(explanation(config).split())


def test_a_one_gpu_variant_is_its_recipe_with_a_smaller_batch() -> None:
    variants = [name for name in shipped("recipes") if name.endswith("-one-gpu")]
    hinted = {p.stem for p in (CONFIGS / "recipes").rglob("*.yaml") if "On one GPU:" in p.read_text()}
    assert {name.partition("/")[2].removesuffix("-one-gpu") for name in variants} == hinted
    assert len(hinted) == 6
    for name in variants:
        small, full = (load_config(each) for each in (name, name.removesuffix("-one-gpu")))
        moved = {"about", "rollout"}
        assert small.model_dump(exclude=moved) == full.model_dump(exclude=moved)
        sides = {"prompts_per_step", "group_size"}
        assert small.rollout.model_dump(exclude=sides) == full.rollout.model_dump(exclude=sides)
        batch = [config.rollout.prompts_per_step * config.rollout.group_size for config in (small, full)]
        assert batch[0] < batch[1]
        changes = {"name": f"{full.about.name}-one-gpu", "method": small.about.method}
        assert small.about == full.about.model_copy(update=changes)


def test_a_configuration_without_prompts_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"the configuration has no prompts: section; set prompts\.source"):
        load_prompts_of(None)
