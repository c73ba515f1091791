"""Rewards that call an inner reward with substituted texts: another member's text as reference, or the reference as
sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..parsing.extraction import Extract, extract_answer, require_choice, require_extract, without_thought
from ..parsing.inner_rewards import inner_scores, is_score, needed_values
from .grouping import groups

Rule = Literal["lead", "sigmoid"]


@final
class AcrossPromptTemplates:
    """Reward: agreement of a sample with the members of its group from other prompt templates, by an inner reward.

    The mean over group members from other prompt templates of the score of ``of`` for this sample with the member's
    text, without thoughts, as reference in ``column``. None without such members, or if ``of`` returns None for all.

    Example: ``{name: across_prompt_templates, of: {name: caption_score, metric: bleu, order: 2}}``.
    Settings: ``of``, a reward that compares a text with a reference, with its settings; ``column``, its reference
    column.
    Range: that of the reward.
    Source: Hamman et al. 2025 (Con-RAG, PS-GRPO), arXiv:2510.04392, its group similarity reward, according to a public
    note on the paper.
    Traps: agreement is not correctness, and a constant short answer agrees best. The inner reward is scored for each
    pair of members; use cheap rewards.
    """

    needs_columns = ()  # it fills the column

    def __init__(self, of: Reward, column: str = "answer") -> None:
        self.needs_values = needed_values(of)
        self.of = of
        self.column = column

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        pairs = [
            (row, other)
            for rows in groups(samples).values()
            for row in rows
            for other in rows
            if samples[row].prompt_template != samples[other].prompt_template
            and None not in (samples[row].text, samples[other].text)
        ]
        with_references = [self._with_reference(samples[row], samples[other].text or "") for row, other in pairs]
        agreements: dict[int, list[float]] = {}
        for (row, _), value in zip(
            pairs, inner_scores(self.of, with_references).values if with_references else (), strict=True
        ):
            if value is not None:
                agreements.setdefault(row, []).append(value)
        return [
            math.fsum(agreements[row]) / len(agreements[row]) if row in agreements else None
            for row in range(len(samples))
        ]

    def _with_reference(self, sample: Sample, reference: str) -> Sample:
        columns = {**sample.prompt.columns, self.column: without_thought(reference).strip()}
        return replace(sample, prompt=replace(sample.prompt, columns=columns))


@final
class OverReference:
    """Reward: improvement of a sample over the reference of the row, by an inner reward.

    With d = ``sharpness`` (S(sample) - S(reference)), ``rule: lead`` is 1 - e^-d where d is above 0, else 0, and
    ``sigmoid`` is 1 / (1 + e^-d), the win probability of the sample in a Bradley-Terry model. 0 without the extracted
    part. None if the row has no reference, or ``of`` returns None for either.

    Example: ``{name: over_reference, of: {name: reward_model, model: Skywork/Skywork-Reward-V2-Llama-3.1-8B}}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``column`` of the reference; ``sharpness``, per
    unit of the inner reward; ``extract`` as in ``exact_match``: ``of`` scores the extracted part.
    Range: 0 to 1.
    Source: ``lead``: Chen et al. 2025 (VLAA-Thinking), arXiv:2504.11468, sec. 4.1, the open-ended reward. ``sigmoid``:
    Xu et al. 2024 (CGPO), arXiv:2409.20370, eq. 5, the calibrated reward.
    Traps: with ``lead`` groups in which all samples are worse than the reference give no signal. ``of`` scores the
    reference again for each sample.
    """

    def __init__(
        self,
        of: Reward,
        column: str = "answer",
        rule: Rule = "lead",
        sharpness: float = 1.0,
        extract: Extract = "none",
    ) -> None:
        if not sharpness > 0:
            raise ConfigError(f"OverReference.sharpness must be above 0, got {sharpness}")
        self.needs_values = needed_values(of)
        self.of = of
        self.column = column
        self._rule: Rule = require_choice("OverReference.rule", rule, Rule)
        self._sharpness = sharpness
        self._extract: Extract = require_extract("OverReference.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        answers = {
            row: extract_answer(sample.text, self._extract)
            for row, sample in enumerate(samples)
            if sample.text is not None and sample.prompt.columns.get(self.column) is not None
        }
        stated = {row: answer for row, answer in answers.items() if answer}
        of_samples = [replace(samples[row], text=answer) for row, answer in stated.items()]
        of_references = [replace(samples[row], text=str(samples[row].prompt.columns[self.column])) for row in stated]
        values = inner_scores(self.of, of_samples + of_references).values if stated else []
        rows = zip(stated, values[: len(stated)], values[len(stated) :], strict=True)
        leads = {row: self._lead(sample_score, reference_score) for row, sample_score, reference_score in rows}
        return [leads.get(row, 0.0) if row in answers else None for row in range(len(samples))]

    def _lead(self, sample_score: float | None, reference_score: float | None) -> float | None:
        if not is_score(sample_score) or not is_score(reference_score):
            return None if sample_score is None or reference_score is None else math.nan
        lead = self._sharpness * (sample_score - reference_score)
        return -math.expm1(-max(lead, 0.0)) if self._rule == "lead" else (1 + math.tanh(lead / 2)) / 2
