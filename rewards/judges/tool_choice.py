"""Reward for a choice of tools, by whether their outputs help a frozen model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..parsing.extraction import Extract, extract_answer, require_extract
from ..parsing.inner_rewards import inner_scores, is_score
from ..parsing.reference_values import find_reference_error, read_references
from ..parsing.sample_images import to_rgb
from .judge_config import judge_of
from .judge_protocol import ReplyParams
from .questions import Question, Scale, fill_template

WITHOUT_TOOLS = "{question}\n\nAnswer from the image alone. Put the final answer inside <answer></answer>."
WITH_TOOLS = (
    "{question}\n\nTools read this from the image:\n{outputs}\n\nAnswer from the image and these outputs. Put the "
    "final answer inside <answer></answer>."
)

_NO_SCALE = Scale(low=0, high=1, key="score")


@final
class ToolChoice:
    """Reward: whether a frozen model answers right with the outputs of the chosen tools, compared with none.

    The text names tools by their numbers from 0, separated by commas: ``<answer>0, 3</answer>``. The model, local or at
    an endpoint, answers twice, with the outputs of these tools and without; the reward ``of`` scores both answers
    against the row like those of the policy, and 1 is right. Right with the outputs: 1. Right without them alone:
    ``spoiled``. Neither: 0. A text without numbers of tools chooses none. A missing reply and a failure of ``of`` are
    counted failures.

    Example: ``{name: tool_choice, model: Qwen/Qwen2.5-VL-7B-Instruct, of: {name: chart_answer}}``.
    Settings: ``column`` has the outputs of the tools of a row in order, texts or null; ``with_tools`` and
    ``without_tools``, the questions, may contain ``{outputs}``, ``{prompt}`` and names of columns; the images of the
    prompt are passed to the model; ``endpoint``, ``local``, ``system``, ``temperature`` and ``max_new_tokens`` as in
    ``text_judge``.
    Range: ``spoiled`` to 1.
    Source: VisTA, arXiv:2505.20289, vista/src/r1-v/src/open_r1/grpo.py, accuracy_reward: 1, -0.5 and 0. Deviations:
    failed requests are not scored, in the code 0; images are passed as they are, in the code at a random scale.
    Traps: every sample costs two replies; at a temperature above 0 the same choice has different rewards.
    """

    def __init__(
        self,
        model: str,
        of: Reward,
        column: str = "tools",
        extract: Extract = "tag",
        with_tools: str = WITH_TOOLS,
        without_tools: str = WITHOUT_TOOLS,
        spoiled: float = -0.5,
        temperature: float = 0.0,
        max_new_tokens: int = 512,
        system: str | None = None,
        endpoint: Mapping[str, Any] | None = None,
        local: Mapping[str, Any] | None = None,
    ) -> None:
        if "{outputs}" not in with_tools:
            raise ConfigError("ToolChoice.with_tools must contain {outputs}, the outputs of the chosen tools")
        self.of = of
        self.column = column
        self._extract: Extract = require_extract("ToolChoice.extract", extract)
        self._templates = with_tools, without_tools
        self._spoiled = spoiled
        self._reply_params = ReplyParams(max_new_tokens=max_new_tokens, temperature=temperature)
        self._judge = judge_of("ToolChoice", model, system=system, endpoint=endpoint, local=local)
        self.concurrent, self.deterministic = self._judge.is_remote, not self._judge.is_remote

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        outputs = read_references("tool_choice", samples, self.column, _outputs)
        values: list[float | Score | None] = [None] * len(samples)
        questions: dict[int, tuple[Question, Question]] = {}
        chosen: dict[int, list[int]] = {}
        for i, (sample, row) in enumerate(zip(samples, outputs, strict=True)):
            if row is None:
                continue
            chosen[i] = _numbers(extract_answer(sample.text or "", self._extract) or "", len(row))
            pair = self._questions(sample, [row[number] for number in chosen[i]])
            if pair is not None:
                questions[i] = pair
        both = [question for pair in questions.values() for question in pair]
        replies = self._judge.replies(both, self._reply_params) if both else []
        for position, i in enumerate(questions):
            values[i] = self._score(samples[i], chosen[i], replies[2 * position : 2 * position + 2])
        return values

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is not a list of outputs; None if it is one."""
        return find_reference_error(value, _outputs, "a list of the tools' outputs, texts or null")

    def _questions(self, sample: Sample, outputs: Sequence[str | None]) -> tuple[Question, Question] | None:
        more = {"outputs": "\n\n".join(filter(None, outputs))}
        texts = [fill_template(template, sample, _NO_SCALE, more=more) for template in self._templates]
        if texts[0] is None or texts[1] is None:
            return None
        images = [to_rgb(image) for image in sample.prompt.images]
        return Question(images, texts[0]), Question(images, texts[1])

    def _score(self, sample: Sample, chosen: Sequence[int], replies: Sequence[Sequence[str]]) -> Score | None:
        if not all(replies):
            return Score(math.nan, {"reason": "no reply"})
        answers = [Sample(sample.prompt, sample.group, sample.member, text=texts[0]) for texts in replies]
        with_tools, without = inner_scores(self.of, answers).values
        if with_tools is None or without is None:
            return None
        if not is_score(with_tools) or not is_score(without):
            return Score(math.nan, {"reason": "the reward of the answers failed"})
        helped, plain = with_tools >= 1, without >= 1
        value = 1.0 if helped else self._spoiled if plain else 0.0
        reason = f"{_right(helped)} with tools {', '.join(map(str, chosen)) or 'none'}, {_right(plain)} without"
        return Score(value, {"reason": reason})


def _right(right: bool) -> str:
    return "right" if right else "wrong"


def _numbers(text: str, num_tools: int) -> list[int]:
    """The distinct numbers below ``num_tools`` of a list separated by commas, in order; none if one is no number."""
    parts = [part.strip() for part in text.strip().strip("[]").split(",")]
    if not all(part.isdecimal() and len(part) < 6 for part in parts if part):
        return []
    return list(dict.fromkeys(number for part in parts if part and (number := int(part)) < num_tools))


def _outputs(value: Any) -> list[str | None] | None:
    items = list(value) if isinstance(value, list | tuple) else []
    return items if items and all(item is None or isinstance(item, str) for item in items) else None
