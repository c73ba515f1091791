"""Rewards for rare formats and unique formulas within a group."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.reward import Reward
from mmgrpo.types import Sample, Score

from ..models.checkpoints import require_positive
from ..parsing.extraction import require_fraction
from ..parsing.inner_rewards import inner_scores, is_score, needed_values
from .grouping import within_groups

_FORMULA = re.compile(r"\\\[([^\]]*)\\\]|\\\(([^)]*)\\\)|\$([^$]*)\$")


@final
class Rarity:
    """Reward: an inner reward, scaled by the rarity of the sample's format in its group.

    r_i (G / F_i - 1): F_i of the G scored members have the format of member i. The format is the longest of ``marks``
    that the text begins with, ignoring leading spaces; texts without a mark form one format. Together with the inner
    reward itself the sum is r_i G / F_i. None if the inner reward is None or there is no text.

    Example: ``{name: rarity, of: {name: exact_match, extract: tag}, marks: [<COT>, <CODE>, <LONG_COT>]}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``marks``, the prefixes of the formats.
    Range: 0 if all members have one format, up to G - 1 times the inner reward.
    Source: Wu et al. 2025 (ARM, Ada-GRPO), arXiv:2505.20258, and its code, whose factor is 1 + (G / F - 1) (1 + cos(pi
    t / T)) / 2: use this reward in addition to ``of``, with a weight on a cosine schedule from 1 to 0 over the T steps
    of the run.
    Traps: a rare format that is correct once earns a large reward, so decrease the weight. Rarity makes negative
    rewards worse.
    """

    def __init__(self, of: Reward, marks: Sequence[str]) -> None:
        if isinstance(marks, str) or not marks or not all(marks):
            raise ConfigError(f"Rarity.marks must be a list of prefixes, got {marks!r}")
        self.needs_values = needed_values(of)
        self.of = of
        self._marks = tuple(sorted(marks, key=len, reverse=True))

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        values = [None if sample.text is None else value for sample, value in zip(samples, inner.values, strict=True)]

        def rule(rows: Sequence[int]) -> list[float]:
            forms = [self._form(samples[row].text or "") for row in rows]
            rewards = [value for row in rows if is_score(value := values[row])]
            return rarer(rewards, forms)

        return inner.explain(within_groups(samples, values, rule))

    def _form(self, text: str) -> str:
        return next((mark for mark in self._marks if text.lstrip().startswith(mark)), "")


def rarer(rewards: Sequence[float], forms: Sequence[str]) -> list[float]:
    """Each reward times G / F - 1, where F of the G members have its format."""
    counts = Counter(forms)
    return [reward * (len(forms) / counts[form] - 1) for reward, form in zip(rewards, forms, strict=True)]


@final
class UniqueFormulas:
    r"""Reward: an inner reward, times the fraction of the sample's formulas that no other member of its group has.

    r_i min(u_i / f_i, ``most``): of the f_i distinct formulas in the text of member i, u_i occur in no other scored
    member; 0 without formulas. A formula is the text between ``\[`` and ``\]``, ``\(`` and ``\)``, or two ``$``, within
    the first ``characters`` of the text. None if the inner reward is None or there is no text.

    Example: ``{name: unique_formulas, of: {name: math_verify, column: answer}, most: 0.42}``.
    Settings: ``of``: the inner reward, by name or with its settings; ``most``, the maximum fraction.
    Range: 0 to ``most`` times the inner reward.
    Source: Hu et al. 2025 (DIVER), arXiv:2509.26209, and its code (NJU-RL/DIVER, ``diversity_metric.py``).
    Traps: a formula with renamed variables counts as a different one, as do trivial formulas. Use a schedule that ends
    it before the policy exploits it.
    """

    def __init__(self, of: Reward, most: float = 1.0, characters: int = 1000) -> None:
        self.needs_values = needed_values(of)
        self.of = of
        self._most = require_fraction("UniqueFormulas.most", most)
        self._characters = require_positive("UniqueFormulas.characters", characters)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        inner = inner_scores(self.of, samples)
        values = [None if sample.text is None else value for sample, value in zip(samples, inner.values, strict=True)]

        def rule(rows: Sequence[int]) -> list[float]:
            row_formulas = [formulas((samples[row].text or "")[: self._characters]) for row in rows]
            rewards = [value for row in rows if is_score(value := values[row])]
            return [r * min(part, self._most) for r, part in zip(rewards, unique_shares(row_formulas), strict=True)]

        return inner.explain(within_groups(samples, values, rule))


def formulas(text: str) -> frozenset[str]:
    """The distinct formulas of a text, without delimiters."""
    return frozenset(next(part for part in match.groups() if part is not None) for match in _FORMULA.finditer(text))


def unique_shares(member_formulas: Sequence[frozenset[str]]) -> list[float]:
    """Fraction of each member's formulas that no other member has; 0 without formulas."""
    writers = Counter(formula for texts in member_formulas for formula in texts)
    return [sum(writers[formula] == 1 for formula in texts) / max(len(texts), 1) for texts in member_formulas]
