"""Vision-language judges on tiny real checkpoints, held against the models called directly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.rewards.judges.vlm_judge import PromptLikelihood, VlmJudge
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.types import Prompt, Sample
from tests.rewards.image_samples import drew, explanations, filmed, noise, numbers
from tests.tiny import language_models

CLOSE = {"rel": 0, "abs": 1e-5}
TEXTS = ("a red cat", "two black dogs on the street", "a")


def picture(seed: int) -> Image.Image:
    return noise(seed, 32, 32)


def samples() -> list[Sample]:
    return [drew(picture(i), text) for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module", params=["qwen2.5-vl", "gemma3"])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("judge")
    language_models.save(request.param, folder)
    return str(folder)


def answer_logprobs(
    folder: str, pictures: list[Image.Image], text: str, answer: str = ""
) -> tuple[Any, Any, torch.Tensor]:
    """The model's log-probabilities after a question and the beginning of an answer, by transformers alone."""
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    content = [*[{"type": "image", "image": image} for image in pictures], {"type": "text", "text": text}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    ids = processor.tokenizer(answer, add_special_tokens=False, return_tensors="pt")["input_ids"].long()
    question_shape = inputs["input_ids"].shape
    for name, tensor in list(inputs.items()):
        if tensor.shape == question_shape and name != "input_ids":
            more = torch.full_like(ids, int(name == "attention_mask"))
            inputs[name] = torch.cat([tensor, more], dim=1)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], ids], dim=1)
    with torch.no_grad():
        logits = model(**inputs).logits[0].double()
    return processor.tokenizer, ids[0], logits[-ids.shape[1] - 1 :].log_softmax(-1)


@pytest.mark.nightly
def test_yes_is_its_share_of_yes_and_no(judge: str) -> None:
    expected = []
    for sample in samples():
        question = f'Does this picture show "{sample.prompt.text}"? Answer yes or no.'
        tokenizer, _, logprob = answer_logprobs(judge, [sample.image] if sample.image else [], question)
        first = [
            {tokenizer(form, add_special_tokens=False)["input_ids"][0] for form in forms}
            for forms in (("yes", "Yes", "YES", " yes", " Yes", " YES"), ("no", "No", "NO", " no", " No", " NO"))
        ]
        yes, no = (float(logprob[-1, sorted(ids)].exp().sum()) for ids in (first[0] - first[1], first[1] - first[0]))
        expected.append(yes / (yes + no))
    assert np.ptp(expected) > 1e-3
    assert numbers(VlmJudge(judge)(samples())) == pytest.approx(expected, **CLOSE)
    assert numbers(VlmJudge(judge, batch_size=1)(samples())) == pytest.approx(expected, **CLOSE)


def test_expected_score_is_the_mean_over_the_numbers_of_the_scale(judge: str) -> None:
    question = "{prompt}: from {low} to {high}?"
    expected = []
    for sample in samples():
        tokenizer, _, logprob = answer_logprobs(
            judge, [sample.image] if sample.image else [], f"{sample.prompt.text}: from 0 to 9?"
        )
        ids = [tokenizer(str(number), add_special_tokens=False)["input_ids"] for number in range(10)]
        assert all(len(tokens) == 1 for tokens in ids)
        share = logprob[-1, [tokens[0] for tokens in ids]].exp()
        expected.append(float((share / share.sum() * torch.arange(10)).sum()) / 9)
    reward = VlmJudge(judge, mode="expected", question=question, low=0, high=9)
    assert numbers(reward(samples())) == pytest.approx(expected, **CLOSE)


def test_the_probabilities_explain_the_score(judge: str) -> None:
    """The share of the first tokens of yes and no, and of the numbers of a scale."""
    sample = samples()[0]
    tokenizer, _, logprob = answer_logprobs(judge, [sample.image] if sample.image else [], "a red cat?")
    shares = [float(logprob[-1, tokenizer(str(n), add_special_tokens=False)["input_ids"][0]].exp()) for n in (1, 2, 3)]
    (score,) = VlmJudge(judge, mode="expected", question="{prompt}?", low=1, high=3)([sample])
    assert explanations([score]) == [{"parts": pytest.approx(dict(zip("123", shares, strict=True)), abs=1e-4)}]
    assert float(score or 0) == pytest.approx((shares[1] / 2 + shares[2]) / sum(shares), **CLOSE)
    (yes,) = explanations(VlmJudge(judge)([sample]))
    assert list((yes or {})["parts"]) == ["no", "yes"]


def test_numbers_of_several_tokens_raise(judge: str) -> None:
    with pytest.raises(RewardError, match="writes 10 with several tokens"):
        VlmJudge(judge, mode="expected", low=1, high=10)(samples())


def test_the_number_that_it_writes_is_read(judge: str, tmp_path: Path) -> None:
    """Of all tokens only "4" may be written, so that the reply is known; with all of them it is no score."""
    assert all(math.isnan(score or 0) for score in numbers(VlmJudge(judge, mode="parse", max_new_tokens=4)(samples())))
    model, processor = AutoModelForImageTextToText.from_pretrained(judge), AutoProcessor.from_pretrained(judge)
    four = processor.tokenizer("4", add_special_tokens=False)["input_ids"][0]
    size = len(torch.as_tensor(model.get_input_embeddings().weight))
    model.generation_config.suppress_tokens = [token for token in range(size) if token != four]
    for part in (model, processor):
        part.save_pretrained(tmp_path)
    scores = VlmJudge(str(tmp_path), mode="parse", max_new_tokens=1)(samples())
    assert numbers(scores) == [0.75] * 3
    assert explanations(scores) == [{"parsed": 4.0, "reason": "4"}] * 3


def test_frames_and_sources_are_in_the_question(judge: str) -> None:
    frames = [picture(i) for i in range(3)]
    video = filmed(frames, "a dog")
    edit = Sample(Prompt("a dog", images=[frames[0]]), group=0, member=0, image=frames[2])
    shows = numbers(VlmJudge(judge, frames=2, source=True)([video, edit, drew(frames[2], "a dog")]))
    assert shows[0] == pytest.approx(shows[1], abs=1e-6)
    assert abs((shows[0] or 0) - (shows[2] or 0)) > 1e-4


def test_samples_without_input_are_not_scored(judge: str) -> None:
    reward = VlmJudge(judge, question="{style}?")
    assert reward([drew(picture(0)), drew(None, style="oil")]) == [None, None]
    assert VlmJudge("does/not-exist")([drew(None)]) == [None]
    assert PromptLikelihood(judge)([drew(None), drew(picture(0), "")]) == [None, None]


def test_likelihood_is_the_mean_over_the_tokens_of_the_prompt(judge: str) -> None:
    expected = []
    for sample in samples():
        pictures = [sample.image] if sample.image else []
        _, ids, logprob = answer_logprobs(judge, pictures, "Describe this image in detail.", sample.prompt.text)
        expected.append(float(logprob[:-1].gather(1, ids[:, None]).mean()))
    assert len({len(text) for text in TEXTS}) == 3
    assert PromptLikelihood(judge)(samples()) == pytest.approx(expected, **CLOSE)
    assert PromptLikelihood(judge, batch_size=1)(samples()) == pytest.approx(expected, **CLOSE)
    swapped = [drew(picture(1), TEXTS[0])]
    assert abs((PromptLikelihood(judge)(swapped)[0] or 0) - expected[0]) > 1e-4  # pyrefly: ignore[unsupported-operation]


def test_a_bidirectional_model_raises(tmp_path: Path) -> None:
    language_models.save("paligemma", tmp_path)
    with pytest.raises(RewardError, match="attends bidirectionally to its prompt"):
        PromptLikelihood(str(tmp_path))(samples())


def test_invalid_settings_raise() -> None:
    with pytest.raises(ConfigError, match="yes, expected, parse"):
        VlmJudge("m", mode="maybe")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match="low < high"):
        VlmJudge("m", low=5)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        PromptLikelihood("m", frames=0)
