"""Unreadable rows: named in errors, and skipped if the configuration asks for it, before and during a run."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmgrpo import Trainer
from mmgrpo.config.loading import validated
from mmgrpo.data.prompt_loading import load_prompts, load_prompts_of
from mmgrpo.data.stream import PromptStream
from mmgrpo.data.unreadable_rows import media_fault
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt
from tests.policies.tiny_language import picture, policy_of
from tests.test_trainer_language import vowels


def pictures(folder: Path, num: int, *, cut: int | None = None) -> list[str]:
    """Pictures in a folder; one of them has its beginning alone, as after a download that was broken off."""
    for number in range(num):
        picture(32, 32, number).save(folder / f"{number}.png")
    if cut is not None:
        data = (folder / f"{cut}.png").read_bytes()
        (folder / f"{cut}.png").write_bytes(data[: len(data) // 2])
    return [f"{number}.png" for number in range(num)]


def rows(folder: Path) -> Path:
    """Three rows that can be read, and a torn line, bytes that are no text and an image that is not there."""
    file = folder / "rows.jsonl"
    good = [json.dumps({"prompt": text}).encode() for text in ("one", "two", "three")]
    bad = [b'{"prompt": "torn', b'{"prompt": "\xff\xfe"}', b'{"prompt": "p", "image": "gone.png"}']
    file.write_bytes(b"\n".join([good[0], bad[0], good[1], bad[1], bad[2], good[2]]) + b"\n")
    return file


def test_the_first_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rows.jsonl, line 2 is not JSON"):
        load_prompts(rows(tmp_path))


def test_all_are_counted_and_named_where_they_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = rows(tmp_path)
    with caplog.at_level(logging.WARNING):
        prompts = load_prompts(file, on_error="skip")
    assert [prompt.text for prompt in prompts] == ["one", "two", "three"]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{file}: 3 of 6 rows cannot be read and are left out: ")
    for line, why in ((2, "is not JSON"), (4, "is not UTF-8 (invalid start byte at byte 12)"), (5, ": ")):
        assert f"{file}, line {line}{'' if why == ': ' else ' '}{why}" in message
    assert "gone.png does not exist" in message


def test_of_many_the_first_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a"}\n' + "{\n" * 30)
    load_prompts(file, on_error="skip")
    message = caplog.records[-1].getMessage()
    assert "30 of 31 rows" in message
    assert "line 21 is" in message
    assert "line 22 is" not in message
    assert message.endswith("; and 10 more")


def test_no_readable_row_raises_with_skip_too(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("{\n{\n")
    with pytest.raises(DataError, match="holds no prompts"):
        load_prompts(file, on_error="skip")


def test_rows_of_a_dataset_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from datasets import Dataset

    names = pictures(tmp_path, 3, cut=1)
    data = [(tmp_path / name).read_bytes() for name in names]
    from datasets import Features, Value
    from datasets import Image as Stored

    features = Features({"prompt": Value("string"), "image": Stored()})
    table = [
        {"prompt": str(n), "image": {"bytes": data_of_row, "path": None}}
        for n, data_of_row in enumerate([*data, b"no picture"])
    ]
    dataset = Dataset.from_list(table, features=features)
    prompts = load_prompts(dataset, on_error="skip")
    assert [prompt.text for prompt in prompts] == [
        "0",
        "1",
        "2",
    ]  # the cut one begins well
    assert "1 of 4 rows" in caplog.records[-1].getMessage()
    assert [media_fault(prompt) is None for prompt in prompts] == [True, False, True]
    assert "row 1 of the dataset, column 'image', cannot be opened as an image" in str(media_fault(prompts[1]))


def prompts(folder: Path, *, cut: int | None) -> list[Prompt]:
    return [Prompt(f"what is {n}", images=[str(folder / name)]) for n, name in enumerate(pictures(folder, 5, cut=cut))]


def test_another_prompt_takes_its_place(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"num_per_step": 2, "seed": 3}
    plain = PromptStream(prompts(tmp_path, cut=None), **arguments)
    plain_texts = [[plain.at_step(step).prompt(n).text for n in range(2)] for step in range(3)]
    skipping = PromptStream(prompts(tmp_path, cut=1), skipping=[None], **arguments)
    for step in range(3):
        result = skipping.at_step(step)
        texts = [result.prompt(n).text for n in range(2)]
        bad = "what is 1" in plain_texts[step]
        assert result.num_replaced == bad
        assert "what is 1" not in [result.prompt(n).text for n in range(7)]
        assert len(set(texts)) == 2
        unchanged = [text for text in texts if text in plain_texts[step]]
        assert unchanged == [text for text in plain_texts[step] if text != "what is 1"]
    assert any("what is 1" in texts for texts in plain_texts)


def test_too_few_are_an_error(tmp_path: Path) -> None:
    bad = prompts(tmp_path, cut=1)[1]
    two = PromptStream([bad, Prompt("a")], num_per_step=2, seed=0, skipping=[None]).at_step(0)
    assert [two.prompt(n).text for n in range(2)] == ["a", "a"]  # as ever where a step takes more than there are
    stream = PromptStream([bad], num_per_step=1, seed=0, skipping=[None])
    with pytest.raises(DataError, match="too few prompts are left"):
        stream.at_step(0)


def trainer(folder: Path, when: str) -> Trainer:
    values = {
        "output": str(folder / "runs"),
        "steps": 3,
        "rollout": {"prompts_per_step": 2, "group_size": 2},
        "prompts": {"on_error": when},
        "runtime": {"device": "cpu"},
    }
    return Trainer(policy_of("qwen2.5-vl"), {"vowels": vowels}, prompts(folder, cut=1), values)


def test_a_run_stops_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1\.png cannot be opened as an image .*replace it or leave its row out"):
        trainer(tmp_path, "raise").train()


def test_a_run_continues_without_the_row_and_counts_it(tmp_path: Path) -> None:
    run = trainer(tmp_path, "skip").train()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["prompts/unreadable"] for line in lines) >= 1
    assert {line["step"] for line in lines} == {1, 2, 3}


def test_the_section_sets_on_error(tmp_path: Path) -> None:
    config = validated({"prompts": {"source": str(rows(tmp_path)), "on_error": "skip"}})
    assert config.prompts is not None
    assert len(load_prompts_of(config.prompts)) == 3


def test_open_images_are_not_decoded_again() -> None:
    assert media_fault(Prompt("a", images=[Image.new("RGB", (2, 2))])) is None


def unfit(folder: Path) -> list[Prompt]:
    """Three rows that a tiny Qwen2.5-VL takes, an image of 400:1, and a text longer than its context."""
    Image.new("RGB", (4_000, 10)).save(folder / "wide.png")
    wide = Prompt("wide", images=[str(folder / "wide.png")])
    return [*prompts(folder, cut=None)[:3], wide, Prompt("how many " * 4_000)]


@pytest.mark.nightly
def test_rows_that_the_policy_cannot_take_are_skipped_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = {
        "output": str(tmp_path / "runs"),
        "steps": 3,
        "rollout": {"prompts_per_step": 2, "group_size": 2},
        "prompts": {"on_error": "skip"},
        "runtime": {"device": "cpu"},
    }
    run = Trainer(policy_of("qwen2.5-vl"), {"vowels": vowels}, unfit(tmp_path), values).train()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["prompts/unreadable"] for line in lines) == 2
    assert "absolute aspect ratio must be smaller than 200" in caplog.text
    assert "more than the model's context" in caplog.text
