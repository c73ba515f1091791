"""Audio-language models: the laws of a policy on a tiny Qwen2-Audio, the inputs of its processor, its loading."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.audio_inputs import rate_of
from torch import Tensor
from transformers import (
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
)

from mmgrpo.data.audio_loading import encode_wav, resample_audio
from mmgrpo.errors import DataError
from mmgrpo.types import Plan, Prompt
from tests.audio_signals import silence, tone
from tests.breadth.language.families import families
from tests.policies import contract
from tests.policies.contract import Subject, values
from tests.policies.tiny_language import TEMPERATURE, TEXTS, parameters_of, policy_of

LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 2.0}}
LOW, HIGH = tone(440, rate=8000, duration_s=0.3), tone(1200, rate=4000, duration_s=0.4)
PROMPTS = [Prompt(TEXTS[0], audios=[LOW]), Prompt(TEXTS[1], audios=[HIGH, LOW])]


@cache
def _construct(name: str) -> tuple[Any, Any]:
    return families()[name].make()


def hearing(name: str = "qwen2-audio", *, batch: int = 8, **settings: Any) -> LanguagePolicy:
    """A new policy on a family of the breadth table."""
    model, processor = _construct(name)
    options = {"max_new_tokens": 7, "temperature": TEMPERATURE, "rollout_batch": batch, **settings}
    options |= {"update_tokens": 1} if batch == 1 else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of fresh adapters
        return LanguagePolicy(copy.deepcopy(model), processor, options)


def subject(**settings: Any) -> Subject:
    return Subject(
        make=lambda batch: hearing(batch=batch, **settings),
        parameters=parameters_of,
        prompts=PROMPTS,
        gap=1e-6,
        rounding=2e-6,
        min_trained_frac=0.6,
    )


full_and_lora = pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])


@pytest.mark.nightly
@full_and_lora
def test_on_policy_gap(settings: dict[str, Any]) -> None:
    contract.check_on_policy_gap(subject(**settings))


@full_and_lora
def test_gradients(settings: dict[str, Any]) -> None:
    contract.check_gradients(subject(**settings))


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize(
    "check",
    [
        contract.check_rows_and_batches,
        contract.check_seeds,
        contract.check_every_decision_once,
        contract.check_prompt_ids,
        contract.check_emitted_samples,
        contract.check_reference,
    ],
    ids=lambda check: check.__name__,
)
def test_laws(check: Any) -> None:
    check(subject())


def test_save_and_load(tmp_path: Path) -> None:
    contract.check_save_and_load(subject(**LORA), tmp_path)


def test_answers_depend_on_the_audio() -> None:
    policy = hearing()
    rollout = policy.rollout([Prompt("what ?", audios=[LOW])], group_size=2, seed=0)
    before = values(policy, rollout)
    others = [
        Prompt("what ?", audios=[sound]) for sound in (resample_audio(LOW, 4000), silence(rate=8000, duration_s=0.3))
    ]
    same, other = (values(policy, policy.override_prompts(rollout, [prompt] * 2)) for prompt in others)
    torch.testing.assert_close(same, before, rtol=0, atol=2e-2)  # the processor hears at 4 kHz
    assert float((other - before).abs().max()) > 0.1


def test_a_group_hears_its_prompt_once() -> None:
    policy = hearing()
    encoded: list[Tensor] = []
    tower = policy.model.get_submodule("model.audio_tower" if hasattr(policy.model, "model") else "audio_tower")
    policy.rollout(PROMPTS[:1], group_size=4, seed=0)
    handle = tower.register_forward_pre_hook(lambda module, args, kwargs: encoded.append(args[0]), with_kwargs=True)
    policy.rollout(PROMPTS[:1], group_size=4, seed=1)
    handle.remove()
    assert [tuple(features.shape) for features in encoded] == [(1, 8, 50)]


def test_audio_of_any_form_and_rate_gives_the_same_input(tmp_path: Path) -> None:
    policy = hearing()
    sound = resample_audio(LOW, 4000)
    (tmp_path / "a.wav").write_bytes(encode_wav(sound))
    array = {"array": sound.values[0].numpy(), "sampling_rate": 4000}
    forms = [sound, array, str(tmp_path / "a.wav"), encode_wav(sound)]
    inputs = [policy._encoder(Prompt("what ?", audios=[form])).media["input_features"] for form in forms]
    assert rate_of(policy.processor) == 4000
    for features in inputs[1:]:
        torch.testing.assert_close(features, inputs[0], rtol=0, atol=2e-2)


def test_audio_without_a_placeholder_raises() -> None:
    with pytest.raises(DataError, match=r"has audio, and .* reads text only"):
        policy_of("llama").rollout([Prompt("what ?", audios=[LOW])], group_size=1, seed=0)
    with pytest.raises(DataError, match="Qwen2_5_VLProcessor takes no audio; use one with audio input"):
        policy_of("qwen2.5-vl").rollout([Prompt("what ?", audios=[LOW])], group_size=1, seed=0)
    messages = [{"role": "user", "content": [{"type": "text", "text": "what ?"}]}]
    with pytest.raises(DataError, match=r"0 videos and 1 audio files.*as many image, video and audio parts"):
        hearing().rollout([Prompt("what ?", audios=[LOW], messages=messages)], group_size=1, seed=0)
    with pytest.raises(DataError, match=r"nowhere.wav does not exist"):
        hearing().rollout([Prompt("what ?", audios=["nowhere.wav"])], group_size=1, seed=0)


def test_audio_tokens_are_never_sampled() -> None:
    policy = hearing(temperature=50.0)
    (sample,) = policy.rollout(PROMPTS[:1], group_size=1, seed=0).samples
    mark = policy.processor.audio_token_id
    assert mark in policy._sampling.suppressed.tolist()
    assert mark not in (sample.tokens or ())


def test_audio_and_texts_share_a_step() -> None:
    policy = hearing()
    prompts = [*PROMPTS, Prompt(TEXTS[0]), Prompt(TEXTS[1], audios=[HIGH])]
    together = policy.rollout(prompts, group_size=2, seed=0)
    for number, prompt in enumerate(prompts):
        alone = policy.rollout([prompt], group_size=2, seed=0, plan=Plan(prompt_ids=(number,)))
        assert [sample.text for sample in alone.samples] == [s.text for s in together.samples if s.group == number]


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["qwen2-audio", "qwen3-asr"])
def test_a_checkpoint_that_hears_is_loaded_with_its_processor(name: str, tmp_path: Path) -> None:
    model, processor = _construct(name)
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    policy = LanguagePolicy.from_config({"model": str(tmp_path), "max_new_tokens": 4})
    assert type(policy.model) is type(model)
    prompts = [Prompt("what ?", audios=[LOW])]
    result = policy.rollout(prompts, group_size=2, seed=0)
    expected = hearing(name, max_new_tokens=4, temperature=1.0).rollout(prompts, group_size=2, seed=0)
    assert [s.text for s in result.samples] == [s.text for s in expected.samples]


def test_of_an_omni_model_the_part_that_writes_is_loaded(tmp_path: Path) -> None:
    thinker, processor = _construct("qwen2.5-omni, sound")
    config = Qwen2_5OmniConfig(thinker_config=thinker.config.to_dict(), enable_audio_output=False)
    omni = Qwen2_5OmniForConditionalGeneration(config)
    omni.thinker.load_state_dict(thinker.state_dict())
    omni.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    policy = LanguagePolicy.from_config({"model": str(tmp_path), "max_new_tokens": 4})
    assert type(policy.model) is Qwen2_5OmniThinkerForConditionalGeneration
    for name, parameter in thinker.named_parameters():
        assert np.array_equal(policy.model.get_parameter(name).detach(), parameter.detach()), name
