"""Data refers to no file outside of its folder, in every form in which a row names its media."""

from __future__ import annotations

import json
import struct
import wave
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from datasets import Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from mmgrpo.config.loading import validated
from mmgrpo.data import audio_loading
from mmgrpo.data.audio_loading import load_audio
from mmgrpo.data.clips import encoded
from mmgrpo.data.image_loading import load_image
from mmgrpo.data.prompt_loading import load_prompts, load_prompts_of
from mmgrpo.data.videos import require_video
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt
from tests.policies.tiny_language import policy_of


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder next to that of the data, with an image, a sound and an archive; and the data's, with an image."""
    folder = tmp_path / "outside"
    folder.mkdir()
    Image.new("RGB", (2, 2), (200, 0, 0)).save(folder / "a.png")
    with wave.open(str(folder / "a.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        sound.writeframes(b"\0\1" * 80)
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.write(folder / "a.png", "a.png")
    (tmp_path / "data").mkdir()
    Image.new("RGB", (2, 2), (0, 7, 0)).save(tmp_path / "data/own.png")
    (tmp_path / "data/link.png").symlink_to(folder / "a.png")
    (tmp_path / "data/linked").symlink_to(folder)
    return folder


def forms(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows that name an image, a video or a sound in a folder."""
    image = str(folder / "a.png")
    return {
        "absolute": {"prompt": "p", "image": image},
        "images": {"prompt": "p", "images": ["own.png", image]},
        "above": {"prompt": "p", "image": f"../{folder.name}/a.png"},
        "above and back": {"prompt": "p", "image": f"./../data/../{folder.name}/a.png"},
        "file": {"prompt": "p", "image": f"file://{image}"},
        "link": {"prompt": "p", "image": "link.png"},
        "linked folder": {"prompt": "p", "image": "linked/a.png"},
        "path": {"prompt": "p", "image": {"path": image}},
        "part": {"prompt": [{"role": "user", "content": [{"type": "image", "image": image}]}]},
        "tag": {"messages": [{"role": "user", "content": "<image> what?"}], "images": [image]},
        "video": {"prompt": "p", "video": image},
        "frames": {"prompt": "p", "video": ["own.png", image]},
        "sound": {"prompt": "p", "audio": str(folder / "a.wav")},
        "archive": {"prompt": "p", "image": f"zip://a.png::{folder / 'a.zip'}"},
        "mask": {"prompt": "p", "mask": image},
    }


def written(row: dict[str, Any], data: Path) -> Path:
    (data / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return data / "rows.jsonl"


@pytest.mark.parametrize("form", forms(Path("outside")))
def test_media_outside_raise_unless_allowed(form: str, outside: Path) -> None:
    file = written(forms(outside)[form], outside.parent / "data")
    pictures = ("mask",) if form == "mask" else ()
    with pytest.raises(
        DataError, match=r"rows.jsonl, line 1: .* is outside of .*/data, .*set prompts.outside_media: \[paths\]"
    ):
        load_prompts(file, image_columns=pictures)
    (prompt,) = load_prompts(file, image_columns=pictures, outside_media=["paths"])
    media = [*prompt.columns.get("mask", ()), *prompt.images]
    if media:
        assert load_image(media[-1]).getpixel((0, 0)) == (200, 0, 0)


@pytest.mark.parametrize("end", ["file://{}/a.zip", "local://{}/a.zip", "{}/linked/a.zip", "../outside/a.zip"])
def test_archives_outside_or_without_a_folder_raise(end: str, outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address at the end of a chain is read from the working directory by some."""
    data = outside.parent / "data"
    monkeypatch.chdir(data)
    file = written({"prompt": "p", "image": f"zip://a.png::{end.format(data)}"}, data)
    with pytest.raises(DataError, match=r"rows.jsonl, line 1: .* is outside of"):
        load_prompts(file)


def test_media_within_are_read_under_any_name(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = outside.parent / "data"
    (data / "inner").mkdir()
    (data / "inner/link.png").symlink_to(data / "own.png")
    (outside.parent / "alias").symlink_to(data)
    for name in (
        "own.png",
        "./inner/../own.png",
        str(data / "own.png"),
        f"file://{data / 'own.png'}",
        "inner/link.png",
    ):
        for folder in (data, outside.parent / "alias", Path()):
            monkeypatch.chdir(data if folder == Path() else outside)
            written({"prompt": "p", "image": name}, data)
            (prompt,) = load_prompts(folder / "rows.jsonl")
            assert load_image(prompt.images[0]).getpixel((0, 0)) == (0, 7, 0)


def test_stored_images_that_are_paths_raise_in_any_column(outside: Path) -> None:
    """Those of other columns are decoded by the library of datasets, which would open them."""
    stored = {"bytes": None, "path": str(outside / "a.png")}
    for column in ("image", "target"):
        features = Features({"prompt": Value("string"), column: ImageFeature()})
        dataset = Dataset.from_dict({"prompt": ["p"], column: [stored]}, features=features)
        assert len(load_prompts(dataset)) == 1  # a dataset in Python has the paths that its owner gave it
        table = dataset.data.table.replace_schema_metadata(features.arrow_schema.metadata)
        pyarrow.parquet.write_table(table, outside.parent / "data/rows.parquet")
        with pytest.raises(DataError, match=r"row 0.*a.png' is outside of .*/data"):
            load_prompts(outside.parent / "data/rows.parquet")
        assert len(load_prompts(outside.parent / "data/rows.parquet", outside_media=["paths"])) == 1


def test_the_configuration_allows_outside_media(outside: Path) -> None:
    source = str(written(forms(outside)["absolute"], outside.parent / "data"))
    refused, allowed = (
        validated({"prompts": {"source": source, **more}}).prompts for more in ({}, {"outside_media": ["paths"]})
    )
    assert refused is not None
    assert allowed is not None
    with pytest.raises(DataError, match="is outside of"):
        load_prompts_of(refused)
    assert len(load_prompts_of(allowed)) == 1
    (outside / "prompts.txt").write_text("p\n")
    with pytest.raises(DataError, match="names no files, so outside_media does nothing; remove that"):
        load_prompts(outside / "prompts.txt", outside_media=["paths"])
    with pytest.raises(DataError, match="outside_media is a list of urls and paths, got 'files'"):
        load_prompts(outside / "prompts.txt", outside_media=["files"])  # pyrefly: ignore[bad-argument-type]


def bomb(side: int) -> bytes:
    """A PNG of a few hundred bytes that says to be so large."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 20_000, 60_000])
def test_an_image_that_unpacks_to_too_much_raises_with_its_row(side: int, tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(bomb(side))
    with pytest.raises(DataError, match=r"line 1: .*bomb.png cannot be opened as an image \(Decompression"):
        load_prompts(written({"prompt": "p", "image": "bomb.png"}, tmp_path))
    with pytest.raises(DataError, match=r"bomb.png cannot be opened as an image \(Decompression"):
        load_image(tmp_path / "bomb.png")
    with pytest.raises(DataError, match=r"cannot be opened as an image \(Decompression"):
        load_image(bomb(side))


def test_a_video_with_too_large_frames_raises_on_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encoded([Image.new("RGB", (64, 64), (n, 0, 0)) for n in range(8)], side=64))
    encoder = policy_of("qwen2.5-vl", video={"resized_height": 32, "resized_width": 32})._encoder
    prompt = Prompt("what is shown", videos=[str(path)])
    require_video(str(path))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 64 - 1)
    with pytest.raises(DataError, match=r"clip.mp4 cannot be opened as a video \(Decompression.*64 x 64 pixels"):
        encoder(prompt)
    (tmp_path / "none.mp4").write_bytes(b"no video")
    with pytest.raises(DataError, match=r"none.mp4 cannot be opened as a video"):
        require_video(str(tmp_path / "none.mp4"))


def test_audio_that_unpacks_to_too_much_raises(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_audio(str(outside / "a.wav")).values.shape == (1, 80)
    monkeypatch.setattr(audio_loading, "MAX_VALUES", 79)
    with pytest.raises(DataError, match=r"a.wav cannot be opened as audio .*it has more than 79 values"):
        load_audio(str(outside / "a.wav"))
