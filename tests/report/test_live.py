"""``mmgrpo watch``: pages over HTTP of runs that grow, are missing or are compared; and requests that get none."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from mmgrpo.errors import DataError, OutputError
from mmgrpo.report import live_server
from mmgrpo.system.processes import process_record
from tests.report.folder import write_lines
from tests.report.page import Page


class Answer(NamedTuple):
    """Status, headers and body of a response."""

    status: int
    headers: dict[str, str]
    body: str


@contextmanager
def served(*runs: Path) -> Iterator[int]:
    """The port of a server of the runs."""
    with live_server.live_server(runs, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def answer(port: int, path: str = "/", method: str = "GET", host: str | None = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return Answer(response.status, dict(response.headers), body)


@pytest.fixture(autouse=True)
def _no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_server, "MIN_INTERVAL_S", 0.0)
    monkeypatch.setattr(live_server, "RENDERING_SHARE", float("inf"))


def trained(page: str) -> str:
    """The number of steps on the page."""
    parsed = Page(page)
    return dict(zip(parsed.texts("dt"), parsed.texts("dd"), strict=True))["Trained"]


def test_page_follows_a_run_that_grows_and_writes_nothing(run: Path) -> None:
    before = {path.relative_to(run) for path in run.rglob("*")}
    with served(run) as port:
        first = answer(port)
        assert trained(first.body) == "3 steps, 6 updates"
        assert answer(port, method="HEAD").headers["ETag"] == first.headers["ETag"]
        assert answer(port, method="HEAD").body == ""
        assert first.headers["ETag"].strip('"') in first.body
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 4, "update": 0, "reward/mean": 1.0}\n')
        assert answer(port, method="HEAD").headers["ETag"] != first.headers["ETag"]
        assert trained(answer(port).body) == "4 steps, 7 updates"
    assert {path.relative_to(run) for path in run.rglob("*")} == before


def test_page_of_a_killed_run_says_so(run: Path) -> None:
    """The process of a running run is killed: it cannot write its status, and the page changes nevertheless."""
    about = json.loads((run / "run.json").read_text()) | {"status": "running"}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        record = process_record() | {"pid": process.pid}
        (run / "run.json").write_text(json.dumps(about | {"process": record}))
        with served(run) as port:
            running = answer(port)
            process.kill()
            process.wait()
            killed = answer(port)
    assert Page(running.body).texts("span", "status") == ["running"]
    assert Page(killed.body).texts("span", "status") == ["killed"]
    assert running.headers["ETag"] != killed.headers["ETag"]
    (run / "run.json").write_text(json.dumps(about | {"process": record | {"boot": "of another machine"}}))
    with served(run) as port:
        assert Page(answer(port).body).texts("span", "status") == ["running"]


def test_run_that_is_not_there_yet_is_waited_for(run: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    with served(later) as port:
        waiting = answer(port)
        assert waiting.status == 200
        assert "Waiting for the run" in waiting.body
        shutil.copytree(run, later)
        assert answer(port, method="HEAD").headers["ETag"] != waiting.headers["ETag"]
        assert trained(answer(port).body) == "3 steps, 6 updates"


def test_several_runs_are_compared_and_each_has_its_page(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "digits-3")
    write_lines(other / "metrics.jsonl", [{"step": 1, "update": 0, "reward/mean": 0.5}])
    with served(run, other) as port:
        comparison = answer(port).body
        assert "2 runs compared" in comparison
        assert 'href="/2/"' in comparison
        assert trained(answer(port, "/1/").body) == "3 steps, 6 updates"
        assert trained(answer(port, "/2/").body) == "1 step, 1 update"
        assert 'href="/"' in answer(port, "/2/").body
    with pytest.raises(DataError, match="repeated"):
        live_server.LivePages([run, run])


def test_task_of_a_mixed_run_has_its_page(run: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(run, mixed / "digits")
    (mixed / "config.yaml").write_text("tasks: {digits: {}}\n")
    with served(mixed) as port:
        assert 'href="digits/report.html"' in answer(port).body
        assert trained(answer(port, "/digits/report.html").body) == "3 steps, 6 updates"
        assert answer(port, "/other/report.html").status == 404


@pytest.mark.parametrize("path", ["/config.yaml", "/samples/step-000000/0000.png", "/../config.yaml", "/report.html"])
def test_no_file_of_the_run_is_served(path: str, run: Path) -> None:
    with served(run) as port:
        assert answer(port, path).status == 404


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "localhost.example.org:{port}"])
def test_other_host_names_get_nothing(host: str, run: Path) -> None:
    with served(run) as port:
        other = answer(port, host=host.format(port=port))
        assert other.status == 403
        assert "digits" not in other.body
        assert answer(port, host=f"localhost:{port}").status == 200
        assert answer(port, method="POST").status == 501


def test_port_in_use_is_an_error_with_its_fix(run: Path) -> None:
    with served(run) as port, pytest.raises(OutputError, match="--port 0"):
        live_server.live_server([run], port)
