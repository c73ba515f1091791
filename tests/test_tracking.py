"""Trackers that fail: reported once, retried, and no reason for a run to end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, final

import pytest
import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import validated
from mmgrpo.distributed import trackers as trackers_module
from mmgrpo.distributed.trackers import Trackers
from mmgrpo.errors import ConfigError
from tests.test_trainer import lines, run, weights


@final
class Failing(GeneralTracker):
    """A tracker as accelerate takes them, of which some calls fail."""

    name = "far-away"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, *, down: set[int]) -> None:
        super().__init__()
        self.down, self.calls, self.got = down, 0, list[tuple[int | None, dict[str, Any]]]()

    @property
    def tracker(self) -> Failing:
        return self

    def start(self) -> None:
        """Nothing."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Nothing."""

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.calls += 1
        if self.calls in self.down:
            raise ConnectionError("api.far-away.com does not answer")
        self.got.append((step, values))


def started(tracker: Failing, folder: Path) -> Trackers:
    trackers = Trackers(Accelerator(cpu=True, log_with=[tracker], project_dir=str(folder)))
    trackers.start(RunConfig(), folder)
    return trackers


def test_failing_tracker_is_reported_once_and_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(trackers_module.time, "monotonic", lambda: clock[0])
    tracker = Failing(down={2, 3})
    trackers = started(tracker, tmp_path)
    with caplog.at_level(logging.WARNING):
        for step, now_s in enumerate((0, 1, 2, 31, 80, 92, 93)):
            clock[0] = now_s
            trackers.log({"reward/mean": step}, step)
    # called at 0 and 1 (fails: none before 31), 31 (fails: none before 91), 92 and 93
    assert tracker.got == [(step, {"reward/mean": step}) for step in (0, 5, 6)]
    assert [record.message for record in caplog.records] == [
        "tracker far-away failed (ConnectionError: api.far-away.com does not answer); training continues, and it is "
        "retried later"
    ]
    assert trackers.finish() == [
        "tracker far-away did not get everything: 4 call(s) were lost, the first to ConnectionError: "
        "api.far-away.com does not answer; the run folder has all logged values"
    ]


@pytest.mark.nightly
def test_tracker_that_cannot_start_does_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = run(tmp_path / "plain", steps=1)
    # tensorboard makes a folder of the project's name in that of the run, where there is a file of it
    down = run(tmp_path / "down", steps=1, runtime={"trackers": [{"name": "tensorboard", "project": "config.yaml"}]})
    assert torch.equal(weights(plain), weights(down))
    assert len(lines(down)) == len(lines(plain)) == 2
    assert down.status == "finished"
    assert "tracker tensorboard got nothing: it could not start (FileExistsError: " in capsys.readouterr().out


def test_a_tracker_has_its_own_settings() -> None:
    wandb = {"name": "wandb", "project": "digits", "entity": "team", "tags": ["lora"]}
    trackers = validated({"runtime": {"trackers": ["tensorboard", wandb]}}).runtime.trackers
    assert [(tracker.project, tracker.arguments) for tracker in trackers] == [
        ("mmgrpo", {}),
        ("digits", {"entity": "team", "tags": ["lora"]}),
    ]


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        (["wanbd"], "wanbd"),
        (["wandb", {"name": "wandb", "project": "p"}], "wandb, wandb repeat: name each tracker once"),
        ([{"name": "tensorboard", "entity": "team"}], "tensorboard takes no 'entity'"),
        ([{"name": "wandb", "projct": "p"}], "wandb takes no 'projct'; did you mean project"),
        ([{"name": "trackio", "project": 3}], "project of trackio must be a text"),
        ([{"name": "wandb", "tags": "lora"}], "tags of wandb must be a list of texts"),
    ],
)
def test_settings_that_a_tracker_does_not_take_raise(trackers: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validated({"runtime": {"trackers": trackers}})
