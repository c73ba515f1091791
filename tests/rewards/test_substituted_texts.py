"""Rewards of samples whose text is replaced: values by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from mmgrpo.rewards.groups.substitute_references import AcrossPromptTemplates, OverReference
from mmgrpo.rewards.text.captions import CaptionScore

from mmgrpo.errors import ConfigError
from mmgrpo.types import Prompt, Sample
from tests.rewards.grouped import members


def length(samples: Sequence[Sample]) -> list[float]:
    return [float(len(sample.text or "")) for sample in samples]


def templated_members(texts: Sequence[str | None], prompt_templates: Sequence[str | None]) -> list[Sample]:
    return [
        replace(sample, prompt_template=prompt_template)
        for sample, prompt_template in zip(members(*texts), prompt_templates, strict=True)
    ]


def test_agreement_with_other_contexts_by_hand() -> None:
    # of two words "red fox" has both in common with itself and one with "red cat", whose pair of words does not match:
    # sqrt(1/2 * 1/2) = 1/2; no other row has the third context
    samples = templated_members(
        ["red fox", "red cat", "<think>red cat</think>red fox", None], [None, None, "other", "other"]
    )
    reward = AcrossPromptTemplates(CaptionScore(metric="bleu", order=2))
    assert reward(samples) == [pytest.approx(1.0), pytest.approx(0.5), pytest.approx(0.75), None]


def test_without_another_context_samples_are_not_scored() -> None:
    assert AcrossPromptTemplates(CaptionScore(metric="bleu"))(templated_members(["a b", "a b"], ["same", "same"])) == [
        None,
        None,
    ]


def test_the_lead_over_the_reference_by_hand() -> None:
    # 4, 2 and 1 letters over a reference of 2: 1 - e^-(2 * 0.5), 0 and 0; without an answer 0; without a reference None
    texts = ["<answer>four</answer>", "<answer>to</answer>", "<answer>a</answer>", "four", "<answer>four</answer>"]
    samples = [
        Sample(Prompt("q", columns={"answer": "ab"} if n < 4 else {}), group=0, member=n, text=text)
        for n, text in enumerate(texts)
    ]
    result = OverReference(length, sharpness=0.5, extract="tag")(samples)
    assert result == [pytest.approx(1 - math.exp(-1)), 0.0, 0.0, 0.0, None]
    # 1 / (1 + e^-2), 1/2 and 1 / (1 + e)
    result = OverReference(length, rule="sigmoid", extract="tag")(samples)
    assert result == [pytest.approx(0.8807971), 0.5, pytest.approx(0.2689414), 0.0, None]


def test_failures_stay_failures_and_silence_silence() -> None:
    samples = [Sample(Prompt("q", columns={"answer": "ab"}), group=0, member=n, text="x" * n) for n in (1, 3)]
    assert math.isnan(OverReference(lambda samples_of_group: [math.nan] * len(samples_of_group))(samples)[0] or 0.0)
    assert OverReference(lambda samples_of_group: [None] * len(samples_of_group))(samples) == [None, None]
    with pytest.raises(ConfigError, match="above 0"):
        OverReference(length, sharpness=0.0)
