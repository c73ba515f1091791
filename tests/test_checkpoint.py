"""Complete and incomplete checkpoints, and which of them is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmgrpo.errors import CheckpointError, OutputError
from mmgrpo.runs.checkpoint import (
    RunPosition,
    delete_unfinished,
    find_intact_checkpoint,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    set_aside,
    weights_folder,
)
from tests.test_docs import page_names
from tests.tiny.language_models import make

STATE = {"optimizer": {"lr": 0.5}}


@pytest.fixture
def policy() -> object:
    return page_names("learn/smallest-policy.md")["LetterPolicy"]()


@pytest.fixture
def folder(policy: object, tmp_path: Path) -> Path:
    """A run with a warm-up and three steps; the weights of each are its step."""
    for place in (RunPosition(0, 9), RunPosition(1, 9), RunPosition(2, 9), RunPosition(3, 9)):
        save(policy, tmp_path, place)
    return tmp_path


def save(policy: object, folder: Path, place: RunPosition, keep: int | None = None) -> Path:
    parameter: nn.Parameter = policy.logits  # pyrefly: ignore[missing-attribute]
    parameter.data.fill_(place.step)
    return save_checkpoint(folder, place, policy, STATE, keep=keep)  # pyrefly: ignore[bad-argument-type]


def names(folder: Path) -> list[str]:
    return [path.name for path in list_checkpoints(folder)]


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_the_newest_intact_one_is_used_and_the_others_are_named(folder: Path, policy: object) -> None:
    assert find_intact_checkpoint(folder).path.name == "step-000003"
    flip(folder / "checkpoints/step-000003/policy/letters.safetensors")  # one bit of a weight: still a tensor
    assert load_file(folder / "checkpoints/step-000003/policy/letters.safetensors")["logits"].shape == (4, 26)
    (folder / "checkpoints/step-000002/training.pt").write_bytes(b"")
    checkpoint = find_intact_checkpoint(folder)
    assert checkpoint.path.name == "step-000001"
    assert checkpoint.damaged == (
        "step-000003 is damaged (policy/letters.safetensors has changed since it was written)",
        "step-000002 is damaged (training.pt has changed since it was written)",
    )
    assert weights_folder(folder) == folder / "checkpoints/step-000001/policy"
    place, state = load_checkpoint(checkpoint.path, policy, "cpu")  # pyrefly: ignore[bad-argument-type]
    assert (place, state) == (RunPosition(1, 9), STATE)
    assert float(policy.logits.data.mean()) == 1.0  # pyrefly: ignore[missing-attribute]


def test_a_damaged_named_one_raises_with_the_one_before(folder: Path) -> None:
    chosen = folder / "checkpoints" / "step-000003"
    (chosen / "policy/letters.safetensors").unlink()
    flip(folder / "checkpoints/step-000002/state.json")
    with pytest.raises(
        CheckpointError,
        match=r"step-000003 is damaged: policy/letters.safetensors is missing; give the one before it: .*step-000001$",
    ):
        find_intact_checkpoint(chosen)


def test_no_intact_one_raises_with_the_reasons(folder: Path) -> None:
    for path in list_checkpoints(folder):
        (path / "manifest.json").write_text("{")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint of .* can be used: step-000003 is damaged \(it cannot be"
    ):
        find_intact_checkpoint(folder)


def test_unfinished_ones_are_neither_read_nor_left(folder: Path, policy: object) -> None:
    half = folder / "checkpoints" / ".step-000004"
    (folder / "checkpoints" / "step-000003").rename(half)  # as far as a save can come before it is done
    assert find_intact_checkpoint(folder).path.name == "step-000002"
    with pytest.raises(CheckpointError, match="it is incomplete"):
        find_intact_checkpoint(half)
    save(policy, folder, RunPosition(5, 9))
    assert names(folder) == ["warmup-000009", "step-000001", "step-000002", "step-000005"]
    assert not half.exists()
    (folder / "checkpoints" / ".step-000001.gone").mkdir()
    delete_unfinished(folder)
    assert not list((folder / "checkpoints").glob(".*"))


def test_the_newest_are_kept_and_a_place_is_saved_over(folder: Path, policy: object) -> None:
    save(policy, folder, RunPosition(4, 9), keep=2)
    assert names(folder) == ["step-000003", "step-000004"]
    policy.logits.data.fill_(7.0)  # pyrefly: ignore[missing-attribute]
    again = save_checkpoint(folder, RunPosition(4, 9), policy, STATE, keep=2)  # pyrefly: ignore[bad-argument-type]
    assert float(load_file(again / "policy/letters.safetensors")["logits"].mean()) == 7.0
    assert names(folder) == ["step-000003", "step-000004"]


def test_checkpoints_after_the_resumed_one_are_set_aside(folder: Path) -> None:
    assert [path.name for path in set_aside(folder, RunPosition(1, 9))] == ["step-000002", "step-000003"]
    assert names(folder) == ["warmup-000009", "step-000001"]
    assert find_intact_checkpoint(folder).path.name == "step-000001"
    assert find_intact_checkpoint(folder / "checkpoints/aside/step-000003").path.name == "step-000003"
    assert set_aside(folder, RunPosition(0, 9))[0].name == "step-000001"
    assert names(folder) == ["warmup-000009"]


def test_a_save_that_fails_leaves_those_before(folder: Path, policy: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed")  # as torch has it

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OutputError, match=r"step-000004 cannot be written: .*existing checkpoints stay"):
        save(policy, folder, RunPosition(4, 9), keep=1)
    assert names(folder) == ["warmup-000009", "step-000001", "step-000002", "step-000003"]
    assert not list((folder / "checkpoints").glob(".*"))


def test_a_full_disk_is_known_in_the_words_of_tokenizers_too(folder: Path, policy: object) -> None:
    class Writing:
        def save(self, directory: Path) -> None:
            tokenizer = make("llama")[1]
            tokenizer.backend_tokenizer.save("/dev/full")  # pyrefly: ignore[missing-attribute]

    with pytest.raises(OutputError, match=r"step-000004 cannot be written: No space left on device"):
        save_checkpoint(folder, RunPosition(4, 9), Writing(), STATE, keep=None)  # pyrefly: ignore[bad-argument-type]
    assert names(folder)[-1] == "step-000003"

    class Wrong:
        def save(self, directory: Path) -> None:
            raise TypeError("a mistake of its own")

    with pytest.raises(TypeError, match="a mistake of its own"):
        save_checkpoint(folder, RunPosition(4, 9), Wrong(), STATE, keep=None)  # pyrefly: ignore[bad-argument-type]


def test_one_without_a_manifest_is_read_with_a_warning(
    folder: Path, policy: object, caplog: pytest.LogCaptureFixture
) -> None:
    older = folder / "checkpoints" / "step-000003"
    assert find_intact_checkpoint(folder).unverified == ()
    (older / "manifest.json").unlink()
    assert find_intact_checkpoint(folder).path == older
    warning = "step-000003 has no manifest.json, so its files cannot be checked: it is used unverified"
    assert find_intact_checkpoint(folder).unverified == find_intact_checkpoint(older).unverified == (warning,)
    weights_folder(folder)
    assert [record.message for record in caplog.records] == [warning]
    (older / "training.pt").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=r"step-000003 cannot be read: "):
        load_checkpoint(older, policy, "cpu")  # pyrefly: ignore[bad-argument-type]
    save_file({"other": torch.zeros(1)}, older / "policy/letters.safetensors")
    with pytest.raises(CheckpointError, match=r"step-000003 cannot be read: KeyError: 'logits'"):
        load_checkpoint(older, policy, "cpu")  # pyrefly: ignore[bad-argument-type]


def test_the_manifest_names_every_file(folder: Path) -> None:
    checkpoint = folder / "checkpoints" / "step-000001"
    written = json.loads((checkpoint / "manifest.json").read_text())["sha256"]
    assert sorted(written) == ["policy/letters.safetensors", "state.json", "training.pt"]
