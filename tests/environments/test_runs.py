"""Runs of a Trainer with each environment by its name: calls, answers, log-probabilities, updates and the report."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, final

import pytest

from mmgrpo import Trainer
from mmgrpo.environment import Environment, Turn
from mmgrpo.runs.checkpoint import list_checkpoints
from mmgrpo.types import Prompt, Sample, Video
from tests.audio_signals import tone
from tests.environments.chat_server import ChatServer
from tests.environments.test_mcp_tools import SERVER
from tests.environments.test_search import CITIES, written
from tests.environments.test_sql import SCHEMA
from tests.environments.test_video_tools import frame
from tests.faults.runs import differing, run_state
from tests.policies.test_language_exchanges import terse
from tests.policies.test_language_sounds import hearing
from tests.policies.tiny_language import picture, policy_of, prompts_of
from tests.rewards.sandboxed import needs_sandbox
from tests.test_tools import call

VLM, LISTENER = "qwen2.5-vl", "qwen2-audio"


def length(samples: Sequence[Sample]) -> list[float]:
    return [float(len(sample.text or "")) for sample in samples]


def trained(
    folder: Path, environment: dict[str, Any], prefix: str, family: str = "llama", **fields: Any
) -> tuple[list[dict[str, Any]], str]:
    """Two steps of two prompts, the first turn of which begins with a call; the lines of the log, and the report."""
    make = hearing if family == LISTENER else policy_of
    policy = terse(family, make, max_new_tokens=250, rollout_batch=3)
    prompts = [Prompt("what number is this", prefix=prefix, **fields), Prompt("and this", prefix=prefix, **fields)]
    values = {
        "steps": 2,
        "rollout": {"prompts_per_step": 2, "group_size": 3, "environment": environment, "max_turns": 2},
        "update": {"optimizer": {"lr": 1e-3}},
        "output": str(folder),
    }
    trainer = Trainer(policy, {"length": length}, prompts, values)
    run = trainer.train()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return lines, (run / "report.html").read_text(encoding="utf-8")


def check(lines: Sequence[dict[str, Any]], tool: str | None) -> None:
    assert len(lines) == 2
    for line in lines:
        assert line["policy/on_policy_gap"] < 3e-6
        assert line.get("environment/failed_frac", 0.0) == 0.0
        assert 0 < line["optimizer/grad_norm"] < math.inf
        if tool is not None:
            assert (line[f"tools/{tool}/calls"], line[f"tools/{tool}/failures"]) == (6.0, 0.0)
            assert line[f"time/tools/{tool}_s"] >= 0


def test_image_tools(tmp_path: Path) -> None:
    prefix = call("zoom", bbox_2d=[0, 0, 16, 16])
    environment = {"name": "image_tools", "tools": ["zoom"], "min_side": 8, "describe": False}
    lines, report = trained(tmp_path, environment, prefix, VLM, images=[picture(32, 32)])
    check(lines, "zoom")
    assert "zoom" in report


@pytest.mark.nightly
def test_video_tools(tmp_path: Path) -> None:
    prefix = call("select_frames", target_frames=[1, 2])
    lines, _ = trained(
        tmp_path, {"name": "video_tools", "describe": False}, prefix, VLM, videos=[[frame(n) for n in range(4)]]
    )
    check(lines, "select_frames")


@pytest.mark.nightly
def test_clips_of_video_tools(tmp_path: Path) -> None:
    environment = {"name": "video_tools", "describe": False, "clip_form": "video"}
    prefix = call("view_clip", start_time=0, end_time=1.5, num_frames=2)
    lines, report = trained(tmp_path, environment, prefix, VLM, videos=[[frame(n) for n in range(4)]])
    check(lines, "view_clip")
    assert "<video" in report


@pytest.mark.nightly
def test_audio_tools(tmp_path: Path) -> None:
    environment = {"name": "audio_tools", "describe": False}
    prefix = call("cut_audio", start_time=0.0, end_time=0.25)
    lines, report = trained(tmp_path, environment, prefix, LISTENER, audios=[tone(440)])
    check(lines, "cut_audio")
    assert report.count("<audio") > 2


@pytest.mark.nightly
@needs_sandbox
def test_python(tmp_path: Path) -> None:
    lines, report = trained(tmp_path, {"name": "python", "call": "tag"}, "<code>print(123456 * 7)</code>")
    check(lines, "python")
    assert "864192" in report


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("bm25s") is None, reason="the extra search is not installed")
def test_search(tmp_path: Path) -> None:
    corpus = written(tmp_path / "cities.jsonl", CITIES)
    lines, report = trained(tmp_path / "run", {"name": "search", "corpus": str(corpus)}, "<search>fjord</search>")
    check(lines, "search")
    assert "at the end of a fjord" in report


@pytest.mark.nightly
@needs_sandbox
def test_sql(tmp_path: Path) -> None:
    prefix = "<sql>SELECT max(size) * 1001 FROM city</sql>"
    lines, report = trained(tmp_path, {"name": "sql"}, prefix, columns={"schema": SCHEMA})
    check(lines, "query")
    assert "28028" in report


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("textarena") is None, reason="the extra games is not installed")
def test_text_game(tmp_path: Path) -> None:
    environment = {"name": "text_game", "game": "GuessTheNumber-v0"}
    lines, report = trained(tmp_path, environment, "I guess [7]", columns={"seed": 3})
    check(lines, None)
    assert "target number is" in report


@pytest.mark.nightly
def test_recorded_screens(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.png") for number in range(3)]
    for path in paths:
        picture(32, 32).save(path)
    actions = ["click(x=9, y=9)", "press_back()", "finished()"]
    environment = {"name": "recorded_screens", "match": {"distance": 4}}
    prefix = "<think>So.</think>click(x=9, y=8)\n"
    columns = {"screens": paths, "actions": actions}
    lines, _ = trained(tmp_path / "run", environment, prefix, VLM, columns=columns)
    check(lines, None)
    files = list(tmp_path.glob("run/**/samples.jsonl"))
    turns = [json.loads(row)["turns"] for file in files for row in file.read_text().splitlines()]
    assert [[turn["reward"] for turn in sample] for sample in turns] == [[1.0, 0.0]] * (2 * 2 * 3)


@final
class Tally(Environment):
    """Its replies depend on all turns of the conversation; one of its conversations may interrupt the run."""

    resets: ClassVar[Any] = count(1)
    interrupt_at: ClassVar[int | None] = None
    open_ones: ClassVar[set[Environment]] = set()
    media: ClassVar[dict[str, Any]] = {}

    def reset(self, prompt: Prompt) -> Turn:
        self.open_ones.add(self)
        self.number, self.total = next(self.resets), 0
        return Turn()

    def step(self, text: str) -> Turn:
        if self.number == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGTERM)
        self.total += len(text) + 1
        return Turn(text=("two red", "two blue")[self.total % 2], reward=float(self.total), **self.media)

    def close(self) -> None:
        self.open_ones.discard(self)


FRAMES = [picture(32, 32, seed=seed) for seed in range(4)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("family", "media"),
    [
        ("llama", {}),
        pytest.param(VLM, {"videos": [Video(FRAMES, 4.0)]}, marks=pytest.mark.nightly),
        pytest.param(LISTENER, {"audios": [tone(440)]}, marks=pytest.mark.nightly),
    ],
    ids=["texts", "videos", "audio"],
)
def test_a_run_interrupted_within_conversations_resumes_to_the_same_end(
    family: str, media: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tally, "media", media)
    length = {"max_new_tokens": 300} if media else {}

    def trainer(folder: Path, resume: Path | None = None) -> Trainer:
        rollout = {"prompts_per_step": 2, "group_size": 2, "environment": f"python:{__name__}:Tally", "max_turns": 3}
        values = {
            "steps": 3,
            "rollout": rollout,
            "update": {"optimizer": {"lr": 1e-3}},
            "checkpoint": {"every": 1},
            "output": str(folder),
        }
        rewards = ["environment_return"]
        policy = terse(family, hearing if family == LISTENER else policy_of, **length)
        return Trainer(policy, rewards, prompts_of("llama"), values, resume=resume)

    uninterrupted = trainer(tmp_path / "uninterrupted").train()
    monkeypatch.setattr(Tally, "resets", count(1))
    monkeypatch.setattr(Tally, "interrupt_at", 2 * 4 + 1)  # the first of four conversations in the third step
    interrupted = trainer(tmp_path / "interrupted")
    folder = interrupted.train()
    assert interrupted.status == "terminated"
    assert [path.name for path in list_checkpoints(folder)][-1] == "step-000002"
    assert trainer(tmp_path / "interrupted", resume=folder).train() == folder
    assert list(differing(run_state(folder), run_state(uninterrupted))) == []
    assert not Tally.open_ones


@pytest.mark.nightly
def test_simulated(tmp_path: Path) -> None:
    server = ChatServer(["It costs 3141."] * 24)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    environment = {"name": "simulated", "url": server.url, "model": "shopkeeper", "system": "You sell tea."}
    try:
        lines, report = trained(tmp_path, environment, "How much?")
    finally:
        server.shutdown()
        server.server_close()
    check(lines, None)
    assert "It costs 3141." in report


@pytest.mark.nightly
@pytest.mark.skipif(find_spec("mcp") is None, reason="the extra mcp is not installed")
def test_mcp(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    environment = {"name": "mcp", "command": [sys.executable, str(script)], "tools": ["add"]}
    lines, report = trained(tmp_path / "run", environment, call("add", a=70000, b=7))
    check(lines, "add")
    assert "70007" in report
