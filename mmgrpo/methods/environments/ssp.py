"""SSP, arXiv:2510.18821.

The policy searches and poses questions with a known answer, and then solves them; a question counts if it can be
answered from the results of the searches that led to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import final

from mmgrpo.data.history import NOTHING, History, prompt_template
from mmgrpo.data.prompt_templates import PROMPT_TEMPLATES, fill_template, require_places, with_text
from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Prompt, Sample

QUESTION = re.compile(r"<question>\s*(.*?)\s*</question>", re.DOTALL)

Identity = tuple[int, int]


def _check_question_with_results(text: str, least: int) -> None:
    require_places("question_with_results", text, "question", "results")
    if least < 1:
        raise ConfigError(f"question_with_results needs least >= 1, got {least}")


@PROMPT_TEMPLATES.register
@prompt_template(check=_check_question_with_results)
def question_with_results(
    prompt: Prompt, member: int, history: History = NOTHING, *, text: str, least: int = 1
) -> Prompt | None:
    """The question that a sample poses, with the results of its searches.

    ``{question}`` is the text between its last question tags, ``{results}`` the texts of the environment's answers; it
    does not apply to a sample without a question, or with fewer than ``least`` answers.

    Raises: ConfigError for a text that lacks either placeholder.
    Source: SSP, arXiv:2510.18821, and its code (Alibaba-Quark/SSP, quarl/utils/problem_extraction.py).
    """
    del member
    if not history.samples:
        return None
    sample = history.samples[0]
    questions = QUESTION.findall(sample.text or "")
    results = [reply.text for reply in sample.turn_replies if reply is not None and not reply.ends]
    if not questions or len(results) < least:
        return None
    values = {"question": questions[-1], "results": "\n\n".join(results)}
    return with_text(prompt, fill_template(prompt, text, values))


class _Play:
    """The questions of a step, with their checks and solutions."""

    def __init__(self, of: Reward, samples: Sequence[Sample], posed: str, checked: str, solved: str) -> None:
        rows = [row for row, sample in enumerate(samples) if sample.prompt_template in (checked, solved)]
        scores = of([samples[row] for row in rows]) if rows else []
        self.value: dict[int, float] = {}
        for row, score in zip(rows, scores, strict=True):
            value = getattr(score, "value", score)
            if value is not None:
                self.value[row] = float(value)
        self.question_of = {row: samples[row].after[0] for row in rows if samples[row].after}
        self.checks = self._by_question(samples, checked)
        self.solutions = self._by_question(samples, solved)

    def is_answerable(self, question: Identity, right: float) -> bool:
        return any(value >= right for value in self.checks.get(question, ()))

    def _by_question(self, samples: Sequence[Sample], prompt_template: str) -> Mapping[Identity, list[float]]:
        values: dict[Identity, list[float]] = {}
        for row, value in self.value.items():
            if samples[row].prompt_template == prompt_template and row in self.question_of:
                values.setdefault(self.question_of[row], []).append(value)
        return values


@final
class Posed:
    """Reward of questions: the share of wrong solutions, 0 if the question cannot be answered from its results.

    1 - mean over its solutions of (r >= ``right``), r the inner reward; 0 without a right check or without a solution;
    None for other samples.

    Settings: ``of``: the inner reward, by name or with its settings; ``posed``, ``checked``, ``solved``: prompt
    templates.
    Range: 0 to 1.   Source: SSP's code, ssp_ray_trainer.py, ``_compute_proposer_rewards``, reward_type 1-acc.
    """

    def __init__(
        self, of: Reward, posed: str = "posed", checked: str = "checked", solved: str = "solved", right: float = 1.0
    ) -> None:
        self.of, self._prompt_templates, self._right = of, (posed, checked, solved), right

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        play = _Play(self.of, samples, *self._prompt_templates)
        return [self._value(play, s) if s.prompt_template == self._prompt_templates[0] else None for s in samples]

    def _value(self, play: _Play, sample: Sample) -> float:
        solutions = play.solutions.get(sample.identity, ())
        if not solutions or not play.is_answerable(sample.identity, self._right):
            return 0.0
        return 1.0 - sum(value >= self._right for value in solutions) / len(solutions)


@final
class Solved:
    """Reward of solutions: the inner reward, None if the question cannot be answered from its results.

    Settings: as those of ``Posed``.   Range: that of the inner reward.
    Source: SSP's code, problem_extraction.py: only valid questions are solved.
    """

    def __init__(
        self, of: Reward, posed: str = "posed", checked: str = "checked", solved: str = "solved", right: float = 1.0
    ) -> None:
        self.of, self._prompt_templates, self._right = of, (posed, checked, solved), right

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        play = _Play(self.of, samples, *self._prompt_templates)
        return [
            play.value.get(row)
            if sample.prompt_template == self._prompt_templates[2]
            and row in play.question_of
            and play.is_answerable(play.question_of[row], self._right)
            else None
            for row, sample in enumerate(samples)
        ]
