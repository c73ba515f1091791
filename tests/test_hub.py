"""Errors for models that cannot be downloaded, with a hub on this machine."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import datasets
import datasets.config
import huggingface_hub
import pytest
from mmgrpo.policies.diffusion.pipeline_loading import load_pipeline
from mmgrpo.policies.diffusion.settings import DenoisingSettings
from mmgrpo.policies.language.language_loading import load_model
from mmgrpo.policies.language.settings import LanguageSettings

from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.errors import MmgrpoError
from mmgrpo.system.hub import explain_load_error

MODELS = ("gated/model", "nobody/nothing", "old/model", "./no/folder", "/no/such/folder")

LOAD = """
import json, sys
from tests.test_hub import messages_of
print(json.dumps(messages_of(json.loads(sys.argv[1]))))
"""


def messages_of(sources: Sequence[str]) -> dict[str, str]:
    """Errors of each loader for each source, and of rows, by loader and source."""
    messages = {}
    for source in sources:
        revision = "v9" if source.startswith("old") else None
        loaders: list[tuple[Callable[[Any], Any], type]] = [
            (load_pipeline, DenoisingSettings),
            (load_model, LanguageSettings),
        ]
        for load, settings in loaders:
            try:
                load(settings(model=source, revision=revision))
            except MmgrpoError as error:
                messages[f"{load.__name__} {source}"] = str(error)
    try:
        load_prompts("nobody/rows")
    except MmgrpoError as error:
        messages["rows"] = str(error).partition("; and as a path")[0]
    return messages


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for what is gated, for what is not there, and for a revision that is not there."""

    def do_GET(self) -> None:
        gated, old = "gated/" in self.path, "old/" in self.path
        self.send_response(403 if gated else 404)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RevisionNotFound" if old else "RepoNotFound")
        self.send_header("X-Error-Message", "line one, line two")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


COMMIT = "a" * 40

ROWS = """
import sys
from mmgrpo.data.prompt_loading import load_prompts
print([(prompt.text, prompt.columns) for prompt in load_prompts(sys.argv[1], columns={"prompt": "instruction"})])
"""


class OneFile(BaseHTTPRequestHandler):
    """A hub with the dataset ``owner/rows``, whose files are ``train.parquet`` and one that is not parquet."""

    FILES: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        files = [{"type": "file", "path": name, "size": len(data), "oid": COMMIT} for name, data in self.FILES.items()]
        content = self.FILES.get(self.path.rpartition("/")[2]) if "/resolve/" in self.path else None
        if content is None and self.path.startswith("/api/datasets/owner/rows"):
            listed = "/tree/" in self.path or "/paths-info/" in self.path
            info = {"id": "owner/rows", "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.FILES]}
            content = json.dumps(files if listed else info).encode()
        self.send_response(404 if content is None else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("ETag", f'"{self.path}"')
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content or b"")

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a hub on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    yield from served(Hub)


def printed(code: str, argument: str, tmp: str, **environment: str) -> tuple[str, str]:
    """The last line that a program prints, with an empty cache of the hub in ``tmp``, and its errors."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env = {**variables, "HF_HOME": tmp, **environment}
    call = [sys.executable, "-c", code, argument]
    done = subprocess.run(call, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1], done.stderr


def loaded(tmp: str, sources: tuple[str, ...] = MODELS, **environment: str) -> tuple[dict[str, str], str]:
    """What was said of each source by each loader, and what else came out."""
    messages, errors = printed(LOAD, json.dumps(sources), tmp, **environment)
    return json.loads(messages), errors


@pytest.mark.nightly
def test_one_file_of_a_dataset_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"instruction": "open it", "gt_action": "click"}]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "train.parquet")
    files = {"train.parquet": (tmp_path / "train.parquet").read_bytes(), "test.parquet": b"other columns"}
    monkeypatch.setattr(OneFile, "FILES", files)
    for address in served(OneFile):
        output, _ = printed(ROWS, "owner/rows:train.parquet", str(tmp_path), HF_ENDPOINT=address)
        assert ast.literal_eval(output) == [("open it", {"gt_action": "click"})]


def expected(reasons: dict[str, str], rows: str) -> dict[str, str]:
    kinds = {"load_pipeline": "a diffusers pipeline", "load_model": "a language model"}
    return {
        f"{load} {source}": f"policy.model {source!r} cannot be loaded as {kind}: {reason}"
        for load, kind in kinds.items()
        for source, reason in reasons.items()
    } | {"rows": f"as a dataset 'nobody/rows' cannot be loaded: {rows}"}


NO_PATH = dict.fromkeys(("./no/folder", "/no/such/folder"), "there is no such path; a hub id is owner/name")


@pytest.mark.nightly
def test_gated_unknown_and_revision(hub: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    output, noise = loaded(str(tmp_path_factory.mktemp("hub")), HF_ENDPOINT=hub)
    assert output == expected(
        {
            "gated/model": f"it is gated: accept its conditions at {hub}/gated/model and log in (hf auth login), "
            "or give the path of a copy",
            "nobody/nothing": "the hub has no such model, or it is private: check the name, log in (hf auth login), "
            "or give a path",
            "old/model": f"the hub's model has no revision 'v9'; its branches and tags are listed at {hub}/old/model",
            **NO_PATH,
        },
        rows="Dataset 'nobody/rows' doesn't exist on the Hub or cannot be accessed.",
    )
    assert "Hub" not in noise


def without_hub(sources: Sequence[str], why: str) -> dict[str, str]:
    """Expected errors where the hub cannot be reached."""
    fetch = "fetch it where there is a network (hf download {}), or give the path of a copy"
    missing = {name: f"it is not in the local cache, and {why}{fetch.format(name)}" for name in sources}
    rows = f"it is not in the local cache, and {why}{fetch.format('--repo-type dataset nobody/rows')}"
    return expected(missing | {name: NO_PATH[name] for name in NO_PATH if name in sources}, rows)


def test_an_offline_hub_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert messages_of(MODELS) == without_hub(MODELS, "HF_HUB_OFFLINE is set: unset it, ")


@pytest.mark.parametrize(
    ("environment", "sources", "why"),
    [
        pytest.param(
            *({"HF_HUB_OFFLINE": "1"}, MODELS, "HF_HUB_OFFLINE is set: unset it, "), marks=pytest.mark.nightly
        ),
        pytest.param(  # the hub's client tries each for half a minute
            *({"HF_ENDPOINT": "http://127.0.0.1:9"}, MODELS[1:2], "the hub cannot be reached: "), marks=pytest.mark.slow
        ),
    ],
)
def test_no_way_to_the_hub(
    environment: dict[str, str], sources: tuple[str, ...], why: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    output, noise = loaded(str(tmp_path_factory.mktemp("hub")), sources, **environment)
    assert output == without_hub(sources, why)
    assert "connect to the Hub" not in noise


def test_other_errors_of_the_library_are_one_line() -> None:
    assert explain_load_error("owner/name", ValueError("a file\n  is  torn")) == "a file is torn"
    assert explain_load_error("owner/name", KeyError("weight")) == "KeyError: 'weight'"
    assert explain_load_error("owner/name", ValueError("x" * 1000)) == "x" * 400 + " ..."
