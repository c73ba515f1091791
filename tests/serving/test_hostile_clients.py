"""Hostile or broken clients of a server: each gets an error, with no other effect."""

from __future__ import annotations

import json
import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from mmgrpo.rewards.judges.remote_reward import RemoteReward

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.scoring import NamedReward, score
from mmgrpo.serving.app import ServerLimits
from mmgrpo.serving.server import ImpatientProtocol
from mmgrpo.serving.wire import token_of
from mmgrpo.types import Prompt, Sample
from tests.serving.loopback import TOKEN, get, post, serving


def lengths(samples: Sequence[Sample]) -> list[float]:
    return [len(sample.text or "") / 3 for sample in samples]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving({"lengths": lengths}) as url:
        yield url


def connected(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_large_bodies_are_rejected():
    limits = ServerLimits(max_body=100_000)
    small = [Sample(Prompt("q"), 0, 0, text="x" * 50_000)]
    with serving({"lengths": lengths}, limits=limits) as url:
        assert RemoteReward(url)(small) == [50_000 / 3]
        for size in (100_001, 5_000_000):
            with pytest.raises(RewardError, match=r"rejected the request \(413\): the body is larger than"):
                RemoteReward(url)([Sample(Prompt("q"), 0, 0, text="x" * size)])
        assert RemoteReward(url)(small) == [50_000 / 3]
        assert 'mmgrpo_requests_total{status="413"} 2.0' in get(url, "/metrics")[1]


def test_a_body_without_end_is_rejected():
    with serving({"lengths": lengths}, limits=ServerLimits(max_body=1000, body_timeout_s=0.2)) as url:
        with connected(url) as connection:
            connection.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
            assert b"408" in connection.recv(1000).splitlines()[0]
        with connected(url) as connection:
            connection.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            connection.sendall((b"400\r\n" + b"x" * 1024 + b"\r\n") * 2)
            assert b"413" in connection.recv(1000).splitlines()[0]


HOSTILE = [
    (b"", "application/json"),
    (b"[" * 1_000_000, "application/json"),
    (b'{"samples": [{"prompt": 0}], "prompts": []}', "application/json"),
    (b'{"samples": [], "prompts": [], "__reduce__": ["os.system"]}', "application/json"),
    (b'{"prompts": [{"text": "\xe9"}], "samples": []}', "application/json"),
    ("{}".encode("utf-16"), "application/json"),
    (b"{}", "text/html"),
    (b"{}", ""),
    (b"\x80\x04\x95cos\nsystem\n", "application/octet-stream"),
    (struct.pack("<Q", 2**63) + b"{}", "application/x-safetensors"),
]


@pytest.mark.parametrize("place", range(len(HOSTILE)))
def test_hostile_bodies_are_rejected(server: str, place: int):
    status, body = post(server, *HOSTILE[place])
    assert status == 400
    assert json.loads(body)["error"]
    assert get(server, "/health")[0] == 200


def test_headers_that_do_not_arrive_are_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ImpatientProtocol, "header_timeout_s", 0.3)
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = b""
    with (
        serving({"lengths": lengths}) as url,
        connected(url) as silent,
        connected(url) as slow,
        connected(url) as waiting,
    ):
        waiting.sendall(request)
        while not answer.endswith(b"}"):
            answer += waiting.recv(1000)
        slow.sendall(b"POST /score HTT")
        waiting.sendall(b"GET /hea")  # the second request of a connection has as much time as the first
        for connection in (silent, slow, waiting):
            assert connection.recv(1000) == b""
        assert get(url, "/health")[0] == 200


def test_a_slowly_scored_request_is_not_cut_off(monkeypatch: pytest.MonkeyPatch):
    def slow(samples: Sequence[Sample]) -> list[float]:
        time.sleep(0.6)
        return lengths(samples)

    monkeypatch.setattr(ImpatientProtocol, "header_timeout_s", 0.2)
    with serving({"slow": slow}) as url:
        assert RemoteReward(url)([Sample(Prompt("q"), 0, 0, text="abc")]) == [1]


def test_a_client_that_goes_away_leaves_no_trace(server: str, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING), connected(server) as connection:
        connection.sendall(b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
        connection.close()
        until = time.monotonic() + 10
        while 'status="400"' not in get(server, "/metrics")[1] and time.monotonic() < until:
            time.sleep(0.02)
    assert 'mmgrpo_requests_total{status="400"}' in get(server, "/metrics")[1]
    assert caplog.text == ""


NO_TOKENS = ["", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}"]


@pytest.mark.parametrize("token", NO_TOKENS)
def test_invalid_tokens_are_rejected(token: str):
    with serving({"lengths": lengths}, token=TOKEN) as url:
        body = b'{"prompts": [{"text": "x"}], "samples": [{"prompt": 0}]}'
        assert post(url, body, Authorization=token)[0] == 401
        assert post(url, b"\xff" * 1000, Authorization=token)[0] == 401  # nothing is read of it
        assert post(url, body, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_token_that_no_header_can_contain_raises(monkeypatch: pytest.MonkeyPatch):
    for token in ("t\u00f6ken", "to\nken", "\u4e2d"):
        monkeypatch.setenv("MMGRPO_ODD_TOKEN", token)
        with pytest.raises(ConfigError, match="MMGRPO_ODD_TOKEN must be printable ASCII"):
            token_of("MMGRPO_ODD_TOKEN")


def answering(*answers: bytes) -> tuple[str, threading.Thread]:
    """The address of a server that gives these answers, whatever it is asked, and its thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(10)

    def answer() -> None:
        with listening:
            for reply in answers:
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

    thread = threading.Thread(target=answer)
    thread.start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}", thread


def http(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


RESPONSE = b'{"values": [0.5], "failed": [], "explanations": null, "error": null}'


def test_server_errors_are_retried():
    faults = [http("500 Internal Server Error", b"oops"), http("502 Bad Gateway", b""), b"", http("429 Slow", b"{}")]
    url, thread = answering(*faults, http("200 OK", RESPONSE))
    assert RemoteReward(url, retries=4, backoff=0.01)([Sample(Prompt("q"), 0, 0)]) == [0.5]
    thread.join()


def test_a_server_that_stays_at_fault_fails_its_samples():
    url, thread = answering(*[http("500 Internal Server Error", b"oops")] * 2)
    client = RemoteReward(url, retries=1, backoff=0.01, when_down="fail")
    assert client([Sample(Prompt("q"), 0, 0)]) == pytest.approx([math.nan], nan_ok=True)
    thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        b'{"values": [NaN]}',
        b'{"values": [1e999]}',
        b'{"values": ["1"], "pickle": 1}',
        b'{"values": [1], "explanations": [{"a": NaN}]}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"",
    ],
)
def test_answers_that_are_none_end_the_run(answer: bytes):
    url, thread = answering(http("200 OK", answer))
    with pytest.raises(RewardError, match="is no reward server"):
        score(
            [Sample(Prompt("q"), 0, 0)], [NamedReward("r", RemoteReward(url, when_down="fail"))], max_failure_frac=1.0
        )
    thread.join()
