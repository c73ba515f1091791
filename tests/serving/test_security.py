"""Access to a reward server, and the comparison of its token."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import validated
from mmgrpo.serving import server
from mmgrpo.serving.app import make_app
from mmgrpo.training.build import build_rewards

EXACT = validated({"rewards": [{"name": "exact_match"}]}).rewards


@pytest.mark.parametrize(
    ("options", "host", "warned"),
    [
        ([], "127.0.0.1", False),
        (["--host", "0.0.0.0"], "0.0.0.0", True),
        (["--host", "0.0.0.0", "--token-variable", "MMGRPO_TEST_TOKEN"], "0.0.0.0", False),
    ],
)
def test_it_listens_on_loopback_by_default(
    options: list[str], host: str, warned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listened: list[str] = []
    monkeypatch.setenv("MMGRPO_TEST_TOKEN", "a-token")
    monkeypatch.setattr(server, "serve", lambda app, *, host, port: listened.append(host))
    (tmp_path / "serve.yaml").write_text("rewards: [exact_match]\n")
    done = CliRunner().invoke(app, ["serve-rewards", str(tmp_path / "serve.yaml"), *options])
    assert done.exit_code == 0, done.output
    assert listened == [host]
    assert ("any client that reaches this machine can send requests" in " ".join(done.output.split())) == warned


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def watching(header: Any, expected: Any) -> bool:
        compared.append((header, expected))
        return compare(header, expected)

    monkeypatch.setattr(hmac, "compare_digest", watching)
    with TestClient(make_app(build_rewards(EXACT), token="a-token")) as client:
        for header in ("", "Bearer a-toke", "Bearer a-tokens", "a-token"):
            assert client.post("/score", headers={"authorization": header}, content=b"{}").status_code == 401
        assert client.post("/score", headers={"authorization": "Bearer a-token"}, content=b"{}").status_code != 401
    assert [header for header, _ in compared][:4] == [b"", b"Bearer a-toke", b"Bearer a-tokens", b"a-token"]
    assert {expected for _, expected in compared} == {b"Bearer a-token"}
