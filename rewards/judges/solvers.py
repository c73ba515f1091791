"""Reward for texts that another model solves: problems, captions or plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..models.checkpoints import require_positive
from ..parsing.explanations import parts
from ..parsing.extraction import Extract, extract_answer, require_choice, require_extract
from ..parsing.inner_rewards import inner_scores
from ..parsing.sample_images import to_rgb
from .judge_config import judge_of
from .judge_protocol import ReplyParams
from .questions import Question, Scale, fill_template

Measure = Literal["right", "agree", "length"]

_NO_SCALE = Scale(low=0, high=1, key="score")


@final
class Solver:
    """Reward: result of a solver model on the text: accuracy, self-agreement, or length of its thoughts.

    The solver, a local model or one at an endpoint, answers ``question`` ``draws`` times. ``right``: the mean of
    the reward ``of`` over its replies, each scored against the row like an answer of the policy. ``agree``: 1 if at
    least ``agreeing`` of its replies have the same boxed answer, else 0. ``length``: the mean length of its thoughts
    divided by ``most``, at most 1.

    Example: ``{name: solver, model: Qwen/Qwen3-8B, question: "{response}\\n\\n{question}", of: math_verify}``.
    Settings: ``question`` may contain ``{response}`` (the part of the text that ``extract`` selects), ``{prompt}`` and
    names of columns; a text without the extracted part gets ``missing``; ``most`` and lengths are in characters;
    ``source: true`` passes the images of the prompt to the solver; ``endpoint``, ``local``, ``temperature``,
    ``max_new_tokens`` as in ``text_judge``.
    Range: 0 to 1; for ``right`` that of ``of``.
    Source: rewards for problems by the length and agreement of a solver's thoughts: MathSmith, arXiv:2508.05592, and
    its code.
    Traps: a text that contains the answer makes the solver correct: do not give the policy the answer. Unsolvable
    problems increase the length, so combine it with agreement. Every sample costs ``draws`` replies.
    """

    def __init__(
        self,
        model: str,
        question: str = "{response}",
        measure: Measure = "right",
        of: Reward | None = None,
        extract: Extract = "none",
        missing: float = 0.0,
        agreeing: int = 2,
        most: int = 131_072,
        draws: int = 1,
        temperature: float = 0.0,
        max_new_tokens: int = 2048,
        source: bool = False,
        system: str | None = None,
        endpoint: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
    ) -> None:
        self._measure: Measure = require_choice("Solver.measure", measure, Measure)
        if (of is None) == (measure == "right"):
            raise ConfigError(
                "Solver needs of, the reward that holds replies against the row, for measure: right alone"
            )
        self._question = question
        self.of = of
        self._extract: Extract = require_extract("Solver.extract", extract)
        self._missing = missing
        self._agreeing = require_positive("Solver.agreeing", agreeing)
        self._most = require_positive("Solver.most", most)
        self._reply_params = ReplyParams(max_new_tokens=max_new_tokens, draws=draws, temperature=temperature)
        self._shows_source = source
        self._judge = judge_of("Solver", model, system=system, endpoint=endpoint, local=local)
        self.concurrent, self.deterministic = self._judge.is_remote, not self._judge.is_remote

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        responses = [None if s.text is None else extract_answer(s.text, self._extract) for s in samples]
        values: list[float | Score | None] = [None if s.text is None else self._missing for s in samples]
        questions: dict[int, Question] = {}
        for i, (sample, response) in enumerate(zip(samples, responses, strict=True)):
            if response is None:
                continue
            text = fill_template(self._question, sample, _NO_SCALE, quoted={"response": response})
            values[i] = None
            if text is not None:
                questions[i] = Question([*map(to_rgb, sample.prompt.images)] if self._shows_source else [], text)
        replies = self._judge.replies(list(questions.values()), self._reply_params) if questions else []
        for i, reply_texts in zip(questions, replies, strict=True):
            values[i] = self._score(samples[i], reply_texts)
        return values

    def _score(self, sample: Sample, replies: Sequence[str]) -> Score | None:
        if not replies:
            return Score(math.nan, {"reason": "no reply"})
        if self._measure == "right":
            return self._right(sample, replies)
        if self._measure == "agree":
            answers = Counter(answer for reply in replies if (answer := extract_answer(reply, "boxed")) is not None)
            most = max(answers.values(), default=0)
            return Score(float(most >= self._agreeing), {"reason": f"{most} of {len(replies)} replies agree"})
        mean = sum(len(_thought(reply)) for reply in replies) / len(replies)
        return Score(min(mean / self._most, 1.0), parts({"characters": mean}))

    def _right(self, sample: Sample, replies: Sequence[str]) -> Score | None:
        assert self.of is not None
        answers = [Sample(sample.prompt, sample.group, sample.member, text=reply) for reply in replies]
        values = [value for value in inner_scores(self.of, answers).values if value is not None]
        return Score(sum(values) / len(values), {"reason": f"{len(values)} replies"}) if values else None


def _thought(reply: str) -> str:
    """The content of ``<think>..</think>``; the complete reply without one."""
    return (reply.rpartition("</think>")[0] or reply).replace("<think>", "").strip()
