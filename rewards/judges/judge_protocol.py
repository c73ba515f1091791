"""Scores from a judge model: by the probability of its first token, or by parsing its reply."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.types import Score

from ..models.checkpoints import require_positive
from ..parsing.explanations import parts
from ..parsing.extraction import require_choice
from .questions import Question, Scale

JudgeMode = Literal["yes", "expected", "parse"]


@dataclass(frozen=True, slots=True)
class ReplyChoice:
    """A possible first word of a reply.

    Attributes:
        text: the word, as named in explanations.
        single_token: it must be a single token, as numbers are.
    """

    text: str
    single_token: bool = False

    @property
    def forms(self) -> tuple[str, ...]:
        """The spellings in different cases; a single letter has only its own."""
        text = self.text
        return (
            (text,) if len(text) == 1 else tuple(dict.fromkeys((text, text.lower(), text.capitalize(), text.upper())))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyParams:
    """Sampling parameters of a judge's replies.

    Attributes:
        max_new_tokens: maximum number of tokens of a reply.
        draws: number of replies per question.
        temperature: 0 decodes greedily.
    """

    max_new_tokens: int = 256
    draws: int = 1
    temperature: float = 0.0

    def __post_init__(self) -> None:
        require_positive("judge.max_new_tokens", self.max_new_tokens)
        if not self.temperature >= 0:
            raise ConfigError(f"the temperature of a judge must be at least 0, got {self.temperature}")
        if require_positive("judge.draws", self.draws) > 1 and self.temperature == 0:
            raise ConfigError(
                f"{self.draws} replies at temperature 0 are all the same; set temperature: 1.0, or draws: 1"
            )


class Judge(Protocol):
    """Interface of judge models.

    Attributes:
        is_remote: whether a server replies: many requests run at a time, and the same question may get another reply.
            The replies of a local model depend on the question alone, as their seed is derived from it.
    """

    is_remote: ClassVar[bool]

    def replies(self, questions: Sequence[Question], reply_params: ReplyParams) -> list[list[str]]:
        """Replies to each question; fewer than ``reply_params.draws`` if requests failed."""
        ...

    def choice_probs(self, questions: Sequence[Question], choices: Sequence[ReplyChoice]) -> list[list[float] | None]:
        """Per question, the probability that the reply begins with each choice; None without a reply."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeScoring:
    """How a judge's reply becomes a score.

    Attributes:
        mode: ``yes``, ``expected`` or ``parse``.
        scale: the scale of the scores.
        reply_params: sampling parameters, for ``parse``.
    """

    mode: JudgeMode
    scale: Scale
    reply_params: ReplyParams

    def __post_init__(self) -> None:
        require_choice("the judge's mode", self.mode, JudgeMode)
        if self.mode == "yes" and self.scale.answers is not None:
            raise ConfigError(
                "mode: yes knows the answers yes and no alone; for answers of your own take mode: expected"
            )

    def scores(self, judge: Judge, questions: Sequence[Question]) -> list[Score]:
        """A score per question; NaN (a failure) if the judge gave none."""
        if self.mode == "parse":
            return [self._stated(replies) for replies in judge.replies(questions, self.reply_params)]
        choices = self._choices()
        probabilities = judge.choice_probs(questions, list(choices))
        return [
            _expected(dict(zip(choices, probs or (), strict=probs is not None)), choices) for probs in probabilities
        ]

    def _choices(self) -> dict[ReplyChoice, float]:
        """The possible first words of a reply with their values."""
        if self.mode == "yes":
            return {ReplyChoice("no"): 0.0, ReplyChoice("yes"): 1.0}
        if self.scale.answers is not None:
            return {ReplyChoice(answer): value for answer, value in self.scale.answers.items()}
        numbers = range(self.scale.low, self.scale.high + 1)
        return {ReplyChoice(str(number), single_token=True): self.scale.share(number) for number in numbers}

    def _stated(self, replies: Sequence[str]) -> Score:
        """The mean of the scores in the replies; the explanation has the first reply."""
        scores = [self.scale.scored_reply(reply) for reply in replies] or [self.scale.scored_reply(None)]
        finite = [score for score in scores if math.isfinite(score.value)]
        if not finite:
            return scores[0]
        value = sum(score.value for score in finite) / len(finite)
        if len(finite) == 1:
            return finite[0]
        return Score(
            value, dict(finite[0].explanation) | parts({f"draw {i}": s.value for i, s in enumerate(finite, 1)})
        )


def _expected(probs: Mapping[ReplyChoice, float], worth: Mapping[ReplyChoice, float]) -> Score:
    """The expected value of the choices under their normalized probabilities.

    The explanation has the unnormalized probabilities: the remainder to 1 is the probability of other tokens.
    """
    total = sum(probs.values())
    value = sum(prob * worth[choice] for choice, prob in probs.items()) / total if total > 0 else math.nan
    return Score(value, parts({choice.text: prob for choice, prob in probs.items()}))


def score_pairs(
    images: Sequence[Sequence[Image.Image]],
    texts: Sequence[str | None],
    judge: Callable[[Sequence[Question]], Sequence[float | Score | None]],
) -> list[float | Score | None]:
    """Score the samples that have images and a text in one call; None for the others."""
    both = [
        (row, Question(sample_images, text))
        for row, (sample_images, text) in enumerate(zip(images, texts, strict=True))
        if sample_images and text is not None
    ]
    scores = judge([question for _, question in both]) if both else ()
    values = dict(zip([row for row, _ in both], scores, strict=True))
    return [values.get(row) for row in range(len(images))]
