"""The tool that plays a part of the prompt's audio: its values, limits, and errors that the model reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.data.audio_loading import encode_wav
from mmgrpo.environments.audio_tools import AudioToolsEnvironment
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.tool_calls import description
from mmgrpo.types import Audio, Prompt
from tests.audio_signals import tone
from tests.environments.test_image_tools import error
from tests.test_tools import call

RAMP = Audio(torch.linspace(-1, 1, 8000).repeat(2, 1), 4000)
"""Two channels, 2 s."""


def started(*audios: Any, **settings: Any) -> AudioToolsEnvironment:
    environment = AudioToolsEnvironment(**settings)
    environment.reset(Prompt("what is played", audios=audios or (RAMP, tone(440))))
    return environment


def test_a_part_has_the_values_between_two_times() -> None:
    environment = started()
    turn = environment.step(call("cut_audio", start_time=0.5, end_time=1))
    assert (turn.text, turn.role, turn.done) == ("Part from 0.5s to 1.0s.", "tool", False)
    (part,) = turn.audios
    assert part.sampling_rate == 4000
    assert torch.equal(part.values, RAMP.values[:, 2000:4000])
    last = environment.step(call("cut_audio", start_time=1.9, end_time=99))
    assert (last.text, torch.equal(last.audios[0].values, RAMP.values[:, 7600:])) == ("Part from 1.9s to 2.0s.", True)
    second = environment.step(call("cut_audio", start_time=0, end_time=0.25, target_audio=2))
    assert torch.equal(second.audios[0].values, tone(440).values[:, :2000])
    assert environment.step("It is a ramp.").done


def test_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(encode_wav(RAMP))
    turn = started(str(tmp_path / "a.wav")).step(call("cut_audio", start_time=0, end_time=1))
    torch.testing.assert_close(turn.audios[0].values, RAMP.values[:, :4000], rtol=0, atol=2**-15)
    assert "does not exist" in error(started("nowhere.wav").step(call("cut_audio", start_time=0, end_time=1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start_time": 1, "end_time": 1.05}, "a part must last 0.1 to 1 s within 0 to 2.0 s, got 1 to 1.05"),
        ({"start_time": 0, "end_time": 1.5}, "a part must last 0.1 to 1 s"),
        ({"start_time": -1, "end_time": 0}, "a part must last"),
        ({"start_time": 3, "end_time": 4}, "a part must last"),
        ({"start_time": "a", "end_time": 4}, "start_time must be number"),
        ({"start_time": 0, "end_time": 1, "target_audio": 3}, "target_audio must be from 1 to 2, got 3"),
    ],
)
def test_parts_outside_of_the_limits_are_errors_that_the_model_reads(arguments: dict[str, Any], message: str) -> None:
    assert message in error(started(seconds=[0.1, 1.0]).step(call("cut_audio", **arguments)))


def test_calls_are_limited() -> None:
    environment = started(max_calls=1)
    turn = environment.step(call("cut_audio", start_time=0, end_time=1) * 2)
    assert [(result.failed, result.num_audios) for result in turn.results] == [(False, 1), (True, 0)]
    assert "the maximum number of calls is reached" in turn.results[1].text


def test_the_description_has_the_limits_and_the_name() -> None:
    environment = AudioToolsEnvironment({"cut_audio": "listen"}, seconds=[0.5, 8])
    text = description(environment.reset(Prompt("what", audios=[RAMP])).tools)
    assert '"listen"' in text
    assert "its end in seconds, 0.5 to 8 s later" in text


def test_invalid_settings_and_prompts_without_audio_raise() -> None:
    with pytest.raises(ConfigError, match="max_calls must be at least 1, got 0"):
        AudioToolsEnvironment(max_calls=0)
    with pytest.raises(ConfigError, match=r"seconds must be \[least, most\] within 0 to 60, got \[2, 1\]"):
        AudioToolsEnvironment(seconds=[2, 1])
    with pytest.raises(DataError, match="has no audio for audio_tools: add a column 'audio'"):
        AudioToolsEnvironment().reset(Prompt("what"))
