"""``mmgrpo watch``: serves the report of running runs on this machine; the page reloads itself when the run has news.

Only rendered pages are served, never a file of a run folder, and only to requests that name this machine as their host:
a web page elsewhere that resolves its name to 127.0.0.1 gets nothing.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import final

from mmgrpo.errors import MmgrpoError, OutputError
from mmgrpo.report.page import live_report
from mmgrpo.report.page_templates import render_page
from mmgrpo.report.run_comparison import live_comparison, require_comparable, run_labels
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.run_info import parse_tasks, read_about

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")
SOURCES = ("config.yaml", "run.json", "metrics.jsonl", "warmup.jsonl", "evaluation.jsonl", "alerts.jsonl", "samples")
"""Files of a run folder whose change is news."""

MIN_INTERVAL_S = 2.0
RENDERING_SHARE = 0.1
"""Maximum share of the time that the server renders, so that it does not slow down a run on the same processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """A page and its version, which changes with the files of the runs.

    Attributes:
        html: the page, UTF-8.
        version: hexadecimal digits.
    """

    html: bytes
    version: str


@final
class LivePages:
    """The pages of some runs, which need not exist yet: each is rendered again after its files have changed."""

    def __init__(self, runs: Sequence[Path]) -> None:
        """Renders nothing yet.

        Args:
            runs: one run folder, or two to six to compare.

        Raises:
            DataError: there are too many runs, or one is repeated.
        """
        if len(runs) != 1:
            require_comparable(runs)
        self._runs = {f"/{number}/": run for number, run in enumerate(runs, 1)} if len(runs) > 1 else {"/": runs[0]}
        self._labels = dict(zip(self._runs, run_labels([run.resolve() for run in runs]), strict=True))
        self._pages: dict[str, tuple[LivePage, float]] = {}
        self._lock = threading.Lock()

    def page(self, path: str) -> LivePage | None:
        """The page of a path; None if there is no such page.

        ``/`` is the report of the run, or the comparison of several, whose reports are ``/1/``, ``/2/``, ...;
        ``TASK/report.html`` after the path of a mixed run is the report of a task.
        """
        with self._lock:
            earlier, next_at = self._pages.get(path, (None, 0.0))
            if earlier is not None and time.monotonic() < next_at:
                return earlier
            source = self._source(path)
            if source is None:
                return None
            folders, render = source
            version = _version(folders)
            if earlier is not None and earlier.version == version:
                return earlier
            started = time.monotonic()
            page = LivePage(html=_rendered(render, folders, version).encode(), version=version)
            ended = time.monotonic()
            interval_s = max(MIN_INTERVAL_S, (ended - started) / RENDERING_SHARE)
            self._pages[path] = (page, ended + interval_s)
            return page

    def _source(self, path: str) -> tuple[Sequence[Path], Callable[[Sequence[Path], str], str]] | None:
        """The run folders of a path and the function that renders them."""
        if path == "/" and len(self._runs) > 1:
            links = {self._labels[each]: each for each in self._runs}
            return list(self._runs.values()), lambda folders, version: live_comparison(folders, links, version)
        folder = self._folder(path)
        if folder is None:
            return None
        links = {"Comparison": "/"} if len(self._runs) > 1 else {}
        return [folder], lambda folders, version: live_report(folders[0], links, version)

    def _folder(self, path: str) -> Path | None:
        if path in self._runs:
            return self._runs[path]
        for prefix, run in self._runs.items():
            for task in parse_tasks(RunFiles(run).text("config.yaml")):
                if path == f"{prefix}{task}/report.html":
                    return run / task
        return None


def _rendered(render: Callable[[Sequence[Path], str], str], folders: Sequence[Path], version: str) -> str:
    """The page of the folders; while one is missing or unreadable, a page that says so and reloads itself."""
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        lines = [f"no run folder yet at {folder}; the page appears when mmgrpo train creates it" for folder in missing]
        return render_page("waiting.html.jinja", {"title": "Waiting for the run", "lines": lines, "live": version})
    try:
        return render(folders, version)
    except (MmgrpoError, OSError) as error:
        values = {"title": "The run folder cannot be read", "lines": [str(error)], "live": version}
        return render_page("waiting.html.jinja", values)


def _version(folders: Sequence[Path]) -> str:
    states = [[*_changes(folder), read_about(RunFiles(folder)).get("status")] for folder in folders]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:16]


def _changes(folder: Path) -> Iterator[tuple[int, int] | None]:
    """Modification time in nanoseconds and size of each source; None for a missing one."""
    for name in (".", *SOURCES):
        try:
            status = (folder / name).stat()
        except OSError:
            yield None
        else:
            yield (0, 0) if name == "." else (status.st_mtime_ns, status.st_size)


def live_server(runs: Sequence[Path], port: int) -> ThreadingHTTPServer:
    """A server of the pages of some runs on the loopback address; the caller starts and closes it.

    Args:
        runs: one run folder, or two to six to compare; none has to exist yet.
        port: the port; 0: a free one.

    Returns:
        The server; ``server_port`` is its port.

    Raises:
        DataError: there are too many runs, or one is repeated.
        OutputError: the port is in use.
    """
    pages = LivePages(runs)

    class Handler(BaseHTTPRequestHandler):
        """Answers GET and HEAD requests for the pages."""

        server_version, sys_version = "mmgrpo", ""

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, format: str, *args: object) -> None:
            """Prints nothing."""

        def _answer(self, *, with_body: bool) -> None:
            if not is_local(self.headers.get_all("Host") or [], server.server_port):
                self._send(403, b"the Host header has to name this machine: open http://127.0.0.1", {}, with_body)
                return
            page = pages.page(self.path.partition("?")[0])
            if page is None:
                self._send(404, b"no such page; the report is at /", {}, with_body)
            else:
                headers = {"Content-Type": "text/html; charset=utf-8", "ETag": f'"{page.version}"'}
                self._send(200, page.html, headers, with_body)

        def _send(self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool) -> None:
            self.send_response(status)
            common = {
                "Content-Type": "text/plain; charset=utf-8",
                "Content-Length": str(len(body)),
                "Cache-Control": "no-store",
                "X-Content-Type-Options": "nosniff",
                "Cross-Origin-Resource-Policy": "same-origin",
                "X-Frame-Options": "DENY",
            }
            for name, value in {**common, **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    try:
        server = ThreadingHTTPServer((ADDRESS, port), Handler)
    except OSError as error:
        raise OutputError(
            f"cannot listen on {ADDRESS}:{port}: {error.strerror}; pass --port 0 for a free port"
        ) from error
    return server


def is_local(hosts: Sequence[str], port: int) -> bool:
    """Whether the Host headers of a request are one name of this machine with the port of the server."""
    return len(hosts) == 1 and hosts[0].lower() in {f"{name}:{port}" for name in NAMES}
