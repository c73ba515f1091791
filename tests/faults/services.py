"""A reward service on this machine that fails at a random call and recovers after some."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Literal, final

from mmgrpo.scoring import NamedReward
from mmgrpo.serving.app import make_app
from mmgrpo.serving.server import make_server
from tests.faults.runs import Reward

Mode = Literal["hangs", "status 500", "hangs up", "stops midway"]
MODES: tuple[Mode, ...] = ("hangs", "status 500", "hangs up", "stops midway")


@final
class Faulty:
    """``mmgrpo serve-rewards`` itself, with a proxy in front that fails some calls."""

    def __init__(self, reward: Reward, *, at: int, num: int, mode: Mode) -> None:
        """Begins nothing yet.

        Args:
            reward: what is served.
            at: the first call that fails, from 1.
            num: how many fail.
            mode: how.
        """
        self._server = make_server(make_app([NamedReward("reward", reward)]))
        self._door = ThreadingHTTPServer(("127.0.0.1", 0), _Door)
        self._door.daemon_threads = True
        self._door.ill = _Illness(at, num, mode)  # pyrefly: ignore[missing-attribute]
        self.url = f"http://127.0.0.1:{self._door.server_address[1]}"
        self._threads = [
            threading.Thread(target=self._server.run, daemon=True),
            threading.Thread(target=self._door.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True),
        ]

    def __enter__(self) -> Faulty:
        for thread in self._threads:
            thread.start()
        while not self._server.started:
            threading.Event().wait(0.005)
        self._door.upstream_port = self._server.servers[0].sockets[0].getsockname()[1]  # pyrefly: ignore[missing-attribute]
        return self

    def __exit__(self, *raised: object) -> None:
        self._door.ill.over.set()  # pyrefly: ignore[missing-attribute]
        self._door.shutdown()
        self._door.server_close()
        self._server.should_exit = True
        for thread in self._threads:
            thread.join()


@final
class _Illness:
    """Which calls fail, and how."""

    def __init__(self, at: int, num: int, mode: Mode) -> None:
        self._lock = threading.Lock()
        self._first, self._num, self._count = at, num, 0
        self.mode, self.over = mode, threading.Event()

    def takes(self) -> bool:
        """Whether the next call fails."""
        with self._lock:
            self._count += 1
            return self._first <= self._count < self._first + self._num


class _Door(BaseHTTPRequestHandler):
    server: Any
    forwarded_headers: ClassVar[tuple[str, ...]] = ("Content-Type", "Authorization")

    def do_POST(self) -> None:
        import http.client

        body = self.rfile.read(int(self.headers["Content-Length"]))
        ill: _Illness = self.server.ill
        failing = ill.takes()
        if failing and ill.mode == "hangs":
            ill.over.wait(30)
            return
        if failing and ill.mode == "hangs up":
            return
        if failing and ill.mode == "status 500":
            self._answer(500, b'{"error": "out of order"}')
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.server.upstream_port, timeout=30)
        headers = {name: self.headers[name] for name in self.forwarded_headers if name in self.headers}
        connection.request("POST", self.path, body, headers)
        answer = connection.getresponse()
        self._answer(answer.status, answer.read(), short=failing)
        connection.close()

    def _answer(self, status: int, body: bytes, *, short: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if short else body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
