"""HTTP clients of mmgrpo and a server whose response never ends, on real loopback sockets."""

from __future__ import annotations

import logging
import math
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat

import pytest
from mmgrpo.rewards.judges.endpoints import ApiJudge
from mmgrpo.rewards.judges.remote_reward import MAX_ANSWER_BYTES, RemoteReward

from mmgrpo.errors import RewardError
from mmgrpo.system.json_requests import MAX_REPLY_BYTES
from mmgrpo.types import Prompt, Sample
from tests.policies.families import daily
from tests.rewards.image_samples import drew, noise, numbers

MIB = 2**20
THREE_GB = 3 * 10**9
IN_FLIGHT = 64 * MIB
"""More than the buffers of two sockets hold."""

OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n\r\n"


class Server:
    """Sends one message to each client, and counts the bytes that it sent."""

    def __init__(self, body: Callable[[], Iterator[bytes]], pause_s: float = 0.0) -> None:
        self._body, self._pause_s = body, pause_s
        self.sent = self.num_requests = 0
        self._closing = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *raised: object) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # which ends a wait for a connection, as closing does not
        self._listening.close()
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        with suppress(OSError):
            while not self._closing.is_set():
                connection, _ = self._listening.accept()
                self.num_requests += 1
                with connection, suppress(OSError):
                    self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        connection.recv(2**16)
        for piece in self._body():
            if self._closing.wait(self._pause_s):
                return
            connection.sendall(piece)
            self.sent += len(piece)


def endless(head: bytes) -> Callable[[], Iterator[bytes]]:
    """A head and 3 GB."""

    def body() -> Iterator[bytes]:
        yield head
        yield from repeat(b" " * MIB, THREE_GB // MIB)

    return body


def trickling(head: bytes, drop: bytes) -> Callable[[], Iterator[bytes]]:
    """A head and then a drop at a time, for ever; each comes well within the client's timeout."""

    def body() -> Iterator[bytes]:
        if head:
            yield head
        yield from repeat(drop)

    return body


TRICKLES = {
    "status": trickling(b"", b"H"),
    "interim answers": trickling(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "header": trickling(OK, b"x"),
    "body until it closes": trickling(OK + JSON, b" "),
    "body of a length": trickling(OK + b"Content-Length: 1000000\r\n" + JSON, b" "),
    "chunks": trickling(OK + b"Transfer-Encoding: chunked\r\n" + JSON, b"1\r\n \r\n"),
    "body of an error": trickling(b"HTTP/1.1 503 Busy\r\nContent-Length: 1000\r\n\r\n", b"."),
}

HEADS = {
    "of a length": OK + f"Content-Length: {THREE_GB}\r\n".encode() + JSON,
    "until it closes": OK + JSON,
    "chunk": OK + b"Transfer-Encoding: chunked\r\n" + JSON + f"{THREE_GB:x}\r\n".encode(),
    "of an error": f"HTTP/1.1 503 Busy\r\nContent-Length: {THREE_GB}\r\n\r\n".encode(),
}

SAMPLES = [Sample(Prompt("p"), 0, 0, text="t")]


@pytest.mark.parametrize("head", HEADS)
def test_three_gigabytes_from_a_reward_server_are_not_read(head: str) -> None:
    with Server(endless(HEADS[head])) as server:
        tracemalloc.start()
        try:
            with pytest.raises(RewardError, match=f"answered with more than {MAX_ANSWER_BYTES} bytes"):
                RemoteReward(server.url, retries=3)(SAMPLES)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert server.num_requests == 1
    assert peak < 3 * MAX_ANSWER_BYTES
    assert server.sent < MAX_ANSWER_BYTES + IN_FLIGHT


@pytest.mark.parametrize("head", HEADS)
def test_three_gigabytes_from_an_endpoint_are_not_read(head: str) -> None:
    with Server(endless(HEADS[head])) as server:
        tracemalloc.start()
        try:
            failed = numbers(ApiJudge(server.url, "tiny", retries=0)([drew(noise(0), "a cat")]))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert failed == [pytest.approx(math.nan, nan_ok=True)]
    assert peak < 8 * MAX_REPLY_BYTES
    assert server.sent < MAX_REPLY_BYTES + IN_FLIGHT


@pytest.mark.first_case
@pytest.mark.parametrize("where", TRICKLES)
def test_a_reward_server_that_trickles_is_given_up(where: str) -> None:
    with Server(TRICKLES[where], pause_s=0.02) as server:
        reward = RemoteReward(server.url, timeout=0.2, retries=1, backoff=0.0)
        with pytest.raises(RewardError, match=r"did not answer in 2 attempts: TimeoutError: "):
            reward(SAMPLES)
        assert server.num_requests == 2


@pytest.mark.parametrize("where", daily(TRICKLES, "status", "chunks"))  # it reads answers as reward servers' are read
def test_an_endpoint_that_trickles_is_given_up(where: str, caplog: pytest.LogCaptureFixture) -> None:
    with Server(TRICKLES[where], pause_s=0.02) as server, caplog.at_level(logging.WARNING):
        judge = ApiJudge(server.url, "tiny", timeout=0.2, retries=1, backoff=0.0)
        assert numbers(judge([drew(noise(0), "a cat")])) == [pytest.approx(math.nan, nan_ok=True)]
        assert server.num_requests == 2
    assert "after 2 attempts" in caplog.text
    assert "TimeoutError" in caplog.text


def test_an_answer_of_many_parts_raises_before_it_is_unpacked() -> None:
    body = b'{"values": [' + b"0," * (2**22) + b"0]}"
    answer = OK + f"Content-Length: {len(body)}\r\n".encode() + JSON + body
    with (
        Server(lambda: iter([answer])) as server,
        pytest.raises(RewardError, match="cannot be read: the JSON has more than"),
    ):
        RemoteReward(server.url)(SAMPLES)
