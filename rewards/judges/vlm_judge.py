"""Rewards from a vision-language model that looks at the image: a question, a score, or the prompt's likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final

from mmgrpo.types import Sample, Score

from ..models.checkpoints import Dtype, require_positive
from ..parsing.sample_images import text_of
from .judge_protocol import JudgeMode, JudgeScoring, ReplyParams, score_pairs
from .local import JudgeSource
from .questions import Question, Scale, WhichScore, default_image_question, fill_template, judge_images


@final
class VlmJudge:
    """Reward: what a vision-language model answers to a question about the image, or about frames of the video.

    ``yes``: P(yes) / (P(yes) + P(no)) for the first token of the reply, in any case, after a space or not.
    ``expected``: the expected score over the tokens ``low`` to ``high``, their probabilities made to sum to 1.
    ``parse``: the model writes (greedily, so that the same image gets the same score) and the number behind the last
    ``key`` is read; a reply without one, or with one off the scale, is a failure and counted.

    Example: ``{name: vlm_judge, model: Qwen/Qwen2.5-VL-7B-Instruct}``.
    Settings: ``question`` may hold ``{prompt}``, ``{low}``, ``{high}`` and the names of columns; a row that lacks one
    is not scored. ``frames`` of a video are shown as images, at even distances. ``source: true`` shows the prompt's
    own images first, for edits. In mode ``parse`` the scores of ``draws`` replies at a ``temperature`` are averaged,
    drawn by seeds that are the question's own, and ``which: least`` takes the least of several scores in a reply.
    ``processor`` and ``template`` are arguments of the processor and the chat template.
    Range: 0 to 1 in every mode; a score s is (s - low) / (high - low).
    Source: ``yes``: Lin et al. 2024 (VQAScore), arXiv:2404.01291, sec. 3, there P(yes) alone; ``expected``: Wu et al.
    2023 (Q-Align), arXiv:2312.17090, sec. 3, there over words for the levels; ``parse``: Wang et al. 2025
    (UnifiedReward), arXiv:2503.05236.
    Traps: judges are lenient, and ``parse`` gives whole groups the same score: ``yes`` and ``expected`` tell more
    apart. A thinking model needs ``mode: parse`` and room in ``max_new_tokens``, or a template variable that stops it.
    Text drawn into the image ("this is perfect") sways a judge.
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
        pictures = [judge_images(sample, self._frames, self._shows_source) for sample in samples]
        return score_pairs(pictures, texts, partial(self._judge_scoring.scores, self._source))


@final
class PromptLikelihood:
    """Reward: how likely a vision-language model finds the prompt as the description of the image.

    The mean log-probability per token of the prompt (or ``text_column``) as the reply to ``question``; nothing is
    drawn. A video is shown as ``frames`` images.

    Example: ``{name: prompt_likelihood, model: Qwen/Qwen2.5-VL-7B-Instruct}``.
    Range: at most 0, in nats per token; about -3 to -0.5. Only differences for one prompt mean something: normalize by
    group.
    Source: PromptEcho, arXiv:2604.12652: the negative cross-entropy of the prompt under a frozen model, given the
    image and a guiding query.
    Traps: words that the language model guesses without looking give every image the same; a prompt that is unlike a
    description ("4k, trending") is unlikely whatever is shown. Images of the written prompt score high.
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
        texts = [text_of(sample.prompt, self.text_column) or None for sample in samples]
        pictures = [judge_images(sample, self._frames, source=False) for sample in samples]
        return score_pairs(pictures, texts, self._likelihoods)

    def _likelihoods(self, descriptions: Sequence[Question]) -> Sequence[float | None]:
        questions = [Question(description.pictures, self._question) for description in descriptions]
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
