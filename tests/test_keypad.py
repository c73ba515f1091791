"""The audio quickstart: its tones are those of the keys, its model hears them and learns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mmgrpo.examples.keypad import (
    HERTZ,
    PARTNER,
    RATE,
    held_out_keypad_questions,
    keypad_questions,
    misheard_keys,
    pressed,
)
from mmgrpo.examples.language_models import keypad_lm
from mmgrpo.policies.language import LanguagePolicy
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.errors import DataError
from mmgrpo.types import Plan


@pytest.mark.parametrize("key", HERTZ)
def test_a_key_is_its_two_tones(key: str) -> None:
    sound = pressed(key, np.random.RandomState(0))
    assert (tuple(sound.values.shape), sound.sampling_rate) == ((1, RATE), RATE)
    power = torch.fft.rfft(sound.values[0]).abs()  # a bin is 1 Hz
    low, high = int(power[600:1050].argmax()) + 600, int(power[1100:1600].argmax()) + 1100
    assert abs(low - HERTZ[key][0]) <= 2
    assert abs(high - HERTZ[key][1]) <= 2


@pytest.mark.nightly
def test_the_keys_follow_each_other() -> None:
    prompt = keypad_questions()[0]
    thirds = prompt.audios[0].values[0].split(RATE // 3 + 1)
    for key, third in zip(prompt.columns["text"].split(), thirds, strict=True):
        power = torch.fft.rfft(third, n=RATE).abs()
        loudest_key = min(HERTZ, key=lambda k: -float(sum(power[h - 8 : h + 9].max() for h in HERTZ[k])))
        assert loudest_key == key


def test_no_audio_is_both_trained_and_evaluated() -> None:
    training, held_out = keypad_questions(), held_out_keypad_questions()
    assert (len(training), len(held_out)) == (800, 200)
    assert keypad_questions()[3].audios[0] is training[3].audios[0]
    sums = [{float(prompt.audios[0].values.sum()) for prompt in some} for some in (training, held_out)]
    assert not sums[0] & sums[1]


def test_half_of_the_keys_are_supervised_wrong() -> None:
    wrong = [
        (word, key)
        for example in misheard_keys()
        for word, key in zip((example.text or "").split(), example.prompt.columns["text"].split(), strict=True)
    ]
    assert {word == key or word == PARTNER[key] for word, key in wrong} == {True}
    assert sum(word != key for word, key in wrong) / len(wrong) == pytest.approx(0.5, abs=0.03)
    assert all(PARTNER[PARTNER[key]] == key for key in PARTNER)
    assert [example.text for example in misheard_keys(0.0)] == [
        question.columns["text"] for question in keypad_questions()
    ]
    with pytest.raises(DataError, match="fraction must be"):
        misheard_keys(1.5)


def test_the_model_follows_from_its_seed_and_hears_a_second_as_twelve_tokens() -> None:
    (model, processor), (same, _), (other, _) = keypad_lm(), keypad_lm(), keypad_lm(1)
    assert sum(parameter.numel() for parameter in model.parameters()) == 310_400
    weights = [model_of_seed.get_parameter("lm_head.weight") for model_of_seed in (model, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    policy = LanguagePolicy(model, processor, {"max_new_tokens": 4})
    encoded = policy._encoder(keypad_questions()[0])
    assert int((encoded.ids_P == processor.audio_token_id).sum()) == 12
    assert encoded.media["input_features"].shape == (1, 80, 50)
    rollout = policy.rollout(held_out_keypad_questions()[:2], group_size=1, seed=0, plan=Plan(stochastic=()))
    assert len(rollout.samples) == 2


@pytest.mark.nightly
def test_it_learns_to_hear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", "quickstart/tones-audio"])
    assert result.exit_code == 0, result.output
    (log,) = tmp_path.glob("runs/*/evaluation.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    words = [row["eval/held_out_words/mean"] for row in rows]
    assert words[0] < 0.65
    assert words[-1] > 0.95
    page = (log.parent / "report.html").read_text()
    assert page.count("<audio controls") > 10
