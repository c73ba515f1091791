"""Real servers on free ports of this machine, in a thread or in a separate process."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mmgrpo.scoring import NamedReward
from mmgrpo.serving.app import ServerLimits, make_app
from mmgrpo.serving.server import make_server, serve

TOKEN = "secret"


@contextmanager
def serving(
    rewards: Mapping[str, Any], *, limits: ServerLimits | None = None, token: str | None = None, port: int = 0
) -> Iterator[str]:
    """The address of a server of these rewards, as long as the block lasts."""
    app = make_app([NamedReward(name, reward) for name, reward in rewards.items()], limits=limits, token=token)
    server = make_server(app, port=port)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class ServerProcess:
    """A server in a separate process that may be killed and started again at the same address."""

    def __init__(self, rewards: Mapping[str, Any], *, grace_s: int = 30) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._rewards = [NamedReward(name, reward) for name, reward in rewards.items()]
        self._grace_s = grace_s
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()

    def start(self) -> None:
        """Forks, which spares the imports, and waits until the server answers."""
        self._process = multiprocessing.get_context("fork").Process(target=self._serve, daemon=True)
        self._process.start()
        wait_for(self._port)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def end(self, *, within_s: float = 30) -> int | None:
        """Asks it to end; its exit code, or None if it did not."""
        os.kill(self._process.pid or 0, signal.SIGTERM)
        self._process.join(within_s)
        return self._process.exitcode

    def _serve(self) -> None:
        serve(make_app(self._rewards), host="127.0.0.1", port=self._port, grace_s=self._grace_s)


def wait_for(port: int) -> None:
    """Waits until something listens."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the server did not start")


def post(url: str, body: bytes, content_type: str = "application/json", **headers: str) -> tuple[int, bytes]:
    """Status and body of what POST /score answers."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("POST", "/score", body, {"Content-Type": content_type, **headers})
    response = connection.getresponse()
    return response.status, response.read()


def get(url: str, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    return response.status, response.read().decode()


def counted(metrics: str, name: str) -> float:
    """Sum of a metric over its labels."""
    lines = [line for line in metrics.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def scripted_scores(samples: Sequence[Any]) -> list[Any]:
    """A reward that returns each sample's column ``says``; it raises if that is a text."""
    for sample in samples:
        if isinstance(sample.prompt.columns.get("says"), str):
            raise ValueError(sample.prompt.columns["says"])
    return [
        float("nan") if sample.prompt.columns.get("says") == "nan" else sample.prompt.columns.get("says")
        for sample in samples
    ]
