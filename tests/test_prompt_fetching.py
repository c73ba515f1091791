"""Data does not make the trainer ask the network, in whatever form a row names its media; real requests are counted."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from datasets import Dataset, Features, List, Value
from datasets import Image as ImageFeature
from mmgrpo.policies.diffusion.call_form import CallForm
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from PIL import Image

from mmgrpo.config.loading import validated
from mmgrpo.data.image_loading import is_fetched, load_image
from mmgrpo.data.prompt_loading import load_prompts, load_prompts_of
from mmgrpo.data.prompt_media import MAX_BYTES
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt
from tests.policies.tiny_language import policy_of
from tests.running import running


def png(colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2), (colour, colour, colour)).save(buffer, format="PNG")
    return buffer.getvalue()


class Server(ThreadingHTTPServer):
    """Has one image at every address, and records the paths of requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        size = MAX_BYTES + 1 if "huge" in self.path else len(png(7))
        self.send_response(404 if "gone" in self.path else 200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if "huge" not in self.path:
            self.wfile.write(png(7))
            return
        try:
            while True:
                self.wfile.write(bytes(2**20))
        except OSError:
            self.close_connection = True

    do_HEAD = do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with running(Server()) as made:
        yield made


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]}]


def forms(url: str) -> dict[str, dict[str, Any]]:
    """Rows that name an image or a video at an address."""
    return {
        "image": {"prompt": "p", "image": url},
        "images": {"prompt": "p", "images": [url]},
        "path": {"prompt": "p", "image": {"path": url}},
        "bytes and path": {"prompt": "p", "images": [{"bytes": None, "path": url}]},
        "url": {"prompt": "p", "image": {"url": url}},
        "nested url": {"prompt": "p", "image": {"image_url": {"url": url}}},
        "chain": {"prompt": "p", "image": f"zip://a.png::{url}"},
        "cached chain": {"prompt": "p", "image": f"simplecache::{url}"},
        "part": {"prompt": user({"type": "image", "image": url})},
        "part of OpenAI": {"prompt": user({"type": "image_url", "image_url": {"url": url}})},
        "tag": {"messages": [{"role": "user", "content": "<image> what?"}], "images": [url]},
        "video": {"prompt": "p", "video": url},
        "videos": {"prompt": "p", "videos": [{"path": url}]},
        "video part": {"prompt": user({"type": "video", "video": url})},
        "video of OpenAI": {"prompt": user({"type": "video_url", "video_url": {"url": url}})},
        "frame": {"prompt": "p", "video": [url, url]},
        "frame in a part": {"prompt": user({"type": "video", "video": [{"image": url}]})},
    }


@pytest.mark.parametrize("form", forms(""))
def test_a_row_with_an_address_raises(form: str, server: Server, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(forms(f"{server.url}/a.png")[form]) + "\n")
    with pytest.raises(DataError, match=r"rows.jsonl, line 1: .*127.0.0.1.*download it and give its path"):
        load_prompts(tmp_path / "rows.jsonl")
    assert server.paths == []


@pytest.mark.parametrize("scheme", ["https", "HTTP", "ftp", "s3", "hf", "gs", "ssh", "webhdfs", "tar://x::s3"])
def test_every_protocol_raises(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "p", "image": f"{scheme}://127.0.0.1:9/a.png"}) + "\n")
    with pytest.raises(DataError, match="would be fetched from the network"):
        load_prompts(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("saved", [False, True])
def test_images_stored_by_their_address_raise(saved: bool, server: Server, tmp_path: Path) -> None:
    """In a live dataset, and in parquet, whose schema says which columns are images."""
    stored = {"bytes": None, "path": f"{server.url}/a.png"}
    here = {"bytes": png(3), "path": None}
    part = {"type": Value("string"), "text": Value("string"), "image": ImageFeature()}
    cases = [
        ({"prompt": "p", "image": stored}, {"image": ImageFeature()}),
        ({"prompt": "p", "images": [here, stored]}, {"images": List(ImageFeature())}),
        ({"prompt": "p", "target": stored}, {"target": ImageFeature()}),
        ({"prompt": "p", "shots": {"views": [here, stored]}}, {"shots": {"views": List(ImageFeature())}}),
        (
            {"prompt": user({"type": "image", "image": stored})},
            {"prompt": List({"role": Value("string"), "content": List(part)})},
        ),
    ]
    for row, features in cases:
        schema = Features({"prompt": Value("string"), **features})
        dataset = Dataset.from_dict({name: [value] for name, value in row.items()}, features=schema)
        if saved:
            table = dataset.data.table.replace_schema_metadata(schema.arrow_schema.metadata)
            pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
        with pytest.raises(DataError, match=r"row 0.*127.0.0.1.*would be fetched from the network"):
            load_prompts(tmp_path / "rows.parquet" if saved else dataset)
    assert server.paths == []


def test_a_folder_with_a_card_of_remote_files_raises(server: Server, tmp_path: Path) -> None:
    card = (
        f"---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: {server.url}/x.jsonl\n---\n"
    )
    (tmp_path / "README.md").write_text(card)
    with pytest.raises(DataError, match=r"README.md: .*127.0.0.1.*would be fetched from the network"):
        load_prompts(tmp_path)
    assert server.paths == []


def test_local_media_are_read(tmp_path: Path) -> None:
    (tmp_path / "a b.png").write_bytes(png(5))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("c.png", png(6))
    chain = f"zip://c.png::{tmp_path / 'all.zip'}"
    images = [(tmp_path / "a b.png").as_uri(), chain, {"bytes": None, "path": "a b.png"}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "p", "images": images}) + "\n")
    (prompt,) = load_prompts(tmp_path / "rows.jsonl")
    assert colours(prompt) == [5, 6, 5]
    stored = Dataset.from_dict({"prompt": ["p"], "image": [{"bytes": None, "path": chain}]})
    (prompt,) = load_prompts(stored.cast_column("image", ImageFeature()))
    assert colours(prompt) == colours(pickle.loads(pickle.dumps(prompt))) == [6]


def colours(prompt: Prompt) -> list[int]:
    return [load_image(image).getpixel((0, 0))[0] for image in prompt.images]  # pyrefly: ignore[bad-index, unsupported-operation]


def test_with_the_setting_images_are_fetched_when_they_are_looked_at(server: Server, tmp_path: Path) -> None:
    rows = [{"prompt": "p", "images": [f"{server.url}/{name}.png"]} for name in ("a", "gone", "huge")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = validated({"prompts": {"source": str(tmp_path / "rows.jsonl"), "outside_media": ["urls"]}})
    assert config.prompts is not None
    here, gone, huge = load_prompts_of(config.prompts)
    assert server.paths == []
    assert colours(here) == [7]
    assert server.paths == ["/a.png"]
    with pytest.raises(DataError, match=r"gone.png cannot be fetched \(HTTPError: HTTP Error 404"):
        colours(gone)
    with pytest.raises(DataError, match=rf"huge.png cannot be fetched: it has more than {MAX_BYTES} bytes"):
        colours(huge)
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "p", "video": f"{server.url}/v.mp4"}) + "\n")
    with pytest.raises(DataError, match="videos are not fetched"):
        load_prompts_of(config.prompts)


def test_a_pipe_is_no_image(tmp_path: Path) -> None:
    """It would be waited for for ever."""
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(DataError, match=r"pipe.png is no ordinary file"):
        load_image(str(tmp_path / "pipe.png"))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "p", "video": "pipe.png"}) + "\n")
    with pytest.raises(DataError, match=r"line 1: .*pipe.png is no ordinary file"):
        load_prompts(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.png", False),
        ("file:///a.png", False),
        ("zip://a.png::/b.zip", False),
        ("zip://a.png::file:///b.zip", False),
        ("http://h/a.png", True),
        ("zip://a.png::https://h/b.zip", True),
        ("https://h/a::/b", True),
        ("filecache::hf://datasets/o/n/a.png", True),
        ("blockcache::/local", False),  # without a protocol it is a path
    ],
)
def test_addresses_that_would_be_fetched(text: str, expected: bool) -> None:
    assert is_fetched(text) is expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[" * 100_000, "line 1 is nested too deeply"),
        ('{"prompt": "p", "n": ' + "9" * 5000 + "}", "line 1 cannot be read: Exceeds the limit"),
    ],
)
def test_json_that_python_cannot_hold_is_one_line(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        load_prompts(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("kind", ["images", "videos"])
def test_policies_fetch_no_address_of_a_live_prompt(kind: str, server: Server) -> None:
    media: dict[str, Any] = {kind: (f"{server.url}/a.png",)}
    prompt = Prompt("what?", **media)
    row = DenoisingRow(prompt=prompt, seed=0, group=0, member=0)
    with pytest.raises(DataError, match="is a URL and nothing is fetched"):
        CallForm().arguments([row], {})
    with pytest.raises(DataError, match="is a URL and nothing is fetched"):
        policy_of("qwen2.5-vl").rollout([prompt], group_size=2, seed=0)
    assert server.paths == []
