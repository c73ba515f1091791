"""Client and server on loopback: the values of the local reward, and every way to fail."""

from __future__ import annotations

import logging
import math
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmgrpo.rewards.groups.pairs import PairwiseWinRate, Tournament
from mmgrpo.rewards.images.pixels import Brightness, JpegSize
from mmgrpo.rewards.judges.remote_reward import RemoteReward, batches
from mmgrpo.rewards.text.answers import EditDistance
from PIL import Image
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.scoring import NamedReward, score
from mmgrpo.serving.app import ServerLimits, make_app
from mmgrpo.serving.wire import token_of
from mmgrpo.types import Prompt, Sample, Score
from tests.serving.loopback import TOKEN, counted, get, scripted_scores, serving, wait_for

QUICK: dict[str, Any] = {"retries": 1, "backoff": 0.01}


def lengths(samples: Sequence[Sample]) -> list[float]:
    return [len(sample.text or "") / 3 for sample in samples]


def random_samples(num: int) -> list[Sample]:
    """Samples in groups of 1 to 5 with texts, images of several modes, and videos; some have nothing."""
    draw, result = random.Random(num), []
    for group in draw.sample(range(1000), num):
        prompt = Prompt(f"prompt {draw.random()}", columns={"answer": draw.choice(["cat", "dog"]), "digit": 3})
        for member in range(draw.randint(1, 5)):
            pixels = np.random.RandomState(group + member).randint(0, 256, size=(9, 7, 4)).astype(np.uint8)
            mode = draw.choice(["L", "P", "RGB", "RGBA"])
            image = Image.fromarray(pixels if mode == "RGBA" else pixels[..., :3].copy()).convert(mode)
            kind = draw.choice(["text", "image", "video", "nothing"])
            result.append(
                Sample(
                    prompt,
                    group,
                    member,
                    text="".join(draw.choices("cadogt \u00e9\u4e2d", k=6)) if kind == "text" else None,
                    image=image if kind == "image" else None,
                    video=[image, image.convert("RGB")] if kind == "video" else None,
                )
            )
    return result


REWARDS = {
    "edit": EditDistance(),
    "size": JpegSize(),
    "bright": Brightness(0.3),
    "win": PairwiseWinRate(of=Brightness()),
    "cup": Tournament(of=EditDistance(), seeding="random"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving(REWARDS) as url:
        yield url


@pytest.mark.parametrize("form", ["tensors", "png"])
@pytest.mark.parametrize("name", REWARDS)
def test_values_are_those_of_the_local_reward(server: str, name: str, form: Any):
    samples = random_samples(9)
    local = REWARDS[name](samples)
    assert any(value is not None for value in local)
    assert RemoteReward(server, name, form=form)(samples) == local
    assert RemoteReward(server, name, form=form, batch_size=3)(samples) == local


def test_concurrent_clients_get_their_values(server: str):
    clients = [random_samples(num) for num in range(2, 10)]
    with ThreadPoolExecutor(len(clients)) as threads:
        for name in ("win", "cup", "size"):
            values = list(threads.map(RemoteReward(server, name), clients))
            assert values == [REWARDS[name](samples) for samples in clients]


def test_concurrent_clients_are_scored_together():
    def slow(samples: Sequence[Sample]) -> list[float]:
        time.sleep(0.05)
        return lengths(samples)

    num = 16
    samples = [[Sample(Prompt("q"), 0, 0, text="x" * i)] for i in range(num)]
    with serving({"slow": slow}) as url, ThreadPoolExecutor(num) as threads:
        assert list(threads.map(RemoteReward(url), samples)) == [[i / 3] for i in range(num)]
        metrics = get(url, "/metrics")[1]
    assert counted(metrics, "mmgrpo_samples_total") == num
    assert counted(metrics, "mmgrpo_batch_samples_count") <= num / 2  # two would do, if all came within the first call
    assert counted(metrics, "mmgrpo_requests_total") == counted(metrics, "mmgrpo_request_seconds_count") == num


def test_groups_stay_complete():
    samples = [Sample(Prompt("q"), group, 0) for group in [5, 2, 5, 2, 2, 9]]
    assert list(batches(samples, 3)) == [[0, 2], [1, 3, 4], [5]]
    assert list(batches(samples, 5)) == [[0, 2, 1, 3, 4], [5]]
    assert list(batches(samples, 1)) == [[0, 2], [1, 3, 4], [5]]
    assert list(batches([], 1)) == []


def test_none_and_failures_arrive(caplog: pytest.LogCaptureFixture):
    def with_failures(samples: Sequence[Sample]) -> list[Any]:
        return [None, 0.1, math.nan, Score(2.0, {"answer": "7"})]

    samples = [Sample(Prompt("q"), 0, i) for i in range(4)]
    with serving({"said": with_failures, "raises": scripted_scores}) as url:
        values = RemoteReward(url, "said")(samples)
        assert values[:3] == pytest.approx([None, 0.1, math.nan], nan_ok=True)
        assert values[3] == Score(2.0, {"answer": "7"})
        scores = score(samples, [NamedReward("r", RemoteReward(url, "said"))], max_failure_frac=0.5)
        assert scores.valid_BR[:, 0].tolist() == [False, True, False, True]
        assert scores.failures == {"r": 1}
        unlucky = [Sample(Prompt("q", columns={"says": "out of paint"}), 0, 0)]
        with caplog.at_level(logging.WARNING):
            assert RemoteReward(url, "raises")(unlucky) == pytest.approx([math.nan], nan_ok=True)
    assert "ValueError: out of paint" in caplog.text


def test_no_samples_no_request():
    assert RemoteReward("http://127.0.0.1:9", **QUICK)([]) == []


def test_the_token():
    samples = [Sample(Prompt("q"), 0, 0, text="abc")]
    os.environ["MMGRPO_TEST_TOKEN"], os.environ["MMGRPO_WRONG_TOKEN"] = TOKEN, "other"
    try:
        with serving({"lengths": lengths}, token=token_of("MMGRPO_TEST_TOKEN")) as url:
            assert RemoteReward(url, token_variable="MMGRPO_TEST_TOKEN")(samples) == [1]
            for client in (RemoteReward(url), RemoteReward(url, token_variable="MMGRPO_WRONG_TOKEN")):
                with pytest.raises(RewardError, match=r"rejected the request \(401\): a bearer token is needed"):
                    client(samples)
            assert get(url, "/metrics")[0] == 401
            assert get(url, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
            assert get(url, "/health") == (200, '{"status":"ok","rewards":["lengths"]}')
    finally:
        del os.environ["MMGRPO_TEST_TOKEN"], os.environ["MMGRPO_WRONG_TOKEN"]


def test_unknown_rewards_and_paths(server: str):
    with pytest.raises(RewardError, match=r"\(404\): there is no reward 'sise'; available are edit, size"):
        RemoteReward(server, "sise")([Sample(Prompt("q"), 0, 0)])
    with pytest.raises(RewardError, match=r"\(404\): there is no reward None"):
        RemoteReward(server)([Sample(Prompt("q"), 0, 0)])
    with pytest.raises(RewardError, match=r"rejected the request \(404\)"):
        RemoteReward(f"{server}/elsewhere", "size")([Sample(Prompt("q"), 0, 0)])


def test_a_slow_reward_is_given_up():
    go = threading.Event()

    def stuck(samples: Sequence[Sample]) -> list[float]:
        go.wait(10)
        return lengths(samples)

    samples = [Sample(Prompt("q"), 0, 0, text="abc")]
    with serving({"stuck": stuck}, limits=ServerLimits(score_timeout_s=0.1)) as url:
        with pytest.raises(RewardError, match=r"2 attempts: .*504: reward 'stuck' took more than 0\.1 s"):
            RemoteReward(url, **QUICK)(samples)
        with pytest.raises(RewardError, match="1 attempts: TimeoutError"):
            RemoteReward(url, timeout=0.02, retries=0)(samples)
        go.set()


def test_an_unreachable_server_ends_the_run_or_fails(caplog: pytest.LogCaptureFixture):
    with serving({"lengths": lengths}) as url:
        pass
    samples = [Sample(Prompt("q"), 0, i, text="abc") for i in range(2)]
    with pytest.raises(RewardError, match="did not answer in 2 attempts: ConnectionRefusedError"):
        score(samples, [NamedReward("r", RemoteReward(url, **QUICK))], max_failure_frac=1.0)
    failing = NamedReward("r", RemoteReward(url, when_down="fail", **QUICK))
    assert score(samples, [failing], max_failure_frac=1.0).failures == {"r": 2}
    assert "2 samples count as failed" in caplog.text
    with pytest.raises(RewardError, match="failed on 2 of 2 samples"):
        score(samples, [failing])


def test_a_restarted_server_is_found_again():
    with serving({"lengths": lengths}) as url:
        pass
    result: list[Any] = []
    client = RemoteReward(url, retries=8, backoff=0.02)
    thread = threading.Thread(target=lambda: result.extend(client([Sample(Prompt("q"), 0, 0, text="abc")])))
    thread.start()
    time.sleep(0.1)
    with serving({"lengths": lengths}, port=int(url.rpartition(":")[2])):
        thread.join(20)
    assert result == [1]


def test_a_server_of_another_kind_raises():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)

        def answer() -> None:
            for reply in (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", b"SSH-2.0\r\n\r\n"):
                connection, _ = listening.accept()
                connection.recv(65536)
                connection.sendall(reply)
                connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        client = RemoteReward(f"http://127.0.0.1:{listening.getsockname()[1]}", retries=0)
        with pytest.raises(RewardError, match="is no reward server"):
            client([Sample(Prompt("q"), 0, 0)])
        with pytest.raises(RewardError, match="BadStatusLine"):
            client([Sample(Prompt("q"), 0, 0)])
        thread.join()


@pytest.mark.slow
def test_a_killed_process_is_started_again(tmp_path: Path):
    """``mmgrpo serve-rewards`` itself, killed in the middle of a request."""
    (tmp_path / "slowly.py").write_text(
        "import time\n\n\ndef judged(samples):\n    time.sleep(1)\n    return [float(len(s.text)) for s in samples]\n"
    )
    (tmp_path / "serve.yaml").write_text("rewards: [{name: 'python:slowly:judged', label: slow}]\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mmgrpo.cli", "serve-rewards", "serve.yaml", "--port", str(port)]

    def started() -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(Path(__file__).parents[2]), str(tmp_path)])
        return subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path})

    samples = [Sample(Prompt("q"), 0, i, text="x" * i) for i in range(3)]
    client = RemoteReward(f"http://127.0.0.1:{port}", retries=0, when_down="fail")
    process = started()
    try:
        wait_for(port)
        assert client(samples) == [0, 1, 2]
        killer = threading.Timer(0.3, process.kill)
        killer.start()
        scores = score(samples, [NamedReward("slow", client)], max_failure_frac=1.0)
        assert scores.failures == {"slow": 3}
        process.wait()
        process = started()
        wait_for(port)
        assert client(samples) == [0, 1, 2]
    finally:
        process.kill()
        process.wait()


def test_the_command_states_its_requirements(tmp_path: Path):
    (tmp_path / "serve.yaml").write_text("rewards: [exact_match]\n")
    (tmp_path / "none.yaml").write_text("steps: 1\n")
    for arguments, reason in [
        (["none.yaml"], "serve one or more rewards"),
        (["serve.yaml", "--token-variable", "MMGRPO_NOT_SET"], "MMGRPO_NOT_SET for the bearer token is not set"),
        (["serve.yaml", "rewards=[exact_mach]"], "did you mean exact_match"),
    ]:
        result = CliRunner().invoke(app, ["serve-rewards", str(tmp_path / arguments[0]), *arguments[1:]])
        assert result.exit_code == 2
        assert reason in result.output


def test_invalid_settings_raise():
    wrong = ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port", "http://host:99999", "http://host:0"]
    for url in [*wrong, "http://me:secret@host", "http://host?reward=x", "http://host#x"]:
        with pytest.raises(ConfigError, match=r"must be such as http://127\.0\.0\.1:8000"):
            RemoteReward(url)
    with pytest.raises(ConfigError, match="timeout > 0"):
        RemoteReward("http://x", timeout=0)
    with pytest.raises(ConfigError, match="MMGRPO_NOT_SET for the bearer token is not set"):
        RemoteReward("http://x", token_variable="MMGRPO_NOT_SET")
    with pytest.raises(ConfigError, match="MMGRPO_NOT_SET for the bearer token is not set"):
        token_of("MMGRPO_NOT_SET")
    with pytest.raises(ConfigError, match="must be a list of names"):
        RemoteReward("http://x", columns="answer")
    with pytest.raises(ConfigError, match="one or more rewards"):
        make_app([])
    with pytest.raises(ConfigError, match="must be positive"):
        ServerLimits(max_batch=0)
