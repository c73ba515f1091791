"""Files of prompts at a URL: downloaded once from a server of this process, and read by their endings."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from mmgrpo.rewards.video.video_align_checkpoint import prompt_template

from mmgrpo.config import PromptsConfig
from mmgrpo.data.prompt_loading import load_prompts, load_prompts_of, require_source
from mmgrpo.errors import DataError
from tests.running import running

FILES = {
    "/data/train.txt": b'a sign that says "7"\n\ntwo lamps\n',
    "/data/rows.jsonl": b'{"question": "a boat", "answer": "1"}\n{"question": "a dog", "answer": "2"}\n',
    "/data/prompt_template.py": b'DETAILED_PROMPT = "Rate {text_prompt}."',
    "/data/broken.jsonl": b'{"prompt": "a boat"}\n{"prompt"\n',
}


class Handler(BaseHTTPRequestHandler):
    """Answers with ``FILES``, and records the paths of GET requests."""

    paths: list[str]

    def do_GET(self) -> None:
        self.paths.append(self.path)
        body = FILES.get(self.path.partition("?")[0])
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """The URL of a server and the paths that were requested, with an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HOME", str(tmp_path))
    handler = type("Recording", (Handler,), {"paths": []})
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as made:
        yield f"http://127.0.0.1:{made.server_port}", handler.paths  # pyrefly: ignore[missing-attribute]


def test_a_file_at_a_url_is_downloaded_once(server: tuple[str, list[str]], tmp_path: Path) -> None:
    url, paths = server
    for _ in range(2):
        texts = [prompt.text for prompt in load_prompts(f"{url}/data/train.txt")]
        assert texts == ['a sign that says "7"', "two lamps"]
    assert paths == ["/data/train.txt"]
    (file,) = [path for path in (tmp_path / "mmgrpo").iterdir() if path.suffix != ".lock"]
    assert file.read_bytes() == FILES["/data/train.txt"]


def test_columns_and_the_limit_apply_to_a_url(server: tuple[str, list[str]]) -> None:
    url, _ = server
    config = PromptsConfig(source=f"{url}/data/rows.jsonl?download=true", columns={"prompt": "question"}, limit=1)
    require_source(config, key="prompts", note=None)  # no path that could be missing
    (prompt,) = load_prompts_of(config)
    assert (prompt.text, prompt.columns["answer"]) == ("a boat", "1")


def test_the_template_of_video_align_is_read_at_its_url(server: tuple[str, list[str]]) -> None:
    url = f"{server[0]}/data/prompt_template.py"
    assert prompt_template(url, "detailed", special=False) == "Rate {text_prompt}."


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gone.txt", {}, r"^prompts.source: http.*gone.txt cannot be fetched .*404.*name its path"),
        ("broken.jsonl", {}, r"http://127.0.0.1:\d+/data/broken.jsonl, line 2 is not JSON"),
        ("rows.csv", {}, "cannot read prompts from http.*rows.csv; known endings are .txt, .jsonl, .json, .parquet"),
        ("train.txt", {"split": "train"}, r"train.txt has no splits, so split='train' does nothing"),
        ("train.txt", {"columns": {"prompt": "question"}}, "train.txt has no columns"),
    ],
)
def test_an_error_names_the_url(
    server: tuple[str, list[str]], name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load_prompts_of(PromptsConfig(source=f"{server[0]}/data/{name}", **settings))
