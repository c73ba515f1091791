"""Rewards from a vision-language model: answers to a question about the image, or the likelihood of the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final

from mmgrpo.types import Sample, Score

from ..models.checkpoints import Dtype, require_positive
from ..parsing.sample_images import prompt_text
from .judge_protocol import JudgeMode, JudgeScoring, ReplyParams, score_pairs
from .local import JudgeSource
from .questions import Question, Scale, WhichScore, default_image_question, fill_template, judge_images


@final
class VlmJudge:
    """Reward: score from a vision-language model that answers a question about the image, or frames of the video.

    ``yes``: P(yes) / (P(yes) + P(no)) for the first token of the reply, in any case, with or without a leading space.
    ``expected``: the expected score over the tokens ``low`` to ``high``, with normalized probabilities. ``parse``: the
        number after the last ``key`` of the (greedy) reply; a reply without a number on the scale is a counted failure.

    Example: ``{name: vlm_judge, model: Qwen/Qwen2.5-VL-7B-Instruct}``.
    Settings: ``question`` may contain ``{prompt}``, ``{low}``, ``{high}`` and names of columns; a row without one of
    them is not scored. ``frames``: number of evenly spaced video frames passed as images. ``source: true`` passes the
    images of the prompt first, for edits. In mode ``parse`` the scores of ``draws`` replies sampled at ``temperature``
    are averaged, with seeds derived from the question, and ``which: least`` uses the lowest of several scores in a
    reply. ``processor`` and ``template`` are arguments of the processor and the chat template.
    Range: 0 to 1 in every mode; a score s is (s - low) / (high - low).
    Source: ``yes``: Lin et al. 2024 (VQAScore), arXiv:2404.01291, sec. 3, there P(yes) alone; ``expected``: Wu et al.
    2023 (Q-Align), arXiv:2312.17090, sec. 3, there over words for the levels; ``parse``: Wang et al. 2025
    (UnifiedReward), arXiv:2503.05236.
    Traps: judges are lenient, and ``parse`` often gives all samples of a group the same score: ``yes`` and ``expected``
    discriminate better. A thinking model needs ``mode: parse`` and a large ``max_new_tokens``, or a template variable
    that disables thinking. Text rendered in the image ("this is perfect") influences a judge.
    """

    deterministic = True

    def __init__(
        self,
        model: str,
        mode: JudgeMode = "yes",
        question: str | None = None,
        low: int = 1,
        high: int = 5,
        key: str = "score",
        frames: int = 4,
        source: bool = False,
        system: str | None = None,
        max_new_tokens: int = 256,
        processor: Mapping[str, Any] | None = None,
        template: Mapping[str, Any] | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 8,
        draws: int = 1,
        temperature: float = 0.0,
        which: WhichScore = "first",
    ) -> None:
        self._judge_scoring = JudgeScoring(
            mode=mode,
            scale=Scale(low=low, high=high, key=key, which=which),
            reply_params=ReplyParams(max_new_tokens=max_new_tokens, draws=draws, temperature=temperature),
        )
        self._question = question or default_image_question(mode)
        self._frames = require_positive("VlmJudge.frames", frames)
        self._shows_source = source
        self._source = _source(model, processor, template, system, device, dtype, batch_size)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        texts = [fill_template(self._question, sample, self._judge_scoring.scale) for sample in samples]
        images = [judge_images(sample, self._frames, self._shows_source) for sample in samples]
        return score_pairs(images, texts, partial(self._judge_scoring.scores, self._source))


@final
class PromptLikelihood:
    """Reward: log-likelihood of the prompt as the description of the image, under a vision-language model.

    The mean log-probability per token of the prompt (or ``text_column``) as the reply to ``question``; nothing is
    sampled. A video is passed as ``frames`` images.

    Example: ``{name: prompt_likelihood, model: Qwen/Qwen2.5-VL-7B-Instruct}``.
    Range: at most 0, in nats per token; about -3 to -0.5. Only differences for the same prompt are meaningful:
    normalize by group.
    Source: PromptEcho, arXiv:2604.12652: the negative cross-entropy of the prompt under a frozen model, conditioned on
    the image and a guiding query.
    Traps: words that are predictable without the image contribute the same for every image; a prompt that is unlike a
    description ("4k, trending") is always unlikely. Images that contain the prompt as text score high.
    """

    deterministic = True

    def __init__(
        self,
        model: str,
        question: str = "Describe this image in detail.",
        text_column: str | None = None,
        frames: int = 4,
        system: str | None = None,
        processor: Mapping[str, Any] | None = None,
        template: Mapping[str, Any] | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 8,
    ) -> None:
        self._question = question
        self.text_column = text_column
        self._frames = require_positive("PromptLikelihood.frames", frames)
        self._source = _source(model, processor, template, system, device, dtype, batch_size)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        texts = [prompt_text(sample.prompt, self.text_column) or None for sample in samples]
        images = [judge_images(sample, self._frames, source=False) for sample in samples]
        return score_pairs(images, texts, self._likelihoods)

    def _likelihoods(self, descriptions: Sequence[Question]) -> Sequence[float | None]:
        questions = [Question(description.images, self._question) for description in descriptions]
        return self._source.load().answer_logprobs(questions, [description.text for description in descriptions])


def _source(
    model: str,
    processor: Mapping[str, Any] | None,
    template: Mapping[str, Any] | None,
    system: str | None,
    device: str | None,
    dtype: Dtype,
    batch_size: int,
) -> JudgeSource:
    return JudgeSource(
        model=model,
        processor=processor or {},
        template=template or {},
        system=system,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
    )
