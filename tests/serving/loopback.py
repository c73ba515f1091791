"""A real server on a free port of this machine."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn

from mmgrpo.scoring import NamedReward
from mmgrpo.serving.app import Limits, make_app

TOKEN = "secret"


@contextmanager
def serving(
    rewards: Mapping[str, Any], *, limits: Limits | None = None, token: str | None = None, port: int = 0
) -> Iterator[str]:
    """The address of a server of these rewards, as long as the block lasts."""
    app = make_app([NamedReward(name, reward) for name, reward in rewards.items()], limits=limits, token=token)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


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


def told(samples: Sequence[Any]) -> list[Any]:
    """A reward that says what each sample's column ``says`` tells it to; it raises if that is a text."""
    for sample in samples:
        if isinstance(sample.prompt.columns.get("says"), str):
            raise ValueError(sample.prompt.columns["says"])
    return [
        float("nan") if sample.prompt.columns.get("says") == "nan" else sample.prompt.columns.get("says")
        for sample in samples
    ]
